//! Values on the heap that say when there is no room, for what must not end the process then.

use std::alloc::{Layout, alloc};
use std::ptr::NonNull;

/// The value on the heap; `None` if that has no room.
pub(crate) fn try_box<T>(value: T) -> Option<Box<T>> {
    const { assert!(size_of::<T>() > 0) };
    // SAFETY: the layout has a size that is not 0.
    let at = NonNull::new(unsafe { alloc(Layout::new::<T>()) })?.cast::<T>();
    // SAFETY: it was just allocated for one `T`.
    unsafe { at.write(value) };
    // SAFETY: it was allocated with the layout of a box of `T`, has a value, and nobody else has it.
    Some(unsafe { Box::from_raw(at.as_ptr()) })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_boxed() {
        assert_eq!(try_box([7u64; 9]).as_deref(), Some(&[7; 9]));
    }
}
