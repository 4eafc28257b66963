//! Shared code of the tests of the C API: the test device behind its handles, and two checks of a status.

#![allow(clippy::undocumented_unsafe_blocks, reason = "every block is one call of the C API under test")]

use super::{Knobs, alone, test_type};
use millpond::capi::*;
use millpond::runtime;
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

pub const NAME: &CStr = c"testdev";

pub fn code() -> u32 {
    millpond_last_error_code()
}

pub fn message() -> String {
    unsafe { CStr::from_ptr(millpond_last_error_message()) }.to_str().unwrap().to_owned()
}

#[track_caller]
pub fn ok(status: C_Status) {
    assert_eq!(status, C_Status::SUCCESS, "{}: {}", code(), message());
}

/// The call failed with this code, and a message, which does not say "1 blocks".
#[track_caller]
pub fn fails(status: C_Status, want: u32) {
    assert_ne!(status, C_Status::SUCCESS);
    assert_eq!(code(), want, "{}", message());
    assert!(!message().is_empty());
    let all = message();
    let words: Vec<&str> = all.split([' ', '(', ')', ',', ':', ';']).collect();
    let plural = |w: &[&str]| w[0] == "1" && w[1].ends_with('s') && !["is", "was", "has"].contains(&w[1]);
    assert!(!words.windows(2).any(plural), "{all}");
}

pub struct Fixture {
    pub device: *mut millpond_device,
    pub pool: *mut millpond_pool,
    pub knobs: Arc<Knobs>,
    _alone: std::sync::MutexGuard<'static, ()>,
}

/// A fresh type, its device 0 and the default pool.
pub fn fixture() -> Fixture {
    let guard = alone();
    let (kind, knobs) = test_type("testdev");
    let _ = runtime::finalize();
    runtime::register_type(kind).unwrap();
    let (mut device, mut pool) = (null_mut(), null_mut());
    ok(unsafe { millpond_device_get(NAME.as_ptr(), 0, &mut device) });
    ok(unsafe { millpond_device_get_default_pool(device, &mut pool) });
    Fixture { device, pool, knobs, _alone: guard }
}

pub fn alloc(f: &Fixture, bytes: usize) -> *mut c_void {
    let mut p = null_mut();
    ok(unsafe { millpond_pool_alloc(f.pool, bytes, null_mut(), &mut p) });
    p
}

pub fn pool_stats(pool: *mut millpond_pool) -> millpond_stats {
    let mut s: millpond_stats = unsafe { std::mem::zeroed() };
    s.struct_size = size_of::<millpond_stats>();
    ok(unsafe { millpond_pool_get_stats(pool, &mut s) });
    s
}

pub fn device_stats(device: *mut millpond_device) -> millpond_stats {
    let mut s: millpond_stats = unsafe { std::mem::zeroed() };
    s.struct_size = size_of::<millpond_stats>();
    ok(unsafe { millpond_device_get_stats(device, &mut s) });
    s
}
