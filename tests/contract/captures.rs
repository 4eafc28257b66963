//! The last replay of a graph may still run when its capture is released, on whatever stream it was launched. The
//! memory that the graph used, blocks that were freed while it was recorded included, is nobody else's until then; also
//! where the device as a whole cannot be waited for, since another stream is being captured. A restore before the
//! release is ordered after what the captured stream waits for.

use crate::apart::*;
use crate::api::*;
use millpond::capi::*;

const BYTES: usize = 3 * MIB;
const CAPACITY: usize = 64 * MIB;

/// A graph that has used `block`, whose last replay is held up on a stream of its own; and a capture that goes on.
struct World {
    d: Device,
    pool: Pool,
    s: Stream,
    block: usize,
    gate: Gate,
    graph: Capture,
    recording: Capture,
}

fn world(block: usize) -> World {
    let d = host(CAPACITY, true);
    let (pool, other) = (d.pool(0), d.pool(0));
    let (s, replays, t) = (d.stream(), d.stream(), d.stream());
    let graph = pool.capture(s).unwrap();
    let p = pool.alloc(block, s).unwrap();
    pool.free(p, s).unwrap();
    graph.end().unwrap();
    let gate = d.gate(replays);
    d.call(replays, move || poke(p, 0xAA, block));
    gate.open_after(2 * LATE); // who waits for the replay is right, too
    let recording = other.capture(t).unwrap();
    World { d, pool, s, block: p, gate, graph, recording }
}

/// The next owner of what the graph had. `written` says on which stream it writes, or the host itself.
fn next_owner(w: &World, bytes: usize, take: impl FnOnce() -> Outcome<(Option<Stream>, usize)>) {
    // There is no other memory: a request that would have to wait may fail while the other capture goes on.
    let taken = take();
    if let Ok((stream, q)) = taken {
        match stream {
            Some(s) => w.d.fill(s, q, 0x11, bytes),
            None => poke(q, 0x11, bytes),
        }
        std::thread::sleep(LATE / 4);
        w.gate.open();
        w.recording.release().unwrap();
        w.d.synchronize().unwrap();
        assert_eq!(filled(q, bytes), Some(0x11), "the replay came after the next owner's work");
        free(q).unwrap();
    } else {
        assert_eq!(code(taken), MILLPOND_E_OUT_OF_MEMORY);
        w.gate.open();
        w.recording.release().unwrap();
    }
    w.d.synchronize().unwrap();
    w.d.stats();
    assert_eq!(w.d.room_for(2 * MIB), CAPACITY / (2 * MIB), "memory is lost");
    w.pool.destroy().unwrap();
}

/// The stream that was captured asks for memory again.
#[test]
fn a_replay_that_still_runs_keeps_the_graphs_memory_from_its_own_stream() {
    apart(|| {
        let w = world(BYTES);
        w.graph.release().unwrap();
        let (pool, s) = (w.pool, w.s);
        next_owner(&w, BYTES, || Ok((Some(s), pool.alloc(BYTES, s)?)));
    });
}

/// Another pool takes it, since the device has no more.
#[test]
fn a_replay_that_still_runs_keeps_the_graphs_memory_from_other_pools() {
    apart(|| {
        let w = world(CAPACITY);
        w.graph.release().unwrap();
        let (d, s) = (w.d, w.d.stream());
        next_owner(&w, BYTES, || Ok((Some(s), d.default_pool().alloc(BYTES, s)?)));
    });
}

/// A block without a stream is made of it, which the host may use at once.
#[test]
fn a_replay_that_still_runs_keeps_the_graphs_memory_from_the_host() {
    apart(|| {
        let w = world(CAPACITY);
        w.graph.release().unwrap();
        let d = w.d;
        next_owner(&w, BYTES, || Ok((None, d.alloc(BYTES)?)));
    });
}

/// Without another capture, either the release waits for the replay, or the next user of the memory does.
#[test]
fn a_replay_is_waited_for_where_the_device_can_be() {
    apart(|| {
        let w = world(BYTES);
        w.recording.end().unwrap();
        w.graph.release().unwrap();
        let q = w.pool.alloc(BYTES, w.s).unwrap();
        w.d.fill(w.s, q, 0x11, BYTES);
        w.d.synchronize().unwrap();
        assert_eq!(filled(q, BYTES), Some(0x11));
    });
}

/// While another capture goes on the pool's end is BUSY, or waits for the replay in its own way; the device's memory is
/// whole after it.
#[test]
fn the_end_of_a_released_pool_beside_a_capture_does_not_take_memory_from_a_replay() {
    apart(|| {
        let w = world(BYTES);
        w.graph.release().unwrap();
        let ended = w.pool.destroy();
        if w.gate.is_open() {
            w.d.synchronize().unwrap();
        } else {
            assert_eq!(code(ended), MILLPOND_E_BUSY);
            poke(w.block, 0x22, BYTES); // it is still there
        }
    });
}

/// A replay runs on a stream other than the captured one, and the program has made the captured stream wait for it.
/// What a restore makes live comes after the replay: on the captured stream, or (`other`) on a stream that gets memory
/// back which the captured stream has had since.
fn restored_after_a_replay_elsewhere(mapping: bool, other: bool) {
    let d = host(CAPACITY, mapping);
    let pool = d.pool(0);
    let (s, t, replays) = (d.stream(), d.stream(), d.stream());
    let p = pool.alloc(BYTES, t).unwrap();
    let before = pool.checkpoint();
    pool.free(p, t).unwrap();
    let q = pool.alloc(BYTES, s).unwrap(); // a captured stream takes nothing from others
    pool.free(q, s).unwrap();
    let graph = pool.capture(s).unwrap();
    let q = pool.alloc(BYTES, s).unwrap();
    let within = pool.checkpoint();
    pool.free(q, s).unwrap();
    graph.end().unwrap();
    let (stream, block, to) = if other { (t, p, before) } else { (s, q, within) };
    if other {
        assert!(overlap((p, BYTES), (q, BYTES)), "the captured stream has the memory");
    }

    let gate = d.gate(replays);
    d.call(replays, move || poke(q, 0xAA, BYTES));
    let replayed = d.event();
    d.event_record(replays, replayed).unwrap();
    d.stream_wait(s, replayed).unwrap();
    gate.open_after(2 * LATE); // who waits for the replay is right, too
    assert_eq!(pool.restore(to).unwrap(), [block]);
    d.fill(stream, block, 0x11, BYTES);
    std::thread::sleep(LATE / 4);
    gate.open();
    d.synchronize().unwrap();
    assert_eq!(filled(block, BYTES), Some(0x11), "the replay came after the restored block's work");
    graph.release().unwrap();
}

#[test]
fn a_restored_block_comes_after_a_replay_that_its_stream_waits_for() {
    apart(|| [true, false].into_iter().for_each(|mapping| restored_after_a_replay_elsewhere(mapping, false)));
}

#[test]
fn memory_that_a_restore_moves_comes_after_a_replay_that_its_last_stream_waits_for() {
    apart(|| restored_after_a_replay_elsewhere(true, true));
}

/// The end of a registration waits for the device, which is not possible while a stream is captured: from the moment that
/// the program says so, and on every device.
#[test]
fn a_registration_does_not_end_while_a_stream_is_captured() {
    apart(|| {
        let d = host(CAPACITY, true);
        let (pool, s) = (d.pool(0), d.stream());
        let mut own = vec![7_u8; MIB];
        let at = own.as_mut_ptr().cast();
        outcome(unsafe { millpond_host_register(ptr(d.0), at, MIB) }).unwrap();
        let unregister = || outcome(unsafe { millpond_host_unregister(ptr(d.0), at) });
        let capture = pool.capture(s).unwrap();
        assert_eq!(code(unregister()), MILLPOND_E_NOT_PERMITTED);
        let again = outcome(unsafe { millpond_host_register(ptr(d.0), at, MIB) });
        assert_eq!(code(again), MILLPOND_E_BUSY, "it is still registered");
        capture.end().unwrap();
        unregister().unwrap();
        capture.release().unwrap();
    });
}
