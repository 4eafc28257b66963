//! The device seam: what a kind of memory must be able to do so that the rest of the library can
//! serve it. `host`, `cuda` and `paddle/foreign` implement it; nothing here knows pools or blocks.
//!
//! [`Device`] is what every device has: who it is, its memory, copies, streams. What only some have is a facet, a trait
//! of its own, and a facet that is missing is the answer to whether the device can do it: [`Mapping`], [`Unified`],
//! [`ExternalStreams`], [`DriverPool`], [`Sharing`], [`Peers`].
//!
//! Addresses are `u64` device addresses, never dereferenced on this side of the seam. Streams and
//! events are `u64` too: the bits of the `C_Stream` / `C_Event` that the caller holds; 0 is the
//! default stream. Every call may come from any thread at any time.

use crate::base::error::{Code, Result};
use crate::fail;
use std::ffi::c_void;
use std::sync::Arc;

pub mod cuda;
mod gate;
pub mod host;
mod mapping;
mod peers;
mod pool;
pub mod sharing;
mod streams;

pub use mapping::{GRANULE, Mapping};
pub use peers::Peers;
pub use pool::{DriverPool, DriverPoolStats};
pub use sharing::Sharing;
pub use streams::{ExternalStreams, StreamCallback, Streams, Whose};

/// The bits of a `C_Stream`; 0 is the device's default stream.
pub type StreamId = u64;
/// No stream of any device: what the C++ header holds of one that could not be made.
pub const NO_STREAM: StreamId = StreamId::MAX;
/// The bits of a `C_Event`; never 0.
pub type EventId = u64;

/// The longest name of a device type, in bytes, without the 0 that ends it in C.
pub const MAX_TYPE_NAME: usize = 31;

bitflags::bitflags! {
    /// What a device can do beyond the required calls. Asked once, when it is opened.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Caps: u32 {
        /// Physical granules are separate from addresses: there is [`Device::mapping`].
        const MAPPING = 1;
        /// The host can read and write device memory at its device address.
        const HOST_ACCESS = 1 << 1;
        /// There is [`Device::unified`].
        const UNIFIED = 1 << 2;
        /// `host_alloc` returns page-locked memory (where the limit allows).
        const PINNED = 1 << 3;
        /// Streams can be created; without it all work runs on the default stream, blocking.
        const STREAMS = 1 << 4;
        /// Stream callbacks work.
        const CALLBACKS = 1 << 5;
    }
}

/// The sizes that shape how memory is taken from the device. All in bytes, none 0 but `padding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Requests are rounded up to a multiple of this; addresses are aligned to it.
    pub min_chunk: u64,
    /// A request that takes more than this goes to the device directly and is not pooled.
    pub max_chunk: u64,
    /// The library never takes more than this from the device in all.
    pub max_alloc: u64,
    /// Added to each request before rounding.
    pub padding: u64,
    /// The size of the first chunk that is taken from the device.
    pub init_alloc: u64,
    /// The size of each later chunk.
    pub realloc: u64,
}

/// Total and free bytes of a device, as it tells itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes the device has.
    pub total: u64,
    /// Bytes that could be taken from it now.
    pub free: u64,
}

/// The three numbers that a custom runtime reports of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// Compute capability, `major * 10 + minor`.
    pub compute_capability: u64,
    /// Version of the runtime library.
    pub runtime: u64,
    /// Version of the driver.
    pub driver: u64,
}

/// Where the two ends of a copy lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CopyKind {
    /// Host memory to device memory.
    HostToDevice = 0,
    /// Device memory to host memory.
    DeviceToHost = 1,
    /// Within one device.
    DeviceToDevice = 2,
}

/// How host memory is wanted; a device does what it can of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostWish {
    /// Ordinary memory that is touched and then locked, instead of memory of the driver's own.
    pub register: bool,
    /// With `register`: so many threads touch the pages, at least 1.
    pub threads: u32,
}

/// A named kind of device.
pub trait DeviceType: Send + Sync {
    /// The name that users give, as in `"host"`.
    fn name(&self) -> &str;
    /// A finer name, or an empty string.
    fn sub_name(&self) -> &str {
        ""
    }
    /// Makes the type ready. Called once before any other call, and again only after `finalize`.
    fn initialize(&self) -> Result<()>;
    /// Ends the type: threads joined, memory given back. Devices opened from it answer
    /// `NotInitialized` from then on.
    fn finalize(&self) -> Result<()>;
    /// How many devices there are; ordinals are `0..count`.
    fn device_count(&self) -> Result<usize>;
    /// Gets ready to open devices, once somebody wants one: from here on `device_count` is exact. Until then
    /// a type may answer it without starting its driver, so that a later fork still can use it. A type that
    /// cannot start has no devices, which is no failure here; see `absence`.
    fn wake(&self) {}
    /// Why there are no devices, where that needs a reason.
    fn absence(&self) -> Option<String> {
        None
    }
    /// One device. Each call for the same ordinal returns the same device.
    fn open(&self, ordinal: usize) -> Result<Arc<dyn Device>>;
}

/// Memory that host and device address alike.
pub trait Unified: Send + Sync {
    /// Takes such memory.
    fn alloc(&self, bytes: u64) -> Result<u64>;
    /// Gives back what `alloc` returned. Waits for the work that may still use it.
    fn free(&self, addr: u64, bytes: u64) -> Result<()>;
}

/// One device.
///
/// Blocking copies and `memset` without a stream wait for all work queued on the device so far.
pub trait Device: Send + Sync {
    /// Its ordinal within the type.
    fn ordinal(&self) -> usize;
    /// What it can do that no facet says: of [`Caps`], all but `MAPPING` and `UNIFIED`.
    fn traits(&self) -> Caps;
    /// The sizes that shape allocation.
    fn sizes(&self) -> Sizes;
    /// Whether [`Sizes::realloc`] is only the least size of a later segment, which may grow with what is taken
    /// already. A plugin's sizes are kept to the byte.
    fn segments_grow(&self) -> bool {
        false
    }
    /// Whether an address of this device may be one of another device too, or of the host, and mean other memory there.
    fn has_own_addresses(&self) -> bool {
        false
    }
    /// How many blocks the library keeps track of at a time at most, free ones included; it needs 32 bytes of host memory
    /// for each. It never has use for more than one for each 512 bytes, and some.
    fn most_blocks(&self) -> u64 {
        u64::MAX
    }
    /// Total and free memory.
    fn memory_info(&self) -> Result<MemoryInfo>;
    /// Version numbers.
    fn versions(&self) -> Versions;
    /// The NUMA node that the device is near to, where it tells one.
    fn numa_node(&self) -> Option<u32> {
        None
    }
    /// Makes this the calling thread's current device, where the driver has such a notion.
    fn set_current(&self) -> Result<()> {
        Ok(())
    }
    /// Waits on the host for all work queued on the device.
    fn synchronize(&self) -> Result<()>;

    /// Takes `bytes` (a multiple of `min_chunk`) from the device.
    fn alloc(&self, bytes: u64) -> Result<u64>;
    /// Gives back what `alloc` returned, with the same size. Waits for nothing.
    fn free(&self, addr: u64, bytes: u64) -> Result<()>;
    /// Host memory that copies to and from this device fast (pinned).
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
    /// Streams that others make, where there can be any.
    fn external_streams(&self) -> Option<&dyn ExternalStreams> {
        None
    }
    /// Physical memory apart from addresses. May become `None` until the window is open, not after.
    fn mapping(&self) -> Option<&dyn Mapping> {
        None
    }
    /// Memory that host and device address alike.
    fn unified(&self) -> Option<&dyn Unified> {
        None
    }
    /// The pool of the device's driver.
    fn driver_pool(&self) -> Option<&dyn DriverPool> {
        None
    }
    /// Memory for other processes, and from them.
    fn sharing(&self) -> Option<&dyn Sharing> {
        None
    }
    /// Other devices of the type.
    fn peers(&self) -> Option<&dyn Peers> {
        None
    }
}

impl<'a> dyn Device + 'a {
    /// What the device can do, as users are told.
    pub fn caps(&self) -> Caps {
        let mut caps = self.traits();
        caps.set(Caps::MAPPING, self.mapping().is_some());
        caps.set(Caps::UNIFIED, self.unified().is_some());
        caps
    }

    /// Whose a stream is: see [`ExternalStreams::owner`].
    pub(crate) fn stream_owner(&self, stream: StreamId) -> Result<Whose> {
        match self.external_streams() {
            Some(external) => external.owner(stream),
            None if stream == 0 || self.streams().exists(stream) => Ok(Whose::Ours),
            None => fail!(
                Code::UnknownStream,
                "stream {stream:#x} is not a stream of this device, or was destroyed"
            ),
        }
    }

    /// Whether `stream` is a name of the default stream.
    pub(crate) fn is_default(&self, stream: StreamId) -> bool {
        self.external_streams().map_or(stream == 0, |e| e.is_default(stream))
    }

    /// Whether `stream` stands for another stream on each thread.
    pub(crate) fn is_per_thread(&self, stream: StreamId) -> bool {
        self.external_streams().is_some_and(|e| e.is_per_thread(stream))
    }
}

/// A pointer argument that a foreign callback wants, from an address.
pub(crate) fn as_ptr(addr: u64) -> *mut c_void {
    addr as usize as *mut c_void
}
