//! The heaps of a pond: found by number ([`HeapTable`]) or pool, locked, and made. A heap is never removed; one whose pool
//! has ended serves another pool later.

use super::super::desc::{Found, USES, kind};
use super::super::heap::{Heap, LockedHeap, OwnedHeap};
use super::super::ledger::Ledger;
use super::super::state::growth::segments::Segment;
use super::super::types::{COMMONS, PoolId, UNORDERED};
use super::heap_table::{HeapTable, MOST_HEAPS};
use super::{Ground, Pool};
use crate::base::error::{Code, Result, no_host_memory};
use crate::base::slots::Unput;
use crate::base::sort;
use crate::fail;

impl Ground {
    /// The heaps.
    #[inline(always)]
    pub(crate) fn heaps(&self) -> &HeapTable {
        &self.heaps
    }

    /// The heaps of a pool, in the order of their numbers. No heap is locked.
    pub(crate) fn heaps_of(&self, pool: u32) -> Vec<&'static Heap> {
        let Some(p) = self.pools.get(PoolId(pool)) else { return Vec::new() };
        let mut all = p.streams().all();
        sort::by_key(&mut all, |&i| i);
        all.into_iter().filter_map(|i| self.heaps.get(i)).filter(|x| x.pool() == pool).collect()
    }

    /// The heaps of a pool, or all heaps.
    pub(crate) fn heaps_in(&self, pool: Option<PoolId>) -> Vec<&'static Heap> {
        pool.map_or_else(|| self.heaps.all().collect(), |p| self.heaps_of(p.0))
    }

    /// From here on requests of the stream to the pool look their heap up under the lock of the pool's streams again.
    pub(crate) fn evict(&self, pool: &Pool, stream: u64) {
        pool.evict(stream).and_then(|i| self.heaps.get(i)).into_iter().for_each(Heap::close_fast_path);
    }

    /// The same for all streams.
    pub(crate) fn evict_all(&self, pool: &Pool) {
        pool.evict_all().into_iter().filter_map(|i| self.heaps.get(i)).for_each(Heap::close_fast_path);
    }

    /// Closes the fast paths into the heaps of a pool, whose numbers nobody finds any more.
    pub(crate) fn close_fast_paths(&self, pool: &Pool) {
        let heaps = pool.streams().all();
        heaps.into_iter().filter_map(|i| self.heaps.get(i)).for_each(Heap::close_fast_path);
    }

    /// Gives a segment back to the device. Threads that know the address of the first one have forgotten it when this
    /// returns: from then on its granule numbers may be those of segments that lie elsewhere.
    pub(crate) fn release_segment(&self, segment: &Segment) -> Result<()> {
        let done = self.backing.segment_release(segment.offset(), segment.bytes);
        if segment.part.touched().first == 0 {
            self.heaps.all().for_each(Heap::close_fast_path);
        }
        done
    }

    /// Takes a heap's lock.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn lock(&self, heap: &'static Heap) -> LockedHeap<'_> {
        heap.lock(self.shared())
    }

    /// Takes a heap's lock only to read; see [`Heap::look`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn look(&self, heap: &'static Heap) -> LockedHeap<'_> {
        heap.look(self.shared())
    }

    /// Takes a heap's lock if the calling thread owns it.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn enter(&self, heap: &'static Heap) -> Option<OwnedHeap<'_>> {
        heap.enter(self.shared())
    }

    /// Takes the locks of all heaps, in the order of their numbers, into an empty list.
    pub(crate) fn lock_all<'a>(&'a self, ledger: &mut Ledger, all: &mut Vec<LockedHeap<'a>>) {
        loop {
            let count = self.heaps.count();
            (0..count).filter_map(|i| self.heaps.get(i)).for_each(|heap| ledger.looks.ask(heap));
            ledger.looks.take(self.shared(), all);
            // A heap that was made meanwhile may have taken memory from one that was not locked yet.
            if self.heaps.count() == count {
                return;
            }
            all.clear();
        }
    }

    /// The live block that starts at `offset`, and its heap.
    pub(crate) fn live_block(&self, offset: u64) -> Result<(Found<'_>, &'static Heap)> {
        let found = self.maps.find(offset).filter(|f| f.desc.kind() == kind::LIVE);
        match found.and_then(|f| Some((f, self.heaps.get(f.heap)?))) {
            Some(found) => Ok(found),
            None => fail!(Code::UnknownPointer, "no live block starts at this address"),
        }
    }

    /// A heap that serves a stream of a pool from now on: one whose pool has ended, or a new one.
    pub(crate) fn new_heap(&self, pool: u32, stream: u64) -> Result<&'static Heap> {
        let unordered = stream == UNORDERED;
        let of = if unordered { None } else { Some(self.order.stream(stream)?) };
        let spare = self.ledger().spare_heaps.pop();
        let heap = match spare.and_then(|i| self.heaps.get(i)) {
            Some(heap) => heap,
            None => {
                let mut ledger = self.ledger();
                // The lists first: a heap that has no place in them must not come to be.
                let heaps = self.heaps.count() as usize + 1;
                if !ledger.make_room(heaps) || !self.explaining().make_room(heaps) {
                    return Err(no_host_memory());
                }
                let made = |index| Heap::new(index, self.config.source());
                match self.heaps.add(&ledger, made) {
                    Ok(heap) => heap,
                    Err(Unput::NoMemory) => return Err(no_host_memory()),
                    Err(Unput::NoSlot) => {
                        fail!(Code::OutOfMemory, "more than {MOST_HEAPS} streams in use on one device")
                    }
                }
            }
        };
        let mut h = self.lock(heap);
        h.inherited = false;
        h.contiguous = self.pools.is_contiguous(pool);
        h.serve(pool, stream, of, if unordered { USES } else { 0 });
        drop(h);
        Ok(heap)
    }

    /// The heap of memory that belongs to no pool. Such memory waits for nothing.
    pub(crate) fn commons(&self) -> Result<&'static Heap> {
        match self.heaps.all().find(|x| x.pool() == COMMONS) {
            Some(heap) => Ok(heap),
            None => self.new_heap(COMMONS, UNORDERED),
        }
    }
}
