//! Calls of the pond that few callers make: one type for each group.

use super::account::Accounts;
use super::features::{resize, to_be_freed};
use super::ground::{Ground, Pool, PoolRef};
use super::heap::{Heap, HeapPath, Notes, Outside};
use super::supply::Trim;
use super::types::{Freeing, PoolId};
use crate::base::biased::Name;
use crate::base::error::Result;

/// The fast paths of threads into heaps (`heap/fast.rs`); from [`Pond::fast_paths`](super::Pond::fast_paths).
#[derive(Clone, Copy)]
pub(crate) struct FastPathCalls<'a> {
    ground: &'a Ground,
}

impl<'a> FastPathCalls<'a> {
    pub(super) fn of(ground: &'a Ground) -> FastPathCalls<'a> {
        FastPathCalls { ground }
    }
}

impl FastPathCalls<'static> {
    /// See `Ground::open_fast_path`.
    #[inline]
    pub(crate) fn open(
        self,
        pool: &Pool,
        name: Name,
        near: (u64, u64),
        notes: Notes,
        outside: &'static dyn Outside,
        may: impl FnOnce() -> bool,
    ) -> std::result::Result<HeapPath, Option<&'static Heap>> {
        self.ground.open_fast_path(pool, name, near, notes, outside, may)
    }
}

impl FastPathCalls<'_> {
    /// Settles the accounts after a first step that returned this heap with its block.
    pub(crate) fn settle(self, heap: &'static Heap) {
        Accounts::of(self.ground).settle(heap);
    }

    /// Closes the fast paths into the heaps of a pool, or of all. The caller has removed the pools' numbers before, and holds
    /// neither a heap's lock nor one below `HEAP`.
    pub(crate) fn close(self, pool: Option<&Pool>) {
        match pool {
            Some(pool) => self.ground.close_fast_paths(pool),
            None => self.ground.heaps().all().for_each(Heap::close_fast_path),
        }
    }
}

/// Requests that few callers make; from [`Pond::special`](super::Pond::special).
#[derive(Clone, Copy)]
pub struct SpecialCalls<'a> {
    ground: &'a Ground,
}

impl<'a> SpecialCalls<'a> {
    pub(super) fn of(ground: &'a Ground) -> SpecialCalls<'a> {
        SpecialCalls { ground }
    }

    /// As [`Pond::alloc`](super::Pond::alloc), at an address that is a multiple of `align` bytes, a power of two up to a
    /// granule; but a block that is a segment of its own is where the device has put it.
    pub fn alloc_aligned(self, pool: PoolId, stream: u64, bytes: u64, align: u64) -> Result<u64> {
        let pool = PoolRef { place: self.ground.pools().live(pool)?, id: pool };
        self.ground.alloc_aligned(pool, stream, bytes, align)
    }

    /// \[B\] of each charge that is the device's own.
    pub(crate) fn padding(self) -> u64 {
        self.ground.config.padding
    }

    /// Makes the live block at `offset` one of `bytes`, as if it had been asked for with that, at the same place.
    /// `OutOfMemory`, and nothing has changed, if there is no room. The account sees a free and an allocation.
    pub fn resize(self, offset: u64, bytes: u64) -> Result<()> {
        resize(self.ground, offset, bytes)
    }

    /// [`Pond::empty_cache`](super::Pond::empty_cache) until no more than `keep` bytes are reserved. Does nothing if no
    /// more are.
    pub fn trim_to(self, pool: Option<PoolId>, keep: u64) -> Result<()> {
        if let Some(p) = pool {
            self.ground.pools().live(p)?;
        }
        self.ground.check_host_room()?;
        Trim::of(self.ground).down_to(pool.map(|p| p.0), keep).map(drop)
    }

    /// [`Pond::empty_cache`](super::Pond::empty_cache) of all pools, until no more than `keep` bytes are reserved.
    pub fn empty_cache_to(self, keep: u64) -> Result<()> {
        self.ground.hints.allow_ties(); // a new start
        self.trim_to(None, keep)
    }
}

/// For those who watch what happens; from `Pond::watched`.
#[derive(Clone, Copy)]
pub(crate) struct WatchCalls<'a> {
    ground: &'a Ground,
}

impl<'a> WatchCalls<'a> {
    pub(super) fn of(ground: &'a Ground) -> WatchCalls<'a> {
        WatchCalls { ground }
    }

    /// What is reported of the free of the live block that starts at `offset`, before it is freed with that stream.
    #[inline]
    pub(crate) fn to_be_freed(self, offset: u64, stream: Option<u64>) -> Option<Freeing> {
        to_be_freed(self.ground, offset, stream)
    }

    /// What a request is charged that the first step has served.
    #[inline(always)]
    pub(crate) fn charged(self, bytes: u64) -> u64 {
        self.ground.maps.shape.charged_of(bytes)
    }
}
