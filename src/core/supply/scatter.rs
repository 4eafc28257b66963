//! Blocks of scattered granules: showing them side by side, finding ranges that were shown before, and
//! forgetting ranges that nobody needs.

use super::super::aliases::{Gone, Range, every_granule, granules_of};
use super::super::desc::{GranuleUse, Id, use_of};
use super::super::heap::{Heap, Inner};
use super::super::shape::{GRANULE_SHIFT, LARGE_SHIFT, LARGE_UNITS_SHIFT};
use super::*;

/// Memory is scarce when what may still be taken is less than this part of what is reserved.
const SCARCE_PART: u64 = 3;
/// A heap is ragged when more than this part of what is reserved is free in it but lies in granules that are partly
/// used. Twice as much costs some programs 1 % of the device; half as much gains as often as it loses, and maps more.
const RAGGED_PART: u64 = 100;

impl Pond {
    /// Whether `granules` more may be taken from the device only to spare the driver work.
    pub(super) fn has_slack(&self, g: &Growth, granules: u64) -> bool {
        let peak = lock(&self.ledger).device.peak[0] as u64;
        g.reserved.current + (granules << GRANULE_SHIFT) <= peak + peak / SLACK_PART
    }

    /// A block of scattered granules that were shown together before and are all free again: it costs no
    /// driver call.
    pub(super) fn revive(&self, g: &mut Growth, heap: &Heap, h: &mut Inner, units: u32) -> Option<Id> {
        let mut aliases = self.aliases.lock();
        let Growth { known, scratch, .. } = g;
        aliases.idle_for(units, REVIVE_TRIES, known);
        if known.is_empty() {
            return None;
        }
        h.free_list(&self.maps, &mut scratch.free);
        for &index in known.iter() {
            if let Some(first) =
                h.take_pieces(&self.maps, &scratch.free, aliases.pieces(index), &mut scratch.order)
            {
                let range = aliases.take_index(index)?;
                self.enter_alias(heap, range, units, first);
                return Some(range.id);
            }
        }
        None
    }

    /// Makes a range of addresses the block `id` of a heap.
    pub(in crate::core) fn enter_alias(&self, heap: &Heap, range: Range, units: u32, first: Id) {
        let Range { entry, id, granule, head } = range;
        let d = self.maps.desc(id);
        d.set_off((granule << LARGE_UNITS_SHIFT) + head);
        d.set_units(units);
        d.set_aux(entry);
        d.set_next(first);
        self.maps.set_alias(granule, head, heap.index, id);
    }

    /// Asks anew whether memory is scarce, and whether what the heap has free is ragged; whether both are so.
    pub(super) fn note_scarcity(&self, g: &Growth, heap: &Heap) -> bool {
        let room = self.allowed(g, heap.pool.load(Relaxed)).0;
        let scarce = self.config.mapping && room < g.reserved.current / SCARCE_PART;
        // Heaps take whole granules from one another: where there are several, parts are made more sparingly.
        let part = if self.heap_count.load(Relaxed) > 1 { RAGGED_PART / 2 } else { RAGGED_PART };
        let most = if scarce { (g.reserved.current >> LARGE_SHIFT) / part } else { u64::MAX };
        self.most_ragged.store(most, Relaxed);
        let mut h = heap.inner.lock();
        h.note_ragged(&self.maps, most);
        h.ragged
    }

    /// What scattering a block may cost at most to be better than the best fit. `None`: there is no fit, or it is
    /// as good.
    pub(super) fn sparing_limit(&self, heap: &Heap, h: &mut Inner, units: u32) -> Option<u32> {
        self.drain(heap, h);
        self.flush_large(heap, h);
        h.fit_cost(&self.maps, units)?.checked_sub(WORTH_MAPPING).filter(|&c| c > 0)
    }

    /// Shows the pieces in the growth scratch as one block; its id. On failure they are still taken. `worn`: it counts
    /// as one more new mapping of a block of this size.
    pub(super) fn show(&self, g: &mut Growth, heap: &Heap, first: Id, units: u32, worn: bool) -> Result<Id> {
        let known = self.aliases.lock().take(&g.scratch.pieces);
        let range = match known {
            Some(k) => k,
            None => {
                let new = self.map_pieces(&g.scratch.pieces, heap)?;
                if worn {
                    *g.mapped_anew.entry(units).or_default() += 1;
                }
                new
            }
        };
        self.enter_alias(heap, range, units, first);
        Ok(range.id)
    }

    fn map_pieces(&self, pieces: &[(u32, u32)], heap: &Heap) -> Result<Range> {
        let count = pieces.iter().map(|&p| granules_of(p).1).sum();
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
        let Some(id) = heap.inner.lock().take_id(&self.maps) else {
            self.aliases.lock().give_room(granule, count);
            fail!(Code::OutOfMemory, "more blocks than the library can keep track of");
        };
        let shift = GRANULE_SHIFT;
        let mut shown = 0u32;
        for &piece in pieces {
            let (at, n) = granules_of(piece);
            let offset = u64::from(granule + shown) << shift;
            if let Err(e) = self.backing.alias(offset, at, n) {
                if shown > 0 {
                    // Nobody has seen these addresses: nothing can be using them.
                    let _ = self.backing.unalias(u64::from(granule) << shift, u64::from(shown) << shift);
                }
                self.aliases.lock().give_room(granule, count);
                heap.inner.lock().give_id(&self.maps, id);
                return Err(e);
            }
            shown += n;
        }
        for i in 1..count {
            self.maps.set_granule(granule + i, GranuleUse::new(use_of::ALIAS_REST, 0, heap.index, id));
        }
        Ok(self.aliases.lock().enter(pieces, id, granule, count))
    }

    /// Unmaps all idle ranges, or the half that was not used for longest; whether there were any. Waits for the
    /// device, since work that is still queued may use those addresses.
    fn forget_idle(&self, all: bool) -> Result<bool> {
        let ranges = self.idle_ranges(all);
        if ranges.is_empty() {
            return Ok(false);
        }
        self.sync_device()?;
        self.unmap_ranges(&ranges)?;
        Ok(true)
    }

    /// Idle ranges: all of them, or the half that was not used for longest. They are taken under the growth lock
    /// only, which is held: these stay idle.
    pub(super) fn idle_ranges(&self, all: bool) -> Vec<Gone> {
        let pinned = |granule: u32| {
            let u = self.maps.granule(granule);
            (use_of::SMALL..=use_of::LARGE).contains(&u.use_())
                && self.heaps.get(u.heap() as usize).is_some_and(|x| self.pinned(x))
        };
        // A replay may need the range, if it still shows what is kept for it.
        let kept = |pieces: &[(u32, u32)]| every_granule(pieces).all(pinned);
        let aliases = self.aliases.lock();
        let keep = if all { 0 } else { aliases.idle_count() / 2 };
        aliases.oldest_idle(keep, kept)
    }

    /// Unmaps idle ranges. The device is waited for.
    pub(super) fn unmap_ranges(&self, ranges: &[Gone]) -> Result<()> {
        let shift = GRANULE_SHIFT;
        for &Gone { index, granule, count, id } in ranges {
            // On failure this one and the rest stay as they are, to be used or tried again.
            self.backing.unalias(u64::from(granule) << shift, u64::from(count) << shift)?;
            for i in 0..count {
                self.maps.set_granule(granule + i, GranuleUse::NONE);
            }
            if let Some(home) = self.heaps.get(0) {
                home.inner.lock().give_id(&self.maps, id);
            }
            self.aliases.lock().forget(index);
        }
        Ok(())
    }
}
