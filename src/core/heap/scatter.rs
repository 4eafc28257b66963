//! Memory that lies apart, put together for a block that no hole could hold, or that is better spread than put where
//! it would break a granule: whole granules, and the free ends of granules that others use too.

use super::super::desc::{Id, Maps};
use super::super::shape::{LARGE_UNITS, LARGE_UNITS_SHIFT};
use super::Inner;

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

/// The first unit and the end of the whole granules in `off..end`; the end is not behind the first where there are none.
fn whole_in(off: u32, end: u32) -> (u32, u32) {
    (off.next_multiple_of(LARGE_UNITS), end & !(LARGE_UNITS - 1))
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
        let (from, to) = whole_in(off, end);
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
    /// Finds memory for a block of `units`: whole free granules, behind them the free start of a granule whose end is taken,
    /// and in front of them the free end of one whose start is taken. Without a `limit`, free ends are used only where
    /// it does not go without: there are more ways with them, which seldom come again. With one, it is the way that costs
    /// least (see [`fit_cost`](Self::fit_cost)), if that is less. On success all is taken, linked through
    /// `next`, and listed in `pieces` as (offset, units) in the order in which it is to be shown; the answer is the
    /// first of the links. `Err(n)`: `n` more whole granules are needed, 0 when only the limit forbids it;
    /// `u64::MAX`: out of ids. Nothing changed then.
    pub(crate) fn scatter(
        &mut self,
        maps: &Maps,
        units: u32,
        limit: Option<u32>,
        scratch: &mut Scratch,
    ) -> Result<Id, u64> {
        let Scratch { free, runs, heads, tails, pieces, order } = scratch;
        self.free_list(maps, free);
        let have = edges(free, runs, heads, tails);
        let (whole, rest) = (units >> LARGE_UNITS_SHIFT, units & (LARGE_UNITS - 1));
        let two = |need| if units >= LEAST_OF_TWO { pair(heads, tails, need) } else { None };
        // Whole granules, and what stands at their ends; the first two without a head.
        let choices = [
            smallest(&[], tails, rest).map(|ends| (whole, ends)),
            Some((whole + u32::from(rest > 0), Ends { cost: broken(LARGE_UNITS - rest), ..Ends::default() })),
            smallest(heads, tails, rest).map(|ends| (whole, ends)),
            two(rest).map(|ends| (whole, ends)),
            whole.checked_sub(1).and_then(|n| Some((n, two(rest + LARGE_UNITS)?))),
        ];
        let cheapest = |of: &[Option<(u32, Ends)>]| {
            let possible = of.iter().flatten().filter(|c| u64::from(c.0) <= have);
            possible.min_by_key(|c| c.1.cost).map(|c| c.1)
        };
        let plain = if limit.is_none() { cheapest(&choices[..2]) } else { None };
        let Some(ends) = plain.or_else(|| cheapest(&choices)) else {
            let least = choices.iter().flatten().map(|c| u64::from(c.0)).min();
            return Err(least.unwrap_or(u64::MAX) - have);
        };
        if limit.is_some_and(|l| ends.cost >= l) {
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
        Some(if end == all || end == next {
            0
        } else if next <= all {
            broken(next - end)
        } else {
            odd(all - end)
        })
    }

    /// Notes whether more than `most` units are free but lie in granules that are partly used; `u64::MAX`: nobody asks.
    pub(crate) fn note_ragged(&mut self, maps: &Maps, most: u64) {
        self.ragged = false;
        if most == u64::MAX {
            return;
        }
        let mut part = 0u64;
        self.large.walk(maps, 1, |id| {
            let d = maps.desc(id);
            let (off, end) = (d.off(), d.off() + d.units());
            let (from, to) = whole_in(off, end);
            part += u64::from(if from > to { end - off } else { (from - off) + (end - to) });
            true
        });
        self.ragged = part > most;
    }
}
