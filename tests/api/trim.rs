//! Memory back to the device down to so many bytes, and a budget that is lowered while the program runs: what is used,
//! waits, sleeps or belongs to a graph stays, and nothing more goes than has to.

use crate::pools::*;
use crate::support::capi::*;
use millpond::capi::*;
use std::ffi::c_void;
use std::ptr::{null_mut, without_provenance_mut};
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn reserved(h: &Host) -> u64 {
    device_stats(h.device).reserved_bytes.current
}

fn maps(h: &Host) -> bool {
    let mut info: millpond_device_info = unsafe { std::mem::zeroed() };
    info.struct_size = size_of::<millpond_device_info>();
    ok(unsafe { millpond_device_get_info(h.device, &mut info) });
    info.caps & MILLPOND_CAP_MAPPING != 0
}

fn write(p: *mut c_void, byte: u8, bytes: usize) {
    unsafe { p.cast::<u8>().write_bytes(byte, bytes) };
}

fn has(p: *mut c_void, byte: u8, bytes: usize) -> bool {
    unsafe { std::slice::from_raw_parts(p.cast::<u8>(), bytes) }.iter().all(|&b| b == byte)
}

#[test]
fn as_much_goes_as_must_and_no_more() {
    everywhere(|h| {
        let blocks: Vec<_> = (0..12).map(|_| pool_alloc(h.pool, 6 << 20, null_mut())).collect();
        for (n, &p) in blocks.iter().enumerate().step_by(2) {
            write(p, n as u8, 6 << 20);
        }
        blocks.iter().skip(1).step_by(2).for_each(|&p| free(p));
        let all = reserved(&h);
        let calls = device_stats(h.device).driver_calls;
        for keep in [all, all + 1, u64::MAX] {
            ok(unsafe { millpond_device_trim_to(h.device, keep) });
            ok(unsafe { millpond_pool_trim_to(h.pool, keep) });
        }
        assert_eq!((reserved(&h), device_stats(h.device).driver_calls), (all, calls), "nothing had to go");
        if maps(&h) {
            for gone in [1, 2 * MIB + 1, 5 * MIB] {
                let before = reserved(&h);
                ok(unsafe { millpond_device_trim_to(h.device, before - gone) });
                assert_eq!(reserved(&h), before - gone.next_multiple_of(2 * MIB));
            }
        }
        let before = reserved(&h);
        ok(unsafe { millpond_pool_trim_to(h.pool, 40 * MIB) });
        let after = reserved(&h);
        ok(unsafe { millpond_pool_trim_to(h.pool, 1) });
        let least = reserved(&h);
        assert!(after == least || after <= 40 * MIB, "{before} to {after}, and could be {least}");
        ok(unsafe { millpond_device_empty_cache(h.device) });
        assert_eq!(reserved(&h), least, "all that was unused has gone before");
        for (n, &p) in blocks.iter().enumerate().step_by(2) {
            assert!(has(p, n as u8, 6 << 20), "block {n}");
            free(p);
        }
        ok(unsafe { millpond_device_trim_to(h.device, 1) });
        assert_eq!(reserved(&h), 0);
    });
}

#[test]
fn a_pool_is_trimmed_without_the_others() {
    everywhere(|h| {
        let other = h.new_pool();
        for pool in [h.pool, other] {
            [4, 8, 12].map(|n| pool_alloc(pool, n << 20, null_mut())).into_iter().for_each(free);
        }
        let of = |pool| pool_stats(pool).reserved_bytes.current;
        let (mine, theirs) = (of(h.pool), of(other));
        ok(unsafe { millpond_pool_trim_to(other, 1) });
        assert_eq!(of(h.pool), mine);
        assert!(of(other) < theirs);
        // Of both together.
        ok(unsafe { millpond_device_trim_to(h.device, 4 * MIB) });
        assert!(reserved(&h) <= 4 * MIB);
        ok(unsafe { millpond_pool_destroy(other) });
    });
}

#[test]
fn what_waits_is_waited_for() {
    everywhere(|h| {
        let (own, side) = (h.stream(), h.stream());
        let p = pool_alloc(h.pool, 32 << 20, own);
        let gate = Gate::new(h.device, side);
        ok(unsafe { millpond_record_stream(p, side) });
        ok(unsafe { millpond_memset_async(h.device, side, p, 7, 32 << 20) });
        ok(unsafe { millpond_pool_free(h.pool, p, own) });
        // Nothing has to go: the waiting block does not matter, and nobody waits for the stream.
        ok(unsafe { millpond_device_trim_to(h.device, reserved(&h)) });
        assert!(device_stats(h.device).active_bytes.current > 0);
        let open = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            gate.open();
        });
        ok(unsafe { millpond_device_trim_to(h.device, MIB) });
        let mut done = false;
        ok(unsafe { millpond_stream_query(h.device, side, &mut done) });
        assert!(done, "the memory went while a stream could still write to it");
        assert_eq!((reserved(&h), device_stats(h.device).active_bytes.current), (0, 0));
        open.join().unwrap();
        for s in [own, side] {
            ok(unsafe { millpond_stream_destroy(h.device, s) });
        }
    });
}

#[test]
fn a_graphs_memory_stays() {
    everywhere(|h| {
        let (pool, stream) = (h.new_pool(), h.stream());
        let idle = pool_alloc(h.pool, 16 << 20, null_mut());
        free(idle);
        let mut capture = null_mut();
        ok(unsafe { millpond_capture_begin(pool, stream, &mut capture) });
        let p = pool_alloc(h.pool, 8 << 20, stream);
        ok(unsafe { millpond_pool_free(h.pool, p, stream) });
        let before = reserved(&h);
        fails(unsafe { millpond_device_trim_to(h.device, MIB) }, MILLPOND_E_BUSY);
        fails(unsafe { millpond_pool_trim_to(pool, MIB) }, MILLPOND_E_BUSY);
        let mut above = 77;
        fails(unsafe { millpond_device_set_budget(h.device, MIB, &mut above) }, MILLPOND_E_BUSY);
        assert_eq!((reserved(&h), above, device_stats(h.device).limit_bytes), (before, 77, MIB));
        ok(unsafe { millpond_device_trim_to(h.device, before) });
        ok(unsafe { millpond_device_set_budget(h.device, 0, null_mut()) });
        ok(unsafe { millpond_capture_end(capture) });
        ok(unsafe { millpond_device_trim_to(h.device, MIB) });
        assert!(pool_stats(pool).reserved_bytes.current >= 8 * MIB);
        assert_eq!(pool_stats(h.pool).reserved_bytes.current, 0);
        ok(unsafe { millpond_capture_release(capture) });
        ok(unsafe { millpond_device_trim_to(h.device, MIB) });
        assert_eq!(reserved(&h), 0);
        ok(unsafe { millpond_pool_destroy(pool) });
        ok(unsafe { millpond_stream_destroy(h.device, stream) });
    });
}

#[test]
fn a_pool_that_sleeps_is_left_alone() {
    let h = host(true);
    let pool = h.new_pool();
    let p = pool_alloc(pool, 5 << 20, null_mut());
    write(p, 9, 5 << 20);
    ok(unsafe { millpond_pool_sleep(pool, MILLPOND_SLEEP_KEEP) });
    free(pool_alloc(h.pool, 20 << 20, null_mut()));
    ok(unsafe { millpond_pool_trim_to(pool, 1) });
    ok(unsafe { millpond_device_trim_to(h.device, 1) });
    assert_eq!(reserved(&h), 0);
    let mut above = 77;
    ok(unsafe { millpond_device_set_budget(h.device, MIB, &mut above) });
    assert_eq!(above, 0, "what sleeps does not count");
    fails(unsafe { millpond_pool_wake(pool) }, MILLPOND_E_OUT_OF_MEMORY);
    ok(unsafe { millpond_device_set_budget(h.device, 8 * MIB, &mut above) });
    ok(unsafe { millpond_pool_wake(pool) });
    assert!(has(p, 9, 5 << 20));
    free(p);
    ok(unsafe { millpond_pool_destroy(pool) });
}

#[test]
fn a_budget_is_lowered_while_the_program_runs() {
    everywhere(|h| {
        let live: Vec<_> = (0..4).map(|_| pool_alloc(h.pool, 6 << 20, null_mut())).collect();
        let idle: Vec<_> = (0..6).map(|_| pool_alloc(h.pool, 6 << 20, null_mut())).collect();
        idle.into_iter().for_each(free);
        let mut above = 77;
        ok(unsafe { millpond_device_set_budget(h.device, 200 * MIB, &mut above) });
        assert_eq!(above, 0);
        ok(unsafe { millpond_device_set_budget(h.device, 8 * MIB, &mut above) });
        assert_eq!(above, reserved(&h) - 8 * MIB);
        assert!(above >= 16 * MIB, "the blocks alone have that");
        assert_eq!(device_stats(h.device).limit_bytes, 8 * MIB);
        let mut p = null_mut();
        let more = unsafe { millpond_pool_alloc(h.pool, 100 << 20, null_mut(), &mut p) };
        fails(more, MILLPOND_E_OUT_OF_MEMORY);
        live.into_iter().for_each(free);
        ok(unsafe { millpond_device_set_budget(h.device, 8 * MIB, &mut above) });
        assert_eq!(above, 0);
        assert!(reserved(&h) <= 8 * MIB);
        ok(unsafe { millpond_device_set_budget(h.device, 0, &mut above) });
        assert_eq!((above, device_stats(h.device).limit_bytes), (0, 0));
        free(pool_alloc(h.pool, 100 << 20, null_mut()));
    });
}

#[test]
fn bad_arguments() {
    let h = host(true);
    let bad = MILLPOND_E_INVALID_ARGUMENT;
    fails(unsafe { millpond_device_trim_to(null_mut(), 0) }, bad);
    fails(unsafe { millpond_pool_trim_to(null_mut(), 0) }, bad);
    fails(unsafe { millpond_pool_trim_to(h.device.cast(), 0) }, bad);
    fails(unsafe { millpond_device_set_budget(null_mut(), 0, null_mut()) }, bad);
    fails(unsafe { millpond_device_set_budget(h.device, MIB, without_provenance_mut(1)) }, bad);
    assert_eq!(device_stats(h.device).limit_bytes, 0, "nothing was set");
}
