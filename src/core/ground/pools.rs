//! The pools of a pond: found by id, and made. A pool's slot is used again after its end, under an id that no pool had.

use super::super::heap::Heap;
use super::super::types::{POOL_SLOTS, PoolId};
use super::Ground;
use super::pool::Pool;
use crate::base::error::{Code, Error, Result};
use crate::base::sync::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use crate::fail;

/// How many other pools must end before a pool's slot is used again. A thread that looked the pool up just before its end
/// and is still on its way then hardly ever finds another pool there, so it hardly ever has to be refused.
const RESTING: usize = 64;

impl Ground {
    /// The pool with that id, if it is live.
    pub(crate) fn pool(&self, id: PoolId) -> Option<&'static Pool> {
        self.pools.get((id.0 % POOL_SLOTS) as usize).filter(|p| p.id() == id.0)
    }

    /// The pool with that id; an error if it is not live.
    pub(crate) fn live_pool(&self, id: PoolId) -> Result<&'static Pool> {
        match self.pool(id) {
            Some(p) => Ok(p),
            None => Err(Error::new(Code::InvalidArgument, "no such pool, or it was destroyed")),
        }
    }

    /// All pools, including slots of pools that have ended.
    pub(crate) fn all_pools(&self) -> impl Iterator<Item = &'static Pool> {
        (0..self.pool_count.load(Acquire)).filter_map(|i| self.pools.get(i as usize))
    }

    /// The live pools, by number.
    pub(crate) fn live_pools(&self) -> Vec<PoolId> {
        let ids = self.all_pools().map(|p| PoolId(p.id()));
        let mut live: Vec<PoolId> = ids.filter(|&id| self.pool(id).is_some()).collect();
        live.sort_unstable();
        live
    }

    /// Whether the heap's memory must stay where it is.
    pub(crate) fn is_pinned(&self, heap: &Heap) -> bool {
        self.pool(PoolId(heap.pool())).is_some_and(Pool::is_pinned)
    }

    /// Whether each block of the pool lies in one physical allocation.
    pub(crate) fn is_contiguous(&self, pool: u32) -> bool {
        self.pool(PoolId(pool)).is_some_and(Pool::is_contiguous)
    }

    /// Whether the pool sleeps.
    pub(crate) fn sleeps(&self, pool: PoolId) -> bool {
        self.pool(pool).is_some_and(Pool::sleeps)
    }

    /// Makes a pool; `limit` bounds its reserved bytes, 0 means no limit. `contiguous`: each of its blocks lies in one
    /// physical allocation.
    pub(crate) fn new_pool(&self, limit: u64, contiguous: bool) -> Result<PoolId> {
        let mut ledger = self.ledger();
        let i = self.pool_count.load(Relaxed);
        let spare = match ledger.spare_pools.len() > RESTING || i >= POOL_SLOTS - 1 {
            true => ledger.spare_pools.pop_front(),
            false => None,
        };
        let id = match spare {
            Some(id) => id,
            None => {
                if i >= POOL_SLOTS - 1 || self.pools.put(i as usize, Pool::new()).is_err() {
                    fail!(Code::OutOfMemory, "more than {} pools on one device", POOL_SLOTS - 1);
                }
                self.pool_count.store(i + 1, Release);
                i
            }
        };
        if let Some(p) = self.pools.get((id % POOL_SLOTS) as usize) {
            p.begin(id, limit, contiguous && self.config.mapping); // else each block lies in one segment anyway
        }
        self.maps.reserved.begin(id);
        ledger.pools.insert(id, Default::default());
        Ok(PoolId(id))
    }

    /// Releases the slot of a pool that has ended, to which nothing leads any more: another pool may have it, under an id
    /// that no pool had. Without this call the slot stays unused.
    pub(crate) fn release_slot(&self, id: PoolId) {
        if let Some(next) = id.0.checked_add(POOL_SLOTS) {
            self.ledger().spare_pools.push_back(next);
        }
    }
}
