//! The gate that every call on a type's devices passes: the end of the type waits for the calls inside, so
//! that no call is caught touching what goes away. It is no lock: calls do not wait for each other at it.

use crate::base::error::{Code, Error, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Counts the calls that are inside; closed once and for all by the end of the type.
pub(super) struct Gate {
    inside: AtomicUsize,
    closed: AtomicBool,
    ended: &'static str,
}

/// A call that is inside the gate.
pub(super) struct Pass<'a>(&'a Gate);

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        // Release: pairs with the load in `Gate::close`; what the call did is over for the closer.
        self.0.inside.fetch_sub(1, Ordering::Release);
    }
}

impl Gate {
    /// An open gate; `ended` is what callers are told once it is closed.
    pub(super) fn new(ended: &'static str) -> Gate {
        Gate { inside: AtomicUsize::new(0), closed: AtomicBool::new(false), ended }
    }

    /// Goes in; `NotInitialized` once it is closed.
    pub(super) fn enter(&self) -> Result<Pass<'_>> {
        // SeqCst here and in `close`: either the caller sees `closed`, or the closer sees the caller.
        self.inside.fetch_add(1, Ordering::SeqCst);
        let pass = Pass(self);
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::new(Code::NotInitialized, self.ended));
        }
        Ok(pass)
    }

    /// Closes it, and waits until nobody is inside.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        while self.inside.load(Ordering::SeqCst) != 0 {
            // Rare and short: only calls that were already running when the type is finalised.
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}
