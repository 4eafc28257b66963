//! Mutexes with a lock level ([`levels`](super::levels)).
//!
//! They are never poisoned: each user leaves its data consistent before anything that can panic.

#[cfg(not(loom))]
use super::answers;
use super::levels::{HeldLock, Leaf, Level};
use super::waited;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
#[cfg(not(loom))]
use std::sync::TryLockError;

macro_rules! mutexes {
    ($from:path $(, $const:ident)?) => {
        use $from as raw;

        /// A mutex with a level in the lock order.
        #[derive(Debug, Default)]
        pub struct Mutex<T, L: Level = Leaf>(raw::Mutex<T>, PhantomData<L>);

        /// Holds a [`Mutex`] until dropped.
        pub struct MutexGuard<'a, T, L: Level = Leaf> {
            value: raw::MutexGuard<'a, T>,
            held: HeldLock,
            _level: PhantomData<L>,
        }

        impl<T, L: Level> Mutex<T, L> {
            /// An open mutex.
            pub $($const)? fn new(value: T) -> Self {
                Mutex(raw::Mutex::new(value), PhantomData)
            }
        }

        /// Locks the mutex, even if a thread has panicked while holding it.
        #[cfg_attr(debug_assertions, track_caller)]
        pub fn lock<T, L: Level>(m: &Mutex<T, L>) -> MutexGuard<'_, T, L> {
            let held = HeldLock::new::<L>(0);
            // No model asks how long a lock took.
            #[cfg(loom)]
            let value = m.0.lock().unwrap_or_else(PoisonError::into_inner);
            #[cfg(not(loom))]
            let value = match m.0.try_lock() {
                Ok(value) => value,
                Err(TryLockError::Poisoned(e)) => e.into_inner(),
                Err(TryLockError::WouldBlock) => wait_for(&m.0),
            };
            MutexGuard { value, held, _level: PhantomData }
        }

        /// Waits for a mutex that another thread holds.
        #[cfg(not(loom))]
        #[cold]
        fn wait_for<T>(m: &raw::Mutex<T>) -> raw::MutexGuard<'_, T> {
            let since = waited::begin();
            let mut tries = 0;
            let value = loop {
                match m.try_lock() {
                    Ok(value) => break value,
                    Err(TryLockError::Poisoned(e)) => break e.into_inner(),
                    Err(TryLockError::WouldBlock) if answers::before_another_try(&mut tries) => {}
                    Err(TryLockError::WouldBlock) => {
                        let mine = answers::begin_to_sleep();
                        let value = m.lock().unwrap_or_else(PoisonError::into_inner);
                        answers::wake_up(mine);
                        break value;
                    }
                }
            };
            waited::end(since);
            value
        }

        impl<T, L: Level> Deref for MutexGuard<'_, T, L> {
            type Target = T;
            fn deref(&self) -> &T {
                &self.value
            }
        }

        impl<T, L: Level> DerefMut for MutexGuard<'_, T, L> {
            fn deref_mut(&mut self) -> &mut T {
                &mut self.value
            }
        }

        /// A condition variable: a thread that waits releases the [`Mutex`] meanwhile.
        #[derive(Debug, Default)]
        pub struct Condvar(raw::Condvar);

        impl Condvar {
            /// Nobody waits.
            pub $($const)? fn new() -> Self {
                Condvar(raw::Condvar::new())
            }

            /// Waits until notified; may return spuriously.
            pub fn wait<'a, T, L: Level>(
                &self,
                guard: MutexGuard<'a, T, L>,
            ) -> MutexGuard<'a, T, L> {
                let MutexGuard { value, held, _level } = guard;
                let value = waited::timed(|| self.0.wait(value).unwrap_or_else(PoisonError::into_inner));
                MutexGuard { value, held, _level }
            }

            /// Wakes one waiting thread.
            pub fn notify_one(&self) {
                self.0.notify_one();
            }

            /// Wakes all waiting threads.
            pub fn notify_all(&self) {
                self.0.notify_all();
            }
        }
    };
}

/// For code that models run: loom's under `--cfg loom`.
#[cfg(loom)]
pub(super) mod modelled {
    use super::*;
    mutexes!(loom::sync);
}

/// The system's mutexes, which a `static` can hold.
#[cfg_attr(loom, allow(unreachable_pub, reason = "only the models' ones are public then"))]
pub(super) mod system {
    use super::*;
    mutexes!(std::sync, const);

    /// Locks the mutex if nobody holds it.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn try_lock<T, L: Level>(m: &Mutex<T, L>) -> Option<MutexGuard<'_, T, L>> {
        let value = match m.0.try_lock() {
            Ok(value) => value,
            Err(std::sync::TryLockError::Poisoned(e)) => e.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard { value, held: HeldLock::new::<L>(0), _level: PhantomData })
    }
}
