//! The fast paths that threads have used lately, by thread and name.
//!
//! A word of thread-local storage would save a few instructions. But where reading it is quick (the initial-exec model of
//! ELF), *all* thread-local storage of the library must fit into what the C library keeps for libraries that are loaded
//! late; where it does not fit, the library cannot be loaded at all.

use super::parts::{Name, Seat};
use super::seat::FastPath;
use crate::base::sync::thread_token;
use std::sync::atomic::{AtomicPtr, Ordering};

/// log2 of the number of slots.
const BITS: u32 = 8;

/// A table of fast paths. Where two share a slot, the one that was used last is found; the other is entered anew.
#[derive(Debug)]
pub(crate) struct FastPaths<T: 'static, W: 'static> {
    slots: [AtomicPtr<Seat<T, W>>; 1 << BITS],
    none: &'static Seat<T, W>,
}

impl<T, W> FastPaths<T, W> {
    /// A table that leads to nobody's seat only.
    pub(crate) const fn new(none: &'static Seat<T, W>) -> Self {
        let mut slots = [const { AtomicPtr::new(std::ptr::null_mut()) }; 1 << BITS];
        let mut slot = 0;
        while slot < slots.len() {
            slots[slot] = AtomicPtr::new(std::ptr::from_ref(none).cast_mut());
            slot += 1;
        }
        FastPaths { slots, none }
    }

    #[inline(always)]
    fn slot(&self, name: Name) -> &AtomicPtr<Seat<T, W>> {
        // What distinguishes threads, pools and streams is in the low half of these.
        let all = thread_token().wrapping_add(name[0]).wrapping_add(name[1]) as u32;
        &self.slots[(all.wrapping_mul(0x9E37_79B9) >> (u32::BITS - BITS)) as usize]
    }

    /// The fast path in the slot of the calling thread and this name. It may be another thread's, or have another name.
    #[inline(always)]
    pub(crate) fn find(&self, name: Name) -> FastPath<'static, T, W> {
        // Acquire pairs with the Release in `put`: the seat is fully initialised.
        let at = self.slot(name).load(Ordering::Acquire);
        // SAFETY: `new` and `put` have stored pointers to what lives for ever, and nothing else is stored here.
        FastPath::of(unsafe { &*at })
    }

    /// Puts the calling thread's fast path, which is open under this name, into the table.
    pub(crate) fn put(&self, name: Name, path: FastPath<'static, T, W>) {
        self.slot(name).store(std::ptr::from_ref(path.seat()).cast_mut(), Ordering::Release);
    }

    /// Empties the table.
    pub(crate) fn clear(&self) {
        let none = std::ptr::from_ref(self.none).cast_mut();
        self.slots.iter().for_each(|s| s.store(none, Ordering::Release));
    }
}
