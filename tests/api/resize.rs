//! Blocks that get another size where they are: what they have stays, nobody else's memory is touched, and what cannot
//! be leaves everything as it was.

use crate::pools::*;
use crate::support::capi::{device_stats, fails, message, ok};
use millpond::capi::*;
use std::ffi::c_void;
use std::ptr::null_mut;

const MIB: usize = 1 << 20;

fn sizes(p: *mut c_void) -> (usize, usize) {
    let mut info: millpond_block_info = unsafe { std::mem::zeroed() };
    info.struct_size = size_of::<millpond_block_info>();
    ok(unsafe { millpond_get_block(p, &mut info) });
    (info.requested_bytes, info.size_bytes)
}

fn expand(p: *mut c_void, bytes: usize) -> C_Status {
    unsafe { millpond_try_expand(p, bytes) }
}

fn fill(h: &Host, p: *mut c_void, byte: u8, bytes: usize) {
    ok(unsafe { millpond_memset(h.device, p, byte, bytes) });
}

fn has(p: *mut c_void, byte: u8, bytes: usize) -> bool {
    unsafe { std::slice::from_raw_parts(p.cast::<u8>(), bytes) }.iter().all(|&b| b == byte)
}

#[test]
fn what_is_charged_may_be_used() {
    everywhere(|h| {
        for bytes in [1usize, 600, 5000, 70_000, 3 * MIB + 1, 100 * MIB + 7] {
            let p = pool_alloc(h.pool, bytes, null_mut());
            let charged = sizes(p).1;
            fill(&h, p, 5, bytes);
            fails(unsafe { millpond_memset(h.device, p, 5, bytes + 1) }, MILLPOND_E_OUT_OF_RANGE);
            ok(expand(p, charged));
            assert_eq!(sizes(p).0, charged);
            fill(&h, p, 6, charged);
            let s = device_stats(h.device);
            assert_eq!(s.requested_bytes.current, charged as u64);
            assert_eq!((s.blocks.current, s.requested_bytes.peak >= charged as u64), (1, true));
            ok(unsafe { millpond_free_sized(p, charged) });
            let s = device_stats(h.device);
            assert_eq!((s.requested_bytes.current, s.allocated_bytes.current, s.blocks.current), (0, 0, 0));
        }
    });
}

#[test]
fn a_large_block_has_what_is_free_behind_it() {
    everywhere(|h| {
        let room = pool_alloc(h.pool, 24 * MIB, null_mut());
        free(room);
        let p = pool_alloc(h.pool, 4 * MIB, null_mut());
        fill(&h, p, 1, 4 * MIB);
        for bytes in [5 * MIB, 9 * MIB + 3, 2 * MIB, 8 * MIB] {
            ok(expand(p, bytes));
            assert_eq!(sizes(p).0, bytes);
            fill(&h, unsafe { p.byte_add(2 * MIB) }, 1, bytes - 2 * MIB);
            assert!(has(p, 1, bytes.min(4 * MIB)));
            // What it has too much, others get; and they stop it.
            let q = pool_alloc(h.pool, 200_000, null_mut());
            fill(&h, q, 2, 200_000);
            assert!(q < p || q.addr() >= p.addr() + bytes);
            assert!(has(p, 1, bytes) && has(q, 2, 200_000));
            free(q);
        }
        let q = pool_alloc(h.pool, 200_000, null_mut());
        if q.addr() > p.addr() && q.addr() < p.addr() + 10 * MIB {
            let before = (sizes(p), device_stats(h.device).allocated_bytes);
            fails(expand(p, 20 * MIB), MILLPOND_E_OUT_OF_MEMORY);
            assert!(message().contains("where it is"), "{}", message());
            assert_eq!((sizes(p), device_stats(h.device).allocated_bytes), before);
            assert_eq!(device_stats(h.device).out_of_memory_count, 0);
        }
        [p, q].into_iter().for_each(free);
        let s = device_stats(h.device);
        assert_eq!((s.allocated_bytes.current, s.blocks.current), (0, 0));
        ok(unsafe { millpond_device_empty_cache(h.device) });
        assert_eq!(device_stats(h.device).reserved_bytes.current, 0);
    });
}

#[test]
fn what_another_stream_uses_is_not_given_away() {
    everywhere(|h| {
        let (own, side) = (h.stream(), h.stream());
        let p = pool_alloc(h.pool, 8 * MIB, own);
        ok(unsafe { millpond_record_stream(p, side) });
        let gate = Gate::new(h.device, side);
        ok(unsafe { millpond_memset_async(h.device, side, p, 7, 8 * MIB) });
        ok(expand(p, MIB));
        // The end of it is still written to by the other stream.
        let q = pool_alloc(h.pool, 6 * MIB, own);
        assert!(q.addr() + 6 * MIB <= p.addr() || q.addr() >= p.addr() + 8 * MIB);
        gate.open();
        ok(unsafe { millpond_device_synchronize(h.device) });
        [p, q].into_iter().for_each(free);
        ok(unsafe { millpond_device_synchronize(h.device) });
        for s in [own, side] {
            ok(unsafe { millpond_stream_destroy(h.device, s) });
        }
    });
}

#[test]
fn a_graphs_free_memory_is_not_taken() {
    everywhere(|h| {
        let (pool, stream) = (h.new_pool(), h.stream());
        let mut capture = null_mut();
        ok(unsafe { millpond_capture_begin(pool, stream, &mut capture) });
        let room = pool_alloc(h.pool, 16 * MIB, stream);
        ok(unsafe { millpond_pool_free(h.pool, room, stream) });
        let p = pool_alloc(h.pool, 2 * MIB, stream);
        fails(expand(p, 6 * MIB), MILLPOND_E_OUT_OF_MEMORY);
        ok(unsafe { millpond_capture_end(capture) });
        fails(expand(p, 6 * MIB), MILLPOND_E_OUT_OF_MEMORY);
        ok(expand(p, MIB));
        ok(expand(p, sizes(p).1));
        free(p);
        ok(unsafe { millpond_capture_release(capture) });
        ok(unsafe { millpond_stream_destroy(h.device, stream) });
        ok(unsafe { millpond_pool_destroy(pool) });
    });
}

#[test]
fn what_cannot_be() {
    let h = host(true);
    let p = pool_alloc(h.pool, 100_000, null_mut());
    fails(expand(p, 0), MILLPOND_E_INVALID_ARGUMENT);
    fails(expand(null_mut(), 10), MILLPOND_E_INVALID_ARGUMENT);
    fails(expand(unsafe { p.byte_add(512) }, 10), MILLPOND_E_UNKNOWN_POINTER);
    for bytes in [usize::MAX, usize::MAX - 511, 1 << 40] {
        fails(expand(p, bytes), MILLPOND_E_OUT_OF_MEMORY);
    }
    assert_eq!(sizes(p).0, 100_000);
    free(p);
    fails(expand(p, 10), MILLPOND_E_UNKNOWN_POINTER);
    let pool = h.new_pool();
    let p = pool_alloc(pool, 100, null_mut());
    ok(unsafe { millpond_pool_sleep(pool, 0) });
    fails(expand(p, 200), MILLPOND_E_NOT_PERMITTED);
    ok(unsafe { millpond_pool_wake(pool) });
    ok(expand(p, 200));
    free(p);
    ok(unsafe { millpond_pool_destroy(pool) });
}

#[test]
fn its_tag_and_its_checkpoint_know() {
    let h = host(true);
    let pool = h.new_pool();
    let of_tag = || {
        let (size, mut n) = (size_of::<millpond_tag_stats>(), 0);
        let mut all: Vec<millpond_tag_stats> = (0..64).map(|_| unsafe { std::mem::zeroed() }).collect();
        ok(unsafe { millpond_device_list_tags(h.device, all.as_mut_ptr(), size, 64, &mut n) });
        all.truncate(n);
        all.iter().map(|t| (t.requested_bytes.current, t.blocks.current)).max().unwrap()
    };
    ok(unsafe { millpond_tag_push(c"resized".as_ptr()) });
    let p = pool_alloc(pool, 3 * MIB, null_mut());
    ok(millpond_tag_pop());
    let mut checkpoint = null_mut();
    ok(unsafe { millpond_pool_checkpoint(pool, &mut checkpoint) });
    ok(expand(p, MIB));
    assert_eq!(of_tag(), (MIB as u64, 1));
    ok(unsafe { millpond_pool_restore(pool, checkpoint, None, null_mut()) });
    assert_eq!(sizes(p).0, 3 * MIB);
    assert_eq!(of_tag(), (3 * MIB as u64, 1));
    ok(unsafe { millpond_checkpoint_destroy(checkpoint) });
    free(p);
    assert_eq!(of_tag(), (0, 0));
    ok(unsafe { millpond_pool_destroy(pool) });
}

/// What a block has beyond its request is there for the asking, and before that nothing may be copied there.
#[test]
fn the_usable_size_is_there_for_the_asking() {
    everywhere(|h| {
        for bytes in [1, 100, 513, 5000, 70_000, 3 << 20] {
            let p = pool_alloc(h.pool, bytes, null_mut());
            let mut usable = 0;
            ok(unsafe { millpond_get_usable_size(p, &mut usable) });
            assert!(usable >= bytes && usable == sizes(p).1, "{usable} of {bytes}");
            if usable > bytes {
                fails(unsafe { millpond_memset(h.device, p, 0, usable) }, MILLPOND_E_OUT_OF_RANGE);
            }
            ok(expand(p, usable));
            fill(&h, p, 3, usable);
            let (before, inside) = (usable, p.wrapping_byte_add(1));
            fails(unsafe { millpond_get_usable_size(inside, &mut usable) }, MILLPOND_E_UNKNOWN_POINTER);
            fails(unsafe { millpond_get_usable_size(p, null_mut()) }, MILLPOND_E_INVALID_ARGUMENT);
            ok(unsafe { millpond_free(p) });
            assert_ne!(unsafe { millpond_get_usable_size(p, &mut usable) }, C_Status::SUCCESS);
            assert_eq!(usable, before);
        }
    });
}
