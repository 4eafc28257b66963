//! The gate: one thread at a time may start, open, register or end devices.
//!
//! Those steps call into devices and plugins, which may block or call back into the library, so a
//! plain mutex would be held across foreign code. The gate holds no lock meanwhile: others wait on a
//! condition variable, and a thread that comes back through it from inside gets `Busy`.

use crate::base::error::{Code, Error, Result};
use crate::base::sync::system::{Condvar, Mutex};
use crate::runtime::lock;
use std::thread::{self, ThreadId};

/// See the head of the file.
pub(crate) struct Gate {
    inside: Mutex<Option<ThreadId>>,
    left: Condvar,
}

/// The right to be inside, until it is dropped.
pub(crate) struct Pass<'a>(&'a Gate);

impl Gate {
    pub(crate) const fn new() -> Gate {
        Gate { inside: Mutex::new(None), left: Condvar::new() }
    }

    /// Waits until nobody is inside, and goes in.
    pub(crate) fn enter(&self) -> Result<Pass<'_>> {
        let me = thread::current().id();
        let mut inside = lock(&self.inside);
        while let Some(who) = *inside {
            if who == me {
                return Err(Error::new(
                    Code::Busy,
                    "called from within the start or the end of a device type",
                ));
            }
            inside = self.left.wait(inside);
        }
        *inside = Some(me);
        Ok(Pass(self))
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        *lock(&self.0.inside) = None;
        // One waiter can go in; the others would only wait again.
        self.0.left.notify_one();
    }
}
