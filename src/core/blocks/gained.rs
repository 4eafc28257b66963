//! How much memory each thread has made available, so that a step of a search can report what it brought.

use std::cell::Cell;

thread_local! {
    /// [B] that this thread has made available so far, to anyone. No destructor, so it works at thread exit too.
    static GAINED: Cell<u64> = const { Cell::new(0) };
}

/// Notes that the calling thread has taken memory from the device or from another heap, or has brought freed blocks back.
pub(crate) fn gained(bytes: u64) {
    GAINED.with(|g| g.set(g.get().wrapping_add(bytes)));
}

/// [B] that the calling thread has made available so far. It may wrap.
pub(crate) fn gained_so_far() -> u64 {
    GAINED.with(Cell::get)
}
