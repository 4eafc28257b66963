//! Which granules lie in a tie, for those who look without the growth lock.

use super::units::{Extent, GranuleRun, LARGE_UNITS, LARGE_UNITS_SHIFT};
use crate::base::sync::{AtomicU32, Ordering, Ordering::Relaxed};
use std::sync::OnceLock;

/// For each granule the end of its tie; 0: it is in none. A mark changes only while no heap owns the granule. Nothing is
/// kept until the first tie is made.
#[derive(Debug, Default)]
pub(crate) struct Tied {
    real: u32,
    count: AtomicU32, // ties
    ends: OnceLock<Box<[AtomicU32]>>,
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
    pub(crate) fn new(real: u32) -> Tied {
        Tied { real, ..Tied::default() }
    }

    /// Marks the granules of a new tie.
    pub(crate) fn enter(&self, tie: GranuleRun) {
        let make = || (0..self.real).map(|_| AtomicU32::new(0)).collect();
        let ends = self.ends.get_or_init(make);
        tie.granules().filter_map(|g| ends.get(g as usize)).for_each(|e| e.store(tie.end(), Relaxed));
        // Release: who sees the count sees the marks.
        self.count.fetch_add(1, Ordering::Release);
    }

    /// Removes the marks of a tie.
    pub(crate) fn leave(&self, tie: GranuleRun) {
        let ends = self.ends.get().map_or(&[][..], |e| e);
        tie.granules().filter_map(|g| ends.get(g as usize)).for_each(|e| e.store(0, Relaxed));
        self.count.fetch_sub(1, Relaxed);
    }

    /// Whether there is any tie.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// The end of the granule's tie; 0: it is in none.
    fn end(&self, granule: u32) -> u32 {
        self.ends.get().and_then(|e| e.get(granule as usize)).map_or(0, |e| e.load(Relaxed))
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

    /// Of `ends` units at the two ends of a free extent, in granules of which others have the rest: those in no tie.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_cut_into_what_is_tied_and_what_is_not() {
        let tied = Tied::new(40);
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
