//! What a call must handle before it does its work. Usually there is nothing, so that one load tells.
//!
//! All accesses are relaxed: calls that race with a change may come before it.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// One thing that a call must handle first.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum Mark {
    /// The device has ended.
    Closed = 1,
    /// There are deferred frees.
    Deferred = 2,
    /// The device is observed.
    Watched = 4,
    /// Calls are timed.
    Timed = 8,
    /// There are hooks.
    Hooked = 16,
}

/// The marks of one device's memory.
#[derive(Default)]
pub(super) struct Marks(AtomicU8);

impl Marks {
    /// Whether there is any.
    #[inline(always)]
    pub(super) fn any(&self) -> bool {
        self.0.load(Relaxed) != 0
    }

    #[inline(always)]
    pub(super) fn has(&self, mark: Mark) -> bool {
        self.0.load(Relaxed) & mark as u8 != 0
    }

    /// Sets a mark; whether it was set before.
    pub(super) fn set(&self, mark: Mark) -> bool {
        self.0.fetch_or(mark as u8, Relaxed) & mark as u8 != 0
    }

    pub(super) fn clear(&self, mark: Mark) {
        self.0.fetch_and(!(mark as u8), Relaxed);
    }
}
