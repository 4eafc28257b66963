//! The large tier of a heap: blocks of 16 KiB units, side by side in the granules that the heap owns. A free
//! block merges with its neighbours at once; tags at both ends of each block lead to them.

use super::super::desc::{Id, Maps, kind, use_of};
use super::super::shape::{LARGE_UNITS, LARGE_UNITS_SHIFT, Tier};
use super::Inner;

impl Inner {
    pub(super) fn tag_large(maps: &Maps, off: u32, units: u32, id: Id) {
        maps.large_tags().enter(off, units, id);
    }

    /// Puts a free large block into the bins, as it is.
    pub(super) fn shelve_large(&mut self, maps: &Maps, id: Id) {
        let d = maps.desc(id);
        d.become_(kind::FREE, Tier::Large as u32);
        Self::tag_large(maps, d.off(), d.units(), id);
        self.large.insert(maps, id);
    }

    /// Cuts `units` at `at` out of a free large block. What is left on either side stays free; the
    /// left rest keeps the block's id. `None`: out of ids, nothing changed.
    pub(super) fn carve(&mut self, maps: &Maps, id: Id, at: u32, units: u32) -> Option<Id> {
        if !self.stock_ids(maps) {
            return None;
        }
        let d = maps.desc(id);
        let (off, end) = (d.off(), d.off() + d.units());
        self.large.remove(maps, id);
        let piece = if at > off { self.pop_id(maps) } else { id };
        if at > off {
            d.set_units(at - off);
            self.shelve_large(maps, id);
        }
        if at + units < end {
            let rest = self.pop_id(maps);
            let r = maps.desc(rest);
            r.set_off(at + units);
            r.set_units(end - at - units);
            self.shelve_large(maps, rest);
        }
        let p = maps.desc(piece);
        p.set_off(at);
        p.set_units(units);
        Self::tag_large(maps, at, units, piece);
        Some(piece)
    }

    /// Whether the unit lies in a granule of large blocks that this heap owns.
    #[inline]
    pub(super) fn mine(&self, maps: &Maps, me: u32, unit: u32) -> bool {
        let g = maps.granule(unit >> LARGE_UNITS_SHIFT);
        g.use_() == use_of::LARGE && g.heap() == me
    }

    /// A best fit in the large tier, not yet live; 0 when nothing that is merged already fits (or ids ran out).
    pub(crate) fn fit_large(&mut self, maps: &Maps, units: u32) -> Id {
        if self.ids == 0 && !self.stock_ids(maps) {
            return 0;
        }
        let id = self.large.take(maps, units);
        if id == 0 { 0 } else { self.cut(maps, id, units) }
    }

    /// Takes `units` from the start of a free large block that is not in the bins any more; the rest goes back
    /// there, and keeps the id. An id is at hand.
    #[inline]
    pub(super) fn cut(&mut self, maps: &Maps, id: Id, units: u32) -> Id {
        let descs = maps.descs();
        let d = descs.of(id);
        let (off, all) = (d.off(), d.units());
        if all == units {
            return id;
        }
        let piece = self.pop_id(maps);
        let p = descs.of(piece);
        p.set_off(off);
        p.set_units(units);
        d.set_off(off + units);
        d.set_units(all - units);
        let tags = maps.large_tags();
        tags.enter(off, units, piece);
        tags.set(off + units, id);
        self.large.insert(maps, id);
        piece
    }

    /// Merges a block, whose tags are in place, with its free neighbours, and puts it into the bins.
    pub(crate) fn free_large(&mut self, maps: &Maps, me: u32, id: Id) {
        let free = kind::FREE | (Tier::Large as u32) << 4;
        let (descs, tags) = (maps.descs(), maps.large_tags());
        let d = descs.of(id);
        let (mut off, mut end) = (d.off(), d.off() + d.units());
        // What lies in a granule of this block is this heap's.
        let inside = |unit: u32| unit & (LARGE_UNITS - 1) != 0;
        let mut keep = id;
        if inside(off) || off > 0 && self.mine(maps, me, off - 1) {
            let left = tags.at(off - 1);
            let l = descs.of(left); // 0 is never free
            if l.state() == free && l.off() + l.units() == off {
                self.large.remove(maps, left);
                off = l.off();
                self.put_id(maps, id);
                keep = left;
            }
        }
        if inside(end) || self.mine(maps, me, end) {
            let right = tags.at(end);
            let r = descs.of(right);
            if r.state() == free && r.off() == end {
                self.large.remove(maps, right);
                end += r.units();
                self.put_id(maps, right);
            }
        }
        tags.set(end - 1, keep);
        let d = descs.of(keep);
        d.set_off(off);
        d.set_units(end - off);
        d.become_(kind::FREE, Tier::Large as u32);
        self.large.insert(maps, keep);
    }
}
