//! Which pools were released and have not ended. A request looks at one flag.

use crate::base::error::{Code, Error, Result, no_host_memory};
use crate::base::ordered::Set;
use crate::base::sync::system::{Mutex, lock};
use crate::core::PoolId;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The released pools of one device that have not ended.
#[derive(Default)]
pub(super) struct Released {
    /// Whether there are any. Never out of date for the thread that released one.
    any: AtomicBool,
    pools: Mutex<Set<PoolId>>,
}

impl Released {
    /// `OutOfMemory` if the host has no memory for another one.
    pub(super) fn add(&self, pool: PoolId) -> Result<()> {
        let mut pools = lock(&self.pools);
        if !pools.make_room(&pool) {
            return Err(no_host_memory());
        }
        pools.insert(pool);
        self.any.store(true, Relaxed);
        Ok(())
    }

    pub(super) fn remove(&self, pool: PoolId) {
        if !self.any.load(Relaxed) {
            return;
        }
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

    /// All of them.
    pub(super) fn all(&self) -> Vec<PoolId> {
        lock(&self.pools).iter().collect()
    }
}
