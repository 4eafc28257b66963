//! The large tier of a heap: blocks of 16 KiB units, side by side in the granules that the heap owns. A free block
//! merges with its neighbours at once; the boundary tags of each block lead to them. All methods work on a locked heap.

use super::super::desc::{Id, free_state, kind, use_of};
use super::super::shape::Tier;
use super::super::units::{Extent, LARGE_UNITS, LARGE_UNITS_SHIFT};
use super::{HeapState, LockedHeap};
use std::ops::DerefMut;

/// Whether a unit lies inside a granule, and not at its start.
fn is_inside(unit: u32) -> bool {
    unit & (LARGE_UNITS - 1) != 0
}

impl<G: DerefMut<Target = HeapState>> LockedHeap<'_, G> {
    /// Puts a free large block into the bins unmerged.
    pub(super) fn shelve_large(&mut self, id: Id) {
        let maps = self.maps();
        let d = maps.desc(id);
        d.become_(kind::FREE, Tier::Large as u32);
        maps.large_tags().enter(d.off(), d.units(), id);
        self.bin(id);
    }

    /// Cuts a part out of a free large block. The remainders on both sides stay free; the left one keeps the block's
    /// id. `None`: out of ids for the remainders, nothing changed. All of a block needs none, so that it can be taken and
    /// given back when there are none left.
    pub(crate) fn carve(&mut self, id: Id, part: Extent) -> Option<Id> {
        let maps = self.maps();
        let Extent { off: at, units } = part;
        let d = maps.desc(id);
        let (off, end) = (d.off(), d.off() + d.units());
        if !self.stock(u32::from(at > off) + u32::from(at + units < end)) {
            return None;
        }
        self.unbin(id);
        let piece = if at > off { self.pop_id() } else { id };
        if at > off {
            d.set_units(at - off);
            self.shelve_large(id);
        }
        if at + units < end {
            let rest = self.pop_id();
            let r = maps.desc(rest);
            r.set_off(at + units);
            r.set_units(end - at - units);
            self.shelve_large(rest);
        }
        let p = maps.desc(piece);
        p.set_off(at);
        p.set_units(units);
        maps.large_tags().enter(at, units, piece);
        Some(piece)
    }

    /// Whether the unit lies in a granule of large blocks that this heap owns.
    #[inline]
    pub(super) fn owns(&self, unit: u32) -> bool {
        let g = self.maps().granule(unit >> LARGE_UNITS_SHIFT);
        g.use_() == use_of::LARGE && g.heap() == self.me()
    }

    /// A best fit in the large tier, not yet live; 0 if nothing that is already merged fits (or ids ran out).
    pub(crate) fn fit_large(&mut self, units: u32) -> Id {
        if !self.has_id() {
            return 0;
        }
        if self.state.keeps_whole {
            return self.fit_sparing(units);
        }
        let id = self.large_mut().take(units);
        if id == 0 { 0 } else { self.cut(id, units) }
    }

    /// The same on a device whose segments are as large as requests need: whole segments are spared.
    fn fit_sparing(&mut self, units: u32) -> Id {
        let id = self.cut_from_bins(self.find_sparing(units), units);
        self.count_stuck();
        id
    }

    /// Cuts `units` from a free block in the bins, if it is one. An id is in stock.
    fn cut_from_bins(&mut self, id: Id, units: u32) -> Id {
        if id == 0 {
            return 0;
        }
        self.unbin(id);
        self.cut(id, units)
    }

    /// Cuts `units` from a free block in the bins that has as many. 0 if ids ran out.
    pub(super) fn cut_found(&mut self, id: Id, units: u32) -> Id {
        if !self.has_id() {
            return 0;
        }
        self.unbin(id);
        self.cut(id, units)
    }

    /// Takes `units` from the start of a free large block that has been removed from the bins; the remainder goes back
    /// there and keeps the id. An id is in stock.
    #[inline]
    pub(super) fn cut(&mut self, id: Id, units: u32) -> Id {
        let maps = self.maps();
        let descs = maps.descs();
        let d = descs.of(id);
        let (off, all) = (d.off(), d.units());
        if all == units {
            return id;
        }
        let piece = self.pop_id();
        let p = descs.of(piece);
        p.set_off(off);
        p.set_units(units);
        d.set_off(off + units);
        d.set_units(all - units);
        let tags = maps.large_tags();
        tags.enter(off, units, piece);
        tags.set(off + units, id);
        self.bin(id);
        piece
    }

    /// Merges a block, whose tags are in place, with its free neighbours, and puts it into the bins.
    pub(crate) fn free_large(&mut self, id: Id) {
        let maps = self.maps();
        let free = free_state(Tier::Large);
        let (descs, tags) = (maps.descs(), maps.large_tags());
        let d = descs.of(id);
        let (mut off, mut end) = (d.off(), d.off() + d.units());
        // Whatever else lies in a granule of this block belongs to this heap.
        let mut keep = id;
        if is_inside(off) || off > 0 && self.owns(off - 1) {
            let left = tags.at(off - 1);
            let l = descs.of(left); // 0 is never free
            if l.state() == free && l.off() + l.units() == off {
                self.unbin(left);
                off = l.off();
                self.put_id(id);
                keep = left;
            }
        }
        if is_inside(end) || self.owns(end) {
            let right = tags.at(end);
            let r = descs.of(right);
            if r.state() == free && r.off() == end {
                self.unbin(right);
                end += r.units();
                self.put_id(right);
            }
        }
        tags.set(end - 1, keep);
        let d = descs.of(keep);
        d.set_off(off);
        d.set_units(end - off);
        d.become_(kind::FREE, Tier::Large as u32);
        self.bin(keep);
    }

    /// Gives the end of a live block's memory, all but `units`, to the free memory. `false`: out of ids, nothing changed.
    pub(crate) fn shorten(&mut self, id: Id, units: u32) -> bool {
        let Some(rest) = self.take_id() else { return false };
        let maps = self.maps();
        let d = maps.desc(id);
        let (off, all) = (d.off(), d.units());
        let r = maps.desc(rest);
        r.set_off(off + units);
        r.set_units(all - units);
        d.set_units(units);
        let tags = maps.large_tags();
        tags.enter(off, units, id);
        tags.enter(off + units, all - units, rest);
        self.free_large(rest);
        true
    }

    /// Makes a live block longer by the start of the free block behind it. `false`: none that is merged is there, or it
    /// is too short, and nothing changed.
    pub(crate) fn lengthen(&mut self, id: Id, more: u32) -> bool {
        let maps = self.maps();
        let (descs, tags) = (maps.descs(), maps.large_tags());
        let d = descs.of(id);
        let (off, units) = (d.off(), d.units());
        let end = off + units;
        if !(is_inside(end) || self.owns(end)) {
            return false;
        }
        let right = tags.at(end);
        let r = descs.of(right); // 0 is never free
        let free = free_state(Tier::Large);
        let there = r.units();
        if r.state() != free || r.off() != end || there < more {
            return false;
        }
        self.unbin(right);
        if there == more {
            self.put_id(right);
        } else {
            r.set_off(end + more);
            r.set_units(there - more);
            tags.set(end + more, right);
            self.bin(right);
        }
        d.set_units(units + more);
        tags.enter(off, units + more, id);
        true
    }

    /// Calls `each` with every free block of at least `units` that is merged.
    pub(crate) fn each_free(&self, units: u32, mut each: impl FnMut(Id, Extent)) {
        let maps = self.maps();
        self.large().walk(units, |id| {
            let d = maps.desc(id);
            each(id, Extent::new(d.off(), d.units()));
            true
        });
    }

    /// Like `fit_large`, but checks every free block. It spares whole segments as `fit_large` does, unless `whole`.
    pub(crate) fn fit_any(&mut self, units: u32, whole: bool) -> Id {
        if self.state.keeps_whole && !whole {
            return 0;
        }
        let maps = self.maps();
        let mut best = (0, u32::MAX);
        self.large().walk(units, |id| {
            let u = maps.desc(id).units();
            if u < best.1 {
                best = (id, u);
            }
            true
        });
        if best.0 == 0 || !self.stock_ids() {
            return 0;
        }
        self.cut_from_bins(best.0, units)
    }
}

impl<G: DerefMut<Target = HeapState>> LockedHeap<'_, G> {
    /// A freed large block of exactly this size.
    #[inline]
    pub(crate) fn pop_large(&mut self, units: u32) -> Option<Id> {
        let maps = self.maps();
        self.state.quick.pop(maps, units)
    }

    /// Merges the large blocks that were freed so far.
    pub(crate) fn flush_large(&mut self) {
        loop {
            let mut id = self.state.quick.take_list();
            if id == 0 {
                return;
            }
            while id != 0 {
                let next = self.maps().desc(id).prev();
                self.merge(id);
                id = next;
            }
        }
    }
}
