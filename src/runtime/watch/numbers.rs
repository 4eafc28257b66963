//! Numbers of callbacks. No two callbacks of a process have the same number, whatever their device and kind, so a
//! number that is passed to the wrong device removes nothing there.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that no callback had before, never 0, and higher than all earlier ones.
pub(crate) fn next() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only uniqueness matters; a thread that compares two numbers has taken a lock in between.
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}
