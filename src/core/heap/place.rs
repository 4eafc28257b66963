//! Blocks at places that are given: what a restored layout needs. Everything here is found beforehand to be
//! possible; the ids it takes are stocked.

use super::super::desc::{GranuleUse, Id, Maps, kind};
use super::super::shape::{GRANULE_SHIFT, LARGE_UNITS, LARGE_UNITS_SHIFT, Tier};
use super::{ID_BATCH, Inner};

/// A free block of a `free_list` that covers the units.
fn holder(free: &[(u32, u32, Id)], off: u32, units: u32) -> Option<Id> {
    let i = free.partition_point(|f| f.0 <= off).checked_sub(1)?;
    let (start, all, id) = free[i];
    (off + units <= start + all).then_some(id)
}

impl Inner {
    /// Makes sure that `count` ids are at hand; `false`: there are no more.
    pub(crate) fn stock(&mut self, maps: &Maps, count: u32) -> bool {
        let (mut have, mut id) = (0, self.ids);
        while id != 0 && have < count {
            id = maps.desc(id).next();
            have += 1;
        }
        while have < count {
            let Some((first, n)) = maps.fresh_ids(ID_BATCH) else { return false };
            (first..first + n).for_each(|id| self.put_id(maps, id));
            have += n;
        }
        true
    }

    /// Cuts `units` at `off` out of the free block of `free` (a `free_list`) that covers them. The list holds
    /// as long as this is called for the highest first: what is left in front keeps the block's id.
    pub(crate) fn carve_at(
        &mut self,
        maps: &Maps,
        free: &[(u32, u32, Id)],
        off: u32,
        units: u32,
    ) -> Option<Id> {
        holder(free, off, units).and_then(|id| self.carve(maps, id, off, units))
    }

    /// Takes one free granule, which lacks `short` units at its end, out of the heap; as `carve_at`.
    pub(crate) fn take_granule(
        &mut self,
        maps: &Maps,
        free: &[(u32, u32, Id)],
        granule: u32,
        short: u32,
    ) -> bool {
        let units = LARGE_UNITS - short;
        let Some(piece) = self.carve_at(maps, free, granule << LARGE_UNITS_SHIFT, units) else {
            return false;
        };
        self.put_id(maps, piece);
        maps.set_granule(granule, GranuleUse::NONE);
        self.granules -= 1;
        true
    }

    /// Turns a granule that was cut out into an empty chunk of a fine tier, with this table slot.
    pub(crate) fn chunk_from(&mut self, maps: &Maps, me: u32, piece: Id, tier: Tier, slot: u32) {
        maps.desc(piece).become_(kind::CHUNK, Tier::Large as u32);
        let granule = maps.desc(piece).off() >> LARGE_UNITS_SHIFT;
        maps.set_granule(granule, maps.chunk_use(tier, me, slot));
        let mask = Self::chunk_mask(maps, tier);
        let whole = self.pop_id(maps);
        let d = maps.desc(whole);
        d.set_off(granule << (GRANULE_SHIFT - maps.shape.unit_shift(tier)));
        d.set_units(mask + 1);
        d.become_(kind::FREE, tier as u32);
        Self::tag_fine(maps, slot, mask, d.off(), mask + 1, whole);
        self.fine_insert(maps, tier, whole);
    }

    /// Takes blocks (offset, units; in order) out of the free ones of a chunk, and calls `each` with the
    /// number and the id of each. `false`: one of them is not free.
    pub(crate) fn fill_chunk(
        &mut self,
        maps: &Maps,
        tier: Tier,
        granule: u32,
        blocks: &[(u32, u32)],
        mut each: impl FnMut(usize, Id),
    ) -> bool {
        let mask = Self::chunk_mask(maps, tier);
        let low = maps.granule(granule).low();
        let mut at = granule << (GRANULE_SHIFT - maps.shape.unit_shift(tier));
        for (n, &(off, units)) in blocks.iter().enumerate() {
            let id = loop {
                let id = maps.at(low + (at & mask));
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
            self.fine_remove(maps, tier, id);
            if end - start == mask + 1 {
                self.empty[tier as usize] = false;
            }
            let free = |heap: &mut Inner, id: Id, off: u32, units: u32| {
                let d = maps.desc(id);
                d.set_off(off);
                d.set_units(units);
                d.become_(kind::FREE, tier as u32);
                Self::tag_fine(maps, low, mask, off, units, id);
                heap.fine_insert(maps, tier, id);
            };
            let piece = if off > start { self.pop_id(maps) } else { id };
            if off > start {
                free(self, id, start, off - start);
            }
            if off + units < end {
                let rest = self.pop_id(maps);
                free(self, rest, off + units, end - off - units);
            }
            let p = maps.desc(piece);
            p.set_off(off);
            p.set_units(units);
            Self::tag_fine(maps, low, mask, off, units, piece);
            each(n, piece);
            at = off + units;
        }
        true
    }
}
