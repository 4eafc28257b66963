//! Devices: getting one, what it is, its limit and its account.

use crate::base::error::{Code, Error};
use crate::capi::device_type::write_as_fits;
use crate::capi::guard::{Out, OutStruct, UserData, Versioned, run, run_first, run_roomy, text};
use crate::capi::handles;
use crate::capi::types::{
    millpond_counter, millpond_device, millpond_device_info, millpond_oom_callback, millpond_pool,
    millpond_stats,
};
use crate::fail;
use crate::ffi::exceptions;
use crate::paddle::abi::C_Status;
use crate::runtime::{self, Caps, Counter, DeviceInfo, PoolId, Stats};
use std::ffi::{c_char, c_void};

// SAFETY: repr(C), `struct_size` first, integers only.
unsafe impl Versioned for millpond_device_info {}
// SAFETY: repr(C), `struct_size` first, integers only.
unsafe impl Versioned for millpond_stats {}

impl From<Counter> for millpond_counter {
    fn from(c: Counter) -> Self {
        millpond_counter { current: c.current, peak: c.peak, total: c.total }
    }
}

impl From<Stats> for millpond_stats {
    fn from(s: Stats) -> Self {
        millpond_stats {
            struct_size: size_of::<millpond_stats>(),
            requested_bytes: s.requested.into(),
            allocated_bytes: s.allocated.into(),
            active_bytes: s.active.into(),
            reserved_bytes: s.reserved.into(),
            blocks: s.blocks.into(),
            segments: s.segments.into(),
            driver_calls: s.driver_calls,
            out_of_memory_count: s.out_of_memory_count,
            limit_bytes: s.limit,
            sleeping_bytes: s.sleeping.into(),
        }
    }
}

/// The text in an array of C, as much of it as fits, with a NUL.
fn characters<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0 as c_char; N];
    let whole = (0..N.min(text.len() + 1)).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    // The last byte stays 0 whatever comes.
    for (to, from) in out[..N - 1].iter_mut().zip(text[..whole].bytes()) {
        *to = from as c_char;
    }
    out
}

impl From<DeviceInfo> for millpond_device_info {
    fn from(i: DeviceInfo) -> Self {
        millpond_device_info {
            struct_size: size_of::<millpond_device_info>(),
            r#type: characters(&i.type_name),
            ordinal: i.ordinal as i32,
            caps: i.caps.bits(),
            total_bytes: i.memory.total,
            free_bytes: i.memory.free,
            min_chunk_bytes: i.sizes.min_chunk,
            max_chunk_bytes: i.sizes.max_chunk,
            max_alloc_bytes: i.sizes.max_alloc,
            extra_padding_bytes: i.sizes.padding,
            init_alloc_bytes: i.sizes.init_alloc,
            realloc_bytes: i.sizes.realloc,
            compute_capability: i.versions.compute_capability,
            runtime_version: i.versions.runtime,
            driver_version: i.versions.driver,
            name: characters(&i.identity.name),
            pci_bus_id: characters(&i.identity.pci_bus_id),
            uuid: i.identity.uuid.unwrap_or_default(),
        }
    }
}

/// How many devices the type has. Starts the type if needed. "cuda" is counted without starting CUDA, as far as that is
/// possible, so that a child that uses CUDA can still be forked. 0 devices are no error:
/// `millpond_device_type_get_reason` says why.
///
/// Errors: UNKNOWN_DEVICE if there is no such type; INVALID_ARGUMENT for NULL; NOT_PERMITTED in a stream callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_get_count(
    type_name: *const c_char,
    out_count: *mut usize,
) -> C_Status {
    run_first(|| {
        // SAFETY: C's promise, as the header states it.
        let name = unsafe { text(type_name, "type_name") }?;
        // SAFETY: as above.
        let out = unsafe { Out::new(out_count, "out_count") }?;
        out.set(runtime::device_count(name)?);
        Ok(())
    })
}

/// The device of that type and ordinal, opened on first use; the same handle each time. Borrowed: there is nothing to
/// give back. Valid until `millpond_finalize` or until its type is unregistered; later uses return NOT_INITIALIZED.
///
/// Errors: UNKNOWN_DEVICE for the type or the ordinal, with the reason if a type has no devices; INVALID_ARGUMENT for
/// NULL; otherwise what opening the device returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_get(
    type_name: *const c_char,
    ordinal: i32,
    out_device: *mut *mut millpond_device,
) -> C_Status {
    run_first(|| {
        // SAFETY: C's promise, as the header states it.
        let name = unsafe { text(type_name, "type_name") }?;
        // SAFETY: as above.
        let out = unsafe { Out::new(out_device, "out_device") }?;
        let Ok(ordinal) = usize::try_from(ordinal) else {
            fail!(Code::UnknownDevice, "there is no device {ordinal}");
        };
        out.set(handles::of_device(&*runtime::device(name, ordinal)?));
        Ok(())
    })
}

/// What the device reports about itself, with the memory that is free now. The caller sets `inout_info->struct_size`;
/// as much as fits is written.
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED, DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_get_info(
    device: *const millpond_device,
    inout_info: *mut millpond_device_info,
) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { OutStruct::new(inout_info, "inout_info") }?;
        out.set(handles::device(device)?.info()?.into());
        Ok(())
    })
}

/// Why the device does not have the capability `cap` (one of MILLPOND_CAP_*), as a text for a person: for instance that
/// the driver has no virtual memory management. Empty if it has it. Written with its NUL into `out_text` of `capacity`
/// bytes; what does not fit is cut off.
///
/// Errors: INVALID_ARGUMENT for NULL, a `capacity` of 0, and a `cap` that is not one capability; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_get_reason(
    device: *const millpond_device,
    cap: u32,
    out_text: *mut c_char,
    capacity: usize,
) -> C_Status {
    run_roomy(|| {
        let why = || Ok(handles::device(device)?.lack(Caps::from_bits_retain(cap))?.unwrap_or_default());
        // SAFETY: C's promise, as the header states it.
        unsafe { write_as_fits(out_text, capacity, why) }
    })
}

/// Waits for all work queued on the device, on all its streams.
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED, DEVICE; NOT_PERMITTED in a stream callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_synchronize(device: *mut millpond_device) -> C_Status {
    run(|| handles::device(device)?.synchronize())
}

/// Limits the bytes taken from the device to `limit_bytes` from now on; 0: no limit. A limit below what is already
/// taken frees no block: it only refuses more.
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_set_limit(
    device: *mut millpond_device,
    limit_bytes: u64,
) -> C_Status {
    run(|| handles::device(device)?.memory().settings().set_limit(limit_bytes))
}

/// As `millpond_device_set_limit`, for a program that shares the device with others and gives way to them while it runs:
/// if more than `budget_bytes` are taken now, unused memory goes back to the device until no more than that is left, as
/// `millpond_device_trim_to` gives it. `out_above_bytes`, which may be NULL, gets how much is taken beyond the budget
/// all the same, in blocks and beside them: 0 if the budget is kept. Blocks that are freed later do not go back by
/// themselves; a second call with the same budget sees to that. Memory that sleeps, and pinned memory of the host, do
/// not count. 0: no budget, and nothing goes back.
///
/// Errors: as `millpond_device_trim_to`; the budget is in force even then, but for INVALID_ARGUMENT and
/// NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_set_budget(
    device: *mut millpond_device,
    budget_bytes: u64,
    out_above_bytes: *mut u64,
) -> C_Status {
    run_roomy(|| {
        let out = match out_above_bytes.is_null() {
            true => None,
            // SAFETY: C's promise, as the header states it.
            false => Some(unsafe { Out::new(out_above_bytes, "out_above_bytes") }?),
        };
        let device = handles::device(device)?;
        let above = device.memory().settings().set_budget(budget_bytes)?;
        if let Some(out) = out {
            out.set(above);
        }
        Ok(())
    })
}

/// The account of all pools of the device together. The caller sets `inout_stats->struct_size`; as much as
/// fits is written. It may be read some hundred times a second at no cost to those who allocate. A thread that reads more
/// than eight times in a millisecond what others are using sleeps 50 us after each further reading, else they would wait for it
/// most of the time (docs/performance.md).
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_get_stats(
    device: *const millpond_device,
    inout_stats: *mut millpond_stats,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { OutStruct::new(inout_stats, "inout_stats") }?;
        out.set(handles::device(device)?.memory().stats().into());
        Ok(())
    })
}

/// Resets the peaks of the device's account to the current values.
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_reset_peaks(device: *mut millpond_device) -> C_Status {
    run(|| {
        handles::device(device)?.memory().statistics().reset_peaks();
        Ok(())
    })
}

/// Gives memory that no block uses back to the device, from all pools.
///
/// Errors: as `millpond_pool_empty_cache`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_empty_cache(device: *mut millpond_device) -> C_Status {
    run_roomy(|| handles::device(device)?.memory().empty_cache(None))
}

/// As `millpond_pool_trim_to`, for all pools of the device together.
///
/// Errors: as `millpond_pool_trim_to`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_trim_to(device: *mut millpond_device, keep_bytes: u64) -> C_Status {
    run_roomy(|| handles::device(device)?.memory().trim_to(None, keep_bytes))
}

/// Registers a callback for requests that find no memory of the device (of any pool, with or without a stream):
/// `callback` is called with `user_data` after everything else was tried, so that a framework can free its own caches.
/// All callbacks are called, the oldest first; if one returns true, the request is tried again. If it still finds nothing, because
/// that was too little or another thread was faster, they are called again, as long as one returns true and memory of the
/// device was freed meanwhile, a thousand times at most. The number in
/// `out_id` is never 0, and unique among the callbacks of all devices. The caller removes it with
/// `millpond_device_remove_oom_callback`; it ends with the device, but may still be running then on another thread.
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_add_oom_callback(
    device: *mut millpond_device,
    callback: millpond_oom_callback,
    user_data: *mut c_void,
    out_id: *mut u64,
) -> C_Status {
    run_roomy(|| {
        let Some(call) = callback else {
            return Err(Error::new(Code::InvalidArgument, "callback is NULL"));
        };
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_id, "out_id") }?;
        let data = UserData(user_data);
        let run_it = move |bytes: u64| {
            // The whole struct must be captured, not only the pointer in it.
            let data = &data;
            // SAFETY: the caller gave a function for exactly this call with this pointer.
            exceptions::caught(|| unsafe { call(data.0, bytes) }).unwrap_or(false)
        };
        out.set(handles::device(device)?.memory().oom_callbacks().add(run_it)?);
        Ok(())
    })
}

/// Removes an out-of-memory callback. When this returns, no thread is in it, but perhaps the calling one, and `user_data`
/// may be destroyed. Hold no lock that the callback takes.
///
/// Errors: INVALID_ARGUMENT if the number belongs to no callback, to a removed one, to one that has ended with its pool (in
/// which no thread is any more either), or to one of another device;
/// NOT_PERMITTED, and the callback stays, in a stream callback, since a thread in the callback may wait for that stream, and
/// within an out-of-memory callback or a hook if another thread is in the callback, as the two could wait for each other;
/// NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_remove_oom_callback(
    device: *mut millpond_device,
    id: u64,
) -> C_Status {
    run(|| handles::device(device)?.memory().oom_callbacks().remove(id))
}

/// The pool that the device has from the start. Borrowed: it cannot be destroyed. Valid as long as the device.
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_get_default_pool(
    device: *mut millpond_device,
    out_pool: *mut *mut millpond_pool,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_pool, "out_pool") }?;
        out.set(handles::of_pool(handles::device(device)?, PoolId::DEFAULT)?);
        Ok(())
    })
}
