//! Plain numbers of a device that any thread may read and change without a lock: counts, and hints for later searches.

use crate::base::sync::{AtomicU64, Ordering::Relaxed};

/// Requests of a device, or of one pool, that were refused.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Requests that failed for lack of memory.
    failed: AtomicU64,
    /// Searches in which the device, or a limit, refused, and that went on elsewhere.
    retried: AtomicU64,
}

impl Refusals {
    pub(crate) fn failed(&self) -> u64 {
        self.failed.load(Relaxed)
    }

    pub(crate) fn count_failed(&self) {
        self.failed.fetch_add(1, Relaxed);
    }

    pub(crate) fn retried(&self) -> u64 {
        self.retried.load(Relaxed)
    }

    pub(crate) fn count_retried(&self) {
        self.retried.fetch_add(1, Relaxed);
    }

    pub(super) fn clear(&self) {
        self.failed.store(0, Relaxed);
        self.retried.store(0, Relaxed);
    }
}

/// What earlier searches have found out. A hint that is out of date costs time or some memory, never correctness.
#[derive(Debug)]
pub(crate) struct Hints {
    most_ragged: AtomicU64,
    ties_ended_at: AtomicU64,
    refused_at: AtomicU64,
    misaligned: AtomicU64,
    brought_back: AtomicU64,
}

impl Default for Hints {
    fn default() -> Hints {
        Hints {
            most_ragged: AtomicU64::new(u64::MAX),
            ties_ended_at: AtomicU64::new(0),
            refused_at: AtomicU64::new(u64::MAX),
            misaligned: AtomicU64::new(u64::MAX),
            brought_back: AtomicU64::new(0),
        }
    }
}

impl Hints {
    /// [units of the large tier] how much of a heap may be free in partly used granules; `u64::MAX` as long as the
    /// device has more memory to give, as far as was last seen.
    pub(crate) fn most_ragged(&self) -> u64 {
        self.most_ragged.load(Relaxed)
    }

    /// How often any thread has brought freed blocks back. It may wrap.
    pub(crate) fn brought_back(&self) -> u64 {
        self.brought_back.load(Relaxed)
    }

    pub(crate) fn note_brought_back(&self) {
        self.brought_back.fetch_add(1, Relaxed);
    }

    pub(crate) fn set_most_ragged(&self, units: u64) {
        self.most_ragged.store(units, Relaxed);
    }

    /// [granules] that were reserved when memory was scarce: ties that were wholly free had to serve otherwise than in
    /// place. No more ties are made to spare calls until most of that has gone back, or the cache is emptied. 0: memory
    /// was not scarce.
    pub(crate) fn ties_ended_at(&self) -> u64 {
        self.ties_ended_at.load(Relaxed)
    }

    /// Memory is scarce while so many granules are reserved: no more ties are made.
    pub(crate) fn end_ties(&self, reserved: u64) {
        self.ties_ended_at.fetch_max(reserved.max(1), Relaxed);
    }

    /// Memory is plentiful again: ties may be made.
    pub(crate) fn allow_ties(&self) {
        self.ties_ended_at.store(0, Relaxed);
    }

    /// [B] that were reserved when the device last refused a segment that the limits allow; `u64::MAX`: it has not.
    pub(crate) fn refused_at(&self) -> u64 {
        self.refused_at.load(Relaxed)
    }

    pub(crate) fn set_refused_at(&self, reserved: u64) {
        self.refused_at.store(reserved, Relaxed);
    }

    /// The device has more memory than it seemed to have.
    pub(crate) fn forget_refusal(&self) {
        self.set_refused_at(u64::MAX);
    }

    /// [B] the smallest alignment that a block of a fresh segment could not have; `u64::MAX`: it could have any.
    pub(crate) fn misaligned(&self) -> u64 {
        self.misaligned.load(Relaxed)
    }

    /// Notes that a block of a fresh segment could not be aligned so.
    pub(crate) fn note_misaligned(&self, to: u64) {
        self.misaligned.fetch_min(to, Relaxed);
    }
}
