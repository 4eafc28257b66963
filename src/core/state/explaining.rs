//! The lists of the report of a request that found no memory. They have room for every heap from the time that the heap
//! is made: when the report is made, the host may have no memory left either.

use super::super::heap::LockedHeap;

/// The part of the report that comes from one heap. Sizes are bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// The number of the heap.
    pub heap: u32,
    pub pool: u32,
    pub stream: u64,
    pub live: u64,
    pub blocks: u64,
    pub waiting: u64,
    pub free: u64,
    pub largest: u64,
    /// In whole granules, by whoever may have them.
    pub whole: u64,
    pub sleeps: bool,
    /// What its granules have beyond the end of a segment.
    pub beyond: i64,
}

/// See the file's head.
#[derive(Default)]
pub(crate) struct Explaining {
    pub locked: Vec<LockedHeap<'static>>,
    pub shares: Vec<Share>,
}

impl Explaining {
    /// Makes room for so many heaps. `false`: the host has no memory for it.
    pub(crate) fn make_room(&mut self, heaps: usize) -> bool {
        let Explaining { locked, shares } = self;
        locked.try_reserve(heaps.saturating_sub(locked.len())).is_ok()
            && shares.try_reserve(heaps.saturating_sub(shares.len())).is_ok()
    }
}
