//! The last failure of each thread: a code and a message, kept inline so that neither needs the heap.
//!
//! The record has no destructor, so it also works while a thread ends and in static destructors.

use crate::base::boxed::has_room;
use crate::base::error::{Code, Error};
use crate::capi::types::CODES;
use crate::runtime::OomReport;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::ffi::{CStr, c_char};
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// The bytes of a message including its NUL; longer ones are cut.
const ROOM: usize = 512;

struct Last {
    code: u32,
    len: usize,
    text: [u8; ROOM],
}

thread_local! {
    static LAST: UnsafeCell<Last> = const { UnsafeCell::new(Last { code: 0, len: 0, text: [0; ROOM] }) };
}

fn with<R>(f: impl FnOnce(&mut Last) -> R) -> R {
    // SAFETY: the cell belongs to this thread, and no caller below goes back into this module from
    // within `f`, so this is the only reference.
    LAST.with(|l| f(unsafe { &mut *l.get() }))
}

thread_local! {
    /// The error of the thread's last request that found no memory, with its report. What it replaces can be used again
    /// for the next one.
    static REPORT: RefCell<ManuallyDrop<Option<Error>>> = const { RefCell::new(ManuallyDrop::new(None)) };
    static END: End = const { End };
    /// Whether `END` is noted.
    static NOTED: Cell<bool> = const { Cell::new(false) };
    /// Whether that was its last failed call.
    static IS_LAST: Cell<bool> = const { Cell::new(false) };
}

/// \[B\] Less than that is enough to note that a thread has something that ends with it.
const END_BYTES: usize = 256;

/// Ends with the thread, and drops the report. Apart from it: where the host has no memory to note this, the C library ends
/// the process.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        NOTED.set(false);
        drop(REPORT.with_borrow_mut(|last| last.take()));
    }
}

/// Records whether the last failure was a request that found no memory: the error, if it has a report.
pub(crate) fn note(error: Option<Error>) {
    IS_LAST.set(false);
    if let Some(e) = error.filter(|e| e.oom_report().is_some()) {
        // A thread that is ending keeps none. One that finds no memory whenever it fails leaves its report behind.
        if NOTED.get() || !has_room(END_BYTES) || END.try_with(|_| NOTED.set(true)).is_ok() {
            drop(REPORT.with_borrow_mut(|last| last.replace(e)));
            IS_LAST.set(true);
        }
    }
}

/// The report of the last such request; with `now`, only if it was the last failed call.
pub(crate) fn report(now: bool) -> Option<Arc<OomReport>> {
    let last = REPORT.with_borrow(|last| last.as_ref().and_then(Error::oom_report));
    last.filter(|_| !now || IS_LAST.get())
}

/// Stores a failure of this thread.
pub(crate) fn set(code: Code, message: &str) {
    with(|l| {
        l.code = code as u32;
        l.len = 0;
    });
    append(message);
}

/// Appends to the message that `set` began, as far as there is room.
pub(crate) fn append(message: &str) {
    with(|l| {
        let mut cut = message.len().min(ROOM - 1 - l.len);
        while !message.is_char_boundary(cut) {
            cut -= 1;
        }
        for &b in &message.as_bytes()[..cut] {
            // A NUL inside would end the text for C.
            l.text[l.len] = if b == 0 { b'?' } else { b };
            l.len += 1;
        }
        l.text[l.len] = 0;
    });
}

/// The code of the last failed call on the calling thread; MILLPOND_OK if none has failed yet. A call that succeeds
/// does not clear it. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_last_error_code() -> u32 {
    with(|l| l.code)
}

/// A message about the last failed call on the calling thread, UTF-8; "" if none has failed yet. Never NULL.
/// Borrowed until the next failing call on this thread, or the thread's end.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_last_error_message() -> *const c_char {
    LAST.with(|l| {
        // SAFETY: the cell belongs to this thread and nothing else refers into it now.
        unsafe { (&raw const (*l.get()).text).cast::<c_char>() }
    })
}

/// Records a failure of the calling thread, for a layer over this library that refuses a call before the library sees
/// it: `millpond_last_error_code` and `millpond_last_error_message` then tell it as one of the library's own. `code` is one of
/// MILLPOND_E_*; another number counts as MILLPOND_E_INVALID_ARGUMENT. `message` is UTF-8 and ends with a NUL; it is copied,
/// as far as there is room (511 bytes), and NULL counts as "". Never fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_last_error_set(code: u32, message: *const c_char) {
    let code = CODES.iter().find(|c| c.2 == code).map_or(Code::InvalidArgument, |c| c.0);
    note(None);
    if message.is_null() {
        return set(code, "");
    }
    let mut text = [0; ROOM];
    // SAFETY: the caller's promise. The copy: the message may be the one that is kept here.
    let given = unsafe { CStr::from_ptr(message) }.to_bytes();
    let len = given.len().min(ROOM);
    text[..len].copy_from_slice(&given[..len]);
    set(code, "");
    for part in text[..len].utf8_chunks() {
        append(part.valid());
        if !part.invalid().is_empty() {
            append("\u{fffd}");
        }
    }
}

/// The name of an error code, as "MILLPOND_E_OUT_OF_MEMORY"; "MILLPOND_OK" for 0, "unknown" for a number
/// that this version does not know. Never NULL, and never freed.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_error_name(code: u32) -> *const c_char {
    let name: &CStr = match code {
        0 => c"MILLPOND_OK",
        n => CODES.iter().find(|c| c.2 == n).map_or(c"unknown", |c| c.1),
    };
    name.as_ptr()
}
