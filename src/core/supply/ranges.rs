//! The ranges of addresses at which scattered granules are mapped side by side: mapping them, finding ranges that were
//! mapped before, and forgetting ranges that no block needs. `aliases.rs` remembers them, under a lock of its own; the
//! device is called with no lock held.

use super::super::aliases::{Gone, Range};
use super::super::desc::{GranuleUse, Id, use_of};
use super::super::ground::Ground;
use super::super::heap::{Heap, LockedHeap, Refit, Scratch};
use super::super::units::{Extent, GranuleRun, LARGE_UNITS_SHIFT, every_granule, granule_bytes};
use super::limits::{self, TOO_MANY_BLOCKS};
use crate::base::error::{Code, Result};
use crate::base::room::{CALL_BYTES, check_room};
use crate::fail;

/// How many ranges of the right size are checked for one whose granules are all free.
const REVIVE_TRIES: usize = 32;

/// The ranges of addresses of a pond; see the head of this file.
#[derive(Clone, Copy)]
pub(crate) struct Ranges<'a> {
    ground: &'a Ground,
}

impl<'a> Ranges<'a> {
    pub(crate) fn of(ground: &'a Ground) -> Ranges<'a> {
        Ranges { ground }
    }

    /// Reuses a range of scattered granules that are still mapped together and are all free again: it costs no driver
    /// call. Returns the id of the block. `refits`: it may begin and end elsewhere in its granules than the block before it.
    pub(super) fn revive(
        self,
        h: &mut LockedHeap<'_>,
        units: u32,
        refits: bool,
        scratch: &mut Scratch,
    ) -> Option<Id> {
        let mut aliases = self.ground.aliases();
        let Scratch { idle, free, order, pieces, .. } = scratch;
        aliases.idle_for(units, REVIVE_TRIES, idle);
        if !idle.is_empty() {
            h.free_list(free);
        }
        for &index in idle.iter() {
            if let Some(first) = h.take_pieces(free, aliases.pieces(index), order) {
                let range = aliases.take_index(index, None)?;
                self.make_block(h.heap, range, units, first);
                return Some(range.id);
            }
        }
        if !refits {
            return None;
        }
        let listed = !idle.is_empty();
        aliases.idle_to_refit(units, REVIVE_TRIES, idle);
        if idle.is_empty() {
            return None;
        }
        if !listed {
            h.free_list(free);
        }
        let fits = idle.iter().filter_map(|&i| Some((i, Refit::of(free, aliases.pieces(i), units)?)));
        let (index, fit) = fits.min_by_key(|(_, fit)| fit.cost)?;
        pieces.clear();
        pieces.try_reserve(aliases.pieces(index).len()).ok()?;
        pieces.extend_from_slice(aliases.pieces(index));
        if let [first, .., last] = &mut pieces[..] {
            (*first, *last) = (fit.first, fit.last);
        }
        let first = h.take_pieces(free, pieces, order)?;
        let range = aliases.take_index(index, Some([fit.first, fit.last]))?;
        self.make_block(h.heap, range, units, first);
        Some(range.id)
    }

    /// Makes a range of addresses a block of a heap. `first` is the first of the linked pieces that are mapped there.
    pub(crate) fn make_block(self, heap: &Heap, range: Range, units: u32, first: Id) {
        let Range { entry, id, granule, head } = range;
        let maps = &self.ground.maps;
        let d = maps.desc(id);
        d.set_off((granule << LARGE_UNITS_SHIFT) + head);
        d.set_units(units);
        d.set_aux(entry);
        d.set_next(first);
        maps.set_alias(granule, head, heap.index, id);
    }

    /// Maps pieces that were taken out of a heap, at addresses of their own.
    pub(super) fn map(self, pieces: &[Extent], heap: &'static Heap) -> Result<Range> {
        let ground = self.ground;
        // What follows could not say so once the device has mapped the pieces.
        let host_bytes = ground.aliases().host_bytes(pieces.len());
        check_room(CALL_BYTES + host_bytes)?;
        let count = pieces.iter().map(|p| self.mapped_for(p).count).sum();
        let room = || ground.aliases().room(count, pieces.len());
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
        let Some(id) = ground.look(heap).take_id() else {
            ground.aliases().give_room(shown, pieces.len());
            return Err(limits::error(TOO_MANY_BLOCKS));
        };
        if let Err(e) = self.map_at(granule, pieces) {
            ground.aliases().give_room(shown, pieces.len());
            ground.look(heap).put_id(id);
            return Err(e);
        }
        for i in shown.granules().skip(1) {
            ground.maps.set_granule(i, GranuleUse::new(use_of::ALIAS_REST, 0, heap.index, id));
        }
        Ok(ground.aliases().enter(pieces, id, shown))
    }

    /// The granules that must be mapped for a piece: of a tie in which it ends, all.
    fn mapped_for(self, piece: &Extent) -> GranuleRun {
        self.ground.shared().tied.mapped_for(piece.touched())
    }

    /// Maps pieces side by side from a granule of addresses on, all or none.
    pub(crate) fn map_at(self, granule: u32, pieces: &[Extent]) -> Result<()> {
        let runs: Vec<GranuleRun> = pieces.iter().map(|piece| self.mapped_for(piece)).collect();
        self.ground.backing.alias_runs(granule_bytes(granule), &runs)
    }

    /// Unmaps all idle ranges, or the least recently used half; returns whether there were any. Waits for the device,
    /// since work that is still queued may use those addresses.
    fn forget_idle(self, all: bool) -> Result<bool> {
        let ranges = self.take_idle(all);
        if ranges.is_empty() {
            return Ok(false);
        }
        self.wait_and_unmap(ranges)?;
        Ok(true)
    }

    /// Waits for the device, then unmaps leaving ranges. After a failure those that are still mapped are idle again.
    pub(super) fn wait_and_unmap(self, ranges: Vec<Gone>) -> Result<()> {
        if let Err(e) = self.ground.order.sync_device() {
            self.keep(&ranges);
            return Err(e);
        }
        self.unmap(ranges)
    }

    /// Takes all idle ranges, or the least recently used half. They are leaving from then on.
    pub(super) fn take_idle(self, all: bool) -> Vec<Gone> {
        let ground = self.ground;
        let owner = |granule: u32| {
            let u = ground.maps.granule(granule);
            if !(use_of::SMALL..=use_of::LARGE).contains(&u.use_()) {
                return None;
            }
            ground.heaps().get(u.heap()).filter(|x| ground.pools().is_pinned(x)).map(Heap::pool)
        };
        // A replay may need the range if everything mapped there still belongs to one pinned pool.
        let kept = |pieces: &[Extent]| {
            let mut pools = every_granule(pieces).map(owner);
            let first = pools.next().flatten();
            first.is_some() && pools.all(|p| p == first)
        };
        // A restore holds this lock from the check of its ranges until it has taken them.
        let _g = ground.growing();
        let mut aliases = ground.aliases();
        let keep = if all { 0 } else { aliases.idle_count() / 2 };
        aliases.take_idle(keep, kept)
    }

    /// Makes leaving ranges idle again.
    fn keep(self, ranges: &[Gone]) {
        let mut aliases = self.ground.aliases();
        ranges.iter().for_each(|r| aliases.stay(r.index));
    }

    /// Unmaps leaving ranges. The device was waited for. After a failure those that are still mapped are idle again.
    pub(crate) fn unmap(self, ranges: Vec<Gone>) -> Result<()> {
        for (n, r) in ranges.iter().enumerate() {
            if let Err(e) = self.ground.backing.unalias(r.shown.offset(), r.shown.bytes()) {
                self.keep(&ranges[n..]);
                return Err(e);
            }
            self.forget(&ranges[n..=n]);
        }
        Ok(())
    }

    /// Forgets leaving ranges that have been unmapped.
    pub(crate) fn forget(self, ranges: &[Gone]) {
        let maps = &self.ground.maps;
        for r in ranges {
            r.shown.granules().for_each(|i| maps.set_granule(i, GranuleUse::NONE));
            maps.desc(r.id).set_next(0);
            maps.give_ids(r.id);
            self.ground.aliases().forget(r.index);
        }
    }
}
