//! The device seam: what a kind of memory must be able to do so that the rest of the library can
//! serve it. `host`, `cuda` and `paddle/foreign` implement it; nothing here knows pools or blocks.
//!
//! [`Device`] is what every device has: identity, memory, copies, streams. What only some devices have is a facet, a
//! trait of its own; a device that lacks the facet cannot do it: [`Mapping`], [`Unified`], [`Registration`],
//! [`ExternalStreams`], [`DriverPool`], [`Sharing`], [`Peers`].
//!
//! Addresses are `u64` device addresses and never dereferenced on this side of the seam. Streams and events are
//! `u64` too: the bits of the `C_Stream` or `C_Event` that the caller holds; 0 is the default stream. Every call may
//! come from any thread at any time.

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
pub use streams::{ExternalStreams, StreamCallback, StreamKind, Streams, Whose};

/// The bits of a `C_Stream`; 0 is the device's default stream.
pub type StreamId = u64;
/// No stream of any device: what the C++ header holds of one that could not be made.
pub const NO_STREAM: StreamId = StreamId::MAX;
/// The bits of a `C_Event`; never 0.
pub type EventId = u64;

/// The maximum length of a device type's name, in bytes, without the terminating 0 of C.
pub const MAX_TYPE_NAME: usize = 31;

bitflags::bitflags! {
    /// What a device can do beyond the required calls. Read once, when the device is opened.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Caps: u32 {
        /// Physical granules are separate from addresses: [`Device::mapping`] is present.
        const MAPPING = 1;
        /// The host can read and write device memory at its device address.
        const HOST_ACCESS = 1 << 1;
        /// [`Device::unified`] is present.
        const UNIFIED = 1 << 2;
        /// `host_alloc` returns page-locked memory (as far as the system's limit allows).
        const PINNED = 1 << 3;
        /// Streams can be created. Without this all work runs on the default stream, and calls block until it is done.
        const STREAMS = 1 << 4;
        /// Stream callbacks work.
        const CALLBACKS = 1 << 5;
        /// Blocks can be shared with other processes.
        const EXPORT = 1 << 6;
        /// The driver lets other devices on the bus, such as network cards, reach pooled memory directly.
        const RDMA = 1 << 7;
    }
}

/// The sizes that govern how memory is taken from the device. All in bytes; only `padding` may be 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Requests are rounded up to a multiple of this; addresses are aligned to it.
    pub min_chunk: u64,
    /// A request that takes more than this goes to the device directly and is not pooled.
    pub max_chunk: u64,
    /// The library never takes more than this from the device in total.
    pub max_alloc: u64,
    /// Added to each request before rounding.
    pub padding: u64,
    /// The size of the first chunk that is taken from the device.
    pub init_alloc: u64,
    /// The size of each later chunk.
    pub realloc: u64,
}

/// Total and free bytes of a device, as it reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes the device has; 0 if it does not say.
    pub total: u64,
    /// Bytes that could be taken from it now. Means nothing where `total` is 0.
    pub free: u64,
}

impl MemoryInfo {
    /// Of a device that does not say.
    pub const UNKNOWN: MemoryInfo = MemoryInfo { total: 0, free: 0 };

    /// Itself, if the device has said how much memory it has.
    pub fn known(self) -> Option<MemoryInfo> {
        (self.total != 0).then_some(self)
    }
}

/// The three version numbers that a custom runtime reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// Compute capability, `major * 10 + minor`.
    pub compute_capability: u64,
    /// Version of the runtime library.
    pub runtime: u64,
    /// Version of the driver.
    pub driver: u64,
}

/// Which device of the machine it is, as other libraries name it. Empty where it is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The product's name, for a person.
    pub name: String,
    /// The same in every process and after each start, unlike an ordinal.
    pub uuid: Option<[u8; 16]>,
    /// Its place on the PCI bus, as in `0000:3b:00.0`.
    pub pci_bus_id: String,
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

/// How host memory should be allocated; a device honours what it can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostWish {
    /// Ordinary memory that is touched and then locked, instead of memory from the driver.
    pub register: bool,
    /// With `register`: how many threads touch the pages, at least 1.
    pub threads: u32,
}

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

/// Where pages of unified memory may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnifiedPlace {
    /// In the memory of the device that is asked.
    Device,
    /// In the processor's.
    Host,
}

/// What a program says of the use of unified memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Advice {
    /// It is mostly read: each place may have a copy.
    ReadMostly = 1,
    /// Undoes that.
    UnsetReadMostly = 2,
    /// It should lie at a place.
    Preferred = 3,
    /// Undoes that.
    UnsetPreferred = 4,
    /// A place uses it and should have it mapped, wherever it lies.
    AccessedBy = 5,
    /// Undoes that.
    UnsetAccessedBy = 6,
}

impl Advice {
    /// All of them, in the order of their numbers.
    pub const ALL: [Advice; 6] = [
        Advice::ReadMostly,
        Advice::UnsetReadMostly,
        Advice::Preferred,
        Advice::UnsetPreferred,
        Advice::AccessedBy,
        Advice::UnsetAccessedBy,
    ];
}

/// Memory that host and device access at the same address.
pub trait Unified: Send + Sync {
    /// Allocates such memory.
    fn alloc(&self, bytes: u64) -> Result<u64>;
    /// Gives back what `alloc` returned. Waits for the work that may still use it.
    fn free(&self, addr: u64, bytes: u64) -> Result<()>;
    /// Queues on a stream of the device that the pages of a range, of this device or another one of its type, go to
    /// `place`. `Unsupported` where the device cannot, as in [`advise`](Self::advise).
    fn prefetch(&self, stream: StreamId, addr: u64, bytes: u64, place: UnifiedPlace) -> Result<()>;
    /// Says how such a range will be used. What has no place ignores it.
    fn advise(&self, addr: u64, bytes: u64, advice: Advice, place: UnifiedPlace) -> Result<()>;
}

/// Host memory of the caller that is made as fast to copy as that of [`Device::host_alloc`].
pub trait Registration: Send + Sync {
    /// Registers memory that the caller keeps until [`unregister`](Self::unregister). `Busy` if a part of it is
    /// registered or came from `host_alloc`.
    fn register(&self, addr: u64, bytes: u64) -> Result<()>;
    /// Ends the registration that begins at `addr`. Waits for the work that may still use it.
    fn unregister(&self, addr: u64) -> Result<()>;
}

/// One device.
///
/// Blocking copies and `memset` without a stream wait for all work queued on the device so far; while a stream of it is
/// captured, only for what the default stream waits for.
pub trait Device: Send + Sync {
    /// Its ordinal within the type.
    fn ordinal(&self) -> usize;
    /// Its capabilities that no facet implies: all of [`Caps`] but `MAPPING` and `UNIFIED`.
    fn traits(&self) -> Caps;
    /// Why the device does not have `cap`, for a person, as what follows a colon. Asked only where it has not.
    fn lack(&self, cap: Caps) -> String {
        let _ = cap;
        "no device of its type has it".to_owned()
    }
    /// The sizes that shape allocation.
    fn sizes(&self) -> Sizes;
    /// Whether [`Sizes::realloc`] is only the minimum size of a later segment, which may grow with what is already
    /// taken. A plugin's sizes are kept to the byte.
    fn segments_grow(&self) -> bool {
        false
    }
    /// Whether an address of this device may also be an address of another device or of the host, with other memory
    /// there.
    fn has_own_addresses(&self) -> bool {
        false
    }
    /// Whether its memory is the processor's, and all its work is done by threads of this process.
    fn is_processor(&self) -> bool {
        false
    }
    /// The maximum number of blocks that the library keeps track of at a time, including free ones; each needs 32 bytes
    /// of host memory. More than about one for each 512 bytes of memory is of no use.
    fn most_blocks(&self) -> u64 {
        u64::MAX
    }
    /// \[B\] of the device that are not taken unless an option says so: what its driver and its libraries need while a
    /// program runs.
    fn headroom(&self) -> u64 {
        0
    }
    /// Total and free memory.
    fn memory_info(&self) -> Result<MemoryInfo>;
    /// Version numbers.
    fn versions(&self) -> Versions;
    /// Which device of the machine it is, as far as the device knows it.
    fn identity(&self) -> Identity {
        Identity::default()
    }
    /// The NUMA node nearest to the device, if the device knows it.
    fn numa_node(&self) -> Option<u32> {
        None
    }
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
        let mut caps = self.traits();
        caps.set(Caps::MAPPING, self.mapping().is_some());
        caps.set(Caps::UNIFIED, self.unified().is_some());
        caps
    }

    /// To whom a stream belongs: see [`ExternalStreams::owner`].
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

    /// Whether `stream` denotes the default stream.
    pub(crate) fn is_default(&self, stream: StreamId) -> bool {
        self.external_streams().map_or(stream == 0, |e| e.is_default(stream))
    }

    /// Whether `stream` denotes a different stream on each thread.
    pub(crate) fn is_per_thread(&self, stream: StreamId) -> bool {
        self.external_streams().is_some_and(|e| e.is_per_thread(stream))
    }
}

/// An address as the pointer argument that a foreign function expects.
pub(crate) fn as_ptr(addr: u64) -> *mut c_void {
    addr as usize as *mut c_void
}
