//! The way of a request to a block, and of a free to its end. Both have a first step, which is all that they need in the
//! usual case: it is inlined into whoever calls it, and never panics. All other steps follow in one function, which goes
//! on where the first step has left off.
//!
//! A request: a freed block of its size; a cut from what is free in its heap, if the calling thread owns the heap;
//! then a search, for which memory may be merged, taken from other heaps or had from the device (`supply/`).
//! A free: by the thread that owns the heap; by another one, without the heap's lock; then whatever else it may be,
//! or why it cannot be (`features/blocks.rs`).

use super::desc::{GranuleUse, UseRecord, kind};
use super::ground::Ground;
use super::heap::{Heap, HeapState, LockedHeap};
use super::shape::{large_units, shift_of};
use super::state::pools::{Pool, PoolRef};
use super::supply::Request;
use super::types::{PoolId, UNORDERED};
use crate::base::error::Result;
use std::ops::DerefMut;

/// What the caller of [`Ground::alloc_quick`] wants to have for an offset.
pub(crate) trait Locate {
    /// Never panics.
    fn locate(&self, offset: u64) -> u64;
}

/// The offset itself.
struct Offsets;

impl Locate for Offsets {
    #[inline(always)]
    fn locate(&self, offset: u64) -> u64 {
        offset
    }
}

/// What became of the first step of a request.
pub(crate) enum Got {
    /// A block, and where it starts, as `Locate` says; and its heap, if [`Ground::settle`] is due.
    Block(u64, Option<&'static Heap>),
    /// Nothing is done. The heap that serves such requests, if one is known.
    Missed(Option<&'static Heap>),
}

/// What became of the first step of a free.
pub(crate) enum Freed {
    /// The block is freed.
    Done,
    /// Nothing is done. The heap of the block, if all that is in the way is that the calling thread does not own it.
    Missed(Option<&'static Heap>),
}

impl Ground {
    /// A freed block of the same size, in a heap that the calling thread owns.
    #[inline(always)]
    pub(crate) fn alloc_quick(&self, pool: &Pool, stream: u64, bytes: u64, to: &impl Locate) -> Got {
        let Some(heap) = pool.heap_of(stream) else { return Got::Missed(None) };
        let shape = &self.maps.shape;
        let Some(charged) = shape.charged(bytes) else { return Got::Missed(Some(heap)) };
        let class = shape.size_class(charged);
        let Some(mut h) = self.enter(heap) else { return Got::Missed(Some(heap)) };
        // The heap is still the pool's. Whoever ends a pool, or gives its heap to another, takes the heap's lock, and so
        // ends the ownership of every other thread; and this one has done nothing else since it looked. When it looked,
        // the place was the pool's: it becomes another's only when nobody can find the pool any more.
        let (d, shift) = match class {
            Some(p) if p.list() != 0 => match h.pop_fine(p.list()) {
                Some((_, d)) => (d, p.shift()),
                None => return Got::Missed(Some(heap)),
            },
            other => match h.pop_large(other.map_or_else(|| large_units(charged), |p| p.units())) {
                Some((_, d)) => (d, shift_of(d.tier_bits())),
                None => return Got::Missed(Some(heap)),
            },
        };
        let at = to.locate(u64::from(d.off()) << shift);
        h.revive(d, bytes);
        let full = h.counters.count_in(charged, bytes);
        Got::Block(at, full.then_some(heap))
    }

    /// A block, whatever it takes; its offset. `heap` is what [`alloc_quick`](Self::alloc_quick) said; `None` also where
    /// it was not asked. What needs more than the calling thread's own heap is done only if `leave` gives leave.
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
            None => match self.alloc_quick(pool.place, stream, bytes, &Offsets) {
                Got::Block(at, full) => {
                    if let Some(heap) = full {
                        self.settle(heap);
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
        if let Ok(request) = &request
            && let Some(at) = self.cut(request)
        {
            return Ok(at);
        }
        leave()?;
        self.search(&request?)
    }

    /// The heap that serves a stream's requests to a pool, made if there is none, and the pool that it was of then.
    #[cold]
    fn find_heap(&self, pool: PoolRef, stream: u64) -> Result<(&'static Heap, PoolId)> {
        let mut stream = stream;
        if stream != UNORDERED {
            self.known(stream)?;
            if !self.backing.ordered_by(stream) {
                stream = UNORDERED;
            }
        }
        self.make_heap(pool.id, stream)
    }

    /// What a request of `bytes` to a heap of a pool needs. `OutOfMemory` for more than the device could ever give.
    fn request(&self, heap: &'static Heap, pool: PoolId, bytes: u64) -> Result<Request> {
        let shape = &self.maps.shape;
        let charged = match shape.charged(bytes) {
            Some(charged) => charged,
            None if bytes > self.config.max_alloc => return self.too_large(bytes),
            None => self.charged_tuned(bytes),
        };
        Ok(Request { heap, pool: pool.0, size: shape.size(charged), charged, bytes })
    }

    /// A block cut from what is free in the heap, if the calling thread owns the heap and something fits.
    fn cut(&self, req: &Request) -> Option<u64> {
        if req.bytes > self.maps.shape.largest() {
            return None;
        }
        let mut h = self.enter(req.heap)?;
        req.check_pool().ok()?;
        let id = self.place_owned(&mut h, req);
        if id == 0 {
            return None;
        }
        let tier = req.size.tier as u32;
        h.make_live(id, tier, req.bytes);
        let full = h.counters.count_in(req.charged, req.bytes);
        drop(h);
        if full {
            self.settle(req.heap);
        }
        Some(u64::from(self.maps.desc(id).off()) << shift_of(tier))
    }

    /// A block, whatever it takes.
    fn search(&self, req: &Request) -> Result<u64> {
        let mut h = match self.enter(req.heap) {
            Some(h) => h.into(),
            None => req.heap.lock_to_allocate(self.shared()),
        };
        req.check_pool()?;
        let mut id = 0;
        if req.bytes > self.maps.shape.largest() {
            h.counters.totals(); // such sizes could make the sums wrap more than once
            id = self.take_whole(&mut h, req.charged, req.size.units);
        }
        if id == 0 {
            id = h.pop(req.size).unwrap_or(0);
        }
        if id == 0 {
            return self.alloc_missed(h, req);
        }
        let d = self.maps.desc(id);
        let charged = self.charge_of(d.tier_bits(), d.units(), req.bytes);
        Ok(self.finish(h, id, d.tier_bits(), &Request { charged, ..*req }))
    }

    /// Frees a block that is live and was used on its own stream only, which `stream` is where it is told, and whose
    /// heap the calling thread owns. A size is looked at by [`free_from`](Self::free_from).
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
        let Some(record) = maps.record_of(offset) else { return Freed::Missed(None) };
        let g = record.now();
        let Some(heap) = self.heap(g.heap()) else { return Freed::Missed(None) };
        if stream.is_some_and(|s| s != heap.stream()) {
            return Freed::Missed(None);
        }
        let Some(mut h) = self.enter(heap) else { return Freed::Missed(Some(heap)) };
        if self.end_plainly_live(&mut h, (record, g), offset, tell) {
            Freed::Done
        } else {
            Freed::Missed(None)
        }
    }

    /// Frees the block at `offset`, whose heap is locked, if nothing but its own stream is to be thought of. `use_` is
    /// that of its granule. `false`: nothing done.
    #[inline(always)]
    fn end_plainly_live<G: DerefMut<Target = HeapState>>(
        &self,
        h: &mut LockedHeap<'_, G>,
        (record, use_): (UseRecord<'_>, GranuleUse),
        offset: u64,
        tell: impl FnOnce(&Heap, u64, u64),
    ) -> bool {
        let Some((id, d, was)) = self.maps.plainly_live(record, use_, offset) else { return false };
        let bytes = d.requested();
        let ended = h.end_life(d, was, kind::FREED); // else another thread was first
        if ended {
            let charged = self.maps.shape.charged_of(bytes);
            tell(h.heap, charged, bytes);
            h.counters.count_out(charged, bytes);
            h.shelve(id, d, was);
        }
        ended
    }

    /// Frees the block at `offset`, whatever the case. `heap` is what [`free_quick`](Self::free_quick) said.
    pub(crate) fn free_from(
        &self,
        offset: u64,
        stream: Option<u64>,
        size: Option<u64>,
        heap: Option<&'static Heap>,
    ) -> Result<()> {
        match heap {
            Some(heap) if self.free_unowned(heap, offset) => Ok(()),
            _ => self.free_slow(offset, stream, size),
        }
    }

    /// Frees a block of a heap that the calling thread does not own. `false`: nothing done.
    fn free_unowned(&self, heap: &'static Heap, offset: u64) -> bool {
        let maps = &self.maps;
        let Some(f) = maps.find(offset).filter(|f| f.heap == heap.index) else { return false };
        if !heap.is_this_threads() {
            return heap.free_remotely(self.shared(), f, offset);
        }
        // This thread allocates here, but does not own the lock.
        let mut h = self.lock(heap);
        let record = maps.record_of(offset).filter(|r| r.now().heap() == heap.index);
        record.is_some_and(|r| self.end_plainly_live(&mut h, (r, r.now()), offset, |_, _, _| ()))
    }
}
