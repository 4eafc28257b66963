//! Streams and events.

use crate::base::error::{Code, Error};
use crate::capi::guard::{Out, UserData, run, run_end, run_roomy};
use crate::capi::handles;
use crate::capi::pool::{stream_id, to_ptr};
use crate::capi::types::{MILLPOND_STREAM_NON_BLOCKING, millpond_device, millpond_stream_callback};
use crate::fail;
use crate::ffi::exceptions;
use crate::paddle::abi::{C_Event, C_Status, C_Stream};
use crate::paddle::status;
use crate::runtime::StreamKind;
use std::ffi::c_void;

/// The bits of an event.
pub(crate) fn event_id(event: C_Event) -> u64 {
    event.addr() as u64
}

/// Creates a stream of the device. The caller ends it with `millpond_stream_destroy`. NULL, the default stream, always
/// exists.
///
/// Errors: UNSUPPORTED if the device has only the default stream; SYSTEM; INVALID_ARGUMENT;
/// NOT_INITIALIZED; DEVICE.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_create(
    device: *mut millpond_device,
    out_stream: *mut C_Stream,
) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_stream, "out_stream") }?;
        out.set(to_ptr(handles::device(device)?.streams().create()?).cast());
        Ok(())
    })
}

/// The range of priorities for `millpond_stream_create_with_priority`. A lower number comes first: `*out_greatest` is the
/// least number. Both are 0 on a device without priorities. Either may be NULL.
///
/// Errors: INVALID_ARGUMENT; NOT_PERMITTED in a stream callback; NOT_INITIALIZED; DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_get_stream_priority_range(
    device: *mut millpond_device,
    out_least: *mut i32,
    out_greatest: *mut i32,
) -> C_Status {
    run(|| {
        let (least, greatest) = handles::device(device)?.streams().priorities()?;
        for (out, value) in [(out_least, least), (out_greatest, greatest)] {
            if !out.is_null() {
                // SAFETY: C's promise, as the header states it.
                unsafe { Out::new(out, "out") }?.set(value);
            }
        }
        Ok(())
    })
}

/// As `millpond_stream_create`, for a stream whose work comes before or after that of others. `priority`: 0 as usual, lower
/// numbers first; one that the device does not have becomes the nearest that it has. `flags`: 0, or
/// MILLPOND_STREAM_NON_BLOCKING, for a stream that is not ordered with the default stream: NULL does not wait for its
/// work, nor it for that of NULL. Blocking copies and fills wait for it all the same, unless a stream is captured. Use it
/// for work that must overlap with what libraries do on NULL. Memory is safe on either kind: it is reused in the order
/// of the streams that used it. A device without priorities, or without such streams, makes an ordinary stream, which
/// orders more and never less.
///
/// Errors: INVALID_ARGUMENT, also for an unknown flag; otherwise those of `millpond_stream_create`.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_create_with_priority(
    device: *mut millpond_device,
    priority: i32,
    flags: u32,
    out_stream: *mut C_Stream,
) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_stream, "out_stream") }?;
        if flags & !MILLPOND_STREAM_NON_BLOCKING != 0 {
            fail!(Code::InvalidArgument, "flags are {flags:#x}: want 0 or MILLPOND_STREAM_NON_BLOCKING");
        }
        let kind = StreamKind { priority, non_blocking: flags != 0 };
        out.set(to_ptr(handles::device(device)?.streams().create_with(kind)?).cast());
        Ok(())
    })
}

/// Ends a stream that `millpond_stream_create` made. Work queued on it still completes, and its live blocks stay valid.
/// Its work still counts for the memory that it may use, and in every wait for the device; if the device cannot record
/// an event for it, the call waits for the stream. NULL: no-op.
///
/// Errors: UNKNOWN_STREAM; INVALID_ARGUMENT for a stream that was created elsewhere; BUSY while it is captured
/// (`millpond_capture_begin`); NOT_PERMITTED in a stream callback; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_destroy(device: *mut millpond_device, stream: C_Stream) -> C_Status {
    run_end(|| {
        if stream.is_null() {
            return Ok(());
        }
        handles::device(device)?.streams().destroy(stream_id(stream))
    })
}

/// Must be called before a stream that was created elsewhere (a `CUstream` of the framework) is destroyed by its
/// creator, if it was ever passed to Millpond. Afterwards Millpond does not query the device about that stream any
/// more, which is undefined for a destroyed one and can crash the process; with the option `streams_announced` the
/// program promises this call. Its live blocks stay valid. Work queued on it still runs; the
/// call waits for it if no event can be recorded on it. NULL and the per-thread default stream: no-op. `device` is the
/// stream's own; other devices whose memory it has used are informed.
///
/// Errors: BUSY while the stream is captured; UNKNOWN_STREAM; NOT_PERMITTED in a stream callback;
/// INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_forget(device: *mut millpond_device, stream: C_Stream) -> C_Status {
    run_end(|| handles::device(device)?.streams().forget(stream_id(stream)))
}

/// Whether everything queued on the stream is done. Does not wait.
///
/// Errors: UNKNOWN_STREAM; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_query(
    device: *mut millpond_device,
    stream: C_Stream,
    out_done: *mut bool,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_done, "out_done") }?;
        out.set(handles::device(device)?.streams().query(stream_id(stream))?);
        Ok(())
    })
}

/// Waits for everything queued on the stream so far.
///
/// Errors: UNKNOWN_STREAM; NOT_PERMITTED in a stream callback; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_synchronize(
    device: *mut millpond_device,
    stream: C_Stream,
) -> C_Status {
    run(|| handles::device(device)?.streams().synchronize(stream_id(stream)))
}

/// Makes work queued on `stream` from now on wait for what `event` has recorded so far. Does not wait on the host. The
/// event may belong to another device of the type, unless the devices are a plugin's.
///
/// Errors: UNKNOWN_STREAM; UNKNOWN_EVENT; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_wait_event(
    device: *mut millpond_device,
    stream: C_Stream,
    event: C_Event,
) -> C_Status {
    run(|| handles::device(device)?.streams().wait_event(stream_id(stream), event_id(event)))
}

/// Calls `callback` with `user_data` once, on a thread of the device, when the stream reaches it. Later work of the
/// stream waits until it returns.
///
/// Errors: UNSUPPORTED if the device has no callbacks; UNKNOWN_STREAM; INVALID_ARGUMENT;
/// NOT_INITIALIZED; DEVICE. After an error the callback is never called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_add_callback(
    device: *mut millpond_device,
    stream: C_Stream,
    callback: millpond_stream_callback,
    user_data: *mut c_void,
) -> C_Status {
    run_roomy(|| {
        let Some(call) = callback else {
            return Err(Error::new(Code::InvalidArgument, "callback is NULL"));
        };
        let data = UserData(user_data);
        let run_it = move |result: crate::Result<()>| {
            // The whole struct must be captured, not only the pointer in it.
            let data = data;
            let status = result.map_or_else(|e| status::of(&e), |()| C_Status::SUCCESS);
            // SAFETY: the caller gave a function for exactly this call with this pointer.
            let _ = exceptions::caught(|| unsafe { call(data.0, status) });
        };
        handles::device(device)?.streams().callback(stream_id(stream), Box::new(run_it))
    })
}

/// Creates an event, which counts as completed. The caller ends it with `millpond_event_destroy`. It belongs to the
/// device: calls that name another device do not know it (UNKNOWN_EVENT) and do not change it, except
/// `millpond_stream_wait_event`, which does know it.
///
/// Errors: OUT_OF_MEMORY; SYSTEM; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_event_create(
    device: *mut millpond_device,
    out_event: *mut C_Event,
) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_event, "out_event") }?;
        out.set(to_ptr(handles::device(device)?.events().create()?).cast());
        Ok(())
    })
}

/// As `millpond_event_create`, for an event that also notes when the work that it records is done, for
/// `millpond_event_get_elapsed`. It serves for everything else, too, but may cost the device more. On `host` and `cpu` a
/// record on the NULL stream waits for the streams before it, as work there does.
///
/// Errors: UNSUPPORTED on devices of plugins, whose interface has no call for it; and those of `millpond_event_create`.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_event_create_timed(
    device: *mut millpond_device,
    out_event: *mut C_Event,
) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_event, "out_event") }?;
        out.set(to_ptr(handles::device(device)?.events().create_timed()?).cast());
        Ok(())
    })
}

/// The time in milliseconds from when the work that `start` recorded last was done to when that of `end` was; negative
/// if `end` came first. On `cuda` it is cuEventElapsedTime's, with half a microsecond of resolution; on `host` and `cpu`
/// the system's monotonic clock is read by the thread of the stream. Does not wait.
///
/// Errors: BUSY while the work of one of them is not done; INVALID_ARGUMENT for an event that was not created by
/// `millpond_event_create_timed`, or was never recorded; UNKNOWN_EVENT; UNSUPPORTED; NOT_INITIALIZED; DEVICE, also for
/// an event that was recorded in a graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_event_get_elapsed(
    device: *mut millpond_device,
    start: C_Event,
    end: C_Event,
    out_milliseconds: *mut f32,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_milliseconds, "out_milliseconds") }?;
        out.set(handles::device(device)?.events().elapsed(event_id(start), event_id(end))?);
        Ok(())
    })
}

/// Ends an event. Waits for it that are already queued stay in force, and so does `millpond_record_end_at`. NULL:
/// no-op.
///
/// Errors: UNKNOWN_EVENT; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_event_destroy(device: *mut millpond_device, event: C_Event) -> C_Status {
    run(|| {
        if event.is_null() {
            return Ok(());
        }
        handles::device(device)?.events().destroy(event_id(event))
    })
}

/// Makes the event stand for everything queued on `stream` so far.
///
/// Errors: UNKNOWN_STREAM; UNKNOWN_EVENT; BUSY while `millpond_event_is_held`; INVALID_ARGUMENT; NOT_INITIALIZED;
/// DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_event_record(
    device: *mut millpond_device,
    stream: C_Stream,
    event: C_Event,
) -> C_Status {
    run(|| handles::device(device)?.events().record(stream_id(stream), event_id(event)))
}

/// Whether what the event recorded is done; true if it never recorded. Does not wait.
///
/// Errors: UNKNOWN_EVENT; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_event_query(
    device: *mut millpond_device,
    event: C_Event,
    out_done: *mut bool,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_done, "out_done") }?;
        out.set(handles::device(device)?.events().query(event_id(event))?);
        Ok(())
    })
}

/// Whether a block still waits for what the event has recorded (see `millpond_record_end_at`); if so, it must neither
/// be recorded again nor destroyed with functions other than this library's. Does not wait. Any event can be asked for, also
/// one that the library does not know: for that no block waits.
///
/// Errors: INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_event_is_held(
    device: *mut millpond_device,
    event: C_Event,
    out_held: *mut bool,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_held, "out_held") }?;
        out.set(handles::device(device)?.events().is_held(event_id(event))?);
        Ok(())
    })
}

/// Waits for what the event recorded.
///
/// Errors: UNKNOWN_EVENT; NOT_PERMITTED in a stream callback; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_event_synchronize(
    device: *mut millpond_device,
    event: C_Event,
) -> C_Status {
    run(|| handles::device(device)?.events().synchronize(event_id(event)))
}
