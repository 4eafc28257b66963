//! The embedded host device: memory of the process served as if it were a GPU's.
//!
//! It is a real device, not a mock: it has capacity that is committed as it is touched, physical granules separate from
//! addresses, streams with a thread each, and events across streams and devices. `device.rs` is the front; `streams`,
//! `mapping`, `sharing` and `peers` are its facets; `memory`, `granules`, `stream`, `event` and `staging` do the work;
//! `shared.rs` holds them together. Every call in a forked child returns `NotPermitted`, and every call after
//! `finalize` returns `NotInitialized`. Nothing here knows pools.
//!
//! Unlike other memory, mapped memory is shared with forked children (it is a memory file): a child that writes to it
//! writes to the parent's memory. Plain blocks are the child's own copies; that is why `cpu`, whose memory serves
//! ordinary host objects, is made without mapping. A stream's queue is unbounded.
//!
//! Unix only; granules can be mapped on Linux only. No code here depends on the processor.

mod copies;
mod device;
mod event;
#[cfg(target_os = "linux")]
mod granules;
#[cfg(not(target_os = "linux"))]
#[path = "granules_none.rs"]
mod granules;
mod handles;
mod mapping;
mod memory;
mod options;
mod pages;
mod peers;
mod process;
mod registration;
mod shared;
mod sharing;
mod staging;
mod stream;
mod streams;
#[cfg(test)]
mod tests;
mod times;
mod unified;

pub use options::{CAPACITIES, CAPACITIES_WANTED, HostOptions, MAX_DEVICES, machine_memory};

use crate::base::error::{Code, Error, Result};
use crate::base::fork;
use crate::base::sync::system::{Mutex, lock};
use crate::device::{Device, DeviceType};
use crate::fail;
use device::HostDevice;
use shared::Shared;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A type of host devices. Several may exist side by side (as `host` and `cpu` do), each with its own memory and
/// streams.
pub struct HostType {
    name: String,
    options: HostOptions,
    born: u64, // `fork::count()` when it was made
    state: Mutex<Life>,
}

enum Life {
    Off,
    Running { shared: Arc<Shared>, devices: Vec<Arc<HostDevice>> },
    Ending,
}

/// Statistics of a host device that are not in the [`Device`] trait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostStats {
    /// Stream threads that have not ended.
    pub stream_threads: u64,
    /// Live blocks of `host_alloc`.
    pub pinned_blocks: u64,
    /// Bytes in them.
    pub pinned_bytes: u64,
    /// Those of these bytes that the system keeps in RAM; the rest exceeded `RLIMIT_MEMLOCK` and is ordinary memory.
    pub locked_bytes: u64,
    /// Bytes of physical granules that were touched, and thus use the machine's memory.
    pub committed_bytes: u64,
    /// Callbacks of all devices of the type that panicked. A panic ends the callback only.
    pub callback_panics: u64,
}

impl HostType {
    /// A type of this name, not yet initialised. Takes no memory and starts no thread; `initialize` checks the options.
    pub fn new(name: &str, options: HostOptions) -> HostType {
        // A failure here happens again, and is reported, in `initialize`.
        let _ = fork::watch();
        HostType { name: name.to_owned(), options, born: fork::count(), state: Mutex::new(Life::Off) }
    }

    /// Counters of one device. `UnknownDevice` if the ordinal is out of range; `NotInitialized` and `NotPermitted` as
    /// for every call.
    pub fn stats(&self, ordinal: usize) -> Result<HostStats> {
        let shared = self.running()?;
        let _pass = shared.enter()?;
        let Some(state) = shared.devices.get(ordinal) else { return self.no_device(ordinal) };
        let pinned = shared.blocks.pinned(ordinal);
        Ok(HostStats {
            stream_threads: state.thread_count() as u64,
            pinned_blocks: pinned.blocks,
            pinned_bytes: pinned.bytes,
            locked_bytes: pinned.locked_bytes,
            committed_bytes: state.granules.as_ref().map_or(0, granules::Granules::committed),
            callback_panics: shared.panics.load(Ordering::Relaxed),
        })
    }

    fn running(&self) -> Result<Arc<Shared>> {
        process::check_fork(self.born)?;
        match &*lock(&self.state) {
            Life::Running { shared, .. } => Ok(Arc::clone(shared)),
            _ => Err(self.not_initialized()),
        }
    }

    fn not_initialized(&self) -> Error {
        Error::formatted(
            Code::NotInitialized,
            format_args!("device type \"{}\" is not initialised", self.name),
        )
    }

    fn no_device<T>(&self, ordinal: usize) -> Result<T> {
        fail!(Code::UnknownDevice, "device type \"{}\" has no device {ordinal}", self.name)
    }
}

impl DeviceType for HostType {
    fn name(&self) -> &str {
        &self.name
    }

    /// `Busy` if it is already initialised, `InvalidArgument` for bad options.
    fn initialize(&self) -> Result<()> {
        process::check_fork(self.born)?;
        fork::watch()?;
        let options = self.options.resolve()?;
        let mut state = lock(&self.state);
        if !matches!(*state, Life::Off) {
            fail!(Code::Busy, "device type \"{}\" is initialised already", self.name);
        }
        let shared = Shared::new(options, self.born);
        let device = |ordinal| Arc::new(HostDevice { shared: Arc::clone(&shared), ordinal });
        let devices = (0..options.device_count).map(device).collect();
        *state = Life::Running { shared, devices };
        Ok(())
    }

    /// Waits for running calls and for all queued work, then joins every thread and gives all memory back.
    /// `NotPermitted` from a callback.
    fn finalize(&self) -> Result<()> {
        process::check_fork(self.born)?;
        process::check_may_block()?;
        let running = {
            let mut state = lock(&self.state);
            match std::mem::replace(&mut *state, Life::Ending) {
                Life::Running { shared, devices } => (shared, devices),
                other => {
                    *state = other;
                    return Err(self.not_initialized());
                }
            }
        };
        let result = running.0.finish();
        drop(running);
        *lock(&self.state) = Life::Off;
        result
    }

    fn device_count(&self) -> Result<usize> {
        self.running().map(|shared| shared.devices.len())
    }

    fn open(&self, ordinal: usize) -> Result<Arc<dyn Device>> {
        process::check_fork(self.born)?;
        let found = match &*lock(&self.state) {
            Life::Running { devices, .. } => devices.get(ordinal).map(Arc::clone),
            _ => return Err(self.not_initialized()),
        };
        match found {
            Some(device) => Ok(device),
            None => self.no_device(ordinal),
        }
    }
}

impl Drop for HostType {
    fn drop(&mut self) {
        let state = std::mem::replace(&mut *lock(&self.state), Life::Off);
        let Life::Running { shared, devices } = state else { return };
        if process::check_fork(self.born).is_err() {
            // The memory belongs to the parent, and the threads do not exist here: touch nothing.
            std::mem::forget((shared, devices));
        } else if process::in_callback() {
            // This thread may be one of those to be joined. They end by themselves; the memory stays, since queued work
            // may still use it.
            shared.devices.iter().for_each(shared::State::close_streams);
            std::mem::forget((shared, devices));
        } else {
            let _ = shared.finish();
        }
    }
}
