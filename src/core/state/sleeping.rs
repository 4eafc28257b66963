//! Sleeping memory of pools: granules that went back to the device, and the address ranges where nothing is mapped
//! until they return.

use super::super::aliases::Shown;
use super::super::units::GranuleRun;
use crate::base::ordered::Map;

/// The sleeping memory of a pool.
#[derive(Debug, Default)]
pub(crate) struct SleepingMemory {
    pub runs: Vec<GranuleRun>,
    /// Chunks among them.
    pub chunks: u64,
    /// Address ranges in which some of the granules were mapped.
    pub shown: Vec<Shown>,
    /// Their contents were saved.
    pub saved: bool,
}

impl SleepingMemory {
    pub(crate) fn granules(&self) -> u64 {
        self.runs.iter().map(|r| u64::from(r.count)).sum()
    }

    pub(crate) fn has(&self, granule: u32) -> bool {
        let at = self.runs.partition_point(|r| r.first <= granule);
        at > 0 && granule < self.runs[at - 1].end()
    }
}

/// Sleeping memory, by pool.
pub(crate) type SleepingPools = Map<u32, SleepingMemory>;
