//! The gate through which every call on a type's devices passes. When the type ends, it closes the gate and waits for
//! the calls inside, so that no call touches what is being released. It is no lock: calls do not wait for each other.

use crate::base::error::{Code, Error, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Counts the calls inside. The end of the type closes it for good.
pub(super) struct CallGate {
    inside: AtomicUsize,
    closed: AtomicBool,
    ended: &'static str,
}

/// A call inside the gate; dropping it leaves.
pub(super) struct CallPass<'a>(&'a CallGate);

impl Drop for CallPass<'_> {
    fn drop(&mut self) {
        // Release pairs with the load in `CallGate::close`: everything the call did happens before the close returns.
        self.0.inside.fetch_sub(1, Ordering::Release);
    }
}

impl CallGate {
    /// An open gate; `ended` is the error message for callers once it is closed.
    pub(super) fn new(ended: &'static str) -> CallGate {
        CallGate { inside: AtomicUsize::new(0), closed: AtomicBool::new(false), ended }
    }

    /// Enters; `NotInitialized` once the gate is closed.
    pub(super) fn enter(&self) -> Result<CallPass<'_>> {
        // SeqCst here and in `close`: either the caller sees `closed`, or `close` sees the caller.
        self.inside.fetch_add(1, Ordering::SeqCst);
        let pass = CallPass(self);
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::new(Code::NotInitialized, self.ended));
        }
        Ok(pass)
    }

    /// Closes the gate, and waits until no call is inside.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        while self.inside.load(Ordering::SeqCst) != 0 {
            // Rare and short: only for calls that were already running when the type is finalised.
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}
