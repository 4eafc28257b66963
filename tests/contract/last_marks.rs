//! The last point of a stream that has ended stays until the stream's work has passed it: a request that gets the
//! stream's free memory waits for that point. Calls that give memory back wait for the device and then forget such
//! points, but only those that their wait has covered. And no point is mistaken for another one while other threads use
//! the device's events.

use crate::apart::*;
use crate::api::*;
use crate::held::{self, Control, victim};
use std::sync::Arc;
use std::time::Duration;

const BYTES: usize = MIB;

/// A held device of 64 MiB, a pool beside the default one, and a stream with a block that stays, so that the granule
/// in which its other blocks lie stays, too.
struct World {
    d: Device,
    control: Arc<Control>,
    beside: Pool,
    a: Stream,
    block: usize,
}

fn world() -> World {
    let (d, control) = held::host(64 * MIB, true);
    let (a, beside) = (d.stream(), d.pool(0));
    let block = d.default_pool().alloc(BYTES, a).unwrap();
    d.default_pool().alloc(64 * KIB, a).unwrap();
    World { d, control, beside, a, block }
}

/// A stream ends, with work queued, while another thread is in `call` and has already waited for the device. The next
/// stream gets the memory, and its work must come after that of the ended one.
fn ends_meanwhile(w: World, call: impl FnOnce() -> Outcome<()> + Send + 'static) {
    let World { d, control, a, block, .. } = w;
    let pool = d.default_pool();
    let c = d.stream();
    let waits = control.calls("synchronize");
    let waited = control.hold_after("synchronize", 1);
    let other = victim(call);
    waited.reached();

    let gate = d.gate(a);
    d.fill(a, block, 0xAA, BYTES);
    pool.free(block, a).unwrap();
    gate.open_after(3 * LATE);
    within(10, "the end of the stream", move || d.end_stream(a)).unwrap();
    waited.let_go();
    // Up to its next wait, or its end.
    soon(LATE, || other.is_finished() || control.calls("synchronize") > waits + 1);

    let q = within(10, "a request of the next stream", move || pool.alloc(BYTES, c)).unwrap();
    d.fill(c, q, 0x11, BYTES);
    std::thread::sleep(LATE / 4);
    gate.open();
    other.join().unwrap().unwrap();
    d.synchronize().unwrap();
    assert_eq!(filled(q, BYTES), Some(0x11), "work of the ended stream came after that of the next");
}

/// Without another thread's call meanwhile the next stream waits, and on the device only.
#[test]
fn the_next_stream_waits_for_the_one_that_has_ended() {
    apart(|| {
        let World { d, a, block, .. } = world();
        let (pool, c) = (d.default_pool(), d.stream());
        let gate = d.gate(a);
        d.fill(a, block, 0xAA, BYTES);
        pool.free(block, a).unwrap();
        d.end_stream(a).unwrap();
        let q = within(10, "a request of the next stream", move || pool.alloc(BYTES, c)).unwrap();
        assert_eq!(q, block, "the test is about this memory");
        d.fill(c, q, 0x11, BYTES);
        std::thread::sleep(LATE / 4);
        gate.open();
        d.synchronize().unwrap();
        assert_eq!(filled(q, BYTES), Some(0x11));
    });
}

/// `millpond_device_empty_cache` forgets only what it has waited for.
#[test]
fn emptying_the_cache_beside_the_end_of_a_stream() {
    apart(|| {
        let w = world();
        let d = w.d;
        ends_meanwhile(w, move || d.empty_cache());
    });
}

/// So does `millpond_pool_empty_cache`, which concerns another pool.
#[test]
fn emptying_another_pools_cache_beside_the_end_of_a_stream() {
    apart(|| {
        let w = world();
        let beside = w.beside;
        ends_meanwhile(w, move || beside.empty_cache());
    });
}

/// So do the calls that give unused memory back down to a size.
#[test]
fn trimming_beside_the_end_of_a_stream() {
    apart(|| {
        let w = world();
        let d = w.d;
        ends_meanwhile(w, move || d.trim_to(0));
    });
}

#[test]
fn trimming_another_pool_beside_the_end_of_a_stream() {
    apart(|| {
        let w = world();
        let beside = w.beside;
        ends_meanwhile(w, move || beside.trim_to(0));
    });
}

#[test]
fn lowering_the_budget_beside_the_end_of_a_stream() {
    apart(|| {
        let w = world();
        let d = w.d;
        ends_meanwhile(w, move || d.set_budget(1).map(drop));
    });
}

/// So does the end of another pool.
#[test]
fn ending_another_pool_beside_the_end_of_a_stream() {
    apart(|| {
        let w = world();
        let beside = w.beside;
        ends_meanwhile(w, move || beside.destroy());
    });
}

/// So does the sleep of another pool.
#[test]
fn sleep_of_another_pool_beside_the_end_of_a_stream() {
    apart(|| {
        let w = world();
        let beside = w.beside;
        beside.alloc(BYTES, NULL).unwrap();
        ends_meanwhile(w, move || beside.sleep(true));
    });
}

/// So does a wake that gives idle memory back first.
#[test]
fn wake_of_another_pool_beside_the_end_of_a_stream() {
    apart(|| {
        let w = world();
        let (d, beside) = (w.d, w.beside);
        beside.alloc(32 * MIB, NULL).unwrap();
        beside.sleep(false).unwrap();
        let idle = d.default_pool().alloc(56 * MIB, NULL).unwrap();
        d.default_pool().free(idle, NULL).unwrap();
        ends_meanwhile(w, move || beside.wake());
    });
}

/// So does the release of another pool's last capture.
#[test]
fn release_of_a_capture_beside_the_end_of_a_stream() {
    apart(|| {
        let w = world();
        let (d, beside) = (w.d, w.beside);
        let capture = beside.capture(d.stream()).unwrap();
        capture.end().unwrap();
        ends_meanwhile(w, move || capture.release());
    });
}

/// So does a request that finds no memory and gives idle segments back.
#[test]
fn a_request_that_gives_segments_back_beside_the_end_of_a_stream() {
    apart(|| {
        let (d, control) = held::host(256 * MIB, false);
        let (a, beside) = (d.stream(), d.pool(0));
        let pool = d.default_pool();
        let block = pool.alloc(BYTES, a).unwrap();
        pool.alloc(64 * KIB, a).unwrap();
        // The rest of the device in idle segments, none of which is large enough.
        let idle: Vec<usize> = (0..3).map(|_| beside.alloc(60 * MIB, NULL).unwrap()).collect();
        idle.into_iter().for_each(|p| beside.free(p, NULL).unwrap());
        let w = World { d, control, beside, a, block };
        ends_meanwhile(w, move || beside.alloc(120 * MIB, NULL).map(drop));
    });
}

/// The last point of an ended stream is asked for by a thread that takes free memory of it, while another stream
/// takes the whole heap over and the event is used again elsewhere: the taker must not take the event's new answer for
/// the old one.
#[test]
fn a_point_is_not_taken_for_another_one_that_has_its_event() {
    apart(|| {
        let (d, control) = held::host(64 * MIB, true);
        let (a, b, c, idle) = (d.stream(), d.stream(), d.stream(), d.stream());
        let pool = d.default_pool();
        let big = pool.alloc(16 * MIB, a).unwrap();
        let other = pool.alloc(BYTES, idle).unwrap();
        pool.alloc(BYTES, b).unwrap(); // it has a heap of its own
        let gate = d.gate(a);
        d.fill(a, big, 0xAA, 16 * MIB);
        pool.free(big, a).unwrap();
        gate.open_after(3 * LATE);
        d.end_stream(a).unwrap();

        // The taker stands before the question whether the ended stream has passed its last point.
        let asking = control.hold_before("event_query", 1);
        let taker = victim(move || {
            let q = pool.alloc(2 * MIB, b).unwrap();
            d.fill(b, q, 0x11, 2 * MIB);
            q
        });
        if !soon(Duration::from_secs(2), || asking.is_reached() || taker.is_finished()) {
            panic!("the taker neither asks nor is done");
        }
        // Meanwhile a new stream has the heap, and the event stands for the end of an idle stream's work.
        let next = in_time(5, move || pool.alloc(BYTES, c).unwrap());
        record_end(other, b).unwrap();
        asking.let_go();
        let q = taker.join().unwrap();
        std::thread::sleep(LATE / 4);
        gate.open();
        d.synchronize().unwrap();
        assert_eq!(filled(q, 2 * MIB), Some(0x11), "work of the ended stream came after the taker's");
        assert!(next.is_some(), "a request of another stream waits for the thread that asks");
    });
}

/// The same with the restore of a checkpoint's layout instead of a request: granules move between the pool's heaps.
#[test]
fn a_restore_waits_for_the_stream_that_the_memory_comes_from() {
    apart(|| {
        let (d, _control) = held::host(64 * MIB, true);
        let (a, b, pool) = (d.stream(), d.stream(), d.pool(0));
        let p = pool.alloc(2 * MIB, b).unwrap();
        let kept = pool.checkpoint();
        pool.free(p, b).unwrap();
        // The granule goes to a heap whose stream then has work on it.
        let q = pool.alloc(2 * MIB, a).unwrap();
        assert_eq!(p, q, "the test is about one granule");
        let gate = d.gate(a);
        d.fill(a, q, 0xAA, 2 * MIB);
        pool.free(q, a).unwrap();
        gate.open_after(LATE);
        assert_eq!(pool.restore(kept).unwrap(), vec![p]);
        d.fill(b, p, 0x11, 2 * MIB);
        std::thread::sleep(LATE / 4);
        gate.open();
        d.synchronize().unwrap();
        assert_eq!(filled(p, 2 * MIB), Some(0x11));
    });
}
