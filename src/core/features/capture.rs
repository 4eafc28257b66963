//! Graph capture: streams whose work is recorded now and run later, perhaps many times.
//!
//! From its begin to its end, a capture's streams are served by the capture's own pool, whatever pool a request names.
//! A captured stream is left alone: no point is made on it (a block that needs one waits until the capture has ended),
//! it is not made to wait, and its heaps neither give memory to others nor take any; they only grow. While any stream
//! is captured, the device as a whole is not waited for (`order/captured.rs`).
//!
//! A capture lives on with the graph that it made: its pool is *kept*, which means that no memory leaves the pool or is
//! mapped elsewhere, so that a replay finds all addresses as they were, freed blocks included. When the last capture of
//! the pool is released, a replay may still be running, on any stream: so the pool stays as it is until all work has
//! finished that was queued anywhere by then.

use super::super::ground::Ground;
use super::super::order::Waits;
use super::super::state::captures::CaptureId;
use super::super::state::pools::{Pool, PoolStreams, Sleep};
use super::super::types::{PoolId, RETIRED, UNORDERED};
use crate::base::error::{Code, Result};
use crate::base::sync::{Ordering::Relaxed, lock, pause};
use crate::fail;

fn no_capture<T>() -> Result<T> {
    fail!(Code::InvalidArgument, "no such capture, or it was released")
}

impl Ground {
    /// Starts a capture of `stream`, served by `pool` from now on. Must be called before the device starts to record.
    pub(crate) fn capture_begin(&self, pool: PoolId, stream: u64) -> Result<CaptureId> {
        if pool == PoolId::DEFAULT {
            fail!(Code::InvalidArgument, "a capture needs a pool of its own, not the default pool");
        }
        self.check_capture(pool, stream)?;
        let id = {
            // Under this lock: no other thread takes memory out of the pool having found it unpinned before.
            let _g = self.growing();
            let p = self.live_pool(pool)?;
            if p.sleep_state() != Sleep::Awake {
                fail!(Code::NotPermitted, "the pool sleeps");
            }
            self.order.capture(stream, pool)?;
            p.kept.fetch_add(1, Relaxed);
            p.pins.fetch_add(1, Relaxed);
            lock(&self.captures).add(pool, Some(stream))
        };
        self.route_requests(stream);
        Ok(id)
    }

    /// A capture without streams, which has ended already: it keeps the pool until it is released.
    pub(crate) fn capture_keep(&self, pool: PoolId) -> Result<CaptureId> {
        if pool == PoolId::DEFAULT {
            fail!(Code::InvalidArgument, "the default pool cannot be kept");
        }
        let _g = self.growing();
        let p = self.live_pool(pool)?;
        if p.sleep_state() != Sleep::Awake {
            fail!(Code::NotPermitted, "the pool sleeps");
        }
        p.kept.fetch_add(1, Relaxed);
        p.pins.fetch_add(1, Relaxed);
        Ok(lock(&self.captures).add(pool, None))
    }

    /// Adds another stream to a capture that has not ended.
    pub(crate) fn capture_add(&self, capture: CaptureId, stream: u64) -> Result<()> {
        let (pool, _) = self.capture(capture)?;
        self.check_capture(pool, stream)?;
        {
            let _g = self.growing();
            let mut captures = lock(&self.captures);
            let Some(c) = captures.alive.get_mut(&capture) else { return no_capture() };
            if c.streams.is_empty() {
                fail!(Code::NotPermitted, "the capture has ended");
            }
            self.order.capture(stream, pool)?;
            c.streams.push(stream);
        }
        self.route_requests(stream);
        Ok(())
    }

    fn check_capture(&self, pool: PoolId, stream: u64) -> Result<()> {
        self.order.check_wait()?;
        if self.backing.is_default(stream) {
            fail!(Code::InvalidArgument, "the default stream cannot be captured");
        }
        self.live_pool(pool)?;
        self.known(stream)?;
        if !self.backing.ordered_by(stream) {
            fail!(
                Code::Unsupported,
                "stream {stream:#x} is another one on each thread: it has no pool of its own"
            );
        }
        Ok(())
    }

    /// The pool of a capture, and whether it has ended.
    fn capture(&self, capture: CaptureId) -> Result<(PoolId, bool)> {
        match lock(&self.captures).alive.get(&capture) {
            Some(c) => Ok((c.pool, c.streams.is_empty())),
            None => no_capture(),
        }
    }

    /// Waits for all threads that make a point on the stream and began before it was captured: their points must exist
    /// before the device starts to record. Then routes the stream's requests to the capture's pool.
    fn route_requests(&self, stream: u64) {
        self.order.wait_for_marks(stream);
        self.all_pools().for_each(|p| self.evict(p, stream));
        // A device that cannot be waited for during captures watches the streams that it was asked about.
        self.backing.capturing(stream);
    }

    /// Makes the streams of the capture ordinary ones again; the capture still keeps its pool. Must be called when the
    /// device has stopped recording, successfully or not.
    pub(crate) fn capture_end(&self, capture: CaptureId) -> Result<()> {
        let streams = match lock(&self.captures).alive.get_mut(&capture) {
            Some(c) => std::mem::take(&mut c.streams),
            None => return no_capture(),
        };
        if streams.is_empty() {
            fail!(Code::NotPermitted, "the capture has ended already");
        }
        streams.iter().for_each(|&s| self.order.end_capture(s));
        for &s in &streams {
            self.all_pools().for_each(|p| self.evict(p, s));
        }
        // Blocks may have waited for this.
        self.poll_all();
        Ok(())
    }

    /// The graph of the capture is gone, or was never made: ends the capture if it has not ended. When the last capture
    /// of a pool is released, the pool's free memory goes back to the device, which is waited for. If it cannot be
    /// (another stream is captured), or is not to be (without `wait`), the pool's memory serves nobody until what is
    /// queued now is done.
    pub(crate) fn capture_release(&self, capture: CaptureId, wait: bool) -> Result<()> {
        let (pool, ended) = self.capture(capture)?;
        if !ended {
            self.capture_end(capture)?;
        }
        let p = {
            let _g = self.growing();
            if lock(&self.captures).alive.remove(&capture).is_none() {
                fail!(Code::InvalidArgument, "the capture was released meanwhile");
            }
            let Some(p) = self.pool(pool) else { return Ok(()) };
            if p.kept.fetch_sub(1, Relaxed) > 1 {
                p.pins.fetch_sub(1, Relaxed);
                return Ok(());
            }
            p
        };
        let mut waits = Waits::default();
        self.order.add_all(&mut waits);
        if wait && !waits.is_over() && !self.order.any_captured() {
            let _ = self.order.sync_waits(&mut waits); // if that is impossible, the memory waits
        }
        let over = waits.is_over();
        self.keep_until(p, waits, true);
        if wait && over && !p.is_pinned() {
            let _ = self.trim(Some(pool.0)); // if that fails, it is ordinary free memory and goes when needed
        }
        Ok(())
    }

    /// Keeps a pool, on which the caller has a pin, as it is until `waits` is over; if there is nothing to wait for,
    /// the pin is removed now. `fresh`: a replay that has just begun may use what is free in its heaps, so these serve
    /// nobody until then.
    fn keep_until(&self, p: &Pool, waits: Waits, fresh: bool) {
        let _g = self.growing();
        let mut streams = lock(&p.streams);
        if fresh && !waits.is_over() {
            self.detach(p, &mut streams);
        }
        let mut released = lock(&p.released);
        match released.as_mut() {
            Some(more) => more.append(waits), // this has a pin already
            None if !waits.is_over() => {
                *released = Some(waits);
                self.released.fetch_add(1, Relaxed);
                return;
            }
            None => {
                drop(released);
                self.attach(&mut streams);
            }
        }
        // The end of the device, which forgets all pins, may have come before.
        let _ = p.pins.fetch_update(Relaxed, Relaxed, |pins| pins.checked_sub(1));
    }

    /// Makes the heaps of a pool serve no stream.
    fn detach(&self, p: &Pool, streams: &mut PoolStreams) {
        p.forget_heaps();
        let PoolStreams { heaps, detached, .. } = streams;
        for (stream, index) in heaps.drain() {
            match self.heap(index) {
                Some(heap) if stream == UNORDERED => heap.close_fast_path(),
                Some(heap) => self.lock(heap).go_by(RETIRED),
                None => {}
            }
            detached.push(index);
        }
    }

    /// Makes them serve their streams again, except those whose stream has ended or has another heap.
    fn attach(&self, streams: &mut PoolStreams) {
        for index in std::mem::take(&mut streams.detached) {
            let Some(heap) = self.heap(index) else { continue };
            let mut h = self.lock(heap);
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

    /// Takes what a pool waits for since its captures were released; the caller owns it, with the pin.
    fn take_released(&self, p: &Pool) -> Option<Waits> {
        let waits = lock(&p.released).take();
        if waits.is_some() {
            self.released.fetch_sub(1, Relaxed);
        }
        waits
    }

    /// Checks whether pools whose captures were released are ordinary ones again. Returns whether any has become so.
    pub(crate) fn poll_released(&self) -> bool {
        if self.released.load(Relaxed) == 0 {
            return false;
        }
        let mut any = false;
        for p in self.all_pools() {
            if let Some(mut waits) = self.take_released(p) {
                any |= self.order.settle(&mut waits);
                self.keep_until(p, waits, false);
            }
        }
        any
    }

    /// Waits on the host for freed memory: blocks, the first that is ready; then what released captures had.
    pub(crate) fn wait_for_any(&self) -> bool {
        self.poll_all() || self.wait_for_one(None) || self.wait_for_a_release()
    }

    /// Waits on the host until any pool whose captures were released is an ordinary one again. `false`: there is none, or
    /// none can be waited for.
    pub(crate) fn wait_for_a_release(&self) -> bool {
        let is_set_aside =
            |p: &&Pool| p.is_pinned() && p.kept.load(Relaxed) == 0 && p.sleep_state() == Sleep::Awake;
        self.all_pools().filter(is_set_aside).any(|p| {
            let mut round = 0;
            while is_set_aside(&p) {
                if let Some(mut waits) = self.take_released(p) {
                    let done = self.order.sync_waits(&mut waits);
                    self.keep_until(p, waits, false);
                    if done.is_err() {
                        return false;
                    }
                } else if self.order.check_wait().is_err() {
                    return false;
                } else {
                    pause(round); // another thread waits for it
                    round = round.saturating_add(1);
                }
            }
            true
        })
    }

    /// Waits on the host until a pool whose captures were released is an ordinary one again.
    pub(crate) fn wait_for_release(&self, p: &Pool) -> Result<()> {
        let Some(mut waits) = self.take_released(p) else {
            if p.kept.load(Relaxed) > 0 {
                fail!(Code::Busy, "a capture of the pool is still alive");
            }
            std::thread::yield_now(); // another thread is checking it
            return Ok(());
        };
        let done = self.order.sync_waits(&mut waits);
        self.keep_until(p, waits, false);
        done
    }

    /// Waits on the host until all heaps of the pool that a replay may still use serve their streams again.
    pub(crate) fn wait_for_replays(&self, pool: PoolId) -> Result<()> {
        let p = self.live_pool(pool)?;
        let rests = || !lock(&p.streams).detached.is_empty();
        while rests() && self.pool(pool).is_some() {
            match self.take_released(p) {
                Some(mut waits) => {
                    let done = self.order.sync_waits(&mut waits);
                    self.keep_until(p, waits, false);
                    done?;
                }
                None => std::thread::yield_now(), // another thread is checking it
            }
        }
        Ok(())
    }

    /// The device ends: nothing is captured or kept any more.
    pub(crate) fn forget_captures(&self) {
        let alive = std::mem::take(&mut lock(&self.captures).alive);
        for c in alive.into_values() {
            if let Some(p) = self.pool(c.pool) {
                p.kept.store(0, Relaxed);
            }
        }
        for p in self.all_pools() {
            p.pins.store(0, Relaxed);
            p.forget_released();
        }
    }
}
