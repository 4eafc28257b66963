//! Serving a request for which no block of exactly its size waits: a best fit from the free memory of its heap, then
//! after more of that is merged, and then a search everywhere else (`search.rs`).
//!
//! Each step continues where the one before has stopped: what failed is not tried again until something has changed in the
//! heap ([`Tried`]). The heap is locked throughout, except while freed blocks are polled.

use super::super::account::Accounts;
use super::super::blocks::{Blocks, WaitingBlocks};
use super::super::desc::{DIRECT, Id, USES};
use super::super::ground::Ground;
use super::super::heap::{FreeBlock, Heap, HeapState, LockedHeap, Stamp};
use super::super::report::OomStep;
use super::super::shape::{Class, Tier};
use super::super::units::Extent;
use super::device::DeviceMemory;
use super::limits::{self, NO_ROOM, TOO_MANY_BLOCKS, is_limit, is_table};
use super::request::Request;
use super::trials::Trials;
use super::trim::Trim;
use crate::base::boxed::has_room;
use crate::base::error::{Code, Error, Result};
use crate::fail;
use std::ops::DerefMut;

/// The number of best fits after which the remote list is checked again.
const DRAIN_EVERY: u32 = 32;

/// What was tried in vain in the heap of a request.
#[derive(Clone, Copy, Default)]
pub(super) struct Tried {
    /// A fit in the bins, when these looked so.
    fit: Option<Stamp>,
    /// A search of all free blocks, when the bins looked so.
    any: Option<Stamp>,
}

/// A request that is being served; see the head of this file.
#[derive(Clone, Copy)]
pub(crate) struct Serving<'a> {
    pub(super) ground: &'a Ground,
    pub(super) req: &'a Request,
    pub(super) tried: Tried,
}

/// A request that continues without the lock of its heap. The heap's pool does not end meanwhile.
pub(super) struct Asking<'a> {
    ground: &'a Ground,
    heap: &'static Heap,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut h = self.ground.look(self.heap);
        h.requests = h.requests.saturating_sub(1); // 0 if the device has ended
    }
}

impl<'a> Serving<'a> {
    pub(crate) fn of(ground: &'a Ground, req: &'a Request) -> Serving<'a> {
        Serving { ground, req, tried: Tried::default() }
    }

    fn blocks(&self) -> Blocks<'a> {
        Blocks::of(self.ground)
    }

    /// Notes that the request continues while its heap is unlocked.
    pub(super) fn asking(&self, h: &mut LockedHeap<'_>) -> Asking<'a> {
        h.requests += 1;
        Asking { ground: self.ground, heap: h.heap }
    }

    /// Whether its size makes it a segment of its own.
    pub(super) fn is_direct(&self) -> bool {
        let config = &self.ground.config;
        self.req.charged > config.max_chunk && !config.mapping
    }

    /// Whether the block should be scattered rather than placed at its best fit: memory is scarce, and much of the free
    /// memory lies in partly used granules.
    fn is_spared<G: DerefMut<Target = HeapState>>(&self, h: &LockedHeap<'_, G>) -> bool {
        h.ragged && self.req.is_large() && h.is_better_scattered(self.req.size.units)
    }

    /// A fit in the bins; 0 if there is none, or none was found before and the bins are as they were.
    fn fit<G: DerefMut<Target = HeapState>>(&mut self, h: &mut LockedHeap<'_, G>) -> Id {
        if !self.req.is_large() {
            return h.fit(self.req.size);
        }
        if self.tried.fit.is_some() && self.tried.fit == h.stamp() {
            return 0;
        }
        let id = h.fit_large(self.req.size.units);
        if id == 0 {
            self.tried.fit = h.stamp();
        }
        id
    }

    /// Searches everywhere for a block, the heap first; returns its offset.
    pub(crate) fn search(self) -> Result<u64> {
        let (ground, req) = (self.ground, self.req);
        let mut h = match ground.enter(req.heap) {
            Some(h) => h.into(),
            None => req.heap.lock_to_allocate(ground.shared()),
        };
        req.check_pool(&h)?;
        if req.tuned {
            h.counters.totals(); // reads the sums now: sizes like this could make them wrap more than once
            let id = self.blocks().take_whole(&mut h, req.charged, req.size.units);
            if id != 0 {
                let d = ground.maps.desc(id);
                let (tier_bits, charged) =
                    (d.tier_bits(), ground.maps.charge_of(d.tier_bits(), d.units(), req.bytes));
                let whole = req.charged_as(&ground.maps.shape, charged);
                return Ok(Serving { req: &whole, ..self }.finish(h, id, tier_bits));
            }
        }
        if let Some(id) = h.pop(req.size) {
            return Ok(self.finish(h, id, ground.maps.desc(id).tier_bits()));
        }
        self.search_on(h)
    }

    /// Goes on for a request for which no block of exactly its size was freed.
    #[inline(never)]
    fn search_on(mut self, mut h: LockedHeap<'a>) -> Result<u64> {
        let (ground, req) = (self.ground, self.req);
        if self.is_direct() && !ground.pools().is_pinned(req.heap) {
            let _asking = self.asking(&mut h);
            drop(h);
            return self.take_own_segment();
        }
        if h.countdown == 0 {
            h.countdown = DRAIN_EVERY;
            self.blocks().drain(&mut h);
            h.note_ragged(ground.hints.most_ragged());
        }
        let mut id = h.place(req.size);
        let spared = id == 0 && self.is_spared(&h);
        if id == 0 && !spared {
            if req.is_large() {
                self.tried.fit = h.stamp();
            }
            id = self.fit_merged(&mut h, self.merges_small_first(), false);
        }
        let tier_bits = req.size.tier as u32;
        if id != 0 {
            return Ok(self.finish(h, id, tier_bits));
        }
        let _asking = self.asking(&mut h);
        if !spared && !h.waiting.is_empty() {
            drop(h);
            let any = WaitingBlocks::of(ground).poll(req.heap);
            h = ground.lock(req.heap);
            if any {
                id = self.fit_merged(&mut h, self.merges_small_first(), false);
            }
            if id != 0 {
                return Ok(self.finish(h, id, tier_bits));
            }
        }
        drop(h);
        self.refill()
    }

    /// Whether small blocks are merged before a large one is scattered. In a lone heap that maps this comes last: they
    /// are rarely what a large one lacks, and would all have to be cut anew. Where heaps take granules from one
    /// another, an empty chunk that is kept too long takes granules from other heaps, so that each step remaps them.
    pub(super) fn merges_small_first(&self) -> bool {
        !self.ground.config.mapping || self.ground.heaps().count() > 1
    }

    /// A fit after everything of its tier that was freed so far is merged; with `all`, after everything is. `whole`:
    /// whole segments may be cut that should otherwise not be.
    pub(super) fn fit_merged(&mut self, h: &mut LockedHeap<'_>, all: bool, whole: bool) -> Id {
        let size = self.req.size;
        self.blocks().drain(h);
        if size.tier != Tier::Large {
            h.flush_fine(size.tier);
        }
        h.flush_large();
        let mut id = self.fit(h);
        if id == 0 && (all || size.tier != Tier::Large) {
            h.flush(); // small blocks may hold the last granule that is missing
            id = self.fit(h);
        }
        if id == 0 {
            id = match size.tier {
                Tier::Large => self.fit_any(h, whole),
                _ if whole => h.fit_fine(size, true),
                _ => 0,
            };
        }
        h.count_stuck();
        id
    }

    /// A fit among all free blocks; 0 as in [`fit`](Self::fit).
    fn fit_any(&mut self, h: &mut LockedHeap<'_>, whole: bool) -> Id {
        if self.tried.any.is_some() && self.tried.any == h.stamp() {
            return 0;
        }
        let id = h.fit_any(self.req.size.units, whole);
        if id == 0 {
            self.tried.any = h.stamp();
        }
        id
    }

    /// Makes a block that was just taken live, and counts it; returns its offset.
    pub(super) fn finish<G: DerefMut<Target = HeapState>>(
        &self,
        mut h: LockedHeap<'_, G>,
        id: Id,
        tier_bits: u32,
    ) -> u64 {
        let req = self.req;
        h.make_live(id, tier_bits, req.bytes);
        if req.tuned {
            self.blocks().flag_tuned(&h, id, req.charged);
        }
        let full = h.counters.count_in(Class::of(tier_bits), req.charged, req.bytes);
        let offset = self.ground.maps.offset(id);
        drop(h);
        if full {
            Accounts::of(self.ground).settle(req.heap);
        }
        offset
    }

    /// Takes a segment of its own for a request beyond the max chunk, for as long as the block lives.
    #[cold]
    pub(super) fn take_own_segment(self) -> Result<u64> {
        let ground = self.ground;
        ground.check_reentry()?;
        WaitingBlocks::of(ground).poll(self.req.heap); // blocks that were freed here go back first
        let mut round = 0;
        let mut trials = Trials::default();
        loop {
            let since = ground.transits_so_far();
            let take = |trials: &mut Trials| {
                let mut got = Err(NO_ROOM.error());
                trials.note(OomStep::Device, || {
                    got = self.try_own_segment();
                    got.is_ok()
                });
                got
            };
            let mut got = take(&mut trials);
            let short = |got: &Result<u64>| got.as_ref().is_err_and(|e| e.code() == Code::OutOfMemory);
            // A waiting block may be a segment that goes back.
            while short(&got) && trials.note(OomStep::Waiting, || WaitingBlocks::of(ground).wait_for_any()) {
                got = take(&mut trials);
            }
            if short(&got) && has_host_room(ground) && ground.order.sync_device().is_ok() {
                WaitingBlocks::of(ground).poll_all();
                for own in [true, false] {
                    if short(&got) && trials.note(OomStep::Trim, || self.give_for_own_segment(own)) {
                        got = take(&mut trials);
                    }
                }
            }
            match got {
                Err(e) if e.code() != Code::OutOfMemory => return Err(e),
                Err(e) if !ground.should_search_again(since, &mut round) => {
                    return self.out_of_memory(Code::OutOfMemory, Some(e), trials);
                }
                Err(_) => {}
                Ok(offset) => return Ok(offset),
            }
        }
    }

    /// Gives idle segments back to make room for a segment of its own, after the device is done; returns whether any went
    /// back. `own`: see [`take_idle`](Self::take_idle).
    fn give_for_own_segment(&self, own: bool) -> bool {
        let ground = self.ground;
        let Some((mut held, _)) = self.take_idle(self.req.charged, own) else { return false };
        let given = Trim::of(ground).give_segments_back(&mut held.taken, u64::MAX);
        held.end(&mut ground.growing());
        given.any
    }

    fn try_own_segment(&self) -> Result<u64> {
        let (ground, req) = (self.ground, self.req);
        let Some(id) = ground.look(req.heap).take_id() else {
            return Err(limits::error(TOO_MANY_BLOCKS));
        };
        let give = |part: Extent| {
            let mut h = ground.lock(req.heap);
            h.enter_direct(id, part);
            h.make_live(id, Tier::Large as u32, req.bytes);
            h.flag(id, USES | DIRECT);
            self.blocks().flag_oversize(&h, id, req.charged);
            h.counters.count_in(Class::Large, req.charged, req.bytes)
        };
        let taken = DeviceMemory::of(ground).take_segment(req.heap, req.charged, req.size.units, give);
        let full = taken.inspect_err(|_| ground.look(req.heap).put_id(id))?;
        if full {
            Accounts::of(ground).settle(req.heap);
        }
        Ok(ground.maps.offset(id))
    }

    /// The error of a request that found nothing, with the steps that were tried. The caller makes the report from it
    /// (`features/explain.rs`).
    #[cold]
    pub(super) fn out_of_memory(&self, code: Code, why: Option<Error>, mut trials: Trials) -> Result<u64> {
        if code == Code::OutOfMemory {
            trials.books = why.as_ref().is_some_and(is_table);
            why.as_ref().filter(|e| !is_limit(e)).inspect(|e| trials.device_said.set(e));
            trials.bytes = self.req.bytes;
            trials.leave();
            return Err(NO_ROOM.error());
        }
        let reserved = self.ground.growing().account.reserved();
        let why = why.map_or(String::new(), |e| format!("; {e}"));
        fail!(
            code,
            "no room for {} B ({} after rounding): {reserved} of {} B are reserved{why}",
            self.req.bytes,
            self.req.charged,
            self.ground.config.max_alloc
        )
    }
}

/// Whether the host has memory for the lists that a search makes. One that has none must not end the process: the
/// request fails, as it may do for want of the device's memory.
pub(super) fn has_host_room(ground: &Ground) -> bool {
    let blocks = 2 * Accounts::of(ground).live_blocks() as usize + 64;
    has_room(blocks * size_of::<[FreeBlock; 3]>())
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::super::super::ground::Config;
    use super::super::super::tests::{Bench, config};
    use super::super::super::types::PoolId;
    use super::*;

    #[test]
    fn a_fit_that_failed_for_lack_of_ids_is_tried_again() {
        let bench = Bench::new(Config { most_blocks: 100, ..config(false, 64 << 20) });
        let (ground, pool) = (bench.pond.ground(), PoolId::DEFAULT);
        bench.pond.alloc(pool, 1, 1 << 20).unwrap(); // from a segment that has more
        let heap = ground.pools().live(pool).unwrap().heap_of(1).unwrap();
        let request = ground.request(heap, pool, 1 << 20).unwrap();
        let mut serving = Serving::of(ground, &request);
        let mut h = ground.lock(heap);
        let ids: Vec<Id> = std::iter::from_fn(|| h.take_id()).collect();
        assert_eq!(serving.fit_merged(&mut h, true, true), 0);
        ids.into_iter().for_each(|id| h.put_id(id));
        assert_ne!(serving.fit_merged(&mut h, true, true), 0);
    }
}
