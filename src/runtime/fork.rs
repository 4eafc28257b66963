//! What a forked child may do: nothing but get a status, once its parent had a device. Every entry asks
//! here before anything else. A child of a parent that has only asked what devices there are starts anew.

use crate::base::error::{Code, Error, Result};
use crate::base::fork;
use std::sync::atomic::{AtomicU64, Ordering};

/// One more than `fork::count()` in the process that used a device first; 0 before.
static USED_IN: AtomicU64 = AtomicU64::new(0);

/// From now on a fork is noticed. The number of this process among forks.
pub(crate) fn watch() -> u64 {
    // A failure comes up again, and is reported, when a built-in type starts.
    let _ = fork::watch();
    fork::count()
}

/// A device or a registered type is in use: children are refused from now on.
pub(crate) fn used() {
    // Relaxed: a child's only thread sees what its parent's forking thread had seen.
    let _ = USED_IN.compare_exchange(0, fork::count() + 1, Ordering::Relaxed, Ordering::Relaxed);
}

/// `NotPermitted` in a child of a process that had used the library.
#[inline]
pub(crate) fn check() -> Result<()> {
    // Relaxed: as in `watch`.
    let used_in = USED_IN.load(Ordering::Relaxed);
    if used_in == 0 || used_in == fork::count() + 1 { Ok(()) } else { refuse() }
}

#[cold]
#[inline(never)]
fn refuse() -> Result<()> {
    Err(Error::new(Code::NotPermitted, "a forked child cannot use the parent's devices"))
}
