//! Joins pools to devices: the device types, opening and ending devices, and each call on a device with its arguments
//! checked.
//!
//! ```
//! use millpond::runtime::{self, PoolId};
//!
//! # fn main() -> millpond::Result<()> {
//! let device = runtime::device("host", 0)?;
//! let stream = device.stream_create()?;
//!
//! // Memory for work that is queued on the stream from now on.
//! let block = device.memory().alloc(PoolId::DEFAULT, stream, 1 << 20)?;
//! device.memset_async(stream, block, 7, 1 << 20)?;
//! device.stream_synchronize(stream)?;
//! let mut byte = [0];
//! device.read(block + 1000, &mut byte)?;
//! assert_eq!(byte, [7]);
//!
//! // Freed in the order of the stream: work queued before may still use it.
//! device.memory().free(block, Some(stream), None)?;
//! assert_eq!(device.memory().stats().allocated.current, 0);
//! device.stream_destroy(stream)
//! # }
//! ```
//!
//! No lock is held while a device, a plugin or a callback runs; the exceptions are in `docs/architecture.md`, "Locks". One
//! thread at a time starts and ends devices: the gate (`gate.rs`) lets it in.
//!
//! A pass (`usage.rs`) is a count, not a lock: the end of a device waits, inside the gate, for all passes, so a thread
//! that holds one never goes through the gate (`outside` refuses it).
//!
//! Nothing here is ever destroyed: a static destructor that runs late gets a status.

mod backing;
mod builtin;
mod copies;
mod deferred;
mod device;
mod explain;
mod fast_paths;
mod fork;
mod gate;
mod handle_cache;
mod history;
mod hooks;
pub(crate) mod ladder;
mod latency;
mod memory;
mod numbers;
mod observe;
mod options;
mod pinned;
mod pool_handle;
mod reentry;
mod registry;
mod rescue;
mod scope;
mod share;
mod snapshot;
mod statistics;
mod streams;
mod table;
mod tag_scopes;
mod tags;
mod tools;
mod unpooled;
mod usage;
mod zeroed;

pub use crate::base::histogram::Durations;
pub use crate::core::{
    BlockInfo, BlockRecord, BlockState, BlockStates, CaptureId, CheckpointId, Counter, Flow, Freeing, Layout,
    MemoryStats, Owner, Place, Placed, PoolId, Restored, Span, Split, Stats, TagStats,
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
pub use builtin::host_options;
pub use device::{DeviceInfo, DeviceState};
#[cfg(feature = "capi")]
pub(crate) use history::name_pools_by;
pub use history::{History, HistoryEvent, HistoryFile, HistoryOptions, annotate, history_on_signal};
pub use hooks::{BlockEvent, BlockEventKind};
pub use latency::Latency;
pub use memory::{Memory, StreamStats};
pub use observe::{Event, EventKind, Observer, Told};
pub use options::{set_default_options, set_pytorch_options};
pub use pinned::{HostMemoryStats, HostStats, Times};
pub use pool_handle::PoolHandle;
pub(crate) use registry::device_facts;
#[cfg(feature = "capi")]
pub(crate) use registry::{BlockOnDevice, holders};
pub use registry::{
    absence, configure_cuda, configure_host, device, device_count, finalize, free, holder, import_close,
    owner, register_type, try_expand, type_names, unregister_type, usable_size, user,
};
pub use share::Export;
pub use snapshot::{Action, Event as SnapshotEvent, Snapshot, SnapshotFormat};
pub use statistics::StatsFormat;
pub use table::by_id;
pub use tag_scopes::TagScope;
#[cfg(feature = "capi")]
pub(crate) use tags::c_name as tag_name;
pub use tags::{MAX_TAG_NAME, Tag, pop_tag};

pub(crate) use fork::check as check_fork;
#[cfg(feature = "capi")]
pub(crate) use reentry::check_segment_callback;
pub(crate) use reentry::may_block;

pub(crate) use crate::base::sync::system::lock;
