//! The device seam: what a kind of memory must be able to do so that the rest of the library can
//! serve it. `host`, `cuda` and `foreign` implement it; nothing here knows pools or blocks.
//!
//! Addresses are `u64` device addresses, never dereferenced on this side of the seam. Streams and
//! events are `u64` too: the bits of the `C_Stream` / `C_Event` that the caller holds; 0 is the
//! default stream. Every call may come from any thread at any time.

use crate::base::error::{Code, Error, Result};
use crate::fail;
use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

pub mod cuda;
mod gate;
pub mod host;
pub mod share;

use share::{Exported, Imported};

/// The bits of a `C_Stream`; 0 is the device's default stream.
pub type StreamId = u64;
/// The bits of a `C_Event`; never 0.
pub type EventId = u64;

/// The longest name of a device type, in bytes, without the 0 that ends it in C.
pub const MAX_TYPE_NAME: usize = 31;

bitflags::bitflags! {
    /// What a device can do beyond the required calls. Asked once, when it is opened.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Caps: u32 {
        /// Physical granules are separate from addresses: the `map_*` calls work.
        const MAPPING = 1;
        /// The host can read and write device memory at its device address.
        const HOST_ACCESS = 1 << 1;
        /// `unified_alloc` works.
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

/// What a driver's own pool tells, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverPoolStats {
    /// Taken from the device now.
    pub reserved: u64,
    /// The most that was, since the pool was made.
    pub reserved_peak: u64,
    /// In blocks now.
    pub used: u64,
    /// The most that was.
    pub used_peak: u64,
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

/// Whose a stream is, as a device sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The device's own: it orders memory, and a wait for the device waits for its work.
    Ours,
    /// Of another device, or of another context of this one. Work on it may use memory of this device all the same.
    Theirs,
}

/// A function to run when a stream reaches it. Boxed by the caller of [`Device::stream_callback`];
/// runs on a thread of the device with no lock held, and must not call back into the library's
/// blocking calls.
pub type StreamCallback = Box<dyn FnOnce(Result<()>) + Send>;

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

fn unsupported<T>(what: &'static str) -> Result<T> {
    Err(Error::new(Code::Unsupported, what))
}

/// One device.
///
/// Blocking copies and `memset` without a stream wait for all work queued on the device so far.
pub trait Device: Any + Send + Sync {
    /// Its ordinal within the type.
    fn ordinal(&self) -> usize;
    /// What it can do.
    fn caps(&self) -> Caps;
    /// The sizes that shape allocation.
    fn sizes(&self) -> Sizes;
    /// Whether [`Sizes::realloc`] is only the least size of a later segment, which may grow with what is taken
    /// already. A plugin's sizes are kept to the byte.
    fn segments_grow(&self) -> bool {
        false
    }
    /// Total and free memory.
    fn memory_info(&self) -> Result<MemoryInfo>;
    /// Version numbers.
    fn versions(&self) -> Versions;
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
    fn host_alloc(&self, bytes: u64) -> Result<u64>;
    /// `host_alloc`, made in a particular way where the device has it.
    fn host_alloc_as(&self, bytes: u64, _wish: HostWish) -> Result<u64> {
        self.host_alloc(bytes)
    }
    /// The NUMA node that the device is near to, where it tells one.
    fn numa_node(&self) -> Option<u32> {
        None
    }
    /// Gives back what `host_alloc` or `host_alloc_as` returned.
    fn host_free(&self, addr: u64, bytes: u64) -> Result<()>;
    /// Memory that host and device address alike.
    fn unified_alloc(&self, _bytes: u64) -> Result<u64> {
        unsupported("this device has no unified memory")
    }
    /// Gives back what `unified_alloc` returned.
    fn unified_free(&self, _addr: u64, _bytes: u64) -> Result<()> {
        unsupported("this device has no unified memory")
    }

    /// Copies, and returns when the bytes have arrived.
    fn copy(&self, kind: CopyKind, dst: u64, src: u64, bytes: u64) -> Result<()>;
    /// Queues a copy on `stream`. Pageable host sources have been read when this returns.
    fn copy_async(&self, stream: StreamId, kind: CopyKind, dst: u64, src: u64, bytes: u64) -> Result<()>;
    /// Copies from this device to `to`, and returns when the bytes have arrived. `InvalidArgument` for a
    /// device of another type.
    fn copy_peer(&self, to: &dyn Device, dst: u64, src: u64, bytes: u64) -> Result<()>;
    /// Queues a copy from this device to `to` on a stream of this device.
    fn copy_peer_async(
        &self,
        stream: StreamId,
        to: &dyn Device,
        dst: u64,
        src: u64,
        bytes: u64,
    ) -> Result<()>;
    /// Queues a copy from `from` to this device on a stream of this device. `InvalidArgument` for a device of another
    /// type, `Unsupported` where only the source's streams make such copies.
    fn copy_from_peer_async(
        &self,
        _stream: StreamId,
        _from: &dyn Device,
        _dst: u64,
        _src: u64,
        _bytes: u64,
    ) -> Result<()> {
        unsupported("streams of this device make no copies from other devices")
    }
    /// Fills with a byte, and returns when done.
    fn memset(&self, dst: u64, value: u8, bytes: u64) -> Result<()>;
    /// Queues a fill on `stream`.
    fn memset_async(&self, stream: StreamId, dst: u64, value: u8, bytes: u64) -> Result<()>;

    /// A new stream.
    fn stream_create(&self) -> Result<StreamId>;
    /// Ends a stream; work queued on it still completes.
    fn stream_destroy(&self, stream: StreamId) -> Result<()>;
    /// Whether the stream exists. A device that cannot tell answers `true`.
    fn stream_exists(&self, stream: StreamId) -> bool;
    /// `true` when nothing queued on it is unfinished.
    fn stream_query(&self, stream: StreamId) -> Result<bool>;
    /// Waits on the host for the stream.
    fn stream_synchronize(&self, stream: StreamId) -> Result<()>;
    /// Work queued on `stream` from now on waits for what `event` has recorded. Never blocks the host.
    fn stream_wait_event(&self, stream: StreamId, event: EventId) -> Result<()>;
    /// Runs `callback` when the stream gets there.
    fn stream_callback(&self, stream: StreamId, callback: StreamCallback) -> Result<()>;

    /// A new event, as if completed.
    fn event_create(&self) -> Result<EventId>;
    /// Ends an event; waits on it that are queued still hold.
    fn event_destroy(&self, event: EventId) -> Result<()>;
    /// The event stands for everything queued on `stream` so far.
    fn event_record(&self, stream: StreamId, event: EventId) -> Result<()>;
    /// `true` when what it recorded is done (or it never recorded).
    fn event_query(&self, event: EventId) -> Result<bool>;
    /// Waits on the host for it.
    fn event_synchronize(&self, event: EventId) -> Result<()>;

    /// The number of the capture that records the stream's work for later (a graph), if one does; numbers are
    /// not used again. Of stream 0: also that of a capture that forbids work there, or `u64::MAX` where that
    /// one's number is not known. Disturbs no capture.
    fn capture_id(&self, _stream: StreamId) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Whether a capture is known that forbids to wait for the device now. Disturbs none.
    fn any_captured(&self) -> Result<bool> {
        Ok(false)
    }

    /// Whether an address of this device may be one of another device too, or of the host, and mean other memory there.
    fn has_own_addresses(&self) -> bool {
        false
    }

    /// Whether recording an event waits on the host for the stream: there are no events underneath.
    fn recording_waits(&self) -> bool {
        false
    }

    /// Whether making a stream wait for an event waits on the host: the device cannot do it.
    fn awaiting_waits(&self) -> bool {
        false
    }

    // ---- streams that were made elsewhere ------------------------------------------------------

    /// Whose a stream is. `UnknownStream` for one that is none, or has ended, where that can be told; any other error
    /// says that it could not be asked.
    fn stream_owner(&self, stream: StreamId) -> Result<Whose> {
        if stream == 0 || self.stream_exists(stream) {
            return Ok(Whose::Ours);
        }
        fail!(Code::UnknownStream, "stream {stream:#x} is not a stream of this device, or was destroyed")
    }
    /// The event stands for everything queued so far on a stream that is theirs ([`Whose`]), also where that has ended
    /// since. `NotPermitted` while it is captured.
    fn event_record_theirs(&self, _stream: StreamId, _event: EventId) -> Result<()> {
        unsupported("this device knows no streams but its own")
    }
    /// Whether work may be on streams that this device has not made, and need not know.
    fn has_foreign_streams(&self) -> bool {
        false
    }
    /// Whether `stream` is a name of the default stream, which other streams are ordered with.
    fn is_default(&self, stream: StreamId) -> bool {
        stream == 0
    }
    /// The maker of the stream is about to end it: it must not be asked about any more.
    fn stream_forgotten(&self, _stream: StreamId) {}
    /// Whether `stream` stands for another stream on each thread. Memory cannot be ordered by it.
    fn is_per_thread(&self, _stream: StreamId) -> bool {
        false
    }
    /// The event stands for everything queued on the device so far, on all streams, known or not. May
    /// wait on the host instead. `NotPermitted` while a stream that is known here is captured.
    fn event_record_all(&self, _event: EventId) -> Result<()> {
        unsupported("this device knows all its streams")
    }

    // ---- the driver's own pool: only where `has_driver_pool` says so ------------------------------

    /// Whether the device's driver has a stream-ordered pool of its own.
    fn has_driver_pool(&self) -> bool {
        false
    }
    /// Memory for work queued on `stream` from now on.
    fn pool_alloc(&self, _stream: StreamId, _bytes: u64) -> Result<u64> {
        unsupported("this device's driver has no pool")
    }
    /// Gives back what `pool_alloc` returned, after the work queued on `stream` so far. Waits for nothing.
    fn pool_free(&self, _addr: u64, _stream: StreamId) -> Result<()> {
        unsupported("this device's driver has no pool")
    }
    /// Unused memory beyond `keep` bytes goes back to the device.
    fn pool_trim(&self, _keep: u64) -> Result<()> {
        unsupported("this device's driver has no pool")
    }
    /// What the driver's pool tells.
    fn pool_stats(&self) -> Result<DriverPoolStats> {
        unsupported("this device's driver has no pool")
    }

    // ---- memory for other processes, and from them ------------------------------------------------

    /// Whether each granule that is shared is a file descriptor of its own.
    fn shares_by_granule(&self) -> bool {
        false
    }
    /// From now on granules are made so that fabric handles can share them too, where device and driver have that,
    /// or are not.
    fn make_for_fabric(&self, _on: bool) {}
    /// `Unsupported`, with the reason, unless fabric handles can share these granules: (first, count).
    fn check_fabric(&self, _granules: &[(u64, u64)]) -> Result<()> {
        unsupported("no fabric handles: the memory of this device has none")
    }
    /// What another process needs to use these granules: (first, count), in the order of addresses. With `fabric`,
    /// by handles and without descriptors.
    fn share_granules(&self, _granules: &[(u64, u64)], _fabric: bool) -> Result<Exported> {
        unsupported("memory of this device cannot be shared with other processes")
    }
    /// What another process needs to use memory of `alloc`.
    fn share_segment(&self, _addr: u64) -> Result<Exported> {
        unsupported("memory of this device that is not mapped cannot be shared with other processes")
    }
    /// Opens what a device of this type has shared, in this or another process: its address. Trusts nothing.
    fn open_shared(&self, _memory: &Imported<'_>) -> Result<u64> {
        unsupported("this device cannot use memory of other processes")
    }
    /// Ends what `open_shared` has opened. Waits for the device first.
    fn close_shared(&self, _addr: u64) -> Result<()> {
        unsupported("this device cannot use memory of other processes")
    }

    // ---- memory for other devices -----------------------------------------------------------------

    /// Whether `peer` could use memory of this device at its address.
    fn can_admit(&self, peer: &dyn Device) -> Result<bool> {
        Ok(std::ptr::addr_eq(std::ptr::from_ref(self), std::ptr::from_ref(peer)))
    }
    /// From now on work on `peer` may use all memory of this device at its address. `Unsupported` where it
    /// cannot.
    fn admit(&self, peer: &dyn Device) -> Result<()> {
        if self.can_admit(peer)? {
            return Ok(());
        }
        unsupported("that device cannot use memory of this one")
    }

    // ---- mapping: only where `Caps::MAPPING` is set -------------------------------------------
    // Physical memory is numbered in granules 0..granule_numbers; addresses are a window that
    // `map_window` reserves. Physical granules may stand behind several addresses at once.

    /// Bytes of one granule of physical memory (a power of two; 2 MiB on all devices so far).
    fn granule(&self) -> u64 {
        2 << 20
    }
    /// How many numbers there are for granules of physical memory. At least as many as its memory has granules;
    /// where there are more, memory that sleeps (whose numbers stay taken) leaves numbers for other memory.
    fn granule_numbers(&self) -> Result<u64> {
        Ok(self.memory_info()?.total / self.granule())
    }
    /// How many mappings there may be in the window at a time; pieces that touch on both sides may count as one.
    fn most_mappings(&self) -> u64 {
        u64::MAX
    }
    /// How many blocks the library keeps track of at a time at most, free ones included; it needs 32 bytes of host memory
    /// for each. It never has use for more than one for each 512 bytes, and some.
    fn most_blocks(&self) -> u64 {
        u64::MAX
    }
    /// Reserves `bytes` of addresses, aligned to the granule. At most one window a device; released
    /// with `map_close`.
    fn map_window(&self, _bytes: u64) -> Result<u64> {
        unsupported("this device cannot map memory")
    }
    /// Unmaps everything, frees all granules, releases the window.
    fn map_close(&self) -> Result<()> {
        unsupported("this device cannot map memory")
    }
    /// Makes physical granules `first..first + count`, or none of them.
    fn granules_create(&self, _first: u64, _count: u64) -> Result<()> {
        unsupported("this device cannot map memory")
    }
    /// Gives physical granules back; they must not be mapped.
    fn granules_release(&self, _first: u64, _count: u64) -> Result<()> {
        unsupported("this device cannot map memory")
    }
    /// Puts granules `first..first + count` behind the addresses `window + offset ..`, all or none.
    fn map(&self, _offset: u64, _first: u64, _count: u64) -> Result<()> {
        unsupported("this device cannot map memory")
    }
    /// Takes the granules away from behind the addresses `window + offset .. + bytes`.
    fn unmap(&self, _offset: u64, _bytes: u64) -> Result<()> {
        unsupported("this device cannot map memory")
    }
}

/// A pointer argument that a foreign callback wants, from an address.
pub(crate) fn as_ptr(addr: u64) -> *mut c_void {
    addr as usize as *mut c_void
}
