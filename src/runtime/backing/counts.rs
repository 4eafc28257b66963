//! How often a device's memory management was called.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Counts of calls since the device was opened.
#[derive(Default)]
pub(crate) struct Counts {
    /// Calls that create or map memory.
    pub taking: AtomicU64,
    /// Calls that release or unmap it.
    pub giving: AtomicU64,
    /// Calls that were not made, since the device had too little memory.
    pub rejected: AtomicU64,
}

impl Counts {
    /// The calls that create or map memory, and those that release or unmap it.
    pub(crate) fn calls(&self) -> [u64; 2] {
        [self.taking.load(Relaxed), self.giving.load(Relaxed)]
    }

    /// Calls that were not made.
    pub(crate) fn rejections(&self) -> u64 {
        self.rejected.load(Relaxed)
    }
}
