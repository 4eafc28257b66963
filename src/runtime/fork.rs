//! What a forked child may do: nothing but get a status.
//!
//! The child has the parent's memory but none of its threads, and locks may be held by threads that
//! no longer exist. So the child sets one flag, and every entry looks at it before anything else.

use crate::base::error::{Code, Error, Result};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

type Handler = Option<unsafe extern "C" fn()>;

// The `libc` crate leaves this one out on glibc.
unsafe extern "C" {
    fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> libc::c_int;
}

static FORKED: AtomicBool = AtomicBool::new(false);
static WATCH: Once = Once::new();

extern "C" fn child() {
    // Only a store: the child of a threaded process may do little else here.
    FORKED.store(true, Ordering::Relaxed);
}

/// From now on a fork is noticed. A fork before the first use needs no notice: there is nothing to
/// inherit, and the child starts for itself.
pub(crate) fn watch() {
    WATCH.call_once(|| {
        // SAFETY: `child` is a plain function that lives as long as this library is loaded; the C
        // library drops the registration when the library is unloaded.
        let _ = unsafe { pthread_atfork(None, None, Some(child)) };
    });
}

/// `NotPermitted` in a child of a process that had used the library.
#[inline]
pub(crate) fn check() -> Result<()> {
    // Relaxed: the child has one thread, the one that stored.
    if FORKED.load(Ordering::Relaxed) {
        return Err(Error::new(Code::NotPermitted, "a forked child cannot use the parent's devices"));
    }
    Ok(())
}
