//! What a forked child may do: once its parent has used a device, nothing but get a status. Every entry point checks
//! this first. If the parent has used no device, but only asked which there are or made settings, the child starts anew, unless
//! another thread was in such a call at that moment.

use crate::base::error::{Code, Error, Result};
use crate::base::fork::{self, Busy};
use std::sync::atomic::{AtomicU64, Ordering};

/// One more than `fork::count()` in the process that used a device first; 0 before that.
static USED_IN: AtomicU64 = AtomicU64::new(0);

/// Watches forks from now on. Returns this process's number among forks.
pub(crate) fn watch() -> u64 {
    // A failure happens again, and is reported, when a built-in type starts.
    let _ = fork::watch();
    fork::count()
}

/// A device or a registered type is in use: forked children are refused from now on.
pub(crate) fn used() {
    // Relaxed: a child's only thread sees what its parent's forking thread had seen.
    let _ = USED_IN.compare_exchange(0, fork::count() + 1, Ordering::Relaxed, Ordering::Relaxed);
}

/// `NotPermitted` in a child of a process that had used the library.
#[inline]
pub(crate) fn check() -> Result<()> {
    // Relaxed: as in `watch`.
    let used_in = USED_IN.load(Ordering::Relaxed);
    if used_in == fork::count() + 1 { Ok(()) } else { unused(used_in) }
}

/// [`check`] for a call that takes a lock before any device is in use. As long as the caller keeps what this returns, a child
/// that is forked meanwhile is refused, since the lock is never released there.
pub(crate) fn enter() -> Result<Option<Busy>> {
    // Relaxed: as in `watch`.
    if USED_IN.load(Ordering::Relaxed) == fork::count() + 1 {
        return Ok(None); // all children are refused
    }
    watch();
    let busy = Busy::new();
    check().map(|()| Some(busy))
}

#[cold]
#[inline(never)]
fn unused(used_in: u64) -> Result<()> {
    if used_in == 0 && !fork::is_stuck() {
        return Ok(());
    }
    Err(Error::new(Code::NotPermitted, "a forked child cannot use the parent's devices"))
}
