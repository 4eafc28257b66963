//! The small and medium tiers of a heap: blocks in chunks, each chunk one granule of the large tier. Blocks merge
//! within their chunk; a chunk that is completely free is given up, except one for each tier. All methods work on a
//! locked heap.

use super::super::desc::{GranuleUse, Id, Maps, free_state, kind};
use super::super::shape::{Tier, unit_shift};
use super::super::units::{Extent, GRANULE_SHIFT, GranuleRun, LARGE_UNITS, LARGE_UNITS_SHIFT};
use super::{HeapState, LockedHeap};
use std::ops::DerefMut;

/// The number of units in a chunk of the tier, minus one.
#[inline]
pub(super) fn chunk_mask(tier: Tier) -> u32 {
    (1 << (GRANULE_SHIFT - unit_shift(tier))) - 1
}

/// A chunk of a fine tier, with the table that its blocks are entered in.
#[derive(Clone, Copy)]
pub(super) struct ChunkTags<'a> {
    maps: &'a Maps,
    chunk: GranuleUse,
}

impl<'a> ChunkTags<'a> {
    /// Those of a granule that is a chunk.
    #[inline(always)]
    pub(super) fn of(maps: &'a Maps, granule: u32) -> ChunkTags<'a> {
        ChunkTags { maps, chunk: maps.granule(granule) }
    }

    /// The block that is entered at a unit.
    #[inline(always)]
    pub(super) fn at(self, unit: u32) -> Id {
        self.maps.at(self.chunk.entry(unit))
    }

    /// Enters a block at one unit.
    #[inline(always)]
    pub(super) fn set(self, unit: u32, id: Id) {
        self.maps.set_at(self.chunk.entry(unit), id);
    }

    /// Enters a block at its first and its last unit.
    #[inline(always)]
    pub(super) fn enter(self, off: u32, units: u32, id: Id) {
        self.set(off, id);
        self.set(off + units - 1, id);
    }

    /// The slot of the chunk in the table of its tier; `first` is its first unit.
    fn slot(self, first: u32) -> u32 {
        self.chunk.entry(first)
    }
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
        if tier == Tier::Small { self.small_mut().insert(id) } else { self.medium_mut().insert(id) }
    }
    #[inline]
    pub(super) fn fine_remove(&mut self, tier: Tier, id: Id) {
        if tier == Tier::Small { self.small_mut().remove(id) } else { self.medium_mut().remove(id) }
    }
    #[inline]
    fn fine_resize(&mut self, tier: Tier, id: Id, off: u32, units: u32) {
        if tier == Tier::Small {
            self.small_mut().resize(id, off, units)
        } else {
            self.medium_mut().resize(id, off, units)
        }
    }
    /// A block of a fine tier with at least `units`, left in the bins; 0 if there is none.
    #[inline]
    fn fine_find(&mut self, tier: Tier, units: u32) -> Id {
        if tier == Tier::Small { self.small_mut().find(units) } else { self.medium_mut().find(units) }
    }

    /// Takes a block of a fine tier out of the bins; 0 if none fits (or ids ran out).
    pub(super) fn fine_alloc(&mut self, tier: Tier, units: u32) -> Id {
        let maps = self.maps();
        let id = self.fine_find(tier, units);
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
        let tags = ChunkTags::of(maps, granule_of(tier, off));
        let piece = self.pop_id();
        self.state.pieces += 1;
        self.fine_resize(tier, id, off + units, all - units);
        tags.set(off + units, id);
        let p = maps.desc(piece);
        p.set_off(off);
        p.set_units(units);
        tags.enter(off, units, piece);
        piece
    }

    /// Merges a block, whose tags are in place, with its free neighbours.
    pub(super) fn fine_free(&mut self, tier: Tier, id: Id) {
        let maps = self.maps();
        let mask = chunk_mask(tier);
        let free = free_state(tier);
        let d = maps.desc(id);
        let (off, units) = (d.off(), d.units());
        let end = off + units;
        let granule = granule_of(tier, off);
        let tags = ChunkTags::of(maps, granule);
        let (mut left, mut right) = (0, 0);
        if off & mask != 0 {
            let l = tags.at(off - 1);
            let d = maps.desc(l); // 0 is never free
            if d.state() == free && d.off() + d.units() == off {
                left = l;
            }
        }
        if end & mask != 0 {
            let r = tags.at(end);
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
        tags.enter(start, all, other);
    }

    /// Turns a chunk whose blocks are gone into a free large block.
    pub(super) fn drop_chunk(&mut self, tier: Tier, granule: u32) {
        let maps = self.maps();
        maps.give_slot(tier, ChunkTags::of(maps, granule).slot(first_unit(tier, granule)));
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
            let id = self.fine_find(tier, whole);
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

    /// Turns a free granule into a chunk of a fine tier. Whole segments that must not be cut are spared, unless `whole`.
    pub(super) fn make_chunk(&mut self, tier: Tier, whole: bool) -> bool {
        let maps = self.maps();
        // The highest free granule: chunks come and go with the small blocks, and would displace the large ones, which
        // fill up from below.
        let mut at: Option<(Id, GranuleRun)> = None;
        self.large().walk(LARGE_UNITS, |id| {
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
