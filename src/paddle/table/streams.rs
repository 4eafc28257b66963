//! Streams and events. A handle is the runtime's id, as a pointer; null is the default stream.
//!
//! A forked child has no work (`session::forked`): events can be created, recorded and queried there, and stand for
//! nothing.

use super::session::{device, forked, gone, store};
use crate::base::error::{Code, Error, Result};
use crate::device::{EventId, StreamId};
use crate::ffi::exceptions;
use crate::paddle::abi::{C_Callback, C_Device, C_Device_st, C_Event, C_Status, C_Stream};
use crate::paddle::status::{self, done, guard};
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

fn stream_id(stream: C_Stream) -> StreamId {
    stream as usize as u64
}

fn event_id(event: C_Event) -> EventId {
    event as usize as u64
}

fn check_place<T>(out: *mut T) -> Result<()> {
    if out.is_null() {
        return Err(Error::new(Code::InvalidArgument, "the place for the handle is NULL"));
    }
    Ok(())
}

/// Success if done, otherwise `C_WARNING`, a status that no failure of ours has.
fn answer(done: bool) -> C_Status {
    if done { C_Status::SUCCESS } else { C_Status::WARNING }
}

pub(super) unsafe extern "C-unwind" fn create_stream(d: C_Device, out: *mut C_Stream) -> C_Status {
    done(|| {
        check_place(out)?;
        store(out, device(d)?.streams().create()? as usize as C_Stream)
    })
}

pub(super) unsafe extern "C-unwind" fn destroy_stream(d: C_Device, stream: C_Stream) -> C_Status {
    done(|| {
        if stream.is_null() || gone() {
            return Ok(());
        }
        device(d)?.streams().destroy(stream_id(stream))
    })
}

pub(super) unsafe extern "C-unwind" fn query_stream(d: C_Device, stream: C_Stream) -> C_Status {
    guard(|| Ok(answer(forked() || device(d)?.streams().query(stream_id(stream))?)))
}

pub(super) unsafe extern "C-unwind" fn stream_add_callback(
    d: C_Device,
    stream: C_Stream,
    callback: C_Callback,
    user_data: *mut c_void,
) -> C_Status {
    done(|| {
        let Some(callback) = callback else {
            return Err(Error::new(Code::InvalidArgument, "the callback is NULL"));
        };
        let state = device(d)?;
        let id = state.ordinal() as c_int;
        // As integers: pointers of the host may be sent to the device's thread that way.
        let (stream, user_data) = (stream as usize, user_data as usize);
        state.streams().callback(
            stream as u64,
            Box::new(move |result| {
                let mut device = C_Device_st { id };
                let mut status = result.map_or_else(|e| status::of(&e), |()| C_Status::SUCCESS);
                // SAFETY: the host vouches for its callback and data; device and status live for the call. Panics and
                // exceptions are caught here.
                let call = || unsafe {
                    callback(&mut device, stream as C_Stream, user_data as *mut c_void, &mut status)
                };
                let _ = catch_unwind(AssertUnwindSafe(|| exceptions::caught(call)));
            }),
        )
    })
}

/// A handle for an event with nothing behind it; its highest bit is set, so it equals no real handle.
fn event_of_a_child() -> EventId {
    static MADE: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only uniqueness matters.
    MADE.fetch_add(1, Ordering::Relaxed) | 1 << 63
}

pub(super) unsafe extern "C-unwind" fn create_event(d: C_Device, out: *mut C_Event) -> C_Status {
    done(|| {
        check_place(out)?;
        let event = if forked() { event_of_a_child() } else { device(d)?.events().create()? };
        store(out, event as usize as C_Event)
    })
}

pub(super) unsafe extern "C-unwind" fn record_event(
    d: C_Device,
    stream: C_Stream,
    event: C_Event,
) -> C_Status {
    done(|| if forked() { Ok(()) } else { device(d)?.events().record(stream_id(stream), event_id(event)) })
}

pub(super) unsafe extern "C-unwind" fn destroy_event(d: C_Device, event: C_Event) -> C_Status {
    done(|| {
        if event.is_null() || gone() {
            return Ok(());
        }
        device(d)?.events().destroy(event_id(event))
    })
}

pub(super) unsafe extern "C-unwind" fn query_event(d: C_Device, event: C_Event) -> C_Status {
    guard(|| Ok(answer(forked() || device(d)?.events().query(event_id(event))?)))
}

pub(super) unsafe extern "C-unwind" fn synchronize_device(d: C_Device) -> C_Status {
    done(|| if forked() { Ok(()) } else { device(d)?.synchronize() })
}

pub(super) unsafe extern "C-unwind" fn synchronize_stream(d: C_Device, stream: C_Stream) -> C_Status {
    done(|| if forked() { Ok(()) } else { device(d)?.streams().synchronize(stream_id(stream)) })
}

/// PaddlePaddle ends the process on anything but success, so late calls succeed: all work is done by then.
pub(super) unsafe extern "C-unwind" fn synchronize_event(d: C_Device, event: C_Event) -> C_Status {
    done(|| {
        if gone() {
            return Ok(());
        }
        device(d)?.events().synchronize(event_id(event))
    })
}

pub(super) unsafe extern "C-unwind" fn stream_wait_event(
    d: C_Device,
    stream: C_Stream,
    event: C_Event,
) -> C_Status {
    done(
        || {
            if forked() {
                Ok(())
            } else {
                device(d)?.streams().wait_event(stream_id(stream), event_id(event))
            }
        },
    )
}
