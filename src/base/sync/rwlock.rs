//! A lock with a level ([`levels`](super::levels)) that several readers may hold at once. It is the system's in every
//! configuration: no model runs the code that uses it. It is never poisoned, as the mutexes are not.
//!
//! The system's lock forgets a writer as soon as it wakes it: a reader that comes again before that thread runs is first, and
//! where readers hold the lock most of the time, the writer may wait for seconds. So the writers that wait are counted
//! beside it.

use super::levels::{HeldLock, Leaf, Level};
use super::waited;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{PoisonError, TryLockError};

/// A lock for many readers or one writer, with a level in the lock order.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T, L: Level = Leaf> {
    lock: std::sync::RwLock<T>,
    /// Writers that wait.
    waiting: AtomicU32,
    _level: PhantomData<L>,
}

/// Reads what is in a [`RwLock`] until dropped.
pub(crate) struct ReadGuard<'a, T> {
    value: std::sync::RwLockReadGuard<'a, T>,
    _held: HeldLock,
}

/// Changes what is in a [`RwLock`] until dropped.
pub(crate) struct WriteGuard<'a, T> {
    value: std::sync::RwLockWriteGuard<'a, T>,
    _held: HeldLock,
}

impl<T, L: Level> RwLock<T, L> {
    /// `None` while somebody writes, or wants to.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn try_read(&self) -> Option<ReadGuard<'_, T>> {
        // Relaxed: who misses a writer that has just come is one more reader.
        if self.waiting.load(Relaxed) != 0 { None } else { self.try_read_first() }
    }

    /// The same, but a writer that is about to wake up does not matter.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn try_read_first(&self) -> Option<ReadGuard<'_, T>> {
        let _held = HeldLock::new::<L>(0);
        let value = match self.lock.try_read() {
            Ok(value) => value,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(ReadGuard { value, _held })
    }

    /// Waits for readers and other writers.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn write(&self) -> WriteGuard<'_, T> {
        let _held = HeldLock::new::<L>(0);
        let value = match self.lock.try_write() {
            Ok(value) => value,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.waiting.fetch_add(1, Relaxed);
                let value = waited::timed(|| self.lock.write().unwrap_or_else(PoisonError::into_inner));
                self.waiting.fetch_sub(1, Relaxed);
                value
            }
        };
        WriteGuard { value, _held }
    }
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
    use std::time::{Duration, Instant};

    /// Threads hold the lock nearly all of the time. They take it again while a writer waits only if it comes at that moment.
    #[test]
    fn a_writer_that_waits_comes_before_those_that_read_again() {
        const ROUNDS: u64 = 200;
        let lock = RwLock::<u64>::default();
        let (over, wanted, reads) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|s| {
            for _ in 0..6 {
                s.spawn(|| {
                    while !over.load(SeqCst) {
                        let Some(read) = lock.try_read() else {
                            std::thread::yield_now();
                            continue;
                        };
                        reads.fetch_add(u64::from(wanted.load(SeqCst)), SeqCst);
                        let until = Instant::now() + Duration::from_micros(20);
                        while Instant::now() < until {}
                        drop(read);
                    }
                });
            }
            for _ in 0..ROUNDS {
                std::thread::sleep(Duration::from_micros(300));
                wanted.store(true, SeqCst);
                *lock.write() += 1;
                wanted.store(false, SeqCst);
            }
            over.store(true, SeqCst);
        });
        let reads = reads.into_inner();
        assert!(reads <= ROUNDS, "{reads} in {ROUNDS} waits");
    }
}
