//! The locks of the library: their order, and what each level guards. Every room may name this file, which names `base`
//! only.
//!
//! `docs/architecture.md`, "Locks", has all locks with their places, and what may be called while each is held. The test
//! `tests/sources/locks.rs` compares it with this list and with the declarations.

pub use crate::base::sync::levels::Leaf;

crate::levels! {
    /// The turn to call segment callbacks. Held while they run, so that they are called in order.
    SegmentsTurn [OVER_CALLS],
    /// The device types that are registered.
    Registry,
    /// The options of one device, and its limit.
    Settings,
    /// The pools named by allocation scopes.
    Scopes,
    /// Memory that is taken from a device, and memory in transit.
    Growth,
    /// The heaps of one pool, by stream.
    PoolStreams,
    /// What the memory of one pool's released captures waits for.
    PoolReleased,
    /// Live captures.
    Captures,
    /// Checkpoints: the recorded layouts of pools.
    Checkpoints,
    /// Which memory of the pools sleeps.
    Sleeping,
    /// Sums and peaks of the device and its pools.
    Ledger,
    /// One heap. Several are taken in ascending order of their numbers.
    Heap [SEVERAL],
    /// Which heaps contain freed blocks that wait.
    Waiting,
    /// The addresses of scattered blocks.
    Aliases,
    /// Free slots in the tables of one tier.
    TableSlots,
    /// Block ids that no heap holds.
    SpareIds,
    /// Streams that have been used, and the fences that ended streams left behind.
    Streams,
    /// Which streams are being captured, and on which ones fences are being recorded.
    Recording,
    /// The fence that one ended stream left behind.
    StreamEnd,
    /// The driver that the type `cuda` has loaded.
    CudaType,
    /// The streams of the host device.
    HostStreams,
    /// The turn to change who watches a device's memory.
    Observers,
    /// Pools that were looked up recently, by handle.
    HandleCache,
}
