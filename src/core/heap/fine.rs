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
    #[inline]
    fn fine_resize(&mut self, maps: &Maps, tier: Tier, id: Id, off: u32, units: u32) {
        if tier == Tier::Small {
            self.small.resize(maps, id, off, units)
        } else {
            self.medium.resize(maps, id, off, units)
        }
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
        if all == mask + 1 {
            self.empty[tier as usize] = false;
        }
        if all == units {
            self.fine_remove(maps, tier, id);
            return id;
        }
        // The rest keeps the id.
        let base = maps.granule(off >> (GRANULE_SHIFT - maps.shape.unit_shift(tier))).low();
        let piece = self.pop_id(maps);
        self.fine_resize(maps, tier, id, off + units, all - units);
        maps.set_at(base + ((off + units) & mask), id);
        let p = maps.desc(piece);
        p.set_off(off);
        p.set_units(units);
        Self::tag_fine(maps, base, mask, off, units, piece);
        piece
    }

    /// Merges a block, whose tags are in place, with its free neighbours.
    pub(super) fn fine_free(&mut self, maps: &Maps, me: u32, tier: Tier, id: Id) {
        let mask = Self::chunk_mask(maps, tier);
        let free = kind::FREE | (tier as u32) << 4;
        let d = maps.desc(id);
        let (off, units) = (d.off(), d.units());
        let end = off + units;
        let granule = off >> (GRANULE_SHIFT - maps.shape.unit_shift(tier));
        let base = maps.granule(granule).low();
        let (mut left, mut right) = (0, 0);
        if off & mask != 0 {
            let l = maps.at(base + ((off - 1) & mask));
            let d = maps.desc(l); // 0 is never free
            if d.state() == free && d.off() + d.units() == off {
                left = l;
            }
        }
        if end & mask != 0 {
            let r = maps.at(base + (end & mask));
            let d = maps.desc(r);
            if d.state() == free && d.off() == end {
                right = r;
            }
        }
        let (l, r) = (maps.desc(left), maps.desc(right));
        let start = if left != 0 { l.off() } else { off };
        let all = units + if left != 0 { l.units() } else { 0 } + if right != 0 { r.units() } else { 0 };
        if left != 0 && right != 0 {
            self.fine_remove(maps, tier, right);
            self.put_id(maps, right);
            right = 0;
        }
        let other = left | right;
        if all == mask + 1 {
            if self.empty[tier as usize] {
                if other != 0 {
                    self.fine_remove(maps, tier, other);
                    self.put_id(maps, other);
                }
                self.put_id(maps, id);
                self.drop_chunk(maps, me, tier, granule);
                return;
            }
            self.empty[tier as usize] = true;
        }
        if other == 0 {
            d.become_(kind::FREE, tier as u32);
            self.fine_insert(maps, tier, id);
            return;
        }
        self.put_id(maps, id);
        self.fine_resize(maps, tier, other, start, all);
        Self::tag_fine(maps, base, mask, start, all, other);
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
