//! The pools of a device's memory: creating and ending them, their names and limits, scopes, and sleep.
//!
//! A pool can be released while it has live blocks. It then takes no more requests, and ends when it can: with the next
//! call that gives memory back to the device or ends a pool.

use super::group::MemoryGroup;
use super::state::{How, Memory};
use super::{handle_cache, pool_numbers};
use crate::base::error::{Code, Error, Result};
use crate::core::{PoolId, Stats};
use crate::fail;
use crate::runtime::oom::explain;
use crate::runtime::watch::pool_names::PoolNames;
use std::sync::Arc;

/// The pools of one device. Get it with [`Memory::pools`].
#[derive(Clone, Copy)]
pub struct Pools<'a>(&'a Memory);

impl Memory {
    /// The pools of the device.
    pub fn pools(&self) -> Pools<'_> {
        Pools(self)
    }
}

impl Pools<'_> {
    /// A new pool whose reserved bytes never exceed `limit` (0: none).
    pub fn create(&self, limit: u64) -> Result<PoolId> {
        explain::prepare();
        match self.0.open()? {
            How::Pooled(p) => p.pond.pool_create(limit, false),
            How::Unpooled(u) => u.pool_create(limit),
        }
    }

    /// The same; each block of the pool lies in one physical allocation of the device, so that others see all of it by its
    /// address. `Unsupported` where the driver's own pool keeps the memory.
    pub fn create_contiguous(&self, limit: u64) -> Result<PoolId> {
        match self.0.open()? {
            How::Pooled(p) => p.pond.pool_create(limit, true),
            How::Unpooled(u) if !u.by_driver() => u.pool_create(limit),
            How::Unpooled(_) => fail!(Code::Unsupported, "the driver's pool does not say where a block lies"),
        }
    }

    /// Ends a pool. `Busy` while it has live blocks, and while a thread is in a scope of it.
    pub fn destroy(&self, pool: PoolId) -> Result<()> {
        self.end(pool)?;
        self.end_released();
        Ok(())
    }

    fn end(&self, pool: PoolId) -> Result<()> {
        let how = self.0.open()?;
        if pool == PoolId::DEFAULT {
            // Even if a thread is in a scope of it: it exists as long as the device.
            fail!(Code::InvalidArgument, "the default pool of a device cannot be destroyed");
        }
        let cached = self.0.pooled_pool(pool);
        self.0.scopes.unless_used(pool, || match how {
            How::Pooled(p) => p.pond.pool_destroy(pool),
            How::Unpooled(u) => u.pool_destroy(pool),
        })?;
        if let Some((pooled, ended)) = cached {
            handle_cache::remove(pooled, ended);
            pooled.pond.pool_forgotten(pool);
        }
        self.0.released.remove(pool);
        self.0.readings.forget(pool);
        self.0.rescue.end_pool(pool);
        self.0.names.remove(pool);
        if let Some((device, _)) = self.0.backing().owner() {
            pool_numbers::end(*device, pool);
        }
        Ok(())
    }

    /// Releases a pool that may still have live blocks: it takes no more requests (`NotPermitted`), and ends once its last
    /// block is freed and its captures and scopes have ended, with the next call that gives memory back to the device or
    /// ends a pool. `true`: it has ended at once.
    pub fn release(&self, pool: PoolId) -> Result<bool> {
        let ended = match self.end(pool) {
            // The last: where the host has no memory for the lists that its end makes.
            Err(e) if matches!(e.code(), Code::Busy | Code::NotPermitted | Code::OutOfMemory) => {
                self.0.released.add(pool)?;
                match self.0.pooled_pool(pool) {
                    Some((pooled, cached)) => handle_cache::remove(pooled, cached),
                    None if self.stats(pool).is_err() => self.0.released.remove(pool), // ended meanwhile
                    None => {}
                }
                false
            }
            ended => ended.map(|()| true)?,
        };
        self.end_released();
        Ok(ended)
    }

    /// Ends the released pools that have no live blocks any more, and returns their ids.
    pub fn end_released(&self) -> Vec<PoolId> {
        let mut pools = self.0.released.all();
        pools.retain(|&p| self.end(p).is_ok());
        pools
    }

    /// Whether the pool was released, and has not ended.
    pub(crate) fn is_released(&self, pool: PoolId) -> bool {
        self.0.released.check(pool).is_err()
    }

    /// Whether any thread has an open scope on this device, so that the default pool differs between threads.
    pub(crate) fn has_scopes(&self) -> bool {
        self.0.scopes.any()
    }

    /// All pools that there are, by number; the default one is the first.
    pub fn all(&self) -> Vec<PoolId> {
        match &self.0.how {
            How::Pooled(p) => p.pond.statistics().pools(),
            How::Unpooled(u) => u.pools(),
        }
    }

    /// Whether there is such a pool.
    pub fn contains(&self, pool: PoolId) -> bool {
        match &self.0.how {
            How::Pooled(p) => p.pond.pool(pool).is_some(),
            How::Unpooled(u) => u.check_pool(pool).is_ok(),
        }
    }

    /// Limits what the pool reserves from now on; 0 means no limit.
    pub fn set_limit(&self, pool: PoolId, bytes: u64) -> Result<()> {
        match self.0.open()? {
            How::Pooled(p) => p.pond.pool_set_limit(pool, bytes),
            How::Unpooled(u) => u.pool_set_limit(pool, bytes),
        }
    }

    /// The account of a pool.
    pub fn stats(&self, pool: PoolId) -> Result<Stats> {
        match self.0.open()? {
            How::Pooled(p) => p.stats(Some(pool)),
            How::Unpooled(u) => u.pool_stats(pool),
        }
    }

    /// Resets the peaks of a pool to the current values.
    pub fn reset_peaks(&self, pool: PoolId) -> Result<()> {
        self.0.readings.reset_peaks(Some(pool));
        match self.0.open()? {
            How::Pooled(p) => p.pond.reset_peaks(Some(pool)),
            How::Unpooled(u) => u.pool_reset_peaks(pool),
        }
    }

    /// Names a pool: errors, reports, histories and snapshots say the name from now on. Several pools may have one name.
    /// `InvalidArgument` for a pool that there is not.
    pub fn set_name(&self, pool: PoolId, name: &str) -> Result<()> {
        self.0.open()?;
        if !self.contains(pool) {
            fail!(Code::InvalidArgument, "there is no pool {}", pool.0);
        }
        self.0.names.set(pool, name);
        Ok(())
    }

    /// The name of a pool, if it has one.
    pub fn name(&self, pool: PoolId) -> Option<String> {
        self.0.names.get(pool)
    }

    /// The pools of this name.
    pub fn named(&self, name: &str) -> Vec<PoolId> {
        self.0.names.pools(name)
    }

    pub(crate) fn names(&self) -> &Arc<PoolNames> {
        &self.0.names
    }

    /// The error of a call that names the pool, prefixed with its name if it has one. An out-of-memory report has it
    /// already.
    #[cold]
    pub(crate) fn naming(&self, pool: PoolId, e: Error) -> Error {
        if e.oom_report().is_some() {
            return e; // and the host may have no memory for the name
        }
        match self.name(pool) {
            Some(name) => Error::formatted(e.code(), format_args!("pool {name:?}: {}", e.message())),
            None => e,
        }
    }

    /// A number below 2^48 that stands for the pool in the whole process until it ends, for languages that hold no Rust
    /// values; [`PoolHandle::of_number`](crate::runtime::PoolHandle::of_number) takes it. The same each time.
    pub fn number(&self, pool: PoolId) -> Result<u64> {
        match self.0.backing().owner() {
            Some((device, _)) => pool_numbers::give(*device, pool),
            None => Err(Error::new(Code::Internal, "the device has no number")),
        }
    }

    /// The same; `None` if the pool has ended meanwhile.
    pub fn number_if_live(&self, pool: PoolId) -> Option<u64> {
        let (device, _) = self.0.backing().owner()?;
        let known = pool_numbers::known(*device, pool);
        known.or_else(|| self.contains(pool).then(|| self.number(pool).ok()).flatten())
    }

    /// Serves this thread's requests to the default pool from `pool` from now on, until [`end_scope`](Self::end_scope).
    /// Scopes nest; a scope of the default pool ends the effect of outer ones. A scope that a thread leaves open ends
    /// with the thread.
    pub fn begin_scope(&self, pool: PoolId) -> Result<()> {
        self.0.released.check(pool)?;
        // Before the check of the pool, which is made under a lock: this may have deferred frees to do.
        let how = self.0.open()?;
        self.0.scopes.begin(pool, || match how {
            How::Pooled(p) => p.pond.check_names(pool, None),
            How::Unpooled(u) => u.check_pool(pool),
        })?;
        // From here on requests to the default pool must ask for the scope (`Request::pool`).
        if let Some((pooled, default)) = self.0.pooled_pool(PoolId::DEFAULT) {
            handle_cache::bypass(pooled, default);
        }
        Ok(())
    }

    /// Ends this thread's innermost scope, which must be one of `pool`; otherwise `NotPermitted`.
    pub fn end_scope(&self, pool: PoolId) -> Result<()> {
        self.0.scopes.end(pool)
    }

    /// Gives the pool's physical memory back to the device; its addresses and blocks stay. With `save`, the contents
    /// are kept in host memory.
    pub fn sleep(&self, pool: PoolId, save: bool) -> Result<()> {
        self.0.pooled()?.pond.sleep().begin(pool, save)
    }

    /// Brings the memory of a sleeping pool back at the same addresses. All or nothing.
    pub fn wake(&self, pool: PoolId) -> Result<()> {
        let wake = || self.0.pooled()?.pond.sleep().wake(pool);
        wake().or_else(|e| MemoryGroup(self.0).ask_to_wake(pool, e, wake))
    }

    /// Whether the pool sleeps.
    pub fn sleeps(&self, pool: PoolId) -> bool {
        matches!(&self.0.how, How::Pooled(p) if p.pond.sleep().is_on(pool))
    }
}
