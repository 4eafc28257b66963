//! The gate: one thread at a time may start, open, register or end devices.
//!
//! Those steps call into devices and plugins, which may block or call back into the library, so a plain mutex would be
//! held across foreign code. A thread inside the gate holds no lock: others wait on a condition variable, and a thread
//! that is inside and comes back to the gate gets `Busy`.

use crate::base::error::{Code, Error, Result};
use crate::base::fork::Busy;
use crate::base::sync::system::{Condvar, Mutex, lock};
use std::thread::{self, ThreadId};

/// See the head of this file.
pub(crate) struct Gate {
    inside: Mutex<Option<ThreadId>>,
    left: Condvar,
}

/// Being inside the gate; dropping it leaves.
pub(crate) struct Turn<'a>(&'a Gate, Busy);

impl Gate {
    pub(crate) const fn new() -> Gate {
        Gate { inside: Mutex::new(None), left: Condvar::new() }
    }

    /// Waits until nobody is inside, and enters.
    pub(crate) fn enter(&self) -> Result<Turn<'_>> {
        let (me, busy) = (thread::current().id(), Busy::new());
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
        Ok(Turn(self, busy))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *lock(&self.0.inside) = None;
        // Only one waiter can enter; the others would wait again.
        self.0.left.notify_one();
    }
}
