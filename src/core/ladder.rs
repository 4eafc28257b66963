//! The steps of a request and of a free, the cheapest first. The first step of both is enough in the usual case: it is
//! inlined into its caller and never panics. One function takes all the other steps, and continues where the first one
//! stopped.
//!
//! A request takes a freed block of its size; else it cuts a block from the free memory of its heap, if the calling
//! thread owns the heap; else it searches, and may then merge memory, take it from other heaps or get it from the
//! device (`supply/`). A free is done by the thread that owns the heap; else by another thread without the heap's lock;
//! else by the slow path, which handles every remaining case and explains what cannot be freed (`features/frees.rs`).

use super::account::Accounts;
use super::backing::Completed;
use super::blocks::Blocks;
use super::desc::{Found, USES, kind};
use super::features::{Free, HeapOf};
use super::ground::Ground;
use super::ground::{Pool, PoolRef};
use super::heap::{Heap, HeapPath, Notes, Outside, Reused, Way};
use super::supply::{Request, Serving, too_large};
use super::types::{PoolId, UNORDERED};
use crate::base::biased::Name;
use crate::base::error::Result;

/// The result of the first step of a request.
pub(crate) enum Got {
    /// The offset of the block; and its heap, if the caller has to call [`Accounts::settle`] next.
    Block(u64, Option<&'static Heap>),
    /// Nothing was done. Has the heap that serves this pool and stream, if there is one.
    Missed(Option<&'static Heap>),
}

/// The result of the first step of a free.
pub(crate) enum Freed {
    /// The block was freed.
    Done,
    /// Nothing was done. Has the heap of the block, if the only obstacle is that the calling thread does not own it.
    Missed(Option<&'static Heap>),
}

impl Ground {
    /// Takes a freed block of the same size from a heap that the calling thread owns. Misses for 0 bytes.
    #[inline(always)]
    pub(crate) fn alloc_quick(&self, pool: &Pool, stream: u64, bytes: u64) -> Got {
        let Some(heap) = pool.heap_of(stream) else { return Got::Missed(None) };
        // The heap still belongs to the pool once it is entered. A thread that ends a pool, or gives its heap to another
        // one, takes the heap's lock and thereby ends the ownership of every other thread; this thread has done nothing
        // else since it looked the heap up. The slot was the pool's then: it is given to another pool only after no
        // lookup can find this pool any more.
        let Some(mut h) = self.enter(heap) else { return Got::Missed(Some(heap)) };
        match h.reuse(bytes) {
            Some(Reused::Block(offset)) => Got::Block(offset, None),
            Some(Reused::Full(offset)) => Got::Block(offset, Some(heap)),
            None => Got::Missed(Some(heap)),
        }
    }

    /// Opens the calling thread's fast path into the heap that serves this pool and the stream of the name; if the thread
    /// does not own that heap, returns it instead. `may` says whether the number of the name stands for the pool; see
    /// `heap/fast.rs` for what must happen when it no longer does. `base`, `span` and `notes` as in [`Way`].
    #[inline]
    pub(crate) fn open_fast_path(
        &'static self,
        pool: &Pool,
        name: Name,
        (base, span): (u64, u64),
        notes: Notes,
        outside: &'static dyn Outside,
        may: impl FnOnce() -> bool,
    ) -> std::result::Result<HeapPath, Option<&'static Heap>> {
        let heap = pool.heap_of(name[1]).ok_or(None)?;
        let mut h = self.enter(heap).ok_or(Some(heap))?;
        heap.set_outside(outside);
        let way = Way { heap, shared: self.shared(), base, span, notes };
        let serves = || pool.heap_of(name[1]).is_some_and(|h| std::ptr::eq(h, heap));
        h.open(name, way, || serves() && may()).ok_or(Some(heap))
    }

    /// Allocates with all steps; returns the offset of the block. `heap` is the heap that the first step returned;
    /// `None` if it returned none or was not called. `leave` is called before any step that needs more than the calling
    /// thread's own heap, and ends the request if it fails.
    pub(crate) fn alloc_from(
        &self,
        pool: PoolRef,
        stream: u64,
        bytes: u64,
        heap: Option<&'static Heap>,
        leave: impl Fn() -> Result<()>,
    ) -> Result<u64> {
        let known = match heap {
            Some(heap) => Some(heap),
            None => match self.alloc_quick(pool.place, stream, bytes) {
                Got::Block(at, full) => {
                    if let Some(heap) = full {
                        Accounts::of(self).settle(heap);
                    }
                    return Ok(at);
                }
                Got::Missed(heap) => heap,
            },
        };
        let (heap, served) = match known {
            Some(heap) => (heap, pool.id),
            None => {
                leave()?;
                self.find_heap(pool, stream)?
            }
        };
        let request = self.request(heap, served, bytes);
        leave()?;
        Serving::of(self, &request?).search()
    }

    /// The same for a block whose address is a multiple of `align` bytes, a power of two up to a granule. A block that is a
    /// segment of its own is where the device has put it, which the caller checks.
    pub(crate) fn alloc_aligned(&self, pool: PoolRef, stream: u64, bytes: u64, align: u64) -> Result<u64> {
        if align <= self.maps.shape.min_chunk() {
            return self.alloc_from(pool, stream, bytes, None, || Ok(()));
        }
        let (heap, served) = self.find_heap(pool, stream)?;
        Serving::of(self, &self.request(heap, served, bytes)?).search_aligned(align)
    }

    /// The heap that serves a stream's requests to a pool, and the pool that it belonged to at that moment. Makes the
    /// heap if there is none.
    #[cold]
    pub(super) fn find_heap(&self, pool: PoolRef, stream: u64) -> Result<(&'static Heap, PoolId)> {
        let mut stream = stream;
        if stream != UNORDERED {
            self.order.check_own(stream)?;
            if !self.backing.ordered_by(stream) {
                stream = UNORDERED;
            }
        }
        HeapOf::stream(self, stream).pool(pool.id)
    }

    /// The `Request` for `bytes` from a heap of a pool. `OutOfMemory` if that is more than the device could ever give.
    pub(super) fn request(&self, heap: &'static Heap, pool: PoolId, bytes: u64) -> Result<Request> {
        match Blocks::of(self).charged(bytes, self.config.max_alloc) {
            Some(charged) => Ok(Request::new(heap, pool.0, &self.maps.shape, bytes, charged)),
            None => too_large(),
        }
    }

    /// Frees a live block that was used on its own stream only, if the calling thread owns its heap; does nothing if
    /// `stream` is another one. A free with a `size` is left to [`free_from`](Self::free_from), which checks it.
    #[inline(always)]
    pub(crate) fn free_quick(
        &self,
        offset: u64,
        stream: Option<u64>,
        size: Option<u64>,
        tell: impl FnOnce(&Heap, u64, u64),
    ) -> Freed {
        if size.is_some() {
            return Freed::Missed(None);
        }
        let maps = &self.maps;
        let record = maps.record_of(offset);
        let g = record.now();
        let Some(heap) = self.heaps().get(g.heap()) else { return Freed::Missed(None) };
        if stream.is_some_and(|s| s != heap.stream()) {
            return Freed::Missed(None);
        }
        let Some(mut h) = self.enter(heap) else { return Freed::Missed(Some(heap)) };
        if h.free_plain((record, g), offset, tell) { Freed::Done } else { Freed::Missed(None) }
    }

    /// Frees the block at `offset` with all steps. `heap` is the heap that [`free_quick`](Self::free_quick) returned.
    pub(crate) fn free_from(
        &self,
        offset: u64,
        stream: Option<u64>,
        size: Option<u64>,
        heap: Option<&'static Heap>,
    ) -> Result<()> {
        let found = self.maps.find(offset);
        match (heap, found) {
            (Some(heap), Some(f)) if f.heap == heap.index && self.free_unowned(heap, f, offset) => Ok(()),
            _ => Free { offset, stream, size }.run(self, found),
        }
    }

    /// Frees a block without a stream while nothing runs on the device, so that it waits for nothing, if the calling
    /// thread owns its heap. `false`: nothing was done.
    #[inline(always)]
    pub(crate) fn free_idle(&self, offset: u64) -> bool {
        let maps = &self.maps;
        let record = maps.record_of(offset);
        let g = record.now();
        let unordered = |x: &&Heap| x.stream() == UNORDERED;
        let Some(heap) = self.heaps().get(g.heap()).filter(unordered) else { return false };
        // Asked before the lock: the device is called with nothing locked. All work of before the free is done then.
        if !self.order.is_idle() {
            return false;
        }
        let Some(mut h) = self.enter(heap).filter(|h| unordered(&h.heap)) else { return false };
        if !h.uses.is_empty() || !h.exports.is_empty() {
            return false;
        }
        let Some((id, d, was)) = maps.live_with(USES, record, g, offset) else { return false };
        let bytes = d.requested();
        let ended = h.end_life(d, was, kind::FREED); // else another thread was first
        if ended {
            let charged = maps.shape.charged_of(bytes);
            let (stream, ended, pool) = (None, false, heap.pool());
            // Before anybody can have it again. Whoever watches was told that it may have to wait.
            self.backing.free_completed(Completed { offset, charged, requested: bytes, stream, ended, pool });
            h.shelve_counted(id, d, was, charged, bytes);
        }
        ended
    }

    /// Frees a block of a heap that the calling thread does not own. `false`: nothing was done.
    fn free_unowned(&self, heap: &'static Heap, f: Found<'_>, offset: u64) -> bool {
        if !heap.is_this_threads() {
            return heap.free_remotely(self.shared(), f, offset);
        }
        // This thread allocates here, but does not own the lock.
        let mut h = self.lock(heap);
        let record = self.maps.record_of(offset);
        let now = record.now();
        now.heap() == heap.index && h.free_plain((record, now), offset, |_, _, _| ())
    }
}
