//! The large tier of a heap: blocks of 16 KiB units, side by side in the granules that the heap owns. A free
//! block merges with its neighbours at once; tags at both ends of each block lead to them.

use super::super::desc::{Id, Maps, kind, use_of};
use super::super::shape::{LARGE_UNITS_SHIFT, Tier};
use super::Inner;

impl Inner {
    pub(super) fn tag_large(maps: &Maps, off: u32, units: u32, id: Id) {
        maps.set_large_at(off, id);
        maps.set_large_at(off + units - 1, id);
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

    /// Merges a block with its free neighbours and puts it into the bins.
    pub(crate) fn free_large(&mut self, maps: &Maps, me: u32, id: Id) {
        let d = maps.desc(id);
        let (mut off, mut units) = (d.off(), d.units());
        let mut keep = id;
        if off > 0 && self.mine(maps, me, off - 1) {
            let left = maps.large_at(off - 1);
            let l = maps.desc(left);
            if left != 0 && l.state() == kind::FREE | (Tier::Large as u32) << 4 && l.off() + l.units() == off
            {
                self.large.remove(maps, left);
                off = l.off();
                units += l.units();
                self.put_id(maps, keep);
                keep = left;
            }
        }
        let end = off + units;
        if self.mine(maps, me, end) {
            let right = maps.large_at(end);
            let r = maps.desc(right);
            if right != 0 && r.state() == kind::FREE | (Tier::Large as u32) << 4 && r.off() == end {
                self.large.remove(maps, right);
                units += r.units();
                self.put_id(maps, right);
            }
        }
        let d = maps.desc(keep);
        d.set_off(off);
        d.set_units(units);
        self.shelve_large(maps, keep);
    }
}
