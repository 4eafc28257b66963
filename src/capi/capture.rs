//! Captures: which pool serves streams whose work is recorded for later, and how long its memory stays in place.

use crate::capi::guard::{Out, run_end, run_roomy};
use crate::capi::handles;
use crate::capi::pool::stream_id;
use crate::capi::types::{millpond_capture, millpond_pool};
use crate::paddle::abi::{C_Status, C_Stream};

/// Work on `stream` is about to be recorded into a graph: from now on all requests of this stream are served from
/// `pool`, whatever pool of the device they name, and from whichever thread they come. Call it before the driver starts
/// to record. `pool` must not be the default pool; captures may share one, one after the other or at the same time.
///
/// Until `millpond_capture_end` Millpond leaves the captured streams alone: it records no event on them and makes them
/// wait for nothing, their pool only grows, and a freed block that must wait for them waits until the capture has
/// ended. Other streams and threads continue, but while any stream of a device is captured, the device is not waited
/// for:
/// `millpond_device_empty_cache` and the like return BUSY. Free memory of the captured streams in other pools is not
/// used meanwhile. Where the device has no more, the pool takes free memory of other pools, of streams that have nothing
/// queued.
///
/// Until the capture is released, its pool keeps all its memory at its addresses, including freed blocks, so that each
/// replay of the graph finds it there: no memory is given back, given to other pools or streams, or mapped elsewhere,
/// and
/// `millpond_pool_destroy` returns BUSY. A replay also uses the memory of blocks that were freed during the capture.
/// Other requests to the pool, and `millpond_pool_restore`, may make such memory a block's, so order them with the
/// replays, or use another pool. What is replayed on the captured stream is in order. A replay on another stream is not
/// known here: each captured stream must wait for it before it gets work on a block that was requested or restored after
/// the replay was queued.
///
/// The caller must end the capture with `millpond_capture_release`.
///
/// Errors: BUSY when the stream is captured already; UNKNOWN_STREAM; INVALID_ARGUMENT for the default pool, and
/// for the default stream (NULL), which cannot be captured; UNSUPPORTED if the device is not pooled, and for a
/// stream that differs on each thread; NOT_PERMITTED in a stream callback, and for a pool that sleeps or was released;
/// OUT_OF_MEMORY if the host has no memory to note it; NOT_INITIALIZED.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_capture_begin(
    pool: *mut millpond_pool,
    stream: C_Stream,
    out_capture: *mut *mut millpond_capture,
) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_capture, "out_capture") }?;
        let (device, id) = handles::pool(pool)?;
        let capture = device.memory().captures().begin(id, stream_id(stream))?;
        let handle = handles::of_numbered(device, capture).inspect_err(|_| {
            // Without a handle nobody could end it.
            let _ = device.memory().captures().release(capture);
        })?;
        out.set(handle);
        Ok(())
    })
}

/// Keeps all memory of the pool at its addresses, including freed blocks, as a capture does that has ended: no memory is
/// given back, given to other pools or streams, or mapped elsewhere, and `millpond_pool_destroy` returns BUSY. For a pool
/// that is somebody's own for a time. `millpond_capture_release` or `millpond_capture_release_async` ends it.
///
/// Errors: INVALID_ARGUMENT for the default pool; NOT_PERMITTED for a pool that sleeps or was released; UNSUPPORTED if
/// the device is not pooled; NOT_INITIALIZED.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_capture_keep(
    pool: *mut millpond_pool,
    out_capture: *mut *mut millpond_capture,
) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_capture, "out_capture") }?;
        let (device, id) = handles::pool(pool)?;
        let capture = device.memory().captures().keep(id)?;
        let handle = handles::of_numbered(device, capture).inspect_err(|_| {
            // Without a handle nobody could end it.
            let _ = device.memory().captures().release(capture);
        })?;
        out.set(handle);
        Ok(())
    })
}

/// Work on `stream` is recorded into the same graph: call it before the stream joins the driver's capture.
///
/// Errors: NOT_PERMITTED when the capture has ended; INVALID_ARGUMENT, also when it was released; otherwise those of
/// `millpond_capture_begin`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_capture_add_stream(
    capture: *mut millpond_capture,
    stream: C_Stream,
) -> C_Status {
    run_roomy(|| {
        let (device, id) = handles::numbered(capture)?;
        device.memory().captures().add(id, stream_id(stream))
    })
}

/// Makes the streams of the capture ordinary ones again. Call it when the driver has stopped recording, successfully or
/// not. The pool keeps its memory until `millpond_capture_release`.
///
/// Errors: NOT_PERMITTED when it has ended already; INVALID_ARGUMENT, also when it was released;
/// NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_capture_end(capture: *mut millpond_capture) -> C_Status {
    run_end(|| {
        let (device, id) = handles::numbered(capture)?;
        device.memory().captures().end(id)
    })
}

/// Releases a capture, once its graph is destroyed and the last replay queued, or if no graph was made: a capture that
/// has not ended is ended first (the driver must have stopped recording). When the last capture of a pool is released,
/// the pool's free memory goes back to the device, which is waited for. While another stream is captured, that memory
/// is instead set aside until everything queued now is done, and is ordinary free memory then. The handle is invalid
/// afterwards. NULL: no-op.
///
/// Errors: INVALID_ARGUMENT, also when it was released before; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_capture_release(capture: *mut millpond_capture) -> C_Status {
    run_end(|| {
        if capture.is_null() {
            return Ok(());
        }
        let (device, id) = handles::numbered(capture)?;
        device.memory().captures().release(id)
    })
}

/// The same as `millpond_capture_release`, but waits for nothing, however long a replay still runs (a CUDA driver before
/// 12.5 is waited for: it cannot record all its streams in an event). When the last capture
/// of a pool is released, the pool's free memory is set aside until everything queued now is done. It is ordinary free
/// memory of the pool then, and goes back to the device with `millpond_device_empty_cache`, or when a request needs it.
///
/// Errors: INVALID_ARGUMENT, also when it was released before; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_capture_release_async(capture: *mut millpond_capture) -> C_Status {
    run_end(|| {
        if capture.is_null() {
            return Ok(());
        }
        let (device, id) = handles::numbered(capture)?;
        device.memory().captures().release_async(id)
    })
}
