//! Memory with observers (`watch/observe.rs`): the path of a request and of a free that are reported.
//!
//! An allocation is reported when the block is allocated, a free before the memory can be allocated again. So for each
//! address, allocations and frees alternate. If a free fails after that, a second event takes it back.

use super::marks::Mark;
use super::pooled::{Block, Given, Pooled};
use super::requests::Request;
use super::state::{How, Memory, ended};
use crate::base::biased::Name;
use crate::base::clock;
use crate::base::error::{Error, Result};
use crate::base::ring::Ring;
use crate::core::{
    Fast, Freed, FreedNoted, Freeing, Heap, Noted, OomMissing, OomReport, PoolId, PoolRef, Restored,
    SeatedAtHeap,
};
use crate::device::StreamId;
use crate::runtime::entry::reentry;
use crate::runtime::memory::{fast_paths, handle_cache};
use crate::runtime::oom::explain::Asked;
use crate::runtime::watch::event::{Event, EventKind, Quick, known_thread_number, words_at, words_of};
use crate::runtime::watch::latency::Latency;
use crate::runtime::watch::observe::{Observer, Observers};
use std::num::NonZero;
use std::sync::Arc;

/// The observers of one device's memory. Get it with [`Memory::watchers`].
#[derive(Clone, Copy)]
pub struct Watchers<'a>(&'a Memory);

impl Memory {
    /// The observers of the memory.
    pub fn watchers(&self) -> Watchers<'_> {
        Watchers(self)
    }
}

impl Block {
    /// `free_block` while a mark is set.
    #[cold]
    #[inline(never)]
    pub(super) fn free_marked(
        self,
        memory: &Memory,
        stream: Option<StreamId>,
        size: Option<u64>,
    ) -> Result<()> {
        if memory.marks.has(Mark::Timed) && !matches!(self, Block::At(0)) {
            return memory
                .observers
                .latencies
                .timed_wholly(Latency::Free, || self.free_seen(memory, stream, size));
        }
        self.free_seen(memory, stream, size)
    }

    fn free_seen(self, memory: &Memory, stream: Option<StreamId>, size: Option<u64>) -> Result<()> {
        match (memory.open_marked()?, self) {
            (How::Unpooled(u), Block::At(addr) | Block::Found { addr, .. }) => {
                u.free(addr, stream, size).inspect(|()| memory.observers.breathe())
            }
            (How::Unpooled(_), Block::Missed { .. }) => memory.pooled().map(drop),
            (How::Pooled(p), block) if !memory.observers.any() => p.free(block, stream, size),
            (How::Pooled(p), Block::At(0)) => p.free(self, stream, size),
            (How::Pooled(p), mut block) => {
                let (addr, offset) = block.located(p)?;
                if matches!(block, Block::At(_)) {
                    block = Block::Found { addr, offset };
                }
                let told = p.tell_free(addr, offset, stream).is_some();
                let done = p.free(block, stream, size);
                p.take_back_unless(told, done, addr, offset)
            }
        }
    }
}

impl Request {
    /// `serve_by` while a mark is set.
    #[cold]
    #[inline(never)]
    pub(super) fn serve_marked(self, memory: &Memory) -> Result<u64> {
        let how = memory.open_marked()?;
        let addr = self.serve_by(how)?;
        let observers = &memory.observers;
        if let How::Pooled(p) = how
            && observers.any()
            && let Some(offset) = p.places.offset(addr)
            && let Some(Freeing { mut block, .. }) = p.pond.watched().to_be_freed(offset, None)
        {
            block.base = addr;
            observers.tell(Event::of(EventKind::Alloc, &block));
        }
        observers.breathe();
        Ok(addr)
    }
}

/// When a call on a noted fast path was made, and by whom.
#[inline(always)]
fn now_by(thread: NonZero<u32>) -> (u64, u32) {
    (clock::counted(), thread.get())
}

/// What notes a request on the fast path.
#[inline(always)]
fn allocated(thread: NonZero<u32>, stream: StreamId) -> impl FnOnce(&'static Ring, Noted) {
    move |ring, noted| ring.push_short(&words_at(now_by(thread), Quick::Alloc, noted, stream))
}

/// What notes a free on the fast path: at once, since no stream but the block's own has used it.
#[inline(always)]
fn freed(thread: NonZero<u32>, stream: StreamId) -> impl FnOnce(&'static Ring, u64, Noted) {
    move |ring, position, noted| {
        ring.put_short(position, &words_at(now_by(thread), Quick::Free, noted, stream));
    }
}

/// Serves a request by a fast path on which requests are noted. What is [almost](Fast::Almost) served is not noted yet.
/// `None`: nothing was done. The thread is asked each time: what its token has opened stays open for the next thread whom
/// the system gives that token.
#[inline(always)]
pub(crate) fn alloc_noted(seated: SeatedAtHeap, name: Name, bytes: u64, stream: StreamId) -> Option<Fast> {
    let thread = known_thread_number()?;
    Some(seated.enter(name)?.alloc_noted(bytes, allocated(thread, stream)))
}

/// Notes a block that was almost served, in a segment other than the first: its address. `None`: nothing was done.
#[inline(always)]
pub(crate) fn note_far(block: (&Heap, u64), name: Name, bytes: u64, stream: StreamId) -> Option<u64> {
    let thread = known_thread_number()?;
    fast_paths::enter(name)?.note_far(block, bytes, allocated(thread, stream))
}

/// Frees a block on the fast path, and notes that.
#[inline(always)]
pub(crate) fn free_noted(seated: SeatedAtHeap, name: Name, addr: u64, stream: StreamId) -> FreedNoted {
    match known_thread_number().and_then(|thread| Some((seated.enter(name)?, thread))) {
        Some((heap, thread)) => heap.free_noted(addr, freed(thread, stream)),
        None => FreedNoted::Missed,
    }
}

/// The same in a segment other than the first. `false`: nothing was done.
#[inline(always)]
pub(crate) fn free_far_noted(seated: SeatedAtHeap, name: Name, addr: u64, stream: StreamId) -> bool {
    let Some(thread) = known_thread_number() else { return false };
    seated.enter(name).is_some_and(|heap| heap.free_far_noted(addr, freed(thread, stream)))
}

impl Watchers<'_> {
    /// Adds an observer, which receives the events of the memory until [`remove`](Self::remove) or the end of the device.
    /// Calls that run at that moment may go unreported. `NotInitialized` once the device has ended; `NotPermitted` in an
    /// observer and in a segment callback, which it would wait for.
    pub fn add(&self, observer: &Arc<dyn Observer>) -> Result<()> {
        reentry::check_segment_callback()?;
        if self.0.marks.has(Mark::Closed) {
            return ended();
        }
        self.0.observers.add(observer);
        self.0.marks.set(Mark::Watched);
        // From here on requests must take the path of this file.
        if let How::Pooled(p) = &self.0.how {
            handle_cache::bypass_all(p);
        }
        Ok(())
    }

    /// Removes an observer. It receives nothing more, and when this returns no thread is in it. `NotPermitted` in an observer
    /// and in a segment callback, which it would wait for.
    pub fn remove(&self, observer: &Arc<dyn Observer>) -> Result<()> {
        reentry::check_segment_callback()?;
        self.take_out(observer);
        Ok(())
    }

    /// The same for a caller that is in none of these.
    pub(crate) fn take_out(&self, observer: &Arc<dyn Observer>) {
        if self.0.observers.remove(observer) {
            return;
        }
        self.0.marks.clear(Mark::Watched);
        if self.0.observers.any() {
            self.0.marks.set(Mark::Watched); // one has come meanwhile
        }
        // The fast path is open again.
        if let How::Pooled(p) = &self.0.how {
            handle_cache::bypass_all(p);
        }
    }

    /// Whether there is any.
    pub fn any(&self) -> bool {
        self.0.observers.any()
    }

    /// All of them.
    pub(crate) fn list(&self) -> &Arc<Observers> {
        &self.0.observers
    }

    /// Reports a request that failed for lack of memory. No lock is held.
    pub(super) fn failed(&self, asked: &Asked, e: &Error) {
        let Asked { pool, stream, bytes } = *asked;
        let known = |r: &Arc<OomReport>| !r.missing.intersects(OomMissing::DEVICE_FREE | OomMissing::ALL);
        let free = e.oom_report().filter(known).map(|r| r.device_free);
        self.0.observers.tell(Event { stream, pool, ..Event::failure(free, bytes) });
        self.0.observers.failed();
    }

    /// Resizes a block in place, reported as a free and an allocation that keep its contents. The free of a block that
    /// shrinks is reported first, since its end can be allocated at once. That of a block that grows is reported afterwards:
    /// growing often fails, and a failure is not reported.
    #[cold]
    pub(super) fn resize(&self, addr: u64, bytes: u64, resize: impl FnOnce() -> Result<()>) -> Result<()> {
        let before = self.0.block(addr)?;
        if before.base != addr || bytes == 0 {
            return resize(); // refuses it
        }
        let grows = bytes > before.size;
        let freed = || {
            self.0.observers.tell(Event { at_once: true, ..Event::of(EventKind::FreeRequested, &before) });
            self.0.hooks().freed(&before);
        };
        if grows {
            resize()?;
            freed();
        } else {
            freed();
            if let Err(e) = resize() {
                self.0.observers.tell(Event::of(EventKind::FreeRefused, &before));
                self.0.observers.reaches(addr, before.requested, true); // it has what it had
                self.0.observers.breathe();
                self.0.hooks().free_failed(&before);
                return Err(e);
            }
        }
        let Ok(now) = self.0.block(addr) else { return Ok(()) };
        self.0.observers.tell(Event::of(EventKind::Alloc, &now));
        self.0.observers.reaches(now.base, now.requested.min(before.requested), true);
        self.0.observers.breathe();
        self.0.hooks().allocated(addr);
        Ok(())
    }

    /// Reports that one more stream uses a block.
    pub(super) fn used(&self, addr: u64, stream: StreamId) {
        let event = Event { address: addr, stream: Some(stream), ..Event::new(EventKind::RecordStream) };
        self.0.observers.tell(event);
    }

    /// Reports that a restore is about to free a block. May be called with locks held.
    pub(super) fn freed(&self, freed: &Freeing) {
        self.0.observers.tell(Event::freeing(freed));
    }

    /// Reports the blocks that a restore has made live. Those that it has freed were reported before their memory could be
    /// allocated.
    pub(super) fn restored(&self, done: &Restored) {
        if !self.0.observers.any() {
            return;
        }
        for &(addr, _) in &done.live {
            if let Ok(block) = self.0.block(addr) {
                self.0.observers.tell(Event::of(EventKind::Alloc, &block));
                self.0.observers.reaches(addr, block.requested, true); // it has what it had
            }
        }
        self.0.observers.breathe();
    }
}

impl Pooled {
    /// The first step of a request to a pool that was found among the watched ones. Never panics.
    #[inline(always)]
    pub(crate) fn alloc_quick_watched(&self, pool: PoolRef, stream: StreamId, bytes: u64) -> Given {
        let given = self.alloc_quick(pool.place, stream, bytes);
        match (&given, self.observers.quick()) {
            (&Given::Block(address), Some(ring)) => {
                ring.push_short(&words_of(Quick::Alloc, self.noted(address, bytes, pool.id), stream));
            }
            _ => self.tell_given(&given, stream, bytes, pool.id),
        }
        given
    }

    /// What there is to note of a request of so many bytes that was served.
    #[inline(always)]
    fn noted(&self, address: u64, requested: u64, pool: PoolId) -> Noted {
        let charged = self.pond.watched().charged(requested);
        Noted { pool: pool.0.into(), address, charged, requested }
    }

    /// Tells of what the first step of a request has given, where that is not simply written down.
    #[cold]
    #[inline(never)]
    pub(super) fn tell_given(&self, given: &Given, stream: StreamId, bytes: u64, pool: PoolId) {
        let address = match *given {
            Given::Block(address) => address,
            Given::Almost(offset, _) => self.places.address(offset).unwrap_or(0),
            Given::Missed => 0,
        };
        if address != 0 {
            self.observers.tell_words(words_of(Quick::Alloc, self.noted(address, bytes, pool), stream));
            self.observers.breathe();
        }
    }

    /// The first step of a free, the same. Returns whether the block is freed; otherwise nothing was done. Never panics.
    #[inline(always)]
    pub(crate) fn free_quick_watched(&self, addr: u64, stream: StreamId) -> bool {
        let Some(offset) = self.places.offset(addr) else { return false };
        let Some(ring) = self.observers.quick() else { return self.free_told(addr, offset, stream) };
        // Its place among the events is that of the moment at which others may have the block.
        let mut noted = None;
        let note = |heap: &Heap, charged, requested| {
            let freed = Noted { pool: heap.pool().into(), address: addr, charged, requested };
            noted = Some((ring.claim(), freed));
        };
        let done = matches!(self.pond.free_quick(offset, Some(stream), None, note), Freed::Done);
        if let (true, Some((position, freed))) = (done, noted) {
            // At once: no stream but the block's own has used it.
            ring.put_short(position, &words_of(Quick::Free, freed, stream));
        }
        done
    }

    /// The same where that is not simply written down.
    #[cold]
    #[inline(never)]
    fn free_told(&self, addr: u64, offset: u64, stream: StreamId) -> bool {
        let tell = |heap: &Heap, charged, requested| {
            let freed = Noted { pool: heap.pool().into(), address: addr, charged, requested };
            self.observers.tell_words(words_of(Quick::Free, freed, stream));
        };
        let done = matches!(self.pond.free_quick(offset, Some(stream), None, tell), Freed::Done);
        if done {
            self.observers.breathe();
        }
        done
    }

    /// Reports a free that is about to be tried, if there is such a block. Returns whether its memory is reusable at once.
    #[inline]
    fn tell_free(&self, addr: u64, offset: u64, stream: Option<StreamId>) -> Option<bool> {
        let mut freed = self.pond.watched().to_be_freed(offset, stream)?;
        freed.block.base = addr;
        self.observers.tell(Event::freeing(&freed));
        Some(freed.at_once)
    }

    /// If the reported free has failed, reports that the block is still live.
    fn take_back_unless(&self, told: bool, done: Result<()>, addr: u64, offset: u64) -> Result<()> {
        if told
            && done.is_err()
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
