//! A table of values that are put in once, never move and live as long as the table: reading one is a
//! single load, from any thread, with no lock.

use crate::base::error::Result;
use crate::base::lazy::{LazyArray, Zeroable};
use crate::base::sync::{AtomicPtr, Ordering};

// SAFETY: a null pointer is all zero bits on every target of this library.
unsafe impl<T: Sync> Zeroable for AtomicPtr<T> {}

/// See the module's text.
#[derive(Debug)]
pub struct Slots<T: Sync> {
    slot: LazyArray<AtomicPtr<T>>,
}

impl<T: Sync + Send> Slots<T> {
    /// A table of `len` empty slots.
    pub fn new(len: usize) -> Result<Self> {
        Ok(Slots { slot: LazyArray::new(len)? })
    }

    /// How many slots there are.
    pub fn len(&self) -> usize {
        self.slot.len()
    }

    /// Whether there is no slot at all.
    pub fn is_empty(&self) -> bool {
        self.slot.len() == 0
    }

    /// The value in a slot, if there is one.
    #[inline(always)]
    pub fn get(&self, index: usize) -> Option<&T> {
        // Acquire pairs with the Release exchange in `put`.
        let p = self.slot.get(index)?.load(Ordering::Acquire);
        // SAFETY: a pointer that is not null came from the box in `put`, and is freed only by drop.
        unsafe { p.as_ref() }
    }

    /// Puts a value into an empty slot; gives it back when the slot is taken or does not exist.
    pub fn put(&self, index: usize, value: T) -> std::result::Result<&T, T> {
        let Some(slot) = self.slot.get(index) else { return Err(value) };
        let p = Box::into_raw(Box::new(value));
        match slot.compare_exchange(std::ptr::null_mut(), p, Ordering::AcqRel, Ordering::Relaxed) {
            // SAFETY: the box was just leaked into the slot; only drop frees it.
            Ok(_) => Ok(unsafe { &*p }),
            // SAFETY: nobody has seen the pointer; it is still this call's own.
            Err(_) => Err(*unsafe { Box::from_raw(p) }),
        }
    }
}

impl<T: Sync> Drop for Slots<T> {
    fn drop(&mut self) {
        for s in self.slot.iter().take_while(|s| !s.load(Ordering::Relaxed).is_null()) {
            // SAFETY: `put` leaked this box into the slot, and nobody can read it any more. Slots are
            // filled from the front, which the users of this table do, so the first empty one ends it.
            drop(unsafe { Box::from_raw(s.load(Ordering::Relaxed)) });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn puts_once_and_reads() {
        let s = Slots::new(100).unwrap();
        assert!(s.get(3).is_none());
        assert_eq!(s.put(0, 7u32), Ok(&7));
        assert_eq!(s.put(0, 8u32), Err(8));
        assert_eq!(s.put(100, 9u32), Err(9));
        assert_eq!(s.get(0), Some(&7));
        assert_eq!(s.get(1000), None);
    }
}
