//! Millpond through its C API, as a program that links the static library calls it.

use super::{Account, Subject};
use anyhow::{Result, bail};
use millpond::capi::{
    C_Status, C_Stream, MILLPOND_E_OUT_OF_MEMORY, millpond_device, millpond_device_get,
    millpond_device_get_default_pool, millpond_device_get_stats, millpond_host_configure,
    millpond_host_options, millpond_last_error_code, millpond_last_error_message, millpond_pool,
    millpond_pool_alloc, millpond_pool_free, millpond_stats, millpond_stream_create,
};
use std::ffi::{CStr, c_void};
use std::hint::black_box;
use std::mem::{MaybeUninit, size_of};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// More streams than any trace has.
const STREAMS: usize = 64;
/// A stream's handle, of an opaque type.
type StreamCell = AtomicPtr<c_void>;

static DEVICE: AtomicPtr<millpond_device> = AtomicPtr::new(null_mut());
static POOL: AtomicPtr<millpond_pool> = AtomicPtr::new(null_mut());
static STREAM: [StreamCell; STREAMS] = [const { AtomicPtr::new(null_mut()) }; STREAMS];

fn check(what: &str, status: C_Status) -> Result<()> {
    if status == C_Status::SUCCESS {
        return Ok(());
    }
    // SAFETY: never NULL, NUL-ended, and copied before the next call of this thread.
    let text = unsafe { CStr::from_ptr(millpond_last_error_message()) }.to_string_lossy().into_owned();
    bail!("{what}: {text}")
}

pub(super) fn open(streams: u32, capacity: u64, mapping: bool) -> Result<Subject> {
    if streams as usize > STREAMS {
        bail!("{streams} streams are too many");
    }
    let options = millpond_host_options {
        struct_size: size_of::<millpond_host_options>(),
        device_count: 1,
        capacity_bytes: capacity,
        disable_mapping: u32::from(!mapping),
    };
    let mut device = null_mut();
    let mut pool = null_mut();
    // SAFETY: the struct, the name and the outputs live for the calls.
    unsafe {
        check("millpond_host_configure", millpond_host_configure(&options))?;
        check("millpond_device_get", millpond_device_get(c"host".as_ptr(), 0, &mut device))?;
        check("millpond_device_get_default_pool", millpond_device_get_default_pool(device, &mut pool))?;
    }
    for cell in &STREAM[..streams as usize] {
        let mut stream: C_Stream = null_mut();
        // SAFETY: as above.
        check("millpond_stream_create", unsafe { millpond_stream_create(device, &mut stream) })?;
        cell.store(stream.cast(), Relaxed);
    }
    DEVICE.store(device, Relaxed);
    POOL.store(pool, Relaxed);
    Ok(Subject { alloc, free, account })
}

extern "C" fn alloc(bytes: usize, stream: u32, out: *mut *mut c_void) -> i32 {
    let call: unsafe extern "C" fn(_, _, _, _) -> _ = millpond_pool_alloc;
    let stream = STREAM[stream as usize].load(Relaxed).cast();
    // SAFETY: `out` is the caller's; the handles are Millpond's own.
    let status = unsafe { black_box(call)(POOL.load(Relaxed), bytes, stream, out) };
    match status {
        C_Status::SUCCESS => 0,
        _ if millpond_last_error_code() == MILLPOND_E_OUT_OF_MEMORY => 1,
        _ => 2,
    }
}

extern "C" fn free(ptr: *mut c_void, _bytes: usize, stream: u32) -> i32 {
    let call: unsafe extern "C" fn(_, _, _) -> _ = millpond_pool_free;
    let stream = STREAM[stream as usize].load(Relaxed).cast();
    // SAFETY: as above; the library checks the pointer.
    let status = unsafe { black_box(call)(POOL.load(Relaxed), ptr, stream) };
    i32::from(status != C_Status::SUCCESS)
}

fn account() -> Account {
    let mut stats = MaybeUninit::<millpond_stats>::zeroed();
    // SAFETY: integers only, for which zero is a value.
    let stats = unsafe { stats.assume_init_mut() };
    stats.struct_size = size_of::<millpond_stats>();
    // SAFETY: the struct lives for the call and tells its size.
    let status = unsafe { millpond_device_get_stats(DEVICE.load(Relaxed), stats) };
    if status != C_Status::SUCCESS {
        return Account::default();
    }
    Account {
        reserved: stats.reserved_bytes.current,
        peak_reserved: stats.reserved_bytes.peak,
        driver_calls: stats.driver_calls,
    }
}
