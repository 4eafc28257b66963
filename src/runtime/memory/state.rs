//! What the memory of one device consists of, and whether it is open.

use super::pooled::Pooled;
use super::readings::Readings;
use crate::base::error::{Code, Error, Result};
use crate::base::sync::levels;
use crate::base::sync::system::{Mutex, lock};
use crate::core::{Pool, PoolId};
use crate::runtime::memory::deferred::DeferredFrees;
use crate::runtime::memory::scope::Scopes;
use crate::runtime::oom::rescue::Rescue;
use crate::runtime::options::Options;
use crate::runtime::unpooled::Unpooled;
use crate::runtime::watch::hooks::Hooks;
use crate::runtime::watch::observe::Observers;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

/// The memory of one device. All methods may be called from any thread.
pub struct Memory {
    pub(super) how: How,
    pub(super) rescue: Rescue,
    pub(super) scopes: Arc<Scopes>,
    pub(super) released: Released,
    /// [`Marks`]; usually 0.
    pub(super) marks: AtomicU8,
    pub(super) deferred: DeferredFrees,
    pub(super) observers: Arc<Observers>,
    pub(super) hooks: Hooks,
    pub(super) settings: Settings,
    pub(super) readings: Readings,
}

bitflags::bitflags! {
    /// What a call must handle first.
    pub(super) struct Marks: u8 {
        /// The device has ended.
        const CLOSED = 1;
        /// There are deferred frees.
        const DEFERRED = 2;
        /// Somebody watches.
        const WATCHED = 4;
        /// Calls are timed.
        const TIMED = 8;
        /// There are hooks.
        const HOOKED = 16;
    }
}

pub(super) enum How {
    Pooled(Box<Pooled>),
    Unpooled(Box<Unpooled>),
}

/// The released pools of one device that have not ended.
#[derive(Default)]
pub(super) struct Released {
    /// Whether there are any. Never out of date for the thread that released one.
    pub any: AtomicBool,
    pub pools: Mutex<BTreeSet<PoolId>>,
}

impl Released {
    pub(super) fn add(&self, pool: PoolId) {
        let mut pools = lock(&self.pools);
        pools.insert(pool);
        self.any.store(true, Relaxed);
    }

    pub(super) fn remove(&self, pool: PoolId) {
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

/// The settings of one device's memory.
pub(super) struct Settings {
    pub total: u64, // [B] of the device
    pub requested: Mutex<Requested, { levels::SETTINGS }>,
}

pub(super) struct Requested {
    pub options: Options,
    pub limit: u64, // [B] of `set_limit`; 0: none
}

#[cold]
#[inline(never)]
pub(super) fn ended<T>() -> Result<T> {
    Err(Error::new(Code::NotInitialized, "the device was finalised"))
}

impl Memory {
    #[inline]
    pub(super) fn open(&self) -> Result<&How> {
        // Relaxed: calls that race with the end of the device may come before it.
        if self.marks.load(Relaxed) == 0 { Ok(&self.how) } else { self.open_marked() }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn open_marked(&self) -> Result<&How> {
        if self.is_closed() {
            return ended();
        }
        self.marks.fetch_and(!Marks::DEFERRED.bits(), Relaxed); // set again if any frees are left
        self.free_deferred();
        Ok(&self.how)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.marks.load(Relaxed) & Marks::CLOSED.bits() != 0
    }

    /// Whether any thread has an open scope on this device, so that the default pool differs between threads.
    pub(crate) fn has_scopes(&self) -> bool {
        self.scopes.any()
    }

    /// Whether the pool was released, and has not ended.
    pub(crate) fn is_released(&self, pool: PoolId) -> bool {
        self.released.check(pool).is_err()
    }

    pub(super) fn pooled(&self) -> Result<&Pooled> {
        match self.open()? {
            How::Pooled(p) => Ok(p),
            How::Unpooled(_) => Err(Error::new(Code::Unsupported, "this device is not pooled")),
        }
    }

    /// The pooled memory and one of its pools, for callers that look up a pool once and use it often.
    pub(crate) fn pooled_pool(&self, pool: PoolId) -> Option<(&Pooled, &'static Pool)> {
        match &self.how {
            How::Pooled(p) => Some((p, p.pond.pool(pool)?)),
            How::Unpooled(_) => None,
        }
    }
}
