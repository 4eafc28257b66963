//! What a request needs: computed once, and carried through all steps.

use super::super::ground::Ground;
use super::super::heap::{Heap, LockedHeap};
use super::super::shape::{Shape, Size, Tier};
use super::super::types::NO_POOL;
use super::super::units::LARGE_UNITS;
use crate::base::error::{Code, Error, Result};

/// A request.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    /// The heap that serves it.
    pub heap: &'static Heap,
    /// The pool that the heap was found for: if that ends, the heap serves nobody, or another pool.
    pub pool: u32,
    pub size: Size,
    pub charged: u64, // [B]
    pub bytes: u64,   // [B] as requested
    /// Its block must be flagged; see [`Shape::is_tuned`].
    pub tuned: bool,
    /// Set if the block must be aligned to more than every block is.
    pub aligned: Option<Aligned>,
}

/// The terms of an aligned block.
#[derive(Clone, Copy)]
pub(crate) struct Aligned {
    /// [B] the alignment: a power of two up to a granule.
    pub to: u64,
    /// [units] of the block. The request's size is larger: wherever that much is free, the block fits in somewhere.
    pub units: u32,
}

impl Request {
    /// A request for `bytes` that is charged so much.
    pub(crate) fn new(heap: &'static Heap, pool: u32, shape: &Shape, bytes: u64, charged: u64) -> Request {
        let tuned = shape.is_tuned(bytes, charged);
        Request { heap, pool, size: shape.size(charged), charged, bytes, tuned, aligned: None }
    }

    /// The same request with another charge: that of the block that serves it.
    pub(super) fn charged_as(&self, shape: &Shape, charged: u64) -> Request {
        Request { charged, tuned: shape.is_tuned(self.bytes, charged), ..*self }
    }

    /// Fails if the pool of the request has ended. `h` is the heap of the request.
    pub(crate) fn check_pool<G>(&self, h: &LockedHeap<'_, G>) -> Result<()> {
        if h.heap.pool() != self.pool || self.pool == NO_POOL {
            return Err(Error::new(Code::InvalidArgument, "the pool was destroyed meanwhile"));
        }
        Ok(())
    }

    /// Whether the large tier serves it.
    pub(super) fn is_large(&self) -> bool {
        self.size.tier == Tier::Large
    }

    /// Whether its block must lie in one piece, so that no scattered memory serves it.
    pub(super) fn in_one_piece(&self, ground: &Ground) -> bool {
        self.aligned.is_some() || ground.tuned.in_one_piece()
    }

    /// The number of granules that it needs if it has none.
    pub(super) fn granules(&self) -> u64 {
        if self.is_large() { u64::from(self.size.units.div_ceil(LARGE_UNITS)) } else { 1 }
    }
}
