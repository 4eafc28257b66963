//! Joins pools to devices: which device types there are, opening and ending devices, and each call
//! on a device with its arguments checked.
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
//! Lock order, outermost first. A lock is only taken while holding locks above it, and no lock at all
//! is held while a device, a plugin or a callback runs:
//!
//! 1. the gate (`gate.rs`): start and end of devices; a turn, not a mutex, and held across devices
//! 2. `REGISTRY` (`registry.rs`): types by name
//! 3. the handle tables of `capi`
//! 4. the defaults of options (`options/defaults.rs`); the settings of one device (`memory/settings.rs`), and
//!    below them the account of its memory (`memory.rs`)
//! 5. the tables of host and unified memory (`pinned.rs`), the out-of-memory callbacks (`rescue.rs`),
//!    the scopes by pool (`scope.rs`), the caller's events (`borrowed.rs`),
//!    the ranges that have memory (`segments.rs`), tickets and imports (`share/`); heaps may be locked above tickets
//!
//! A pass (`usage.rs`) is a count, not a lock: the end of a device waits for it inside the gate, so who
//! holds one never goes through the gate (`outside` refuses it).
//!
//! Nothing here is ever destroyed: a static destructor that comes late gets a status.

use std::sync::{Mutex, MutexGuard, PoisonError};

mod borrowed;
mod builtin;
mod copies;
mod device;
mod fork;
mod gate;
mod memory;
mod options;
mod pinned;
mod registry;
mod rescue;
mod scope;
mod segments;
mod share;
mod supply;
mod table;
mod unpooled;
mod usage;

pub use crate::core::{BlockInfo, CaptureId, CheckpointId, Counter, PoolId, Restored, Stats};
#[cfg(feature = "capi")]
pub(crate) use crate::core::{Freed, Got, Heap, Pool};
pub use crate::device::cuda::CudaOptions;
pub use crate::device::host::HostOptions;
pub use crate::device::{Caps, CopyKind, EventId, StreamCallback, StreamId};
pub use builtin::host_options;
pub use device::{DeviceInfo, DeviceState};
pub use memory::Memory;
#[cfg(feature = "capi")]
pub(crate) use memory::Pooled;
pub use options::set_default_options;
pub use pinned::HostStats;
pub(crate) use registry::device_facts;
pub use registry::{
    absence, configure_cuda, configure_host, device, device_count, finalize, free, holder, import_close,
    owner, register_type, type_names, unregister_type,
};
pub use segments::Segment;
pub use share::Export;
pub use table::by_id;

#[cfg(feature = "capi")]
pub(crate) use crate::base::told::check as check_told;
pub(crate) use fork::check as check_fork;

/// Locks, whatever a panicking thread left behind: each user leaves its data whole before anything
/// that can panic.
pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
