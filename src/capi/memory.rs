//! Memory without naming a pool: blocks without a stream, block lookup, host and unified memory.

use crate::base::error::{Code, Result};
use crate::capi::guard::{
    Out, OutStruct, Versioned, run, run_end, run_end_entering, run_entering, run_roomy,
};
use crate::capi::handles::{self, Named};
use crate::capi::pool::{stream_id, to_ptr, unordered};
use crate::capi::stream::event_id;
use crate::capi::types::{
    MILLPOND_ADVICE_UNSET_ACCESSED_BY, MILLPOND_PLACE_DEVICE, MILLPOND_PLACE_HOST, millpond_block_info,
    millpond_device, millpond_host_stats,
};
use crate::fail;
use crate::paddle::abi::{C_Event, C_Status, C_Stream};
use crate::runtime::{self, Advice, HostStats, PoolId, UnifiedPlace};
use std::ffi::c_void;

const _: () = assert!(Advice::UnsetAccessedBy as u32 == MILLPOND_ADVICE_UNSET_ACCESSED_BY);

// SAFETY: repr(C), `struct_size` first, integers and raw pointers.
unsafe impl Versioned for millpond_block_info {}
// SAFETY: repr(C), `struct_size` first, integers only.
unsafe impl Versioned for millpond_host_stats {}

impl From<HostStats> for millpond_host_stats {
    fn from(s: HostStats) -> Self {
        millpond_host_stats {
            struct_size: size_of::<millpond_host_stats>(),
            requested_bytes: s.requested.into(),
            allocated_bytes: s.allocated.into(),
            reserved_bytes: s.reserved.into(),
            blocks: s.blocks.into(),
            cached_bytes: s.cached,
            pending_bytes: s.pending,
            driver_calls: s.driver_calls,
            reuse_count: s.reuses,
            numa_node: s.numa_node.and_then(|n| i32::try_from(n).ok()).unwrap_or(-1),
        }
    }
}

/// Allocates `size_bytes` from the device's default pool, usable at once by the host (if it can access the device's
/// memory) and by every stream. Size 0: C_SUCCESS and NULL. The address is aligned to the device's `min_chunk_bytes`
/// (512 on the built-in devices). The caller frees it with `millpond_free`.
///
/// Errors: OUT_OF_MEMORY; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_alloc(
    device: *mut millpond_device,
    size_bytes: usize,
    out_ptr: *mut *mut c_void,
) -> C_Status {
    let pool = Named(handles::default_pool_of(device));
    unordered(pool, size_bytes, out_ptr, || Ok((handles::device(device)?, PoolId::DEFAULT)))
}

/// Frees a block of any pool of any device. A block of `millpond_alloc` is reused once every stream has passed this
/// point; a block of `millpond_pool_alloc` is freed on its own stream. NULL: no-op.
///
/// Devices of plugins may have address spaces of their own. If blocks of two devices start at `ptr`, nothing is freed:
/// `millpond_device_free` frees the one that is meant.
///
/// Errors: UNKNOWN_POINTER, also for a pointer inside a block; DOUBLE_FREE; INVALID_ARGUMENT, with the names of the
/// devices, if several have a block there; OUT_OF_MEMORY if the block must wait for a stream and the host has no memory
/// to note that; NOT_INITIALIZED if no device is open. After an error nothing was freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_free(ptr: *mut c_void) -> C_Status {
    run(|| runtime::free(ptr.addr() as u64, None))
}

/// As `millpond_free`, for a block of this device: no other device is searched, and what is at this address on another
/// one is left alone.
///
/// Errors: those of `millpond_free`, and UNKNOWN_POINTER for a block of another device. After an error nothing was
/// freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_free(device: *mut millpond_device, ptr: *mut c_void) -> C_Status {
    run(|| runtime::device_free(handles::device(device)?, ptr.addr() as u64))
}

/// As `millpond_free`, but checks that `size_bytes` is the size of the request.
///
/// Errors: WRONG_SIZE, and those of `millpond_free`. After an error nothing was freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_free_sized(ptr: *mut c_void, size_bytes: usize) -> C_Status {
    run(|| runtime::free(ptr.addr() as u64, Some(size_bytes as u64)))
}

/// Makes the block that starts at `ptr` one of `new_size_bytes` where it is, larger or smaller, as if it had been asked
/// for with that: its contents stay, and copies and fills reach its new end. It succeeds
///
/// - within `millpond_get_usable_size` (what the block is charged, without the padding of a plugin's device), always;
/// - beyond that for a block above 60 KiB, if the memory behind it is free and belongs to the block's pool and stream,
///   as it often does behind the newest block. What is gained is the stream's as a new block is: other streams wait for
///   it before they use it;
/// - downwards, always. What a block above 60 KiB has too much serves other requests of its stream, if no other stream
///   uses the block (`millpond_record_stream`) and it has one.
///
/// It does not grow while its stream is captured or a graph keeps its pool, if it was exported or scattered, if its stream
/// has ended, or with the option `max_split_size_mb`. A block that is a segment of its own, as large ones are on devices
/// that do not map, keeps its size: OUT_OF_MEMORY for any other charge, a smaller one included. The device is never called, and nothing is waited for. The
/// account and a history see a free and an allocation at the same address. No other thread may use the block meanwhile.
///
/// Errors: OUT_OF_MEMORY if there is no room (no out-of-memory callback is called, and the failure is not counted);
/// UNKNOWN_POINTER, also for a pointer inside a block and for one that was freed; INVALID_ARGUMENT for 0 bytes, for NULL, and if
/// several devices have a block there; NOT_PERMITTED while the pool sleeps; NOT_INITIALIZED. After an error nothing has
/// changed.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_try_expand(ptr: *mut c_void, new_size_bytes: usize) -> C_Status {
    run(|| runtime::try_expand(ptr.addr() as u64, new_size_bytes as u64))
}

/// How many bytes from `ptr` on, which starts a block, are there for the block: at least as many as were asked for. They are
/// the caller's for the asking, as `millpond_try_expand` to that many always succeeds. Until then copies and fills that run
/// past what was asked for are refused, since most of them are mistakes; what kernels write there harms nobody.
///
/// Errors: UNKNOWN_POINTER, also for a pointer inside a block and for one that was freed; INVALID_ARGUMENT for NULL, and if
/// several devices have a block there; NOT_INITIALIZED if no device is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_get_usable_size(
    ptr: *const c_void,
    out_size_bytes: *mut usize,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_size_bytes, "out_size_bytes") }?;
        out.set(runtime::usable_size(ptr.addr() as u64)? as usize);
        Ok(())
    })
}

/// Records that `stream` also uses the block that starts at `ptr`: after its free, its reuse waits for what is queued
/// there at the free. On `cuda` the stream may be one of another device that was created elsewhere. Without effect on a
/// block of `millpond_alloc`, which waits for all streams of its device anyway, unless the stream is another device's.
/// If several devices have a block there, that of the stream's device is meant.
///
/// Errors: UNKNOWN_POINTER; UNKNOWN_STREAM; INVALID_ARGUMENT for NULL, and if the stream, too, may belong to several
/// devices; NOT_INITIALIZED; NOT_PERMITTED in a stream callback, for a stream that was created elsewhere and not used
/// before; DEVICE; OUT_OF_MEMORY if the host has no memory to note it. After an error nothing was recorded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_record_stream(ptr: *mut c_void, stream: C_Stream) -> C_Status {
    run(|| {
        let (addr, stream) = (ptr.addr() as u64, stream_id(stream));
        runtime::user(addr, stream)?.memory().record_stream(addr, stream)
    })
}

/// Ends the use of the block that starts at `ptr` by work on `stream`: what is queued there *now* is the last. After
/// the free, its reuse waits for this point, and not for what is queued there at the free. It replaces an earlier
/// `millpond_record_stream` of that stream, which need not have been called. Work that uses the block and is queued
/// there later needs a new one. Costs nothing at the free if the stream has passed the point by then. Without effect on
/// a block of `stream` itself, and on one of `millpond_alloc`, which waits for all streams of its device. While
/// `stream` is captured, the use ends with the capture.
///
/// Errors: UNKNOWN_POINTER; UNKNOWN_STREAM; INVALID_ARGUMENT for NULL; NOT_INITIALIZED; DEVICE; OUT_OF_MEMORY if the host
/// has no memory to note it. After an error the block waits for what it waited for before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_record_end(ptr: *mut c_void, stream: C_Stream) -> C_Status {
    run(|| {
        let (addr, stream) = (ptr.addr() as u64, stream_id(stream));
        runtime::user(addr, stream)?.memory().record_end(addr, stream, None)
    })
}

/// As `millpond_record_end`, but the use ended where `event` was recorded: on `stream` after the last use, or on
/// another stream that has waited for that. The event stays the caller's. It must stay as recorded until it has
/// completed, or the block no longer waits for it; `millpond_event_is_held` says so. An event that is recorded and
/// destroyed with functions of this library needs no care: until then `millpond_event_record` returns BUSY and
/// `millpond_event_destroy` is deferred, although the handle ends at once. An event that is recorded or destroyed with
/// the driver's own functions does need care.
///
/// Errors: UNKNOWN_EVENT, and those of `millpond_record_end`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_record_end_at(
    ptr: *mut c_void,
    stream: C_Stream,
    event: C_Event,
) -> C_Status {
    run(|| {
        let (addr, stream) = (ptr.addr() as u64, stream_id(stream));
        runtime::user(addr, stream)?.memory().record_end(addr, stream, Some(event_id(event)))
    })
}

/// The live block that contains `ptr`, which may be anywhere inside it. The caller sets `inout_info->struct_size`; as
/// much as fits is written.
///
/// Errors: UNKNOWN_POINTER; INVALID_ARGUMENT for NULL, and if several devices, with address spaces of their own, have a
/// block there; NOT_INITIALIZED if no device is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_get_block(
    ptr: *const c_void,
    inout_info: *mut millpond_block_info,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { OutStruct::new(inout_info, "inout_info") }?;
        let (device, block) = runtime::holder(ptr.addr() as u64)?;
        out.set(millpond_block_info {
            struct_size: size_of::<millpond_block_info>(),
            base: to_ptr(block.base),
            size_bytes: block.size as usize,
            requested_bytes: block.requested as usize,
            stream: to_ptr(block.stream.unwrap_or(0)).cast(),
            pool: handles::of_pool(&device, block.pool)?,
            device: handles::of_device(&device),
        });
        Ok(())
    })
}

/// Allocates host memory that is fast to copy to and from this device: page-locked if the limit of the process allows,
/// near the device if that reports its NUMA node. Aligned to 64 bytes, above 32 KiB to a page (a plugin may align
/// less); at most an eighth of the request is wasted (and less than 64 bytes below 512). It comes from a cache and is
/// not cleared. Size 0: C_SUCCESS and NULL. The caller frees it with `millpond_host_free`.
///
/// Errors: OUT_OF_MEMORY; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_host_alloc(
    device: *mut millpond_device,
    size_bytes: usize,
    out_ptr: *mut *mut c_void,
) -> C_Status {
    run_entering(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_ptr, "out_ptr") }?;
        out.set(to_ptr(handles::device(device)?.host_memory().alloc(size_bytes as u64)?));
        Ok(())
    })
}

/// Frees memory of `millpond_host_alloc` of the same device. Queued work may still use it: it is reused only when each
/// stream of a `millpond_copy_async` from or to it, and each stream given to `millpond_host_record_stream`, has passed
/// what was queued there at the free. Other work must be done, or recorded, before. Does not wait, unless the option
/// `pinned_max_cached_size_mb` makes it give memory back to the device, which may wait. NULL: no-op.
///
/// Errors: UNKNOWN_POINTER, also for a pointer inside; DOUBLE_FREE; INVALID_ARGUMENT; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_host_free(device: *mut millpond_device, ptr: *mut c_void) -> C_Status {
    run_end_entering(|| handles::device(device)?.host_memory().free(ptr.addr() as u64))
}

/// Records that work queued on `stream` of `device` uses the memory of `millpond_host_alloc` (of this or of another
/// device) that contains `ptr`, which may be anywhere inside: kernels, or copies that Millpond did not queue. After its
/// free, its reuse waits for what is queued there at the free.
///
/// Errors: UNKNOWN_POINTER; UNKNOWN_STREAM; INVALID_ARGUMENT; NOT_INITIALIZED; NOT_PERMITTED and DEVICE as
/// `millpond_record_stream`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_host_record_stream(
    device: *mut millpond_device,
    ptr: *const c_void,
    stream: C_Stream,
) -> C_Status {
    run_entering(|| {
        handles::device(device)?.host_memory().record_stream(ptr.addr() as u64, stream_id(stream))
    })
}

/// The account of the device's pinned host memory. The caller sets `inout_stats->struct_size`; as much as fits is
/// written.
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_get_host_stats(
    device: *const millpond_device,
    inout_stats: *mut millpond_host_stats,
) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { OutStruct::new(inout_stats, "inout_stats") }?;
        out.set(handles::device(device)?.host_memory().stats()?.into());
        Ok(())
    })
}

/// Resets the peaks of that account to the current values.
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_reset_host_peaks(device: *mut millpond_device) -> C_Status {
    run(|| handles::device(device)?.host_memory().reset_peaks())
}

/// Gives freed pinned host memory back to the device, after waiting for the work that still uses it. Blocks up to 32
/// KiB go back when all blocks that were taken together with them (at most 512 KiB) are free.
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED, DEVICE; NOT_PERMITTED in a stream callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_empty_host_cache(device: *mut millpond_device) -> C_Status {
    run_roomy(|| handles::device(device)?.host_memory().empty_cache())
}

/// Registers `size_bytes` of the caller's own host memory from `ptr` on: copies between it and this device are then as
/// fast as those of `millpond_host_alloc`, and really asynchronous, so it must stay as it is until a queued copy is
/// done. On `cuda` it is page-locked for all devices; on devices of the processor there is no need. The memory stays the caller's, who ends the registration
/// with `millpond_host_unregister` before the memory goes.
///
/// Errors: UNSUPPORTED on devices of plugins, whose interface has no call for it; BUSY if a part of it is registered
/// already, or came from `millpond_host_alloc`; INVALID_ARGUMENT for NULL, 0 bytes, and on `cuda` for what is no memory
/// of the process; OUT_OF_RANGE; NOT_INITIALIZED; DEVICE. After an error nothing was registered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_host_register(
    device: *mut millpond_device,
    ptr: *mut c_void,
    size_bytes: usize,
) -> C_Status {
    run_roomy(|| handles::device(device)?.host_memory().register(ptr.addr() as u64, size_bytes as u64))
}

/// Ends the registration that begins at `ptr`. Waits for the work queued on this device, which may still use the memory;
/// copies that other devices make of it must be done.
/// NULL: no-op. The end of the device ends all registrations.
///
/// Errors: UNKNOWN_POINTER, also for a pointer inside; NOT_PERMITTED in a stream callback, and while a stream of this
/// device is captured, from `millpond_capture_begin` to `millpond_capture_end`; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
/// After an error the memory is still registered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_host_unregister(
    device: *mut millpond_device,
    ptr: *mut c_void,
) -> C_Status {
    run_end(|| {
        let device = handles::device(device)?;
        if ptr.is_null() { Ok(()) } else { device.host_memory().unregister(ptr.addr() as u64) }
    })
}

/// Allocates memory that host and device access at the same address. Size 0: C_SUCCESS and NULL. The caller frees it
/// with `millpond_unified_free`.
///
/// Errors: UNSUPPORTED where the device has none; OUT_OF_MEMORY; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_unified_alloc(
    device: *mut millpond_device,
    size_bytes: usize,
    out_ptr: *mut *mut c_void,
) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_ptr, "out_ptr") }?;
        out.set(to_ptr(handles::device(device)?.unified_memory().alloc(size_bytes as u64)?));
        Ok(())
    })
}

/// Frees memory of `millpond_unified_alloc` of the same device at once: no queued work may still use it.
/// NULL: no-op.
///
/// Errors: UNKNOWN_POINTER, also for a pointer inside; DOUBLE_FREE; NOT_PERMITTED in a stream callback, and the memory
/// stays; INVALID_ARGUMENT; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_unified_free(device: *mut millpond_device, ptr: *mut c_void) -> C_Status {
    run_end(|| handles::device(device)?.unified_memory().free(ptr.addr() as u64))
}

/// Queues on `stream`, a stream of `device`, that the pages of `size_bytes` from `ptr` on go to `place`: the memory of
/// `device` (MILLPOND_PLACE_DEVICE) or the processor's (MILLPOND_PLACE_HOST). Work that is queued there after it finds
/// them, instead of fetching each page when it touches it. The range lies in one allocation of
/// `millpond_unified_alloc`, of this device or of another one of its type; whole pages move, where a page begins or ends
/// beside it, too. Returns at once. What has moved is still right everywhere, and moves again when others touch it. On the
/// device types `host` and `cpu` nothing has to move. Size 0: no-op.
///
/// Errors: UNKNOWN_POINTER and OUT_OF_RANGE for other memory; UNKNOWN_STREAM; UNSUPPORTED for devices of plugins, and on
/// `cuda` where the device has no concurrent managed access; NOT_PERMITTED for a stream of `cuda` that is being captured, as
/// a graph has no prefetches; INVALID_ARGUMENT for another place; NOT_INITIALIZED; DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_unified_prefetch(
    device: *mut millpond_device,
    stream: C_Stream,
    ptr: *const c_void,
    size_bytes: usize,
    place: u32,
) -> C_Status {
    run(|| {
        let (device, place) = (handles::device(device)?, place_of(place)?);
        device.unified_memory().prefetch(stream_id(stream), ptr.addr() as u64, size_bytes as u64, place)
    })
}

/// Says how `size_bytes` of unified memory from `ptr` on will be used, with one of MILLPOND_ADVICE_*, of `place`: of
/// `device` (MILLPOND_PLACE_DEVICE) or the processor (MILLPOND_PLACE_HOST). It changes what is fast, never what is right,
/// and holds from now on, until it is undone or the memory is freed. Ranges as of `millpond_unified_prefetch`. On the
/// device types `host` and `cpu` it changes nothing. Size 0: no-op.
///
/// Errors: INVALID_ARGUMENT for another advice or place; NOT_PERMITTED on `cuda` while a blocking stream is captured, as the
/// call counts as work on the default stream; else as `millpond_unified_prefetch`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_unified_advise(
    device: *mut millpond_device,
    ptr: *const c_void,
    size_bytes: usize,
    advice: u32,
    place: u32,
) -> C_Status {
    run(|| {
        let (device, place) = (handles::device(device)?, place_of(place)?);
        let Some(advice) = Advice::ALL.into_iter().find(|&a| a as u32 == advice) else {
            fail!(Code::InvalidArgument, "{advice} is no advice (MILLPOND_ADVICE_*)");
        };
        device.unified_memory().advise(ptr.addr() as u64, size_bytes as u64, advice, place)
    })
}

fn place_of(place: u32) -> Result<UnifiedPlace> {
    match place {
        MILLPOND_PLACE_DEVICE => Ok(UnifiedPlace::Device),
        MILLPOND_PLACE_HOST => Ok(UnifiedPlace::Host),
        other => fail!(Code::InvalidArgument, "{other} is no place (MILLPOND_PLACE_*)"),
    }
}
