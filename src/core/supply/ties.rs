//! Ties: granules in one physical allocation of the device. They cannot be shown elsewhere one by one, and go back to the
//! device together. A contiguous pool has nothing else. Each of its ties has a number without memory behind it, so that
//! no block lies across two of them.
//!
//! Where memory is scarce, ties that are wholly free are turned into granules; and where that cannot be, they go to others,
//! and are shown elsewhere, as wholes.

use super::super::ground::{Ground, Growing};
use super::super::heap::Heap;
use super::super::state::growth::Parts;
use super::super::types::UNORDERED;
use super::super::units::{GRANULE, GRANULE_SHIFT, granule_bytes};
use super::device::Numbers;
use super::trim::Taken;
use super::{Search, ours};
use crate::base::error::{Code, Error, Result};
use crate::base::sync::Ordering::Relaxed;
use std::collections::HashMap;

/// [B] of a tie of a contiguous pool, if no request needs more: blocks share it as they share a segment.
const SHARED_TIE: u64 = 64 << 20;
/// The same on a small device, as a part of it.
const SHARED_PART: u64 = 32;
/// A growth of less than 1 / this of what may be had is not in ties once half of it is reserved.
const LARGE_GROWTH_PART: u64 = 8;
/// Ties are made again when no more than 1 / this is reserved of what was when they ended.
const PLENTIFUL_AGAIN: u64 = 4;
/// [granules] of a tie that is made to spare calls.
const LEAST_TIE: u32 = 2;

impl Ground {
    /// [granules] The smallest growth that is in ties, where there is `room` for so many `of` all. What is cut later
    /// serves in place only, and costs memory when it becomes scarce; a large block is seldom cut. Measured on recorded
    /// programs (docs/decisions/large-handles.md): a quarter of it costs one of them 2.5 % of the device.
    fn least_for_ties(&self, room: u64, of: u64) -> u64 {
        let least = u64::from(self.config.tie_growth);
        match () {
            () if 4 * room >= 3 * of => least,
            () if 2 * room >= of => 2 * least,
            () => (2 * least).max(of / LARGE_GROWTH_PART),
        }
    }
}

impl Search<'_> {
    /// Takes a tie for a request of a contiguous pool that needs so many granules: a usual one, or one of just that size.
    pub(super) fn grow_tie(&mut self, least: u64) -> Result<()> {
        let (ground, heap) = (self.ground, self.req.heap);
        let tuned = ground.tuned.get().segment.div_ceil(GRANULE);
        let usual = match tuned {
            0 => SHARED_TIE.min(ground.config.max_alloc / SHARED_PART) / GRANULE,
            tuned => tuned,
        };
        let mut refused = Error::new(Code::OutOfMemory, ours::NO_MORE);
        let sizes = [usual.max(least), least];
        for &wanted in &sizes[..if usual > least { 2 } else { 1 }] {
            let taken = ground.bring(heap, |g| {
                let (allowed, why) = ground.allowed(g, heap.pool());
                // One number more, which stays empty.
                let room = u64::from(g.longest_room()).saturating_sub(1);
                let count = wanted.min(allowed >> GRANULE_SHIFT).min(room) as u32;
                match count {
                    n if granule_bytes(n) < least << GRANULE_SHIFT => {
                        Err(if room < least { ours::NO_MORE } else { why })
                    }
                    n => {
                        let all = g.take_room(n + 1, None).ok_or(ours::NO_MORE)?;
                        Ok((Numbers { all, apart: true }, n))
                    }
                }
            });
            match taken {
                Ok(_) => return Ok(()),
                Err(e) => refused = e,
            }
        }
        Err(refused)
    }

    /// Takes granules in ties for a request that lacks so many, as far as memory is plentiful; returns how many. No more
    /// are reserved than by granules of their own.
    pub(super) fn take_ties(&self, missing: u32) -> u32 {
        let (ground, req) = (self.ground, self.req);
        let most = u64::from(ground.config.tie);
        let all = |g: &Growing<'_>| {
            let (allowed, why) = ground.allowed(g, req.heap.pool());
            let room = allowed >> GRANULE_SHIFT;
            (room, room + (g.device.reserved.current >> GRANULE_SHIFT), why)
        };
        if most < u64::from(LEAST_TIE) || !req.is_large() || ground.is_pinned(req.heap) {
            return 0;
        }
        let (room, of, _) = all(&ground.growing());
        // Limits tell little of what the device has, so what counts is how much has gone back since.
        let ended_at = ground.no_ties.load(Relaxed);
        if ended_at > 0 {
            if PLENTIFUL_AGAIN * (of - room) > ended_at {
                return 0;
            }
            ground.no_ties.store(0, Relaxed);
        }
        if u64::from(missing) < ground.least_for_ties(room, of) {
            return 0;
        }
        let mut taken = 0;
        while taken < missing {
            let after = ground.end_of(req.heap);
            let got = ground.bring(req.heap, |g| {
                let (room, of, why) = all(g);
                // The less there is, the smaller they are.
                let each = (2 * most * room / of.max(1)).min(most) as u32;
                let part = (room / 2).max(u64::from(each)).min(room);
                let count = u64::from(missing - taken).min(part).min(g.longest_room().into()) as u32;
                if count.min(each) < LEAST_TIE {
                    return Err(why);
                }
                let all = g.take_room(count, after).ok_or(ours::NO_MORE)?;
                Ok((Numbers { all, apart: false }, each))
            });
            match got {
                Ok(n) => taken += n,
                Err(_) => break, // granules of their own may do
            }
        }
        taken
    }

    /// From now on ties serve as wholes, too, in any pool and as pieces of a scattered block: what is free in the last one
    /// then serves in place only, so this comes after whatever may turn them into granules.
    pub(super) fn use_whole_ties(&mut self) -> bool {
        if self.contiguous || self.ties || !self.ground.growing().has_ties() {
            return false;
        }
        self.ties = true;
        true
    }

    /// A request was served that needed ties to serve as wholes: memory is scarce, and more of them would be in the way.
    pub(super) fn note_whole_ties(&self) {
        if self.ties {
            self.ground.end_ties();
        }
    }

    /// Gives ties that are wholly free back to the device, so that it can give granules that can be shown anywhere: as few
    /// as the request needs, and none if the limits would refuse it all the same. Waits for the streams that have used
    /// them.
    pub(super) fn untie(&mut self, missing: u64) -> bool {
        // A contiguous pool would get a tie again: the last step does that, and what a block in one piece needs. And once
        // ties serve as wholes, the request would lose what it counts on.
        let elsewhere = self.contiguous || self.req.in_one_piece(self.ground) || self.ties;
        if elsewhere || !self.ground.growing().has_ties() || self.ground.order.check_wait().is_err() {
            return false;
        }
        // If the device refuses what the limits would then allow, others may have some of it: once more.
        self.untie_once(missing) || self.refused_by_device() && self.untie_once(missing)
    }

    fn untie_once(&mut self, missing: u64) -> bool {
        let ground = self.ground;
        ground.poll_all();
        let (taken, transit) = {
            let mut g = ground.growing();
            let Some(taken) = self.take_for_growth(&mut g, missing, true) else { return false };
            (taken, g.begin_transit(Parts::Any))
        };
        let mut any = false;
        let _ = ground.give_ties_back(taken, &mut any);
        transit.end(&mut ground.growing());
        if any {
            ground.end_ties();
        }
        any && self.note_refusal(|s| s.grow(missing))
    }
}

impl Ground {
    /// Memory is scarce: no more ties are made.
    fn end_ties(&self) {
        let reserved = self.growing().device.reserved.current >> GRANULE_SHIFT;
        self.no_ties.fetch_max(reserved.max(1), Relaxed);
    }

    /// Gives ties that were taken back to the device, once their streams have done what they had to do. Those of which
    /// that cannot be told, and what the device refuses, go back to the heaps. `any` is set if something went back.
    fn give_ties_back(&self, taken: Vec<Taken>, any: &mut bool) -> Result<()> {
        let mut idle: HashMap<u32, bool> = HashMap::new();
        for t in &taken {
            idle.entry(t.heap.index).or_insert_with(|| self.wait_for_heap(t.heap));
        }
        let (mut ready, mut rest) = (Vec::new(), Vec::new());
        for lot in self.lots_of(taken) {
            let over = lot.1.iter().all(|t| idle.get(&t.heap.index) == Some(&true));
            if over { ready.push(lot) } else { rest.extend(lot.1) }
        }
        if !rest.is_empty() {
            self.return_all(&self.growing(), rest);
        }
        let parts = || ready.iter().flat_map(|lot| &lot.1);
        let shown = |granule| parts().any(|t| t.block.part.touched().granules().contains(&granule));
        let shown = self.aliases.lock().shows_unused(shown);
        let done = if shown { self.unmap_what_shows(&parts().copied().collect::<Vec<_>>()) } else { Ok(()) };
        self.release_lots(ready, done, any)
    }

    /// Waits on the host for what a heap's stream has queued by now; whether that was possible.
    fn wait_for_heap(&self, heap: &'static Heap) -> bool {
        if heap.stream() == UNORDERED {
            return true; // free memory there has waited for everyone already
        }
        let Some(stream) = self.look(heap).stream.clone() else { return false };
        match self.order.fence(&stream) {
            Ok(None) => true,
            Ok(Some(fence)) => self.order.sync(&fence).is_ok(),
            Err(_) => self.order.sync_device().is_ok(),
        }
    }
}
