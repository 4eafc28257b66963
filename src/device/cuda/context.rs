//! Entering a device: refused in a forked child, after the end and in a host callback of the driver; inside, the
//! device's primary context is current. Leaving makes the previous context current again, whatever the call did.
//!
//! Only primary contexts are used, those of the CUDA runtime and of every framework on it, so that memory, streams and
//! events are common to all. They are retained, never created, never reset.

use super::driver::{Context, Driver};
use crate::base::error::{Code, Error, Result};
use crate::base::fork;
use crate::device::gate::{CallGate, CallPass};
use std::cell::Cell;

thread_local! {
    /// The number of host callbacks that this thread is in. It has no destructor, so it works at thread exit too.
    static CALLBACKS: Cell<u32> = const { Cell::new(0) };
}

/// A device's primary context, retained while this lives.
pub(super) struct Primary {
    pub driver: Driver,
    pub device: i32,
    pub context: Context,
    gate: CallGate,
    born: u64, // `fork::count()` when it was retained
}

/// A call inside the device: the context is current until this is dropped.
pub(super) struct Inside<'a> {
    driver: Driver,
    pushed: bool,
    _pass: CallPass<'a>,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if self.pushed {
            // A context that was destroyed meanwhile is popped all the same.
            let _ = self.driver.context_pop();
        }
    }
}

/// Marks the calling thread as being inside a host callback, until dropped.
pub(super) struct CallbackMark(());

impl CallbackMark {
    pub(super) fn new() -> CallbackMark {
        CALLBACKS.set(CALLBACKS.get() + 1);
        CallbackMark(())
    }
}

impl Drop for CallbackMark {
    fn drop(&mut self) {
        CALLBACKS.set(CALLBACKS.get() - 1);
    }
}

#[cold]
fn in_child() -> Error {
    Error::new(Code::NotPermitted, "CUDA was started before fork; a child cannot use it")
}

#[cold]
fn in_callback() -> Error {
    Error::new(Code::NotPermitted, "CUDA allows no call of its driver in a stream callback")
}

impl Primary {
    pub(super) fn retain(driver: Driver, device: i32, born: u64) -> Result<Primary> {
        let context = driver.primary_retain(device)?;
        Ok(Primary {
            driver,
            device,
            context,
            gate: CallGate::new("the device type \"cuda\" was finalised"),
            born,
        })
    }

    /// Lets a call in. The order of the checks matters: in a forked child no lock is taken and no driver asked.
    #[inline]
    pub(super) fn enter(&self) -> Result<Inside<'_>> {
        if fork::count() != self.born {
            return Err(in_child());
        }
        if CALLBACKS.get() != 0 {
            return Err(in_callback());
        }
        let pass = self.gate.enter()?;
        let pushed = self.driver.context_current()? != self.context;
        if pushed {
            self.driver.context_push(self.context)?;
        }
        Ok(Inside { driver: self.driver, pushed, _pass: pass })
    }

    /// Lets no further call in, and waits until none is inside.
    pub(super) fn shut(&self) {
        self.gate.close();
    }

    /// Enters for the end of the device, after `shut`. If the driver refuses to make the context current, `what` runs
    /// all the same, to give back as much as possible.
    pub(super) fn at_the_end<T>(&self, what: impl FnOnce() -> T) -> T {
        let pushed = self.driver.context_current().is_ok_and(|c| c != self.context)
            && self.driver.context_push(self.context).is_ok();
        let result = what();
        if pushed {
            let _ = self.driver.context_pop();
        }
        result
    }
}
