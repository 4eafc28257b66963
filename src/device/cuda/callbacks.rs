//! Host callbacks: functions of the program that the driver runs when a stream gets there.

use super::context::CallbackMark;
use super::driver::Driver;
use crate::base::error::{Error, Result};
use crate::base::loaded;
use crate::base::sync::system::{Mutex, lock};
use crate::device::StreamCallback;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A callback that the driver has not called yet, and whose it is.
struct Waiting {
    owner: usize,
    call: StreamCallback,
}

struct Callbacks {
    next: usize,
    waiting: BTreeMap<usize, Waiting>,
}

/// By number, which is what the driver gets instead of a pointer: a callback that the driver calls late,
/// or never since its stream failed, touches nothing that is gone.
static CALLBACKS: Mutex<Callbacks> = Mutex::new(Callbacks { next: 1, waiting: BTreeMap::new() });

/// What the driver calls, with the number as its data.
unsafe extern "C" fn arrive(data: *mut c_void) {
    let number = data as usize;
    let found = lock(&CALLBACKS).waiting.remove(&number);
    if let Some(w) = found {
        let _mark = CallbackMark::new();
        // The caller's panics end before the driver's frames.
        let _ = catch_unwind(AssertUnwindSafe(move || (w.call)(Ok(()))));
    }
}

/// Queues a callback of a device, which `owner` names.
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
        drop(refused); // not under the lock: the caller's own code may run in it
    })
}

/// The driver does not call back on a stream that has failed: those that wait hear it from here.
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
