//! Forks of the process: a number that changes in every forked child.
//!
//! A child has the parent's memory but none of its threads, and a lock may be held by a thread that does not exist
//! there. So users of this file remember the number that was current when they started, and compare it before they
//! touch any lock.

use super::error::{Code, Error, Result};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The number of forks between the first process and this one, of processes that called [`watch`].
static FORKS: AtomicU64 = AtomicU64::new(0);
static WATCHED: AtomicBool = AtomicBool::new(false);
/// How many threads are [`Busy`], and whether one was when this process, or one before it, was forked.
static BUSY: AtomicU64 = AtomicU64::new(0);
static STUCK: AtomicBool = AtomicBool::new(false);
/// Set by `in_children`; reading it is one atomic load.
static FORGET: OnceLock<fn()> = OnceLock::new();

extern "C" fn in_child() {
    // Little more is allowed here: this is the child of a process that may have several threads.
    // Relaxed: the child has one thread, and later ones are started after this.
    FORKS.fetch_add(1, Ordering::Relaxed);
    if BUSY.load(Ordering::Relaxed) != 0 {
        STUCK.store(true, Ordering::Relaxed);
    }
    if let Some(forget) = FORGET.get() {
        forget();
    }
}

/// The calling thread holds, until this is dropped, what a child that is forked meanwhile would wait for in vain.
pub(crate) struct Busy(());

impl Busy {
    pub(crate) fn new() -> Busy {
        // SeqCst: no lock is seen to be taken by a thread that does not count yet.
        BUSY.fetch_add(1, Ordering::SeqCst);
        Busy(())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // Release: nor by one that does not count any more.
        BUSY.fetch_sub(1, Ordering::Release);
    }
}

/// Whether a thread was [`Busy`] that this process has not.
pub(crate) fn is_stuck() -> bool {
    // Relaxed: see `in_child`.
    STUCK.load(Ordering::Relaxed)
}

/// Registers `forget` to be called in each forked child before the fork returns. It may only store to atomics. Only the
/// first registration counts.
pub(crate) fn in_children(forget: fn()) {
    let _ = FORGET.set(forget);
}

/// From now on a fork changes [`count`]. Earlier forks do not matter: their children inherit nothing and start for
/// themselves.
pub(crate) fn watch() -> Result<()> {
    // If two threads call this at once, only one registers: a second handler would count each fork twice.
    if WATCHED.load(Ordering::Relaxed) || WATCHED.swap(true, Ordering::Relaxed) {
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
