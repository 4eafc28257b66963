//! What of the pools sleeps: granules that went back to the device, and the ranges of addresses that show nothing until
//! they come again.

use super::super::aliases::Pieces;
use super::super::units::GranuleRun;
use std::collections::BTreeMap;

/// What sleeps of a pool.
#[derive(Debug, Default)]
pub(crate) struct Asleep {
    pub runs: Vec<GranuleRun>,
    /// Addresses that show some of them, and the pieces that they show.
    pub shown: Vec<(GranuleRun, Pieces)>,
    /// What they held is kept.
    pub saved: bool,
}

impl Asleep {
    pub(crate) fn granules(&self) -> u64 {
        self.runs.iter().map(|r| u64::from(r.count)).sum()
    }

    pub(crate) fn has(&self, granule: u32) -> bool {
        let at = self.runs.partition_point(|r| r.first <= granule);
        at > 0 && granule < self.runs[at - 1].end()
    }
}

/// What sleeps, by pool.
pub(crate) type Sleepers = BTreeMap<u32, Asleep>;
