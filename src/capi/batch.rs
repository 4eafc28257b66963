//! Requests with more than one step: zeroed and aligned blocks, and many blocks in one call.

use crate::base::error::{Result, no_host_memory};
use crate::capi::guard::{Out, OutArray, array, run};
use crate::capi::handles;
use crate::capi::pool::{stream_id, to_ptr};
use crate::capi::types::millpond_pool;
use crate::paddle::abi::{C_Status, C_Stream};
use crate::runtime::device::zeroed::take_back;
use std::ffi::c_void;

/// As `millpond_pool_alloc`, but the requested bytes are 0 for work queued on `stream` from now on: a fill is queued
/// there.
///
/// Errors: those of `millpond_pool_alloc` and `millpond_memset_async`. After an error there is no block.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_alloc_zeroed(
    pool: *mut millpond_pool,
    size_bytes: usize,
    stream: C_Stream,
    out_ptr: *mut *mut c_void,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_ptr, "out_ptr") }?;
        let (device, id) = handles::pool(pool)?;
        let got = device.alloc_zeroed(id, stream_id(stream), size_bytes as u64);
        out.set(to_ptr(got.map_err(|e| handles::with_name(pool, e))?));
        Ok(())
    })
}

/// As `millpond_pool_alloc`, at an address that is a multiple of `alignment_bytes`: a power of two up to 2 MiB. Up to the
/// device's `min_chunk_bytes` it costs nothing. Above that the block is cut from memory in one piece (never shown
/// together from pieces, so it may find too little where an ordinary request would not), has multiples of 16 KiB (which
/// `millpond_get_block` tells as its size for up to 60 KiB), and takes a microsecond or more; what is skipped in front of
/// it stays free for others. It is freed as any other block.
///
/// Errors: those of `millpond_pool_alloc`; INVALID_ARGUMENT for another alignment; UNSUPPORTED where the device, or its
/// plugin, gives memory at no such addresses. After an error there is no block.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_alloc_aligned(
    pool: *mut millpond_pool,
    size_bytes: usize,
    alignment_bytes: usize,
    stream: C_Stream,
    out_ptr: *mut *mut c_void,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_ptr, "out_ptr") }?;
        let (device, id) = handles::pool(pool)?;
        let memory = device.memory();
        let got =
            memory.alloc_aligned(id, Some(stream_id(stream)), size_bytes as u64, alignment_bytes as u64);
        out.set(to_ptr(got.map_err(|e| handles::with_name(pool, e))?));
        Ok(())
    })
}

/// The same without a stream, as `millpond_pool_alloc_unordered` gives blocks.
///
/// Errors: those of `millpond_pool_alloc_aligned`.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_alloc_unordered_aligned(
    pool: *mut millpond_pool,
    size_bytes: usize,
    alignment_bytes: usize,
    out_ptr: *mut *mut c_void,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_ptr, "out_ptr") }?;
        let (device, id) = handles::pool(pool)?;
        let got = device.memory().alloc_aligned(id, None, size_bytes as u64, alignment_bytes as u64);
        out.set(to_ptr(got.map_err(|e| handles::with_name(pool, e))?));
        Ok(())
    })
}

/// Allocates `count` blocks of one pool and stream, all or none: `out_ptrs[i]` gets one of `sizes_bytes[i]` bytes, as
/// `millpond_pool_alloc` gives them; NULL for size 0. The blocks have nothing to do with each other: each may be freed
/// by itself, or many with `millpond_pool_free_batch`.
///
/// Errors: those of `millpond_pool_alloc`, for the first request that fails; INVALID_ARGUMENT for an array that is NULL
/// while `count` is not 0. After an error there is no block, and `out_ptrs` is as before.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_alloc_batch(
    pool: *mut millpond_pool,
    sizes_bytes: *const usize,
    count: usize,
    stream: C_Stream,
    out_ptrs: *mut *mut c_void,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let sizes = unsafe { array(sizes_bytes, count, "sizes_bytes") }?;
        // SAFETY: as above.
        let out = unsafe { OutArray::new(out_ptrs, count, "out_ptrs") }?;
        let (device, id) = handles::pool(pool)?;
        let (memory, stream) = (device.memory(), stream_id(stream));
        // Checks the stream, also where there is nothing to do.
        memory.alloc(id, stream, 0).map_err(|e| handles::with_name(pool, e))?;
        let mut blocks: Vec<u64> = Vec::new();
        blocks.try_reserve_exact(count).map_err(|_| no_host_memory())?;
        for &bytes in sizes {
            match memory.alloc(id, stream, bytes as u64) {
                Ok(addr) => blocks.push(addr),
                Err(e) => {
                    blocks.iter().for_each(|&addr| take_back(memory, addr, stream));
                    return Err(handles::with_name(pool, e));
                }
            }
        }
        out.set(blocks.iter().map(|&addr| to_ptr(addr)));
        Ok(())
    })
}

/// Frees the `count` blocks of `ptrs` in order, as `millpond_pool_free` does; a NULL among them is skipped. Stops at
/// the first that fails. `out_freed_count`, which may be NULL, gets how many of the array are done, also after an
/// error: then `ptrs[*out_freed_count]` is the one that failed, and those behind it are as before.
///
/// Errors: those of `millpond_pool_free`; INVALID_ARGUMENT if `ptrs` is NULL while `count` is not 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_free_batch(
    pool: *mut millpond_pool,
    ptrs: *const *mut c_void,
    count: usize,
    stream: C_Stream,
    out_freed_count: *mut usize,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let ptrs = unsafe { array(ptrs, count, "ptrs") }?;
        let out = match out_freed_count.is_null() {
            true => None,
            // SAFETY: as above.
            false => Some(unsafe { Out::new(out_freed_count, "out_freed_count") }?),
        };
        let (device, _) = handles::pool(pool)?;
        let (memory, stream) = (device.memory(), stream_id(stream));
        let mut done: Result<()> = Ok(());
        let mut freed = 0;
        while let (Ok(()), Some(p)) = (&done, ptrs.get(freed)) {
            done = memory.free(p.addr() as u64, Some(stream), None);
            freed += usize::from(done.is_ok());
        }
        if let Some(out) = out {
            out.set(freed);
        }
        done
    })
}
