//! Pools whose captures were released: a replay of their graphs may still be running, on any stream, so the pool stays as
//! it is until all work has finished that was queued anywhere by then.
//!
//! What a pool waits for stands in the pool. A thread that checks it takes it out, and with it the pool's pin, waits with
//! no lock held, and puts back what is still open. Meanwhile its heaps serve nobody: they are *detached*.

use super::super::ground::{Ground, Growing, Pool};
use super::super::order::Waits;
use super::super::state::pools::PoolStreams;
use super::super::types::{PoolId, RETIRED, UNORDERED};
use crate::base::error::{Code, Result};
use crate::base::sync::{Ordering::Relaxed, pause};
use crate::fail;

/// See the head of this file. No lock may be held while a method is called.
#[derive(Clone, Copy)]
pub(crate) struct ReleasedPools<'a> {
    ground: &'a Ground,
}

impl<'a> ReleasedPools<'a> {
    pub(crate) fn of(ground: &'a Ground) -> ReleasedPools<'a> {
        ReleasedPools { ground }
    }

    /// Keeps a pool whose last capture was just released, and on which the caller has a pin, as it is until `waits` is
    /// over. A replay that has just begun may use what is free in its heaps, so they are detached.
    pub(crate) fn enter(self, p: &Pool, waits: Waits) {
        let g = self.ground.growing();
        let mut streams = p.streams();
        if !waits.is_over() {
            self.detach(p, &mut streams);
        }
        self.keep(&g, p, &mut streams, waits);
    }

    /// Keeps a pool as it is until the rest of what it waits for is over.
    fn enter_again(self, p: &Pool, waits: Waits) {
        let g = self.ground.growing();
        self.keep(&g, p, &mut p.streams(), waits);
    }

    /// Keeps a pool as it is until `waits` is over; if there is nothing to wait for, removes the pin now.
    fn keep(self, g: &Growing<'_>, p: &Pool, streams: &mut PoolStreams, waits: Waits) {
        let mut released = p.released();
        match released.as_mut() {
            Some(more) => more.append(waits), // this has a pin already
            None if !waits.is_over() => {
                *released = Some(waits);
                self.ground.pools().released().fetch_add(1, Relaxed);
                return;
            }
            None => {
                drop(released);
                self.attach(streams);
            }
        }
        p.unpin(g);
    }

    /// Makes the heaps of a pool serve no stream.
    fn detach(self, p: &Pool, streams: &mut PoolStreams) {
        p.forget_heaps(streams);
        let PoolStreams { heaps, detached, .. } = streams;
        for (stream, index) in heaps.drain() {
            match self.ground.heaps().get(index) {
                Some(heap) if stream == UNORDERED => heap.close_fast_path(),
                Some(heap) => self.ground.lock(heap).go_by(RETIRED),
                None => {}
            }
            detached.push(index);
        }
    }

    /// Makes them serve their streams again, except those whose stream has ended or has another heap.
    fn attach(self, streams: &mut PoolStreams) {
        for index in std::mem::take(&mut streams.detached) {
            let Some(heap) = self.ground.heaps().get(index) else { continue };
            let mut h = self.ground.lock(heap);
            let whose = match &h.stream {
                Some(s) if s.end().is_none() => Some(s.id),
                Some(_) => None,
                None => Some(UNORDERED),
            };
            match whose.filter(|s| !streams.heaps.contains_key(s)) {
                Some(stream) => {
                    h.go_by(stream);
                    streams.heaps.insert(stream, index);
                }
                None => streams.orphans.push(index),
            }
        }
    }

    /// Takes what a pool waits for; the caller owns it, with the pin.
    fn take(self, p: &Pool) -> Option<Waits> {
        let waits = p.released().take();
        if waits.is_some() {
            self.ground.pools().released().fetch_sub(1, Relaxed);
        }
        waits
    }

    /// Checks whether pools are ordinary ones again. Returns whether any has become so. Waits for nothing.
    pub(crate) fn poll(self) -> bool {
        if self.ground.pools().released().load(Relaxed) == 0 {
            return false;
        }
        let mut any = false;
        for p in self.ground.pools().all() {
            if let Some(mut waits) = self.take(p) {
                any |= self.ground.order.settle(&mut waits);
                self.enter_again(p, waits);
            }
        }
        any
    }

    /// Waits on the host until any pool is an ordinary one again. `false`: there is none, or none can be waited for.
    pub(crate) fn wait_for_any(self) -> bool {
        let is_set_aside = |p: &&Pool| p.is_pinned() && p.captures() == 0 && !p.sleeps();
        self.ground.pools().all().filter(is_set_aside).any(|p| {
            let mut round = 0;
            while is_set_aside(&p) {
                if let Some(waits) = self.take(p) {
                    if self.wait_out(p, waits).is_err() {
                        return false;
                    }
                } else if self.ground.order.check_wait().is_err() {
                    return false;
                } else {
                    pause(round); // another thread waits for it
                    round = round.saturating_add(1);
                }
            }
            true
        })
    }

    /// Waits on the host for what a pool waits for, which the caller has taken.
    fn wait_out(self, p: &Pool, mut waits: Waits) -> Result<()> {
        let done = self.ground.order.sync_waits(&mut waits);
        self.enter_again(p, waits);
        done
    }

    /// Waits on the host until a pool is an ordinary one again. `Busy` while a capture of it is alive.
    pub(crate) fn wait_for(self, p: &Pool) -> Result<()> {
        let Some(waits) = self.take(p) else {
            if p.captures() > 0 {
                fail!(Code::Busy, "a capture of the pool is still alive");
            }
            std::thread::yield_now(); // another thread is checking it
            return Ok(());
        };
        self.wait_out(p, waits)
    }

    /// Waits on the host until all heaps of the pool that a replay may still use serve their streams again.
    pub(crate) fn wait_for_replays(self, pool: PoolId) -> Result<()> {
        let p = self.ground.pools().live(pool)?;
        while !p.streams().detached.is_empty() && self.ground.pools().get(pool).is_some() {
            match self.take(p) {
                Some(waits) => self.wait_out(p, waits)?,
                None => std::thread::yield_now(), // another thread is checking it
            }
        }
        Ok(())
    }
}
