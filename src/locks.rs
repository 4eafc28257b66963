//! The locks of the library: their order, and what each level guards. Every room may name this file, which names `base`
//! only.
//!
//! `docs/architecture.md`, "Locks", has all locks with their places, and what may be called while each is held. The test
//! `tests/sources/locks.rs` compares it with this list and with the declarations.

pub use crate::base::sync::levels::Leaf;

crate::levels! {
    /// The turn to choose the signal that begins histories, and to start the thread that hears it.
    SignalTurn,
    /// The turn to begin or end a history or a recording of one device.
    TapeTurn,
    /// The turn to call segment callbacks, which are called in order.
    SegmentsTurn [OVER_CALLBACKS],
    /// The device types that are registered, and their open devices.
    Registry,
    /// The options of one device's memory, and its limit.
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
    /// One heap. Several are taken in ascending order of their numbers, by a thread that holds the ledger.
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
    /// The driver that the type `cuda` has loaded, and its open devices.
    CudaType [OVER_DEVICE],
    /// The driver's pool that serves one device of the type `cuda`, and the devices that may use its memory.
    CudaPool [OVER_DEVICE],
    /// The granules of one device of the type `cuda`: which have memory, and where they are mapped.
    CudaGranules [OVER_DEVICE],
    /// The streams of one host device, with their threads.
    HostStreams,
    /// The turn to change who watches a device's memory.
    Observers,
    /// Pools that were looked up recently, by handle.
    HandleCache,
    /// Pinned memory of one device: what is live, what waits, and what is cached.
    Pinned,
    /// The blocks of one device whose requests go to the device themselves.
    Unpooled,
    /// The turn to change the tables of one device's segments, which are read without it.
    Places,
    /// Who watches a device's memory. Each of several stripes has the whole list; a thread reads one of them.
    Stripe,
    /// One tool that watches a device's memory, and what it was told.
    Tool,
}
