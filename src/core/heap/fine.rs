//! The small and medium tiers of a heap: blocks in chunks, each chunk one granule of the large tier. Blocks
//! merge within their chunk; a chunk that is wholly free goes back, but for one a tier.

use super::super::desc::{Id, Maps, kind};
use super::super::shape::{GRANULE_SHIFT, LARGE_UNITS, LARGE_UNITS_SHIFT, Tier};
use super::Inner;

impl Inner {
    #[inline]
    pub(super) fn fine_insert(&mut self, maps: &Maps, tier: Tier, id: Id) {
        if tier == Tier::Small { self.small.insert(maps, id) } else { self.medium.insert(maps, id) }
    }
    #[inline]
    pub(super) fn fine_remove(&mut self, maps: &Maps, tier: Tier, id: Id) {
        if tier == Tier::Small { self.small.remove(maps, id) } else { self.medium.remove(maps, id) }
    }
    /// Units of a chunk of the tier, less one.
    #[inline]
    pub(super) fn chunk_mask(maps: &Maps, tier: Tier) -> u32 {
        (1 << (GRANULE_SHIFT - maps.shape.unit_shift(tier))) - 1
    }
    pub(super) fn tag_fine(maps: &Maps, base: u32, mask: u32, off: u32, units: u32, id: Id) {
        maps.set_at(base + (off & mask), id);
        maps.set_at(base + ((off + units - 1) & mask), id);
    }

    /// A block of a fine tier from the bins; 0 when none fits (or ids ran out).
    pub(super) fn fine_alloc(&mut self, maps: &Maps, tier: Tier, units: u32) -> Id {
        let id =
            if tier == Tier::Small { self.small.find(maps, units) } else { self.medium.find(maps, units) };
        if id == 0 || !self.stock_ids(maps) {
            return 0;
        }
        let mask = Self::chunk_mask(maps, tier);
        let d = maps.desc(id);
        let (off, all) = (d.off(), d.units());
        self.fine_remove(maps, tier, id);
        if all == mask + 1 {
            self.empty[tier as usize] = false;
        }
        if all > units {
            let g = maps.granule(off >> (GRANULE_SHIFT - maps.shape.unit_shift(tier)));
            let rest = self.pop_id(maps);
            let r = maps.desc(rest);
            r.set_off(off + units);
            r.set_units(all - units);
            r.become_(kind::FREE, tier as u32);
            Self::tag_fine(maps, g.low(), mask, off + units, all - units, rest);
            self.fine_insert(maps, tier, rest);
            d.set_units(units);
            maps.set_at(g.low() + ((off + units - 1) & mask), id);
        }
        id
    }

    pub(super) fn fine_free(&mut self, maps: &Maps, me: u32, tier: Tier, id: Id) {
        let mask = Self::chunk_mask(maps, tier);
        let d = maps.desc(id);
        let (mut off, mut units) = (d.off(), d.units());
        let granule = off >> (GRANULE_SHIFT - maps.shape.unit_shift(tier));
        let base = maps.granule(granule).low();
        let free = kind::FREE | (tier as u32) << 4;
        let mut keep = id;
        if off & mask != 0 {
            let left = maps.at(base + ((off - 1) & mask));
            let l = maps.desc(left);
            if left != 0 && l.state() == free && l.off() + l.units() == off {
                self.fine_remove(maps, tier, left);
                off = l.off();
                units += l.units();
                self.put_id(maps, keep);
                keep = left;
            }
        }
        let end = off + units;
        if end & mask != 0 {
            let right = maps.at(base + (end & mask));
            let r = maps.desc(right);
            if right != 0 && r.state() == free && r.off() == end {
                self.fine_remove(maps, tier, right);
                units += r.units();
                self.put_id(maps, right);
            }
        }
        if units == mask + 1 {
            if self.empty[tier as usize] {
                self.put_id(maps, keep);
                self.drop_chunk(maps, me, tier, granule);
                return;
            }
            self.empty[tier as usize] = true;
        }
        let d = maps.desc(keep);
        d.set_off(off);
        d.set_units(units);
        d.become_(kind::FREE, tier as u32);
        Self::tag_fine(maps, base, mask, off, units, keep);
        self.fine_insert(maps, tier, keep);
    }

    /// A chunk whose blocks are gone becomes a free large block again.
    pub(super) fn drop_chunk(&mut self, maps: &Maps, me: u32, tier: Tier, granule: u32) {
        maps.give_slot(tier, maps.granule(granule).low());
        maps.set_granule(granule, maps.large_use(granule, me));
        let chunk = maps.large_at(granule << LARGE_UNITS_SHIFT);
        self.free_large(maps, me, chunk);
    }

    /// Gives back the empty chunks that are kept for later.
    pub(super) fn drop_empty_chunks(&mut self, maps: &Maps, me: u32) {
        for tier in [Tier::Small, Tier::Medium] {
            if !std::mem::take(&mut self.empty[tier as usize]) {
                continue;
            }
            let whole = Self::chunk_mask(maps, tier) + 1;
            let id = if tier == Tier::Small {
                self.small.find(maps, whole)
            } else {
                self.medium.find(maps, whole)
            };
            if id == 0 {
                continue;
            }
            let granule = maps.desc(id).off() >> (GRANULE_SHIFT - maps.shape.unit_shift(tier));
            self.fine_remove(maps, tier, id);
            self.put_id(maps, id);
            self.drop_chunk(maps, me, tier, granule);
        }
    }

    /// Turns a free granule into a chunk of a fine tier.
    pub(super) fn make_chunk(&mut self, maps: &Maps, me: u32, tier: Tier) -> bool {
        // The highest one there is: chunks come and go with the small blocks, and would shift the large ones,
        // which fill up from below.
        let mut at: Option<(Id, u32)> = None;
        self.large.walk(maps, LARGE_UNITS, |id| {
            let d = maps.desc(id);
            let end = (d.off() + d.units()) & !(LARGE_UNITS - 1);
            if end >= d.off() + LARGE_UNITS && at.is_none_or(|a| a.1 < end - LARGE_UNITS) {
                at = Some((id, end - LARGE_UNITS));
            }
            true
        });
        let Some((id, first)) = at else { return false };
        let Some(slot) = maps.take_slot(tier) else { return false };
        let Some(chunk) = self.carve(maps, id, first, LARGE_UNITS) else {
            maps.give_slot(tier, slot);
            return false;
        };
        if !self.stock_ids(maps) {
            self.free_large(maps, me, chunk);
            maps.give_slot(tier, slot);
            return false;
        }
        maps.desc(chunk).become_(kind::CHUNK, Tier::Large as u32);
        let granule = first >> LARGE_UNITS_SHIFT;
        maps.set_granule(granule, maps.chunk_use(tier, me, slot));
        let mask = Self::chunk_mask(maps, tier);
        let whole = self.pop_id(maps);
        let d = maps.desc(whole);
        d.set_off(granule << (GRANULE_SHIFT - maps.shape.unit_shift(tier)));
        d.set_units(mask + 1);
        d.become_(kind::FREE, tier as u32);
        Self::tag_fine(maps, slot, mask, d.off(), mask + 1, whole);
        self.fine_insert(maps, tier, whole);
        self.empty[tier as usize] = true;
        true
    }
}
