//! What the host device must know about its process: whether it is a forked child, and whether the calling thread is
//! inside a stream callback.
//!
//! Both are checked before any lock is touched: in a child a lock may be held by a thread that does not exist there,
//! and a callback that waits for its own stream would wait forever.

use crate::base::error::{Code, Error, Result};
use crate::base::fork;
use std::cell::Cell;

thread_local! {
    static CALLBACKS: Cell<u32> = const { Cell::new(0) };
}

/// `NotPermitted` if the process was forked since `born` (a value of [`fork::count`]) was read.
pub(super) fn check_fork(born: u64) -> Result<()> {
    if fork::count() == born {
        return Ok(());
    }
    Err(Error::new(Code::NotPermitted, "the host device was opened before fork; a child cannot use it"))
}

/// Whether the calling thread is inside a callback of any host stream.
pub(super) fn in_callback() -> bool {
    CALLBACKS.get() > 0
}

/// `NotPermitted` inside a callback. Every call that can wait for a stream checks this.
pub(super) fn check_may_block() -> Result<()> {
    if !in_callback() {
        return Ok(());
    }
    Err(Error::new(Code::NotPermitted, "a stream callback must not make a blocking call"))
}

/// Marks the calling thread as being inside a callback, until dropped.
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
