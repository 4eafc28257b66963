//! Bad input to the C API, on a test device: each call returns a status and a message, and nothing is lost.

use crate::support::capi::*;
use millpond::capi::*;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::atomic::Ordering::SeqCst;

#[test]
fn null_arguments_get_a_status() {
    let f = fixture();
    let bad = MILLPOND_E_INVALID_ARGUMENT;
    let (d, q) = (f.device, f.pool);
    let p = alloc(&f, 64);
    let n: *mut c_void = null_mut();
    unsafe {
        fails(millpond_device_type_get_count(null_mut()), bad);
        fails(millpond_device_type_get_name(0, null_mut(), 32), bad);
        fails(millpond_device_type_register(None, null_mut(), 0), bad);
        fails(millpond_device_type_load(null(), null_mut(), 0), bad);
        fails(millpond_device_type_unregister(null()), bad);
        fails(millpond_device_get_count(null(), &mut 0), bad);
        fails(millpond_device_get_count(NAME.as_ptr(), null_mut()), bad);
        fails(millpond_device_get(null(), 0, &mut null_mut()), bad);
        fails(millpond_device_get(NAME.as_ptr(), 0, null_mut()), bad);
        fails(millpond_device_get_info(d, null_mut()), bad);
        fails(millpond_device_get_stats(d, null_mut()), bad);
        fails(millpond_device_get_default_pool(d, null_mut()), bad);
        fails(millpond_device_synchronize(null_mut()), bad);
        fails(millpond_device_set_limit(null_mut(), 0), bad);
        fails(millpond_device_reset_peaks(null_mut()), bad);
        fails(millpond_device_empty_cache(null_mut()), bad);
        fails(millpond_pool_create(d, null(), null_mut()), bad);
        fails(millpond_pool_create(null_mut(), null(), &mut null_mut()), bad);
        ok(millpond_pool_destroy(null_mut()));
        fails(millpond_pool_get_device(q, null_mut()), bad);
        fails(millpond_pool_get_device(null(), &mut null_mut()), bad);
        fails(millpond_pool_alloc(q, 1, n.cast(), null_mut()), bad);
        fails(millpond_pool_alloc(null_mut(), 1, n.cast(), &mut null_mut()), bad);
        ok(millpond_pool_free(q, null_mut(), n.cast()));
        fails(millpond_pool_free(null_mut(), p, n.cast()), bad);
        fails(millpond_pool_empty_cache(null_mut()), bad);
        fails(millpond_pool_set_limit(null_mut(), 0), bad);
        fails(millpond_pool_get_stats(q, null_mut()), bad);
        fails(millpond_pool_reset_peaks(null_mut()), bad);
        fails(millpond_alloc(d, 1, null_mut()), bad);
        fails(millpond_alloc(null_mut(), 1, &mut null_mut()), bad);
        ok(millpond_free(null_mut()));
        ok(millpond_free_sized(null_mut(), 7));
        fails(millpond_record_stream(null_mut(), n.cast()), bad);
        fails(millpond_get_block(p, null_mut()), bad);
        fails(millpond_host_alloc(d, 1, null_mut()), bad);
        fails(millpond_unified_alloc(d, 1, null_mut()), bad);
        ok(millpond_host_free(d, null_mut()));
        ok(millpond_unified_free(d, null_mut()));
        for kind in [MILLPOND_COPY_H2D, MILLPOND_COPY_D2H, MILLPOND_COPY_D2D] {
            fails(millpond_copy(d, kind, null_mut(), p, 1), bad);
            fails(millpond_copy(d, kind, p, null(), 1), bad);
            fails(millpond_copy_async(d, n.cast(), kind, p, null(), 1), bad);
        }
        fails(millpond_copy_peer(d, null_mut(), d, p, 1), bad);
        fails(millpond_copy_peer_async(d, p, d, n.cast(), null(), 1), bad);
        fails(millpond_memset(d, null_mut(), 0, 1), bad);
        fails(millpond_memset_async(d, n.cast(), null_mut(), 0, 1), bad);
        fails(millpond_stream_create(d, null_mut()), bad);
        ok(millpond_stream_destroy(d, null_mut()));
        fails(millpond_stream_query(d, n.cast(), null_mut()), bad);
        fails(millpond_stream_wait_event(d, n.cast(), null_mut()), bad);
        fails(millpond_stream_add_callback(d, n.cast(), None, null_mut()), bad);
        fails(millpond_event_create(d, null_mut()), bad);
        ok(millpond_event_destroy(d, null_mut()));
        fails(millpond_event_record(d, n.cast(), null_mut()), bad);
        fails(millpond_event_query(d, null_mut(), &mut false), bad);
        fails(millpond_event_synchronize(d, null_mut()), bad);
        ok(millpond_free(p));
    }
    assert_eq!(device_stats(f.device).blocks.current, 0);
    ok(unsafe { millpond_device_empty_cache(d) });
    assert_eq!(f.knobs.live_bytes.load(SeqCst), 0);
}

#[test]
fn handles_that_are_none_are_refused() {
    let f = fixture();
    let bad = MILLPOND_E_INVALID_ARGUMENT;
    let mut pool = null_mut();
    ok(unsafe { millpond_pool_create(f.device, null(), &mut pool) });
    let local = 0u64;
    let addresses = [
        1,
        8,
        usize::MAX,
        (&raw const local).addr(),
        f.device.addr() ^ (1 << 20),
        pool.addr() ^ (1 << 24),
        pool.addr() ^ (1 << 10),
        pool.addr() ^ (1 << 63),
    ];
    for a in addresses {
        fails(unsafe { millpond_device_synchronize(without_provenance_mut(a)) }, bad);
        fails(unsafe { millpond_pool_destroy(without_provenance_mut(a)) }, bad);
    }
    // Each kind where the other belongs.
    fails(unsafe { millpond_device_synchronize(pool.cast()) }, bad);
    fails(unsafe { millpond_device_synchronize(f.pool.cast()) }, bad);
    fails(unsafe { millpond_pool_empty_cache(f.device.cast()) }, bad);
    // A destroyed pool, also when its slot has a new tenant.
    ok(unsafe { millpond_pool_destroy(pool) });
    let mut tenant = null_mut();
    ok(unsafe { millpond_pool_create(f.device, null(), &mut tenant) });
    assert_ne!(pool, tenant);
    let mut p = null_mut();
    fails(unsafe { millpond_pool_alloc(pool, 64, null_mut(), &mut p) }, bad);
    fails(unsafe { millpond_pool_destroy(pool) }, bad);
    assert!(p.is_null());
    ok(unsafe { millpond_pool_destroy(tenant) });
    fails(unsafe { millpond_pool_destroy(f.pool) }, bad);
}

#[test]
fn devices_that_do_not_exist() {
    let f = fixture();
    let unknown = MILLPOND_E_UNKNOWN_DEVICE;
    let mut d = null_mut();
    for ordinal in [2, -1, i32::MAX, i32::MIN] {
        fails(unsafe { millpond_device_get(NAME.as_ptr(), ordinal, &mut d) }, unknown);
    }
    for name in [c"nothing", c"", c"HOST"] {
        fails(unsafe { millpond_device_get(name.as_ptr(), 0, &mut d) }, unknown);
        fails(unsafe { millpond_device_get_count(name.as_ptr(), &mut 0) }, unknown);
        fails(unsafe { millpond_device_type_unregister(name.as_ptr()) }, unknown);
    }
    assert!(d.is_null(), "an output was written by a failed call");
    fails(unsafe { millpond_device_get(c"\xff".as_ptr(), 0, &mut d) }, MILLPOND_E_INVALID_ARGUMENT);
    fails(unsafe { millpond_device_type_unregister(c"host".as_ptr()) }, MILLPOND_E_NOT_PERMITTED);
    drop(f);
}

#[test]
fn the_list_of_types() {
    let _f = fixture();
    let mut n = 0;
    ok(unsafe { millpond_device_type_get_count(&mut n) });
    assert_eq!(n, 4);
    let name = |index, capacity| {
        let mut buffer = [0x55 as c_char; 40];
        let status = unsafe { millpond_device_type_get_name(index, buffer.as_mut_ptr(), capacity) };
        (status, buffer)
    };
    let (s, b) = name(3, 8);
    ok(s);
    assert_eq!(unsafe { CStr::from_ptr(b.as_ptr()) }, NAME);
    let (s, b) = name(3, 7);
    fails(s, MILLPOND_E_INVALID_ARGUMENT);
    assert_eq!(b[0], 0x55, "an output was written by a failed call");
    fails(name(3, 0).0, MILLPOND_E_INVALID_ARGUMENT);
    fails(name(4, 32).0, MILLPOND_E_OUT_OF_RANGE);
    fails(name(usize::MAX, 32).0, MILLPOND_E_OUT_OF_RANGE);
}

#[test]
fn pointers_that_are_not_blocks() {
    let f = fixture();
    let unknown = MILLPOND_E_UNKNOWN_POINTER;
    let p = alloc(&f, 1000);
    let mut local = 0u64;
    let stranger: *mut c_void = (&raw mut local).cast();
    for q in [stranger, p.wrapping_byte_add(1), p.wrapping_byte_add(999), without_provenance_mut(1)] {
        fails(unsafe { millpond_free(q) }, unknown);
        fails(unsafe { millpond_free_sized(q, 1000) }, unknown);
        fails(unsafe { millpond_pool_free(f.pool, q, null_mut()) }, unknown);
        fails(unsafe { millpond_record_stream(q, null_mut()) }, unknown);
        fails(unsafe { millpond_host_free(f.device, q) }, unknown);
        fails(unsafe { millpond_unified_free(f.device, q) }, unknown);
    }
    for size in [999, 1001, 1024, 0, usize::MAX] {
        fails(unsafe { millpond_free_sized(p, size) }, MILLPOND_E_WRONG_SIZE);
    }
    assert_eq!(device_stats(f.device).blocks.current, 1);
    ok(unsafe { millpond_free_sized(p, 1000) });
    fails(unsafe { millpond_free(p) }, MILLPOND_E_DOUBLE_FREE);
    fails(unsafe { millpond_pool_free(f.pool, p, null_mut()) }, MILLPOND_E_DOUBLE_FREE);
    let mut info: millpond_block_info = unsafe { std::mem::zeroed() };
    info.struct_size = size_of::<millpond_block_info>();
    fails(unsafe { millpond_get_block(p, &mut info) }, unknown);
    assert!(info.base.is_null());
    let s = device_stats(f.device);
    assert_eq!((s.blocks.current, s.allocated_bytes.current, s.requested_bytes.total), (0, 0, 1000));
}

#[test]
fn host_and_unified_memory() {
    let f = fixture();
    type Alloc = unsafe extern "C" fn(*mut millpond_device, usize, *mut *mut c_void) -> C_Status;
    type Free = unsafe extern "C" fn(*mut millpond_device, *mut c_void) -> C_Status;
    let kinds: [(Alloc, Free, &str); 2] = [
        (millpond_host_alloc, millpond_host_free, "millpond_host_free frees it"),
        (millpond_unified_alloc, millpond_unified_free, "millpond_unified_free frees it"),
    ];
    for (alloc, free, how) in kinds {
        let mut p = null_mut();
        ok(unsafe { alloc(f.device, 0, &mut p) });
        assert!(p.is_null());
        fails(unsafe { alloc(f.device, usize::MAX, &mut p) }, MILLPOND_E_OUT_OF_MEMORY);
        assert!(p.is_null());
        ok(unsafe { alloc(f.device, 100, &mut p) });
        fails(unsafe { free(f.device, p.wrapping_byte_add(50)) }, MILLPOND_E_UNKNOWN_POINTER);
        fails(unsafe { millpond_free(p) }, MILLPOND_E_UNKNOWN_POINTER);
        assert!(message().ends_with(how), "{}", message());
        f.knobs.fail_free.store(true, SeqCst);
        if std::ptr::fn_addr_eq(free, millpond_host_free as Free) {
            // A freed block is kept; the device sees it when the cache is emptied.
            ok(unsafe { free(f.device, p) });
            fails(unsafe { millpond_device_empty_host_cache(f.device) }, MILLPOND_E_DEVICE);
        } else {
            fails(unsafe { free(f.device, p) }, MILLPOND_E_DEVICE);
        }
        f.knobs.fail_free.store(false, SeqCst);
        if std::ptr::fn_addr_eq(free, millpond_host_free as Free) {
            ok(unsafe { millpond_device_empty_host_cache(f.device) });
        } else {
            ok(unsafe { free(f.device, p) });
        }
        fails(unsafe { free(f.device, p) }, MILLPOND_E_DOUBLE_FREE);
    }
    // Unified memory is a device end of copies; past its end it is not.
    let mut u = null_mut();
    ok(unsafe { millpond_unified_alloc(f.device, 100, &mut u) });
    ok(unsafe { millpond_memset(f.device, u, 9, 100) });
    fails(unsafe { millpond_memset(f.device, u, 9, 101) }, MILLPOND_E_OUT_OF_RANGE);
    assert_eq!(unsafe { u.cast::<u8>().add(99).read() }, 9);
    let (device, host) = (MILLPOND_PLACE_DEVICE, MILLPOND_PLACE_HOST);
    for place in [device, host] {
        ok(unsafe { millpond_unified_prefetch(f.device, null_mut(), u, 100, place) });
        (1..=6).for_each(|advice| ok(unsafe { millpond_unified_advise(f.device, u, 100, advice, place) }));
    }
    let bad = MILLPOND_E_INVALID_ARGUMENT;
    for place in [0, 3, u32::MAX] {
        fails(unsafe { millpond_unified_prefetch(f.device, null_mut(), u, 100, place) }, bad);
        fails(unsafe { millpond_unified_advise(f.device, u, 100, MILLPOND_ADVICE_PREFERRED, place) }, bad);
    }
    for advice in [0, 7, u32::MAX] {
        fails(unsafe { millpond_unified_advise(f.device, u, 100, advice, host) }, bad);
    }
    fails(unsafe { millpond_unified_prefetch(null_mut(), null_mut(), u, 100, device) }, bad);
    let nowhere = std::ptr::without_provenance_mut(12345);
    fails(unsafe { millpond_unified_prefetch(f.device, nowhere, u, 100, device) }, MILLPOND_E_UNKNOWN_STREAM);
    fails(
        unsafe { millpond_unified_prefetch(f.device, null_mut(), u, 101, device) },
        MILLPOND_E_OUT_OF_RANGE,
    );
    ok(unsafe { millpond_unified_free(f.device, u) });
    let gone = unsafe { millpond_unified_prefetch(f.device, null_mut(), u, 100, device) };
    fails(gone, MILLPOND_E_UNKNOWN_POINTER);
    assert_eq!(f.knobs.live_bytes.load(SeqCst), 0);
    let block = alloc(&f, 10);
    for (_, free, _) in kinds {
        fails(unsafe { free(f.device, block) }, MILLPOND_E_UNKNOWN_POINTER);
        assert!(message().ends_with("millpond_free frees it"), "{}", message());
    }
    ok(unsafe { millpond_free(block) });
}

#[test]
fn the_account_and_the_streams_of_host_memory() {
    let f = fixture();
    let bad = MILLPOND_E_INVALID_ARGUMENT;
    let mut p = null_mut();
    ok(unsafe { millpond_host_alloc(f.device, 100, &mut p) });
    let mut s: millpond_host_stats = unsafe { std::mem::zeroed() };
    fails(unsafe { millpond_device_get_host_stats(f.device, &mut s) }, bad);
    fails(unsafe { millpond_device_get_host_stats(f.device, null_mut()) }, bad);
    fails(unsafe { millpond_device_get_host_stats(null_mut(), &mut s) }, bad);
    s.struct_size = size_of::<millpond_host_stats>();
    ok(unsafe { millpond_device_get_host_stats(f.device, &mut s) });
    assert_eq!((s.requested_bytes.current, s.allocated_bytes.current, s.blocks.current), (100, 128, 1));
    assert_eq!((s.driver_calls, s.reuse_count, s.pending_bytes, s.numa_node), (1, 0, 0, -1));
    assert_eq!(s.cached_bytes + 128, s.reserved_bytes.current);
    ok(unsafe { millpond_host_record_stream(f.device, p.wrapping_byte_add(99), null_mut()) });
    let past = p.wrapping_byte_add(100);
    fails(unsafe { millpond_host_record_stream(f.device, past, null_mut()) }, MILLPOND_E_UNKNOWN_POINTER);
    fails(unsafe { millpond_host_record_stream(f.device, null(), null_mut()) }, MILLPOND_E_UNKNOWN_POINTER);
    fails(unsafe { millpond_host_record_stream(null_mut(), p, null_mut()) }, bad);
    let nobody = std::ptr::without_provenance_mut(0x123_4560);
    fails(unsafe { millpond_host_record_stream(f.device, p, nobody) }, MILLPOND_E_UNKNOWN_STREAM);
    fails(unsafe { millpond_device_reset_host_peaks(null_mut()) }, bad);
    ok(unsafe { millpond_host_free(f.device, p) });
    ok(unsafe { millpond_device_reset_host_peaks(f.device) });
    ok(unsafe { millpond_device_get_host_stats(f.device, &mut s) });
    assert_eq!((s.requested_bytes.peak, s.requested_bytes.total), (0, 100));
    fails(unsafe { millpond_device_empty_host_cache(null_mut()) }, bad);
    ok(unsafe { millpond_device_empty_host_cache(f.device) });
    assert_eq!(f.knobs.live_bytes.load(SeqCst), 0);
}

#[test]
fn sizes_at_the_edges() {
    let f = fixture();
    let mut p = without_provenance_mut(8);
    ok(unsafe { millpond_pool_alloc(f.pool, 0, null_mut(), &mut p) });
    assert!(p.is_null());
    p = without_provenance_mut(8);
    ok(unsafe { millpond_alloc(f.device, 0, &mut p) });
    assert!(p.is_null());
    for size in
        [usize::MAX, usize::MAX - 1, usize::MAX - 255, usize::MAX / 2 + 1, isize::MAX as usize, (1 << 30) + 1]
    {
        fails(unsafe { millpond_pool_alloc(f.pool, size, null_mut(), &mut p) }, MILLPOND_E_OUT_OF_MEMORY);
        fails(unsafe { millpond_alloc(f.device, size, &mut p) }, MILLPOND_E_OUT_OF_MEMORY);
        assert!(p.is_null());
    }
    let s = device_stats(f.device);
    assert_eq!((s.out_of_memory_count, s.blocks.total, s.reserved_bytes.peak), (12, 0, 0));
}

#[test]
fn limits_hold_and_say_so() {
    let f = fixture();
    let mut pool = null_mut();
    const LIMIT: usize = 3 << 20;
    let options = millpond_pool_options {
        struct_size: size_of::<millpond_pool_options>(),
        limit_bytes: LIMIT as u64,
        name: c"capture".as_ptr(),
        flags: 0,
    };
    ok(unsafe { millpond_pool_create(f.device, &options, &mut pool) });
    let (mut p, mut q) = (null_mut(), null_mut());
    // The limit cuts the first segment short, which would be larger; the whole of it can be had.
    ok(unsafe { millpond_pool_alloc(pool, LIMIT, null_mut(), &mut p) });
    assert_eq!(f.knobs.live_bytes.load(SeqCst), LIMIT as u64);
    fails(unsafe { millpond_pool_alloc(pool, 1, null_mut(), &mut q) }, MILLPOND_E_OUT_OF_MEMORY);
    assert!(message().contains("'capture'"), "{}", message());
    assert!(message().contains("the pool's limit"), "{}", message());
    assert!(q.is_null());
    fails(unsafe { millpond_pool_destroy(pool) }, MILLPOND_E_BUSY);
    // Other pools of the device are not bound by it.
    ok(unsafe { millpond_pool_alloc(f.pool, LIMIT, null_mut(), &mut q) });
    ok(unsafe { millpond_free(q) });
    // What they have idle does not help this one past its limit.
    q = null_mut();
    fails(unsafe { millpond_pool_alloc(pool, 1 << 20, null_mut(), &mut q) }, MILLPOND_E_OUT_OF_MEMORY);
    assert!(q.is_null());
    ok(unsafe { millpond_pool_set_limit(pool, 0) });
    ok(unsafe { millpond_pool_alloc(pool, 1, null_mut(), &mut q) });
    let mut owner = null_mut();
    ok(unsafe { millpond_pool_get_device(pool, &mut owner) });
    assert_eq!(owner, f.device);
    ok(unsafe { millpond_free(p) });
    ok(unsafe { millpond_free(q) });
    ok(unsafe { millpond_pool_destroy(pool) });
    ok(unsafe { millpond_device_empty_cache(f.device) });
    // The same on the device. What its cache has idle counts, but is given back before a request fails.
    ok(unsafe { millpond_device_set_limit(f.device, LIMIT as u64) });
    ok(unsafe { millpond_alloc(f.device, 1 << 20, &mut p) });
    fails(unsafe { millpond_alloc(f.device, LIMIT + 1, &mut q) }, MILLPOND_E_OUT_OF_MEMORY);
    assert!(message().contains("the device's limit"), "{}", message());
    ok(unsafe { millpond_free(p) });
    ok(unsafe { millpond_alloc(f.device, LIMIT, &mut p) });
    let s = device_stats(f.device);
    assert_eq!((s.limit_bytes, s.reserved_bytes.current), (LIMIT as u64, LIMIT as u64));
    ok(unsafe { millpond_free(p) });
    ok(unsafe { millpond_device_empty_cache(f.device) });
    // Small blocks share a piece of 2 MiB: below that limit there are none.
    ok(unsafe { millpond_device_set_limit(f.device, (2 << 20) - 1) });
    fails(unsafe { millpond_alloc(f.device, 1, &mut p) }, MILLPOND_E_OUT_OF_MEMORY);
    ok(unsafe { millpond_device_set_limit(f.device, 2 << 20) });
    ok(unsafe { millpond_alloc(f.device, 1, &mut p) });
    ok(unsafe { millpond_free(p) });
}

#[test]
fn copies_stay_inside_one_block() {
    let f = fixture();
    let (p, q) = (alloc(&f, 1000), alloc(&f, 1000));
    let mut host = vec![0u8; 4096];
    let h: *mut c_void = host.as_mut_ptr().cast();
    let (d, out) = (f.device, MILLPOND_E_OUT_OF_RANGE);
    let at = |p: *mut c_void, n: usize| p.wrapping_byte_add(n);
    unsafe {
        fails(millpond_copy(d, MILLPOND_COPY_H2D, p, h, 1001), out);
        fails(millpond_copy(d, MILLPOND_COPY_H2D, at(p, 1), h, 1000), out);
        fails(millpond_copy(d, MILLPOND_COPY_D2H, h, at(p, 999), 2), out);
        fails(millpond_copy(d, MILLPOND_COPY_D2H, h, p, usize::MAX), out);
        fails(millpond_copy(d, MILLPOND_COPY_D2D, q, p, 1001), out);
        fails(millpond_copy_async(d, null_mut(), MILLPOND_COPY_H2D, p, h, 1001), out);
        fails(millpond_copy_peer(d, q, d, p, 1001), out);
        fails(millpond_memset(d, p, 1, 1001), out);
        fails(millpond_memset_async(d, null_mut(), p, 1, 1001), out);
        fails(millpond_copy(d, MILLPOND_COPY_H2D, h, p, 10), MILLPOND_E_UNKNOWN_POINTER);
        fails(millpond_copy(d, 3, p, q, 10), MILLPOND_E_INVALID_ARGUMENT);
        fails(millpond_copy(d, u32::MAX, p, q, 10), MILLPOND_E_INVALID_ARGUMENT);
        ok(millpond_copy(d, MILLPOND_COPY_D2D, at(p, 500), q, 500));
        ok(millpond_copy(d, MILLPOND_COPY_H2D, null_mut(), null(), 0));
        ok(millpond_memset(d, null_mut(), 0, 0));
        let (mut cpu, mut other) = (null_mut(), null_mut());
        ok(millpond_device_get(c"cpu".as_ptr(), 0, &mut cpu));
        ok(millpond_alloc(cpu, 100, &mut other));
        fails(millpond_copy_peer(cpu, other, d, p, 10), MILLPOND_E_INVALID_ARGUMENT);
        ok(millpond_free(other));
        ok(millpond_free(p));
        fails(millpond_copy(d, MILLPOND_COPY_D2H, h, p, 10), MILLPOND_E_UNKNOWN_POINTER);
        ok(millpond_free(q));
    }
}

#[test]
fn streams_that_are_unknown_or_gone() {
    let f = fixture();
    let unknown = MILLPOND_E_UNKNOWN_STREAM;
    let (mut s, mut p) = (null_mut(), null_mut());
    ok(unsafe { millpond_stream_create(f.device, &mut s) });
    ok(unsafe { millpond_pool_alloc(f.pool, 64, s, &mut p) });
    ok(unsafe { millpond_record_stream(p, s) });
    ok(unsafe { millpond_stream_destroy(f.device, s) });
    for s in [s, without_provenance_mut(0x7777)] {
        unsafe {
            fails(millpond_pool_alloc(f.pool, 64, s, &mut p), unknown);
            fails(millpond_pool_free(f.pool, p, s), unknown);
            fails(millpond_record_stream(p, s), unknown);
            fails(millpond_stream_destroy(f.device, s), unknown);
            fails(millpond_stream_synchronize(f.device, s), unknown);
            fails(millpond_stream_query(f.device, s, &mut false), unknown);
            fails(millpond_stream_wait_event(f.device, s, without_provenance_mut(1)), unknown);
            fails(millpond_event_record(f.device, s, without_provenance_mut(1)), unknown);
            fails(millpond_copy_async(f.device, s, MILLPOND_COPY_D2D, p, p, 1), unknown);
            fails(millpond_memset_async(f.device, s, p, 1, 1), unknown);
        }
    }
    ok(unsafe { millpond_free(p) });
}

#[test]
fn structs_of_other_sizes() {
    let f = fixture();
    let _p = alloc(&f, 1000);
    let mut s: millpond_stats = unsafe { std::mem::zeroed() };
    for size in [0, 1, 7] {
        s.struct_size = size;
        fails(unsafe { millpond_device_get_stats(f.device, &mut s) }, MILLPOND_E_INVALID_ARGUMENT);
    }
    // An older program's struct: only what it has is written.
    s.struct_size = std::mem::offset_of!(millpond_stats, allocated_bytes);
    ok(unsafe { millpond_device_get_stats(f.device, &mut s) });
    assert_eq!((s.requested_bytes.current, s.allocated_bytes.current), (1000, 0));
    s.struct_size = 8;
    s.requested_bytes.current = 5;
    ok(unsafe { millpond_device_get_stats(f.device, &mut s) });
    assert_eq!((s.requested_bytes.current, s.struct_size), (5, 8));
    // A newer program's struct: the rest stays as it was.
    let mut newer = (s, 0x5555_5555u64);
    newer.0.struct_size = size_of_val(&newer);
    ok(unsafe { millpond_device_get_stats(f.device, &mut newer.0) });
    assert_eq!((newer.0.allocated_bytes.current, newer.1), (1024, 0x5555_5555));
    // Options: too small for the size itself, then without the fields after the first.
    let mut o =
        millpond_pool_options { struct_size: 4, limit_bytes: 1, name: without_provenance_mut(1), flags: 0 };
    let mut pool = null_mut();
    fails(unsafe { millpond_pool_create(f.device, &o, &mut pool) }, MILLPOND_E_INVALID_ARGUMENT);
    (o.struct_size, o.flags) = (16, 6);
    ok(unsafe { millpond_pool_create(f.device, &o, &mut pool) });
    ok(unsafe { millpond_pool_destroy(pool) });
    // All of it, with flags that there are not.
    (o.struct_size, o.name) = (size_of_val(&o), null());
    fails(unsafe { millpond_pool_create(f.device, &o, &mut pool) }, MILLPOND_E_INVALID_ARGUMENT);
    o.flags = MILLPOND_POOL_CONTIGUOUS;
    ok(unsafe { millpond_pool_create(f.device, &o, &mut pool) });
    let mut p = null_mut();
    fails(unsafe { millpond_pool_alloc(pool, 2, null_mut(), &mut p) }, MILLPOND_E_OUT_OF_MEMORY);
    ok(unsafe { millpond_pool_destroy(pool) });
    o.limit_bytes = 4 << 20;
    ok(unsafe { millpond_pool_create(f.device, &o, &mut pool) });
    ok(unsafe { millpond_pool_alloc(pool, 3 << 20, null_mut(), &mut p) });
    ok(unsafe { millpond_free(p) });
    ok(unsafe { millpond_pool_destroy(pool) });
    let odd: *mut millpond_stats = (&raw mut newer).wrapping_byte_add(1).cast();
    fails(unsafe { millpond_device_get_stats(f.device, odd) }, MILLPOND_E_INVALID_ARGUMENT);
}

#[test]
fn plugins_that_are_none() {
    static CALLS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    unsafe extern "C-unwind" fn does_nothing(_: *mut CustomRuntimeParams) {
        CALLS.fetch_add(1, SeqCst);
    }
    let _f = fixture();
    let mut name = [0x55 as c_char; 32];
    let at = name.as_mut_ptr();
    // A buffer that is too small is noticed before the plugin runs.
    fails(unsafe { millpond_device_type_register(Some(does_nothing), at, 31) }, MILLPOND_E_INVALID_ARGUMENT);
    assert_eq!(CALLS.load(SeqCst), 0);
    fails(unsafe { millpond_device_type_register(Some(does_nothing), at, 32) }, MILLPOND_E_PLUGIN_REFUSED);
    assert!(CALLS.load(SeqCst) > 0); // once for each layout that is offered
    assert_eq!(name[0], 0x55);
    let load = |path: &CStr| unsafe { millpond_device_type_load(path.as_ptr(), null_mut(), 0) };
    fails(load(c"/nowhere/libnothing.so"), MILLPOND_E_SYSTEM);
    assert!(message().contains("libnothing.so"), "{}", message());
    fails(load(c""), MILLPOND_E_INVALID_ARGUMENT);
    fails(load(c"libm.so.6"), MILLPOND_E_PLUGIN_REFUSED);
    let mut n = 0;
    ok(unsafe { millpond_device_type_get_count(&mut n) });
    assert_eq!(n, 4);
}
