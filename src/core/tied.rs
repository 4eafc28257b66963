//! Which granules lie in a tie.
//!
//! A *tie* is a run of granules that the device has given as one physical allocation, which spares calls. Its granules go
//! back to the device only together, and can be mapped at other addresses only together. A free part of a tie therefore
//! serves only in place, at the addresses that it has. Granules in no tie are *loose*.
//!
//! The growth lock guards the list of ties (`state/growth/ties.rs`). The marks here say the same without that lock: a mark
//! changes only while no heap owns the granule, so whoever holds the owner's lock may rely on it.

use super::units::{Extent, GranuleRun, LARGE_UNITS, LARGE_UNITS_SHIFT};
use crate::base::error::Result;
use crate::base::mapped_array::MappedArray;
use crate::base::sort;
use crate::base::sync::{AtomicU32, Ordering, Ordering::Relaxed};

/// For each granule the end of its tie; 0: it is in none. The marks take no memory until the first tie is made.
#[derive(Default)]
pub(crate) struct Tied {
    count: AtomicU32, // ties
    ends: Option<MappedArray<AtomicU32>>,
}

/// A part of a run of granules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// In no tie.
    Loose(GranuleRun),
    /// All of a tie.
    Tie(GranuleRun),
    /// Some of a tie.
    Cut(GranuleRun),
}

impl Tied {
    /// Marks for so many granules.
    pub(crate) fn new(real: u32) -> Result<Tied> {
        Ok(Tied { count: AtomicU32::new(0), ends: Some(MappedArray::new(real as usize)?) })
    }

    fn mark(&self, tie: GranuleRun, end: u32) {
        let each = |g: u32| self.ends.as_ref().and_then(|e| e.get(g as usize));
        tie.granules().filter_map(each).for_each(|e| e.store(end, Relaxed));
    }

    /// Marks the granules of a new tie.
    pub(crate) fn enter(&self, tie: GranuleRun) {
        self.mark(tie, tie.end());
        // Release: a thread that sees the count sees the marks. Pairs with the Acquire in `any`.
        self.count.fetch_add(1, Ordering::Release);
    }

    /// Removes the marks of a tie.
    pub(crate) fn leave(&self, tie: GranuleRun) {
        self.mark(tie, 0);
        self.count.fetch_sub(1, Relaxed);
    }

    /// Drops the marks, and the memory that they take: the device has ended.
    pub(crate) fn discard(&self) {
        self.count.store(0, Relaxed);
        self.ends.as_ref().inspect(|e| e.discard());
    }

    /// Whether there is any tie.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// The end of the granule's tie; 0: it is in none.
    fn end(&self, granule: u32) -> u32 {
        self.ends.as_ref().and_then(|e| e.get(granule as usize)).map_or(0, |e| e.load(Relaxed))
    }

    /// The granules that must be mapped so that a run is: if it ends in a tie, all of that tie.
    pub(crate) fn mapped_for(&self, run: GranuleRun) -> GranuleRun {
        let last = if self.any() && run.count > 0 { self.end(run.end() - 1) } else { 0 };
        GranuleRun::new(run.first, last.max(run.end()) - run.first)
    }

    /// Whether the granule lies in a tie.
    pub(crate) fn is_tied(&self, granule: u32) -> bool {
        self.any() && self.end(granule) != 0
    }

    /// Calls `each` for the parts of a run, in order.
    pub(crate) fn cut(&self, run: GranuleRun, mut each: impl FnMut(Part)) {
        if !self.any() {
            return each(Part::Loose(run));
        }
        let mut at = run.first;
        while at < run.end() {
            let tie = self.end(at);
            let mut end = at + 1;
            if tie == 0 {
                while end < run.end() && self.end(end) == 0 {
                    end += 1;
                }
                each(Part::Loose(GranuleRun::new(at, end - at)));
            } else {
                let begins = at == 0 || self.end(at - 1) != tie;
                end = tie.min(run.end());
                let part = GranuleRun::new(at, end - at);
                each(if begins && end == tie { Part::Tie(part) } else { Part::Cut(part) });
            }
            at = end;
        }
    }

    /// How many units of a free extent lie in granules that it has only parts of and that are in no tie. `ends` is their
    /// number if no granule is in a tie.
    pub(crate) fn beside(&self, free: Extent, ends: u64) -> u64 {
        if !self.any() {
            return ends;
        }
        let (off, end) = (free.off, free.end());
        let (from, to) = (off.next_multiple_of(LARGE_UNITS), end & !(LARGE_UNITS - 1));
        if from > to {
            return if self.is_tied(off >> LARGE_UNITS_SHIFT) { 0 } else { ends }; // inside a granule
        }
        let loose = |unit: u32, n: u32| if n == 0 || self.is_tied(unit >> LARGE_UNITS_SHIFT) { 0 } else { n };
        u64::from(loose(off, from - off) + loose(to, end - to))
    }

    /// How many granules of a run lie in no tie, or in ties that are wholly in the run.
    pub(crate) fn free_in(&self, run: GranuleRun) -> u64 {
        let mut sum = 0;
        self.cut(run, |part| match part {
            Part::Loose(run) | Part::Tie(run) => sum += u64::from(run.count),
            Part::Cut(_) => {}
        });
        sum
    }
}

/// Chooses free ties where `wanted` granules are needed and only `loose` ones are free outside of ties: the smallest tie
/// that is enough, otherwise the largest, and so on. Only the last one may bring more than is wanted. The chosen ones go
/// from `ties` to `chosen`, in place of what was there; `run` returns the granules of a tie.
pub(crate) fn choose<T>(
    ties: &mut Vec<T>,
    run: impl Fn(&T) -> GranuleRun,
    loose: u64,
    wanted: u64,
    chosen: &mut Vec<T>,
) {
    chosen.clear();
    sort::by_key(ties, |t| (run(t).count, run(t).first));
    let mut lacks = wanted.saturating_sub(loose);
    while lacks > 0
        && let Some(last) = ties.len().checked_sub(1)
    {
        let enough = ties.partition_point(|t| u64::from(run(t).count) < lacks);
        let tie = ties.remove(enough.min(last));
        lacks = lacks.saturating_sub(run(&tie).count.into());
        chosen.push(tie);
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn of_free_ties_the_smallest_that_are_enough_are_chosen() {
        let ties =
            [GranuleRun::new(0, 8), GranuleRun::new(10, 2), GranuleRun::new(20, 8), GranuleRun::new(30, 4)];
        let chosen = |loose, wanted| {
            let mut left = ties.to_vec();
            let mut chosen = Vec::new();
            choose(&mut left, |t| *t, loose, wanted, &mut chosen);
            assert_eq!(left.len() + chosen.len(), 4);
            chosen.into_iter().map(|t| t.first).collect::<Vec<_>>()
        };
        assert_eq!((chosen(0, 1), chosen(0, 3), chosen(0, 8)), (vec![10], vec![30], vec![0]));
        assert_eq!((chosen(3, 3), chosen(3, 5), chosen(1, 9)), (vec![], vec![10], vec![0]));
        assert_eq!((chosen(0, 19), chosen(0, 99)), (vec![20, 0, 30], vec![20, 0, 30, 10]));
    }

    #[test]
    fn a_run_that_ends_in_a_tie_is_mapped_with_all_of_it() {
        let tied = Tied::new(40).unwrap();
        let run = GranuleRun::new;
        assert_eq!(tied.mapped_for(run(3, 2)), run(3, 2));
        tied.enter(run(10, 4));
        assert_eq!((tied.mapped_for(run(10, 2)), tied.mapped_for(run(10, 4))), (run(10, 4), run(10, 4)));
        assert_eq!(tied.mapped_for(run(8, 2)), run(8, 2));
        tied.discard();
        assert!(!tied.any() && !tied.is_tied(10));
    }

    #[test]
    fn a_run_is_cut_into_what_is_tied_and_what_is_not() {
        let tied = Tied::new(40).unwrap();
        let run = GranuleRun::new;
        let cut = |at, n| {
            let mut parts = Vec::new();
            tied.cut(run(at, n), |p| parts.push(p));
            parts
        };
        assert_eq!(cut(3, 9), [Part::Loose(run(3, 9))]);
        let (a, b) = (run(10, 4), run(14, 3));
        [a, b].into_iter().for_each(|t| tied.enter(t));
        assert_eq!(cut(5, 14), [Part::Loose(run(5, 5)), Part::Tie(a), Part::Tie(b), Part::Loose(run(17, 2))]);
        assert_eq!(cut(12, 4), [Part::Cut(run(12, 2)), Part::Cut(run(14, 2))]);
        assert_eq!((tied.free_in(run(5, 14)), tied.free_in(run(12, 5))), (14, 3));
        assert!(tied.is_tied(13) && !tied.is_tied(17));
        // Half a granule at each end, the second in a tie.
        let half = LARGE_UNITS / 2;
        let beside = |granule: u32| tied.beside(Extent::new(granule * LARGE_UNITS + half, LARGE_UNITS), 128);
        assert_eq!((beside(7), beside(9), beside(10), beside(16)), (128, 64, 0, 64));
        tied.leave(a);
        assert_eq!(cut(9, 8), [Part::Loose(run(9, 5)), Part::Tie(b)]);
        tied.leave(b);
        assert!(!tied.any());
    }
}
