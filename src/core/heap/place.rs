//! Blocks at given places, which a restored layout needs. The caller has checked that everything here is possible,
//! has stocked the ids, and holds the heap's lock.

use super::super::desc::{Id, kind};
use super::super::shape::Tier;
use super::super::units::{Extent, LARGE_UNITS_SHIFT};
use super::fine::{ChunkTags, chunk_mask, first_unit};
use super::granules::{FreeBlock, holder};
use super::{HeapState, LockedHeap};
use std::ops::DerefMut;

impl<G: DerefMut<Target = HeapState>> LockedHeap<'_, G> {
    /// Cuts a part out of the free block of `free` (a `free_list`) that covers it. The list stays valid as long as
    /// parts are cut from the highest offset down: the remainder in front keeps the block's id.
    pub(crate) fn carve_at(&mut self, free: &[FreeBlock], part: Extent) -> Option<Id> {
        holder(free, part).and_then(|id| self.carve(id, part))
    }

    /// Takes free granules out of the heap; as `carve_at`.
    pub(crate) fn take_at(&mut self, free: &[FreeBlock], part: Extent) -> Option<FreeBlock> {
        holder(free, part).and_then(|id| self.take_part(id, part))
    }

    /// Turns a granule that was cut out into an empty chunk of a fine tier, with the given table slot.
    pub(crate) fn chunk_from(&mut self, piece: Id, tier: Tier, slot: u32) {
        let maps = self.maps();
        maps.desc(piece).become_(kind::CHUNK, Tier::Large as u32);
        let granule = maps.desc(piece).off() >> LARGE_UNITS_SHIFT;
        let chunk = maps.chunk_use(tier, self.me(), granule, slot);
        maps.set_granule(granule, chunk);
        let units = chunk_mask(tier) + 1;
        self.state.chunks += 1;
        self.state.pieces += 1;
        maps.reserved.chunks_made(self.heap.pool(), 1);
        let whole = self.pop_id();
        let d = maps.desc(whole);
        d.set_off(first_unit(tier, granule));
        d.set_units(units);
        d.become_(kind::FREE, tier as u32);
        ChunkTags::of(maps, granule).enter(d.off(), units, whole);
        self.fine_insert(tier, whole);
    }

    /// Takes blocks out of the free ones of a chunk: parts in units of the tier, sorted. Calls `each` with the index
    /// and the id of each. `false`: one of them is not free.
    pub(crate) fn fill_chunk(
        &mut self,
        tier: Tier,
        granule: u32,
        blocks: &[Extent],
        mut each: impl FnMut(usize, Id),
    ) -> bool {
        let maps = self.maps();
        let mask = chunk_mask(tier);
        let tags = ChunkTags::of(maps, granule);
        let mut at = first_unit(tier, granule);
        for (n, &Extent { off, units }) in blocks.iter().enumerate() {
            let id = loop {
                let id = tags.at(at);
                let d = maps.desc(id);
                if d.off() + d.units() > off {
                    break id;
                }
                at = d.off() + d.units();
            };
            let d = maps.desc(id);
            let (start, end) = (d.off(), d.off() + d.units());
            if d.kind() != kind::FREE || off + units > end {
                return false;
            }
            self.fine_remove(tier, id);
            if end - start == mask + 1 {
                self.state.empty[tier as usize] = false;
            }
            let free = |heap: &mut Self, id: Id, off: u32, units: u32| {
                let d = maps.desc(id);
                d.set_off(off);
                d.set_units(units);
                d.become_(kind::FREE, tier as u32);
                tags.enter(off, units, id);
                heap.fine_insert(tier, id);
            };
            self.state.pieces += u64::from(off > start) + u64::from(off + units < end);
            let piece = if off > start { self.pop_id() } else { id };
            if off > start {
                free(self, id, start, off - start);
            }
            if off + units < end {
                let rest = self.pop_id();
                free(self, rest, off + units, end - off - units);
            }
            let p = maps.desc(piece);
            p.set_off(off);
            p.set_units(units);
            tags.enter(off, units, piece);
            each(n, piece);
            at = off + units;
        }
        true
    }
}
