//! Pools that were released while they have live blocks: they take no more requests, and end when they can.

use super::state::Memory;
use crate::base::error::{Code, Result};
use crate::base::sync::system::lock;
use crate::core::PoolId;
use crate::runtime::memory::handle_cache;
use std::sync::atomic::Ordering::Relaxed;

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
                    Some((pooled, cached)) => handle_cache::remove(pooled, cached),
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

    /// The pool has ended.
    pub(super) fn forget_released(&self, pool: PoolId) {
        if self.released.any.load(Relaxed) {
            self.released.remove(pool);
        }
    }
}
