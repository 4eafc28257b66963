//! Joins pools to devices: the device types, opening and ending devices, and each call on a device with its arguments
//! checked.
//!
//! ```
//! use millpond::runtime::{self, PoolId};
//!
//! # fn main() -> millpond::Result<()> {
//! let device = runtime::device("host", 0)?;
//! let stream = device.streams().create()?;
//!
//! // Memory for work that is queued on the stream from now on.
//! let block = device.memory().alloc(PoolId::DEFAULT, stream, 1 << 20)?;
//! device.memset_async(stream, block, 7, 1 << 20)?;
//! device.streams().synchronize(stream)?;
//! let mut byte = [0];
//! device.read(block + 1000, &mut byte)?;
//! assert_eq!(byte, [7]);
//!
//! // Freed in the order of the stream: work queued before may still use it.
//! device.memory().free(block, Some(stream), None)?;
//! assert_eq!(device.memory().stats().allocated.current, 0);
//! device.streams().destroy(stream)
//! # }
//! ```
//!
//! No lock is held while a device, a plugin or a callback runs; the exceptions are in `docs/architecture.md`, "Locks". One
//! thread at a time starts and ends devices: the gate (`types/gate.rs`) lets it in.
//!
//! A pass (`entry/usage.rs`) is a count, not a lock: the end of a device waits, inside the gate, for all passes, so a thread
//! that holds one never goes through the gate (`outside` refuses it).
//!
//! Nothing here is ever destroyed: a static destructor that runs late gets a status.

mod backing;
pub(crate) mod device;
pub(crate) mod entry;
mod group;
mod history;
pub(crate) mod ladder;
mod memory;
mod nvtx;
mod oom;
mod options;
mod pinned;
mod pool_handle;
mod recording;
mod share;
mod snapshot;
mod statistics;
mod tools;
mod types;
mod unpooled;
mod watch;

pub use crate::base::histogram::Durations;
pub use crate::base::inline::{Few, Text};
pub use crate::core::{
    BlockInfo, BlockRecord, BlockState, BlockStates, CaptureId, CheckpointId, Counter, Flow, Freeing, Layout,
    MemoryStats, Owner, Place, Placed, PoolId, Restored, ScatteredPiece, SegmentRecord, Span, Split, Stats,
    StreamStats, TagStats,
};
pub use crate::core::{
    OOM_STEPS, OOM_TOP, OomHolder, OomMissing, OomReason, OomReport, OomStep, OomTried, OomWait, WaitsFor,
};
pub use crate::device::cuda::CudaOptions;
pub use crate::device::host::HostOptions;
pub use crate::device::{
    Advice, Caps, CopyKind, EventId, MAX_TYPE_NAME, StreamCallback, StreamId, StreamKind, UnifiedPlace,
};
pub use backing::segments::Segment;
pub use device::by_address::{
    BlockOnDevice, device_free, free, holder, holders, import_close, owner, try_expand, usable_size, user,
};
pub use device::events::DeviceEvents;
pub use device::group::DeviceGroup;
pub use device::host_memory::HostMemory;
pub use device::options::DeviceOptions;
pub use device::peers::PeerAccess;
pub use device::pools::DevicePools;
pub use device::sharing::SharedMemory;
pub use device::state::{DeviceInfo, DeviceState};
pub use device::streams::DeviceStreams;
pub use device::table::by_id;
pub use device::tags::DeviceTagStats;
pub use device::unified::UnifiedMemory;
pub use entry::tags::{MAX_TAG_NAME, Tag, pop_tag};
pub use group::{GroupMember, group_members, set_group_budget};
pub use history::{History, HistoryOptions, annotate, history_on_signal, history_stamp};
pub use memory::captures::{Captures, Checkpoints};
pub use memory::hooked::MemoryHooks;
pub use memory::oom::OomCallbacks;
pub use memory::pools::Pools;
pub use memory::settings::MemorySettings;
pub use memory::sharing::SegmentCallbacks;
pub use memory::state::Memory;
pub use memory::statistics::MemoryStatistics;
pub use memory::streams::KnownStreams;
pub use memory::tag_scopes::TagScope;
pub use memory::watched::Watchers;
pub use options::{set_default_options, set_pytorch_options};
pub use pinned::cache::HostStats;
pub use pinned::numbers::{HostMemoryStats, Times};
pub use pinned::tags::HostTagStats;
pub use pool_handle::PoolHandle;
pub use recording::format::{HistoryEvent, HistoryFile};
pub use share::Export;
pub use snapshot::{Action, Event as SnapshotEvent, Snapshot, SnapshotFormat};
pub use statistics::{StatsFormat, stats_text_of_all};
pub use types::host_options;
pub(crate) use types::registry::device_facts;
pub use types::registry::{
    absence, configure_cuda, configure_host, device, device_count, finalize, register_type, type_names,
    unregister_type,
};
pub use watch::event::{Event, EventKind, Told};
pub use watch::hooks::{BlockEvent, BlockEventKind};
pub use watch::latency::Latency;
pub use watch::observe::Observer;

pub(crate) use entry::fork::check as check_fork;
pub(crate) use entry::reentry::may_block;

pub(crate) use crate::base::sync::system::lock;
