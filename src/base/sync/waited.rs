//! How long the calling thread has waited for locks and for other threads. It is measured only while somebody wants to know
//! it, and only if a lock is not free, so taking a free lock costs nothing more.

use crate::base::clock;
use std::cell::Cell;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// The number of those who want to know.
static WANTED: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// [ticks] No destructor, so it works at thread exit too.
    static WAITED: Cell<u64> = const { Cell::new(0) };
}

/// One more wants to know, or one less. The clock (`clock::start`) has been started.
pub(crate) fn want(wanted: bool) {
    if wanted {
        WANTED.fetch_add(1, Relaxed)
    } else {
        WANTED.fetch_sub(1, Relaxed)
    };
}

/// Runs `wait`, and measures it if somebody wants to know.
#[cold]
#[inline(never)]
pub(crate) fn timed<T>(wait: impl FnOnce() -> T) -> T {
    let since = begin();
    let done = wait();
    end(since);
    done
}

/// [ticks] A wait begins. `None`: nobody wants to know how long it takes.
#[cold]
#[inline(never)]
pub(super) fn begin() -> Option<u64> {
    (WANTED.load(Relaxed) != 0).then(clock::ticks)
}

/// The wait that began then is over.
#[cold]
#[inline(never)]
pub(super) fn end(since: Option<u64>) {
    if let Some(since) = since {
        WAITED.set(WAITED.get().wrapping_add(clock::ticks().saturating_sub(since)));
    }
}

/// [ticks] The time that the calling thread has waited so far. Only differences are meaningful.
#[inline]
pub(crate) fn so_far() -> u64 {
    WAITED.get()
}

/// Takes back what was counted since `so_far`: it is counted elsewhere.
#[inline]
pub(crate) fn back_to(so_far: u64) {
    WAITED.set(so_far);
}
