//! Memory that somebody watches: the way of a request and of a free when they are told of (`watch/observe.rs`).
//!
//! A block is told of after it was given, and its free before it can be given again: so for each address allocations
//! and frees come in turn. A free that fails after that is taken back.

use super::pooled::{Block, Given, Pooled};
use super::state::{How, Marks, Memory, ended};
use crate::base::error::Result;
use crate::core::{Freed, Freeing, Heap, PoolId, PoolRef, Restored};
use crate::device::StreamId;
use crate::runtime::memory::handle_cache;
use crate::runtime::watch::latency::Latency;
use crate::runtime::watch::observe::{Event, EventKind, Observer, Observers};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Memory {
    /// From now on `observer` is told of what happens to the memory, until [`unwatch`](Self::unwatch) or the end of the
    /// device; calls that are under way may go untold. `NotInitialized` once the device has ended.
    pub fn watch(&self, observer: &Arc<dyn Observer>) -> Result<()> {
        if self.is_closed() {
            return ended();
        }
        self.observers.add(observer);
        self.marks.fetch_or(Marks::WATCHED.bits(), Relaxed);
        // From here on calls must come by this file.
        if let How::Pooled(p) = &self.how {
            handle_cache::bypass_all(p);
        }
        Ok(())
    }

    /// It is told nothing more, and no thread is in it.
    pub fn unwatch(&self, observer: &Arc<dyn Observer>) {
        if self.observers.remove(observer) {
            return;
        }
        self.marks.fetch_and(!Marks::WATCHED.bits(), Relaxed);
        if self.observers.any() {
            self.marks.fetch_or(Marks::WATCHED.bits(), Relaxed); // one has come meanwhile
        }
        // The quickest way is open again.
        if let How::Pooled(p) = &self.how {
            handle_cache::bypass_all(p);
        }
    }

    /// Whether anybody watches.
    pub fn is_watched(&self) -> bool {
        self.observers.any()
    }

    /// Who watches.
    pub(crate) fn observers(&self) -> &Arc<Observers> {
        &self.observers
    }

    /// `try_alloc` where something must be looked at first.
    #[cold]
    #[inline(never)]
    pub(super) fn alloc_marked(
        &self,
        pool: PoolId,
        stream: Option<StreamId>,
        bytes: u64,
        align: u64,
    ) -> Result<u64> {
        let how = self.open_marked()?;
        let addr = Self::alloc_in(how, pool, stream, bytes, align)?;
        if let How::Pooled(p) = how
            && self.observers.any()
            && let Some(offset) = p.places.offset(addr)
            && let Some(Freeing { mut block, .. }) = p.pond.watched().to_be_freed(offset, None)
        {
            block.base = addr;
            self.observers.tell(Event::of(EventKind::Alloc, &block));
        }
        self.observers.breathe();
        Ok(addr)
    }

    /// `free_block` where something must be looked at first.
    #[cold]
    #[inline(never)]
    pub(super) fn free_marked(
        &self,
        block: Block,
        stream: Option<StreamId>,
        size: Option<u64>,
    ) -> Result<()> {
        if self.is_timed() && !matches!(block, Block::At(0)) {
            return self
                .observers
                .latencies
                .timed_wholly(Latency::Free, || self.free_seen(block, stream, size));
        }
        self.free_seen(block, stream, size)
    }

    fn free_seen(&self, block: Block, stream: Option<StreamId>, size: Option<u64>) -> Result<()> {
        match (self.open_marked()?, block) {
            (How::Unpooled(u), Block::At(addr)) => {
                u.free(addr, stream, size).inspect(|()| self.observers.breathe())
            }
            (How::Unpooled(_), Block::Missed { .. }) => self.pooled().map(drop),
            (How::Pooled(p), block) if !self.observers.any() => p.free(block, stream, size),
            (How::Pooled(p), block) => {
                let addr = match &block {
                    Block::At(addr) => *addr,
                    Block::Missed { offset, .. } => p.places.address(*offset)?,
                };
                let told = p.tell_free(addr, stream).is_some();
                let done = p.free(block, stream, size);
                p.take_back_unless(told, done, addr)
            }
        }
    }

    /// A request has failed for lack of memory. No lock is held.
    pub(super) fn tell_failure(&self, pool: PoolId, stream: Option<StreamId>, bytes: u64) {
        self.observers.tell(Event { stream, pool, ..Event::range(EventKind::Oom, 0, bytes) });
        self.observers.failed();
    }

    /// Gives a block another size where it is: told as a free and an allocation that keep what it has. The free of one
    /// that may get shorter comes first, since its end is anybody's at once; that of one that grows comes when it has
    /// grown, so that a failure, which is usual there, is not told.
    #[cold]
    pub(super) fn resize_told(
        &self,
        addr: u64,
        bytes: u64,
        resize: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let before = self.block(addr)?;
        if before.base != addr || bytes == 0 {
            return resize(); // refuses it
        }
        let grows = bytes > before.size;
        let freed = || {
            self.observers.tell(Event { at_once: true, ..Event::of(EventKind::FreeRequested, &before) });
            self.hook_free(&before);
        };
        if grows {
            resize()?;
            freed();
        } else {
            freed();
            if let Err(e) = resize() {
                self.observers.tell(Event::of(EventKind::FreeRefused, &before));
                self.observers.reaches(addr, before.requested, true); // it has what it had
                self.observers.breathe();
                self.hook_free_failed(&before);
                return Err(e);
            }
        }
        let Ok(now) = self.block(addr) else { return Ok(()) };
        self.observers.tell(Event::of(EventKind::Alloc, &now));
        self.observers.reaches(now.base, now.requested.min(before.requested), true);
        self.observers.breathe();
        self.hook_alloc(addr);
        Ok(())
    }

    /// A block is used by one more stream.
    pub(super) fn tell_use(&self, addr: u64, stream: StreamId) {
        let event = Event { address: addr, stream: Some(stream), ..Event::new(EventKind::RecordStream) };
        self.observers.tell(event);
    }

    /// A restore is about to free a block. May be called with locks held.
    pub(super) fn tell_freed(&self, freed: &Freeing) {
        self.observers.tell(Event::freeing(freed));
    }

    /// Blocks have come back. Those that have gone were told of before anybody could have their memory.
    pub(super) fn tell_restored(&self, done: &Restored) {
        if !self.observers.any() {
            return;
        }
        for &(addr, _) in &done.live {
            if let Ok(block) = self.block(addr) {
                self.observers.tell(Event::of(EventKind::Alloc, &block));
                self.observers.reaches(addr, block.requested, true); // it has what it had
            }
        }
        self.observers.breathe();
    }
}

impl Pooled {
    /// The first step of a request, for who found the pool among those that are watched. Never panics.
    #[inline(always)]
    pub(crate) fn alloc_quick_watched(&self, pool: PoolRef, stream: StreamId, bytes: u64) -> Given {
        let given = self.alloc_quick(pool.place, stream, bytes);
        let address = match given {
            Given::Block(address) => address,
            Given::Almost(offset, _) => self.places.address(offset).unwrap_or(0),
            Given::Missed => 0,
        };
        if address != 0 {
            let size = self.pond.watched().charged(bytes);
            self.observers.tell_alloc(address, size, bytes, stream, pool.id);
            self.observers.breathe();
        }
        given
    }

    /// The first step of a free, for who found the pool so; whether the block is freed, else nothing is done. Never
    /// panics.
    #[inline(always)]
    pub(crate) fn free_quick_watched(&self, addr: u64, stream: StreamId) -> bool {
        let Some(offset) = self.places.near(addr) else { return false };
        let tell = |heap: &Heap, size, bytes| {
            // At once: no stream but the block's own has used it.
            let pool = PoolId(heap.pool());
            self.observers.tell_free(addr, size, bytes, stream, pool);
        };
        let done = matches!(self.pond.free_quick(offset, Some(stream), None, tell), Freed::Done);
        if done {
            self.observers.breathe();
        }
        done
    }

    /// Tells of a free that is about to be tried, if there is such a block; whether it can be used again at once.
    #[inline]
    fn tell_free(&self, addr: u64, stream: Option<StreamId>) -> Option<bool> {
        let mut freed = self.pond.watched().to_be_freed(self.places.offset(addr)?, stream)?;
        freed.block.base = addr;
        self.observers.tell(Event::freeing(&freed));
        Some(freed.at_once)
    }

    /// The free that was told of has failed: the block lives on, if there is one.
    fn take_back_unless(&self, told: bool, done: Result<()>, addr: u64) -> Result<()> {
        if told
            && done.is_err()
            && let Some(offset) = self.places.offset(addr)
            && let Some(Freeing { mut block, .. }) = self.pond.watched().to_be_freed(offset, None)
        {
            block.base = addr;
            self.observers.tell(Event::of(EventKind::FreeRefused, &block));
        }
        if told {
            self.observers.breathe();
        }
        done
    }
}
