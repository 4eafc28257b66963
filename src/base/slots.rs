//! Values that are made once, never move, and live as long as the process: reading one is a single load, from any
//! thread, with no lock. They are leaked on purpose; users reuse them and make only as many as they need at one time.

use crate::base::error::Result;
use crate::base::lazy::{LazyArray, Zeroable};
use crate::base::sync::{Ordering, static_atomics::AtomicPtr};

// SAFETY: a null pointer is all zero bits on every target of this library.
unsafe impl<T: Sync> Zeroable for AtomicPtr<T> {
    #[cfg(loom)]
    fn zero() -> Self {
        AtomicPtr::default()
    }
}

/// A reference that may be absent and can be set from any thread.
#[derive(Debug)]
pub struct AtomicRef<T: Sync + 'static>(AtomicPtr<T>);

impl<T: Sync + 'static> AtomicRef<T> {
    /// No reference yet.
    pub const fn none() -> Self {
        AtomicRef(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// A reference that is set from the start.
    pub const fn to(it: &'static T) -> Self {
        AtomicRef(AtomicPtr::new(std::ptr::from_ref(it).cast_mut()))
    }

    /// The reference, if there is one.
    #[inline(always)]
    pub fn get(&self) -> Option<&'static T> {
        // Acquire pairs with the Release store in `set`: the referenced value is fully initialised.
        let p = self.0.load(Ordering::Acquire);
        // SAFETY: only `set` stores a pointer that is not null, and it came from a `&'static T`.
        unsafe { p.as_ref() }
    }

    /// Sets or clears it.
    pub fn set(&self, to: Option<&'static T>) {
        let p = to.map_or(std::ptr::null_mut(), |t| std::ptr::from_ref(t).cast_mut());
        self.0.store(p, Ordering::Release);
    }
}

/// A node in the chain of all leaked values.
struct Leaked {
    _value: *const (),
    next: *mut Leaked,
}

/// The chain of all values in all tables. Only leak checkers (LeakSanitizer) read it: they look for pointers in static
/// data and on the heap, but not in the mappings that hold the tables.
static LEAKED: AtomicPtr<Leaked> = AtomicPtr::new(std::ptr::null_mut());

/// Adds a value that is never freed to the chain.
fn keep_reachable(value: *const ()) {
    let node = Box::into_raw(Box::new(Leaked { _value: value, next: std::ptr::null_mut() }));
    let mut head = LEAKED.load(Ordering::Relaxed);
    loop {
        // SAFETY: the box was just leaked, and nobody else sees it before the exchange.
        unsafe { (*node).next = head };
        // Release: a reader of the chain finds complete nodes.
        match LEAKED.compare_exchange_weak(head, node, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

/// A table of `N` slots, each of which is filled at most once.
#[derive(Debug)]
pub struct Slots<T: Sync + 'static, const N: usize> {
    slot: LazyArray<AtomicPtr<T>>,
}

impl<T: Sync + Send + 'static, const N: usize> Slots<T, N> {
    /// A table of empty slots.
    pub fn new() -> Result<Self> {
        Ok(Slots { slot: LazyArray::new(N)? })
    }

    /// How many slots there are.
    pub const fn count(&self) -> usize {
        N
    }

    /// A slot, if there is one of that number. The number of slots is a constant, so that a number which is known to be
    /// smaller needs no check.
    #[inline(always)]
    fn at(&self, index: usize) -> Option<&AtomicPtr<T>> {
        #[cfg(not(loom))]
        {
            // SAFETY: `new` has made `N` slots.
            (index < N).then(|| unsafe { self.slot.get_unchecked(index) })
        }
        #[cfg(loom)]
        self.slot.get(index)
    }

    /// The value in a slot, if there is one.
    #[inline(always)]
    pub fn get(&self, index: usize) -> Option<&'static T> {
        // Acquire pairs with the Release exchange in `put`.
        let p = self.at(index)?.load(Ordering::Acquire);
        // SAFETY: a pointer that is not null came from the box that `put` leaked.
        unsafe { p.as_ref() }
    }

    /// Puts a value into an empty slot; returns the value if the slot is taken or does not exist.
    pub fn put(&self, index: usize, value: T) -> std::result::Result<&'static T, T> {
        let Some(slot) = self.at(index) else { return Err(value) };
        let p = Box::into_raw(Box::new(value));
        match slot.compare_exchange(std::ptr::null_mut(), p, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => {
                keep_reachable(p.cast());
                // SAFETY: the box was just leaked into the slot; nobody frees it.
                Ok(unsafe { &*p })
            }
            // SAFETY: nobody has seen the pointer; it is still this call's own.
            Err(_) => Err(*unsafe { Box::from_raw(p) }),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn puts_once_and_reads() {
        let s = Slots::<u32, 100>::new().unwrap();
        assert!(s.get(3).is_none());
        assert_eq!(s.put(0, 7u32), Ok(&7));
        assert_eq!(s.put(0, 8u32), Err(8));
        assert_eq!(s.put(100, 9u32), Err(9));
        assert_eq!(s.get(0), Some(&7));
        assert_eq!(s.get(1000), None);
    }
}
