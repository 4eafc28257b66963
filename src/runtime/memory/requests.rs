//! Requests and frees of one device, except those that the first step of `ladder.rs` serves for callers that name a
//! pool by a number.
//!
//! Every other request goes through [`Memory::alloc_with`] and every other free through [`Memory::free_block`]. Code
//! that has to see all requests hooks in there, and keeps the pools concerned out of `handle_cache` meanwhile, so that
//! the first step serves none of them: that is done for the default pool while there are scopes, and for all pools
//! while a tag is in force.

use super::pooled::{Block, Whole};
use super::state::{How, Marks, Memory};
use crate::base::error::{Code, Error, Result};
use crate::base::nvtx;
use crate::core::{GRANULE, Heap, PoolId, PoolRef, UNORDERED};
use crate::device::StreamId;
use crate::fail;
use crate::runtime::entry::tags;
use crate::runtime::oom::explain::Asked;
use std::sync::atomic::Ordering::Relaxed;

impl Whole for Memory {
    fn free_with_all_steps(&self, block: Block, stream: StreamId) -> Result<()> {
        self.free_block(block, Some(stream), None)
    }
}

impl Memory {
    /// Allocates memory for work queued on `stream` from now on. 0 bytes give address 0.
    #[inline]
    pub fn alloc(&self, pool: PoolId, stream: StreamId, bytes: u64) -> Result<u64> {
        self.alloc_for(pool, Some(stream), bytes, 1)
    }

    /// Allocates memory that every stream and the host may use at once. 0 bytes give address 0.
    pub fn alloc_unordered(&self, pool: PoolId, bytes: u64) -> Result<u64> {
        self.alloc_for(pool, None, bytes, 1)
    }

    /// Allocates memory, on a stream or usable at once, at an address that is a multiple of `align` bytes, a power of two
    /// up to 2 MiB. `Unsupported` where the device gives no such addresses.
    pub fn alloc_aligned(
        &self,
        pool: PoolId,
        stream: Option<StreamId>,
        bytes: u64,
        align: u64,
    ) -> Result<u64> {
        if !align.is_power_of_two() || align > GRANULE {
            fail!(Code::InvalidArgument, "an alignment is a power of two up to {GRANULE}, not {align}");
        }
        let addr = self.alloc_for(pool, stream, bytes, align)?;
        if addr & (align - 1) != 0 {
            self.free_for_good(addr);
            fail!(Code::Unsupported, "the device gives no block of {bytes} bytes at a multiple of {align}");
        }
        Ok(addr)
    }

    fn alloc_for(&self, pool: PoolId, stream: Option<StreamId>, bytes: u64, align: u64) -> Result<u64> {
        // Relaxed: as in `open`.
        if self.marks.load(Relaxed) & Marks::TIMED.bits() != 0 {
            return self.alloc_timed(pool, stream, bytes, align);
        }
        self.alloc_untimed(pool, stream, bytes, align)
    }

    #[inline]
    pub(super) fn alloc_untimed(
        &self,
        pool: PoolId,
        stream: Option<StreamId>,
        bytes: u64,
        align: u64,
    ) -> Result<u64> {
        self.released.check(pool)?;
        let pool = self.route(pool);
        let got = self.alloc_with(pool, stream, bytes, || {
            // Relaxed: as in `open`.
            if self.marks.load(Relaxed) != 0 {
                return self.alloc_marked(pool, stream, bytes, align);
            }
            Self::alloc_in(&self.how, pool, stream, bytes, align)
        });
        if let (Ok(addr @ 1..), true) = (&got, self.hooks.any()) {
            self.hook_alloc(*addr);
        }
        got
    }

    #[inline]
    pub(super) fn alloc_in(
        how: &How,
        pool: PoolId,
        stream: Option<StreamId>,
        bytes: u64,
        align: u64,
    ) -> Result<u64> {
        match how {
            How::Pooled(p) if bytes == 0 => p.nothing(pool, stream),
            How::Pooled(p) => p.alloc(pool, stream.unwrap_or(UNORDERED), bytes, align),
            How::Unpooled(u) => match stream {
                Some(s) => u.alloc(pool, s, bytes),
                None => u.alloc_unordered(pool, bytes),
            },
        }
    }

    /// [`alloc`](Self::alloc) on a pooled device after the first step of the ladder has missed. `heap` is what that
    /// step returned; `bytes` is not 0.
    pub(crate) fn alloc_from(
        &self,
        pool: PoolRef,
        stream: StreamId,
        bytes: u64,
        mut heap: Option<&'static Heap>,
        leave: impl Fn() -> Result<()>,
    ) -> Result<u64> {
        self.alloc_with(pool.id, Some(stream), bytes, || {
            self.pooled()?.alloc_from(pool, stream, bytes, heap.take(), &leave)
        })
    }

    /// Every request that the first step does not serve: one attempt, and others as long as out-of-memory callbacks free
    /// something.
    #[inline]
    fn alloc_with(
        &self,
        pool: PoolId,
        stream: Option<StreamId>,
        bytes: u64,
        mut attempt: impl FnMut() -> Result<u64>,
    ) -> Result<u64> {
        let asked = Asked { pool, stream, bytes };
        let mut explained = || attempt().map_err(|e| self.explained(asked, e));
        let got = explained().or_else(|e| self.rescue.retry(e, || self.live_and_freed(), explained));
        if let (Ok(addr), true) = (&got, tags::any()) {
            self.tag(*addr);
        }
        got.inspect_err(|e| self.count_failure(pool, stream, bytes, e))
    }

    /// Counts a request that has failed for good.
    #[cold]
    fn count_failure(&self, pool: PoolId, stream: Option<StreamId>, bytes: u64, e: &Error) {
        if e.code() == Code::OutOfMemory {
            self.tell_failure(pool, stream, bytes);
            nvtx::mark(c"out of memory", bytes);
            match &self.how {
                How::Pooled(p) => p.pond.count_out_of_memory(pool, stream),
                How::Unpooled(u) => u.count_out_of_memory(pool),
            }
        }
    }

    /// Frees the block that starts at `addr`; work queued so far may still use it. With `stream`, reuse also waits for
    /// what is queued there now. `size`, if given, must be the size of the request. Address 0 does nothing.
    #[inline]
    pub fn free(&self, addr: u64, stream: Option<StreamId>, size: Option<u64>) -> Result<()> {
        self.free_block(Block::At(addr), stream, size)
    }

    /// Every free that the first step does not serve.
    #[inline]
    pub(crate) fn free_block(&self, block: Block, stream: Option<StreamId>, size: Option<u64>) -> Result<()> {
        // Relaxed: as in `open`.
        if self.marks.load(Relaxed) != 0 {
            if self.hooks.any() {
                return self.free_hooked(block, size, || self.free_marked(block, stream, size));
            }
            return self.free_marked(block, stream, size);
        }
        match (&self.how, block) {
            (How::Pooled(p), block) => p.free(block, stream, size),
            (How::Unpooled(u), Block::At(addr)) => u.free(addr, stream, size),
            (How::Unpooled(_), Block::Missed { .. }) => self.pooled().map(drop),
        }
    }

    /// [`free`](Self::free) for callers that can neither handle an error nor try again: if the block cannot be freed
    /// now, a later call does it.
    pub fn free_for_good(&self, addr: u64) {
        self.deferred.free(addr, |a| self.free(a, None, None));
        if self.deferred.any() {
            self.marks.fetch_or(Marks::DEFERRED.bits(), Relaxed);
        }
    }

    /// Retries the deferred frees.
    pub(crate) fn free_deferred(&self) {
        if !self.deferred.any() {
            return;
        }
        self.marks.fetch_and(!Marks::DEFERRED.bits(), Relaxed); // else the frees below would call this function again
        if !self.deferred.settle(|a| self.free(a, None, None)) {
            self.marks.fetch_or(Marks::DEFERRED.bits(), Relaxed);
        }
    }
}
