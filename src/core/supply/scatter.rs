//! Blocks of scattered granules: mapping them side by side, finding ranges that were mapped before, and forgetting
//! ranges that nobody needs.

use super::super::aliases::{Gone, Range};
use super::super::desc::{ALIAS, GranuleUse, Id, use_of};
use super::super::ground::Ground;
use super::super::heap::{Heap, LockedHeap, Scratch};
use super::super::state::growth::Parts;
use super::super::units::{Extent, GRANULE_SHIFT, GranuleRun, LARGE_UNITS_SHIFT, every_granule};
use super::{REVIVE_TRIES, Search};
use crate::base::error::{Code, Result};
use crate::base::sync::lock;
use crate::fail;

impl Ground {
    /// Whether `granules` more may be taken from the device just to spare driver calls.
    pub(super) fn has_slack(&self, granules: u64) -> bool {
        let peak = lock(&self.ledger).device.peaks.allocated();
        let reserved = self.growing().device.reserved.current;
        reserved + (granules << GRANULE_SHIFT) <= peak + peak / super::SLACK_PART
    }

    /// Reuses a range of scattered granules that are still mapped together and are all free again: it costs no driver
    /// call.
    pub(super) fn revive_range(
        &self,
        h: &mut LockedHeap<'_>,
        units: u32,
        scratch: &mut Scratch,
    ) -> Option<Id> {
        let mut aliases = self.aliases.lock();
        let Scratch { idle, free, order, .. } = scratch;
        aliases.idle_for(units, REVIVE_TRIES, idle);
        if idle.is_empty() {
            return None;
        }
        h.free_list(free);
        for &index in idle.iter() {
            if let Some(first) = h.take_pieces(free, aliases.pieces(index), order) {
                let range = aliases.take_index(index)?;
                self.enter_alias(h.heap, range, units, first);
                return Some(range.id);
            }
        }
        None
    }

    /// Makes a range of addresses a block of a heap.
    pub(in crate::core) fn enter_alias(&self, heap: &Heap, range: Range, units: u32, first: Id) {
        let Range { entry, id, granule, head } = range;
        let d = self.maps.desc(id);
        d.set_off((granule << LARGE_UNITS_SHIFT) + head);
        d.set_units(units);
        d.set_aux(entry);
        d.set_next(first);
        self.maps.set_alias(granule, head, heap.index, id);
    }

    /// Maps pieces that were taken out of a heap, at addresses of their own.
    fn map_pieces(&self, pieces: &[Extent], heap: &'static Heap) -> Result<Range> {
        let count = pieces.iter().map(|p| self.tied.mapped_for(p.touched()).count).sum();
        let room = || self.aliases.lock().room(count, pieces.len());
        let mut at = room();
        for all in [false, true] {
            if at.is_none() && self.forget_idle(all)? {
                at = room();
            }
        }
        let Some(granule) = at else {
            fail!(Code::OutOfMemory, "no addresses left to show scattered granules at");
        };
        let shown = GranuleRun::new(granule, count);
        let Some(id) = self.look(heap).take_id() else {
            self.aliases.lock().give_room(shown, pieces.len());
            fail!(Code::OutOfMemory, "more blocks than the library can keep track of");
        };
        if let Err(e) = self.show_pieces(granule, pieces) {
            self.aliases.lock().give_room(shown, pieces.len());
            self.look(heap).put_id(id);
            return Err(e);
        }
        for i in shown.granules().skip(1) {
            self.maps.set_granule(i, GranuleUse::new(use_of::ALIAS_REST, 0, heap.index, id));
        }
        Ok(self.aliases.lock().enter(pieces, id, shown))
    }

    /// Unmaps all idle ranges, or the least recently used half; returns whether there were any. Waits for the device,
    /// since work that is still queued may use those addresses.
    fn forget_idle(&self, all: bool) -> Result<bool> {
        let ranges = self.take_idle_ranges(all);
        if ranges.is_empty() {
            return Ok(false);
        }
        if let Err(e) = self.order.sync_device() {
            self.keep_ranges(&ranges);
            return Err(e);
        }
        self.unmap_ranges(ranges)?;
        Ok(true)
    }

    /// Takes all idle ranges, or the least recently used half. They are leaving from then on.
    pub(super) fn take_idle_ranges(&self, all: bool) -> Vec<Gone> {
        let owner = |granule: u32| {
            let u = self.maps.granule(granule);
            if !(use_of::SMALL..=use_of::LARGE).contains(&u.use_()) {
                return None;
            }
            self.heap(u.heap()).filter(|x| self.is_pinned(x)).map(Heap::pool)
        };
        // A replay may need the range if everything mapped there still belongs to one pinned pool.
        let kept = |pieces: &[Extent]| {
            let mut pools = every_granule(pieces).map(owner);
            let first = pools.next().flatten();
            first.is_some() && pools.all(|p| p == first)
        };
        let mut aliases = self.aliases.lock();
        let keep = if all { 0 } else { aliases.idle_count() / 2 };
        aliases.take_idle(keep, kept)
    }

    /// Makes leaving ranges idle again.
    pub(super) fn keep_ranges(&self, ranges: &[Gone]) {
        let mut aliases = self.aliases.lock();
        ranges.iter().for_each(|r| aliases.stay(r.index));
    }

    /// Unmaps leaving ranges. The device was waited for. After a failure the remaining ones are idle again.
    pub(in crate::core) fn unmap_ranges(&self, ranges: Vec<Gone>) -> Result<()> {
        for (n, r) in ranges.iter().enumerate() {
            if let Err(e) = self.backing.unalias(r.shown.offset(), r.shown.bytes()) {
                self.keep_ranges(&ranges[n..]);
                return Err(e);
            }
            self.forget_ranges(&ranges[n..=n]);
        }
        Ok(())
    }

    /// Forgets leaving ranges that have been unmapped.
    pub(in crate::core) fn forget_ranges(&self, ranges: &[Gone]) {
        for r in ranges {
            r.shown.granules().for_each(|i| self.maps.set_granule(i, GranuleUse::NONE));
            self.maps.desc(r.id).set_next(0);
            self.maps.give_ids(r.id);
            self.aliases.lock().forget(r.index);
        }
    }
}

impl Search<'_> {
    /// Maps the pieces in the scratch space, which were just taken out of the locked heap, as the requested block;
    /// returns its offset. On failure the heap has them again. `worn`: counts this as one more new mapping for a block
    /// of this size.
    pub(super) fn show(&mut self, h: LockedHeap<'_>, first: Id, worn: bool) -> Result<u64> {
        let (ground, req) = (self.ground, self.req);
        drop(h);
        let known = ground.aliases.lock().take(&self.scratch.pieces);
        let range = match known {
            Some(range) => Ok(range),
            None => {
                // In transit until they are mapped.
                let transit = ground.growing().begin_transit(Parts::Of(req.heap.pool(), req.heap.pool()));
                let new = ground.map_pieces(&self.scratch.pieces, req.heap);
                let mut g = ground.growing();
                match &new {
                    Ok(_) if worn => *g.mapped_anew.entry(req.size.units).or_default() += 1,
                    Ok(_) => {}
                    Err(_) => ground.lock(req.heap).unscatter(first),
                }
                transit.end(&mut g);
                new
            }
        }?;
        ground.enter_alias(req.heap, range, req.size.units, first);
        let h = ground.lock(req.heap);
        Ok(ground.finish(h, range.id, ALIAS, req))
    }
}
