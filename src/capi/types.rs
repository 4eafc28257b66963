//! The structs and constants of the C API, laid out as C sees them.
//!
//! Every struct that a call fills or reads starts with `struct_size`, so that programs built against an older or a
//! newer header keep working. Constants are literals, since cbindgen copies them.

use crate::base::error::Code;
use crate::paddle::abi::{C_Status, C_Stream};
use std::ffi::{c_char, c_void};

/// A device: a handle, borrowed from `millpond_device_get`. It is a number and points to nothing. It stays known for
/// ever, and calls on a device that has ended return MILLPOND_E_NOT_INITIALIZED.
pub struct millpond_device(());

/// A pool of a device's memory: a handle from `millpond_pool_create` or
/// `millpond_device_get_default_pool`. It is a number and points to nothing; a destroyed pool's
/// handle is recognised.
pub struct millpond_pool(());

/// A capture of work for later, and the graph that it made: a handle from `millpond_capture_begin`. It is a number and
/// points to nothing; a released one is recognised.
pub struct millpond_capture(());

/// A recorded layout of a pool: a handle from `millpond_pool_checkpoint`. It is a number and points to
/// nothing; a destroyed one is recognised.
pub struct millpond_checkpoint(());

/// `millpond_last_error_code`: no call has failed on this thread yet.
pub const MILLPOND_OK: u32 = 0;
/// An argument is outside its documented range: NULL, a bad flag, a bad handle, an overflow.
pub const MILLPOND_E_INVALID_ARGUMENT: u32 = 1;
/// The device has not enough free memory, or a limit was reached.
pub const MILLPOND_E_OUT_OF_MEMORY: u32 = 2;
/// The address is not the start of a live block of this library.
pub const MILLPOND_E_UNKNOWN_POINTER: u32 = 3;
/// The block was freed before.
pub const MILLPOND_E_DOUBLE_FREE: u32 = 4;
/// The stream is not known to this device, or was destroyed.
pub const MILLPOND_E_UNKNOWN_STREAM: u32 = 5;
/// The event is not known to this device, or was destroyed.
pub const MILLPOND_E_UNKNOWN_EVENT: u32 = 6;
/// No device type of that name, or no device of that ordinal.
pub const MILLPOND_E_UNKNOWN_DEVICE: u32 = 7;
/// The library was not started, or the device has ended.
pub const MILLPOND_E_NOT_INITIALIZED: u32 = 8;
/// The device type cannot do this.
pub const MILLPOND_E_UNSUPPORTED: u32 = 9;
/// A range runs past the end of its block, or an index past the end of its table.
pub const MILLPOND_E_OUT_OF_RANGE: u32 = 10;
/// The driver or plugin reported a failure of its own.
pub const MILLPOND_E_DEVICE: u32 = 11;
/// The operating system refused a call.
pub const MILLPOND_E_SYSTEM: u32 = 12;
/// A custom-runtime plugin was refused: version, struct size or a missing function.
pub const MILLPOND_E_PLUGIN_REFUSED: u32 = 13;
/// The object is still in use, or the name is taken.
pub const MILLPOND_E_BUSY: u32 = 14;
/// The call is not allowed here: in a stream callback, or in a forked child.
pub const MILLPOND_E_NOT_PERMITTED: u32 = 15;
/// The size given at free differs from the size at allocation.
pub const MILLPOND_E_WRONG_SIZE: u32 = 16;
/// A defect of this library; please report it.
pub const MILLPOND_E_INTERNAL: u32 = 17;

/// `millpond_pool_options`: each block of the pool lies in one physical allocation of the device, so that libraries which
/// register memory, or share it with other processes, see all of a block by its address. No block is scattered; free
/// memory that lies apart serves no larger block. On a device that maps, blocks share allocations of 64 MiB (less on a
/// small device), and a larger block has one of its own; on other devices every pool is so. Blocks that a captured stream
/// asks for come from the capture's pool, whatever pool they name.
pub const MILLPOND_POOL_CONTIGUOUS: u64 = 1;

/// `millpond_pool_sleep`: the contents of the memory are kept in host memory, and restored by the wake.
pub const MILLPOND_SLEEP_KEEP: u32 = 1;

/// `millpond_device_add_segment_callback`: the range has memory from now on.
pub const MILLPOND_SEGMENT_ADDED: u32 = 1;
/// The same: the range is about to lose its memory.
pub const MILLPOND_SEGMENT_REMOVED: u32 = 2;

/// For `millpond_device_walk_blocks`, as the next two: an allocated block.
pub const MILLPOND_BLOCK_LIVE: u32 = 1;
/// A freed block that is not reused before some streams, or other processes, have passed what was queued.
pub const MILLPOND_BLOCK_WAITING: u32 = 2;
/// Free memory: the next request may get it. Pools that sleep have none.
pub const MILLPOND_BLOCK_FREE: u32 = 4;
/// All of these.
pub const MILLPOND_BLOCK_ANY: u32 = 7;

/// Format of `millpond_device_write_snapshot`: JSON, with the schema in docs/snapshots.md.
pub const MILLPOND_SNAPSHOT_JSON: u32 = 1;
/// Format of `millpond_device_write_snapshot`: the pickle of PyTorch's `torch.cuda.memory._snapshot()`, for its tools
/// (`_memory_viz.py`).
pub const MILLPOND_SNAPSHOT_TORCH_PICKLE: u32 = 2;

/// All codes with their names, by number.
pub(crate) const CODES: [(Code, &std::ffi::CStr, u32); 17] = [
    (Code::InvalidArgument, c"MILLPOND_E_INVALID_ARGUMENT", MILLPOND_E_INVALID_ARGUMENT),
    (Code::OutOfMemory, c"MILLPOND_E_OUT_OF_MEMORY", MILLPOND_E_OUT_OF_MEMORY),
    (Code::UnknownPointer, c"MILLPOND_E_UNKNOWN_POINTER", MILLPOND_E_UNKNOWN_POINTER),
    (Code::DoubleFree, c"MILLPOND_E_DOUBLE_FREE", MILLPOND_E_DOUBLE_FREE),
    (Code::UnknownStream, c"MILLPOND_E_UNKNOWN_STREAM", MILLPOND_E_UNKNOWN_STREAM),
    (Code::UnknownEvent, c"MILLPOND_E_UNKNOWN_EVENT", MILLPOND_E_UNKNOWN_EVENT),
    (Code::UnknownDevice, c"MILLPOND_E_UNKNOWN_DEVICE", MILLPOND_E_UNKNOWN_DEVICE),
    (Code::NotInitialized, c"MILLPOND_E_NOT_INITIALIZED", MILLPOND_E_NOT_INITIALIZED),
    (Code::Unsupported, c"MILLPOND_E_UNSUPPORTED", MILLPOND_E_UNSUPPORTED),
    (Code::OutOfRange, c"MILLPOND_E_OUT_OF_RANGE", MILLPOND_E_OUT_OF_RANGE),
    (Code::Device, c"MILLPOND_E_DEVICE", MILLPOND_E_DEVICE),
    (Code::System, c"MILLPOND_E_SYSTEM", MILLPOND_E_SYSTEM),
    (Code::PluginRefused, c"MILLPOND_E_PLUGIN_REFUSED", MILLPOND_E_PLUGIN_REFUSED),
    (Code::Busy, c"MILLPOND_E_BUSY", MILLPOND_E_BUSY),
    (Code::NotPermitted, c"MILLPOND_E_NOT_PERMITTED", MILLPOND_E_NOT_PERMITTED),
    (Code::WrongSize, c"MILLPOND_E_WRONG_SIZE", MILLPOND_E_WRONG_SIZE),
    (Code::Internal, c"MILLPOND_E_INTERNAL", MILLPOND_E_INTERNAL),
];

// The header and the error type must say the same.
const _: () = {
    let mut i = 0;
    while i < CODES.len() {
        assert!(CODES[i].0 as u32 == CODES[i].2 && CODES[i].2 == i as u32 + 1);
        i += 1;
    }
};

/// Copy from host memory to device memory.
pub const MILLPOND_COPY_H2D: u32 = 0;
/// Copy from device memory to host memory.
pub const MILLPOND_COPY_D2H: u32 = 1;
/// Copy within one device.
pub const MILLPOND_COPY_D2D: u32 = 2;

/// A place of unified memory: the memory of the device.
pub const MILLPOND_PLACE_DEVICE: u32 = 1;
/// A place of unified memory: the processor's.
pub const MILLPOND_PLACE_HOST: u32 = 2;

/// `millpond_unified_advise`: it is mostly read, so each place that reads may get a copy. Has no place.
pub const MILLPOND_ADVICE_READ_MOSTLY: u32 = 1;
/// `millpond_unified_advise`: undoes MILLPOND_ADVICE_READ_MOSTLY.
pub const MILLPOND_ADVICE_UNSET_READ_MOSTLY: u32 = 2;
/// `millpond_unified_advise`: it should lie at the place.
pub const MILLPOND_ADVICE_PREFERRED: u32 = 3;
/// `millpond_unified_advise`: undoes MILLPOND_ADVICE_PREFERRED, whatever the place.
pub const MILLPOND_ADVICE_UNSET_PREFERRED: u32 = 4;
/// `millpond_unified_advise`: the place uses it, and should have it mapped wherever it lies, so that it need not move.
pub const MILLPOND_ADVICE_ACCESSED_BY: u32 = 5;
/// `millpond_unified_advise`: undoes MILLPOND_ADVICE_ACCESSED_BY of the place.
pub const MILLPOND_ADVICE_UNSET_ACCESSED_BY: u32 = 6;

/// Bit of `millpond_device_info.caps`: physical memory is separate from addresses.
pub const MILLPOND_CAP_MAPPING: u32 = 1;
/// Bit of `millpond_device_info.caps`: the host can read and write device memory at its address.
pub const MILLPOND_CAP_HOST_ACCESS: u32 = 2;
/// Bit of `millpond_device_info.caps`: unified memory works.
pub const MILLPOND_CAP_UNIFIED: u32 = 4;
/// Bit of `millpond_device_info.caps`: host memory is page-locked, as far as the limit allows.
pub const MILLPOND_CAP_PINNED: u32 = 8;
/// Bit of `millpond_device_info.caps`: streams can be created.
pub const MILLPOND_CAP_STREAMS: u32 = 16;
/// Bit of `millpond_device_info.caps`: stream callbacks work.
pub const MILLPOND_CAP_CALLBACKS: u32 = 32;
/// Bit of `millpond_device_info.caps`: blocks can be shared with other processes (`millpond_export`).
pub const MILLPOND_CAP_EXPORT: u32 = 64;
/// Bit of `millpond_device_info.caps`: the driver lets other devices on the bus, such as network cards, reach pooled
/// memory directly (GPUDirect RDMA).
pub const MILLPOND_CAP_RDMA: u32 = 128;

/// Flag of `millpond_stream_create_with_priority`: the default stream does not wait for the stream, nor the stream for it.
pub const MILLPOND_STREAM_NON_BLOCKING: u32 = 1;

const _: () = {
    use crate::runtime::Caps;
    assert!(Caps::MAPPING.bits() == MILLPOND_CAP_MAPPING);
    assert!(Caps::HOST_ACCESS.bits() == MILLPOND_CAP_HOST_ACCESS);
    assert!(Caps::UNIFIED.bits() == MILLPOND_CAP_UNIFIED);
    assert!(Caps::PINNED.bits() == MILLPOND_CAP_PINNED);
    assert!(Caps::STREAMS.bits() == MILLPOND_CAP_STREAMS);
    assert!(Caps::CALLBACKS.bits() == MILLPOND_CAP_CALLBACKS);
    assert!(Caps::EXPORT.bits() == MILLPOND_CAP_EXPORT);
    assert!(Caps::RDMA.bits() == MILLPOND_CAP_RDMA);
};

/// The configuration of the built-in device type "host". Zero means the default, which the environment can set.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_host_options {
    /// sizeof(millpond_host_options)
    pub struct_size: usize,
    /// Number of devices, at most 64. 0: MILLPOND_HOST_DEVICES, otherwise 2.
    pub device_count: u32,
    /// Bytes of each device, committed as they are touched. 0: MILLPOND_HOST_CAPACITY, otherwise half of the machine's
    /// memory divided by the number of devices.
    pub capacity_bytes: u64,
    /// 1: the devices only give segments and cannot map. 0: MILLPOND_HOST_MAPPING, otherwise they can map.
    pub disable_mapping: u32,
}

/// What a device reports about itself.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_device_info {
    /// sizeof(millpond_device_info)
    pub struct_size: usize,
    /// Name of the device type, with its NUL.
    pub r#type: [c_char; 32],
    /// Ordinal of the device within its type.
    pub ordinal: i32,
    /// MILLPOND_CAP_* bits.
    pub caps: u32,
    /// Bytes the device has; 0 if it does not say, as a plugin without `device_memory_stats`.
    pub total_bytes: u64,
    /// Bytes that could be taken from it now; means nothing where total_bytes is 0.
    pub free_bytes: u64,
    /// Requests are rounded up to a multiple of this; addresses are aligned to it.
    pub min_chunk_bytes: u64,
    /// A request that takes more than this goes to the device directly.
    pub max_chunk_bytes: u64,
    /// The maximum that is ever taken from the device.
    pub max_alloc_bytes: u64,
    /// Added to each request before it is rounded.
    pub extra_padding_bytes: u64,
    /// Size of the first chunk that is taken from the device.
    pub init_alloc_bytes: u64,
    /// Size of each later chunk.
    pub realloc_bytes: u64,
    /// Compute capability, major * 10 + minor.
    pub compute_capability: u64,
    /// Version of the runtime library.
    pub runtime_version: u64,
    /// Version of the driver.
    pub driver_version: u64,
    /// The product's name, with its NUL: of the card, or of the processor; cut where it is longer. Empty if unknown.
    pub name: [c_char; 64],
    /// Where a card is on the bus, as in "0000:3b:00.0", with its NUL. Empty if it is not there, or unknown.
    pub pci_bus_id: [c_char; 16],
    /// The card's UUID, as NVML and `nvidia-smi -L` have it: it stays the same where ordinals change. All 0 if unknown.
    pub uuid: [u8; 16],
}

/// The configuration of a new pool.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_pool_options {
    /// sizeof(millpond_pool_options)
    pub struct_size: usize,
    /// The pool never reserves more bytes than this; 0: no limit of its own.
    pub limit_bytes: u64,
    /// UTF-8 text for error messages; NULL: unnamed. Copied.
    pub name: *const c_char,
    /// MILLPOND_POOL_* bits; 0: none.
    pub flags: u64,
}

/// One quantity over time.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct millpond_counter {
    /// Its value now.
    pub current: u64,
    /// The highest value since the start or the last reset of the peaks.
    pub peak: u64,
    /// The sum of everything ever added.
    pub total: u64,
}

/// The exact account of a pool or of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_stats {
    /// sizeof(millpond_stats)
    pub struct_size: usize,
    /// Bytes in live blocks, as requested.
    pub requested_bytes: millpond_counter,
    /// Bytes in live blocks after rounding.
    pub allocated_bytes: millpond_counter,
    /// `allocated_bytes`, plus bytes that are freed but still wait for a stream.
    pub active_bytes: millpond_counter,
    /// Bytes taken from the device.
    pub reserved_bytes: millpond_counter,
    /// Live blocks.
    pub blocks: millpond_counter,
    /// Pieces of memory taken from the device.
    pub segments: millpond_counter,
    /// Calls into the memory management of the device so far.
    pub driver_calls: u64,
    /// Requests that failed for lack of memory, including those that hit a limit.
    pub out_of_memory_count: u64,
    /// The limit of `reserved_bytes`; 0: none.
    pub limit_bytes: u64,
    /// Bytes of sleeping memory: given back to the device until its pool wakes.
    pub sleeping_bytes: millpond_counter,
}

/// The account of a device's pinned host memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_host_stats {
    /// sizeof(millpond_host_stats)
    pub struct_size: usize,
    /// Bytes in live blocks, as requested.
    pub requested_bytes: millpond_counter,
    /// Bytes in live blocks after rounding.
    pub allocated_bytes: millpond_counter,
    /// Bytes taken from the device.
    pub reserved_bytes: millpond_counter,
    /// Live blocks.
    pub blocks: millpond_counter,
    /// Freed bytes that can be reused.
    pub cached_bytes: u64,
    /// Freed bytes that still wait for a stream.
    pub pending_bytes: u64,
    /// Calls to the device so far that took memory or gave it back.
    pub driver_calls: u64,
    /// Requests so far that were served without such a call.
    pub reuse_count: u64,
    /// The NUMA node from which memory is taken if it has room; -1 if the device does not report one.
    pub numa_node: i32,
}

/// What is known of one live block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_block_info {
    /// sizeof(millpond_block_info)
    pub struct_size: usize,
    /// First address of the block.
    pub base: *mut c_void,
    /// Bytes of the block after rounding: what it costs. Those beyond `requested_bytes` are not the program's: a copy
    /// that passes the request is refused, so that an overrun is seen.
    pub size_bytes: usize,
    /// The requested bytes.
    pub requested_bytes: usize,
    /// The stream that orders its reuse; NULL for the default stream and for a block of `millpond_alloc`.
    pub stream: C_Stream,
    /// The pool from which it was allocated; borrowed.
    pub pool: *mut millpond_pool,
    /// The device it lies on; borrowed.
    pub device: *mut millpond_device,
}

/// One block of a walk: live, waiting or free.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_block_record {
    /// sizeof(millpond_block_record), or as much of it as was written.
    pub struct_size: usize,
    /// First address.
    pub ptr: *mut c_void,
    /// Bytes after rounding, as `allocated_bytes` and `active_bytes` count them; for free memory its length.
    pub size_bytes: usize,
    /// The requested bytes; 0 for free memory.
    pub requested_bytes: usize,
    /// The stream that orders its reuse or, for free memory, the stream whose requests it serves; NULL for the default
    /// stream, for all streams (`millpond_alloc`), and for one that has ended.
    pub stream: C_Stream,
    /// The pool to which it belongs; borrowed. NULL for free memory of a pool that has ended.
    pub pool: *mut millpond_pool,
    /// Where the piece of memory begins that contains it and that was taken from the device with one call. NULL if the
    /// device maps: it takes granules of 2 MiB, and a block may lie across any of them.
    pub segment: *mut c_void,
    /// One MILLPOND_BLOCK_* bit.
    pub state: u32,
    /// The number of its tag (`millpond_tag_get_name`); 0 for a block without a tag and for free memory.
    pub tag: u32,
}

/// Called for each block of `millpond_device_walk_blocks`, with the pointer given there, on the thread of that call,
/// with no lock held. The record lives for the call. Returns whether to continue. If it throws, the walk ends with
/// MILLPOND_E_SYSTEM.
pub type millpond_walk_callback =
    Option<unsafe extern "C-unwind" fn(user_data: *mut c_void, record: *const millpond_block_record) -> bool>;

/// Takes the bytes of `millpond_device_send_snapshot`, piece by piece and in order, with the pointer given there.
/// Called on the thread of that call, with no lock held. Returns whether to continue. If it throws, the call ends with
/// MILLPOND_E_SYSTEM.
pub type millpond_write_callback = Option<
    unsafe extern "C-unwind" fn(user_data: *mut c_void, data: *const c_void, size_bytes: usize) -> bool,
>;

/// Event of a history: a request was served.
pub const MILLPOND_HISTORY_ALLOC: u32 = 1;
/// Event of a history: a free was asked for; told before the memory can be used again.
pub const MILLPOND_HISTORY_FREE_REQUESTED: u32 = 2;
/// Event of a history: what the freed block waited for is over. Not told after FREE_REQUESTED with MILLPOND_HISTORY_AT_ONCE.
pub const MILLPOND_HISTORY_FREE_COMPLETED: u32 = 3;
/// Event of a history: a free that was asked for has failed: the block lives on.
pub const MILLPOND_HISTORY_FREE_REFUSED: u32 = 4;
/// Event of a history: memory was taken from the device, and is at that address.
pub const MILLPOND_HISTORY_SEGMENT_ALLOC: u32 = 5;
/// Event of a history: memory went back to the device: what was taken, or a part, or several side by side.
pub const MILLPOND_HISTORY_SEGMENT_FREE: u32 = 6;
/// Event of a history: memory that was there before is shown at that address, too.
pub const MILLPOND_HISTORY_SEGMENT_MAP: u32 = 7;
/// Event of a history: it is not shown there any more.
pub const MILLPOND_HISTORY_SEGMENT_UNMAP: u32 = 8;
/// Event of a history: a request has failed for lack of memory, whatever was tried.
pub const MILLPOND_HISTORY_OOM: u32 = 9;
/// Event of a history: a block is used by one more stream.
pub const MILLPOND_HISTORY_RECORD_STREAM: u32 = 10;
/// Event of a history: a snapshot was taken.
pub const MILLPOND_HISTORY_SNAPSHOT: u32 = 11;
/// Event of a history: the program has noted `text`.
pub const MILLPOND_HISTORY_ANNOTATE: u32 = 12;
/// Flag of an event: it is pinned host memory.
pub const MILLPOND_HISTORY_HOST: u32 = 1;
/// Flag of MILLPOND_HISTORY_FREE_REQUESTED: nothing had to be waited for.
pub const MILLPOND_HISTORY_AT_ONCE: u32 = 2;
/// Flag of an event: it is of one stream. Without it `stream` is NULL, and means all of them.
pub const MILLPOND_HISTORY_STREAM: u32 = 4;

/// How a history is to be.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_history_options {
    /// sizeof(millpond_history_options)
    pub struct_size: usize,
    /// The newest so many events are kept, rounded up to a power of two; 0: 65 536. Each takes 64 bytes, and 8 for each
    /// caller, rounded up to 64.
    pub event_count: usize,
    /// How many callers of each request, free and note are kept; 0: none. Above 64: 64.
    pub frame_count: usize,
    /// All events go to this file, too; NULL: to none. `%p` in it is the number of the process, `%d` the device.
    pub path: *const c_char,
}

/// One event of a history.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_history_event {
    /// sizeof(millpond_history_event)
    pub struct_size: usize,
    /// Nanoseconds of CLOCK_MONOTONIC, computed from `stamp` when the history is read: as exact as that clock has run evenly
    /// since the history began. In the order of the stamps.
    pub time_ns: u64,
    /// A MILLPOND_HISTORY_ number: what happened.
    pub kind: u32,
    /// MILLPOND_HISTORY_HOST, _AT_ONCE, _STREAM.
    pub flags: u32,
    /// Where; NULL where there is no place.
    pub ptr: *mut c_void,
    /// Bytes as charged.
    pub size_bytes: u64,
    /// Bytes as asked for.
    pub requested_bytes: u64,
    /// The stream of the block, also when it has ended, or of the request.
    pub stream: C_Stream,
    /// The pool that served it; borrowed. NULL where it has ended, and where there is none.
    pub pool: *mut millpond_pool,
    /// The system's number of the thread (gettid).
    pub thread: u32,
    /// What the thread was doing, as it said; 0: nothing.
    pub tag: u32,
    /// The callers' return addresses, the innermost first; some of the first are in Millpond. For the call.
    pub frames: *const u64,
    /// How many there are.
    pub frame_count: usize,
    /// Of MILLPOND_HISTORY_ANNOTATE; else NULL. For the call.
    pub text: *const c_char,
    /// Of MILLPOND_HISTORY_OOM: bytes that the device had free, as it says; UINT64_MAX if it could not be asked. Else 0.
    pub device_free_bytes: u64,
    /// When it happened, as `millpond_history_stamp` tells it.
    pub stamp: u64,
}

/// Called for each event of `millpond_device_history_read`, the oldest first, with the pointer given there. The event
/// lives for the call. On the thread of the call, with no lock held. Returns whether to go on. If it throws, the reading
/// ends with MILLPOND_E_SYSTEM.
pub type millpond_history_callback =
    Option<unsafe extern "C-unwind" fn(user_data: *mut c_void, event: *const millpond_history_event) -> bool>;

/// Called on a thread of the device when a stream reaches it, with the pointer given to `millpond_stream_add_callback`
/// and the state of the stream (C_SUCCESS, or the failure of earlier work). It should not throw: that is lost. It must not make
/// calls that wait: they return MILLPOND_E_NOT_PERMITTED.
pub type millpond_stream_callback =
    Option<unsafe extern "C-unwind" fn(user_data: *mut c_void, status: C_Status)>;

/// Called when a request for `size_bytes` finds no memory, with the pointer given to
/// `millpond_device_add_oom_callback`: on the thread of the request, with no lock held, after everything else was
/// tried. Returns true if it freed something. It may allocate and free through Millpond; a request that fails inside it
/// calls no callbacks. Several threads may call it at once. It should not throw: that counts as false.
pub type millpond_oom_callback =
    Option<unsafe extern "C-unwind" fn(user_data: *mut c_void, size_bytes: u64) -> bool>;

/// Called with the pointer given to `millpond_device_add_segment_callback`, a MILLPOND_SEGMENT_* number, and a range of
/// the device's addresses, on a thread that is inside a call of Millpond, which it must not call. It should not throw:
/// that is lost.
pub type millpond_segment_callback = Option<
    unsafe extern "C-unwind" fn(user_data: *mut c_void, event: u32, ptr: *mut c_void, size_bytes: usize),
>;

/// Called once for each block that `millpond_pool_restore` has changed, with the pointer given there: with `ptr` and
/// the requested `size_bytes`, and whether the block is live now or was freed. On the thread of the call, after
/// everything is done, with no lock held. It should not throw: that is lost, and the other blocks are told all the same.
pub type millpond_restore_callback = Option<
    unsafe extern "C-unwind" fn(user_data: *mut c_void, ptr: *mut c_void, size_bytes: usize, live: bool),
>;
/// What the tensor of `millpond_dlpack_export` looks like. Zero means the default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_dlpack_options {
    /// sizeof(millpond_dlpack_options)
    pub struct_size: usize,
    /// The element's kind, a DLDataTypeCode. With 0 bits: unsigned bytes.
    pub dtype_code: u8,
    /// Bits of one lane.
    pub dtype_bits: u8,
    /// Lanes of one element. 0: 1.
    pub dtype_lanes: u16,
    /// Dimensions, 0 to 64.
    pub ndim: i32,
    /// As many sizes as `ndim` says, in elements. NULL with `ndim` 0: one dimension, with as many elements as the block
    /// has room for after `byte_offset`. Not NULL with `ndim` 0: a single element. Copied.
    pub shape: *const i64,
    /// As many steps as `ndim` says, in elements. NULL: row by row. Copied.
    pub strides: *const i64,
    /// From the start of the block to the first element. It is added to the tensor's `data`, whose own `byte_offset` is
    /// 0, since not every consumer reads that.
    pub byte_offset: u64,
    /// DLPACK_FLAG_BITMASK_* bits: read only (1), copied (2), elements of less than a byte padded to one (4).
    pub flags: u64,
    /// A DLDeviceType to report instead of the one that `millpond_dlpack_export` describes. 0: that one.
    pub device_type: u32,
    /// Called by the deleter instead of a free, for a block that its owner keeps. NULL: the deleter frees it.
    pub release: millpond_dlpack_release,
    /// Passed to `release`.
    pub user_data: *mut c_void,
}

/// What is known of a DLPack tensor.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_dlpack_view {
    /// sizeof(millpond_dlpack_view)
    pub struct_size: usize,
    /// The first element, `byte_offset` added. NULL when there are none.
    pub data: *mut c_void,
    /// The lowest address of any element: before `data` where strides are negative. NULL when there are none.
    pub start: *mut c_void,
    /// From `start` to the end of the highest element.
    pub size_bytes: u64,
    /// Number of elements.
    pub element_count: u64,
    /// DLPACK_FLAG_BITMASK_* bits.
    pub flags: u64,
    /// Number of dimensions.
    pub ndim: i32,
    /// A DLDeviceType.
    pub device_type: u32,
    /// Number of the device.
    pub device_id: i32,
    /// The element's kind, a DLDataTypeCode.
    pub dtype_code: u8,
    /// Bits of one lane.
    pub dtype_bits: u8,
    /// Lanes of one element.
    pub dtype_lanes: u16,
    /// 1: the elements lie row by row without gaps. 0: use the strides.
    pub is_compact: u32,
    /// Sizes, in elements; borrowed from the tensor.
    pub shape: *const i64,
    /// Steps, in elements; borrowed from the tensor. NULL: row by row.
    pub strides: *const i64,
    /// The start of the block of this library that contains the elements; NULL for other memory.
    pub block: *mut c_void,
    /// The pool of that block; borrowed.
    pub pool: *mut millpond_pool,
    /// The device of that block; borrowed.
    pub device: *mut millpond_device,
}

/// Called once, on any thread, when the consumer of a tensor of `millpond_dlpack_export` gives it back, with the
/// pointer from the options. It should not throw: that is lost.
pub type millpond_dlpack_release = Option<unsafe extern "C-unwind" fn(user_data: *mut c_void)>;
