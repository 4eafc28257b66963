//! Bounds: what two empty calls cost, and what they cost with one atomic exchange in each, which is the least that
//! an allocator shared between threads can do.

use super::{Account, Subject};
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel};

#[repr(align(128))]
struct Line(AtomicUsize);

static LINE: [Line; 64] = [const { Line(AtomicUsize::new(64)) }; 64];

pub(super) fn null() -> Subject {
    Subject { alloc: null_alloc, free: null_free, account: Account::default }
}

pub(super) fn exchange() -> Subject {
    Subject { alloc: exchange_alloc, free: exchange_free, account: Account::default }
}

extern "C" fn null_alloc(bytes: usize, _stream: u32, out: *mut *mut c_void) -> i32 {
    // SAFETY: the caller's own pointer.
    unsafe { out.write(std::ptr::without_provenance_mut(bytes)) };
    0
}

extern "C" fn null_free(_ptr: *mut c_void, _bytes: usize, _stream: u32) -> i32 {
    0
}

extern "C" fn exchange_alloc(_bytes: usize, stream: u32, out: *mut *mut c_void) -> i32 {
    let p = LINE[stream as usize % 64].0.swap(64, AcqRel);
    // SAFETY: the caller's own pointer.
    unsafe { out.write(std::ptr::without_provenance_mut(p)) };
    0
}

extern "C" fn exchange_free(ptr: *mut c_void, _bytes: usize, stream: u32) -> i32 {
    LINE[stream as usize % 64].0.swap(ptr.addr(), AcqRel);
    0
}
