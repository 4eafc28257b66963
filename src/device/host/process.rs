//! What the host device must know of its process: whether it is a forked child, and whether the
//! calling thread is inside a stream callback.
//!
//! Both are checked before any lock is touched: in a child a lock may be held by a thread that does
//! not exist there, and from a callback a wait for the callback's own stream would never end.

use crate::base::error::{Code, Error, Result};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How often this process was forked from one that had this library: 0 in the first process.
static FORKS: AtomicU64 = AtomicU64::new(0);
static WATCHED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static CALLBACKS: Cell<u32> = const { Cell::new(0) };
}

extern "C" fn in_child() {
    // Relaxed: the child has one thread, and later ones are started after this.
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Makes forks known to [`forks`]. A second registration would only count a fork twice.
pub(super) fn watch_forks() -> Result<()> {
    if WATCHED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    // SAFETY: `in_child` is a plain function that adds to an atomic, which is allowed after fork.
    let rc = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    if rc != 0 {
        WATCHED.store(false, Ordering::Relaxed);
        return Err(Error::new(Code::System, "pthread_atfork failed: forks would go unseen"));
    }
    Ok(())
}

/// A number that changes in every forked child.
pub(super) fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// `NotPermitted` when the process was forked after `born` (a value of [`forks`]) was read.
pub(super) fn check_fork(born: u64) -> Result<()> {
    if forks() == born {
        return Ok(());
    }
    Err(Error::new(Code::NotPermitted, "the host device was opened before fork; a child cannot use it"))
}

/// Whether the calling thread is inside a callback of any host stream.
pub(super) fn in_callback() -> bool {
    CALLBACKS.get() > 0
}

/// `NotPermitted` inside a callback. For every call that can wait for a stream.
pub(super) fn check_may_block() -> Result<()> {
    if !in_callback() {
        return Ok(());
    }
    Err(Error::new(Code::NotPermitted, "a stream callback must not make a blocking call"))
}

/// Marks the calling thread as inside a callback until it is dropped.
pub(super) struct CallbackMark(());

impl CallbackMark {
    pub(super) fn new() -> Self {
        CALLBACKS.set(CALLBACKS.get() + 1);
        CallbackMark(())
    }
}

impl Drop for CallbackMark {
    fn drop(&mut self) {
        CALLBACKS.set(CALLBACKS.get() - 1);
    }
}

/// Locks, also after a panic of another holder: no state here is left half changed across code that
/// can panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
