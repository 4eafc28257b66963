//! The life of devices, blocks, streams and errors through the C API, on a test device and on the
//! host device.

use crate::support::capi::*;
use crate::support::{INIT_ALLOC, REALLOC, alone, test_type};
use millpond::capi::*;
use millpond::runtime;
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::atomic::Ordering::SeqCst;

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
    let taken = f.knobs.live_bytes.load(SeqCst);
    assert_eq!(taken, INIT_ALLOC, "the first segment has the init size");
    ok(unsafe { millpond_pool_free(f.pool, p, null_mut()) });
    // The block stays with us, and serves the next request of its kind without a device call.
    let s = device_stats(f.device);
    assert_eq!((s.blocks.current, s.allocated_bytes.current), (0, 0));
    assert_eq!((f.knobs.live_bytes.load(SeqCst), s.reserved_bytes.current), (taken, taken));
    let mut again = null_mut();
    ok(unsafe { millpond_pool_alloc(f.pool, 1000, null_mut(), &mut again) });
    assert_eq!(again, p, "what was freed last is used first");
    assert_eq!(device_stats(f.device).driver_calls, s.driver_calls);
    ok(unsafe { millpond_pool_free(f.pool, again, null_mut()) });
    ok(unsafe { millpond_device_empty_cache(f.device) });
    assert_eq!((f.knobs.live_bytes.load(SeqCst), device_stats(f.device).reserved_bytes.current), (0, 0));
}

#[test]
fn later_segments_have_the_realloc_size_and_large_blocks_their_own() {
    let f = fixture();
    let taken = || f.knobs.live_bytes.load(SeqCst);
    let first = alloc(&f, INIT_ALLOC as usize);
    assert_eq!(taken(), INIT_ALLOC);
    let second = alloc(&f, 1 << 20);
    assert_eq!(taken(), INIT_ALLOC + REALLOC);
    // More than the realloc size: as much as the block needs.
    let third = alloc(&f, 20 << 20);
    assert_eq!(taken(), INIT_ALLOC + REALLOC + (20 << 20));
    // More than the max chunk: not pooled, and back with its free.
    let direct = alloc(&f, (64 << 20) + 256);
    let s = device_stats(f.device);
    assert_eq!((taken(), s.segments.current), (INIT_ALLOC + REALLOC + (84 << 20) + 256, 4));
    ok(unsafe { millpond_free(direct) });
    assert_eq!(taken(), INIT_ALLOC + REALLOC + (20 << 20));
    for p in [first, second, third] {
        ok(unsafe { millpond_free(p) });
    }
}

#[test]
fn a_callback_runs_once_and_may_not_wait() {
    unsafe extern "C-unwind" fn callback(data: *mut c_void, status: C_Status) {
        let f = unsafe { &mut *data.cast::<(u32, *mut millpond_device, u32)>() };
        f.0 += 1 + status.0;
        let waited = unsafe { millpond_device_synchronize(f.1) };
        f.2 = if waited == C_Status::SUCCESS { 0 } else { millpond_last_error_code() };
    }
    let f = fixture();
    let mut seen = (0u32, f.device, 0u32);
    ok(unsafe { millpond_stream_add_callback(f.device, null_mut(), Some(callback), (&raw mut seen).cast()) });
    assert_eq!((seen.0, seen.2), (1, MILLPOND_E_NOT_PERMITTED));
    ok(unsafe { millpond_device_synchronize(f.device) });
}

#[test]
fn a_panic_stays_inside() {
    let f = fixture();
    f.knobs.panic_on_synchronize.store(true, SeqCst);
    let status = unsafe { millpond_device_synchronize(f.device) };
    assert_eq!(status, C_Status::INTERNAL_ERROR);
    assert_eq!(code(), MILLPOND_E_INTERNAL);
    assert!(message().contains("a device that panics: ? inside"), "{}", message());
    f.knobs.panic_on_synchronize.store(false, SeqCst);
    ok(unsafe { millpond_device_synchronize(f.device) });
}

#[test]
fn the_last_error_is_the_threads_own() {
    let f = fixture();
    fails(unsafe { millpond_free(without_provenance_mut(1)) }, MILLPOND_E_UNKNOWN_POINTER);
    let at = millpond_last_error_message();
    ok(unsafe { millpond_device_synchronize(f.device) });
    assert_eq!(code(), MILLPOND_E_UNKNOWN_POINTER, "a success cleared the last error");
    std::thread::spawn(|| {
        assert_eq!((code(), message().as_str()), (0, ""));
        fails(unsafe { millpond_pool_empty_cache(null_mut()) }, MILLPOND_E_INVALID_ARGUMENT);
    })
    .join()
    .unwrap();
    assert_eq!((code(), millpond_last_error_message()), (MILLPOND_E_UNKNOWN_POINTER, at));
    // Longer than there is room, with a character on the edge.
    let long = std::ffi::CString::new("\u{e9}".repeat(600)).unwrap();
    fails(unsafe { millpond_device_get(long.as_ptr(), 0, &mut null_mut()) }, MILLPOND_E_UNKNOWN_DEVICE);
    assert!((500..512).contains(&message().len()));
    for n in 0..20 {
        let name = unsafe { CStr::from_ptr(millpond_error_name(n)) }.to_str().unwrap();
        assert_eq!(name.starts_with("MILLPOND_"), n <= 17, "{n}: {name}");
    }
}

#[test]
fn a_thread_may_free_as_it_ends() {
    struct Late(usize);
    impl Drop for Late {
        fn drop(&mut self) {
            ok(unsafe { millpond_free(without_provenance_mut(self.0)) });
            fails(unsafe { millpond_free(without_provenance_mut(self.0)) }, MILLPOND_E_DOUBLE_FREE);
            DONE.fetch_add(1, SeqCst);
        }
    }
    static DONE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    thread_local!(static LATE: std::cell::RefCell<Option<Late>> = const { std::cell::RefCell::new(None) });
    let f = fixture();
    let p = alloc(&f, 64).addr();
    std::thread::spawn(move || LATE.with(|l| *l.borrow_mut() = Some(Late(p)))).join().unwrap();
    assert_eq!(DONE.load(SeqCst), 1);
}

#[test]
fn after_finalize_old_handles_stay_refused() {
    let f = fixture();
    let gone = MILLPOND_E_NOT_INITIALIZED;
    let mut pool = null_mut();
    ok(unsafe { millpond_pool_create(f.device, null(), &mut pool) });
    let (p, mut h) = (alloc(&f, 64), null_mut());
    ok(unsafe { millpond_host_alloc(f.device, 64, &mut h) });
    ok(millpond_finalize());
    assert_eq!(f.knobs.live_bytes.load(SeqCst), 0, "finalize must give everything back");
    assert_eq!(f.knobs.finalized.load(SeqCst), 1);
    let mut q = null_mut();
    let refused = || unsafe {
        fails(millpond_device_synchronize(f.device), gone);
        fails(millpond_pool_free(f.pool, p, null_mut()), gone);
        fails(millpond_pool_free(pool, p, null_mut()), gone);
        fails(millpond_pool_destroy(pool), gone);
        fails(millpond_host_free(f.device, h), gone);
    };
    refused();
    fails(unsafe { millpond_pool_alloc(f.pool, 64, null_mut(), &mut q) }, gone);
    fails(unsafe { millpond_free(p) }, gone);
    fails(unsafe { millpond_record_stream(p, null_mut()) }, gone);
    fails(millpond_finalize(), gone);
    // The next use starts anew; the old handles stay refused.
    let mut d = null_mut();
    ok(unsafe { millpond_device_get(c"host".as_ptr(), 0, &mut d) });
    assert_ne!(d, f.device);
    refused();
    fails(unsafe { millpond_device_get(NAME.as_ptr(), 0, &mut d) }, MILLPOND_E_UNKNOWN_DEVICE);
    ok(millpond_finalize());
}

#[test]
fn a_type_ends_only_without_blocks() {
    let f = fixture();
    let p = alloc(&f, 64);
    fails(unsafe { millpond_device_type_unregister(NAME.as_ptr()) }, MILLPOND_E_BUSY);
    ok(unsafe { millpond_device_synchronize(f.device) });
    ok(unsafe { millpond_free(p) });
    let mut h = null_mut();
    ok(unsafe { millpond_host_alloc(f.device, 64, &mut h) });
    fails(unsafe { millpond_device_type_unregister(NAME.as_ptr()) }, MILLPOND_E_BUSY);
    ok(unsafe { millpond_host_free(f.device, h) });
    ok(unsafe { millpond_device_type_unregister(NAME.as_ptr()) });
    assert_eq!(f.knobs.finalized.load(SeqCst), 1);
    fails(unsafe { millpond_device_synchronize(f.device) }, MILLPOND_E_NOT_INITIALIZED);
    fails(unsafe { millpond_device_type_unregister(NAME.as_ptr()) }, MILLPOND_E_UNKNOWN_DEVICE);
    let (again, _) = test_type("testdev");
    runtime::register_type(again.clone()).unwrap();
    assert_eq!(runtime::register_type(again).unwrap_err().code(), millpond::Code::Busy);
}

#[test]
fn device_failures_lose_nothing() {
    let f = fixture();
    let p = alloc(&f, 64);
    let before = device_stats(f.device);
    f.knobs.fail_alloc.store(true, SeqCst);
    let mut q = null_mut();
    // More than the first segment has left.
    let more = INIT_ALLOC as usize;
    fails(unsafe { millpond_pool_alloc(f.pool, more, null_mut(), &mut q) }, MILLPOND_E_OUT_OF_MEMORY);
    assert!(message().contains("the test wants this to fail"), "{}", message());
    assert!(q.is_null());
    f.knobs.fail_alloc.store(false, SeqCst);
    let after = device_stats(f.device);
    assert_eq!(after.reserved_bytes.current, before.reserved_bytes.current);
    assert_eq!(after.blocks.total, before.blocks.total);
    assert_eq!(after.out_of_memory_count, 1);
    ok(unsafe { millpond_pool_alloc(f.pool, more, null_mut(), &mut q) });
    ok(unsafe { millpond_free(q) });
    ok(unsafe { millpond_free(p) });
    // What the device does not take back is reported, and nothing else changes.
    f.knobs.fail_free.store(true, SeqCst);
    fails(unsafe { millpond_device_empty_cache(f.device) }, MILLPOND_E_DEVICE);
    f.knobs.fail_free.store(false, SeqCst);
    assert!(!alloc(&f, 64).is_null());
}

#[test]
fn a_device_tells_about_itself() {
    let f = fixture();
    let mut i: millpond_device_info = unsafe { std::mem::zeroed() };
    i.struct_size = size_of::<millpond_device_info>();
    ok(unsafe { millpond_device_get_info(f.device, &mut i) });
    assert_eq!(unsafe { CStr::from_ptr(i.r#type.as_ptr()) }, NAME);
    assert_eq!((i.ordinal, i.total_bytes, i.min_chunk_bytes), (0, 1 << 30, 256));
    assert_eq!((i.compute_capability, i.runtime_version, i.driver_version), (75, 1, 2));
    assert_ne!(i.caps & MILLPOND_CAP_UNIFIED, 0);
    assert_eq!(i.caps & MILLPOND_CAP_MAPPING, 0);
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

#[test]
fn events_and_peers_on_the_host_device() {
    unsafe extern "C-unwind" fn try_to_wait(data: *mut c_void, _: C_Status) {
        let f = unsafe { &mut *data.cast::<(*mut millpond_device, u32)>() };
        let waited = unsafe { millpond_stream_synchronize(f.0, null_mut()) };
        f.1 = if waited == C_Status::SUCCESS { 0 } else { millpond_last_error_code() };
    }
    let _alone = alone();
    let _ = runtime::finalize();
    let (mut a, mut b, mut s, mut t, mut e) = (null_mut(), null_mut(), null_mut(), null_mut(), null_mut());
    let (mut p, mut q, mut done) = (null_mut(), null_mut(), false);
    const N: usize = 1 << 20;
    unsafe {
        ok(millpond_device_get(c"host".as_ptr(), 0, &mut a));
        ok(millpond_device_get(c"host".as_ptr(), 1, &mut b));
        ok(millpond_stream_create(a, &mut s));
        ok(millpond_stream_create(a, &mut t));
        ok(millpond_event_create(a, &mut e));
        ok(millpond_alloc(a, N, &mut p));
        ok(millpond_alloc(b, N, &mut q));
        // One stream fills, the other copies to the other device when the event has come.
        ok(millpond_memset_async(a, s, p, 42, N));
        ok(millpond_event_record(a, s, e));
        ok(millpond_stream_wait_event(a, t, e));
        ok(millpond_copy_peer_async(b, q, a, t, p, N));
        let mut seen = (a, 0u32);
        ok(millpond_stream_add_callback(a, t, Some(try_to_wait), (&raw mut seen).cast()));
        ok(millpond_stream_synchronize(a, t));
        assert_eq!(seen.1, MILLPOND_E_NOT_PERMITTED);
        ok(millpond_event_query(a, e, &mut done));
        assert!(done);
        ok(millpond_stream_query(a, t, &mut done));
        assert!(done);
        let mut back = vec![0u8; N];
        ok(millpond_copy(b, MILLPOND_COPY_D2H, back.as_mut_ptr().cast(), q, N));
        assert!(back.iter().all(|&x| x == 42));
        // A block of the other device is no end of a copy on this one.
        fails(millpond_memset(a, q, 0, 1), MILLPOND_E_UNKNOWN_POINTER);
        fails(millpond_copy_peer(b, q, a, q, 1), MILLPOND_E_UNKNOWN_POINTER);
        ok(millpond_event_destroy(a, e));
        fails(millpond_event_destroy(a, e), MILLPOND_E_UNKNOWN_EVENT);
        fails(millpond_event_query(a, e, &mut done), MILLPOND_E_UNKNOWN_EVENT);
        fails(millpond_event_synchronize(a, e), MILLPOND_E_UNKNOWN_EVENT);
        fails(millpond_event_record(a, s, e), MILLPOND_E_UNKNOWN_EVENT);
        fails(millpond_stream_wait_event(a, s, e), MILLPOND_E_UNKNOWN_EVENT);
        // A stream of the other device is none of this one's.
        fails(millpond_stream_synchronize(b, s), MILLPOND_E_UNKNOWN_STREAM);
        ok(millpond_stream_destroy(a, s));
        fails(millpond_stream_destroy(a, s), MILLPOND_E_UNKNOWN_STREAM);
        fails(millpond_memset_async(a, s, p, 0, 1), MILLPOND_E_UNKNOWN_STREAM);
        ok(millpond_free(p));
        ok(millpond_free(q));
    }
    ok(millpond_finalize());
}
