//! Calls to a device: how often it was called, how long that took, and what it must be able to do first. The room that the host was
//! found to have is kept until the device has answered (`base/room.rs`).

use crate::base::error::{Code, Error, Result};
use crate::base::room::{while_kept, while_kept_if_any};
use crate::device::{Device, ExternalStreams, Mapping, MemoryInfo};
use crate::fail;
use crate::runtime::watch::latency::{Latencies, Latency};
use crate::runtime::watch::observe::Observers;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Counts of calls since the device was opened.
pub(crate) struct Calls {
    all: AtomicU64,
    taken: AtomicU64,
    given: AtomicU64,
    rejected: AtomicU64,
    observers: Arc<Observers>,
}

/// `OutOfMemory` if the device reports fewer free bytes, or would have less than the headroom left.
pub(crate) fn check_free(device: &dyn Device, bytes: u64, headroom: u64) -> Result<()> {
    match device.memory_info().map(MemoryInfo::known) {
        Ok(Some(m)) if headroom > 0 && m.free < bytes.saturating_add(headroom) => fail!(
            Code::OutOfMemory,
            "the device has {} bytes free, {bytes} are needed, and {headroom} are left to others (headroom_mb)",
            m.free
        ),
        Ok(Some(m)) if m.free < bytes => fail!(
            Code::OutOfMemory,
            "the device has {} bytes free, {bytes} are needed (throw_on_cudamalloc_oom)",
            m.free
        ),
        // A device that cannot report its free memory is simply asked for memory.
        _ => Ok(()),
    }
}

/// Only a device that may have streams of others can be asked about them.
pub(super) fn external(device: &dyn Device) -> Result<&dyn ExternalStreams> {
    device
        .external_streams()
        .ok_or_else(|| Error::new(Code::Unsupported, "this device knows all its streams"))
}

/// The facet of a device that maps.
pub(super) fn mapping_of(device: &dyn Device) -> Result<&dyn Mapping> {
    device.mapping().ok_or_else(|| Error::new(Code::Internal, "the device does not map any more"))
}

impl Calls {
    pub(super) fn new(observers: Arc<Observers>) -> Calls {
        let [all, taken, given, rejected] = [const { AtomicU64::new(0) }; 4];
        Calls { all, taken, given, rejected, observers }
    }

    /// Makes a call that creates or maps memory.
    pub(super) fn takes<T>(&self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        self.counted(&self.taken, Latency::DeviceAlloc, call)
    }

    /// Makes a call that releases or unmaps memory.
    pub(super) fn gives<T>(&self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        self.counted(&self.given, Latency::DeviceFree, call)
    }

    fn counted<T>(&self, done: &AtomicU64, what: Latency, call: impl FnOnce() -> Result<T>) -> Result<T> {
        self.all.fetch_add(1, Relaxed);
        while_kept(|| self.latencies().timed(what, call)).inspect(|_| _ = done.fetch_add(1, Relaxed))
    }

    /// Makes a call about events that does not wait for them.
    pub(super) fn of_events<T>(&self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        while_kept_if_any(|| self.latencies().timed(Latency::DeviceEvent, call))
    }

    /// Waits on the host.
    pub(super) fn waits<T>(&self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        while_kept(|| self.latencies().timed(Latency::EventWait, call))
    }

    /// A call was not made, since the device had too little memory.
    pub(super) fn reject(&self) {
        self.rejected.fetch_add(1, Relaxed);
    }

    /// The number of calls that create, map, release or unmap memory, those that failed with them.
    pub(crate) fn count(&self) -> u64 {
        self.all.load(Relaxed)
    }

    /// The number of calls that have created or mapped memory, and of those that have released or unmapped it.
    pub(crate) fn counts_done(&self) -> [u64; 2] {
        [self.taken.load(Relaxed), self.given.load(Relaxed)]
    }

    /// Calls that were not made.
    pub(crate) fn rejections(&self) -> u64 {
        self.rejected.load(Relaxed)
    }

    /// How long calls take.
    pub(crate) fn latencies(&self) -> &Latencies {
        &self.observers.latencies
    }
}
