//! Numbers of callbacks. No two callbacks of a process have the same one, whatever device and kind they are of: so a
//! number that is given to the wrong device removes nothing there.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that no callback had before, never 0, and higher than those before.
pub(super) fn next() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only uniqueness matters; who compares two of them has had a lock between.
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}
