//! What the memory of one device consists of, and whether it is open.

use super::marks::{Mark, Marks};
use super::pooled::Pooled;
use super::readings::Readings;
use super::released::Released;
use crate::base::error::{Code, Error, Result};
use crate::base::sync::system::Mutex;
use crate::core::{Pool, PoolId};
use crate::fail;
use crate::locks;
use crate::runtime::group::membership::Membership;
use crate::runtime::memory::deferred::DeferredFrees;
use crate::runtime::memory::scope::Scopes;
use crate::runtime::oom::rescue::Rescue;
use crate::runtime::options::Options;
use crate::runtime::unpooled::Unpooled;
use crate::runtime::watch::hooks::Hooks;
use crate::runtime::watch::observe::Observers;
use crate::runtime::watch::pool_names::PoolNames;
use std::sync::Arc;

/// The memory of one device. All methods may be called from any thread.
pub struct Memory {
    pub(super) how: How,
    pub(super) rescue: Rescue,
    pub(super) group: Membership<Memory>,
    pub(super) scopes: Arc<Scopes>,
    pub(super) released: Released,
    /// What a call must handle first; usually nothing.
    pub(super) marks: Marks,
    pub(super) deferred: DeferredFrees,
    pub(super) observers: Arc<Observers>,
    pub(super) hooks: Hooks,
    pub(super) settings: Settings,
    pub(super) readings: Readings,
    pub(super) names: Arc<PoolNames>,
}

/// The settings of one device's memory.
pub(super) struct Settings {
    pub total: u64, // [B] of the device
    pub requested: Mutex<Requested, locks::Settings>,
}

pub(super) struct Requested {
    pub options: Options,
    pub limit: u64, // [B] of `set_limit`; 0: none
}

/// What serves requests.
pub(super) enum How {
    Pooled(Box<Pooled>),
    Unpooled(Box<Unpooled>),
}

#[cold]
#[inline(never)]
pub(super) fn ended<T>() -> Result<T> {
    Err(Error::new(Code::NotInitialized, "the device was finalised"))
}

impl Memory {
    #[inline]
    pub(super) fn open(&self) -> Result<&How> {
        if !self.marks.any() { Ok(&self.how) } else { self.open_marked() }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn open_marked(&self) -> Result<&How> {
        if self.marks.has(Mark::Closed) {
            return ended();
        }
        self.marks.clear(Mark::Deferred); // set again if any frees are left
        self.free_deferred();
        Ok(&self.how)
    }

    pub(super) fn pooled(&self) -> Result<&Pooled> {
        match self.open()? {
            How::Pooled(p) => Ok(p),
            How::Unpooled(u) => fail!(Code::Unsupported, "{} is not pooled", u.supply().name()),
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
