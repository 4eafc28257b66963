//! The ties of a device: runs of granules that have one physical allocation together (`tied.rs`).

use super::super::super::tied::Tied;
use super::super::super::units::GranuleRun;
use crate::base::ordered::Map;
use std::sync::Arc;

/// One tie, by its first granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tie {
    count: u32,
    /// The number behind it stays empty, so that no block lies across its end.
    apart: bool,
}

/// A part of a run of granules, and the tie that it lies in, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub run: GranuleRun,
    pub tie: Option<GranuleRun>,
}

impl Piece {
    /// Whether it is loose, or all of a tie.
    pub(crate) fn is_whole(&self) -> bool {
        self.tie.is_none_or(|tie| tie == self.run)
    }
}

/// All ties. A tie exists as long as its numbers are taken, also while its memory sleeps.
#[derive(Default)]
pub(crate) struct Ties {
    all: Map<u32, Tie>,
    /// The same for those who do not hold the growth lock.
    tied: Arc<Tied>,
}

impl Ties {
    pub(super) fn new(tied: Arc<Tied>) -> Ties {
        Ties { tied, ..Ties::default() }
    }

    /// Enters a new tie. With `apart`, the number behind it stays empty, so that no block lies across its end.
    pub(crate) fn enter(&mut self, run: GranuleRun, apart: bool) {
        self.all.insert(run.first, Tie { count: run.count, apart });
        self.tied.enter(run);
    }

    /// Removes a tie that has gone back to the device; returns the numbers that it had. `run` may also be granules in no
    /// tie.
    pub(super) fn forget(&mut self, run: GranuleRun) -> GranuleRun {
        match self.all.remove(&run.first) {
            Some(tie) => {
                self.tied.leave(run);
                GranuleRun::new(run.first, run.count + u32::from(tie.apart))
            }
            None => run,
        }
    }

    /// The tie of a granule, if it is in one.
    pub(crate) fn of(&self, granule: u32) -> Option<GranuleRun> {
        let (&first, tie) = self.all.range(..=granule).next_back()?;
        (granule < first + tie.count).then_some(GranuleRun::new(first, tie.count))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Cuts a run of granules where ties begin and end.
    pub(crate) fn cut(&self, run: GranuleRun) -> Vec<Piece> {
        let (mut at, mut pieces) = (run.first, Vec::new());
        while at < run.end() {
            let tie = self.of(at);
            let next = match tie {
                Some(tie) => tie.end(),
                None => self.all.range(at..).next().map_or(u32::MAX, |t| *t.0),
            };
            let end = next.min(run.end());
            pieces.push(Piece { run: GranuleRun::new(at, end - at), tie });
            at = end;
        }
        pieces
    }

    /// The numbers that a run has: with the empty one behind it, if it is such a tie.
    pub(super) fn numbers_of(&self, run: GranuleRun) -> GranuleRun {
        let apart = self.all.get(&run.first).is_some_and(|t| t.count == run.count && t.apart);
        GranuleRun::new(run.first, run.count + u32::from(apart))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn runs_are_cut_where_ties_begin_and_end() {
        let mut ties = Ties::default();
        let (a, b) = (GranuleRun::new(10, 4), GranuleRun::new(14, 3));
        ties.enter(a, true);
        ties.enter(b, false);
        let run = GranuleRun::new;
        let cut = |ties: &Ties, r| ties.cut(r).into_iter().map(|p| (p.run, p.tie)).collect::<Vec<_>>();
        assert_eq!(
            cut(&ties, run(5, 14)),
            [(run(5, 5), None), (a, Some(a)), (b, Some(b)), (run(17, 2), None)]
        );
        assert_eq!(cut(&ties, run(12, 3)), [(run(12, 2), Some(a)), (run(14, 1), Some(b))]);
        assert_eq!((ties.numbers_of(a), ties.numbers_of(b)), (run(10, 5), b));
        assert_eq!((ties.forget(a), ties.forget(b)), (run(10, 5), b));
        assert_eq!(cut(&ties, run(5, 14)), [(run(5, 14), None)]);
    }
}
