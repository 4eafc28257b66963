//! Host callbacks: functions of the program that the driver runs when a stream reaches them.

use super::context::CallbackMark;
use super::driver::Driver;
use crate::base::error::{Error, Result};
use crate::base::loaded;
use crate::base::ordered::Map;
use crate::base::sync::system::{Mutex, lock};
use crate::device::StreamCallback;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A callback that the driver has not called yet, and the device that owns it.
struct Waiting {
    owner: usize,
    call: StreamCallback,
}

struct Callbacks {
    next: usize,
    waiting: Map<usize, Waiting>,
}

/// Callbacks by number. The driver gets the number instead of a pointer, so a callback that it calls late, or never
/// because the stream failed, touches no freed memory.
static CALLBACKS: Mutex<Callbacks> = Mutex::new(Callbacks { next: 1, waiting: Map::new() });

/// The function that the driver calls; its data is the number.
unsafe extern "C" fn arrive(data: *mut c_void) {
    let number = data as usize;
    let found = lock(&CALLBACKS).waiting.remove(&number);
    if let Some(w) = found {
        let _mark = CallbackMark::new();
        // The caller's panics must not reach the driver's frames.
        let _ = catch_unwind(AssertUnwindSafe(move || (w.call)(Ok(()))));
    }
}

/// Queues a callback of the device `owner`.
pub(super) fn queue(driver: Driver, owner: usize, stream: u64, call: StreamCallback) -> Result<()> {
    loaded::keep(); // the driver calls `arrive` from a thread of its own
    let number = {
        let mut c = lock(&CALLBACKS);
        let number = c.next;
        c.next += 1;
        c.waiting.insert(number, Waiting { owner, call });
        number
    };
    driver.launch_host(stream, arrive, number as *mut c_void).inspect_err(|_| {
        let refused = lock(&CALLBACKS).waiting.remove(&number);
        drop(refused); // dropped without the lock: the caller's own code may run in it
    })
}

/// The driver calls no callbacks on a failed stream: calls those that wait, with the error.
pub(super) fn fail(owner: usize, why: &Error) {
    let all: Vec<StreamCallback> = {
        let mut c = lock(&CALLBACKS);
        let numbers: Vec<usize> =
            c.waiting.iter().filter(|(_, w)| w.owner == owner).map(|(n, _)| *n).collect();
        numbers.into_iter().filter_map(|n| c.waiting.remove(&n)).map(|w| w.call).collect()
    };
    for call in all {
        let why = why.clone();
        let _mark = CallbackMark::new();
        let _ = catch_unwind(AssertUnwindSafe(move || call(Err(why))));
    }
}
