//! Whole granules of a heap: given to it, and taken from it one by one.

use super::super::desc::{GranuleUse, Id, Maps, kind};
use super::super::shape::{LARGE_UNITS, LARGE_UNITS_SHIFT, Tier};
use super::Inner;

#[cfg(test)]
use super::super::{desc::use_of, shape::GRANULE_SHIFT};

impl Inner {
    /// Takes over granules `first..first + count` and puts them into the bins, less `short` units at the end
    /// (a segment that ends inside its last granule). `false`: out of ids, nothing changed.
    pub(crate) fn give(&mut self, maps: &Maps, me: u32, first: u32, count: u32, short: u32) -> bool {
        let Some(id) = self.take_id(maps) else { return false };
        for g in first..first + count {
            maps.set_granule(g, maps.large_use(g, me));
        }
        self.granules += u64::from(count);
        let d = maps.desc(id);
        d.set_off(first << LARGE_UNITS_SHIFT);
        d.set_units((count << LARGE_UNITS_SHIFT) - short);
        Self::tag_large(maps, d.off(), d.units(), id);
        self.free_large(maps, me, id);
        true
    }

    /// Free whole granules, as runs (count, first), in `into`; returns how many granules they are.
    pub(crate) fn free_runs(&self, maps: &Maps, into: &mut Vec<(u32, u32, Id)>) -> u64 {
        let mut sum = 0;
        self.large.walk(maps, LARGE_UNITS, |id| {
            let d = maps.desc(id);
            let first = d.off().div_ceil(LARGE_UNITS);
            let end = (d.off() + d.units()) >> LARGE_UNITS_SHIFT;
            if end > first {
                into.push((end - first, first, id));
                sum += u64::from(end - first);
            }
            true
        });
        sum
    }

    /// Takes `count` whole granules at `first` out of the free block `id`; they are nobody's then.
    pub(crate) fn take_run(&mut self, maps: &Maps, id: Id, first: u32, count: u32) -> bool {
        let Some(piece) = self.carve(maps, id, first << LARGE_UNITS_SHIFT, count << LARGE_UNITS_SHIFT) else {
            return false;
        };
        self.put_id(maps, piece);
        for g in first..first + count {
            maps.set_granule(g, GranuleUse::NONE);
        }
        self.granules -= u64::from(count);
        true
    }

    /// Takes all free granules, with the short last one of a segment where that is free too:
    /// (first, count, units that the last one lacks).
    pub(crate) fn take_all(&mut self, maps: &Maps) -> Vec<(u32, u32, u32)> {
        let mut found = Vec::new();
        self.large.walk(maps, 1, |id| {
            let d = maps.desc(id);
            let first = d.off().div_ceil(LARGE_UNITS);
            let end = d.off() + d.units();
            let lacks = end.next_multiple_of(LARGE_UNITS) - end;
            // Nothing was ever entered behind the end of a segment.
            let short = if lacks > 0 && maps.large_at(end) == 0 { lacks } else { 0 };
            let last = if short > 0 { end.div_ceil(LARGE_UNITS) } else { end >> LARGE_UNITS_SHIFT };
            if last > first {
                found.push((id, first, last - first, short));
            }
            true
        });
        let mut taken = Vec::with_capacity(found.len());
        for (id, first, count, short) in found {
            let Some(piece) =
                self.carve(maps, id, first << LARGE_UNITS_SHIFT, (count << LARGE_UNITS_SHIFT) - short)
            else {
                break;
            };
            self.put_id(maps, piece);
            for g in first..first + count {
                maps.set_granule(g, GranuleUse::NONE);
            }
            self.granules -= u64::from(count);
            taken.push((first, count, short));
        }
        taken
    }

    /// Takes the whole free block that covers a segment of `units` at `first`, if it does.
    pub(crate) fn take_segment(&mut self, maps: &Maps, me: u32, first: u32, units: u32) -> bool {
        let off = first << LARGE_UNITS_SHIFT;
        if !self.mine(maps, me, off) {
            return false;
        }
        let id = maps.large_at(off);
        let d = maps.desc(id);
        if id == 0
            || d.state() != kind::FREE | (Tier::Large as u32) << 4
            || d.off() != off
            || d.units() != units
        {
            return false;
        }
        self.large.remove(maps, id);
        self.put_id(maps, id);
        let granules = units.div_ceil(LARGE_UNITS);
        for g in first..first + granules {
            maps.set_granule(g, GranuleUse::NONE);
        }
        self.granules -= u64::from(granules);
        true
    }

    /// All free large blocks, by offset: (offset, units, id).
    pub(crate) fn free_list(&self, maps: &Maps, into: &mut Vec<(u32, u32, Id)>) {
        into.clear();
        self.large.walk(maps, 1, |id| {
            let d = maps.desc(id);
            into.push((d.off(), d.units(), id));
            true
        });
        into.sort_unstable();
    }

    /// Takes exactly these pieces, if `free` (a `free_list`) covers them all; the first of them, linked as by
    /// `scatter`. The list does not hold afterwards. `order` is scratch.
    pub(crate) fn take_pieces(
        &mut self,
        maps: &Maps,
        free: &[(u32, u32, Id)],
        pieces: &[(u32, u32)],
        order: &mut Vec<(u32, u32)>,
    ) -> Option<Id> {
        let holder = |off: u32, units: u32| {
            let i = free.partition_point(|f| f.0 <= off).checked_sub(1)?;
            let (start, all, id) = free[i];
            (off + units <= start + all).then_some(id)
        };
        if !pieces.iter().all(|&(off, units)| holder(off, units).is_some()) {
            return None;
        }
        // From the highest down: what is left in front of a piece keeps the block's id.
        order.clear();
        order.extend_from_slice(pieces);
        order.sort_unstable_by_key(|p| std::cmp::Reverse(p.0));
        let mut first = 0;
        for &(off, units) in order.iter() {
            let piece = holder(off, units).and_then(|id| self.carve(maps, id, off, units));
            let Some(piece) = piece else {
                self.unscatter(maps, first);
                return None;
            };
            let d = maps.desc(piece);
            d.become_(kind::EXTENT, Tier::Large as u32);
            d.set_next(first);
            first = piece;
        }
        Some(first)
    }

    /// Gives the pieces of `scatter` back.
    pub(crate) fn unscatter(&mut self, maps: &Maps, first: Id) {
        let mut piece = first;
        while piece != 0 {
            let next = maps.desc(piece).next();
            let g = maps.granule(maps.desc(piece).off() >> LARGE_UNITS_SHIFT);
            self.free_large(maps, g.heap(), piece);
            piece = next;
        }
    }

    /// Walks all granules of this heap and checks what must always hold. For tests.
    #[cfg(test)]
    pub(crate) fn check(&self, maps: &Maps, me: u32, granules: u32) {
        let mut owned = 0;
        let mut unit = 0u32;
        let end = granules << LARGE_UNITS_SHIFT;
        let mut was_free = false;
        while unit < end {
            let g = maps.granule(unit >> LARGE_UNITS_SHIFT);
            if g.heap() != me || !(use_of::SMALL..=use_of::LARGE).contains(&g.use_()) {
                unit = (unit & !(LARGE_UNITS - 1)) + LARGE_UNITS;
                was_free = false;
                continue;
            }
            let id = maps.large_at(unit);
            if id == 0 {
                unit = (unit & !(LARGE_UNITS - 1)) + LARGE_UNITS; // a segment that ends inside this granule
                was_free = false;
                continue;
            }
            let d = maps.desc(id);
            assert!(d.off() == unit, "granule {} unit {unit}: no block starts here", unit >> 7);
            assert_eq!(maps.large_at(unit + d.units() - 1), id, "last tag of {id}");
            let free = d.kind() == kind::FREE;
            assert!(!(free && was_free), "two free neighbours at unit {unit}");
            assert_ne!(d.kind(), kind::UNUSED);
            if d.kind() == kind::CHUNK {
                self.check_chunk(maps, g, unit >> LARGE_UNITS_SHIFT);
            }
            was_free = free;
            let first_g = unit.div_ceil(LARGE_UNITS);
            unit += d.units();
            owned += u64::from(unit.div_ceil(LARGE_UNITS) - first_g);
        }
        assert_eq!(owned, self.granules, "granules owned");
    }
    #[cfg(test)]
    pub(super) fn check_chunk(&self, maps: &Maps, g: GranuleUse, granule: u32) {
        let tier = if g.use_() == use_of::SMALL { Tier::Small } else { Tier::Medium };
        let mask = Self::chunk_mask(maps, tier);
        let base = granule << (GRANULE_SHIFT - maps.shape.unit_shift(tier));
        let (mut at, mut was_free) = (0, false);
        while at <= mask {
            let id = maps.at(g.low() + at);
            let d = maps.desc(id);
            assert!(id != 0 && d.off() == base + at, "chunk {granule} unit {at}");
            assert_eq!(maps.at(g.low() + at + d.units() - 1), id);
            let free = d.kind() == kind::FREE;
            assert!(!(free && was_free), "two free neighbours in chunk {granule} at {at}");
            was_free = free;
            at += d.units();
        }
        assert_eq!(at, mask + 1);
    }
}
