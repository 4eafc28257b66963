//! What the pond has given up and the device would not take back: granules, and addresses that show some. They are
//! nobody's: the device is asked again before it is asked for memory, and with each wait for it.

use crate::base::sync::system::Mutex;
use crate::runtime::lock;
use std::collections::BTreeMap;

/// Granules in one run, as they were to be given back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub count: u64,
    /// They are still shown at their own addresses.
    pub shown: bool,
    /// Somebody asks the device now.
    asked: bool,
}

/// All of them, by the first.
#[derive(Default)]
pub(super) struct Refused(Mutex<BTreeMap<u64, Run>>);

impl Refused {
    pub(super) fn add(&self, first: u64, count: u64, shown: bool) {
        lock(&self.0).insert(first, Run { count, shown, asked: false });
    }

    /// Those that nobody asks for now; whoever gets them does, and says `asked` of each.
    pub(super) fn to_ask(&self) -> Vec<(u64, Run)> {
        let mut all = lock(&self.0);
        let free = all.iter_mut().filter(|r| !r.1.asked);
        free.map(|(&first, run)| {
            run.asked = true;
            (first, *run)
        })
        .collect()
    }

    /// The device has taken a run back, or has still not; then, whether it is shown.
    pub(super) fn asked(&self, first: u64, taken: bool, shown: bool) {
        let mut all = lock(&self.0);
        if taken {
            all.remove(&first);
        } else if let Some(run) = all.get_mut(&first) {
            (run.shown, run.asked) = (shown, false);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// Whether any of these granules is among them.
    pub(super) fn has(&self, first: u64, count: u64) -> bool {
        lock(&self.0).range(..first + count).next_back().is_some_and(|(f, run)| f + run.count > first)
    }
}
