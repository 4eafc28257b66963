//! A type of devices, and a device: identity, memory, copies, streams, and the facets that only some devices have. The
//! facet [`Peers`] stands here too, since it is about other devices.

use super::{
    Caps, CopyKind, DriverPool, ExternalStreams, Facts, HostWish, Mapping, MemoryInfo, Registration, Sharing,
    Sizes, StreamId, Streams, Unified, Versions, Whose, no_stream,
};
use crate::base::error::Result;
use std::sync::Arc;

/// A named kind of device.
pub trait DeviceType: Send + Sync {
    /// The name that users give, such as `"host"`.
    fn name(&self) -> &str;
    /// A finer name, or an empty string.
    fn sub_name(&self) -> &str {
        ""
    }
    /// Makes the type ready. Called once before any other call, and again only after `finalize`.
    fn initialize(&self) -> Result<()>;
    /// Ends the type: joins threads and gives memory back. Devices that were opened from it answer `NotInitialized`
    /// from then on.
    fn finalize(&self) -> Result<()>;
    /// How many devices there are; ordinals are `0..count`.
    fn device_count(&self) -> Result<usize>;
    /// Prepares to open devices, once somebody wants one; from here on `device_count` is exact. Until then a type may
    /// answer `device_count` without starting its driver, so that a forked child can still use the driver. A type that
    /// cannot start has no devices; that is no error here, see `absence`.
    fn wake(&self) {}
    /// Why there are no devices, if there is a reason to tell.
    fn absence(&self) -> Option<String> {
        None
    }
    /// Opens a device. Each call for the same ordinal returns the same device.
    fn open(&self, ordinal: usize) -> Result<Arc<dyn Device>>;
}

/// One device.
///
/// Blocking copies and `memset` without a stream wait for all work queued on the device so far; while a stream of it is
/// captured, only for what the default stream waits for.
pub trait Device: Send + Sync {
    /// Its ordinal within the type.
    fn ordinal(&self) -> usize;
    /// What it is.
    fn facts(&self) -> Facts;
    /// Why the device does not have `cap`, for a person, as what follows a colon. Asked only where it has not.
    fn lack(&self, cap: Caps) -> String {
        let _ = cap;
        "no device of its type has it".to_owned()
    }
    /// The sizes that shape allocation.
    fn sizes(&self) -> Sizes;
    /// Total and free memory.
    fn memory_info(&self) -> Result<MemoryInfo>;
    /// Version numbers.
    fn versions(&self) -> Versions;
    /// Makes this the calling thread's current device, if the driver has such a concept.
    fn set_current(&self) -> Result<()> {
        Ok(())
    }
    /// Waits on the host for all work queued on the device.
    fn synchronize(&self) -> Result<()>;

    /// Takes `bytes` (a multiple of `min_chunk`) from the device.
    fn alloc(&self, bytes: u64) -> Result<u64>;
    /// Gives back what `alloc` returned, with the same size. Waits for nothing.
    fn free(&self, addr: u64, bytes: u64) -> Result<()>;
    /// Host memory that is fast to copy to and from this device (pinned).
    fn host_alloc(&self, bytes: u64, wish: HostWish) -> Result<u64>;
    /// Gives back what `host_alloc` returned.
    fn host_free(&self, addr: u64, bytes: u64) -> Result<()>;

    /// Copies, and returns when the bytes have arrived.
    fn copy(&self, kind: CopyKind, dst: u64, src: u64, bytes: u64) -> Result<()>;
    /// Queues a copy on `stream`. Pageable host sources have been read when this returns.
    fn copy_async(&self, stream: StreamId, kind: CopyKind, dst: u64, src: u64, bytes: u64) -> Result<()>;
    /// Fills with a byte, and returns when done.
    fn memset(&self, dst: u64, value: u8, bytes: u64) -> Result<()>;
    /// Queues a fill on `stream`.
    fn memset_async(&self, stream: StreamId, dst: u64, value: u8, bytes: u64) -> Result<()>;

    /// Its streams and events.
    fn streams(&self) -> &dyn Streams;
    /// Streams that others create, if the device can have any.
    fn external_streams(&self) -> Option<&dyn ExternalStreams> {
        None
    }
    /// Physical memory that is separate from addresses. May become `None` before the window is open, but not after.
    fn mapping(&self) -> Option<&dyn Mapping> {
        None
    }
    /// Memory that host and device access at the same address.
    fn unified(&self) -> Option<&dyn Unified> {
        None
    }
    /// Registering host memory of the caller.
    fn registration(&self) -> Option<&dyn Registration> {
        None
    }
    /// The stream-ordered pool of the device's driver.
    fn driver_pool(&self) -> Option<&dyn DriverPool> {
        None
    }
    /// Sharing memory with other processes.
    fn sharing(&self) -> Option<&dyn Sharing> {
        None
    }
    /// Copies to other devices of the type, and access to their memory.
    fn peers(&self) -> Option<&dyn Peers> {
        None
    }
}

impl<'a> dyn Device + 'a {
    /// What the device can do, as reported to users.
    pub fn caps(&self) -> Caps {
        let (facts, streams, sharing) = (self.facts(), self.streams(), self.sharing());
        let all = [
            (Caps::MAPPING, self.mapping().is_some()),
            (Caps::HOST_ACCESS, facts.host_access),
            (Caps::UNIFIED, self.unified().is_some()),
            (Caps::PINNED, facts.pinned),
            (Caps::STREAMS, streams.can_create()),
            (Caps::CALLBACKS, true),
            (Caps::EXPORT, sharing.is_some_and(Sharing::exports)),
            (Caps::RDMA, sharing.is_some_and(Sharing::reached_by_bus)),
        ];
        all.into_iter().filter(|(_, has)| *has).map(|(cap, _)| cap).collect()
    }

    /// To whom a stream belongs: see [`ExternalStreams::owner`].
    pub(crate) fn stream_owner(&self, stream: StreamId) -> Result<Whose> {
        match self.external_streams() {
            Some(external) => external.owner(stream),
            None if stream == 0 || self.streams().exists(stream) => Ok(Whose::Ours),
            None => Err(no_stream(stream)),
        }
    }

    /// Whether `stream` denotes the default stream.
    pub(crate) fn is_default(&self, stream: StreamId) -> bool {
        self.external_streams().map_or(stream == 0, |e| e.is_default(stream))
    }

    /// Whether `stream` denotes a different stream on each thread.
    pub(crate) fn is_per_thread(&self, stream: StreamId) -> bool {
        self.external_streams().is_some_and(|e| e.is_per_thread(stream))
    }
}

/// Copies between devices of one type, and access to each other's memory. The caller has checked that `to`, `from` and
/// `peer` are open devices of the same type; they may be this one.
pub trait Peers: Send + Sync {
    /// Copies from this device to `to`, and returns when the bytes have arrived.
    fn copy(&self, to: &dyn Device, dst: u64, src: u64, bytes: u64) -> Result<()>;
    /// Queues a copy from this device to `to` on a stream of this device.
    fn copy_async(&self, stream: StreamId, to: &dyn Device, dst: u64, src: u64, bytes: u64) -> Result<()>;
    /// Queues a copy from `from` to this device on a stream of this device. `Unsupported` if only streams of the source
    /// device can make such copies.
    fn copy_from_async(
        &self,
        stream: StreamId,
        from: &dyn Device,
        dst: u64,
        src: u64,
        bytes: u64,
    ) -> Result<()>;
    /// Whether work on `peer` could be given access to this device's memory, at its address here.
    fn can_admit(&self, peer: &dyn Device) -> Result<bool>;
    /// Gives work on `peer` access to all memory of this device, at its address here, from now on. `Unsupported` if
    /// that is not possible.
    fn admit(&self, peer: &dyn Device) -> Result<()>;
    /// Gives access without being asked to, as far as that costs nothing: no later request may fail because of it. A device
    /// that cannot promise this does nothing, and leaves it to [`admit`](Self::admit).
    fn invite(&self, peer: &dyn Device) -> Result<()>;
}
