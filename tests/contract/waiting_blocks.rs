//! Each freed block that waits for streams becomes reusable on its own: a block whose stream is slow holds back no
//! other block, in its own heap or in another one.

use crate::apart::*;
use crate::api::*;
use crate::counted::Counted;
use crate::held::{self, victim};
use millpond::Code;
use std::time::Duration;

const CAPACITY: usize = 64 * MIB;
/// How long the slow stream is at work.
const SLOW: Duration = Duration::from_secs(3);

/// Two blocks that fill the device, the first used by a slow stream and the second by a quick one that is through; both
/// are freed. `homes` are the streams of the blocks.
fn slow_and_quick(d: Device, homes: [Stream; 2]) -> (Gate, [usize; 2]) {
    let (pool, half) = (d.default_pool(), CAPACITY / 2);
    let (slow, quick) = (d.stream(), d.stream());
    let blocks = homes.map(|s| pool.alloc(half, s).unwrap());
    record_stream(blocks[0], slow).unwrap();
    record_stream(blocks[1], quick).unwrap();
    let (gate, other) = (d.gate(slow), d.gate(quick));
    gate.open_after(SLOW);
    pool.free(blocks[0], homes[0]).unwrap();
    pool.free(blocks[1], homes[1]).unwrap();
    other.open();
    d.stream_synchronize(quick).unwrap();
    (gate, blocks)
}

/// A request for the memory that is ready comes back before the slow stream does.
#[track_caller]
fn at_once(gate: &Gate, what: &str, request: impl FnOnce() -> Outcome<usize>) -> usize {
    let (took, p) = timed(request);
    assert!(!gate.is_open(), "{what} waited {took:?} for a stream that has nothing to do with it");
    p.unwrap()
}

/// Both blocks are of one stream.
#[test]
fn a_block_behind_one_that_waits_serves_a_request() {
    apart(|| {
        let d = host(CAPACITY, true);
        let a = d.stream();
        let (gate, blocks) = slow_and_quick(d, [a, a]);
        let p = at_once(&gate, "the request", || d.default_pool().alloc(CAPACITY / 2, a));
        assert_eq!(p, blocks[1]);
    });
}

/// The blocks are of two streams, and a third one asks.
#[test]
fn a_block_of_another_stream_than_the_one_that_waits_serves_a_request() {
    apart(|| {
        let d = host(CAPACITY, true);
        let (gate, blocks) = slow_and_quick(d, [d.stream(), d.stream()]);
        let third = d.stream();
        let p = at_once(&gate, "the request", || d.default_pool().alloc(CAPACITY / 2, third));
        assert_eq!(p, blocks[1]);
    });
}

/// Another pool asks, for memory that the host may use at once.
#[test]
fn a_block_behind_one_that_waits_serves_another_pool() {
    apart(|| {
        let d = host(CAPACITY, true);
        let a = d.stream();
        let (gate, _) = slow_and_quick(d, [a, a]);
        let beside = d.pool(0);
        at_once(&gate, "the request", || beside.alloc(CAPACITY / 4, d.stream()));
        at_once(&gate, "the request without a stream", || d.alloc(CAPACITY / 4));
    });
}

/// The same in segments.
#[test]
fn a_block_in_a_segment_behind_one_that_waits_serves_a_request() {
    apart(|| {
        let d = host(CAPACITY, false);
        let a = d.stream();
        let (gate, _) = slow_and_quick(d, [a, a]);
        at_once(&gate, "the request", || d.default_pool().alloc(CAPACITY / 2, a));
    });
}

/// Where the device has more memory, none is taken for a request that a block which is ready serves.
#[test]
fn no_memory_is_taken_for_what_a_block_that_is_ready_serves() {
    apart(|| {
        let d = host(4 * CAPACITY, true);
        let a = d.stream();
        let (gate, blocks) = slow_and_quick(d, [a, a]);
        let before = d.stats().reserved_bytes.current;
        let p = at_once(&gate, "the request", || d.default_pool().alloc(CAPACITY / 2, a));
        assert_eq!(d.stats().reserved_bytes.current, before);
        assert_eq!(p, blocks[1]);
    });
}

/// The account tells of what waits, and of nothing else.
#[test]
fn a_block_that_is_ready_does_not_count_as_waiting() {
    apart(|| {
        let d = host(CAPACITY, true);
        let a = d.stream();
        let (gate, _) = slow_and_quick(d, [a, a]);
        let s = d.stats();
        assert!(!gate.is_open());
        assert_eq!((s.allocated_bytes.current, s.active_bytes.current), (0, CAPACITY as u64 / 2));
    });
}

/// A block that waits for two streams, of which the slow one comes last in the list or first, is no different.
#[test]
fn of_many_blocks_those_that_are_ready_come_back() {
    apart(|| {
        let d = host(CAPACITY, true);
        let (a, pool) = (d.stream(), d.default_pool());
        let (slow, quick) = (d.stream(), d.stream());
        let blocks: Vec<usize> = (0..32).map(|_| pool.alloc(2 * MIB, a).unwrap()).collect();
        for (n, &p) in blocks.iter().enumerate() {
            record_stream(p, quick).unwrap();
            if n % 4 == 0 {
                record_stream(p, slow).unwrap();
            }
        }
        let (gate, other) = (d.gate(slow), d.gate(quick));
        gate.open_after(SLOW);
        blocks.iter().for_each(|&p| pool.free(p, a).unwrap());
        other.open();
        d.stream_synchronize(quick).unwrap();
        for n in 0..24 {
            at_once(&gate, &format!("request {n}"), || pool.alloc(2 * MIB, a));
        }
    });
}

/// Neither block is ready when the request comes, and the second one's stream is through long before the first one's.
#[test]
fn a_request_that_has_to_wait_takes_what_is_ready_first() {
    apart(|| {
        let d = host(CAPACITY, true);
        let (a, pool, half) = (d.stream(), d.default_pool(), CAPACITY / 2);
        let (slow, quick) = (d.stream(), d.stream());
        let blocks = [(); 2].map(|()| pool.alloc(half, a).unwrap());
        record_stream(blocks[0], slow).unwrap();
        record_stream(blocks[1], quick).unwrap();
        let (gate, other) = (d.gate(slow), d.gate(quick));
        gate.open_after(SLOW);
        other.open_after(LATE / 2);
        blocks.iter().for_each(|&p| pool.free(p, a).unwrap());
        at_once(&gate, "the request", || pool.alloc(half, a));
    });
}

/// A block of another stream of the pool becomes ready while a request waits: the request gets it.
#[test]
fn a_request_gets_what_another_stream_has_waited_for() {
    apart(|| {
        for mapping in [true, false] {
            let d = host(CAPACITY, mapping);
            let (a, other, user) = (d.stream(), d.stream(), d.stream());
            let pool = d.default_pool();
            pool.alloc(64 * KIB, a).unwrap();
            let p = pool.alloc(CAPACITY / 2, other).unwrap();
            record_stream(p, user).unwrap();
            let gate = d.gate(user);
            gate.open_after(LATE);
            pool.free(p, other).unwrap();
            let q = pool.alloc(CAPACITY - 8 * MIB, a);
            assert!(q.is_ok(), "mapping {mapping}: {q:?}");
            assert!(gate.is_open());
        }
    });
}

/// A free that waits does not make a later, ordinary one wait: its block serves the stream's next request at once.
#[test]
fn a_block_that_waits_for_nobody_serves_a_request_at_once() {
    apart(|| {
        let d = host(CAPACITY, true);
        let (a, pool, half) = (d.stream(), d.default_pool(), CAPACITY / 2);
        let slow = d.stream();
        let blocks = [(); 2].map(|()| pool.alloc(half, a).unwrap());
        record_stream(blocks[0], slow).unwrap();
        let gate = d.gate(slow);
        gate.open_after(SLOW);
        blocks.iter().for_each(|&p| pool.free(p, a).unwrap());
        assert_eq!(at_once(&gate, "the request", || pool.alloc(half, a)), blocks[1]);
    });
}

/// Two threads settle what a freed segment waits for, and one of them comes back when the other gives it back already: the pool ends
/// once the segment is gone.
#[test]
fn a_segment_that_is_given_back_is_not_given_back_by_who_settles_later() {
    apart(|| {
        let kind = Counted { max_chunk: MIB as u64, ..Counted::in_segments(CAPACITY, 4 * MIB) }.kind();
        let (d, control) = held::over(kind);
        let (pool, s) = (d.pool(0), d.stream());
        let own = pool.alloc(3 * MIB, s).unwrap();
        // Its fence is owed.
        control.fail_all("event_record", Code::Device);
        pool.free(own, s).unwrap();
        assert_eq!(d.stats().reserved_bytes.current, 3 * MIB as u64);
        control.mend();
        let settles = control.hold_before("event_record", 1);
        let ends = victim(move || pool.release());
        settles.reached();
        let gives = control.hold_before("free", 1);
        let trims = victim(move || d.empty_cache());
        gives.reached();
        settles.let_go();
        std::thread::sleep(LATE / 2);
        gives.let_go();
        trims.join().unwrap().unwrap();
        ends.join().unwrap().unwrap();
        assert_eq!(d.stats().reserved_bytes.current, 0);
    });
}
