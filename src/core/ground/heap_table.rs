//! The heaps of a pond by number. Heaps are added, and none is ever removed; any thread may look one up without a lock.

use super::super::heap::Heap;
use super::super::ledger::Ledger;
use crate::base::error::Result;
use crate::base::slots::{Slots, Unput};
use crate::base::sync::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// The maximum number of heaps: as many as a granule's record can name.
pub(super) const MOST_HEAPS: usize = 1 << 16;

/// The heaps of a pond; see the head of this file.
pub(crate) struct HeapTable {
    slots: Slots<Heap, MOST_HEAPS>,
    count: AtomicU32,
}

impl HeapTable {
    pub(super) fn new() -> Result<HeapTable> {
        Ok(HeapTable { slots: Slots::new()?, count: AtomicU32::new(0) })
    }

    /// The heap of that number.
    #[inline(always)]
    pub(crate) fn get(&self, index: u32) -> Option<&'static Heap> {
        self.slots.get(index as usize)
    }

    /// How many heaps there are.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Acquire)
    }

    /// All heaps, in the order of their numbers.
    pub(crate) fn all(&self) -> impl Iterator<Item = &'static Heap> {
        (0..self.count()).filter_map(|i| self.get(i))
    }

    /// Adds a heap, which gets its number. The caller holds the ledger (`_witness`), so that no other thread adds one.
    pub(super) fn add(
        &self,
        _witness: &Ledger,
        make: impl FnOnce(u32) -> Heap,
    ) -> std::result::Result<&'static Heap, Unput> {
        let index = self.count.load(Relaxed);
        let heap = self.slots.put(index as usize, make(index))?;
        // Release: a thread that sees the count sees the heap.
        self.count.store(index + 1, Release);
        Ok(heap)
    }
}
