//! Checkpoints: recorded layouts of a pool, to be restored between replays of graphs.

use crate::capi::guard::{Out, run_end, run_roomy};
use crate::capi::handles;
use crate::capi::pool::to_ptr;
use crate::capi::types::{millpond_checkpoint, millpond_pool, millpond_restore_callback};
use crate::ffi::exceptions;
use crate::paddle::abi::C_Status;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Records which blocks of the pool are live now, with their addresses, sizes and streams. This does not keep anything
/// from being freed or given back; a capture keeps a pool's memory. The caller ends it with
/// `millpond_checkpoint_destroy`.
///
/// Errors: INVALID_ARGUMENT; UNSUPPORTED if the device is not pooled; NOT_INITIALIZED.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_checkpoint(
    pool: *mut millpond_pool,
    out_checkpoint: *mut *mut millpond_checkpoint,
) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_checkpoint, "out_checkpoint") }?;
        let (device, id) = handles::pool(pool)?;
        let checkpoint = device.memory().checkpoints().make(id)?;
        let handle = handles::of_numbered(device, checkpoint).inspect_err(|_| {
            // Without a handle nobody could end it.
            let _ = device.memory().checkpoints().destroy(checkpoint);
        })?;
        out.set(handle);
        Ok(())
    })
}

/// Makes exactly those blocks of `pool` live that were live at the checkpoint: at the same addresses, of the same sizes
/// and streams. Blocks that were allocated since are freed, and those that were freed since are live again, with what
/// their memory holds now; if a block was freed and another of the same size and stream was allocated at its address,
/// that one stays. `callback` (may be NULL) is called for each block that was freed or made live. Nothing is copied,
/// and the device is called only if a block that is freed was used by streams other than its own, which are waited for,
/// or if memory goes from one stream to another.
/// No other thread may use the pool meanwhile. A checkpoint may be restored any number of times.
///
/// Work that is queued on a block's stream from now on may use the block, as after `millpond_pool_alloc`. Replays of a
/// graph on a stream other than the captured one are not known here: make the captured stream wait for them before.
/// Memory goes back to the streams that had it at the checkpoint, in granules of 2 MiB. A graph of another stream that
/// was captured since must not be replayed if a granule of its memory now has a block that is live again; none has if a
/// capture keeps the pool from its first checkpoint on.
///
/// Errors: NOT_PERMITTED if it is impossible, because memory of it went back to the device or to another pool, which
/// does not happen while a capture keeps the pool; UNKNOWN_STREAM if one of its streams has ended; BUSY if one of its
/// streams is being captured, or another thread used the pool; OUT_OF_MEMORY; NOT_PERMITTED in a stream callback;
/// INVALID_ARGUMENT, also for a checkpoint of another pool; UNSUPPORTED; NOT_INITIALIZED; DEVICE. After an error
/// nothing has changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_restore(
    pool: *mut millpond_pool,
    checkpoint: *const millpond_checkpoint,
    callback: millpond_restore_callback,
    user_data: *mut c_void,
) -> C_Status {
    run_roomy(|| {
        let (device, id) = handles::pool(pool)?;
        let (other, number) = handles::numbered(checkpoint)?;
        if device.id() != other.id() {
            crate::fail!(crate::Code::InvalidArgument, "the checkpoint is one of another device");
        }
        let done = device.pools().restore(id, number)?;
        let Some(call) = callback else { return Ok(()) };
        for (blocks, live) in [(done.freed(), false), (done.live, true)] {
            for (addr, bytes) in blocks {
                // The restore is done, whatever a callback does: exceptions are caught here.
                let _ = catch_unwind(AssertUnwindSafe(|| {
                    exceptions::caught(|| {
                        // SAFETY: the caller gave a function for exactly this call with this pointer.
                        unsafe { call(user_data, to_ptr(addr), bytes as usize, live) }
                    })
                }));
            }
        }
        Ok(())
    })
}

/// Ends a checkpoint. NULL: no-op.
///
/// Errors: INVALID_ARGUMENT, also when it was destroyed before; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_checkpoint_destroy(checkpoint: *mut millpond_checkpoint) -> C_Status {
    run_end(|| {
        if checkpoint.is_null() {
            return Ok(());
        }
        let (device, number) = handles::numbered(checkpoint)?;
        device.memory().checkpoints().destroy(number)
    })
}
