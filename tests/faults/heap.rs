//! The host's own heap, which ends where a test wants it to. The thread that runs an operation arms it; what the library
//! allocates on that thread is counted from then on, and it gets no more than so many bytes beyond what it gives back.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;

/// How many steps of what an operation needs are noted.
pub const STEPS: usize = 256;

/// Where the heap ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The thread may have so many bytes more at one time.
    After(usize),
    /// The allocation with this number is refused, and no other; the first is 1.
    Once(usize),
}

/// What has been allocated since `arm`.
#[derive(Clone, Copy)]
pub struct Seen {
    pub count: usize,
    /// [B] more than at the beginning, now and at most.
    now: isize,
    most: isize,
    /// [B] the first steps in which the most grew.
    pub steps: [usize; STEPS],
    pub step_count: usize,
}

const NOTHING: Seen = Seen { count: 0, now: 0, most: 0, steps: [0; STEPS], step_count: 0 };

thread_local! {
    static SEEN: Cell<Seen> = const { Cell::new(NOTHING) };
    static IS_ON: Cell<bool> = const { Cell::new(false) };
    static END: Cell<Option<End>> = const { Cell::new(None) };
}

struct Ending;

/// Counts an allocation of `size` bytes in exchange for so many. `false`: it is refused.
fn counted(size: usize, back: usize) -> bool {
    if !IS_ON.get() {
        return true;
    }
    let mut seen = SEEN.get();
    seen.count += 1;
    let after = seen.now + size as isize - back as isize;
    let has_room = match END.get() {
        Some(End::After(bytes)) => after <= bytes as isize,
        Some(End::Once(n)) => seen.count != n,
        None => true,
    };
    if has_room {
        seen.now = after;
        if after > seen.most {
            seen.most = after;
            if let Some(step) = seen.steps.get_mut(seen.step_count) {
                *step = after as usize;
                seen.step_count += 1;
            }
        }
    }
    SEEN.set(seen);
    has_room
}

unsafe impl GlobalAlloc for Ending {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if counted(layout.size(), 0) { unsafe { System.alloc(layout) } } else { null_mut() }
    }
    // The memory of plugins is much and zeroed: the system does that where it is touched, this one would touch all.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if counted(layout.size(), 0) { unsafe { System.alloc_zeroed(layout) } } else { null_mut() }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        if IS_ON.get() {
            let seen = SEEN.get();
            SEEN.set(Seen { now: seen.now - layout.size() as isize, ..seen });
        }
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if counted(new_size, layout.size()) {
            unsafe { System.realloc(ptr, layout, new_size) }
        } else {
            null_mut()
        }
    }
}

#[global_allocator]
static GLOBAL: Ending = Ending;

/// From here on what this thread allocates is counted, and ends there, if anywhere.
pub fn arm(end: Option<End>) {
    SEEN.set(NOTHING);
    END.set(end);
    IS_ON.set(true);
}

/// There is memory again. What was allocated since `arm`.
pub fn disarm() -> Seen {
    IS_ON.set(false);
    SEEN.get()
}

/// What the test itself allocates meanwhile is not concerned.
pub fn own<T>(body: impl FnOnce() -> T) -> T {
    let was = IS_ON.replace(false);
    let done = body();
    IS_ON.set(was);
    done
}

/// The device keeps what the thread may still have, of so many bytes at most.
pub fn keep(most: usize) {
    if let Some(End::After(bytes)) = END.get() {
        let seen = SEEN.get();
        let left = (bytes as isize - seen.now).clamp(0, most as isize);
        SEEN.set(Seen { now: seen.now + left, ..seen });
    }
}

/// Other threads have taken what there is, and take what the thread lets go.
pub fn others_take_all() {
    SEEN.set(Seen { now: isize::MAX / 2, ..SEEN.get() });
}

/// A call has failed: what puts that into words has memory, and so has what follows.
pub fn has_failed() {
    END.set(None);
}
