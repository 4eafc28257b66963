//! What the pond has given up but the device refused to take back: granules, and addresses that are still mapped. They
//! belong to nobody; the device is asked again before it is asked for memory, and at each wait for it.
//!
//! A device may have a list of its own of what it could not undo (`device/cuda/granules.rs`), and neither list can do
//! the other's work. There, one call consists of several calls of the driver; a step that cannot be undone is not a
//! whole range, and nobody above knows of it. Here are whole calls that were refused with nothing changed, on any
//! device: the pond's numbers are free again, and a request that wants to use them must learn that it cannot do so yet.

use crate::base::error::{Code, Error, Result};
use crate::base::ordered::Map;
use crate::base::sort;
use crate::base::sync::system::{Condvar, Mutex, lock};
use crate::fail;

/// A run of granules that were to be given back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub count: u64,
    /// They are still mapped at their own addresses.
    pub shown: bool,
}

#[derive(Debug)]
struct Entry {
    run: Run,
    /// The device's last error.
    why: Error,
    /// A thread is asking the device now.
    asked: bool,
}

/// All refused runs, by their first granule.
#[derive(Default)]
pub(super) struct Refused {
    all: Mutex<Map<u64, Entry>>,
    answered: Condvar,
}

impl Refused {
    pub(super) fn add(&self, first: u64, run: Run, why: Error) {
        lock(&self.all).insert(first, Entry { run, why, asked: false });
    }

    /// Takes the runs that no other thread is asking for; the caller asks for them.
    pub(super) fn to_ask(&self) -> Asking<'_> {
        let mut all = lock(&self.all);
        let free = all.iter_mut().filter(|e| !e.1.asked);
        let mut open: Vec<_> = free
            .map(|(&first, e)| {
                e.asked = true;
                (first, e.run)
            })
            .collect();
        sort::by_key(&mut open, |o| std::cmp::Reverse(o.0));
        Asking { of: self, open }
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.all).is_empty()
    }

    /// Fails, with the device's error, if any of these granules was refused. Waits for threads that are asking for one.
    pub(super) fn check(&self, first: u64, count: u64) -> Result<()> {
        let mut all = lock(&self.all);
        loop {
            let before = all.range(..first.saturating_add(count)).rev();
            let met = before.take_while(|(f, e)| *f + e.run.count > first).map(|e| e.1);
            match met.min_by_key(|e| e.asked) {
                None => return Ok(()),
                Some(e) if !e.asked => {
                    let ended = e.why.code() == Code::NotInitialized;
                    let code = if ended { Code::NotInitialized } else { Code::Device };
                    fail!(code, "the device has not taken back what is to be used again: {}", e.why)
                }
                Some(_) => all = self.answered.wait(all),
            }
        }
    }
}

/// The runs for which one thread asks the device. When this is dropped with runs left, because a call has panicked,
/// other threads may ask for those.
pub(super) struct Asking<'a> {
    of: &'a Refused,
    open: Vec<(u64, Run)>, // the next one is last
}

impl Asking<'_> {
    /// The next run to ask for, until it is `answered`.
    pub(super) fn next(&self) -> Option<(u64, Run)> {
        self.open.last().copied()
    }

    /// The device's answer for the next run. If it refused again, `shown` says whether the run is still mapped.
    pub(super) fn answered(&mut self, answer: Result<()>, shown: bool) {
        let Some((first, _)) = self.open.pop() else { return };
        let mut all = lock(&self.of.all);
        match answer {
            Ok(()) => _ = all.remove(&first),
            Err(why) => {
                if let Some(e) = all.get_mut(&first) {
                    (e.run.shown, e.why, e.asked) = (shown, why, false);
                }
            }
        }
        drop(all);
        self.of.answered.notify_all();
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let mut all = lock(&self.of.all);
        for (first, _) in &self.open {
            if let Some(e) = all.get_mut(first) {
                e.asked = false;
            }
        }
        drop(all);
        self.of.answered.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn what_an_ended_device_does_not_take_back_is_no_failure_of_the_device() {
        let refused = Refused::default();
        refused.add(40, Run { count: 1, shown: true }, Error::new(Code::NotInitialized, "it has ended"));
        assert_eq!(refused.check(40, 1).unwrap_err().code(), Code::NotInitialized);
    }

    #[test]
    fn who_panics_asks_for_nothing_any_more() {
        let refused = Refused::default();
        for first in [10, 20, 30] {
            refused.add(first, Run { count: 5, shown: true }, Error::new(Code::Device, "not now"));
        }
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let mut asking = refused.to_ask();
            assert_eq!(asking.next().map(|r| r.0), Some(10));
            asking.answered(Ok(()), false);
            std::panic::resume_unwind(Box::new(()));
        }));
        assert!(panicked.is_err());
        assert!(refused.check(10, 5).is_ok());
        assert_eq!(refused.check(24, 1).unwrap_err().code(), Code::Device); // and not: waits for ever
        let mut again = refused.to_ask();
        while again.next().is_some() {
            again.answered(Ok(()), false);
        }
        assert!(refused.is_empty());
    }
}
