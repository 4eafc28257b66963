//! The allocator: a *pond* for each device. It works with offsets and ids and never touches the memory that it hands
//! out; what it needs from outside is declared in [`Backing`].
//!
//! State is below, the code that acts on it above; each file names only those below it, and its own floor:
//!
//! ```text
//! pond        the calls
//! faces       the calls that few callers make
//! ladder      the way of a request and of a free, step by step
//! features/   capture, checkpoint, sleep, exports, the end of pools and streams, statistics
//! supply/     growth, theft, scatter, pressure, memory back to the device
//! account     exact sums, with all heaps locked that matter
//! blocks/     single blocks: how they end their lives, their tags, what the tuning changes for them, how they wait
//! ground/     the complete state, with its locks; the guard of the growth lock
//! ledger, spare       sums and peaks, as plain data; room below the peaks that no heap has
//! state/      what is remembered: growth, pools, captures, checkpoints, sleeping memory, the tuning
//! heap/       the memory of one (pool, stream): what is free, what waits, and the guard of its lock
//! order/      streams and fences: what must have passed before memory is used again
//! bins, aliases       free blocks by size; addresses of scattered granules
//! desc        descriptors, and maps to them
//! shape, types, layout, report, tied      sizes to units; shared terms; all memory at one moment; why a request failed;
//!             which granules go together only
//! units, backing      granules and units; what is needed from outside
//! ```

#![forbid(unsafe_code)]

mod account;
mod aliases;
mod backing;
mod bins;
mod blocks;
mod desc;
mod faces;
mod features;
#[cfg(all(test, not(loom)))]
#[macro_use]
#[path = "tests/gives_all.rs"]
mod gives_all;
mod ground;
mod heap;
mod ladder;
mod layout;
mod ledger;
mod order;
mod pond;
mod report;
mod shape;
mod spare;
mod state;
mod supply;
#[cfg(all(test, not(loom)))]
mod tests;
pub mod tied;
mod types;
mod units;

pub use backing::{Backing, Completed, Point, Points, alias_one_by_one};
pub use features::{
    CaptureCalls, CheckpointCalls, ExportCalls, Exported, Pieces, Restored, SleepCalls, StatisticsCalls,
    TagCalls,
};
pub(crate) use ground::PoolRef;
pub use ground::{AddressSpan, Config, Pool};
#[cfg(not(loom))] // for the table of fast paths, which no model has
pub(crate) use heap::{HeapSeat, HeapState, Way};
pub use layout::{Layout, Owner, Place, Placed, ScatteredPiece, SegmentRecord, Span};
pub use order::{Ending, Fence, Order};
pub(crate) use order::{Stream, Waits};
pub use pond::Pond;
pub(crate) use report::{Numbers, WaitSums, note_holder, note_tag, note_wait};
pub use report::{
    OOM_NAME, OOM_STEPS, OOM_TOP, OOM_WORDS, OomHolder, OomMissing, OomReason, OomReport, OomStep, OomTried,
    OomWait, WaitsFor,
};
pub(crate) use shape::Class;
pub use state::captures::CaptureId;
pub use state::checkpoints::CheckpointId;
pub(crate) use state::tags::{Tagged, Tags};
pub use state::tuned::Tuning;
#[doc(hidden)]
pub use types::UNORDERED; // for models
pub use types::{
    BlockInfo, BlockRecord, BlockState, BlockStates, Counter, Flow, Freeing, LiveAndFreed, MemoryStats,
    PoolId, Split, Stats, StreamStats, TagStats,
};
pub(crate) use types::{EVERY, past_end};
pub use units::GranuleRun;
pub(crate) use {
    heap::{
        EnteredHeap, Fast, FastFreed, FreedNoted, Heap, HeapEntry, HeapPath, Noted, Notes, Outside, Reused,
        SeatedAtHeap,
    },
    ladder::{Freed, Got},
    supply::Trials,
    units::GRANULE,
};
