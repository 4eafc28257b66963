//! A lock with a level ([`levels`](super::levels)) that several readers may hold at once. It is the system's in every
//! configuration: no model runs the code that uses it. It is never poisoned, as the mutexes are not.

use super::levels::{HeldLock, Leaf, Level};
use super::waited;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};

/// A lock for many readers or one writer, with a level in the lock order.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T, L: Level = Leaf>(std::sync::RwLock<T>, PhantomData<L>);

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
    /// Waits for a writer, if there is one.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn read(&self) -> ReadGuard<'_, T> {
        let _held = HeldLock::new::<L>(0);
        let value = match self.0.try_read() {
            Ok(value) => value,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => {
                waited::timed(|| self.0.read().unwrap_or_else(PoisonError::into_inner))
            }
        };
        ReadGuard { value, _held }
    }

    /// `None` while somebody writes, or wants to.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn try_read(&self) -> Option<ReadGuard<'_, T>> {
        let _held = HeldLock::new::<L>(0);
        let value = match self.0.try_read() {
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
        let value = match self.0.try_write() {
            Ok(value) => value,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => {
                waited::timed(|| self.0.write().unwrap_or_else(PoisonError::into_inner))
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
