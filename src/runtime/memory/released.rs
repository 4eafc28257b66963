//! Pools that were released while they have live blocks: they take no more requests, and end when they can.

use super::Memory;
use crate::base::error::{Code, Error, Result};
use crate::base::sync::system::Mutex;
use crate::core::PoolId;
use crate::runtime::{handle_cache, lock};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The released pools of one device that have not ended.
#[derive(Default)]
pub(super) struct Released {
    /// Whether there are any. For the thread that has released one, this is never out of date.
    any: AtomicBool,
    pools: Mutex<BTreeSet<PoolId>>,
}

impl Released {
    fn add(&self, pool: PoolId) {
        let mut pools = lock(&self.pools);
        pools.insert(pool);
        self.any.store(true, Relaxed);
    }

    fn remove(&self, pool: PoolId) {
        let mut pools = lock(&self.pools);
        pools.remove(&pool);
        self.any.store(!pools.is_empty(), Relaxed);
    }

    /// Fails for a pool that was released.
    #[inline]
    pub(super) fn check(&self, pool: PoolId) -> Result<()> {
        if self.any.load(Relaxed) { self.check_listed(pool) } else { Ok(()) }
    }

    #[cold]
    fn check_listed(&self, pool: PoolId) -> Result<()> {
        if lock(&self.pools).contains(&pool) {
            return Err(Error::new(Code::NotPermitted, "the pool was released: it takes no more requests"));
        }
        Ok(())
    }
}

impl Memory {
    /// Releases a pool that may still have live blocks: it takes no more requests (`NotPermitted`), and
    /// [`end_released`](Self::end_released) ends it once its last block is freed and its captures and scopes have
    /// ended.
    /// `true`: it has ended at once.
    pub fn pool_release(&self, pool: PoolId) -> Result<bool> {
        match self.pool_destroy(pool) {
            Err(e) if matches!(e.code(), Code::Busy | Code::NotPermitted) => {
                self.released.add(pool);
                match self.pooled_pool(pool) {
                    Some((_, cached)) => handle_cache::remove(cached),
                    None if self.pool_stats(pool).is_err() => self.released.remove(pool), // ended meanwhile
                    None => {}
                }
                Ok(false)
            }
            ended => ended.map(|()| true),
        }
    }

    /// Ends the released pools that have no live blocks any more, and returns their ids.
    pub fn end_released(&self) -> Vec<PoolId> {
        let mut pools: Vec<_> = lock(&self.released.pools).iter().copied().collect();
        pools.retain(|&p| self.pool_destroy(p).is_ok());
        pools
    }

    /// Whether the pool was released, and has not ended.
    pub(crate) fn is_released(&self, pool: PoolId) -> bool {
        self.released.check(pool).is_err()
    }

    /// The pool has ended.
    pub(super) fn forget_released(&self, pool: PoolId) {
        if self.released.any.load(Relaxed) {
            self.released.remove(pool);
        }
    }
}
