//! The allocator: a *pond* for each device. It deals in offsets and ids and never touches the memory
//! that it hands out; what it needs from outside it declares in [`Backing`].
//!
//! ```text
//! pond      the calls: alloc, free, statistics         supply   growth, theft, scatter, pressure
//! capture   streams whose work is recorded, and the pools that serve them
//! checkpoint   a pool's layout, kept and brought back
//! sleep     physical memory away, addresses and blocks stay
//! lend      blocks that others use, past their free
//! streams   uses on other streams, pending frees       pools    pools, heaps, their streams
//! heap      the free memory of one (pool, stream)      ledger   exact peaks
//! bins      free blocks by size                        desc     descriptors, and maps to them
//! shape     sizes to units                             aliases  addresses that show scattered granules
//! tuning    what users can change
//! ```
//!
//! Lock order: growth, pool map, ledger, heaps by index, then aliases, captures and table
//! slots. The growth lock
//! alone is held while the backing is asked for memory; no hot path takes it, and nothing that the
//! backing calls may come back into the pond. Marks are made and waited for with no heap locked.

mod account;
mod aliases;
mod backing;
mod bins;
mod capture;
mod checkpoint;
mod desc;
mod heap;
mod ledger;
mod lend;
mod pond;
mod pools;
mod shape;
mod sleep;
mod streams;
mod supply;
#[cfg(all(test, not(loom)))]
mod tests;
mod tuning;
pub mod types;

pub use backing::Backing;
pub use capture::CaptureId;
pub use checkpoint::{CheckpointId, Restored};
pub use heap::Mark;
pub use lend::Pieces;
pub use pond::{Config, Pond};
pub(crate) use pools::EVERY;
pub use pools::Pool;
pub use tuning::Tuning;
pub use types::{BlockInfo, Counter, PoolId, Stats};
#[cfg(feature = "capi")]
pub(crate) use {
    heap::Heap,
    pond::{Freed, Got, Locate},
};
