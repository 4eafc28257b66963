//! Blocks at multiples of more than every block has, on each kind of memory.

use crate::pools::*;
use crate::support::capi::{device_stats, fails, fixture, ok};
use millpond::capi::*;
use std::ffi::c_void;
use std::ptr::{dangling_mut, null_mut};

fn aligned(pool: *mut millpond_pool, bytes: usize, align: usize) -> *mut c_void {
    let mut p = null_mut();
    ok(unsafe { millpond_pool_alloc_aligned(pool, bytes, align, null_mut(), &mut p) });
    assert_eq!(p.addr() % align, 0, "{bytes} bytes at a multiple of {align}");
    p
}

fn size_of_block(p: *mut c_void) -> usize {
    let mut info: millpond_block_info = unsafe { std::mem::zeroed() };
    info.struct_size = size_of::<millpond_block_info>();
    ok(unsafe { millpond_get_block(p, &mut info) });
    assert_eq!(info.base, p);
    info.size_bytes
}

#[test]
fn every_alignment_up_to_a_granule() {
    everywhere(|h| {
        let mut all = Vec::new();
        for round in 0..3u8 {
            for shift in 0..=21 {
                for bytes in [1usize, 700, 5000, 70_000, (1 << 20) + 1, 3 << 20] {
                    let p = aligned(h.pool, bytes, 1 << shift);
                    let byte = round.wrapping_mul(31).wrapping_add(shift as u8).wrapping_add(bytes as u8);
                    ok(unsafe { millpond_memset(h.device, p, byte, bytes) });
                    assert!(size_of_block(p) >= bytes);
                    all.push((p, bytes, byte));
                }
            }
            // Some go, so that the next round finds holes at all places.
            all.sort_by_key(|x| x.0.addr().wrapping_mul(0x9E37_79B9));
            for (p, bytes, byte) in all.drain(..all.len() / 2) {
                let has = unsafe { std::slice::from_raw_parts(p.cast::<u8>(), bytes) };
                assert!(has.iter().all(|&b| b == byte), "somebody else has written to it");
                free(p);
            }
        }
        for (p, bytes, byte) in all {
            let has = unsafe { std::slice::from_raw_parts(p.cast::<u8>(), bytes) };
            assert!(has.iter().all(|&b| b == byte), "somebody else has written to it");
            free(p);
        }
        let s = device_stats(h.device);
        assert_eq!((s.requested_bytes.current, s.allocated_bytes.current, s.blocks.current), (0, 0, 0));
        ok(unsafe { millpond_device_empty_cache(h.device) });
        assert_eq!(device_stats(h.device).reserved_bytes.current, 0);
    });
}

#[test]
fn what_is_skipped_serves_others() {
    let h = host(true);
    ok(unsafe { millpond_device_set_limit(h.device, 4 << 20) });
    let first = pool_alloc(h.pool, 100 << 10, null_mut()); // a granule begins with it
    let p = aligned(h.pool, 2 << 20, 2 << 20);
    // 1.9 MiB in front of it are free, and the limit allows no more.
    let between = pool_alloc(h.pool, 1900 << 10, null_mut());
    let mut q = dangling_mut();
    fails(
        unsafe { millpond_pool_alloc_aligned(h.pool, 4096, 1 << 21, null_mut(), &mut q) },
        MILLPOND_E_OUT_OF_MEMORY,
    );
    assert_eq!(q, dangling_mut());
    free(p);
    let q = aligned(h.pool, 4096, 1 << 21);
    [first, between, q].into_iter().for_each(free);
}

#[test]
fn in_a_capture_and_in_a_scope() {
    everywhere(|h| {
        let (pool, stream) = (h.new_pool(), h.stream());
        ok(unsafe { millpond_scope_begin(pool) });
        let p = aligned(h.pool, 1 << 20, 64 << 10);
        assert_eq!(pool_of(p), pool);
        ok(unsafe { millpond_scope_end(pool) });
        let (mut capture, mut q) = (null_mut(), null_mut());
        ok(unsafe { millpond_capture_begin(pool, stream, &mut capture) });
        ok(unsafe { millpond_pool_alloc_aligned(h.pool, 1 << 20, 1 << 20, stream, &mut q) });
        assert_eq!((pool_of(q), q.addr() % (1 << 20)), (pool, 0));
        ok(unsafe { millpond_capture_end(capture) });
        [p, q].into_iter().for_each(free);
        ok(unsafe { millpond_capture_release(capture) });
        ok(unsafe { millpond_stream_destroy(h.device, stream) });
        ok(unsafe { millpond_pool_destroy(pool) });
    });
}

#[test]
fn what_cannot_be() {
    let h = host(true);
    let mut p = dangling_mut();
    for align in [0, 3, 48, 1 << 22, 1 << 63, usize::MAX] {
        let got = unsafe { millpond_pool_alloc_aligned(h.pool, 100, align, null_mut(), &mut p) };
        fails(got, MILLPOND_E_INVALID_ARGUMENT);
    }
    for bytes in [usize::MAX, 1 << 60] {
        let got = unsafe { millpond_pool_alloc_aligned(h.pool, bytes, 4096, null_mut(), &mut p) };
        fails(got, MILLPOND_E_OUT_OF_MEMORY);
    }
    let got = unsafe { millpond_pool_alloc_aligned(h.pool, 100, 4096, 77 as C_Stream, &mut p) };
    fails(got, MILLPOND_E_UNKNOWN_STREAM);
    let got = unsafe { millpond_pool_alloc_aligned(h.pool, 100, 4096, null_mut(), null_mut()) };
    fails(got, MILLPOND_E_INVALID_ARGUMENT);
    assert_eq!(p, dangling_mut());
    ok(unsafe { millpond_pool_alloc_aligned(h.pool, 0, 4096, null_mut(), &mut p) });
    assert!(p.is_null());
    assert_eq!(device_stats(h.device).blocks.current, 0);
}

/// A device whose segments begin anywhere: what cannot be had is refused, and nothing is lost.
#[test]
fn segments_that_begin_anywhere() {
    let f = fixture();
    let reserved = || device_stats(f.device).reserved_bytes.current;
    for shift in 0..=21 {
        for bytes in [100, 5 << 20] {
            let mut p = null_mut();
            let got = unsafe { millpond_pool_alloc_aligned(f.pool, bytes, 1 << shift, null_mut(), &mut p) };
            if got == C_Status::SUCCESS {
                assert_eq!(p.addr() % (1 << shift), 0);
                free(p);
            } else {
                fails(got, MILLPOND_E_UNSUPPORTED);
            }
            assert_eq!(device_stats(f.device).blocks.current, 0);
        }
    }
    assert!(reserved() <= 64 << 20, "one segment after another: {}", reserved());
}

/// Where little is left, the segment that is taken for a request is small, and serves no less.
#[test]
fn segments_that_are_small() {
    let h = host(false);
    ok(unsafe { millpond_device_set_limit(h.device, 1200 << 10) });
    for _ in 0..20 {
        free(aligned(h.pool, 1000 << 10, 128 << 10));
        ok(unsafe { millpond_device_empty_cache(h.device) });
        // One page more, and the system puts the next segment somewhere else.
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        assert_ne!(unsafe { libc::mmap(null_mut(), 4096, libc::PROT_READ, flags, -1, 0) }, libc::MAP_FAILED);
    }
}

/// Where nothing is pooled, the device's own addresses must do.
#[test]
fn memory_that_is_not_pooled() {
    let h = host(true);
    drop(h);
    let guard = crate::support::alone();
    let _ = millpond::runtime::finalize();
    ok(unsafe { millpond_set_default_options(c"host".as_ptr(), -1, c"backend:none".as_ptr()) });
    let (mut device, mut pool) = (null_mut(), null_mut());
    ok(unsafe { millpond_device_get(c"host".as_ptr(), 0, &mut device) });
    ok(unsafe { millpond_device_get_default_pool(device, &mut pool) });
    free(aligned(pool, 5 << 20, 1 << 21)); // of 2 MiB and more, from the system at such multiples
    free(aligned(pool, 100, 4096));
    assert_eq!(device_stats(device).blocks.current, 0);
    let _ = millpond::runtime::finalize();
    ok(unsafe { millpond_set_default_options(c"host".as_ptr(), -1, c"backend:native".as_ptr()) });
    drop(guard);
}
