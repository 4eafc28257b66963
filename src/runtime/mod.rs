//! Joins pools to devices: which device types there are, opening and ending devices, and each call
//! on a device with its arguments checked.
//!
//! Lock order, outermost first. A lock is only taken while holding locks above it, and no lock at all
//! is held while a device, a plugin or a callback runs:
//!
//! 1. the gate (`gate.rs`): start and end of devices; a turn, not a mutex, and held across devices
//! 2. `REGISTRY` (`registry.rs`): types by name
//! 3. the handle tables of `capi`
//! 4. the account of one device's memory (`memory.rs`)
//! 5. the tables of host and unified memory (`pinned.rs`)
//!
//! Nothing here is ever destroyed: a static destructor that comes late gets a status.

use std::sync::{Mutex, MutexGuard, PoisonError};

mod builtin;
mod copies;
mod device;
mod fork;
mod gate;
mod memory;
mod pinned;
mod registry;
mod table;

pub use crate::core::{BlockInfo, Counter, PoolId, Stats};
pub use crate::device::host::HostOptions;
pub use builtin::host_options;
pub use device::{DeviceInfo, DeviceState};
pub use memory::Memory;
pub use registry::{
    configure_host, device, device_count, finalize, free, holder, owner, register_type, type_names,
    unregister_type,
};
pub use table::by_id;

pub(crate) use fork::check as check_fork;

/// Locks, whatever a panicking thread left behind: each user leaves its data whole before anything
/// that can panic.
pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
