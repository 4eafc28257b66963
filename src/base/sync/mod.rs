//! The only door to atomics and locks.
//!
//! Under `--cfg loom` the atomics come from loom, and so do the mutexes of the code that the models run: the models run
//! the real code.

use std::ops::Deref;

pub mod answers;
pub mod levels;
mod mutex;
mod rwlock;
mod spin;
mod token;
pub(crate) mod waited;

#[cfg(loom)]
pub use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};
#[cfg(loom)]
pub use mutex::modelled::{Condvar, Mutex, MutexGuard, lock};
#[cfg(not(loom))]
pub use mutex::system::{Condvar, Mutex, MutexGuard, lock};
pub use spin::{Lock, LockGuard};
#[cfg(not(loom))]
pub use std::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};
pub use token::thread_token;

/// Locks of the system in every configuration: for code that no model runs, and for statics.
pub(crate) mod system {
    pub(crate) use super::mutex::system::{Condvar, Mutex, MutexGuard, lock, try_lock};
    pub(crate) use super::rwlock::{ReadGuard, RwLock};
}

/// Atomics that a `static` or a constant can hold. Loom's cannot be held there; no model looks into these.
pub mod static_atomics {
    pub use std::sync::atomic::AtomicPtr;
}

/// A value on cache lines of its own: two lines, since processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Padded<T>(pub T);

impl<T> Deref for Padded<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// A number that is always read and written on its own. A compiler may join neighbouring plain fields into one wide
/// access; a processor that has just stored them one by one then stalls for some 15 cycles.
#[derive(Debug, Default)]
pub struct Word(AtomicI64);

impl Word {
    /// A number.
    pub fn new(v: i64) -> Self {
        Word(AtomicI64::new(v))
    }
    /// Its value.
    #[inline(always)]
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
    /// Sets it. Not atomic together with a `get`: a writer holds the lock that guards the number.
    #[inline(always)]
    pub fn set(&self, v: i64) {
        self.0.store(v, Ordering::Relaxed);
    }
    /// Adds `v`. Wraps on overflow. Not atomic, see `set`.
    #[inline(always)]
    pub fn add(&self, v: i64) {
        self.set(self.get().wrapping_add(v));
    }
    /// Takes `v` away; whether it is negative then. Wraps on overflow.
    #[inline(always)]
    pub fn take(&mut self, v: i64) -> bool {
        // Through the plain number: a compiler makes one instruction of this, and tests the result with the same.
        #[cfg(not(loom))]
        {
            let n = self.0.get_mut();
            *n = n.wrapping_sub(v);
            *n < 0
        }
        #[cfg(loom)]
        {
            self.add(v.wrapping_neg());
            self.get() < 0
        }
    }
}

/// Sets a flag that means that a lock is taken; returns whether it was set before. Acquire: whatever was written before
/// the flag was last cleared, with Release, is visible.
#[inline(always)]
pub(crate) fn set_flag(flag: &AtomicBool) -> bool {
    #[cfg(not(loom))]
    return flag.swap(true, Ordering::Acquire);
    // Loom lets a swap be ordered before a store that no thread has seen yet, even where it came later; a failed swap
    // would then undo the clearing of the flag. An exchange that writes nothing when it fails makes the same lock.
    #[cfg(loom)]
    flag.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err()
}

/// One step of waiting for another thread: at first a spin hint, then giving up the time slice, then a short sleep.
pub fn pause(round: u32) {
    #[cfg(loom)]
    {
        let _ = round;
        loom::thread::yield_now();
    }
    #[cfg(not(loom))]
    match round {
        0..=99 => std::hint::spin_loop(),
        100..=199 => answers::asleep(&mut std::thread::yield_now),
        _ => answers::asleep(&mut || std::thread::sleep(std::time::Duration::from_micros(50))),
    }
}

/// A short sleep of a thread that has looked at what others use more often than they can bear.
pub fn give_way() {
    pause(u32::MAX);
}
