//! Requests of more than one kind of work: zeroed blocks, and many blocks in one call.

use crate::support::capi::*;
use millpond::capi::*;
use std::ffi::c_void;
use std::ptr::{dangling_mut, null, null_mut};

fn blocks(f: &Fixture) -> u64 {
    device_stats(f.device).blocks.current
}

#[test]
fn a_zeroed_block_is_zero_whatever_was_there() {
    let f = fixture();
    let old = alloc(&f, 5000);
    ok(unsafe { millpond_memset(f.device, old, 7, 5000) });
    ok(unsafe { millpond_pool_free(f.pool, old, null_mut()) });
    let mut p = null_mut();
    ok(unsafe { millpond_pool_alloc_zeroed(f.pool, 5000, null_mut(), &mut p) });
    assert_eq!(p, old, "else the test shows nothing");
    let bytes = unsafe { std::slice::from_raw_parts(p.cast::<u8>(), 5000) };
    assert!(bytes.iter().all(|&b| b == 0));
    ok(unsafe { millpond_free(p) });
    ok(unsafe { millpond_pool_alloc_zeroed(f.pool, 0, null_mut(), &mut p) });
    assert!(p.is_null());
}

#[test]
fn a_zeroed_block_that_cannot_be_filled_is_none() {
    let f = fixture();
    let (mut p, mut s) = (dangling_mut(), null_mut());
    ok(unsafe { millpond_stream_create(f.device, &mut s) });
    ok(unsafe { millpond_stream_destroy(f.device, s) });
    fails(unsafe { millpond_pool_alloc_zeroed(f.pool, 100, s, &mut p) }, MILLPOND_E_UNKNOWN_STREAM);
    fails(
        unsafe { millpond_pool_alloc_zeroed(f.pool, 100, null_mut(), null_mut()) },
        MILLPOND_E_INVALID_ARGUMENT,
    );
    fails(
        unsafe { millpond_pool_alloc_zeroed(f.pool, usize::MAX, null_mut(), &mut p) },
        MILLPOND_E_OUT_OF_MEMORY,
    );
    assert_eq!((p, blocks(&f)), (dangling_mut(), 0));
}

#[test]
fn a_batch_gives_all_or_none() {
    let f = fixture();
    let sizes = [100, 0, 3 << 20, 700];
    let mut out = [dangling_mut::<c_void>(); 4];
    ok(unsafe { millpond_pool_alloc_batch(f.pool, sizes.as_ptr(), 4, null_mut(), out.as_mut_ptr()) });
    assert_eq!(blocks(&f), 3);
    assert!(out[1].is_null());
    for (&p, &size) in out.iter().zip(&sizes).filter(|(_, size)| **size > 0) {
        ok(unsafe { millpond_memset(f.device, p, 1, size) });
    }
    let mut freed = 9;
    ok(unsafe { millpond_pool_free_batch(f.pool, out.as_ptr(), 4, null_mut(), &mut freed) });
    assert_eq!((freed, blocks(&f)), (4, 0));

    let (mut out, before) = ([dangling_mut::<c_void>(); 3], device_stats(f.device).requested_bytes.current);
    let sizes = [100, 1 << 20, usize::MAX / 2];
    let got = unsafe { millpond_pool_alloc_batch(f.pool, sizes.as_ptr(), 3, null_mut(), out.as_mut_ptr()) };
    fails(got, MILLPOND_E_OUT_OF_MEMORY);
    assert_eq!((blocks(&f), device_stats(f.device).requested_bytes.current), (0, before));
    assert_eq!(out, [dangling_mut(); 3]);
}

#[test]
fn a_batch_of_frees_stops_at_the_first_that_fails_and_tells_where() {
    let f = fixture();
    let (a, b, c) = (alloc(&f, 100), alloc(&f, 200), alloc(&f, 300));
    let all = [a, null_mut(), a, b, c];
    let mut freed = 9;
    let done = unsafe { millpond_pool_free_batch(f.pool, all.as_ptr(), 5, null_mut(), &mut freed) };
    fails(done, MILLPOND_E_DOUBLE_FREE);
    assert_eq!((freed, blocks(&f)), (2, 2), "{b:?} and {c:?} live");
    ok(unsafe { millpond_pool_free_batch(f.pool, all[3..].as_ptr(), 2, null_mut(), null_mut()) });
    assert_eq!(blocks(&f), 0);
}

#[test]
fn bad_batches_are_refused() {
    let f = fixture();
    let (size, mut p) = (8, dangling_mut::<c_void>());
    let batch = |pool, sizes, count, stream, out| unsafe {
        millpond_pool_alloc_batch(pool, sizes, count, stream, out)
    };
    ok(batch(f.pool, null(), 0, null_mut(), null_mut()));
    fails(batch(f.pool, null(), 1, null_mut(), &mut p), MILLPOND_E_INVALID_ARGUMENT);
    fails(batch(f.pool, &size, 1, null_mut(), null_mut()), MILLPOND_E_INVALID_ARGUMENT);
    fails(batch(f.pool, &size, usize::MAX, null_mut(), &mut p), MILLPOND_E_INVALID_ARGUMENT);
    fails(batch(null_mut(), &size, 1, null_mut(), &mut p), MILLPOND_E_INVALID_ARGUMENT);
    fails(batch(f.pool, null(), 0, dangling_mut(), null_mut()), MILLPOND_E_UNKNOWN_STREAM);
    let free =
        |pool, ptrs, count| unsafe { millpond_pool_free_batch(pool, ptrs, count, null_mut(), null_mut()) };
    ok(free(f.pool, null(), 0));
    fails(free(f.pool, null(), 1), MILLPOND_E_INVALID_ARGUMENT);
    fails(free(f.pool, &p, usize::MAX / 2), MILLPOND_E_INVALID_ARGUMENT);
    fails(free(null_mut(), null(), 0), MILLPOND_E_INVALID_ARGUMENT);
    assert_eq!((p, blocks(&f)), (dangling_mut(), 0));
}

#[test]
fn plugins_cannot_register_host_memory() {
    let f = fixture();
    let mut own = [0_u8; 64];
    let at = own.as_mut_ptr().cast();
    fails(unsafe { millpond_host_register(f.device, at, 64) }, MILLPOND_E_UNSUPPORTED);
    fails(unsafe { millpond_host_unregister(f.device, at) }, MILLPOND_E_UNSUPPORTED);
    ok(unsafe { millpond_host_unregister(f.device, null_mut()) });
}
