//! The heaps that may have free granules: those that had some when last searched, and those that may have changed since.
//! A search for memory visits no others.

use crate::base::sort;

/// Heaps by pool and number.
#[derive(Default)]
pub(crate) struct Stock {
    /// Pool and heap, in order. A list, as it can say that the host has no memory, and needs none for what was there before.
    heaps: Vec<(u32, u32)>,
}

impl Stock {
    /// Notes that a heap of a pool may have free granules. `false`: the host has no memory for the note.
    pub(crate) fn note(&mut self, pool: u32, heap: u32) -> bool {
        let Err(at) = self.heaps.binary_search(&(pool, heap)) else { return true };
        let has_room = self.heaps.try_reserve(1).is_ok();
        if has_room {
            self.heaps.insert(at, (pool, heap));
        }
        has_room
    }

    /// Notes that it has none.
    pub(crate) fn forget(&mut self, pool: u32, heap: u32) {
        if let Ok(at) = self.heaps.binary_search(&(pool, heap)) {
            self.heaps.remove(at);
        }
    }

    /// Forgets all heaps of a pool.
    pub(super) fn forget_pool(&mut self, pool: u32) {
        self.heaps.retain(|s| s.0 != pool);
    }

    /// Stores the numbers of the heaps of a pool that may have free granules in `into`.
    pub(crate) fn of_pool(&self, pool: u32, into: &mut Vec<u32>) {
        into.clear();
        let from = self.heaps.partition_point(|s| s.0 < pool);
        into.extend(self.heaps[from..].iter().take_while(|s| s.0 == pool).map(|s| s.1));
    }

    /// The same for the heaps of all other pools.
    pub(crate) fn of_others(&self, pool: u32, into: &mut Vec<u32>) {
        into.clear();
        into.extend(self.heaps.iter().filter(|s| s.0 != pool).map(|s| s.1));
        sort::by_key(into, |&i| i);
    }
}
