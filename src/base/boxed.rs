//! Values on the heap that say when there is no room, for what must not end the process then.

use std::alloc::{Layout, alloc};
use std::hint::black_box;
use std::ptr::NonNull;
use std::sync::Arc;

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

/// Whether the heap has room for so many bytes: for those who go on with what cannot say that there is none, such as an `Arc`.
#[inline(never)]
pub(crate) fn has_room(bytes: usize) -> bool {
    let mut room = Vec::<u8>::new();
    let is_there = room.try_reserve_exact(bytes).is_ok();
    // Else a compiler may leave out an allocation that nobody uses, and then there is always room.
    black_box(room.as_ptr());
    is_there
}

/// Adds an element to a list; `false` if the heap has no room for it.
pub(crate) fn try_push<T>(list: &mut Vec<T>, element: T) -> bool {
    let has_room = list.try_reserve(1).is_ok();
    if has_room {
        list.push(element);
    }
    has_room
}

/// A copy of the text; an empty one if the heap has no room for it.
pub(crate) fn text_if_it_fits(text: &str) -> String {
    let mut copy = String::new();
    if copy.try_reserve_exact(text.len()).is_ok() {
        copy.push_str(text);
    }
    copy
}

/// A shared value; `None` if the heap has no room for it.
pub(crate) fn try_arc<T>(value: T) -> Option<Arc<T>> {
    has_room(size_of::<T>() + 2 * size_of::<usize>()).then(|| Arc::new(value))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_boxed() {
        assert_eq!(try_box([7u64; 9]).as_deref(), Some(&[7; 9]));
    }
}
