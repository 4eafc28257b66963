//! Blocks of scattered granules: showing them side by side, finding ranges that were shown before, and
//! forgetting ranges that nobody needs.

use super::super::aliases::Gone;
use super::super::desc::{GranuleUse, Id, use_of};
use super::super::heap::{Heap, Inner};
use super::super::shape::{GRANULE_SHIFT, LARGE_UNITS, LARGE_UNITS_SHIFT};
use super::*;

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
        let Growth { known, runs, pieces, .. } = g;
        aliases.idle_for(units, REVIVE_TRIES, known);
        if known.is_empty() {
            return None;
        }
        h.free_list(&self.maps, runs);
        for &index in known.iter() {
            if let Some(first) = h.take_pieces(&self.maps, runs, aliases.pieces(index), pieces) {
                let (entry, id, granule) = aliases.take_index(index)?;
                self.enter_alias(heap, id, granule, units, entry, first);
                return Some(id);
            }
        }
        None
    }

    /// Makes a range of addresses the block `id` of a heap.
    pub(in crate::core) fn enter_alias(
        &self,
        heap: &Heap,
        id: Id,
        granule: u32,
        units: u32,
        entry: u32,
        first: Id,
    ) {
        let d = self.maps.desc(id);
        d.set_off(granule);
        d.set_units(units);
        d.set_aux(entry);
        d.set_next(first);
        self.maps.set_alias(granule, heap.index, id);
    }

    /// Shows the pieces in the growth scratch as one block; its id. On failure they are still taken.
    pub(super) fn show(&self, g: &mut Growth, heap: &Heap, first: Id, units: u32) -> Result<Id> {
        let count = units.div_ceil(LARGE_UNITS);
        let known = self.aliases.lock().take(&g.pieces);
        let (entry, id, granule) = match known {
            Some(k) => k,
            None => {
                let new = self.map_pieces(g, heap, count)?;
                *g.mapped_anew.entry(units).or_default() += 1;
                new
            }
        };
        self.enter_alias(heap, id, granule, units, entry, first);
        Ok(id)
    }

    pub(super) fn map_pieces(&self, g: &Growth, heap: &Heap, count: u32) -> Result<(u32, Id, u32)> {
        let pieces = &g.pieces;
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
        for &(off, units) in pieces {
            let n = units.div_ceil(LARGE_UNITS);
            let offset = u64::from(granule + shown) << shift;
            if let Err(e) = self.backing.alias(offset, off >> LARGE_UNITS_SHIFT, n) {
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
        let entry = self.aliases.lock().enter(pieces, id, granule, count);
        Ok((entry, id, granule))
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
        let kept = |pieces: &[(u32, u32)]| {
            let mut granules =
                pieces.iter().flat_map(|p| p.0 >> LARGE_UNITS_SHIFT..(p.0 + p.1).div_ceil(LARGE_UNITS));
            granules.all(pinned)
        };
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
