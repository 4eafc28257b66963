//! Pools: stream-ordered memory.

use crate::base::error::{Code, Result};
use crate::capi::guard::{Out, OutStruct, Versioned, read_struct, run, run_end, run_roomy, text};
use crate::capi::handles::{self, Named};
use crate::capi::types::{
    MILLPOND_POOL_CONTIGUOUS, millpond_device, millpond_pool, millpond_pool_options, millpond_stats,
};
use crate::fail;
use crate::paddle::abi::{C_Status, C_Stream};
use crate::runtime::ladder::{self, Caller};
use crate::runtime::{DeviceState, PoolId};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

// SAFETY: repr(C), `struct_size` first, integers and a raw pointer.
unsafe impl Versioned for millpond_pool_options {}

bitflags::bitflags! {
    struct PoolFlags: u64 {
        const CONTIGUOUS = MILLPOND_POOL_CONTIGUOUS;
    }
}

/// The bits of a stream.
pub(crate) fn stream_id(stream: C_Stream) -> u64 {
    stream.addr() as u64
}

/// A pointer of C, from an address.
pub(crate) fn to_ptr(addr: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(addr as usize)
}

/// A new pool of the device. `options` may be NULL: no limit, no name. The caller ends it with
/// `millpond_pool_destroy`.
///
/// Errors: INVALID_ARGUMENT, also for flags that there are not; UNSUPPORTED for MILLPOND_POOL_CONTIGUOUS where the
/// driver's own pool keeps the memory (`backend:cudaMallocAsync`); NOT_INITIALIZED.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_create(
    device: *mut millpond_device,
    options: *const millpond_pool_options,
    out_pool: *mut *mut millpond_pool,
) -> C_Status {
    run_roomy(|| {
        let device = handles::device(device)?;
        // SAFETY: C's promise, as the header states it.
        let options = unsafe { read_struct(options, "options") }?;
        // SAFETY: as above.
        let out = unsafe { Out::new(out_pool, "out_pool") }?;
        let name = match options.name.is_null() {
            true => None,
            // SAFETY: as above.
            false => Some(unsafe { text(options.name, "options->name") }?),
        };
        let Some(flags) = PoolFlags::from_bits(options.flags) else {
            fail!(
                Code::InvalidArgument,
                "{:#x} has flags that there are not (MILLPOND_POOL_*)",
                options.flags
            )
        };
        let pool = match flags.contains(PoolFlags::CONTIGUOUS) {
            true => device.memory().pools().create_contiguous(options.limit_bytes)?,
            false => device.memory().pools().create(options.limit_bytes)?,
        };
        let handle = handles::of_pool(device, pool).inspect_err(|_| {
            // Without a handle nobody could end it.
            let _ = device.memory().pools().destroy(pool);
        })?;
        if let Some(n) = name {
            device.memory().pools().set_name(pool, n)?;
        }
        out.set(handle);
        Ok(())
    })
}

/// Ends a pool; its memory goes back to the device. NULL: no-op. Later uses of the handle get
/// INVALID_ARGUMENT.
///
/// Errors: BUSY, and nothing is done, while blocks of it live; INVALID_ARGUMENT for the default pool and a
/// pool that was destroyed before; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_destroy(pool: *mut millpond_pool) -> C_Status {
    run_end(|| {
        if pool.is_null() {
            return Ok(());
        }
        let (device, id) = handles::pool(pool)?;
        device.memory().pools().destroy(id).map_err(|e| handles::with_name(pool, e))?;
        Ok(())
    })
}

/// Lets go of a pool that may still have live blocks: it takes no more requests (NOT_PERMITTED), and ends, with its
/// handle, when its last block is freed and the captures and scopes of it have ended. Until then the handle serves to
/// free the blocks, and all else. What is unused in it is there for other pools, as ever; the end itself comes when the
/// pool's device is next asked to release or destroy a pool or to empty its cache. NULL: no-op.
///
/// Errors: INVALID_ARGUMENT for the default pool and a pool that has ended; NOT_INITIALIZED; DEVICE, and nothing is
/// done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_release(pool: *mut millpond_pool) -> C_Status {
    run_end(|| {
        if pool.is_null() {
            return Ok(());
        }
        let (device, id) = handles::pool(pool)?;
        device.memory().pools().release(id).map(drop).map_err(|e| handles::with_name(pool, e))
    })
}

/// The device of the pool; borrowed.
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_get_device(
    pool: *const millpond_pool,
    out_device: *mut *mut millpond_device,
) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_device, "out_device") }?;
        out.set(handles::of_device(handles::pool(pool)?.0));
        Ok(())
    })
}

/// Allocates `size_bytes` in stream order: usable by work queued on `stream` from now on. Other streams may
/// use it after they waited for this one. Size 0: C_SUCCESS and NULL. The address is aligned to the
/// device's `min_chunk_bytes` (512 on the built-in devices). The caller gives it back with `millpond_pool_free` or
/// `millpond_free`.
///
/// Errors: OUT_OF_MEMORY; UNKNOWN_STREAM; NOT_PERMITTED for a pool that sleeps or was released; INVALID_ARGUMENT;
/// NOT_INITIALIZED; DEVICE.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_alloc(
    pool: *mut millpond_pool,
    size_bytes: usize,
    stream: C_Stream,
    out_ptr: *mut *mut c_void,
) -> C_Status {
    let Some(out) = NonNull::new(out_ptr) else { return no_out_ptr() };
    if !out.is_aligned() {
        return unaligned_out_ptr(out);
    }
    ladder::alloc(Named(pool), stream_id(stream), size_bytes as u64, move |got| match got {
        Ok(addr) => {
            // SAFETY: C's promise, as the header states it.
            unsafe { out.write(to_ptr(addr)) };
            C_Status::SUCCESS
        }
        Err(status) => status,
    })
}

/// Out of line, and one for each defect: the call above is then two comparisons, and needs no stack. Neither unwinds, so
/// that a jump leads there.
#[cold]
#[inline(never)]
extern "C" fn no_out_ptr() -> C_Status {
    // SAFETY: nothing is written through it.
    run(|| unsafe { Out::<*mut c_void>::new(std::ptr::null_mut(), "out_ptr") }.map(drop))
}

/// See [`no_out_ptr`].
#[cold]
#[inline(never)]
extern "C" fn unaligned_out_ptr(out: NonNull<*mut c_void>) -> C_Status {
    // SAFETY: nothing is written through it.
    run(|| unsafe { Out::new(out.as_ptr(), "out_ptr") }.map(drop))
}

/// As `millpond_alloc`, from this pool: a block without a stream, usable at once by the host (if it can access the
/// device's memory) and by every stream. The caller gives it back with `millpond_free`, which waits for every stream
/// before it is used again, or with `millpond_pool_free`.
///
/// Errors: OUT_OF_MEMORY; NOT_PERMITTED for a pool that sleeps or was released; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_alloc_unordered(
    pool: *mut millpond_pool,
    size_bytes: usize,
    out_ptr: *mut *mut c_void,
) -> C_Status {
    unordered(Named(pool), size_bytes, out_ptr, || handles::pool(pool))
}

/// A request without a stream to the pool that `by` names and that `find` looks up if the first step has not found it.
#[inline(always)]
pub(super) fn unordered(
    by: Named,
    size_bytes: usize,
    out_ptr: *mut *mut c_void,
    find: impl FnOnce() -> Result<(&'static Arc<DeviceState>, PoolId)>,
) -> C_Status {
    if let Some(out) = NonNull::new(out_ptr).filter(|p| p.is_aligned())
        && let Some(addr) = ladder::alloc_unordered(by, size_bytes as u64)
    {
        // SAFETY: C's promise, as the header states it.
        unsafe { out.write(to_ptr(addr)) };
        return C_Status::SUCCESS;
    }
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_ptr, "out_ptr") }?;
        let (device, pool) = find()?;
        let addr = device.memory().alloc_unordered(pool, size_bytes as u64).map_err(|e| by.refused(e))?;
        ladder::remember(by, device, pool);
        out.set(to_ptr(addr));
        Ok(())
    })
}

/// Frees a block in stream order: at once reusable by work queued later on `stream`. If that is not the
/// stream of the allocation, reuse waits for both. NULL: no-op. The block may be of any pool of the same
/// device.
///
/// Errors: UNKNOWN_POINTER, also for a pointer inside a block; DOUBLE_FREE; UNKNOWN_STREAM;
/// INVALID_ARGUMENT; NOT_INITIALIZED; for a stream that is not the block's, NOT_PERMITTED and DEVICE as
/// `millpond_record_stream`; OUT_OF_MEMORY as `millpond_free`. After an error nothing was freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_free(
    pool: *mut millpond_pool,
    ptr: *mut c_void,
    stream: C_Stream,
) -> C_Status {
    ladder::free(Named(pool), ptr.addr() as u64, stream_id(stream), |done| match done {
        Ok(()) => C_Status::SUCCESS,
        Err(status) => status,
    })
}

/// Memory of the pool that no block uses goes back to the device.
///
/// Errors: BUSY while a stream is captured (on `cuda` perhaps NOT_PERMITTED); NOT_PERMITTED in a stream callback;
/// INVALID_ARGUMENT, NOT_INITIALIZED, DEVICE; OUT_OF_MEMORY: some is left that the library would have to cut, and it cannot
/// keep track of more blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_empty_cache(pool: *mut millpond_pool) -> C_Status {
    run_roomy(|| {
        let (device, id) = handles::pool(pool)?;
        device.memory().empty_cache(Some(id))
    })
}

/// Gives memory of the pool that no block uses back to the device until at most `keep_bytes` of it stay reserved, or
/// none is left that could go: live blocks, what is free beside them in the same piece, and memory that a graph keeps,
/// stay. A piece is 2 MiB where the device maps, elsewhere what was taken from the device with one call, as also on `cuda`
/// what lies in a large handle and in a contiguous pool. As little goes as suffices; what goes last may leave less than
/// `keep_bytes`. (cuMemPoolTrimTo would keep that piece.) 0: as `millpond_pool_empty_cache`.
/// Waits for the device if the pool has more than that, and does nothing otherwise.
///
/// Errors: BUSY while a stream is captured (on `cuda` perhaps NOT_PERMITTED); NOT_PERMITTED in a stream callback;
/// INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE, OUT_OF_MEMORY as `millpond_pool_empty_cache`: a part may have gone back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_trim_to(pool: *mut millpond_pool, keep_bytes: u64) -> C_Status {
    run_roomy(|| {
        let (device, id) = handles::pool(pool)?;
        device.memory().trim_to(Some(id), keep_bytes)
    })
}

/// From now on the pool never reserves more than `limit_bytes`; 0: no limit of its own. A limit below what
/// it has already ends no block: it only refuses more.
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_set_limit(pool: *mut millpond_pool, limit_bytes: u64) -> C_Status {
    run(|| {
        let (device, id) = handles::pool(pool)?;
        device.memory().pools().set_limit(id, limit_bytes)
    })
}

/// The account of the pool. The caller sets `inout_stats->struct_size`; as much as fits is written.
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_get_stats(
    pool: *const millpond_pool,
    inout_stats: *mut millpond_stats,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { OutStruct::new(inout_stats, "inout_stats") }?;
        let (device, id) = handles::pool(pool)?;
        out.set(device.memory().pools().stats(id)?.into());
        Ok(())
    })
}

/// The peaks of the pool's account start again from the current values.
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_reset_peaks(pool: *mut millpond_pool) -> C_Status {
    run(|| {
        let (device, id) = handles::pool(pool)?;
        device.memory().pools().reset_peaks(id)
    })
}
