//! The end of a pool: nobody may use it any more, all its blocks must have come back, and its sums outlive it.
//!
//! The pool ends under the growth lock, the lock of its streams, the ledger and all its heaps. Before that, the device is
//! waited for with no lock held; if blocks come and go meanwhile, that is done again.

use super::super::account::Accounts;
use super::super::blocks::{Blocks, ReleasedPools, WaitingBlocks};
use super::super::ground::{Ground, Growing, Pool};
use super::super::heap::LockedHeap;
use super::super::heap::counters::ALL;
use super::super::state::pools::PoolStreams;
use super::super::supply::Trim;
use super::super::types::{NO_POOL, PoolId, RETIRED};
use super::exports::ExportCalls;
use super::sleep::SleepCalls;
use crate::base::error::{Code, Result};
use crate::base::sort;
use crate::fail;

/// How often the end of a pool is tried again because other threads still use the pool.
const TRIES: usize = 8;

/// A pool that is to end.
#[derive(Clone, Copy)]
pub(crate) struct PoolEnd<'a> {
    ground: &'a Ground,
    place: &'static Pool,
    id: PoolId,
}

impl<'a> PoolEnd<'a> {
    /// Fails unless the pool lives.
    pub(crate) fn of(ground: &'a Ground, id: PoolId) -> Result<PoolEnd<'a>> {
        Ok(PoolEnd { ground, place: ground.pools().live(id)?, id })
    }

    /// Ends the pool and gives its memory back. `Busy` while it has live blocks; the default pool cannot be destroyed.
    pub(crate) fn run(self) -> Result<()> {
        if self.id == PoolId::DEFAULT {
            fail!(Code::InvalidArgument, "the default pool of a device cannot be destroyed");
        }
        self.ground.check_reentry()?;
        self.check_unused()?;
        let sleep = SleepCalls::of(self.ground);
        let slept = sleep.discard(self.place, self.id)?;
        let done = self.try_to_end();
        if slept && done.is_err() {
            sleep.sleep_on(self.place, self.id);
        }
        done
    }

    fn try_to_end(self) -> Result<()> {
        let PoolEnd { ground, place: p, id } = self;
        for _ in 0..TRIES {
            let before = self.ever_made();
            self.check_unused()?;
            self.wait_for_blocks()?;
            Trim::of(ground).all(Some(id.0))?;
            let mut g = ground.growing().wait_for_transits_of(id.0);
            let mut streams = p.streams();
            if p.id() != id.0 {
                fail!(Code::InvalidArgument, "the pool was destroyed meanwhile");
            }
            if p.is_pinned() {
                fail!(Code::Busy, "a capture of the pool has begun meanwhile");
            }
            if self.retire(&mut g, &mut streams, before)? {
                return Ok(());
            }
            drop((streams, g));
            std::thread::yield_now();
        }
        fail!(Code::Busy, "blocks of the pool come and go while it is to end")
    }

    /// The number of blocks that were ever allocated in the heaps of the pool.
    fn ever_made(self) -> u128 {
        let heaps = self.ground.heaps_of(self.id.0).into_iter();
        heaps.map(|x| self.ground.lock(x).counters.totals()[ALL][2]).sum()
    }

    /// `Busy` while anybody uses the pool.
    fn check_unused(self) -> Result<()> {
        let live = Accounts::of(self.ground).stats(Some(self.id))?.blocks.current;
        if live > 0 {
            fail!(Code::Busy, "live blocks of the pool: {live}");
        }
        match self.place.captures() {
            0 => ExportCalls::of(self.ground).check_freed(self.id),
            n => fail!(Code::Busy, "live captures of the pool: {n}"),
        }
    }

    /// Waits on the host until the pool has no waiting blocks.
    fn wait_for_blocks(self) -> Result<()> {
        let PoolEnd { ground, id, .. } = self;
        let (waiting, released) = (WaitingBlocks::of(ground), ReleasedPools::of(ground));
        loop {
            ground.heaps_of(id.0).into_iter().for_each(|x| _ = waiting.poll(x));
            released.poll();
            let p = ground.pools().live(id)?;
            if !waiting.has_any(id.0) && !p.is_pinned() {
                return Ok(());
            }
            ExportCalls::of(ground).check_freed(id)?;
            if p.is_pinned() {
                released.wait_for(p)?;
            } else if !waiting.wait_for_one(Some(id.0)) {
                // Other threads are just freeing the rest, or it cannot be waited for; then the error says why.
                ground.order.sync_device()?;
                waiting.bring_back(id)?;
                std::thread::yield_now();
            }
        }
    }

    /// Ends the pool. Memory that its heaps still own (parts of segments that others use too, and what the device
    /// refused to take back) belongs to no pool from now on. `false`: nothing was done, because a request is in
    /// progress, or because the device was not waited for since the last allocation: more blocks than `before` were
    /// made.
    fn retire(self, g: &mut Growing<'_>, streams: &mut PoolStreams, before: u128) -> Result<bool> {
        let PoolEnd { ground, place: p, id } = self;
        let mut heaps: Vec<_> = streams.all().iter().filter_map(|&i| ground.heaps().get(i)).collect();
        sort::by_key(&mut heaps, |x| x.index);
        let needs_commons = heaps.iter().any(|x| ground.look(x).granules > 0);
        let commons = if needs_commons { Some(ground.commons()?) } else { None };
        let mut ledger = ground.ledger();
        // All of them at once: a thread that has found one of them may lock it at any moment.
        let mut locked: Vec<LockedHeap<'_>> = heaps.iter().map(|x| ground.lock(x)).collect();
        locked.iter_mut().for_each(|h| Blocks::of(ground).drain(h));
        if locked.iter().any(|h| !h.waiting.is_empty() || !h.counters.is_empty()) {
            fail!(Code::Busy, "blocks of the pool are still live");
        }
        let made: u128 = locked.iter_mut().map(|h| h.counters.totals()[ALL][2]).sum();
        let has_more = (made != before || commons.is_none()) && locked.iter().any(|h| h.granules > 0);
        if has_more || locked.iter().any(|h| h.requests > 0) {
            return Ok(false);
        }
        p.end(g, streams);
        let mut left = Vec::new();
        for h in &mut locked {
            h.give_up_whole();
            h.flush();
            if h.granules > 0 {
                left.extend(h.take_all(|granule| g.segments.end_of(granule)));
            }
            h.give_ids_up();
            ledger.remove(h);
            h.serve(NO_POOL, RETIRED, None, 0);
            ledger.spare_heaps.push(h.heap.index);
        }
        drop(locked);
        for (block, commons) in left.into_iter().zip(commons.into_iter().cycle()) {
            g.give_to_nobody(id.0, commons, block);
        }
        streams.clear();
        ledger.pools.remove(&id.0);
        g.forget_pool(id.0);
        Ok(true)
    }
}
