//! One pointer to an error: to one of its own on the heap, or to one that is always there.

use super::inner::{Growing, Inner, speechless};
use super::spare;
use crate::base::boxed::try_box;
use std::fmt::{self, Write};
use std::ptr::NonNull;

/// In the address: the error is always there.
const FIXED: usize = 1;

const _: () = assert!(align_of::<Inner>() > FIXED);

/// See the file's head.
pub(super) struct Held(NonNull<Inner>);

// SAFETY: it owns what it points to, or that is a static; both may be read and dropped on any thread.
unsafe impl Send for Held where Inner: Send {}
// SAFETY: as above.
unsafe impl Sync for Held where Inner: Sync {}
impl std::panic::UnwindSafe for Held {}
impl std::panic::RefUnwindSafe for Held {}

impl Held {
    /// On the heap; `None` if that has no room.
    pub(super) fn new(inner: Inner) -> Option<Held> {
        try_box(inner).map(Held::from)
    }

    /// One that is always there.
    pub(super) fn fixed(inner: &'static Inner) -> Held {
        Held(NonNull::from(inner).map_addr(|a| a | FIXED))
    }

    fn is_fixed(&self) -> bool {
        self.0.addr().get() & FIXED != 0
    }

    fn at(&self) -> *mut Inner {
        self.0.as_ptr().map_addr(|a| a & !FIXED)
    }

    pub(super) fn get(&self) -> &Inner {
        // SAFETY: made by `new`, and alive as long as this, or by `fixed` from a static.
        unsafe { &*self.at() }
    }

    /// `None` for one that is always there.
    pub(super) fn get_mut(&mut self) -> Option<&mut Inner> {
        // SAFETY: made by `new`; nobody else has it.
        (!self.is_fixed()).then(|| unsafe { &mut *self.at() })
    }

    /// Gives the error up, which is on the heap.
    fn take(&mut self) -> Box<Inner> {
        // SAFETY: made by `new`, with the layout of a box; the caller does not use it again.
        unsafe { Box::from_raw(self.at()) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.is_fixed() {
            return;
        }
        let inner = self.take();
        match inner.spare {
            true => spare::give_back(inner),
            false => drop(inner),
        }
    }
}

impl From<Box<Inner>> for Held {
    fn from(inner: Box<Inner>) -> Held {
        Held(NonNull::from(Box::leak(inner)))
    }
}

impl Clone for Held {
    fn clone(&self) -> Held {
        let it = self.get();
        let mut text = Growing::default();
        let _ = text.write_str(&it.message); // what has no room is left out
        let copy = || Inner { detail: it.detail.clone(), ..Inner::new(it.code, text.0.into()) };
        let fixed = || Held::fixed(speechless(it.code));
        if self.is_fixed() { Held(self.0) } else { Held::new(copy()).unwrap_or_else(fixed) }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Held) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Held {}
