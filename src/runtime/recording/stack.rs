//! The callers of the calling thread, as return addresses. Nothing is looked up here: whoever reads them does that.

use std::ffi::{c_int, c_void};

unsafe extern "C" {
    fn _Unwind_Backtrace(
        each: extern "C" fn(context: *mut c_void, to: *mut c_void) -> c_int,
        to: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

const GO_ON: c_int = 0;
const ENOUGH: c_int = 5; // _URC_END_OF_STACK

struct Room<'a> {
    frames: &'a mut [u64],
    count: usize,
}

extern "C" fn one(context: *mut c_void, to: *mut c_void) -> c_int {
    // SAFETY: `callers` has given a `Room` that lives for the call, to this function alone.
    let room = unsafe { &mut *to.cast::<Room<'_>>() };
    let Some(place) = room.frames.get_mut(room.count) else { return ENOUGH };
    // SAFETY: the unwinder's own context.
    let ip = unsafe { _Unwind_GetIP(context) } as u64;
    if ip == 0 {
        return ENOUGH; // behind the first function of a thread
    }
    *place = ip;
    room.count += 1;
    GO_ON
}

/// Writes the return addresses of the callers, the innermost first, as many as there is room for; how many there are.
/// The first ones are this library's own.
pub(super) fn callers(frames: &mut [u64]) -> usize {
    let mut room = Room { frames, count: 0 };
    // SAFETY: the function and its argument are a pair, and the unwinder keeps neither.
    unsafe { _Unwind_Backtrace(one, (&raw mut room).cast()) };
    room.count
}
