//! The host's own heap, as the tests see it: every allocation of the process is counted, and a thread can be refused all
//! of them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static REFUSED: Cell<bool> = const { Cell::new(false) };
}

fn counted(size: usize, take: impl FnOnce() -> *mut u8) -> *mut u8 {
    ALLOCATIONS.fetch_add(1, Relaxed);
    if REFUSED.get() && size > 0 { null_mut() } else { take() }
}

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        counted(layout.size(), || unsafe { System.alloc(layout) })
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        counted(new_size, || unsafe { System.realloc(ptr, layout, new_size) })
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
    REFUSED.set(true);
    let done = f();
    REFUSED.set(false);
    done
}
