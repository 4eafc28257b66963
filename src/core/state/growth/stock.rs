//! The heaps that may have free granules: those that had some when last searched, and those that may have changed since.
//! A search for memory visits no others.

use crate::base::ordered::Set;
use crate::base::sort;

/// Heaps by pool and number.
#[derive(Default)]
pub(crate) struct Stock {
    heaps: Set<(u32, u32)>, // pool, heap
}

impl Stock {
    /// Notes that a heap of a pool may have free granules.
    pub(crate) fn note(&mut self, pool: u32, heap: u32) {
        self.heaps.insert((pool, heap));
    }

    /// Notes that it has none.
    pub(crate) fn forget(&mut self, pool: u32, heap: u32) {
        self.heaps.remove(&(pool, heap));
    }

    /// Forgets all heaps of a pool.
    pub(super) fn forget_pool(&mut self, pool: u32) {
        let gone: Vec<_> = self.heaps.range((pool, 0)..=(pool, u32::MAX)).collect();
        gone.iter().for_each(|s| _ = self.heaps.remove(s));
    }

    /// Stores the numbers of the heaps of a pool that may have free granules in `into`.
    pub(crate) fn of_pool(&self, pool: u32, into: &mut Vec<u32>) {
        into.clear();
        into.extend(self.heaps.range((pool, 0)..=(pool, u32::MAX)).map(|s| s.1));
    }

    /// The same for the heaps of all other pools.
    pub(crate) fn of_others(&self, pool: u32, into: &mut Vec<u32>) {
        into.clear();
        into.extend(self.heaps.iter().filter(|s| s.0 != pool).map(|s| s.1));
        sort::by_key(into, |&i| i);
    }
}
