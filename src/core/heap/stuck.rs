//! How much free memory is stuck in partly used segments: the count of one heap ([`Idle`]) and of the device ([`Stuck`]).
//! `idle.rs` explains what that means and keeps the counts. Plain numbers: no lock is needed to read them.

use crate::base::sync::{AtomicI64, Ordering::Relaxed};

/// The part of the memory that the program has never needed that may be stuck, in sixteenths. Measured on recorded
/// programs (docs/decisions/segments.md): with 2, programs that have twice the memory that they need call the device more
/// often; with 4, programs that have little more than they need require a device 0.6 % larger.
const STUCK_SIXTEENTHS: i64 = 3;

/// How much memory of a device is stuck, and how much may be. In units of the large tier. These are hints: they decide
/// where a block is placed, never whether it is.
#[derive(Debug)]
pub(crate) struct Stuck {
    /// How much the device can give altogether.
    most: AtomicI64,
    /// The maximum that was ever allocated.
    peak: AtomicI64,
    /// How much is stuck: the sum of what the heaps have counted.
    stuck: AtomicI64,
}

impl Default for Stuck {
    fn default() -> Stuck {
        Stuck { most: AtomicI64::new(i64::MAX), peak: AtomicI64::new(0), stuck: AtomicI64::new(0) }
    }
}

impl Stuck {
    /// Sets how much the device can give altogether.
    pub(crate) fn set_most(&self, most: u64) {
        self.most.store(i64::try_from(most).unwrap_or(i64::MAX), Relaxed);
    }

    /// Notes how much was allocated at some time.
    pub(crate) fn note_peak(&self, peak: u64) {
        self.peak.fetch_max(i64::try_from(peak).unwrap_or(i64::MAX), Relaxed);
    }

    /// Adds what a heap has counted since the last time.
    pub(super) fn count(&self, units: i64) {
        self.stuck.fetch_add(units, Relaxed);
    }

    /// How much more may be stuck, given that a heap has `uncounted` units that are stuck but not in the sum yet.
    pub(super) fn room_beside(&self, uncounted: i64) -> i64 {
        let unneeded = self.most.load(Relaxed) - self.peak.load(Relaxed);
        unneeded / 16 * STUCK_SIXTEENTHS - self.stuck.load(Relaxed) - uncounted
    }

    /// How much more may be stuck, as far as the heaps have counted.
    pub(crate) fn room(&self) -> u64 {
        self.room_beside(0).max(0) as u64
    }

    /// How much the heaps have counted.
    #[cfg(test)]
    pub(crate) fn now(&self) -> i64 {
        self.stuck.load(Relaxed)
    }
}

/// The free memory of one heap, in units. Kept only on devices whose segments are as large as requests need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Idle {
    /// In the bins of the large tier.
    pub free: i64,
    /// The part of `free` in segments that are wholly free.
    pub whole: i64,
    /// How much of the rest is counted in [`Stuck`]. It was all of it when the last request was served from the bins, and
    /// when the heap last got or lost memory.
    pub counted: i64,
}

impl Idle {
    /// How much is stuck and not counted in [`Stuck`] yet.
    pub(super) fn uncounted(&self) -> i64 {
        self.free - self.whole - self.counted
    }
}
