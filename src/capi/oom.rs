//! Why a request found no memory: the report, and callbacks that get it.

use crate::base::error::{Code, Error, Result};
use crate::base::foreign;
use crate::capi::guard::{Out, OutStruct, UserData, Versioned, read_struct, run};
use crate::capi::types::{millpond_device, millpond_pool};
use crate::capi::{handles, last_error};
use crate::fail;
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
/// With it the pool would pass its limit.
pub const MILLPOND_OOM_POOL_LIMIT: u32 = 5;
/// With it the device would pass its limit.
pub const MILLPOND_OOM_DEVICE_LIMIT: u32 = 6;
/// What is missing was freed and waits: for streams, or since others use it.
pub const MILLPOND_OOM_WAITING: u32 = 7;
/// Enough is free, but not in one piece, or not where the request may have it.
pub const MILLPOND_OOM_FRAGMENTED: u32 = 8;
/// The device refused although less is taken from it than may be.
pub const MILLPOND_OOM_DEVICE_REFUSED: u32 = 9;
/// Nearly all that the device has is in use.
pub const MILLPOND_OOM_EXHAUSTED: u32 = 10;

/// What a report could not tell: everything but what was asked.
pub const MILLPOND_OOM_MISSING_ALL: u32 = 1;
/// What the device says that it has free: in a callback, and while a stream is captured, it is not asked.
pub const MILLPOND_OOM_MISSING_DEVICE_FREE: u32 = 2;
/// What many of the freed blocks wait for: there are too many.
pub const MILLPOND_OOM_MISSING_WAITS: u32 = 4;
/// The largest free range: what is told is the least that it has.
pub const MILLPOND_OOM_MISSING_LARGEST: u32 = 8;
/// Which streams hold many of the blocks, where memory is not pooled.
pub const MILLPOND_OOM_MISSING_STREAMS: u32 = 16;

/// The device maps: free granules serve a request wherever they lie.
pub const MILLPOND_OOM_MAPS: u32 = 1;
/// It could map, but the option `expandable_segments` is off.
pub const MILLPOND_OOM_COULD_MAP: u32 = 2;
/// Its memory is pooled.
pub const MILLPOND_OOM_POOLED: u32 = 4;
/// The request's stream is captured: nothing that needs a wait was tried.
pub const MILLPOND_OOM_CAPTURED: u32 = 8;
/// The request had a stream.
pub const MILLPOND_OOM_HAS_STREAM: u32 = 16;

/// What a freed block waits for: the work of one stream.
pub const MILLPOND_OOM_WAITS_FOR_STREAM: u32 = 1;
/// The work of all streams.
pub const MILLPOND_OOM_WAITS_FOR_ALL_STREAMS: u32 = 2;
/// A stream that has ended.
pub const MILLPOND_OOM_WAITS_FOR_ENDED: u32 = 3;
/// Others, beside this process, which use its memory.
pub const MILLPOND_OOM_WAITS_FOR_OTHERS: u32 = 4;
/// Nothing any more, or not known yet.
pub const MILLPOND_OOM_WAITS_FOR_NOTHING: u32 = 5;

/// What was tried: idle memory of other streams of the pool.
pub const MILLPOND_OOM_STEP_POOL_IDLE: u32 = 0;
/// Unused memory back to the device (`garbage_collection_threshold`).
pub const MILLPOND_OOM_STEP_COLLECT: u32 = 1;
/// More from the device.
pub const MILLPOND_OOM_STEP_DEVICE: u32 = 2;
/// Freed blocks that were kept whole (`max_split_size_mb`).
pub const MILLPOND_OOM_STEP_WHOLE: u32 = 3;
/// Memory of busy streams of the pool.
pub const MILLPOND_OOM_STEP_POOL_BUSY: u32 = 4;
/// Idle memory of other pools.
pub const MILLPOND_OOM_STEP_OTHERS_IDLE: u32 = 5;
/// Freed blocks that wait for nothing any more.
pub const MILLPOND_OOM_STEP_READY: u32 = 6;
/// A wait for freed blocks.
pub const MILLPOND_OOM_STEP_WAITING: u32 = 7;
/// Memory of busy streams of other pools.
pub const MILLPOND_OOM_STEP_OTHERS_BUSY: u32 = 8;
/// Idle segments back to the device, for one that is large enough.
pub const MILLPOND_OOM_STEP_TRIM: u32 = 9;
/// The program's own callbacks.
pub const MILLPOND_OOM_STEP_CALLBACKS: u32 = 10;

/// Holders of a kind, and streams that are waited for, that a report names at most.
pub const MILLPOND_OOM_TOP: usize = 8;
/// Steps that there are.
pub const MILLPOND_OOM_STEPS: usize = 11;
/// Bytes of a label, with its NUL; longer ones are cut.
pub const MILLPOND_OOM_LABEL: usize = 48;
/// Bytes of the device's own words, likewise.
pub const MILLPOND_OOM_WORDS: usize = 192;

const _: () = assert!(OOM_TOP == MILLPOND_OOM_TOP && OOM_STEPS == MILLPOND_OOM_STEPS);

/// A pool, a stream or a tag, and what it holds.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_oom_holder {
    /// What it is, for a person: "pool 'weights'", "stream 0x7f00", "tag 'kv_cache'".
    pub label: [c_char; MILLPOND_OOM_LABEL],
    /// Of a pool: borrowed; NULL for one that has ended.
    pub pool: *mut millpond_pool,
    /// Of a stream: NULL for the default one, and for blocks without a stream.
    pub stream: C_Stream,
    /// Bytes in live blocks, after rounding.
    pub live_bytes: u64,
    /// Live blocks.
    pub block_count: u64,
    /// Bytes in freed blocks that wait.
    pub waiting_bytes: u64,
    /// Bytes taken from the device and in no block.
    pub free_bytes: u64,
}

/// What freed blocks wait for. Each block counts for the first thing only that it waits for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_oom_wait {
    /// A MILLPOND_OOM_WAITS_FOR_* number.
    pub waits_for: u32,
    /// Blocks.
    pub block_count: u32,
    /// The stream, with MILLPOND_OOM_WAITS_FOR_STREAM.
    pub stream: C_Stream,
    /// Bytes, after rounding.
    pub bytes: u64,
}

/// What became of one thing that was tried.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_oom_tried {
    /// A MILLPOND_OOM_STEP_* number.
    pub step: u32,
    /// How often it was tried.
    pub try_count: u32,
    /// How often it brought anything.
    pub helped_count: u32,
    /// 0.
    pub reserved: u32,
    /// Bytes that it brought; of callbacks, that they freed. What gives memory back to the device brings none by itself.
    pub bytes: u64,
}

/// Why a request found no memory. All but the device's own number is of one moment; `live_bytes`, `waiting_bytes`,
/// `free_here_bytes`, `free_other_streams_bytes`, `free_other_pools_bytes` and `moving_bytes` sum up to
/// `reserved_bytes`, but for what sleeps.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_oom_report {
    /// sizeof(millpond_oom_report)
    pub struct_size: usize,
    /// A MILLPOND_OOM_* number: why, in one word.
    pub reason: u32,
    /// MILLPOND_OOM_MISSING_* bits: what could not be told.
    pub missing: u32,
    /// MILLPOND_OOM_MAPS and the bits behind it.
    pub flags: u32,
    /// For how many streams freed blocks wait.
    pub waiting_stream_count: u32,
    /// The device; borrowed.
    pub device: *mut millpond_device,
    /// The pool that was to serve the request; borrowed. NULL when it has ended.
    pub pool: *mut millpond_pool,
    /// What it is, for a person.
    pub pool_label: [c_char; MILLPOND_OOM_LABEL],
    /// The stream of the request.
    pub stream: C_Stream,
    /// Bytes that were asked for.
    pub requested_bytes: u64,
    /// The same after rounding.
    pub rounded_bytes: u64,
    /// The limit of the pool; 0: none.
    pub pool_limit_bytes: u64,
    /// The limit of the device; 0: none.
    pub device_limit_bytes: u64,
    /// The most that is ever taken from the device.
    pub device_most_bytes: u64,
    /// Taken from the device by the pool.
    pub pool_reserved_bytes: u64,
    /// Taken from the device.
    pub reserved_bytes: u64,
    /// In live blocks.
    pub live_bytes: u64,
    /// In freed blocks that wait.
    pub waiting_bytes: u64,
    /// Of that, in blocks that others use beside this process.
    pub exported_bytes: u64,
    /// In no block, for the request's own stream in its pool.
    pub free_here_bytes: u64,
    /// In no block, for other streams of the pool.
    pub free_other_streams_bytes: u64,
    /// In no block, in other pools.
    pub free_other_pools_bytes: u64,
    /// In the hands of other threads at that moment.
    pub moving_bytes: u64,
    /// Not taken any more: of pools that sleep.
    pub sleeping_bytes: u64,
    /// Not taken, and within the limits of the device.
    pub unreserved_bytes: u64,
    /// What the device says that it has free: other users of it count, too.
    pub device_free_bytes: u64,
    /// The largest block that the request's own stream and pool could have given.
    pub largest_here_bytes: u64,
    /// The same of any other stream or pool.
    pub largest_elsewhere_bytes: u64,
    /// What the device said when it was asked last; "" where it was not, or has given.
    pub device_said: [c_char; MILLPOND_OOM_WORDS],
    /// How many of `pools` are filled, and so on.
    pub pool_count: u32,
    /// See `pool_count`.
    pub stream_count: u32,
    /// See `pool_count`.
    pub tag_count: u32,
    /// See `pool_count`.
    pub wait_count: u32,
    /// See `pool_count`.
    pub tried_count: u32,
    /// 0.
    pub reserved: u32,
    /// The pools that hold the most, live and waiting, first.
    pub pools: [millpond_oom_holder; MILLPOND_OOM_TOP],
    /// The streams, likewise.
    pub streams: [millpond_oom_holder; MILLPOND_OOM_TOP],
    /// The tags, likewise.
    pub tags: [millpond_oom_holder; MILLPOND_OOM_TOP],
    /// What most of what waits, waits for.
    pub waits: [millpond_oom_wait; MILLPOND_OOM_TOP],
    /// What was tried.
    pub tried: [millpond_oom_tried; MILLPOND_OOM_STEPS],
}

// SAFETY: repr(C), `struct_size` first, integers and raw pointers.
unsafe impl Versioned for millpond_oom_report {}

/// Called when a request finds no memory, with the pointer given at `millpond_device_add_oom_handler` and a report of why,
/// which lives for the call: on the thread of the request, with no lock held, after everything else was tried.
/// Returns true when it freed something. It may allocate and free through Millpond; a request that fails inside it calls
/// nobody. It may be called by several threads at once. It must not throw.
pub type millpond_oom_handler =
    Option<unsafe extern "C-unwind" fn(user_data: *mut c_void, report: *const millpond_oom_report) -> bool>;

/// The report of the calling thread's last request that found no memory, if it was one of this device: of any pool, with
/// or without a stream, and however long ago. Pinned and unified memory have none. The caller sets
/// `inout_report->struct_size`; as much as fits is written. It is a copy, and stays as it is.
///
/// Errors: INVALID_ARGUMENT, also where the thread has no such request; NOT_INITIALIZED.
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

/// The report that belongs to the calling thread's last error, of whichever device; C_ERROR where that was no request
/// that found no memory, or an argument is wrong. Does not change the last error.
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

/// The report in words, for a person: several lines, UTF-8, with what could be done at the end. `out_text` gets as much
/// of it as fits, always with a NUL, and `out_size` the bytes that all of it takes with its NUL. `out_text` may be NULL
/// where `capacity` is 0, and `out_size` may be NULL. 4096 bytes are enough for nearly all reports.
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
        let text = OomReport::from(&report).text();
        if !out_size.is_null() {
            // SAFETY: as above.
            unsafe { Out::new(out_size, "out_size") }?.set(text.len() + 1);
        }
        if capacity == 0 {
            return Ok(());
        }
        let end = (0..capacity.min(text.len() + 1)).rev().find(|&n| text.is_char_boundary(n)).unwrap_or(0);
        // SAFETY: the caller has room for `capacity` bytes, and `end` is less.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), out_text.cast::<u8>(), end) };
        // SAFETY: as above.
        unsafe { out_text.add(end).write(0) };
        Ok(())
    })
}

/// As `millpond_device_add_oom_callback`, for a callback that gets the report of why there is no memory: of which pool,
/// who holds how much, and what was tried. Neither is called for a request that no callback can help: one that is larger
/// than the device, or than the limit of its pool. Removed with `millpond_device_remove_oom_callback`.
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_add_oom_handler(
    device: *mut millpond_device,
    handler: millpond_oom_handler,
    user_data: *mut c_void,
    out_id: *mut u64,
) -> C_Status {
    run(|| {
        let Some(call) = handler else {
            return Err(Error::new(Code::InvalidArgument, "handler is NULL"));
        };
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_id, "out_id") }?;
        let data = UserData(user_data);
        let run_it = move |report: &OomReport| {
            // The whole struct must move, not only the pointer in it.
            let data = &data;
            let report = millpond_oom_report::from(&handles::named_report(report));
            // SAFETY: the caller gave a function for exactly this call with this pointer.
            foreign::caught(|| unsafe { call(data.0, &report) }).unwrap_or(false)
        };
        out.set(handles::device(device)?.memory().add_oom_handler(run_it)?);
        Ok(())
    })
}
