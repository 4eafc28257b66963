//! Two threads at one boundary: a call of one of them lasts, and the other does something there that the call must not
//! undo, miss or count twice.

use crate::apart::*;
use crate::api::*;
use crate::held::{self, victim};
use millpond::capi::*;

const BYTES: usize = 3 * MIB;

/// Takes all that the device can give, without a stream. None of it is memory that queued work still uses.
#[track_caller]
fn take_all_but(d: Device, used: (usize, usize), gate: &Gate) {
    let mut all = Vec::new();
    while let Ok(p) = d.alloc(MIB) {
        assert!(
            gate.is_open() || !overlap((p, MIB), used),
            "memory was handed out under work that is still queued"
        );
        all.push(p);
    }
    all.into_iter().for_each(|p| free(p).unwrap());
}

/// A pool ends, and has already waited for the device when a block of it is made, used and freed. Whether the pool ends
/// or not, the memory of that block is nobody's before the work is over.
fn pool_ends_beside_a_block(mapping: bool, nth: u64) {
    let (d, control) = held::host(16 * MIB, mapping);
    let (pool, s) = (d.pool(0), d.stream());
    // Two blocks of which one lies behind the other: so that a segment has a part of somebody else.
    let stays = d.default_pool().alloc(MIB, s).unwrap();
    let warm = pool.alloc(BYTES, s).unwrap();
    pool.free(warm, s).unwrap();
    let hold = control.hold_after("synchronize", nth);
    let other = victim(move || pool.destroy());
    if !soon(LATE, || hold.is_reached()) {
        other.join().unwrap().unwrap(); // there are not so many waits
        return;
    }
    let p = pool.alloc(BYTES, s).unwrap();
    let gate = d.gate(s);
    d.fill(s, p, 0xAA, BYTES);
    pool.free(p, s).unwrap();
    gate.open_after(3 * LATE);
    hold.let_go();
    let ended = other.join().unwrap();
    take_all_but(d, (p, BYTES), &gate);
    gate.open();
    d.synchronize().unwrap();
    if ended.is_err() {
        assert_eq!(code(ended), MILLPOND_E_BUSY);
        pool.destroy().unwrap();
    }
    free(stays).unwrap();
    d.empty_cache().unwrap();
    assert_eq!(d.stats().reserved_bytes.current, 0);
}

#[test]
fn a_pool_that_ends_beside_a_block_keeps_its_memory_until_work_is_over() {
    apart(|| (1..=4).for_each(|nth| pool_ends_beside_a_block(true, nth)));
}

#[test]
fn a_pool_in_segments_that_ends_beside_a_block_keeps_its_memory_until_work_is_over() {
    apart(|| (1..=5).for_each(|nth| pool_ends_beside_a_block(false, nth)));
}

/// One thread says that a use has ended, and is held when its mark has been made. Another queues more work and says
/// something about the use, too: what it says counts, as it came later.
fn use_ends_beside(later: impl FnOnce(Device, usize, Stream)) {
    let (d, control) = held::host(64 * MIB, true);
    let (pool, a, b) = (d.default_pool(), d.stream(), d.stream());
    let p = pool.alloc(BYTES, a).unwrap();
    record_stream(p, b).unwrap();
    let first = d.gate(b); // so that the first mark is not passed at once
    let hold = control.hold_after("event_record", 1);
    let other = victim(move || record_end(p, b));
    hold.reached();
    let second = d.gate(b);
    d.fill(b, p, 0xAA, BYTES);
    later(d, p, b);
    hold.let_go();
    other.join().unwrap().unwrap();
    pool.free(p, a).unwrap();
    first.open();
    std::thread::sleep(LATE / 4);
    d.stats();
    let q = pool.alloc(BYTES, a).unwrap();
    d.fill(a, q, 0x11, BYTES);
    d.stream_synchronize(a).unwrap();
    second.open();
    d.synchronize().unwrap();
    assert_eq!(filled(q, BYTES), Some(0x11), "the other stream's work came after the next owner's");
}

#[test]
fn a_use_that_is_recorded_again_while_its_end_is_marked_goes_on() {
    apart(|| use_ends_beside(|_, p, b| record_stream(p, b).unwrap()));
}

#[test]
fn the_later_of_two_ends_of_a_use_counts() {
    apart(|| use_ends_beside(|_, p, b| record_end(p, b).unwrap()));
}

#[test]
fn an_end_with_an_event_that_comes_later_counts() {
    apart(|| {
        use_ends_beside(|d, p, b| {
            let e = d.event();
            d.event_record(b, e).unwrap();
            record_end_at(p, b, e).unwrap();
        });
    });
}

/// A graph's pool is released beside another capture, so that its heaps rest; the captured stream goes on with memory of
/// its own. Returns the graph's result, which lives.
fn released_beside_a_capture(d: Device, pool: Pool, s: Stream) -> usize {
    let (beside, t, replays) = (d.pool(0), d.stream(), d.stream());
    let graph = pool.capture(s).unwrap();
    let p = pool.alloc(BYTES, s).unwrap();
    graph.end().unwrap();
    let recording = beside.capture(t).unwrap();
    let gate = d.gate(replays);
    graph.release().unwrap();
    let own = pool.alloc(BYTES, s).unwrap();
    pool.free(own, s).unwrap();
    gate.open();
    recording.release().unwrap();
    d.synchronize().unwrap();
    p
}

/// A heap that was put by, whose stream lives and has another one by now, is not another stream's: blocks that live in
/// it go back to their own.
#[test]
fn what_a_live_stream_had_before_a_release_is_not_the_next_streams() {
    apart(|| {
        let d = host(64 * MIB, true);
        let (pool, s) = (d.pool(0), d.stream());
        let p = released_beside_a_capture(d, pool, s);
        let next = d.stream();
        let warm = pool.alloc(64 * KIB, next).unwrap();
        let gate = d.gate(s);
        d.fill(s, p, 0xAA, BYTES);
        free(p).unwrap();
        let q = pool.alloc(BYTES, next).unwrap();
        d.fill(next, q, 0x11, BYTES);
        d.stream_synchronize(next).unwrap();
        gate.open();
        d.synchronize().unwrap();
        assert_eq!(filled(q, BYTES), Some(0x11), "work on the block came after the next owner's");
        free(q).unwrap();
        free(warm).unwrap();
        d.end_stream(s).unwrap();
        pool.destroy().unwrap();
        assert_eq!(d.stats().reserved_bytes.current, 0);
    });
}

/// The same, and the memory of the block can be had again by its own stream and by others.
#[test]
fn what_a_live_stream_had_before_a_release_serves_again() {
    apart(|| {
        let d = host(64 * MIB, true);
        let (pool, s) = (d.pool(0), d.stream());
        let p = released_beside_a_capture(d, pool, s);
        pool.free(p, s).unwrap();
        let all: Vec<usize> = std::iter::from_fn(|| pool.alloc(2 * MIB, s).ok()).collect();
        assert_eq!(all.len(), 32);
        all.iter().for_each(|&p| pool.free(p, s).unwrap());
        let next = d.stream();
        let all: Vec<usize> = std::iter::from_fn(|| pool.alloc(2 * MIB, next).ok()).collect();
        assert_eq!(all.len(), 32);
        all.iter().for_each(|&p| free(p).unwrap());
    });
}

/// A restore finds the heaps of a pool put by since a release. It waits for the replay, or is BUSY; the stream of the
/// checkpoint has not ended.
#[test]
fn a_restore_after_a_release_beside_a_capture() {
    apart(|| {
        for busy in [true, false] {
            let d = host(64 * MIB, true);
            let (pool, beside, s, t, replays) = (d.pool(0), d.pool(0), d.stream(), d.stream(), d.stream());
            let graph = pool.capture(s).unwrap();
            let p = pool.alloc(BYTES, s).unwrap();
            let checkpoint = pool.checkpoint();
            graph.end().unwrap();
            pool.free(p, s).unwrap();
            let recording = beside.capture(t).unwrap();
            let gate = d.gate(replays);
            graph.release().unwrap();
            if busy {
                gate.open_after(LATE);
            } else {
                gate.open();
                recording.release().unwrap();
                d.synchronize().unwrap();
            }
            match pool.restore(checkpoint) {
                Ok(live) => assert_eq!(live, [p]),
                Err(e) => {
                    assert!(busy && e.code == MILLPOND_E_BUSY, "{e:?}");
                    gate.open();
                    recording.release().unwrap();
                    d.synchronize().unwrap();
                    assert_eq!(pool.restore(checkpoint).unwrap(), [p]);
                }
            }
            assert!(gate.is_open());
            pool.free(p, s).unwrap();
        }
    });
}

/// The graph's stream has got another heap meanwhile. It still has not ended.
#[test]
fn a_restore_into_a_heap_that_was_put_by() {
    apart(|| {
        let d = host(64 * MIB, true);
        let (pool, beside, s, t, replays) = (d.pool(0), d.pool(0), d.stream(), d.stream(), d.stream());
        let graph = pool.capture(s).unwrap();
        let p = pool.alloc(BYTES, s).unwrap();
        let checkpoint = pool.checkpoint();
        graph.end().unwrap();
        pool.free(p, s).unwrap();
        let recording = beside.capture(t).unwrap();
        let gate = d.gate(replays);
        graph.release().unwrap();
        let own = pool.alloc(BYTES, s).unwrap();
        gate.open();
        recording.release().unwrap();
        d.synchronize().unwrap();
        assert_eq!(pool.restore(checkpoint).unwrap(), [p]);
        assert!(block(own).is_err(), "it was not live at the checkpoint");
        // It is a block of its stream.
        let gate = d.gate(s);
        d.fill(s, p, 0xAA, BYTES);
        pool.free(p, s).unwrap();
        let next = d.stream();
        let q = pool.alloc(BYTES, next).unwrap();
        assert!(q != p || gate.is_open());
        gate.open();
        d.synchronize().unwrap();
        pool.free(q, next).unwrap();
        pool.destroy().unwrap();
        assert_eq!(d.stats().reserved_bytes.current, 0);
    });
}

/// What another device does with a block cannot be asked or waited for. The end of the block's pool says so.
#[test]
fn the_end_of_a_pool_that_waits_for_what_cannot_be_asked_comes_back() {
    apart(|| {
        let (d, control) = held::host(64 * MIB, true);
        let e = Device::get(held::NAME, 1).unwrap();
        let (pool, s) = (d.pool(0), e.stream());
        let p = without_a_stream(d, pool, BYTES);
        let q = e.alloc(BYTES).unwrap();
        let gate = e.gate(s);
        copy_between((e, q), (d, p), s);
        free(p).unwrap();
        control.fail_all("event_query", millpond::Code::Device);
        control.fail_all("event_synchronize", millpond::Code::Device);
        // Of three waits for a device the first is for the other one.
        (0..20).for_each(|n| control.fail("synchronize", 1 + 2 * n, millpond::Code::Device));
        let ended = in_time(5, move || pool.destroy());
        control.mend();
        gate.open();
        assert_eq!(code(ended.expect("the end of the pool does not come back")), MILLPOND_E_DEVICE);
        d.synchronize().unwrap();
        e.synchronize().unwrap();
        pool.destroy().unwrap();
    });
}

/// Two threads end one stream: one of them does, the other hears that there is none.
#[test]
fn two_threads_end_one_stream() {
    apart(|| {
        let (d, control) = held::host(64 * MIB, true);
        let (pool, a, b) = (d.default_pool(), d.stream(), d.stream());
        let p = pool.alloc(BYTES, a).unwrap();
        record_stream(p, b).unwrap();
        let gate = d.gate(b);
        d.fill(b, p, 0xAA, BYTES);
        let hold = control.hold_before("stream_destroy", 1);
        let other = victim(move || d.end_stream(b));
        hold.reached();
        let second = within(5, "the second end", move || d.end_stream(b));
        hold.let_go();
        other.join().unwrap().unwrap();
        assert_eq!(code(second), MILLPOND_E_UNKNOWN_STREAM);
        let without = d.alloc(BYTES).unwrap();
        free(without).unwrap();
        pool.free(p, a).unwrap();
        d.stats();
        let q = pool.alloc(BYTES, a).unwrap();
        assert!(q != p || gate.is_open());
        let without = d.alloc(BYTES).unwrap();
        poke(without, 0x11, BYTES);
        gate.open();
        d.synchronize().unwrap();
        assert_eq!(filled(without, BYTES), Some(0x11));
    });
}

/// The end of a pool that sleeps fails on the way: it goes on sleeping.
#[test]
fn a_sleeping_pool_whose_end_fails_sleeps_on() {
    apart(|| {
        for nth in 1..=4 {
            let (d, control) = held::host(64 * MIB, true);
            let (pool, s) = (d.pool(0), d.stream());
            let p = pool.alloc(BYTES, s).unwrap();
            pool.sleep(true).unwrap();
            pool.free(p, s).unwrap();
            control.fail("synchronize", nth, millpond::Code::System);
            if pool.destroy().is_ok() {
                return;
            }
            control.mend();
            assert_eq!(code(pool.alloc(BYTES, s)), MILLPOND_E_NOT_PERMITTED);
            pool.wake().unwrap();
            let p = pool.alloc(BYTES, s).unwrap();
            pool.free(p, s).unwrap();
            pool.destroy().unwrap();
            assert_eq!(d.stats().reserved_bytes.current, 0);
        }
    });
}

/// A block of the pool without a stream.
fn without_a_stream(d: Device, pool: Pool, bytes: usize) -> usize {
    outcome(unsafe { millpond_scope_begin(ptr(pool.0)) }).unwrap();
    let p = d.alloc(bytes).unwrap();
    outcome(unsafe { millpond_scope_end(ptr(pool.0)) }).unwrap();
    p
}

/// Queues a copy from a block of one device to a block of another.
fn copy_between(from: (Device, usize), to: (Device, usize), stream: Stream) {
    let (source, target) = (ptr::<std::ffi::c_void>(from.1), ptr(to.1));
    let copy =
        unsafe { millpond_copy_peer_async(ptr(to.0.0), target, ptr(from.0.0), ptr(stream.0), source, BYTES) };
    outcome(copy).unwrap();
}

/// A copy on a stream of another device still reads a block when its pool goes to sleep: freed, or live.
fn sleeps_under_a_visit(freed: bool) {
    let d = host(64 * MIB, true);
    let e = Device::get("host", 1).unwrap();
    let (pool, s) = (d.pool(0), e.stream());
    let (p, stays) = (without_a_stream(d, pool, BYTES), without_a_stream(d, pool, MIB));
    let q = e.alloc(BYTES).unwrap();
    poke(p, 0x33, BYTES);
    let gate = e.gate(s);
    copy_between((d, p), (e, q), s);
    if freed {
        free(p).unwrap();
    }
    gate.open_after(LATE);
    let slept = pool.sleep(true);
    let open = gate.is_open();
    gate.open();
    e.synchronize().unwrap();
    assert!(open || slept.is_err(), "the pool slept under a copy");
    assert_eq!(filled(q, BYTES), Some(0x33));
    if slept.is_ok() {
        pool.wake().unwrap();
    }
    if !freed {
        free(p).unwrap();
    }
    free(stays).unwrap();
    pool.destroy().unwrap();
}

#[test]
fn a_pool_does_not_sleep_under_a_copy_of_another_device() {
    apart(|| sleeps_under_a_visit(false));
}

#[test]
fn a_pool_does_not_sleep_under_a_copy_of_another_device_from_a_freed_block() {
    apart(|| sleeps_under_a_visit(true));
}

/// A block that is a segment of its own waits when it is freed, and the device will not take it back afterwards. The end
/// of its pool says so.
#[test]
fn the_end_of_a_pool_whose_segment_the_device_refuses_comes_back() {
    apart(|| {
        let (d, control) = held::host(256 * MIB, false);
        let (pool, a, b) = (d.pool(0), d.stream(), d.stream());
        let p = pool.alloc(128 * MIB, a).unwrap();
        record_stream(p, b).unwrap();
        let gate = d.gate(b);
        pool.free(p, a).unwrap();
        gate.open();
        d.stream_synchronize(b).unwrap();
        control.fail_all("free", millpond::Code::Device);
        let ended = in_time(5, move || pool.destroy());
        control.mend();
        assert_eq!(code(ended.expect("the end of the pool does not come back")), MILLPOND_E_DEVICE);
        pool.destroy().unwrap();
        assert_eq!(d.stats().reserved_bytes.current, 0);
    });
}

/// Two threads take free memory of another pool into one with a limit. What one of them has on its way counts, too.
#[test]
fn two_thefts_at_once_keep_a_pools_limit() {
    apart(|| {
        let (d, control) = held::host(64 * MIB, true);
        d.set_limit(48 * MIB).unwrap();
        let (rich, small) = (d.pool(0), d.pool(32 * MIB));
        let (s, a, b) = (d.stream(), d.stream(), d.stream());
        for _ in 0..2 {
            let p = rich.alloc(48 * MIB, s).unwrap();
            rich.free(p, s).unwrap();
        }
        let gate = d.gate(s);
        let hold = control.hold_after("event_record", 1);
        let first = victim(move || small.alloc(20 * MIB, a));
        assert!(soon(LATE, || hold.is_reached()), "the theft marks the other stream");
        let second = std::thread::spawn(move || small.alloc(20 * MIB, b));
        std::thread::sleep(LATE);
        hold.let_go();
        gate.open();
        let got = [first.join().unwrap(), second.join().unwrap()];
        let reserved = small.stats().reserved_bytes.current;
        assert!(reserved <= 32 * MIB as u64, "{reserved} bytes of {} are reserved", 32 * MIB);
        assert_eq!(got.iter().filter(|r| r.is_ok()).count(), 1);
        for p in got.into_iter().flatten() {
            free(p).unwrap();
        }
    });
}
