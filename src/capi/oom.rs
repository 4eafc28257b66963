//! The out-of-memory report, and callbacks that get it.

use crate::base::error::{Code, Error, Result};
use crate::capi::guard::{Out, OutStruct, UserData, Versioned, read_struct, run, run_roomy};
use crate::capi::types::{millpond_device, millpond_pool};
use crate::capi::{handles, last_error};
use crate::fail;
use crate::ffi::exceptions;
use crate::paddle::abi::{C_Status, C_Stream};
use crate::runtime::{self, OOM_STEPS, OOM_TOP, OomReport};
use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a request failed: the library itself cannot keep track of more blocks, streams or segments.
pub const MILLPOND_OOM_BOOKKEEPING: u32 = 1;
/// The request alone is larger than the device.
pub const MILLPOND_OOM_LARGER_THAN_DEVICE: u32 = 2;
/// The request alone is above the limit of its pool.
pub const MILLPOND_OOM_ABOVE_POOL_LIMIT: u32 = 3;
/// The request alone is above the limit of the device.
pub const MILLPOND_OOM_ABOVE_DEVICE_LIMIT: u32 = 4;
/// The request would take the pool over its limit.
pub const MILLPOND_OOM_POOL_LIMIT: u32 = 5;
/// The request would take the device over its limit.
pub const MILLPOND_OOM_DEVICE_LIMIT: u32 = 6;
/// The missing memory was freed, but still waits: for streams, or because others use it.
pub const MILLPOND_OOM_WAITING: u32 = 7;
/// Enough is free, but not in one piece, or not where the request may take it.
pub const MILLPOND_OOM_FRAGMENTED: u32 = 8;
/// The device refused, although less has been taken from it than the limits allow.
pub const MILLPOND_OOM_DEVICE_REFUSED: u32 = 9;
/// Nearly all memory of the device is in use.
pub const MILLPOND_OOM_EXHAUSTED: u32 = 10;

/// Missing from a report: everything except the request itself.
pub const MILLPOND_OOM_MISSING_ALL: u32 = 1;
/// Missing: how much the device has free. It is not asked in a callback, or while a stream is captured.
pub const MILLPOND_OOM_MISSING_DEVICE_FREE: u32 = 2;
/// Incomplete: what some of the freed blocks wait for, since there are too many.
pub const MILLPOND_OOM_MISSING_WAITS: u32 = 4;
/// Incomplete: the largest free range, which has at least the size given.
pub const MILLPOND_OOM_MISSING_LARGEST: u32 = 8;
/// Incomplete: which streams hold many of the blocks, on a device that is not pooled.
pub const MILLPOND_OOM_MISSING_STREAMS: u32 = 16;

/// The device maps, so that free granules serve a request wherever they lie.
pub const MILLPOND_OOM_MAPS: u32 = 1;
/// The device could map, but the option `expandable_segments` is off.
pub const MILLPOND_OOM_COULD_MAP: u32 = 2;
/// The device's memory is pooled.
pub const MILLPOND_OOM_POOLED: u32 = 4;
/// The request's stream is captured: nothing that needs a wait was tried.
pub const MILLPOND_OOM_CAPTURED: u32 = 8;
/// The request had a stream.
pub const MILLPOND_OOM_HAS_STREAM: u32 = 16;
/// A history, a recording or a tool is told of the device's blocks.
pub const MILLPOND_OOM_WATCHED: u32 = 32;
/// The option `scatter` is off: blocks are not put together from granules that lie apart.
pub const MILLPOND_OOM_NO_SCATTER: u32 = 64;
/// The pool is contiguous: each of its blocks lies in one allocation of the device.
pub const MILLPOND_OOM_CONTIGUOUS: u32 = 128;
/// The device's memory could be pooled, but the option `backend` says otherwise.
pub const MILLPOND_OOM_COULD_POOL: u32 = 256;

/// What a freed block waits for: the work of one stream.
pub const MILLPOND_OOM_WAITS_FOR_STREAM: u32 = 1;
/// The work of all streams.
pub const MILLPOND_OOM_WAITS_FOR_ALL_STREAMS: u32 = 2;
/// A stream that has ended.
pub const MILLPOND_OOM_WAITS_FOR_ENDED: u32 = 3;
/// Users outside this process.
pub const MILLPOND_OOM_WAITS_FOR_OTHERS: u32 = 4;
/// Nothing any more, or it is not known yet.
pub const MILLPOND_OOM_WAITS_FOR_NOTHING: u32 = 5;

/// A step that was tried: idle memory of other streams of the pool.
pub const MILLPOND_OOM_STEP_POOL_IDLE: u32 = 0;
/// Giving unused memory back to the device (`garbage_collection_threshold`).
pub const MILLPOND_OOM_STEP_COLLECT: u32 = 1;
/// More memory from the device.
pub const MILLPOND_OOM_STEP_DEVICE: u32 = 2;
/// Freed blocks that were kept whole (`max_split_size_mb`).
pub const MILLPOND_OOM_STEP_WHOLE: u32 = 3;
/// Memory of busy streams of the pool.
pub const MILLPOND_OOM_STEP_POOL_BUSY: u32 = 4;
/// Idle memory of other pools.
pub const MILLPOND_OOM_STEP_OTHERS_IDLE: u32 = 5;
/// Freed blocks whose waits are over.
pub const MILLPOND_OOM_STEP_READY: u32 = 6;
/// Waiting for freed blocks.
pub const MILLPOND_OOM_STEP_WAITING: u32 = 7;
/// Memory of busy streams of other pools.
pub const MILLPOND_OOM_STEP_OTHERS_BUSY: u32 = 8;
/// Giving idle segments back to the device to get one that is large enough.
pub const MILLPOND_OOM_STEP_TRIM: u32 = 9;
/// The program's own callbacks.
pub const MILLPOND_OOM_STEP_CALLBACKS: u32 = 10;

/// The most pools, streams, tags and waits that a report lists of each.
pub const MILLPOND_OOM_TOP: usize = 8;
/// The number of MILLPOND_OOM_STEP_* numbers.
pub const MILLPOND_OOM_STEPS: usize = 11;
/// The size of a label in bytes, with its NUL; longer labels are cut.
pub const MILLPOND_OOM_LABEL: usize = 48;
/// The size of the device's error message in bytes, with its NUL; longer ones are cut.
pub const MILLPOND_OOM_WORDS: usize = 192;

const _: () = assert!(OOM_TOP == MILLPOND_OOM_TOP && OOM_STEPS == MILLPOND_OOM_STEPS);

/// A pool, a stream or a tag, and what it holds.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_oom_holder {
    /// A label for people: "pool 'weights'", "stream 0x7f00", "tag 'kv_cache'".
    pub label: [c_char; MILLPOND_OOM_LABEL],
    /// The pool, if the holder is one; borrowed. NULL if it has ended.
    pub pool: *mut millpond_pool,
    /// The stream, if the holder is one; NULL for the default stream, and for blocks without a stream.
    pub stream: C_Stream,
    /// Bytes in live blocks, after rounding.
    pub live_bytes: u64,
    /// The number of live blocks.
    pub block_count: u64,
    /// Bytes in freed blocks that still wait.
    pub waiting_bytes: u64,
    /// Bytes that are reserved and in no block.
    pub free_bytes: u64,
}

/// What freed blocks wait for. A block that waits for several things is counted for the first one only.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_oom_wait {
    /// A MILLPOND_OOM_WAITS_FOR_* number.
    pub waits_for: u32,
    /// The number of blocks.
    pub block_count: u32,
    /// The stream, for MILLPOND_OOM_WAITS_FOR_STREAM.
    pub stream: C_Stream,
    /// Their bytes, after rounding.
    pub bytes: u64,
}

/// The result of one step that was tried.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_oom_tried {
    /// A MILLPOND_OOM_STEP_* number.
    pub step: u32,
    /// How often it was tried.
    pub try_count: u32,
    /// How often it freed or found memory.
    pub helped_count: u32,
    /// 0.
    pub reserved: u32,
    /// Bytes that it brought; for callbacks, bytes that they freed. A step that gives memory back to the device brings
    /// none by itself.
    pub bytes: u64,
}

/// Why a request found no memory. Everything except `device_free_bytes` belongs to one moment: `live_bytes`,
/// `waiting_bytes`, `free_here_bytes`, `free_other_streams_bytes`, `free_other_pools_bytes` and `moving_bytes` sum up
/// to `reserved_bytes`, which sleeping pools are not part of.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_oom_report {
    /// sizeof(millpond_oom_report)
    pub struct_size: usize,
    /// Why the request failed: a number from MILLPOND_OOM_BOOKKEEPING to MILLPOND_OOM_EXHAUSTED.
    pub reason: u32,
    /// MILLPOND_OOM_MISSING_* bits: which parts are unknown or incomplete.
    pub missing: u32,
    /// Bits from MILLPOND_OOM_MAPS to MILLPOND_OOM_COULD_POOL.
    pub flags: u32,
    /// The number of streams that freed blocks wait for.
    pub waiting_stream_count: u32,
    /// The device; borrowed.
    pub device: *mut millpond_device,
    /// The pool that should have served the request; borrowed. NULL if it has ended.
    pub pool: *mut millpond_pool,
    /// A label of the pool for people.
    pub pool_label: [c_char; MILLPOND_OOM_LABEL],
    /// The stream of the request.
    pub stream: C_Stream,
    /// The size of the request.
    pub requested_bytes: u64,
    /// The same after rounding.
    pub rounded_bytes: u64,
    /// The limit of the pool; 0: none.
    pub pool_limit_bytes: u64,
    /// The limit of the device; 0: none.
    pub device_limit_bytes: u64,
    /// The most that is ever taken from the device.
    pub device_most_bytes: u64,
    /// Reserved by the pool.
    pub pool_reserved_bytes: u64,
    /// Reserved: taken from the device.
    pub reserved_bytes: u64,
    /// In live blocks.
    pub live_bytes: u64,
    /// In freed blocks that still wait.
    pub waiting_bytes: u64,
    /// The part of `waiting_bytes` that users outside this process still use.
    pub exported_bytes: u64,
    /// Reserved and in no block: for the request's own stream in its pool.
    pub free_here_bytes: u64,
    /// Reserved and in no block: for other streams of the pool.
    pub free_other_streams_bytes: u64,
    /// Reserved and in no block: in other pools.
    pub free_other_pools_bytes: u64,
    /// In transit: in the hands of other threads at that moment.
    pub moving_bytes: u64,
    /// The size of the sleeping pools; not part of `reserved_bytes`.
    pub sleeping_bytes: u64,
    /// Not reserved, and within the limits of the device.
    pub unreserved_bytes: u64,
    /// Free memory as the device reports it, which other users of the device share.
    pub device_free_bytes: u64,
    /// The largest block that the request's own stream and pool could have given.
    pub largest_here_bytes: u64,
    /// The largest block that any other stream or pool could have given.
    pub largest_elsewhere_bytes: u64,
    /// The error of the last call that asked the device for memory; "" if there was none or it succeeded.
    pub device_said: [c_char; MILLPOND_OOM_WORDS],
    /// The number of elements used in `pools`.
    pub pool_count: u32,
    /// The number of elements used in `streams`.
    pub stream_count: u32,
    /// The number of elements used in `tags`.
    pub tag_count: u32,
    /// The number of elements used in `waits`.
    pub wait_count: u32,
    /// The number of elements used in `tried`.
    pub tried_count: u32,
    /// 0.
    pub reserved: u32,
    /// The pools that hold the most, live and waiting, largest first.
    pub pools: [millpond_oom_holder; MILLPOND_OOM_TOP],
    /// The streams that hold the most, likewise.
    pub streams: [millpond_oom_holder; MILLPOND_OOM_TOP],
    /// The tags that hold the most, likewise.
    pub tags: [millpond_oom_holder; MILLPOND_OOM_TOP],
    /// What freed blocks wait for, the most bytes first.
    pub waits: [millpond_oom_wait; MILLPOND_OOM_TOP],
    /// The steps that were tried.
    pub tried: [millpond_oom_tried; MILLPOND_OOM_STEPS],
    /// Free in whole granules, wherever they lie: what a block could be put together from, as far as the request may
    /// have it.
    pub whole_granule_bytes: u64,
    /// Left to other users of the device (`headroom_mb`); part of `device_free_bytes`.
    pub headroom_bytes: u64,
    /// The size from which freed blocks stay whole (`max_split_size_mb`); 0: none does.
    pub max_split_bytes: u64,
}

// SAFETY: repr(C), `struct_size` first, integers and raw pointers.
unsafe impl Versioned for millpond_oom_report {}

/// Called when a request finds no memory, after everything else was tried, with the pointer given to
/// `millpond_device_add_oom_handler` and a report, which is valid during the call. Runs on the thread of the request
/// with no lock held, on several threads at once if several requests fail. Returns true if it freed something. It may
/// allocate and free through Millpond; requests that fail inside it call no handler. It should not throw:
/// that counts as false.
pub type millpond_oom_handler =
    Option<unsafe extern "C-unwind" fn(user_data: *mut c_void, report: *const millpond_oom_report) -> bool>;

/// Gets the report of the calling thread's last request that found no memory, if that was a request to this device: to
/// any pool, with or without a stream, and however long ago. Pinned and unified memory have no reports. The caller sets
/// `inout_report->struct_size`; as much as fits is written. The report is a copy, which nothing changes afterwards.
///
/// Errors: INVALID_ARGUMENT, also if the thread has no such request; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_last_oom(
    device: *const millpond_device,
    inout_report: *mut millpond_oom_report,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { OutStruct::new(inout_report, "inout_report") }?;
        let device = handles::device(device)?;
        let Some(report) = last_error::report(false).filter(|r| r.device == Some(device.id())) else {
            fail!(Code::InvalidArgument, "no request of this thread has found no memory of the device last");
        };
        out.set((&*report).into());
        Ok(())
    })
}

/// Gets the report of the calling thread's last error, whatever the device. C_ERROR if that error was not a request
/// that found no memory, or if an argument is wrong. Does not change the last error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_last_oom(inout_report: *mut millpond_oom_report) -> C_Status {
    let told = catch_unwind(AssertUnwindSafe(|| -> Result<()> {
        runtime::check_fork()?;
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { OutStruct::new(inout_report, "inout_report") }?;
        let Some(report) = last_error::report(true) else {
            fail!(Code::InvalidArgument, "the last error was no lack of memory");
        };
        out.set((&*report).into());
        Ok(())
    }));
    if matches!(told, Ok(Ok(()))) { C_Status::SUCCESS } else { C_Status::ERROR }
}

/// Writes the report as text for people: several lines of UTF-8, with advice at the end. `out_text` gets as much of it
/// as fits, always with a NUL, and `out_size` the size of the whole text in bytes with its NUL. `out_text` may be NULL
/// if `capacity` is 0, and `out_size` may be NULL. 4096 bytes are enough for nearly all reports.
///
/// Errors: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_oom_report_text(
    report: *const millpond_oom_report,
    out_text: *mut c_char,
    capacity: usize,
    out_size: *mut usize,
) -> C_Status {
    run(|| {
        if report.is_null() || capacity > 0 && out_text.is_null() {
            return Err(Error::new(Code::InvalidArgument, "report or out_text is NULL"));
        }
        // SAFETY: C's promise, as the header states it.
        let report = unsafe { read_struct(report, "report") }?;
        let mut out = Cut { at: out_text.cast(), room: capacity, len: 0, all: 0 };
        let _ = OomReport::from(&report).write_text(&mut out); // it takes everything
        if !out_size.is_null() {
            // SAFETY: as above.
            unsafe { Out::new(out_size, "out_size") }?.set(out.all + 1);
        }
        if capacity > 0 {
            // SAFETY: the caller has room for `capacity` bytes, and `len` is less.
            unsafe { out_text.add(out.len).write(0) };
        }
        Ok(())
    })
}

/// The caller's buffer, and how much of it is written.
struct Cut {
    at: *mut u8,
    room: usize, // with the NUL
    len: usize,
    all: usize, // of the whole text
}

impl std::fmt::Write for Cut {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        // Nothing comes after what was cut.
        let left = if self.len == self.all { self.room.saturating_sub(self.len + 1) } else { 0 };
        let cut = (0..=s.len().min(left)).rev().find(|&n| s.is_char_boundary(n)).unwrap_or(0);
        if cut > 0 {
            // SAFETY: less than `room`, which the caller has.
            let to = unsafe { self.at.add(self.len) };
            // SAFETY: as above; the text is not the caller's.
            unsafe { std::ptr::copy_nonoverlapping(s.as_ptr(), to, cut) };
        }
        self.len += cut;
        self.all += s.len();
        Ok(())
    }
}

/// `millpond_device_add_oom_callback` for a callback that gets the report: which pool found no memory, who holds how
/// much, and what was tried. Neither kind is called for a request that no callback can help: one that is larger than
/// the device, or than the limit of its pool. `millpond_device_remove_oom_callback` removes it.
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_add_oom_handler(
    device: *mut millpond_device,
    handler: millpond_oom_handler,
    user_data: *mut c_void,
    out_id: *mut u64,
) -> C_Status {
    run_roomy(|| {
        let device = handles::device(device)?;
        // SAFETY: C's promise, as the header states it.
        unsafe {
            add(handler, user_data, out_id, |run_it| device.memory().oom_callbacks().add_handler(run_it))
        }
    })
}

/// `millpond_device_add_oom_handler` for requests to one pool: those that it should have served, so not those that name it
/// and come from a captured stream, but those that name none in a scope of it. It is called in its turn among the handlers
/// and callbacks of the device, in the order of registration. It ends with the pool, when it may still be running on
/// another thread. `millpond_device_remove_oom_callback` of the pool's device removes it before that; later it waits for such a
/// thread, and returns INVALID_ARGUMENT.
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_add_oom_handler(
    pool: *mut millpond_pool,
    handler: millpond_oom_handler,
    user_data: *mut c_void,
    out_id: *mut u64,
) -> C_Status {
    run_roomy(|| {
        let (device, pool) = handles::pool(pool)?;
        // SAFETY: C's promise, as the header states it.
        unsafe {
            add(handler, user_data, out_id, |run_it| {
                device.memory().oom_callbacks().add_pool_handler(pool, run_it)
            })
        }
    })
}

/// Registers `handler` by `register`.
///
/// # Safety
/// As the exports' comments ask of C.
unsafe fn add(
    handler: millpond_oom_handler,
    user_data: *mut c_void,
    out_id: *mut u64,
    register: impl FnOnce(Handler) -> Result<u64>,
) -> Result<()> {
    let Some(call) = handler else {
        return Err(Error::new(Code::InvalidArgument, "handler is NULL"));
    };
    // SAFETY: the caller's promise.
    let out = unsafe { Out::new(out_id, "out_id") }?;
    let data = UserData(user_data);
    out.set(register(Box::new(move |report: &OomReport| {
        // The whole struct must move, not only the pointer in it.
        let data = &data;
        let report = millpond_oom_report::from(report);
        // SAFETY: the caller gave a function for exactly this call with this pointer.
        exceptions::caught(|| unsafe { call(data.0, &report) }).unwrap_or(false)
    }))?);
    Ok(())
}

type Handler = Box<dyn Fn(&OomReport) -> bool + Send + Sync>;
