//! Whole granules of a heap: given to it, taken from it, and scattered ones put together for a block that no
//! hole could hold.

use super::super::desc::{GranuleUse, Id, Maps, kind};
use super::super::shape::{LARGE_UNITS, LARGE_UNITS_SHIFT, Tier};
use super::Inner;

#[cfg(test)]
use super::super::{desc::use_of, shape::GRANULE_SHIFT};

/// [units] from which a block may be shown over the ends of two granules without a whole one between them: for
/// smaller ones the driver calls cost more than the memory is worth.
const LEAST_OF_TWO: u32 = LARGE_UNITS / 4;

/// Lists for [`Inner::scatter`] that are kept to be filled again.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// A `free_list`.
    pub free: Vec<(u32, u32, Id)>,
    /// Whole free granules: (count, first).
    runs: Vec<(u32, u32)>,
    /// Free ends of granules whose start is taken: (units, one past the last).
    heads: Vec<(u32, u32)>,
    /// Free starts of granules whose end is taken: (units, first).
    tails: Vec<(u32, u32)>,
    /// What was found: (offset, units).
    pub pieces: Vec<(u32, u32)>,
    pub order: Vec<(u32, u32)>,
}

/// Parts of granules at the two ends of a block, (offset, units), and what taking them costs.
#[derive(Clone, Copy, Default)]
struct Ends {
    head: Option<(u32, u32)>,
    tail: Option<(u32, u32)>,
    cost: u32,
}

/// The cost of breaking a granule: what is left of it can still serve.
fn broken(left: u32) -> u32 {
    if left == LARGE_UNITS { 0 } else { 3 + left * 9 / 10 }
}

/// The cost of leaving a part of what was a part already.
fn odd(left: u32) -> u32 {
    1 + left
}

/// Sorts what is free into whole granules, heads and tails, the last two by size; the number of the first.
fn edges(
    free: &[(u32, u32, Id)],
    runs: &mut Vec<(u32, u32)>,
    heads: &mut Vec<(u32, u32)>,
    tails: &mut Vec<(u32, u32)>,
) -> u64 {
    runs.clear();
    heads.clear();
    tails.clear();
    let mut sum = 0;
    for &(off, units, _) in free {
        let end = off + units;
        let (from, to) = (off.next_multiple_of(LARGE_UNITS), end & !(LARGE_UNITS - 1));
        if from > to {
            continue; // inside a granule
        }
        if from < to {
            runs.push(((to - from) >> LARGE_UNITS_SHIFT, from >> LARGE_UNITS_SHIFT));
            sum += u64::from((to - from) >> LARGE_UNITS_SHIFT);
        }
        if off < from {
            heads.push((from - off, from));
        }
        if to < end {
            tails.push((end - to, to));
        }
    }
    heads.sort_unstable();
    tails.sort_unstable();
    sum
}

/// The smallest part that has `need` units; none at all for 0.
fn smallest(heads: &[(u32, u32)], tails: &[(u32, u32)], need: u32) -> Option<Ends> {
    if need == 0 {
        return Some(Ends::default());
    }
    let least = |of: &[(u32, u32)]| of.get(of.partition_point(|p| p.0 < need)).copied();
    match (least(heads), least(tails)) {
        (Some(h), t) if t.is_none_or(|t| h.0 < t.0) => {
            Some(Ends { head: Some((h.1 - need, need)), tail: None, cost: odd(h.0 - need) })
        }
        (_, Some(t)) => Some(Ends { head: None, tail: Some((t.1, need)), cost: odd(t.0 - need) }),
        _ => None,
    }
}

/// A head, all of it, and a tail that have `need` units together and the least beyond it.
fn pair(heads: &[(u32, u32)], tails: &[(u32, u32)], need: u32) -> Option<Ends> {
    let mut best: Option<(u32, Ends)> = None;
    let mut t = tails.len();
    for &(room, end) in heads.iter().filter(|h| h.0 < need) {
        // The more the head has, the smaller the tail may be.
        while t > 0 && room + tails[t - 1].0 >= need {
            t -= 1;
        }
        if let Some(tail) = tails.get(t) {
            let beyond = room + tail.0 - need;
            if best.is_none_or(|b| beyond < b.0) {
                let (head, tail) = (Some((end - room, room)), Some((tail.1, need - room)));
                best = Some((beyond, Ends { head, tail, cost: 1 + odd(beyond) }));
            }
        }
    }
    best.map(|b| b.1)
}

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

    /// Finds memory for a block of `units`: whole free granules, in front of them (with `use_heads`) the free end of a granule
    /// whose start is taken, and behind them the free start of one whose end is taken. Of all ways the one that costs
    /// least (see [`fit_cost`](Self::fit_cost)), if that is less than `limit`. On success all is taken, linked through
    /// `next`, and listed in `pieces` as (offset, units) in the order in which it is to be shown; the answer is the
    /// first of the links. `Err(n)`: `n` more whole granules are needed, 0 when only the limit forbids it;
    /// `u64::MAX`: out of ids. Nothing changed then.
    pub(crate) fn scatter(
        &mut self,
        maps: &Maps,
        units: u32,
        (use_heads, limit): (bool, u32),
        scratch: &mut Scratch,
    ) -> Result<Id, u64> {
        let Scratch { free, runs, heads, tails, pieces, order } = scratch;
        self.free_list(maps, free);
        let have = edges(free, runs, heads, tails);
        if !use_heads {
            heads.clear();
        }
        let (whole, rest) = (units >> LARGE_UNITS_SHIFT, units & (LARGE_UNITS - 1));
        let two = |need| if units >= LEAST_OF_TWO { pair(heads, tails, need) } else { None };
        // Whole granules, and what stands at their ends.
        let choices = [
            smallest(heads, tails, rest).map(|ends| (whole, ends)),
            two(rest).map(|ends| (whole, ends)),
            whole.checked_sub(1).and_then(|n| Some((n, two(rest + LARGE_UNITS)?))),
            Some((whole + u32::from(rest > 0), Ends { cost: broken(LARGE_UNITS - rest), ..Ends::default() })),
        ];
        let possible = choices.iter().flatten().filter(|c| u64::from(c.0) <= have);
        let Some(&(_, ends)) = possible.min_by_key(|c| c.1.cost) else {
            let least = choices.iter().flatten().map(|c| u64::from(c.0)).min();
            return Err(least.unwrap_or(u64::MAX) - have);
        };
        if ends.cost >= limit {
            return Err(0);
        }
        pieces.clear();
        pieces.extend(ends.head);
        // The smallest runs first: the large ones stay whole for blocks that need no mapping.
        runs.sort_unstable();
        let mut left = units - ends.head.map_or(0, |p| p.1) - ends.tail.map_or(0, |p| p.1);
        for &(count, first) in runs.iter() {
            let n = left.min(count << LARGE_UNITS_SHIFT);
            if n > 0 {
                pieces.push((first << LARGE_UNITS_SHIFT, n));
            }
            left -= n;
        }
        pieces.extend(ends.tail);
        self.take_pieces(maps, free, pieces, order).ok_or(u64::MAX)
    }

    /// What a best fit costs: how much free memory it makes hard to use, in units. 0 where it leaves nothing, or
    /// whole granules only. `None`: nothing fits.
    pub(crate) fn fit_cost(&self, maps: &Maps, units: u32) -> Option<u32> {
        let d = maps.desc(Some(self.large.find(maps, units)).filter(|&id| id != 0)?);
        let (end, all) = (d.off() + units, d.off() + d.units());
        let next = end.next_multiple_of(LARGE_UNITS);
        Some(match () {
            () if end == all || end == next => 0,
            () if next <= all => broken(next - end),
            () => odd(all - end),
        })
    }

    /// Notes whether more than `most` units are free but lie in granules that are partly used.
    pub(crate) fn note_ragged(&mut self, maps: &Maps, most: u64) {
        let mut part = 0u64;
        self.large.walk(maps, 1, |id| {
            let d = maps.desc(id);
            let (off, end) = (d.off(), d.off() + d.units());
            let (from, to) = (off.next_multiple_of(LARGE_UNITS), end & !(LARGE_UNITS - 1));
            part += u64::from(if from > to { end - off } else { (from - off) + (end - to) });
            true
        });
        self.ragged = part > most;
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
