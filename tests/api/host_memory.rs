//! The host's own heap, as the tests see it: every allocation of the process is counted, and a thread can be refused all
//! of them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// What the thread may still have, in bytes, if that is bounded.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Counts an allocation of `size` bytes in exchange for so many.
fn counted(size: usize, back: usize, take: impl FnOnce() -> *mut u8) -> *mut u8 {
    ALLOCATIONS.fetch_add(1, Relaxed);
    let Some(left) = LEFT.get() else { return take() };
    let Some(after) = (left + back).checked_sub(size) else { return null_mut() };
    LEFT.set(Some(after));
    take()
}

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        counted(layout.size(), 0, || unsafe { System.alloc(layout) })
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LEFT.set(LEFT.get().map(|left| left + layout.size()));
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        counted(new_size, layout.size(), || unsafe { System.realloc(ptr, layout, new_size) })
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

/// How many there were so far.
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Relaxed)
}

/// The calling thread gets no memory of the host meanwhile. What needs some ends the process.
pub fn without_any<T>(f: impl FnOnce() -> T) -> T {
    with_no_more_than(0, f)
}

/// The calling thread gets so many bytes of the host's memory meanwhile, and what it gives back. What needs more ends the
/// process.
pub fn with_no_more_than<T>(bytes: usize, f: impl FnOnce() -> T) -> T {
    LEFT.set(Some(bytes));
    let done = f();
    LEFT.set(None);
    done
}
