//! Forks of the process: a number that changes in every forked child.
//!
//! A child has the parent's memory but none of its threads, and locks may be held by threads that do
//! not exist there. So users of this file keep the number of the process that they started in, and look
//! at it before they touch any lock.

use super::error::{Code, Error, Result};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How often this process was forked from one that watched: 0 in the first process.
static FORKS: AtomicU64 = AtomicU64::new(0);
static WATCHED: AtomicBool = AtomicBool::new(false);
/// See `in_children`. Looking at it is one atomic load.
static FORGET: OnceLock<fn()> = OnceLock::new();

extern "C" fn in_child() {
    // Little more than this: the child of a process with threads may not do much here.
    // Relaxed: the child has one thread, and later ones are started after this.
    FORKS.fetch_add(1, Ordering::Relaxed);
    if let Some(forget) = FORGET.get() {
        forget();
    }
}

/// What else happens in a forked child: `forget` is called there, before the fork returns. It may do nothing
/// but store to atomics. The first one stays.
pub(crate) fn in_children(forget: fn()) {
    let _ = FORGET.set(forget);
}

/// From now on a fork changes [`count`]. A fork before needs no notice: there is nothing to inherit, and
/// the child starts for itself.
pub(crate) fn watch() -> Result<()> {
    // Two threads that come first together do not both register; a second entry would only count a
    // fork twice.
    if WATCHED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    // SAFETY: `in_child` is a plain function that adds to an atomic, which is allowed after fork. It lives
    // as long as this library is loaded; the C library drops the entry when the library is unloaded.
    let rc = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    if rc != 0 {
        WATCHED.store(false, Ordering::Relaxed);
        return Err(Error::new(Code::System, "pthread_atfork failed: forks would go unseen"));
    }
    Ok(())
}

/// A number that changes in every forked child of a process that called [`watch`].
#[inline]
pub(crate) fn count() -> u64 {
    // Relaxed: see `in_child`.
    FORKS.load(Ordering::Relaxed)
}
