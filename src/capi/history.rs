//! What happened to a device's memory: its history, and recordings for `millpond replay`.

use crate::capi::guard::{Versioned, answered, file_name, read_struct, run_end, run_roomy, text};
use crate::capi::handles;
use crate::capi::pool::to_ptr;
use crate::capi::types::{
    MILLPOND_HISTORY_ALLOC, MILLPOND_HISTORY_ANNOTATE, MILLPOND_HISTORY_AT_ONCE, MILLPOND_HISTORY_HOST,
    MILLPOND_HISTORY_STREAM, millpond_device, millpond_history_callback, millpond_history_event,
    millpond_history_options,
};
use crate::fail;
use crate::paddle::abi::C_Status;
use crate::runtime::{self, DeviceState, EventKind, HistoryEvent, HistoryOptions};
use crate::{Code, Result};
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::{NonNull, null, null_mut};

// SAFETY: repr(C), `struct_size` first, integers and a raw pointer.
unsafe impl Versioned for millpond_history_options {}

const _: () = assert!(EventKind::Alloc as u32 == MILLPOND_HISTORY_ALLOC);
const _: () = assert!(EventKind::Annotate as u32 == MILLPOND_HISTORY_ANNOTATE);

/// A number that C may want.
fn give(to: *mut u64, value: impl FnOnce() -> Result<u64>) -> Result<()> {
    let to = NonNull::new(to);
    if to.is_some_and(|p| !p.is_aligned()) {
        fail!(Code::InvalidArgument, "the place for a number is not aligned");
    }
    let value = value()?;
    if let Some(p) = to {
        // SAFETY: C's promise, as the header states it.
        unsafe { p.write(value) };
    }
    Ok(())
}

/// What C says of a history.
///
/// # Safety
/// As the header says of `options`.
unsafe fn history_options(options: *const millpond_history_options) -> Result<HistoryOptions> {
    // SAFETY: the caller's promise.
    let o = unsafe { read_struct(options, "options") }?;
    let file = match o.path.is_null() {
        true => None,
        // SAFETY: as above.
        false => Some(unsafe { file_name(o.path, "options->path") }?.to_owned()),
    };
    Ok(HistoryOptions { events: o.event_count, frames: o.frame_count, file })
}

/// From now on what happens to the device's memory, pinned memory included, is kept: the newest events, for
/// `millpond_device_history_read`, and all of them in a file where `options` names one. NULL as `options`: all zeros. What
/// an earlier history has kept is given up. Calls of other threads that are under way may be left out. What a history costs
/// is in docs/performance.md; with `frame_count` above 0 (64 at most) it costs more. The file is written by a thread that
/// is started for it, every 50 ms and at the end of the process. An older file is emptied. While something else writes it
/// (a history or a recording of any device, in any process), the history goes to a file with the device and the process
/// added to the name.
///
/// Errors: BUSY while there is a history, or if that other file is being written, too; SYSTEM for a file that cannot be
/// written, or without a thread; OUT_OF_MEMORY for the events; INVALID_ARGUMENT; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_history_start(
    device: *mut millpond_device,
    options: *const millpond_history_options,
) -> C_Status {
    run_roomy(|| {
        let device = handles::device(device)?;
        // SAFETY: C's promise, as the header states it.
        device.history_start(&unsafe { history_options(options) }?)
    })
}

/// Ends the history. Its file is whole then, and lacks `*out_dropped` events (may be NULL), as its writer could not keep
/// up. What was kept can be read until another one begins. Waits for the file, but gives it up when it has taken nothing
/// for 5 s (a pipe whose reader stands still), and after 60 s in any case: that is SYSTEM, and the message says how many
/// events it lacks. `millpond_finalize` waits for each file as long, and tells nobody.
///
/// Errors: NOT_PERMITTED where there is none; SYSTEM where the file could not be written wholly, and the history has ended
/// all the same; INVALID_ARGUMENT; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_history_stop(
    device: *mut millpond_device,
    out_dropped: *mut u64,
) -> C_Status {
    run_end(|| give(out_dropped, || handles::device(device)?.history_stop()))
}

fn event_of(device: &DeviceState, e: &HistoryEvent, text: Option<&CString>) -> millpond_history_event {
    let flag = |is: bool, bit| if is { bit } else { 0 };
    let HistoryEvent { event: e, stamp, frames, .. } = e;
    let stamp = *stamp;
    let pooled = !e.host
        && !matches!(e.kind, EventKind::Annotate | EventKind::Snapshot | EventKind::RecordStream)
        && !e.is_segment();
    let pool = if pooled { handles::of_live_pool(device, e.pool) } else { None };
    millpond_history_event {
        struct_size: size_of::<millpond_history_event>(),
        time_ns: e.time,
        kind: e.kind as u32,
        flags: flag(e.host, MILLPOND_HISTORY_HOST)
            | flag(e.at_once && e.kind == EventKind::FreeRequested, MILLPOND_HISTORY_AT_ONCE)
            | flag(e.stream.is_some(), MILLPOND_HISTORY_STREAM),
        ptr: match e.kind {
            EventKind::Annotate | EventKind::Oom => null_mut(),
            _ => to_ptr(e.address),
        },
        size_bytes: e.bytes,
        requested_bytes: e.requested,
        stream: to_ptr(e.stream.unwrap_or(0)).cast(),
        pool: pool.unwrap_or(null_mut()),
        thread: e.thread,
        tag: e.tag.into(),
        frames: if frames.is_empty() { null() } else { frames.as_ptr() },
        frame_count: frames.len(),
        text: text.map_or(null(), |t| t.as_ptr()),
        device_free_bytes: match e.kind {
            EventKind::Oom => e.device_free().unwrap_or(u64::MAX),
            _ => 0,
        },
        stamp,
    }
}

/// Tells `callback` each event that the history has kept, the oldest first, until it returns false, and writes how many
/// it has not any more to `*out_dropped` (may be NULL). All of them up to one moment, while other threads go on. The
/// callback may call Millpond. Also after the end of the history.
///
/// Errors: NOT_PERMITTED where there was none; INVALID_ARGUMENT, also for NULL as `callback`; SYSTEM if it threw, which
/// ends the reading; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_history_read(
    device: *const millpond_device,
    callback: millpond_history_callback,
    user_data: *mut c_void,
    out_dropped: *mut u64,
) -> C_Status {
    run_roomy(|| {
        let Some(call) = callback else { fail!(Code::InvalidArgument, "callback is NULL") };
        let device = handles::device(device)?;
        let history = device.history()?;
        give(out_dropped, || {
            for e in &history.events {
                let text = e.text.as_ref().map(|t| CString::new(t.as_bytes()).unwrap_or_default());
                let event = event_of(device, e, text.as_ref());
                // SAFETY: the caller gave a function for exactly this call with this pointer.
                if !answered(|| unsafe { call(user_data, &event) })? {
                    break;
                }
            }
            Ok(history.dropped)
        })
    })
}

/// From now on `signal` begins a history of each open device that has none, with `options` (NULL: all zeros), and the next
/// one ends these, and no others; `%n` in the path is how many times it has begun some. 0 as `signal`: none does any more,
/// and the signal does what it does by itself; what one has begun goes on. There is one such signal in a process; another
/// call takes its place, and its signal ends what an earlier one has begun. What fails when the signal comes, such as a
/// file that cannot be written, is told to nobody. A thread that is started for it does the work, and the handler
/// interrupts no call of the system that can be restarted. A forked child's signal does nothing there.
/// Devices may be opened before or after this; it outlasts `millpond_finalize`. Thread-safe.
///
/// Errors: BUSY where the program handles the signal itself; INVALID_ARGUMENT for a signal that cannot be handled, or says
/// that something has failed (SIGSEGV and the like); SYSTEM without a thread; NOT_PERMITTED in a forked child.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_history_on_signal(
    signal: c_int,
    options: *const millpond_history_options,
) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let options = unsafe { history_options(options) }?;
        runtime::history_on_signal(signal, &options)
    })
}

/// A note in the history of each open device that has one, for the reader. The library keeps the first 65 536 different
/// texts as long as the process lives; later ones are noted without their text.
///
/// Errors: INVALID_ARGUMENT for NULL, and for what is not UTF-8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_history_annotate(note: *const c_char) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        runtime::annotate(unsafe { text(note, "note") }?)
    })
}

/// The clock that events of histories are stamped with, in ticks of no known length. Readings of one process can be
/// compared with each other and with `stamp` of `millpond_history_event`: the events of a call are those of its thread between a
/// reading before it and one after it. Before and after the library is used, too. A few nanoseconds. Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_history_stamp() -> u64 {
    runtime::history_stamp()
}

/// From now on what the program asks of the device's memory is written to `path`, as a trace that `millpond replay` and
/// `millpond bisect` take (traces/README.md); the blocks that live now come first. `%p` in the path is the number of
/// the process, `%d` the device. A program that is faster than the file waits for it, as a trace with holes is worth
/// nothing. The file is written every 50 ms, and at the end of the process. An older file, and one that is being written,
/// are as for `millpond_device_history_start`.
///
/// Errors: BUSY while there is a recording, or as there; SYSTEM for a file that cannot be written, or without a thread;
/// INVALID_ARGUMENT; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_record_start(
    device: *mut millpond_device,
    path: *const c_char,
) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let path = unsafe { file_name(path, "path") }?;
        handles::device(device)?.record_start(path)
    })
}

/// Ends the recording; the file is whole then. It lacks `*out_dropped` events (may be NULL): 0, unless a request would have
/// had to wait for seconds. Waits for the file as `millpond_device_history_stop` does.
///
/// Errors: NOT_PERMITTED where there is none; SYSTEM where the file could not be written wholly, and the recording has
/// ended all the same; INVALID_ARGUMENT; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_record_stop(
    device: *mut millpond_device,
    out_dropped: *mut u64,
) -> C_Status {
    run_end(|| give(out_dropped, || handles::device(device)?.record_stop()))
}
