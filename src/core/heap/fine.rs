//! The small and medium tiers of a heap: blocks in chunks, each chunk one granule of the large tier. Blocks merge
//! within their chunk; a chunk that is completely free is given up, except one for each tier.

use super::super::desc::{GranuleUse, Id, Maps, kind};
use super::super::shape::{Tier, unit_shift};
use super::super::units::{Extent, GRANULE_SHIFT, GranuleRun, LARGE_UNITS, LARGE_UNITS_SHIFT};
use super::{HeapState, LockedHeap};
use std::ops::DerefMut;

/// The number of units in a chunk of the tier, minus one.
#[inline]
pub(super) fn chunk_mask(tier: Tier) -> u32 {
    (1 << (GRANULE_SHIFT - unit_shift(tier))) - 1
}

/// Enters a block at its first and its last unit, in a chunk of that use.
pub(super) fn tag_fine(maps: &Maps, chunk: GranuleUse, off: u32, units: u32, id: Id) {
    maps.set_at(chunk.entry(off), id);
    maps.set_at(chunk.entry(off + units - 1), id);
}

/// The number of the first unit of a tier in a granule.
pub(super) fn first_unit(tier: Tier, granule: u32) -> u32 {
    granule << (GRANULE_SHIFT - unit_shift(tier))
}

/// The granule that contains a unit of a fine tier.
fn granule_of(tier: Tier, off: u32) -> u32 {
    off >> (GRANULE_SHIFT - unit_shift(tier))
}

impl<G: DerefMut<Target = HeapState>> LockedHeap<'_, G> {
    #[inline]
    pub(super) fn fine_insert(&mut self, tier: Tier, id: Id) {
        let maps = self.maps();
        if tier == Tier::Small {
            self.state.small.insert(maps, id)
        } else {
            self.state.medium.insert(maps, id)
        }
    }
    #[inline]
    pub(super) fn fine_remove(&mut self, tier: Tier, id: Id) {
        let maps = self.maps();
        if tier == Tier::Small {
            self.state.small.remove(maps, id)
        } else {
            self.state.medium.remove(maps, id)
        }
    }
    #[inline]
    fn fine_resize(&mut self, tier: Tier, id: Id, off: u32, units: u32) {
        let maps = self.maps();
        if tier == Tier::Small {
            self.state.small.resize(maps, id, off, units)
        } else {
            self.state.medium.resize(maps, id, off, units)
        }
    }
    /// A block of a fine tier from the bins; 0 if none fits (or ids ran out).
    pub(super) fn fine_alloc(&mut self, tier: Tier, units: u32) -> Id {
        let maps = self.maps();
        let id = if tier == Tier::Small {
            self.state.small.find(maps, units)
        } else {
            self.state.medium.find(maps, units)
        };
        if id == 0 || !self.stock_ids() {
            return 0;
        }
        let mask = chunk_mask(tier);
        let d = maps.desc(id);
        let (off, all) = (d.off(), d.units());
        if all == mask + 1 {
            self.state.empty[tier as usize] = false;
        }
        if all == units {
            self.fine_remove(tier, id);
            return id;
        }
        // The remainder keeps the id.
        let chunk = maps.granule(granule_of(tier, off));
        let piece = self.pop_id();
        self.state.pieces += 1;
        self.fine_resize(tier, id, off + units, all - units);
        maps.set_at(chunk.entry(off + units), id);
        let p = maps.desc(piece);
        p.set_off(off);
        p.set_units(units);
        tag_fine(maps, chunk, off, units, piece);
        piece
    }

    /// Merges a block, whose tags are in place, with its free neighbours.
    pub(super) fn fine_free(&mut self, tier: Tier, id: Id) {
        let maps = self.maps();
        let mask = chunk_mask(tier);
        let free = kind::FREE | (tier as u32) << 4;
        let d = maps.desc(id);
        let (off, units) = (d.off(), d.units());
        let end = off + units;
        let granule = granule_of(tier, off);
        let chunk = maps.granule(granule);
        let (mut left, mut right) = (0, 0);
        if off & mask != 0 {
            let l = maps.at(chunk.entry(off - 1));
            let d = maps.desc(l); // 0 is never free
            if d.state() == free && d.off() + d.units() == off {
                left = l;
            }
        }
        if end & mask != 0 {
            let r = maps.at(chunk.entry(end));
            let d = maps.desc(r);
            if d.state() == free && d.off() == end {
                right = r;
            }
        }
        let (l, r) = (maps.desc(left), maps.desc(right));
        let start = if left != 0 { l.off() } else { off };
        let all = units + if left != 0 { l.units() } else { 0 } + if right != 0 { r.units() } else { 0 };
        if left != 0 && right != 0 {
            self.fine_remove(tier, right);
            self.put_id(right);
            self.state.pieces -= 1;
            right = 0;
        }
        let other = left | right;
        if all == mask + 1 {
            if self.state.empty[tier as usize] {
                if other != 0 {
                    self.fine_remove(tier, other);
                    self.put_id(other);
                    self.state.pieces -= 1;
                }
                self.put_id(id);
                self.state.pieces -= 1;
                self.drop_chunk(tier, granule);
                return;
            }
            self.state.empty[tier as usize] = true;
        }
        if other == 0 {
            d.become_(kind::FREE, tier as u32);
            self.fine_insert(tier, id);
            return;
        }
        self.put_id(id);
        self.state.pieces -= 1;
        self.fine_resize(tier, other, start, all);
        tag_fine(maps, chunk, start, all, other);
    }

    /// Turns a chunk whose blocks are gone into a free large block.
    pub(super) fn drop_chunk(&mut self, tier: Tier, granule: u32) {
        let maps = self.maps();
        maps.give_slot(tier, maps.granule(granule).entry(first_unit(tier, granule)));
        maps.set_granule(granule, maps.large_use(self.me()));
        self.state.chunks -= 1;
        maps.reserved.chunks_gone(self.heap.pool(), 1);
        let chunk = maps.large_at(granule << LARGE_UNITS_SHIFT);
        self.free_large(chunk);
    }

    /// Gives up the empty chunks that were kept for later.
    pub(super) fn drop_empty_chunks(&mut self) {
        let maps = self.maps();
        for tier in [Tier::Small, Tier::Medium] {
            if !std::mem::take(&mut self.state.empty[tier as usize]) {
                continue;
            }
            let whole = chunk_mask(tier) + 1;
            let id = if tier == Tier::Small {
                self.state.small.find(maps, whole)
            } else {
                self.state.medium.find(maps, whole)
            };
            if id == 0 {
                continue;
            }
            let granule = granule_of(tier, maps.desc(id).off());
            self.fine_remove(tier, id);
            self.put_id(id);
            self.state.pieces -= 1;
            self.drop_chunk(tier, granule);
        }
    }

    /// Turns a free granule into a chunk of a fine tier. Where whole segments matter, it spares them, unless `whole`.
    pub(super) fn make_chunk(&mut self, tier: Tier, whole: bool) -> bool {
        let maps = self.maps();
        // The highest free granule: chunks come and go with the small blocks, and would displace the large ones, which
        // fill up from below.
        let mut at: Option<(Id, GranuleRun)> = None;
        self.state.large.walk(maps, LARGE_UNITS, |id| {
            let d = maps.desc(id);
            if let Some(run) = Extent::new(d.off(), d.units()).whole()
                && (whole || !self.is_spared(id, LARGE_UNITS))
                && at.is_none_or(|a| a.1.first < run.end() - 1)
            {
                at = Some((id, run.last(1)));
            }
            true
        });
        let Some((id, run)) = at else { return false };
        let Some(slot) = maps.take_slot(tier) else { return false };
        let Some(chunk) = self.carve(id, run.extent()) else {
            maps.give_slot(tier, slot);
            return false;
        };
        if !self.stock_ids() {
            self.free_large(chunk);
            maps.give_slot(tier, slot);
            return false;
        }
        self.chunk_from(chunk, tier, slot);
        self.state.empty[tier as usize] = true;
        self.count_stuck();
        true
    }
}
