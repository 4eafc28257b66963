//! What the statistics in full remember from one reading to the next.

use crate::base::boxed::has_room;
use crate::base::error::{Result, no_host_memory};
use crate::base::sync::system::{Mutex, lock};
use crate::core::{Flow, MemoryStats, PoolId, Split};
use std::collections::BTreeMap;

type All = BTreeMap<Option<PoolId>, Seen>;

/// See the head of this file; of the device (`None`) and of pools.
#[derive(Default)]
pub(super) struct Readings(Mutex<All>);

/// \[B\] the most that one more entry needs: a node on each level of the tree, of which there are no more for so many pools.
const NODES: usize = 6 * 12 * size_of::<(Option<PoolId>, Seen)>();

#[derive(Default)]
struct Seen {
    /// Statistics at the last reset of what is accumulated.
    before: MemoryStats,
    inactive: Split,
    inactive_bytes: Split,
}

/// What has been seen of a pool, or of the device; `OutOfMemory` if that is the first time, and the host has no room for it.
fn entry(all: &mut All, pool: Option<PoolId>) -> Result<&mut Seen> {
    if !all.contains_key(&pool) && !has_room(NODES) {
        return Err(no_host_memory());
    }
    Ok(all.entry(pool).or_default())
}

/// A reading has found `now`: what the readings have seen of it so far.
fn follow(seen: &mut Split, now: &Split) {
    for (seen, now) in [
        (&mut seen.all, now.all),
        (&mut seen.large_pool, now.large_pool),
        (&mut seen.small_pool, now.small_pool),
    ] {
        let (was, is) = (seen.current, now.current);
        *seen = Flow {
            current: is,
            peak: seen.peak.max(is),
            allocated: seen.allocated + is.saturating_sub(was),
            freed: seen.freed + was.saturating_sub(is),
        };
    }
}

fn restart(seen: &mut Split) {
    for flow in [&mut seen.all, &mut seen.large_pool, &mut seen.small_pool] {
        flow.peak = flow.current;
    }
}

impl Readings {
    /// Enters what was just read; the answer is what the caller is told.
    pub(super) fn enter(&self, pool: Option<PoolId>, mut m: MemoryStats) -> Result<MemoryStats> {
        let mut all = lock(&self.0);
        let seen = entry(&mut all, pool)?;
        follow(&mut seen.inactive, &m.inactive_split);
        follow(&mut seen.inactive_bytes, &m.inactive_split_bytes);
        m.inactive_split = seen.inactive;
        m.inactive_split_bytes = seen.inactive_bytes;
        Ok(m.since(&seen.before))
    }

    pub(super) fn reset_accumulated(&self, pool: Option<PoolId>, mut m: MemoryStats) -> Result<()> {
        let mut all = lock(&self.0);
        let seen = entry(&mut all, pool)?;
        m.inactive_split = seen.inactive;
        m.inactive_split_bytes = seen.inactive_bytes;
        seen.before = m;
        Ok(())
    }

    pub(super) fn reset_peaks(&self, pool: Option<PoolId>) {
        if let Some(seen) = lock(&self.0).get_mut(&pool) {
            restart(&mut seen.inactive);
            restart(&mut seen.inactive_bytes);
        }
    }

    pub(super) fn forget(&self, pool: PoolId) {
        lock(&self.0).remove(&Some(pool));
    }
}
