//! Two threads free one block at the same moment. One of them frees it and the other gets an error; all other blocks
//! keep their contents, and no memory is handed out twice. Each round has another delay between the two calls. The two
//! threads need a processor each, so these tests run alone, and who waits for long lets others have the processor: among
//! busy neighbours, two threads that only spin have a few hundred rounds in the time of fifty thousand.

use crate::apart::*;
use crate::api::*;
use millpond::capi::*;
use std::collections::HashSet;
use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use std::time::{Duration, Instant};

/// Of each test, or as many as there is time for. With the exchange of `Desc::claim_remote` made a store, each of the tests fails
/// within two thousand rounds; with that of `Desc::end_life` made one, four of them do within ten thousand.
const ROUNDS: usize = 50_000;

/// How a thread frees a block: NULL where it went well, else the code.
type Free = fn(&Place, usize) -> u32;

#[derive(Clone, Copy)]
struct Place {
    pool: Pool,
    own: Stream,
    other: Stream,
    bytes: usize,
}

fn told(status: C_Status) -> u32 {
    if status == C_Status::SUCCESS { MILLPOND_OK } else { millpond_last_error_code() }
}

fn plain(_: &Place, at: usize) -> u32 {
    told(unsafe { millpond_free(ptr(at)) })
}

fn on_its_stream(p: &Place, at: usize) -> u32 {
    told(unsafe { millpond_pool_free(ptr(p.pool.0), ptr(at), ptr(p.own.0)) })
}

fn on_another_stream(p: &Place, at: usize) -> u32 {
    told(unsafe { millpond_pool_free(ptr(p.pool.0), ptr(at), ptr(p.other.0)) })
}

fn sized(p: &Place, at: usize) -> u32 {
    told(unsafe { millpond_free_sized(ptr(at), p.bytes) })
}

/// What the two threads have between them.
#[derive(Default)]
struct Shared {
    turn: AtomicU64,
    block: AtomicUsize,
    done: AtomicU64,
    code: AtomicU32,
    stop: AtomicBool,
}

/// Spins, and yields after longer than the other thread needs for its part where it has a processor.
fn until(done: impl Fn() -> bool) {
    for n in 1u32.. {
        if done() {
            return;
        }
        if n.is_multiple_of(4096) { std::thread::yield_now() } else { spin_loop() }
    }
}

/// The second thread.
fn rival(s: &Shared, place: &Place, free: Free) {
    let mut last = 0;
    loop {
        let turn = s.turn.load(Acquire);
        if s.stop.load(Relaxed) {
            return;
        }
        if turn == last {
            until(|| s.turn.load(Acquire) != last || s.stop.load(Relaxed));
            continue;
        }
        last = turn;
        s.code.store(free(place, s.block.load(Relaxed)), Relaxed);
        s.done.store(turn, Release);
    }
}

/// The first and the last word of a block.
fn ends(at: usize, bytes: usize) -> [*mut u64; 2] {
    [ptr(at), ptr(at + bytes - 8)]
}

/// Blocks of one size: `first` frees on one thread, `second` on another one. The first thread allocates the blocks, or,
/// with `allocates_elsewhere`, a third one does.
fn race(bytes: usize, first: Free, second: Free, allocates_elsewhere: bool) {
    let d = host(256 * MIB, true);
    let place = Place { pool: d.default_pool(), own: d.stream(), other: d.stream(), bytes };
    let shared = Arc::new(Shared::default());
    let worker = std::thread::spawn({
        let shared = shared.clone();
        move || rival(&shared, &place, second)
    });
    // The blocks' heap belongs to the thread that takes most of them.
    let (ask, asked) = std::sync::mpsc::channel::<std::sync::mpsc::Sender<usize>>();
    std::thread::spawn(move || {
        for reply in asked {
            let _ = reply.send(place.pool.alloc(bytes, place.own).unwrap());
        }
    });
    let alloc = || match allocates_elsewhere {
        true => {
            let (reply, answer) = std::sync::mpsc::channel();
            ask.send(reply).unwrap();
            answer.recv().unwrap()
        }
        false => place.pool.alloc(bytes, place.own).unwrap(),
    };
    let mut live = Vec::new();
    let mut known = HashSet::new();
    let take = |live: &mut Vec<usize>, known: &mut HashSet<usize>| {
        let at = alloc();
        ends(at, bytes).into_iter().for_each(|word| unsafe { word.write(at as u64) });
        assert!(known.insert(at), "{at:#x} was handed out twice");
        live.push(at);
    };
    (0..64).for_each(|_| take(&mut live, &mut known));

    let (most, end) = (rounds(ROUNDS) as u64, Instant::now() + lasting(Duration::from_secs(5)));
    let mut round = 0u64;
    while round < most && Instant::now() < end {
        for _ in 0..256 {
            round += 1;
            let at = live.swap_remove(round as usize * 31 % live.len());
            known.remove(&at);
            shared.block.store(at, Relaxed);
            shared.turn.store(round, Release);
            for _ in 0..round * 7 % 160 {
                spin_loop();
            }
            let mine = first(&place, at);
            until(|| shared.done.load(Acquire) == round);
            let codes = [mine, shared.code.load(Relaxed)];
            let sound = codes == [MILLPOND_OK, MILLPOND_E_DOUBLE_FREE]
                || codes == [MILLPOND_E_DOUBLE_FREE, MILLPOND_OK];
            if !sound {
                shared.stop.store(true, Relaxed);
                shared.turn.store(round + 1, Release);
                panic!("round {round}: the two frees gave {codes:?}");
            }
            take(&mut live, &mut known);
            let other = live[round as usize * 17 % live.len()];
            for word in ends(other, bytes) {
                assert_eq!(unsafe { word.read() }, other as u64, "another block has changed");
            }
        }
    }
    shared.stop.store(true, Relaxed);
    worker.join().unwrap();
    for at in live {
        place.pool.free(at, place.own).unwrap();
    }
    d.synchronize().unwrap();
    let s = d.stats();
    assert_eq!((s.blocks.current, s.allocated_bytes.current, s.active_bytes.current), (0, 0, 0));
    assert_eq!(d.room_for(2 * MIB), 128);
}

/// A large block, freed by the thread that has allocated it and by another one.
#[test]
fn of_two_frees_of_a_large_block_one_succeeds() {
    alone(60, || race(256 * KIB, on_its_stream, plain, false));
}

/// A block of some pages.
#[test]
fn of_two_frees_of_a_medium_block_one_succeeds() {
    alone(60, || race(8 * KIB, on_its_stream, plain, false));
}

/// A small block.
#[test]
fn of_two_frees_of_a_small_block_one_succeeds() {
    alone(60, || race(256, on_its_stream, plain, false));
}

/// Both frees come from threads that have not allocated the block.
#[test]
fn of_two_frees_by_other_threads_one_succeeds() {
    alone(60, || race(256 * KIB, plain, plain, true));
}

/// One of the frees names another stream, which the block then waits for.
#[test]
fn of_two_frees_one_on_another_stream_one_succeeds() {
    alone(60, || race(256 * KIB, on_another_stream, plain, true));
}

/// One of the frees says what size it thinks the block has.
#[test]
fn of_two_frees_one_with_a_size_one_succeeds() {
    alone(60, || race(256 * KIB, sized, plain, true));
}

/// Both free on the block's stream, and no thread owns the heap for long.
#[test]
fn of_two_frees_on_the_blocks_stream_one_succeeds() {
    alone(60, || race(256 * KIB, on_its_stream, on_its_stream, true));
}
