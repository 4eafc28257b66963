//! Frees that need the slow path, and information about a block.

use super::super::backing::Completed;
use super::super::desc::{DIRECT, Found, Id, USES, kind};
use super::super::ground::Ground;
use super::super::heap::{Heap, HeapState, LockedHeap};
use super::super::shape::Class;
use super::super::types::{BlockInfo, Freeing, PoolId, RETIRED, UNORDERED};
use crate::base::error::{Code, Error, Result};
use crate::base::sync::pause;
use crate::fail;
use std::ops::DerefMut;

impl Ground {
    /// The error for a free of `offset`, where no live block starts.
    #[cold]
    #[inline(never)]
    pub(super) fn not_live<T>(&self, offset: u64) -> Result<T> {
        let freed = |f: Found<'_>| matches!(f.desc.kind(), kind::FREED | kind::REMOTE | kind::WAITING);
        if self.maps.find(offset).is_some_and(freed) {
            return Err(Error::new(Code::DoubleFree, "the block at this address was freed before"));
        }
        if let Some(f) = self.maps.find_holding(offset)
            && f.desc.kind() == kind::LIVE
        {
            let within = offset - self.offset(f.id);
            fail!(Code::UnknownPointer, "the address lies {within} bytes inside a block");
        }
        fail!(Code::UnknownPointer, "no live block starts at this address (it may have been freed before)")
    }

    /// Frees the block at `offset` in every case that the hot path does not handle.
    #[inline(never)]
    pub(crate) fn free_slow(&self, offset: u64, stream: Option<u64>, size: Option<u64>) -> Result<()> {
        let mut round = 0;
        loop {
            let found = self.maps.find(offset);
            let Some((f, heap)) = found.and_then(|f| Some((f, self.heap(f.heap)?))) else {
                return self.not_live(offset);
            };
            let unordered = heap.stream() == UNORDERED;
            let other = stream.filter(|&s| s != heap.stream()).map(|s| self.order.user(s)).transpose()?;
            // A block without a stream waits for all of the device's own; if nothing runs there now, for none.
            let other = other.filter(|s| s.elsewhere || !unordered);
            let idle = unordered && other.is_none() && self.order.is_idle();
            let mut h = self.lock(heap);
            self.drain(&mut h);
            let was = f.desc.state();
            let here = self.maps.starts_at(f.id, offset) && self.maps.granule_of(offset).heap() == heap.index;
            if was & kind::MASK == kind::REMOTE && here {
                // Another thread is just freeing it, and has not decided yet whether it may.
                drop(h);
                pause(round);
                round = round.saturating_add(1);
                continue;
            }
            if was & kind::MASK != kind::LIVE || !here {
                drop(h);
                return self.not_live(offset);
            }
            let bytes = f.desc.requested();
            if let Some(size) = size
                && size != bytes
            {
                fail!(Code::WrongSize, "the block was asked for with {bytes} bytes, not {size}");
            }
            let used = match idle && heap.stream() == UNORDERED {
                true => was & DIRECT != 0 || h.uses.contains_key(&f.id) || h.exports.contains_key(&f.id),
                false => was & (USES | DIRECT) != 0,
            };
            if other.is_some() || used {
                if h.end_life(f.desc, was, kind::WAITING) {
                    self.end_oversize(h.heap.pool(), was);
                    return self.free_after(h, f.id, was, other);
                }
            } else if h.end_life(f.desc, was, kind::FREED) {
                let charged = self.charge(f.id);
                self.untag(f.id, was, false);
                self.end_oversize(h.heap.pool(), was);
                h.counters.count_out(Class::of(f.desc.tier_bits()), charged, bytes);
                if was & USES != 0 {
                    self.backing.free_completed(self.completed(heap, f.id)); // before anybody can have it again
                }
                self.reuse(&mut h, f.id);
                return Ok(());
            }
            // Another thread was first.
        }
    }

    /// Fails unless the stream exists and orders memory of this device.
    pub(crate) fn known(&self, stream: u64) -> Result<()> {
        self.order.check_own(stream)
    }

    /// Makes a block reusable that nobody waits for. Its life has ended, and its heap is locked.
    pub(crate) fn reuse<G: DerefMut<Target = HeapState>>(&self, h: &mut LockedHeap<'_, G>, id: Id) {
        let d = self.maps.desc(id);
        if self.stays_whole(id) {
            return h.put_whole(id);
        }
        d.set_kind(kind::FREED);
        h.shelve(id, d, d.state());
    }

    /// Takes over what other threads have freed.
    pub(crate) fn drain<G: DerefMut<Target = HeapState>>(&self, h: &mut LockedHeap<'_, G>) {
        h.take_remote(|h, id| {
            let (class, bytes) = (Class::of(self.maps.desc(id).tier_bits()), self.maps.desc(id).requested());
            h.counters.count_out(class, self.maps.shape.charged_of(bytes), bytes);
            self.reuse(h, id);
        });
    }

    /// What is told of a freed block whose wait is over.
    pub(crate) fn completed(&self, heap: &Heap, id: Id) -> Completed {
        Completed {
            offset: self.offset(id),
            charged: self.charge(id),
            requested: self.maps.desc(id).requested(),
            stream: heap.last_stream(),
            ended: heap.stream() == RETIRED,
            pool: heap.pool(),
        }
    }

    /// The live block that starts at `offset`, as a free with that stream is told.
    #[inline]
    pub(crate) fn to_be_freed(&self, offset: u64, stream: Option<u64>) -> Option<Freeing> {
        let f = self.maps.find(offset)?;
        let state = f.desc.state();
        if state & kind::MASK != kind::LIVE {
            return None;
        }
        let heap = self.heap(f.heap)?;
        let at_once = state & (USES | DIRECT) == 0 && stream.is_none_or(|s| s == heap.stream());
        Some(Freeing { at_once, ..self.freeing(heap, f.id) })
    }

    /// A block of the heap that nothing but its stream orders any more, as its free is told.
    pub(crate) fn freeing(&self, heap: &Heap, id: Id) -> Freeing {
        let Completed { offset, charged, requested, stream, ended, pool } = self.completed(heap, id);
        let block = BlockInfo { base: offset, size: charged, requested, stream, pool: PoolId(pool) };
        Freeing { block, ended, at_once: true }
    }

    /// The live block that contains `offset`.
    pub(crate) fn block(&self, offset: u64) -> Result<BlockInfo> {
        let live = |f: &Found<'_>| f.desc.kind() == kind::LIVE;
        let at = self.maps.find(offset).filter(live);
        let Some(f) = at.or_else(|| self.maps.find_holding(offset).filter(live)) else {
            fail!(Code::UnknownPointer, "no live block holds this address");
        };
        let Some(heap) = self.heap(f.heap) else {
            return Err(Error::new(Code::Internal, "a block without a heap"));
        };
        Ok(BlockInfo {
            base: self.offset(f.id),
            size: self.charge(f.id),
            requested: f.desc.requested(),
            stream: Some(heap.stream()).filter(|&s| s != UNORDERED && s != RETIRED),
            pool: PoolId(heap.pool()),
        })
    }
}
