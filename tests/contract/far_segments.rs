//! Blocks in segments other than the first, whose addresses are looked up: by a thread that allocates on the stream again and
//! again, which remembers the segments that it has found.

use crate::apart::*;
use crate::api::*;
use crate::counted::Counted;
use crate::history::start;
use crate::observers::state;
use crate::statistics::reset_peaks;
use millpond::runtime::EventKind;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::sync_channel;

const SEGMENT: usize = 64 * MIB;
const SIZES: [usize; 3] = [1000, 50_000, 5 * MIB];

/// A device whose first segments are full of blocks, which are in order; so what comes next lies in another.
fn full(segments: usize) -> (Device, Pool, Stream, Vec<usize>) {
    let d = Counted::in_segments(2 * GIB, SEGMENT).open();
    let (pool, s) = (d.default_pool(), d.stream());
    let blocks: Vec<usize> = (0..segments * SEGMENT / MIB).map(|_| pool.alloc(MIB, s).unwrap()).collect();
    assert_eq!(d.stats().reserved_bytes.current, (segments * SEGMENT) as u64);
    assert!(blocks.chunks(SEGMENT / MIB).all(|c| c.windows(2).all(|w| w[1] == w[0] + MIB)), "{blocks:x?}");
    (d, pool, s, blocks)
}

/// A pair of each size, many times: the same addresses each time.
fn warm(pool: Pool, s: Stream) -> [usize; 3] {
    let pairs = || {
        SIZES.map(|bytes| {
            let p = pool.alloc(bytes, s).unwrap();
            pool.free(p, s).unwrap();
            p
        })
    };
    let first = pairs();
    (0..200).for_each(|_| assert_eq!(pairs(), first));
    first
}

#[test]
fn they_are_found_counted_and_checked_as_those_of_the_first() {
    apart(|| {
        let (d, pool, s, blocks) = full(3);
        let far = warm(pool, s);
        let beyond = blocks[0] + 3 * SEGMENT;
        assert!(far.iter().all(|&p| p > beyond), "{far:x?}");
        let before = d.stats();
        for bytes in SIZES {
            let p = pool.alloc(bytes, s).unwrap();
            let charged = d.stats().allocated_bytes.current - before.allocated_bytes.current;
            assert_eq!(charged, bytes.next_multiple_of(512) as u64);
            for wrong in [p + 256, p - 512, blocks[0] - 1, blocks[SEGMENT / MIB] - 1, usize::MAX] {
                assert!(pool.free(wrong, s).is_err(), "{wrong:x}");
            }
            pool.free(p, s).unwrap();
            assert!(pool.free(p, s).is_err());
            assert_eq!(pool.alloc(bytes, s).unwrap(), p);
            pool.free(p, s).unwrap();
        }
        let after = d.stats();
        assert_eq!(after.allocated_bytes.current, before.allocated_bytes.current);
        assert_eq!(after.blocks.current, before.blocks.current);
        assert_eq!(after.blocks.total - before.blocks.total, 6);
        // One of each segment that is full.
        for p in [blocks[1], blocks[SEGMENT / MIB + 1], blocks[2 * SEGMENT / MIB + 1]] {
            pool.free(p, s).unwrap();
            assert!(pool.free(p, s).is_err());
            assert_eq!(pool.alloc(MIB, s).unwrap(), p);
        }
    });
}

/// A small and a large block in turn, beside a fixed number of both: the one takes the room below the peak that the other has
/// left, and peaks are raised by what exceeds them, and by nothing else.
#[test]
fn small_and_large_blocks_take_turns() {
    apart(|| {
        let (d, pool, s, blocks) = full(2);
        let beyond = blocks[0] + 2 * SEGMENT;
        for bytes in [SIZES[0], SIZES[2]].repeat(3) {
            pool.alloc(bytes, s).unwrap();
        }
        let turn = || {
            for bytes in [SIZES[0], SIZES[2]] {
                let p = pool.alloc(bytes, s).unwrap();
                assert!(p > beyond, "{p:x}");
                pool.free(p, s).unwrap();
            }
        };
        turn();
        let first = d.stats();
        (0..100).for_each(|_| turn());
        let later = d.stats();
        assert_eq!(later.allocated_bytes.peak, first.allocated_bytes.peak);
        assert_eq!((first.blocks.peak, later.blocks.peak), (135, 135));
        let both = [SIZES[0], SIZES[2]].map(|bytes| pool.alloc(bytes, s).unwrap());
        both.iter().for_each(|&p| pool.free(p, s).unwrap());
        let last = d.stats();
        assert_eq!(last.blocks.peak, 136);
        assert_eq!(last.allocated_bytes.peak - first.allocated_bytes.peak, 1024);
    });
}

/// A history notes each request and each free of such blocks, too: small and large, and where a large one takes room from the
/// small ones.
#[test]
fn a_history_has_their_addresses_and_sizes() {
    apart(|| {
        let (d, pool, s, _) = full(2);
        warm(pool, s);
        start(d, 4096, 0, None);
        let far = warm(pool, s);
        let events = state(d).history().unwrap().events;
        assert_eq!(events.len(), 201 * 2 * SIZES.len());
        for (i, pair) in events.chunks(2).enumerate() {
            let k = i % SIZES.len();
            for (e, kind) in pair.iter().map(|e| e.event).zip([EventKind::Alloc, EventKind::FreeRequested]) {
                assert_eq!((e.kind, e.address, e.requested), (kind, far[k] as u64, SIZES[k] as u64), "{i}");
                assert_eq!(e.bytes, SIZES[k].next_multiple_of(512) as u64);
                assert_eq!((e.stream, e.pool), (events[0].event.stream, events[0].event.pool), "{i}");
                assert!(e.stream.is_some() && e.at_once == (kind == EventKind::FreeRequested));
            }
        }
        let p = pool.alloc(SIZES[0], s).unwrap();
        pool.free(p, s).unwrap();
        assert!(pool.free(p, s).is_err());
        assert_eq!(state(d).history().unwrap().events.len(), events.len() + 2);
    });
}

#[test]
fn a_segment_that_has_gone_is_forgotten() {
    apart(|| {
        let (d, pool, s, blocks) = full(2);
        warm(pool, s);
        // The last segment stays, so the one that comes next has another address. It has the offsets of the one that goes.
        let more: Vec<usize> = (0..2 * SEGMENT / MIB).map(|_| pool.alloc(MIB, s).unwrap()).collect();
        let (goes, stays) = more.split_at(SEGMENT / MIB);
        goes.iter().for_each(|&p| pool.free(p, s).unwrap());
        let old = warm(pool, s);
        assert!(old.iter().all(|&p| goes[0] <= p && p < goes[0] + SEGMENT), "{old:x?}");
        d.empty_cache().unwrap();
        assert_eq!(d.stats().reserved_bytes.current, 3 * SEGMENT as u64);
        old.iter().for_each(|&p| assert!(pool.free(p, s).is_err()));
        let new = warm(pool, s);
        assert!(new.iter().all(|&p| p > stays[0] + SEGMENT), "{old:x?} {new:x?}");
        let live: Vec<usize> = SIZES.iter().map(|&bytes| pool.alloc(bytes, s).unwrap()).collect();
        old.iter().for_each(|&p| assert!(pool.free(p, s).is_err()));
        // Small and large ones that take turns right below the peak.
        reset_peaks(d, None);
        for bytes in [SIZES[0], SIZES[2]].repeat(20) {
            let p = pool.alloc(bytes, s).unwrap();
            assert!(p > stays[0] + SEGMENT, "{p:x} {new:x?}");
            pool.free(p, s).unwrap();
        }
        let all = [blocks, stays.to_vec(), live].concat();
        all.iter().for_each(|&p| pool.free(p, s).unwrap());
        assert_eq!(d.stats().allocated_bytes.current, 0);
    });
}

/// One thread allocates and another frees, in batches that fill several segments and leave them empty; a third gives the empty
/// ones back all the time.
#[test]
fn segments_come_and_go_beside_threads_that_free() {
    apart_for(120, || {
        let d = host(512 * MIB, false);
        let pool = d.default_pool();
        let streams = [d.stream(), d.stream()];
        let stop = AtomicBool::new(false);
        let (to, from) = sync_channel::<(usize, usize, u8)>(40);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for n in 0..30_000usize {
                    let bytes = SIZES[n % 3] + n % 7 * 512;
                    let p = pool.alloc(bytes, streams[0]).unwrap();
                    let stamp = n as u8;
                    poke(p, stamp, 64);
                    poke(p + bytes - 64, stamp, 64);
                    match n % 5 {
                        0 => pool.free(p, streams[0]).unwrap(),
                        _ => to.send((p, bytes, stamp)).unwrap(),
                    }
                }
            });
            let freeing = scope.spawn(move || {
                let mut held = Vec::new();
                for (n, (p, bytes, stamp)) in from.iter().enumerate() {
                    held.push((p, bytes, stamp));
                    // By turns many blocks stay a while, and few.
                    if held.len() < if n / 200 % 2 == 0 { 60 } else { 1 } {
                        continue;
                    }
                    for (p, bytes, stamp) in held.drain(..) {
                        let same = [p, p + bytes - 64].map(|at| filled(at, 64));
                        assert_eq!(same, [Some(stamp); 2], "a block is another's too");
                        pool.free(p, streams[n % 2]).unwrap();
                    }
                }
                held.into_iter().for_each(|(p, ..)| pool.free(p, streams[0]).unwrap());
            });
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    d.empty_cache().unwrap();
                    std::thread::yield_now();
                }
            });
            freeing.join().unwrap();
            stop.store(true, Relaxed);
        });
        d.synchronize().unwrap();
        d.empty_cache().unwrap();
        let stats = d.stats();
        assert_eq!((stats.allocated_bytes.current, stats.reserved_bytes.current), (0, 0));
        assert!(stats.driver_calls > 40, "{} calls: no segments went", stats.driver_calls);
    });
}
