//! The device cannot create, record, query or wait for an event, for a while or in one call. Then nobody knows whether
//! the work is over: the library waits for it in another way, or keeps the memory that it may touch until the device
//! can be asked again. This memory is never handed out early, and never lost.

use crate::apart::*;
use crate::api::*;
use crate::held::{self, Control};
use millpond::Code;
use millpond::capi::*;
use std::sync::Arc;

mod ends;

const BYTES: usize = 3 * MIB;
const CAPACITY: usize = 64 * MIB;

fn world() -> (Device, Arc<Control>, Pool) {
    let (d, control) = held::host(CAPACITY, true);
    (d, control, d.default_pool())
}

/// From here on no point in a stream can be had.
fn no_events(control: &Control, why: Code) {
    control.fail_all("event_create", why);
    control.fail_all("event_record", why);
}

/// Nothing of the device is lost: all of it can be had, and all of it goes back.
fn all_is_back(d: Device) {
    d.synchronize().unwrap();
    // The first look notes what has come to its end.
    let active = || d.stats().active_bytes.current;
    assert!(soon(LATE, || active() == 0), "{} bytes wait for ever", active());
    assert_eq!(d.room_for(2 * MIB), CAPACITY / (2 * MIB), "memory is lost");
    d.empty_cache().unwrap();
    assert_eq!(d.stats().reserved_bytes.current, 0, "memory stays");
}

// ---- the free --------------------------------------------------------------------------------------------------

/// A block that another stream uses, whose work is held up.
fn used_elsewhere() -> (Device, Arc<Control>, Pool, Stream, Gate, usize) {
    let (d, control, pool) = world();
    let (a, b) = (d.stream(), d.stream());
    let p = pool.alloc(BYTES, a).unwrap();
    record_stream(p, b).unwrap();
    let gate = d.gate(b);
    d.fill(b, p, 0xAA, BYTES);
    gate.open_after(2 * LATE);
    (d, control, pool, a, gate, p)
}

/// What the next requests of the stream get is not what the other stream still writes; and all comes back.
fn nothing_comes_early(d: Device, pool: Pool, a: Stream, gate: Gate) {
    for _ in 0..4 {
        let q = pool.alloc(BYTES, a).unwrap();
        d.fill(a, q, 0x11, BYTES);
        std::thread::sleep(LATE / 8);
        let early = !gate.is_open();
        pool.free(q, a).unwrap();
        if !early {
            break;
        }
    }
    let q = pool.alloc(BYTES, a).unwrap();
    d.fill(a, q, 0x22, BYTES);
    std::thread::sleep(LATE / 8);
    gate.open();
    d.synchronize().unwrap();
    assert_eq!(filled(q, BYTES), Some(0x22), "work of the other stream came after the next owner's");
    free(q).unwrap();
    all_is_back(d);
}

/// A block that another stream uses is freed when no event can be made.
#[test]
fn a_free_when_no_event_can_be_made_waits() {
    apart(|| {
        let (d, control, pool, a, gate, p) = used_elsewhere();
        no_events(&control, Code::OutOfMemory);
        let freed = pool.free(p, a);
        control.mend();
        if freed.is_err() {
            pool.free(p, a).unwrap();
        }
        nothing_comes_early(d, pool, a, gate);
    });
}

/// The same when the device cannot be waited for either.
#[test]
fn a_free_when_the_device_fails_keeps_the_block() {
    apart(|| {
        let (d, control, pool, a, gate, p) = used_elsewhere();
        no_events(&control, Code::Device);
        ["synchronize", "stream_synchronize", "event_synchronize"]
            .iter()
            .for_each(|name| control.fail_all(name, Code::Device));
        let freed = pool.free(p, a);
        control.mend();
        if freed.is_err() {
            pool.free(p, a).unwrap(); // after an error nothing was freed
        }
        nothing_comes_early(d, pool, a, gate);
    });
}

/// A block without a stream is freed when the device can neither make events nor be waited for.
#[test]
fn a_free_without_a_stream_when_the_device_fails_keeps_the_block() {
    apart(|| {
        let (d, control, _) = world();
        let b = d.stream();
        let p = d.alloc(BYTES).unwrap();
        let gate = d.gate(b);
        d.fill(b, p, 0xAA, BYTES);
        gate.open_after(2 * LATE);
        no_events(&control, Code::Device);
        control.fail_all("synchronize", Code::Device);
        let freed = free(p);
        control.mend();
        if freed.is_err() {
            free(p).unwrap();
        }
        let q = d.alloc(BYTES).unwrap();
        poke(q, 0x11, BYTES);
        gate.open();
        d.synchronize().unwrap();
        assert_eq!(filled(q, BYTES), Some(0x11), "work that used the block came after the next owner's");
        free(q).unwrap();
        all_is_back(d);
    });
}

// ---- while a freed block waits ---------------------------------------------------------------------------------

/// The question whether the other stream is through fails once: that is no answer.
#[test]
fn a_query_that_fails_does_not_end_the_wait() {
    apart(|| {
        let (d, control, pool, a, gate, p) = used_elsewhere();
        pool.free(p, a).unwrap();
        control.fail("event_query", 1, Code::Device);
        nothing_comes_early(d, pool, a, gate);
    });
}

/// Every query fails as long as the work lasts.
#[test]
fn queries_that_fail_for_a_while_do_not_end_the_wait() {
    apart(|| {
        let (d, control, pool, a, gate, p) = used_elsewhere();
        pool.free(p, a).unwrap();
        for why in [Code::Device, Code::OutOfMemory, Code::System, Code::Unsupported] {
            control.fail_all("event_query", why);
            d.stats();
            control.mend();
        }
        nothing_comes_early(d, pool, a, gate);
    });
}

/// A request for which the device has no memory waits for the block, and the wait fails: the memory is not there yet.
/// The request may fail; the next one, when the device can be waited for again, is served.
#[test]
fn a_wait_that_fails_is_not_over() {
    apart(|| {
        let (d, control, pool) = world();
        let (a, b) = (d.stream(), d.stream());
        let p = pool.alloc(CAPACITY, a).unwrap();
        record_stream(p, b).unwrap();
        let gate = d.gate(b);
        d.fill(b, p, 0xAA, CAPACITY);
        pool.free(p, a).unwrap();
        ["event_synchronize", "synchronize", "stream_synchronize"]
            .iter()
            .for_each(|name| control.fail_all(name, Code::Device));
        gate.open_after(2 * LATE);
        let early = pool.alloc(CAPACITY, a);
        control.mend();
        let was_early = !gate.is_open();
        let q = match early {
            Ok(q) => q,
            Err(_) => pool.alloc(CAPACITY, a).unwrap(),
        };
        d.fill(a, q, 0x11, CAPACITY);
        std::thread::sleep(LATE / 4);
        gate.open();
        d.synchronize().unwrap();
        assert_eq!(filled(q, CAPACITY), Some(0x11), "handed out early: {was_early}");
        free(q).unwrap();
        all_is_back(d);
    });
}

/// The use ended at an event of the caller's, and that one cannot be asked for once.
#[test]
fn a_query_of_the_callers_event_that_fails_does_not_end_the_wait() {
    apart(|| {
        let (d, control, pool) = world();
        let (a, b) = (d.stream(), d.stream());
        let p = pool.alloc(BYTES, a).unwrap();
        let gate = d.gate(b);
        d.fill(b, p, 0xAA, BYTES);
        let e = d.event();
        d.event_record(b, e).unwrap();
        record_end_at(p, b, e).unwrap();
        gate.open_after(2 * LATE);
        pool.free(p, a).unwrap();
        control.fail_all("event_query", Code::Device);
        d.stats();
        control.mend();
        nothing_comes_early(d, pool, a, gate);
        d.end_event(e).unwrap();
    });
}

/// Unused memory is asked back while the device cannot tell how far a freed block's stream is: the call may fail, but
/// the block goes on waiting.
#[test]
fn emptying_the_cache_when_waits_fail_keeps_what_waits() {
    apart(|| {
        let (d, control, pool, a, gate, p) = used_elsewhere();
        pool.free(p, a).unwrap();
        control.fail_all("event_query", Code::Device);
        control.fail_all("event_synchronize", Code::Device);
        // Only the first wait for the device succeeds, and it does not concern this.
        control.fail_all("synchronize", Code::Device);
        let _ = d.empty_cache();
        let _ = d.pool(0).destroy();
        d.stats();
        control.mend();
        nothing_comes_early(d, pool, a, gate);
    });
}

/// A pool ends while its freed block cannot be asked about: BUSY, or done; nothing is lost.
#[test]
fn the_end_of_a_pool_when_queries_fail_loses_nothing() {
    apart(|| {
        let (d, control, _) = world();
        let (a, b, pool) = (d.stream(), d.stream(), d.pool(0));
        let p = pool.alloc(BYTES, a).unwrap();
        record_stream(p, b).unwrap();
        let gate = d.gate(b);
        d.fill(b, p, 0xAA, BYTES);
        gate.open_after(LATE);
        pool.free(p, a).unwrap();
        control.fail_all("event_query", Code::Device);
        control.fail_all("event_synchronize", Code::Device);
        let ended = pool.destroy();
        control.mend();
        if ended.is_err() {
            pool.destroy().unwrap();
        }
        assert_eq!(d.stats().reserved_bytes.current, 0, "memory of a pool that has ended");
        all_is_back(d);
    });
}

/// Where nothing is pooled, the free itself waits for the block's streams, also for one that has ended when it could
/// not be waited for: the device takes memory back at once.
#[test]
fn without_pooling_a_use_on_a_stream_whose_end_could_not_be_waited_for_is_not_over() {
    apart(|| {
        let (d, control) = held::host_with(CAPACITY, true, "backend:none");
        let (a, b, pool) = (d.stream(), d.stream(), d.default_pool());
        let p = pool.alloc(BYTES, a).unwrap();
        record_stream(p, b).unwrap();
        let gate = d.gate(b);
        d.fill(b, p, 0xAA, BYTES);
        gate.open_after(LATE);
        control.fail("stream_synchronize", 1, Code::Device);
        let ended = d.end_stream(b);
        pool.free(p, a).unwrap();
        assert!(gate.is_open(), "the memory went back while work was on it");
        d.synchronize().unwrap();
        if ended.is_err() {
            d.end_stream(b).unwrap();
        }
        assert_eq!(d.stats().reserved_bytes.current, 0);
    });
}

// ---- over and over ---------------------------------------------------------------------------------------------

/// Each call that concerns points in streams fails now and then, in every order. Whatever the calls answer, contents
/// are right and nothing is lost.
#[test]
fn failures_at_any_call_neither_lose_memory_nor_hand_it_out_early() {
    apart(|| {
        let calls = ["event_create", "event_record", "event_query", "event_synchronize", "stream_wait_event"];
        let mut wrong = Vec::new();
        for name in calls {
            for nth in 1..=4 {
                let (d, control, pool) = world();
                let (a, b, keep) = (d.stream(), d.stream(), d.stream());
                let p = pool.alloc(BYTES, a).unwrap();
                let x = pool.alloc(BYTES, keep).unwrap();
                record_stream(p, b).unwrap();
                record_stream(x, b).unwrap();
                let gate = d.gate(b);
                d.fill(b, p, 0xAA, BYTES);
                d.fill(b, x, 0xAA, BYTES);
                gate.open_after(LATE);
                control.fail(name, nth, Code::Device);
                if pool.free(p, a).is_err() {
                    pool.free(p, a).unwrap();
                }
                let mut live: Vec<(Stream, usize)> = Vec::new();
                live.extend(pool.alloc(BYTES, a).map(|q| (a, q)));
                if d.end_stream(b).is_err() {
                    d.end_stream(b).unwrap();
                }
                if pool.free(x, keep).is_err() {
                    pool.free(x, keep).unwrap();
                }
                let c = d.stream();
                live.extend([a, keep, c].iter().filter_map(|&s| Some((s, pool.alloc(BYTES, s).ok()?))));
                live.iter().for_each(|&(s, q)| d.fill(s, q, 0x11, BYTES));
                std::thread::sleep(LATE / 8);
                gate.open();
                control.mend();
                d.synchronize().unwrap();
                let early = live.iter().any(|&(_, q)| filled(q, BYTES) != Some(0x11));
                live.iter().for_each(|&(_, q)| free(q).unwrap());
                d.synchronize().unwrap();
                d.stats();
                let lost = d.room_for(2 * MIB) != CAPACITY / (2 * MIB);
                if early || lost {
                    wrong.push(format!("{name} {nth}: early {early}, lost {lost}"));
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    });
}

/// Pinned memory that a stream still uses: a wait for it that fails is not over.
#[test]
fn pinned_memory_whose_wait_fails_is_kept() {
    apart(|| {
        let (d, control, _) = world();
        let s = d.stream();
        let mut p: *mut u8 = std::ptr::null_mut();
        outcome(unsafe { millpond_host_alloc(ptr(d.0), BYTES, (&raw mut p).cast()) }).unwrap();
        let gate = d.gate(s);
        outcome(unsafe { millpond_host_record_stream(ptr(d.0), p.cast(), ptr(s.0)) }).unwrap();
        outcome(unsafe { millpond_host_free(ptr(d.0), p.cast()) }).unwrap();
        for name in ["event_synchronize", "stream_synchronize", "synchronize"] {
            control.fail_all(name, Code::Device);
        }
        let freed = control.calls("host_free");
        let _ = outcome(unsafe { millpond_device_empty_host_cache(ptr(d.0)) });
        assert_eq!(control.calls("host_free"), freed, "it went back under work that is still queued");
        control.mend();
        gate.open();
        outcome(unsafe { millpond_device_empty_host_cache(ptr(d.0)) }).unwrap();
        assert!(control.calls("host_free") > freed);
    });
}
