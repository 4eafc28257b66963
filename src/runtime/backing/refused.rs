//! What the pond has given up and the device would not take back: granules, and addresses that show some. They are
//! nobody's: the device is asked again before it is asked for memory, and with each wait for it.
//!
//! A device may have a list of its own of what it could not undo (`device/cuda/granules.rs`), and neither can do the
//! other's work. There, one call is several of the driver's: a step of it that cannot be undone is no whole range, and
//! nobody above knows of it. Here are whole calls that were refused with nothing changed, on any device: the pond's
//! numbers are free again, and whoever is to use them must hear that they are not.

use crate::base::error::{Code, Error, Result};
use crate::base::sync::system::{Condvar, Mutex};
use crate::fail;
use crate::runtime::lock;
use std::collections::BTreeMap;

/// Granules in one run, as they were to be given back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub count: u64,
    /// They are still shown at their own addresses.
    pub shown: bool,
}

#[derive(Debug)]
struct Entry {
    run: Run,
    /// What the device said last.
    why: Error,
    /// Somebody asks the device now.
    asked: bool,
}

/// All of them, by the first.
#[derive(Default)]
pub(super) struct Refused {
    all: Mutex<BTreeMap<u64, Entry>>,
    answered: Condvar,
}

impl Refused {
    pub(super) fn add(&self, first: u64, run: Run, why: Error) {
        lock(&self.all).insert(first, Entry { run, why, asked: false });
    }

    /// Those that nobody asks for now; whoever gets them does, and says `asked` of each.
    pub(super) fn to_ask(&self) -> Vec<(u64, Run)> {
        let mut all = lock(&self.all);
        let free = all.iter_mut().filter(|e| !e.1.asked);
        free.map(|(&first, e)| {
            e.asked = true;
            (first, e.run)
        })
        .collect()
    }

    /// The device has taken a run back, or has still not; then, whether it is shown.
    pub(super) fn asked(&self, first: u64, answer: Result<()>, shown: bool) {
        let mut all = lock(&self.all);
        match answer {
            Ok(()) => _ = all.remove(&first),
            Err(why) => {
                if let Some(e) = all.get_mut(&first) {
                    (e.run.shown, e.why, e.asked) = (shown, why, false);
                }
            }
        }
        drop(all);
        self.answered.notify_all();
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.all).is_empty()
    }

    /// Fails, with what the device says, when any of these granules is among them. Waits for those who ask for one.
    pub(super) fn check(&self, first: u64, count: u64) -> Result<()> {
        let mut all = lock(&self.all);
        loop {
            let before = all.range(..first.saturating_add(count)).rev();
            let met = before.take_while(|(f, e)| *f + e.run.count > first).map(|e| e.1);
            match met.min_by_key(|e| e.asked) {
                None => return Ok(()),
                Some(e) if !e.asked => {
                    fail!(Code::Device, "the device has not taken back what is to be used again: {}", e.why)
                }
                Some(_) => all = self.answered.wait(all),
            }
        }
    }
}
