//! Whether the calling thread is in a callback that is told of memory which comes or goes. The allocator is in the
//! middle of a change then and holds its lock: a call that needs that lock is refused here, before it waits for
//! itself.

use super::error::{Code, Error, Result};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// No destructor, so it works at thread exit too.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// `NotPermitted` inside such a callback.
#[inline]
pub(crate) fn check() -> Result<()> {
    if INSIDE.with(Cell::get) { inside() } else { Ok(()) }
}

#[cold]
#[inline(never)]
fn inside() -> Result<()> {
    Err(Error::new(Code::NotPermitted, "a segment callback must not call the library"))
}

/// Runs a callback with the thread marked as inside. A panic in it ends there.
pub(crate) fn call(callback: impl FnOnce()) {
    let outer = INSIDE.with(|i| i.replace(true));
    let _ = catch_unwind(AssertUnwindSafe(callback));
    INSIDE.with(|i| i.set(outer));
}
