//! The C API as C calls it, on a test device: what bad input gets, and that nothing is lost by it.
#![cfg(feature = "capi")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "every block is one call of the C API under test")]

mod support;

use millpond::capi::*;
use millpond::runtime;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use support::{Knobs, alone, test_type};

const NAME: &CStr = c"testdev";

fn code() -> u32 {
    millpond_last_error_code()
}

fn message() -> String {
    unsafe { CStr::from_ptr(millpond_last_error_message()) }.to_str().unwrap().to_owned()
}

#[track_caller]
fn ok(status: C_Status) {
    assert_eq!(status, C_Status::SUCCESS, "{}: {}", code(), message());
}

/// The call failed with this code, and a message.
#[track_caller]
fn fails(status: C_Status, want: u32) {
    assert_ne!(status, C_Status::SUCCESS);
    assert_eq!(code(), want, "{}", message());
    assert!(!message().is_empty());
}

struct Fixture {
    device: *mut millpond_device,
    pool: *mut millpond_pool,
    knobs: Arc<Knobs>,
    _alone: std::sync::MutexGuard<'static, ()>,
}

/// A fresh type, its device 0 and the default pool.
fn fixture() -> Fixture {
    let guard = alone();
    let (kind, knobs) = test_type("testdev");
    let _ = runtime::finalize();
    runtime::register_type(kind).unwrap();
    let (mut device, mut pool) = (null_mut(), null_mut());
    ok(unsafe { millpond_device_get(NAME.as_ptr(), 0, &mut device) });
    ok(unsafe { millpond_device_get_default_pool(device, &mut pool) });
    Fixture { device, pool, knobs, _alone: guard }
}

#[test]
fn a_block_lives_and_dies() {
    let f = fixture();
    let mut p = null_mut();
    ok(unsafe { millpond_pool_alloc(f.pool, 1000, null_mut(), &mut p) });
    let mut info: millpond_block_info = unsafe { std::mem::zeroed() };
    info.struct_size = size_of::<millpond_block_info>();
    ok(unsafe { millpond_get_block(p.wrapping_byte_add(999), &mut info) });
    assert_eq!((info.base, info.size_bytes, info.requested_bytes), (p, 1024, 1000));
    assert_eq!((info.pool, info.device), (f.pool, f.device));
    let from: Vec<u8> = (0..1000u32).map(|i| i as u8).collect();
    let mut back = vec![0u8; 1000];
    ok(unsafe { millpond_copy(f.device, MILLPOND_COPY_H2D, p, from.as_ptr().cast(), 1000) });
    ok(unsafe { millpond_copy(f.device, MILLPOND_COPY_D2H, back.as_mut_ptr().cast(), p, 1000) });
    assert_eq!(from, back);
    ok(unsafe { millpond_pool_free(f.pool, p, null_mut()) });
    assert_eq!(f.knobs.live_bytes.load(SeqCst), 0);
}

#[test]
fn the_host_device_is_there() {
    let _alone = alone();
    let _ = runtime::finalize();
    for (name, count) in [(c"cpu", 1), (c"host", 2)] {
        let (mut n, mut device, mut stream, mut p) = (0, null_mut(), null_mut(), null_mut());
        ok(unsafe { millpond_device_get_count(name.as_ptr(), &mut n) });
        assert_eq!(n, count);
        ok(unsafe { millpond_device_get(name.as_ptr(), n as i32 - 1, &mut device) });
        ok(unsafe { millpond_stream_create(device, &mut stream) });
        let (mut pool, mut back) = (null_mut(), vec![0u8; 1 << 20]);
        ok(unsafe { millpond_device_get_default_pool(device, &mut pool) });
        ok(unsafe { millpond_pool_alloc(pool, 1 << 20, stream, &mut p) });
        ok(unsafe { millpond_memset_async(device, stream, p, 7, 1 << 20) });
        ok(unsafe {
            millpond_copy_async(device, stream, MILLPOND_COPY_D2H, back.as_mut_ptr().cast(), p, 1 << 20)
        });
        ok(unsafe { millpond_stream_synchronize(device, stream) });
        assert!(back.iter().all(|&b| b == 7));
        ok(unsafe { millpond_free(p) });
        ok(unsafe { millpond_stream_destroy(device, stream) });
    }
    ok(millpond_finalize());
}
