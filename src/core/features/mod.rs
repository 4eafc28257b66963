//! What the pond can do besides allocating and freeing: one type, or a few functions, for each feature. The pond hands
//! the types out as they are.

mod blocks;
mod capture;
mod checkpoint;
mod closing;
mod explain;
mod exports;
mod frees;
mod heap_of;
mod pool_end;
mod pool_heaps;
mod rebuild;
mod resize;
mod restore;
mod sleep;
mod sleeping_memory;
mod snapshot;
pub(crate) mod spaces;
mod statistics;
mod streams;
mod tags;
mod walk;

pub(crate) use blocks::{block_at, to_be_freed};
pub use capture::CaptureCalls;
pub use checkpoint::CheckpointCalls;
pub(crate) use closing::{close, discard};
pub(crate) use explain::Explain;
pub use exports::{ExportCalls, Exported, Pieces};
pub(crate) use frees::Free;
pub(crate) use heap_of::HeapOf;
pub(crate) use pool_end::PoolEnd;
pub(crate) use resize::resize;
pub use restore::Restored;
pub use sleep::SleepCalls;
pub(crate) use snapshot::Snapshot;
pub use statistics::StatisticsCalls;
pub(crate) use streams::Uses;
pub use tags::TagCalls;
pub(crate) use walk::Walk;
