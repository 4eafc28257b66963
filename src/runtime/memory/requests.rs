//! Requests and frees of one device, except those that the first step of `ladder.rs` serves for callers that name a
//! pool by a number.
//!
//! Every other request goes through [`Request::attempt`] and every other free through [`Memory::free_block`]. Code
//! that has to see all requests hooks in there, and keeps the pools concerned out of `handle_cache` meanwhile, so that
//! the first step serves none of them: that is done for the default pool while there are scopes, and for all pools
//! while a tag is in force.

use super::group::MemoryGroup;
use super::marks::Mark;
use super::pooled::{Block, Pooled, Whole};
use super::state::{How, Memory};
use crate::base::error::{Code, Error, Result};
use crate::core::{GRANULE, Heap, PoolId, PoolRef, UNORDERED};
use crate::device::StreamId;
use crate::fail;
use crate::runtime::entry::tags;
use crate::runtime::nvtx;
use crate::runtime::oom::explain::Asked;

impl Whole for Memory {
    fn free_with_all_steps(&self, block: Block, stream: StreamId) -> Result<()> {
        self.free_block(block, Some(stream), None)
    }
}

/// A request, as it was made.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub asked: Asked,
    /// The address is to be a multiple of this.
    pub align: u64,
}

impl Block {
    /// The address and the offset of the block, of which one is looked up. `UnknownPointer` for an address that is none of
    /// the memory's.
    pub(super) fn located(&self, p: &Pooled) -> Result<(u64, u64)> {
        match *self {
            Block::At(addr) => {
                p.places.offset(addr).map(|offset| (addr, offset)).ok_or_else(|| p.unknown(addr))
            }
            Block::Found { addr, offset } => Ok((addr, offset)),
            Block::Missed { offset, .. } => Ok((p.places.address(offset)?, offset)),
        }
    }
}

impl Memory {
    /// [`free`](Self::free) without a stream, if the address is in memory that this one has now, in a block or not.
    #[inline]
    pub(crate) fn free_own(&self, addr: u64, size: Option<u64>) -> Option<Result<()>> {
        let block = match &self.how {
            How::Pooled(p) => {
                let offset = p.places.offset(addr)?;
                if !self.marks.any() {
                    return Some(p.free_at(offset, size));
                }
                Block::Found { addr, offset }
            }
            How::Unpooled(u) => u.block(addr).ok().map(|_| Block::At(addr))?,
        };
        Some(self.free_block(block, None, size))
    }

    /// Allocates memory for work queued on `stream` from now on. 0 bytes give address 0.
    #[inline]
    pub fn alloc(&self, pool: PoolId, stream: StreamId, bytes: u64) -> Result<u64> {
        Request::new(pool, Some(stream), bytes, 1).serve(self)
    }

    /// Allocates memory that every stream and the host may use at once. 0 bytes give address 0.
    pub fn alloc_unordered(&self, pool: PoolId, bytes: u64) -> Result<u64> {
        Request::new(pool, None, bytes, 1).serve(self)
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
        let addr = Request::new(pool, stream, bytes, align).serve(self)?;
        if addr & (align - 1) != 0 {
            self.free_for_good(addr);
            fail!(Code::Unsupported, "the device gives no block of {bytes} B at a multiple of {align}");
        }
        Ok(addr)
    }

    /// [`alloc`](Self::alloc) on a pooled device after the first step of the ladder has missed. `heap` is what that
    /// step returned; `bytes` is not 0.
    pub(crate) fn alloc_from(
        &self,
        pool: PoolRef,
        stream: StreamId,
        bytes: u64,
        heap: Option<&'static Heap>,
        leave: impl Fn() -> Result<()>,
    ) -> Result<u64> {
        let mut first = Some(heap);
        Request::new(pool.id, Some(stream), bytes, 1).attempt(self, || match first.take() {
            Some(heap) => self.pooled()?.alloc_from(pool, stream, bytes, heap, &leave),
            // Out-of-memory callbacks may have ended the pool, and its place may be another one's by now.
            None => {
                leave()?;
                self.pooled()?.alloc(pool.id, stream, bytes, 1)
            }
        })
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
        if self.marks.any() {
            if self.hooks().any() {
                return self.hooks().free(block, size, |block| block.free_marked(self, stream, size));
            }
            return block.free_marked(self, stream, size);
        }
        match (&self.how, block) {
            (How::Pooled(p), block) => p.free(block, stream, size),
            (How::Unpooled(u), Block::At(addr) | Block::Found { addr, .. }) => u.free(addr, stream, size),
            (How::Unpooled(_), Block::Missed { .. }) => self.pooled().map(drop),
        }
    }

    /// [`free`](Self::free) for callers that can neither handle an error nor try again: if the block cannot be freed
    /// now, a later call does it.
    pub fn free_for_good(&self, addr: u64) {
        self.deferred.free(addr, |a| self.free(a, None, None));
        if self.deferred.any() {
            self.marks.set(Mark::Deferred);
        }
    }

    /// Retries the deferred frees.
    pub(crate) fn free_deferred(&self) {
        if !self.deferred.any() {
            return;
        }
        self.marks.clear(Mark::Deferred); // else the frees below would call this function again
        if !self.deferred.settle(|a| self.free(a, None, None)) {
            self.marks.set(Mark::Deferred);
        }
    }
}

impl Request {
    #[inline(always)]
    fn new(pool: PoolId, stream: Option<StreamId>, bytes: u64, align: u64) -> Request {
        Request { asked: Asked { pool, stream, bytes }, align }
    }

    #[inline]
    fn serve(self, memory: &Memory) -> Result<u64> {
        if memory.marks.has(Mark::Timed) {
            return self.serve_timed(memory);
        }
        self.serve_untimed(memory)
    }

    #[inline]
    pub(super) fn serve_untimed(mut self, memory: &Memory) -> Result<u64> {
        memory.released.check(self.asked.pool)?;
        if self.asked.pool == PoolId::DEFAULT && memory.scopes.any() {
            self.asked.pool = memory.scopes.route();
        }
        let got = self.attempt(memory, || match memory.marks.any() {
            true => self.serve_marked(memory),
            false => self.serve_by(&memory.how),
        });
        if let (Ok(addr @ 1..), true) = (&got, memory.hooks().any()) {
            memory.hooks().allocated(*addr);
        }
        got
    }

    /// One attempt.
    #[inline]
    pub(super) fn serve_by(self, how: &How) -> Result<u64> {
        let Asked { pool, stream, bytes } = self.asked;
        match how {
            How::Pooled(p) if bytes == 0 => p.nothing(pool, stream),
            How::Pooled(p) => p.alloc(pool, stream.unwrap_or(UNORDERED), bytes, self.align),
            How::Unpooled(u) => match stream {
                Some(s) => u.alloc(pool, s, bytes),
                None => u.alloc_unordered(pool, bytes),
            },
        }
    }

    /// Every request that the first step does not serve: one attempt, and others as long as out-of-memory callbacks free
    /// something.
    #[inline]
    fn attempt(self, memory: &Memory, mut attempt: impl FnMut() -> Result<u64>) -> Result<u64> {
        let mut explained = || attempt().map_err(|e| self.explained(memory, e));
        let got = explained()
            .or_else(|e| MemoryGroup(memory).ask(e, &mut explained))
            .or_else(|e| memory.rescue.retry(e, || memory.how.live_and_freed(), explained));
        if let (Ok(addr), true) = (&got, tags::any()) {
            memory.how.tag(*addr);
        }
        got.inspect_err(|e| self.count_failure(memory, e))
    }

    /// Counts a request that has failed for good.
    #[cold]
    fn count_failure(self, memory: &Memory, e: &Error) {
        let Asked { pool, stream, bytes } = self.asked;
        if e.code() == Code::OutOfMemory {
            memory.watchers().failed(&self.asked, e);
            nvtx::mark(c"out of memory", bytes);
            match &memory.how {
                How::Pooled(p) => p.pond.count_out_of_memory(pool, stream),
                How::Unpooled(u) => u.count_out_of_memory(pool),
            }
        }
    }
}
