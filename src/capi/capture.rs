//! Captures: which pool serves streams whose work is recorded for later, and how long its memory stays.

use crate::capi::guard::{Out, run};
use crate::capi::handles;
use crate::capi::pool::stream_id;
use crate::capi::types::{millpond_capture, millpond_pool};
use crate::paddle::abi::{C_Status, C_Stream};

/// Work on `stream` is about to be recorded into a graph: from now on all requests of this stream come from
/// `pool`, whatever pool of the device they name, and from whichever thread. Call it before the driver starts
/// to record. `pool` is not the default pool; captures may share one, one after the other or at a time.
///
/// Until `millpond_capture_end` Millpond asks nothing of the captured streams: no event is recorded there, they
/// are made to wait for nothing, their pool only grows, and a freed block that must wait for them waits until
/// the capture has ended. Other streams and threads go on, but while any stream of a device is captured the
/// device is not waited for: `millpond_device_empty_cache` and the like get BUSY. Free memory of the captured
/// streams in other pools rests meanwhile.
///
/// As long as the capture is not released, its pool keeps all its memory at its addresses, freed blocks
/// included, for the graph to find at each replay: nothing is given back, lent to other pools or streams, or
/// shown elsewhere, and `millpond_pool_destroy` gets BUSY. A replay uses the memory of blocks that were freed
/// during the capture too. Other requests to the pool may get such memory, so order them with the replays, as
/// a request on the captured stream is, or use another pool.
///
/// The caller gives the capture back with `millpond_capture_release`.
///
/// Errors: BUSY when the stream is captured already; UNKNOWN_STREAM; INVALID_ARGUMENT for the default pool, and
/// for the default stream (NULL), which cannot be captured; UNSUPPORTED where the device is not pooled, and for a
/// stream that is another one on each thread; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_capture_begin(
    pool: *mut millpond_pool,
    stream: C_Stream,
    out_capture: *mut *mut millpond_capture,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_capture, "out_capture") }?;
        let (device, id) = handles::pool(pool)?;
        let capture = device.memory().capture_begin(id, stream_id(stream))?;
        let handle = handles::of_numbered(device, capture).inspect_err(|_| {
            // Without a handle nobody could end it.
            let _ = device.memory().capture_release(capture);
        })?;
        out.set(handle);
        Ok(())
    })
}

/// Work on `stream` is recorded into the same graph: call it before the stream joins the driver's capture.
///
/// Errors: NOT_PERMITTED when the capture has ended; INVALID_ARGUMENT, also when it was released; else those of
/// `millpond_capture_begin`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_capture_add_stream(
    capture: *mut millpond_capture,
    stream: C_Stream,
) -> C_Status {
    run(|| {
        let (device, id) = handles::numbered(capture)?;
        device.memory().capture_add(id, stream_id(stream))
    })
}

/// The streams of the capture are ordinary ones again. Call it when the driver records no more, whether that
/// went well or not. The pool keeps its memory until `millpond_capture_release`.
///
/// Errors: NOT_PERMITTED when it has ended already; INVALID_ARGUMENT, also when it was released;
/// NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_capture_end(capture: *mut millpond_capture) -> C_Status {
    run(|| {
        let (device, id) = handles::numbered(capture)?;
        device.memory().capture_end(id)
    })
}

/// The graph of the capture is destroyed, and its last replay queued; or it never came to be: a capture that
/// has not ended is ended first (the driver must record no more). When this was the last capture of its pool,
/// the pool's free memory goes back to the device, which is waited for; or, while another stream is captured,
/// serves nobody until everything is over that is queued now, and is ordinary free memory then. The handle is
/// not valid any more. NULL: no-op.
///
/// Errors: INVALID_ARGUMENT, also when it was released before; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_capture_release(capture: *mut millpond_capture) -> C_Status {
    run(|| {
        if capture.is_null() {
            return Ok(());
        }
        let (device, id) = handles::numbered(capture)?;
        device.memory().capture_release(id)
    })
}
