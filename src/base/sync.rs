//! The only door to atomics and locks.
//!
//! [`Lock`] is a spin lock for critical sections of tens of nanoseconds: uncontended it costs one
//! atomic exchange and one store. Spinning is bounded; a waiter then yields its time slice, and
//! after that sleeps, so that threads that outnumber the cores cannot make it collapse.
//! Under `--cfg loom` the atomics come from loom, so that the models run the real code.

use std::ops::{Deref, DerefMut};

#[cfg(loom)]
pub use loom::sync::{Mutex, MutexGuard};
#[cfg(loom)]
pub use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};
#[cfg(not(loom))]
pub use std::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub use std::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

/// Atomics that a `static` or a constant can hold, which those of loom cannot: no model looks into them.
pub mod static_atomics {
    pub use std::sync::atomic::AtomicPtr;
}

/// A value on cache lines of its own. Two lines, since processors fetch lines in pairs.
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

/// A number that is always read and written by itself. A compiler may join neighbouring plain fields into one
/// wide access; a processor that just stored them one by one then stalls for some 15 cycles.
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
    /// Sets it. Not atomic with a `get`: whoever writes holds the lock that it lies under.
    #[inline(always)]
    pub fn set(&self, v: i64) {
        self.0.store(v, Ordering::Relaxed);
    }
    /// Adds, and gives the new value; not atomic, see `set`.
    #[inline(always)]
    pub fn add(&self, v: i64) -> i64 {
        let n = self.get() + v;
        self.set(n);
        n
    }
}

/// A spin lock around a value. Not fair, not reentrant, not poisoned by a panic.
#[derive(Debug)]
pub struct Lock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is only reached through a `LockGuard`, of which one exists at a time (`taken`).
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: the lock owns the value; moving it moves the value.
unsafe impl<T: Send> Send for Lock<T> {}

/// Holds a [`Lock`] until dropped.
#[derive(Debug)]
pub struct LockGuard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Lock<T> {
    /// An open lock.
    pub fn new(value: T) -> Self {
        Lock { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Takes the lock, waiting for it if need be.
    #[inline(always)]
    pub fn lock(&self) -> LockGuard<'_, T> {
        if set_flag(&self.taken) {
            self.wait();
        }
        LockGuard { lock: self }
    }

    /// Takes the lock if it is open.
    #[inline]
    pub fn try_lock(&self) -> Option<LockGuard<'_, T>> {
        if self.taken.load(Ordering::Relaxed) || set_flag(&self.taken) {
            return None;
        }
        Some(LockGuard { lock: self })
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) {
        let mut round = 0u32;
        loop {
            // Read before the exchange, so that waiters share the line instead of stealing it.
            if !self.taken.load(Ordering::Relaxed) && !set_flag(&self.taken) {
                return;
            }
            pause(round);
            round = round.saturating_add(1);
        }
    }

    /// The value, without locking, when nobody else can have it.
    pub fn get_mut(&mut self) -> &mut T {
        #[cfg(not(loom))]
        return self.value.get_mut();
        #[cfg(loom)]
        // SAFETY: `&mut self` proves that no guard exists.
        return self.value.with_mut(|p| unsafe { &mut *p });
    }
}

/// Sets a flag that says that a lock is taken; whether it was set before. Acquire: what was written before
/// the flag was cleared, with Release, is visible.
#[inline(always)]
pub(crate) fn set_flag(flag: &AtomicBool) -> bool {
    #[cfg(not(loom))]
    return flag.swap(true, Ordering::Acquire);
    // Loom takes a store that nobody has seen yet for one that may as well come before an exchange that it did
    // not precede; a failed exchange would then undo the clearing. One that writes nothing when it fails is the
    // same lock.
    #[cfg(loom)]
    flag.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err()
}

/// One step of waiting for another thread: a spin hint at first, then the time slice, then a nap.
pub fn pause(round: u32) {
    #[cfg(loom)]
    {
        let _ = round;
        loom::thread::yield_now();
    }
    #[cfg(not(loom))]
    match round {
        0..=99 => std::hint::spin_loop(),
        100..=199 => std::thread::yield_now(),
        _ => std::thread::sleep(std::time::Duration::from_micros(50)),
    }
}

impl<T> Deref for LockGuard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        #[cfg(not(loom))]
        let p = self.lock.value.get();
        #[cfg(loom)]
        let p = self.lock.value.with(|p| p.cast_mut());
        // SAFETY: this guard holds the lock, so nobody else has a reference to the value.
        unsafe { &*p }
    }
}

impl<T> DerefMut for LockGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        #[cfg(not(loom))]
        let p = self.lock.value.get();
        #[cfg(loom)]
        let p = self.lock.value.with_mut(|p| p);
        // SAFETY: this guard holds the lock, and `&mut self` makes the reference the only one.
        unsafe { &mut *p }
    }
}

impl<T> Drop for LockGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release pairs with the Acquire exchange in `lock` and `try_lock`.
        self.lock.taken.store(false, Ordering::Release);
    }
}

/// A number that tells the calling thread from every other live thread. Never 0.
#[inline(always)]
pub fn thread_token() -> u64 {
    #[cfg(all(target_arch = "x86_64", target_os = "linux", not(loom), not(miri)))]
    {
        let token: u64;
        // SAFETY: on x86-64 Linux the first word behind %fs is the thread control block's own
        // address (System V ABI, thread-local storage, variant II); reading it has no effect.
        unsafe {
            std::arch::asm!("mov {}, fs:0", out(reg) token, options(nostack, preserves_flags, pure, readonly));
        }
        token
    }
    #[cfg(loom)]
    {
        // The threads of a model are coroutines of one thread of the system, and only loom tells them apart.
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        loom::thread_local!(static TOKEN: u64 = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        TOKEN.with(|t| *t)
    }
    #[cfg(not(any(loom, all(target_arch = "x86_64", target_os = "linux", not(miri)))))]
    {
        std::thread_local!(static MARK: u8 = const { 0 });
        MARK.with(|m| std::ptr::from_ref(m) as usize as u64)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn lock_excludes() {
        let l = Lock::new(0u64);
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| {
                    for _ in 0..20_000 {
                        let mut g = l.lock();
                        let v = *g;
                        std::hint::black_box(v);
                        *g = v + 1;
                    }
                });
            }
        });
        assert_eq!(*l.lock(), 160_000);
    }

    #[test]
    fn try_lock_fails_while_held() {
        let l = Lock::new(());
        let g = l.lock();
        assert!(l.try_lock().is_none());
        drop(g);
        assert!(l.try_lock().is_some());
    }

    #[test]
    fn tokens_differ_between_live_threads() {
        let here = thread_token();
        let there = std::thread::scope(|s| s.spawn(thread_token).join().unwrap());
        assert_ne!(here, 0);
        assert_ne!(here, there);
        assert_eq!(here, thread_token());
    }
}
