//! A value that is read all the time and seldom replaced. A reader follows one pointer and takes no lock; it sees the old
//! value or the new one, never a mixture.
//!
//! Replaced values are kept, since a reader may still look at one, and an equal value is kept only once. So this is for
//! values of which there are few.

use super::sync::Lock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value that many read; see the head of this file.
#[derive(Debug)]
pub(crate) struct Published<T> {
    now: AtomicPtr<T>,
    all: Lock<Vec<Box<T>>>, // the pointer leads to them: they must not move
}

impl<T: PartialEq + Sync> Published<T> {
    /// The most values that are kept.
    const MOST: usize = 4096;

    /// Publishes a first value.
    pub(crate) fn new(value: T) -> Self {
        let all = vec![Box::new(value)];
        Published { now: AtomicPtr::new(std::ptr::from_ref(&*all[0]).cast_mut()), all: Lock::new(all) }
    }

    /// The value.
    #[inline(always)]
    pub(crate) fn get(&self) -> &T {
        // Acquire pairs with the Release in `set`: the value is fully initialised.
        let at = self.now.load(Ordering::Acquire);
        // SAFETY: a box in `all`, from which nothing is removed: it lives as long as `self`, and nobody writes to it.
        unsafe { &*at }
    }

    /// Replaces the value. `false`: there were too many different ones, and the value is as before.
    pub(crate) fn set(&self, value: T) -> bool {
        let mut all = self.all.lock();
        let known = all.iter().position(|v| **v == value);
        let index = match known {
            Some(index) => index,
            None if all.len() == Self::MOST => return false,
            None => {
                all.push(Box::new(value));
                all.len() - 1
            }
        };
        let at = std::ptr::from_ref(&*all[index]).cast_mut();
        self.now.store(at, Ordering::Release);
        true
    }
}

impl<T: Default + PartialEq + Sync> Default for Published<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn readers_see_whole_values_while_they_are_replaced() {
        let p = Published::new((0u64, 0u64));
        std::thread::scope(|s| {
            s.spawn(|| {
                for n in 0..20_000u64 {
                    assert!(p.set((n % 9, n % 9 * 7)));
                }
            });
            for _ in 0..20_000 {
                let (a, b) = *p.get();
                assert_eq!(a * 7, b);
            }
        });
        assert_eq!(p.all.lock().len(), 9, "a value that comes back is not kept twice");
    }

    #[test]
    fn the_number_of_values_is_bounded() {
        let p = Published::new(0u64);
        assert!((1..4096).all(|n| p.set(n)));
        assert!(!p.set(4096));
        assert_eq!(*p.get(), 4095);
        assert!(p.set(5));
        assert_eq!(*p.get(), 5);
    }
}
