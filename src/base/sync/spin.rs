//! A spin lock for critical sections of tens of nanoseconds: uncontended it costs one atomic exchange and one store.
//!
//! A waiter spins for a moment, then yields its time slice, and sleeps briefly now and then, so that the lock does not
//! collapse when threads outnumber the cores or have different priorities.

#[cfg(not(loom))]
use super::answers::{answer, asleep};
use super::levels::{HeldLock, Leaf, Level};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

#[cfg(loom)]
use loom::sync::{Mutex as Inner, MutexGuard as InnerGuard};

#[cfg(not(loom))]
type Inner<T> = ::spin::mutex::SpinMutex<T, Pause>;
#[cfg(not(loom))]
type InnerGuard<'a, T> = ::spin::mutex::SpinMutexGuard<'a, T, Pause>;

/// What a waiter does between two attempts.
#[cfg(not(loom))]
#[derive(Debug)]
struct Pause;

#[cfg(not(loom))]
impl ::spin::RelaxStrategy for Pause {
    fn relax() {
        use std::cell::Cell;
        thread_local!(static ROUNDS: Cell<u32> = const { Cell::new(0) });
        const HINTS: u32 = 64;
        const NAP_EVERY: u32 = 256;
        const NAP: std::time::Duration = std::time::Duration::from_micros(50);
        for _ in 0..HINTS / 8 {
            answer();
            (0..8).for_each(|_| std::hint::spin_loop());
        }
        let round = ROUNDS.with(|r| r.replace(r.get().wrapping_add(1)));
        if round % NAP_EVERY == NAP_EVERY - 1 {
            asleep(&mut || std::thread::sleep(NAP));
        } else {
            asleep(&mut std::thread::yield_now);
        }
    }
}

/// A spin lock around a value, with a level in the lock order. Not fair, not reentrant, not poisoned by a panic.
#[derive(Debug)]
pub struct Lock<T, L: Level = Leaf>(Inner<T>, PhantomData<L>);

/// Holds a [`Lock`] until dropped.
pub struct LockGuard<'a, T, L: Level = Leaf> {
    value: InnerGuard<'a, T>,
    _held: HeldLock,
    _level: PhantomData<L>,
}

impl<T, L: Level> Lock<T, L> {
    /// An open lock.
    pub fn new(value: T) -> Self {
        Lock(Inner::new(value), PhantomData)
    }

    /// Takes the lock, waiting for it if need be.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn lock(&self) -> LockGuard<'_, T, L> {
        let _held = HeldLock::new::<L>(0);
        #[cfg(not(loom))]
        let value = match self.0.try_lock() {
            Some(value) => value,
            None => super::waited::timed(|| self.0.lock()),
        };
        #[cfg(loom)]
        let value = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        LockGuard { value, _held, _level: PhantomData }
    }
}

impl<T, L: Level> Deref for LockGuard<'_, T, L> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T, L: Level> DerefMut for LockGuard<'_, T, L> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn lock_excludes() {
        let l = Lock::<u64>::new(0);
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
}
