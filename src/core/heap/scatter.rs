//! Scattered memory for a block that fits no hole, or whose best fit would break a granule: whole granules, and the free
//! ends of granules that are partly used. All methods work on a locked heap.

use super::super::desc::Id;
use super::super::tied::{Part, Tied, choose};
use super::super::units::{Extent, GranuleRun, LARGE_UNITS, LARGE_UNITS_SHIFT};
use super::granules::FreeBlock;
use super::{HeapState, LockedHeap};
use crate::base::boxed::try_push;
use std::ops::DerefMut;

/// [units] from which a block may be mapped over the ends of two granules without a whole granule between them; for
/// smaller blocks the driver calls cost more than the memory is worth.
const LEAST_OF_TWO: u32 = LARGE_UNITS / 4;

/// The lists of a search for memory, kept for reuse.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Heaps that have changed, and heaps that may have something.
    pub changed: Vec<u32>,
    pub givers: Vec<u32>,
    /// Free granules of one heap, and what was taken of them.
    pub free_runs: Vec<(GranuleRun, Id)>,
    pub taken: Vec<FreeBlock>,
    /// Ids out of the stock of the heap that takes them.
    pub ids: Vec<Id>,
    /// Idle ranges of addresses that may fit.
    pub idle: Vec<u32>,
    /// A `free_list`.
    pub free: Vec<FreeBlock>,
    /// Whole free granules.
    runs: Vec<GranuleRun>,
    /// Whole free ties, and those that are chosen.
    ties: Vec<GranuleRun>,
    chosen: Vec<GranuleRun>,
    edges: Edges,
    /// The pieces that were found, in the order of the block's addresses.
    pub pieces: Vec<Extent>,
    pub order: Vec<Extent>,
}

impl Scratch {
    /// Whether no search has used these lists.
    pub(crate) fn is_new(&self) -> bool {
        let lists =
            [self.changed.capacity(), self.givers.capacity(), self.runs.capacity(), self.free.capacity()];
        lists.into_iter().all(|n| n == 0)
    }
}

/// The free parts of granules that are partly used, by size.
#[derive(Debug, Default)]
struct Edges {
    /// At the end of a granule whose start is used.
    heads: Vec<Edge>,
    /// At the start of a granule whose end is used.
    tails: Vec<Edge>,
}

/// The free part of a granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Edge {
    units: u32,
    /// [units] the end of the granule that it touches: one past the last unit of a head, the first unit of a tail.
    at: u32,
}

/// Why [`LockedHeap::scatter`] found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unscattered {
    /// This many more whole granules are needed.
    Lacks(u64),
    /// It is possible, but costs too much.
    TooDear,
    /// There are no more ids.
    OutOfIds,
}

/// Which runs of free granules a block takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runs {
    /// The smallest, so that large ones stay whole for blocks that then need no mapping.
    SmallestFirst,
    /// The same, but as few as possible where the smallest would be more than [`FEW`].
    Few,
}

/// The number of pieces that may be mapped for a block even if fewer would be enough. Each piece is a call to the device.
///
/// Measured on the recorded programs (docs/decisions/mapping.md): 2 instead of 3 costs one program 0.4 % of the device, and 8
/// saves hardly any calls.
const FEW: usize = 3;

/// By size, of equal ones the lowest first. One sort for both orders: the standard library's is 7 KB of code for each.
#[inline(never)]
fn sort_by_size(runs: &mut [GranuleRun], largest_first: bool) {
    let flip = if largest_first { u32::MAX } else { 0 };
    runs.sort_unstable_by_key(|r| (r.count ^ flip, r.first));
}

/// Adds the smallest of `runs` to `pieces` until they have `units`.
fn smallest_first(runs: &mut [GranuleRun], units: u32, pieces: &mut Vec<Extent>) {
    sort_by_size(runs, false);
    let mut left = units;
    for run in runs.iter() {
        let units = left.min(run.extent().units);
        if units > 0 {
            pieces.push(Extent::new(run.extent().off, units));
        }
        left -= units;
    }
}

/// Adds as few of `runs` to `pieces` as have `units` together.
fn fewest(runs: &mut [GranuleRun], units: u32, pieces: &mut Vec<Extent>) {
    sort_by_size(runs, true);
    let mut left = units;
    let mut rest = &runs[..];
    while let [run, smaller @ ..] = rest {
        // Those of the smallest size that is enough; the lowest of them.
        let enough = rest.partition_point(|r| r.extent().units >= left);
        if let Some(count) = enough.checked_sub(1).map(|i| rest[i].count) {
            let lowest = rest.partition_point(|r| r.count > count);
            pieces.push(Extent::new(rest[lowest].extent().off, left));
            return;
        }
        pieces.push(run.extent());
        left -= run.extent().units;
        rest = smaller;
    }
}

/// Parts of granules at the two ends of a block, and the cost of taking them.
#[derive(Clone, Copy, Default)]
struct Ends {
    head: Option<Extent>,
    tail: Option<Extent>,
    cost: u32,
}

/// The cost of breaking a granule, of which `left` units remain and can still serve. A remainder of a whole granule costs
/// a little less than one of a part, for the same size.
fn cost_of_breaking(left: u32) -> u32 {
    if left == LARGE_UNITS { 0 } else { 3 + left * 9 / 10 }
}

/// The cost of the remainder of what was a part of a granule already.
fn cost_of_remainder(left: u32) -> u32 {
    1 + left
}

/// The cost of taking `units` of the part of a granule that is free, `have` units up to its end or from its start.
pub(super) fn cost_of_end(have: u32, units: u32) -> u32 {
    match have {
        _ if units == LARGE_UNITS => 0,
        LARGE_UNITS => cost_of_breaking(LARGE_UNITS - units),
        _ => cost_of_remainder(have - units),
    }
}

impl Edges {
    /// Sorts the free memory that is in no tie into whole granules, heads and tails; returns the number of whole granules.
    /// What the host has no memory to list is left out.
    fn find(&mut self, free: &[FreeBlock], tied: &Tied, runs: &mut Vec<GranuleRun>) -> u64 {
        runs.clear();
        self.heads.clear();
        self.tails.clear();
        let mut sum = 0;
        for &FreeBlock { part, .. } in free {
            let (off, end) = (part.off, part.end());
            let (from, to) = (off.next_multiple_of(LARGE_UNITS), end & !(LARGE_UNITS - 1));
            if from > to {
                continue; // inside a granule
            }
            if let Some(run) = part.whole() {
                tied.cut(run, |part| {
                    if let Part::Loose(run) = part
                        && try_push(runs, run)
                    {
                        sum += u64::from(run.count);
                    }
                });
            }
            if off < from && !tied.is_tied(off >> LARGE_UNITS_SHIFT) {
                try_push(&mut self.heads, Edge { units: from - off, at: from });
            }
            if to < end && !tied.is_tied(to >> LARGE_UNITS_SHIFT) {
                try_push(&mut self.tails, Edge { units: end - to, at: to });
            }
        }
        self.heads.sort_unstable();
        self.tails.sort_unstable();
        sum
    }

    /// The smallest tail that has `need` units or, if `heads` is set, the smallest part of either kind; nothing for a
    /// need of 0.
    fn smallest(&self, need: u32, heads: bool) -> Option<Ends> {
        if need == 0 {
            return Some(Ends::default());
        }
        let least = |of: &[Edge]| of.get(of.partition_point(|p| p.units < need)).copied();
        let head = if heads { least(&self.heads) } else { None };
        match (head, least(&self.tails)) {
            (Some(h), t) if t.is_none_or(|t| h.units < t.units) => {
                let cost = cost_of_remainder(h.units - need);
                Some(Ends { head: Some(Extent::new(h.at - need, need)), tail: None, cost })
            }
            (_, Some(t)) => {
                let cost = cost_of_remainder(t.units - need);
                Some(Ends { head: None, tail: Some(Extent::new(t.at, need)), cost })
            }
            _ => None,
        }
    }

    /// A complete head and a tail that have `need` units together, and as little as possible beyond that.
    fn pair(&self, need: u32) -> Option<Ends> {
        let mut best: Option<(u32, Ends)> = None;
        let mut t = self.tails.len();
        for &Edge { units: room, at: end } in self.heads.iter().filter(|h| h.units < need) {
            // The larger the head, the smaller the tail may be.
            while t > 0 && room + self.tails[t - 1].units >= need {
                t -= 1;
            }
            if let Some(tail) = self.tails.get(t) {
                let beyond = room + tail.units - need;
                if best.is_none_or(|b| beyond < b.0) {
                    let head = Some(Extent::new(end - room, room));
                    let tail = Some(Extent::new(tail.at, need - room));
                    best = Some((beyond, Ends { head, tail, cost: 1 + cost_of_remainder(beyond) }));
                }
            }
        }
        best.map(|b| b.1)
    }
}

impl<G: DerefMut<Target = HeapState>> LockedHeap<'_, G> {
    /// Finds memory for a block of `units`: whole free granules, after them the free start of a granule whose end is
    /// used, and before them the free end of one whose start is used. Without a `limit`, free ends are used only if
    /// nothing else works: they allow more combinations, which seldom recur. With a limit, the cheapest combination is
    /// used (see [`fit_cost`](Self::fit_cost)) if it costs less than that. On success everything is taken, linked by
    /// `next`, and listed in `pieces` in the order in which it is to be mapped; returns the first of the links.
    /// Otherwise nothing has changed.
    pub(crate) fn scatter(
        &mut self,
        units: u32,
        limit: Option<u32>,
        runs_of: Runs,
        scratch: &mut Scratch,
    ) -> Result<Id, Unscattered> {
        let Scratch { free, runs, edges, pieces, order, .. } = scratch;
        self.free_list(free);
        let have = edges.find(free, self.shared.tied, runs);
        let (whole, rest) = (units >> LARGE_UNITS_SHIFT, units & (LARGE_UNITS - 1));
        let two = |need| if units >= LEAST_OF_TWO { edges.pair(need) } else { None };
        let breaking = Ends { cost: cost_of_breaking(LARGE_UNITS - rest), ..Ends::default() };
        // The number of whole granules, and what is used at their ends; the first two use no head.
        let choices = [
            edges.smallest(rest, false).map(|ends| (whole, ends)),
            Some((whole + u32::from(rest > 0), breaking)),
            edges.smallest(rest, true).map(|ends| (whole, ends)),
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
            return Err(least.map_or(Unscattered::OutOfIds, |least| Unscattered::Lacks(least - have)));
        };
        if limit.is_some_and(|l| ends.cost >= l) {
            return Err(Unscattered::TooDear);
        }
        pieces.clear();
        if pieces.try_reserve(runs.len() + 2).is_err() {
            return Err(Unscattered::Lacks(u64::from(whole)));
        }
        pieces.extend(ends.head);
        let at_ends = |part: Option<Extent>| part.map_or(0, |p| p.units);
        let left = units - at_ends(ends.head) - at_ends(ends.tail);
        let at_head = pieces.len();
        smallest_first(runs, left, pieces);
        if runs_of == Runs::Few && pieces.len() - at_head > FEW {
            pieces.truncate(at_head);
            fewest(runs, left, pieces);
        }
        pieces.extend(ends.tail);
        self.take_pieces(free, pieces, order).ok_or(Unscattered::OutOfIds)
    }

    /// The same of whole granules, with ties that are wholly free among them, each as a whole. As few granules as possible
    /// remain free in the last tie, where they serve in place: no more than `most_left`.
    pub(crate) fn scatter_ties(
        &mut self,
        units: u32,
        most_left: u64,
        scratch: &mut Scratch,
    ) -> Result<Id, Unscattered> {
        let Scratch { free, runs, ties, chosen, pieces, order, .. } = scratch;
        self.free_list(free);
        runs.clear();
        ties.clear();
        let (mut loose, mut have) = (0, 0);
        for run in free.iter().filter_map(|f| f.part.whole()) {
            self.shared.tied.cut(run, |part| match part {
                Part::Loose(run) if try_push(runs, run) => loose += u64::from(run.count),
                Part::Tie(run) if try_push(ties, run) => have += u64::from(run.count),
                _ => {}
            });
        }
        let wanted = u64::from(units.div_ceil(LARGE_UNITS));
        if loose + have < wanted {
            return Err(Unscattered::Lacks(wanted - loose - have));
        }
        chosen.clear();
        pieces.clear();
        if chosen.try_reserve(ties.len()).is_err() || pieces.try_reserve(ties.len() + runs.len()).is_err() {
            return Err(Unscattered::Lacks(wanted));
        }
        choose(ties, |t| *t, loose, wanted, chosen);
        let sum = |of: &[GranuleRun]| of.iter().map(|t| u64::from(t.count)).sum::<u64>();
        // The ties come first in the block.
        if sum(chosen).saturating_sub(wanted) > most_left
            && let [before @ .., _] = &chosen[..]
        {
            return Err(Unscattered::Lacks(wanted.saturating_sub(loose + sum(before))));
        }
        pieces.clear();
        let mut left = units;
        for tie in chosen.iter() {
            let all = tie.extent();
            pieces.push(Extent::new(all.off, all.units.min(left)));
            left -= all.units.min(left);
        }
        smallest_first(runs, left, pieces);
        self.take_pieces(free, pieces, order).ok_or(Unscattered::OutOfIds)
    }

    /// What a best fit costs: how much free memory becomes hard to use, in units. 0 if it leaves nothing or only whole
    /// granules. `None`: nothing fits.
    pub(crate) fn fit_cost(&self, units: u32) -> Option<u32> {
        let maps = self.maps();
        let d = maps.desc(Some(self.large().find(units)).filter(|&id| id != 0)?);
        let (end, all) = (d.off() + units, d.off() + d.units());
        let next = end.next_multiple_of(LARGE_UNITS);
        Some(if end == all || end == next {
            0
        } else if next <= all {
            cost_of_breaking(next - end)
        } else {
            cost_of_remainder(all - end)
        })
    }

    /// Notes whether more than `most` units are free in partly used granules, beside those of ties; `u64::MAX`: nobody
    /// needs to know.
    pub(crate) fn note_ragged(&mut self, most: u64) {
        self.state.ragged = false;
        if most == u64::MAX || self.state.contiguous {
            return;
        }
        let maps = self.maps();
        let mut part = 0u64;
        self.large().walk(1, |id| {
            let d = maps.desc(id);
            let free = Extent::new(d.off(), d.units());
            let whole = free.whole().map_or(0, |run| run.extent().units);
            // Its ends may lie in ties, which serve only in place.
            let ends = u64::from(free.units - whole);
            part += if ends > 0 { self.shared.tied.beside(free, ends) } else { 0 };
            true
        });
        self.state.ragged = part > most;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn runs(counts: &[u32]) -> Vec<GranuleRun> {
        let mut first = 0;
        let run = |&count: &u32| {
            let run = GranuleRun::new(first, count);
            first = run.end() + 1;
            run
        };
        counts.iter().map(run).collect()
    }

    fn pieces(counts: &[u32], units: u32) -> Vec<(u32, u32)> {
        let mut pieces = Vec::new();
        fewest(&mut runs(counts), units, &mut pieces);
        pieces.iter().map(|p| (p.off / LARGE_UNITS, p.units)).collect()
    }

    const G: u32 = LARGE_UNITS;

    #[test]
    fn the_smallest_run_that_is_enough_comes_last_and_the_lowest_of_equal_ones() {
        assert_eq!(pieces(&[4, 2, 3, 2], 2 * G), [(5, 2 * G)]);
        assert_eq!(pieces(&[1, 1, 4, 2, 2], 6 * G), [(4, 4 * G), (9, 2 * G)]);
        // A granule of which only a part is needed.
        assert_eq!(pieces(&[1, 3, 1], 3 * G + 5), [(2, 3 * G), (0, 5)]);
    }

    proptest! {
        #[test]
        fn no_smaller_number_of_runs_would_do(counts in prop::collection::vec(1u32..9, 1..8), part in 1u32..1000) {
            let all: u32 = counts.iter().sum();
            let units = (all * G) * part / 1000 + 1;
            let taken = pieces(&counts, units);
            prop_assert_eq!(taken.iter().map(|p| p.1).sum::<u32>(), units);
            let mut largest = counts.clone();
            largest.sort_unstable_by(|a, b| b.cmp(a));
            let fewer: u32 = largest.iter().take(taken.len() - 1).sum();
            prop_assert!(fewer * G < units, "{:?} for {} of {:?}", taken, units, counts);
            // All are different runs, and none is overrun.
            let of = runs(&counts);
            let whose = |at| of.iter().find(|r| r.first == at).map(|r| r.count * G);
            prop_assert!(taken.iter().all(|&(at, units)| whose(at).is_some_and(|all| units <= all)));
            let mut starts: Vec<u32> = taken.iter().map(|p| p.0).collect();
            starts.sort_unstable();
            starts.dedup();
            prop_assert_eq!(starts.len(), taken.len());
        }
    }
}
