//! How long the calling thread has waited for locks, and for other threads: counted only while somebody wants to know,
//! and only where a lock is not free, so that a free one is not an instruction dearer.

use crate::base::clock;
use std::cell::Cell;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// How many want to know.
static WANTED: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// [ticks] No destructor, so it works at thread exit too.
    static WAITED: Cell<u64> = const { Cell::new(0) };
}

/// One more wants to know, or one less. The clock has started.
pub(crate) fn want(wanted: bool) {
    if wanted {
        WANTED.fetch_add(1, Relaxed)
    } else {
        WANTED.fetch_sub(1, Relaxed)
    };
}

/// Runs what waits.
#[cold]
#[inline(never)]
pub(crate) fn timed<T>(wait: impl FnOnce() -> T) -> T {
    if WANTED.load(Relaxed) == 0 {
        return wait();
    }
    let since = clock::ticks();
    let done = wait();
    WAITED.set(WAITED.get().wrapping_add(clock::ticks().saturating_sub(since)));
    done
}

/// [ticks] that the calling thread has waited so far, of which only differences tell anything.
#[inline]
pub(crate) fn so_far() -> u64 {
    WAITED.get()
}

/// What was waited since then is counted elsewhere.
#[inline]
pub(crate) fn back_to(so_far: u64) {
    WAITED.set(so_far);
}
