//! Stream callbacks that were handed to plugins.

use crate::base::error::{Code, Error};
use crate::base::ordered::Map;
use crate::base::sync::system::Mutex;
use crate::device::StreamCallback;
use crate::paddle::abi::{C_Device, C_Status, C_Stream};
use crate::runtime::lock;
use std::ffi::c_void;

/// Callbacks that plugins have not called yet.
#[derive(Default)]
struct Callbacks {
    last: usize,
    waiting: Map<usize, StreamCallback>,
}

impl Callbacks {
    fn add(&mut self, callback: StreamCallback) -> usize {
        self.last += 1;
        self.waiting.insert(self.last, callback);
        self.last
    }
}

/// Callbacks by number. A plugin gets the number instead of a pointer: if it calls twice, or after a failure, nothing
/// is found.
static CALLBACKS: Mutex<Callbacks> = Mutex::new(Callbacks { last: 0, waiting: Map::new() });

/// Stores a callback; returns its number, for the plugin.
pub(super) fn add(callback: StreamCallback) -> usize {
    lock(&CALLBACKS).add(callback)
}

/// Drops a callback that the plugin has refused.
pub(super) fn drop_one(number: usize) {
    let refused = lock(&CALLBACKS).waiting.remove(&number);
    drop(refused); // dropped without the lock: the caller's own code may run in it
}

/// The function that the plugin calls when the stream reaches the callback.
pub(super) unsafe extern "C-unwind" fn run(
    _device: C_Device,
    _stream: C_Stream,
    user_data: *mut c_void,
    status: *mut C_Status,
) {
    let found = lock(&CALLBACKS).waiting.remove(&user_data.addr());
    let Some(callback) = found else { return };
    // SAFETY: null, or a status of the plugin that lives for this call.
    let status = unsafe { status.as_ref() }.copied().unwrap_or(C_Status::SUCCESS);
    let result = match status {
        C_Status::SUCCESS => Ok(()),
        other => Err(Error::formatted(
            Code::Device,
            format_args!("work on the stream ended with {}", other.name()),
        )),
    };
    // A panic must not reach the plugin's thread.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || callback(result)));
}
