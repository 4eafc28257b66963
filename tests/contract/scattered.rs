//! Programs that run for long: the library's own memory for keeping track of blocks is reused as blocks come and go,
//! whatever their streams and pools. The device only counts, and some have few blocks at a time, so that what a round does
//! not give back is missed in seconds.

use crate::apart::*;
use crate::api::*;
use crate::counted::Counted;
use crate::observers::state;
use std::os::fd::AsFd;

const CAPACITY: usize = 64 * MIB;
const G: usize = 2 * MIB;

/// Leaves every other granule of the device free, of those that a stream of a pool has.
fn every_other(pool: Pool, s: Stream) -> Vec<usize> {
    let all: Vec<usize> = (0..CAPACITY / G).map(|_| pool.alloc(G, s).unwrap()).collect();
    let (free, kept): (Vec<_>, Vec<_>) = all.into_iter().enumerate().partition(|(n, _)| n % 2 == 0);
    free.into_iter().for_each(|(_, p)| pool.free(p, s).unwrap());
    kept.into_iter().map(|(_, p)| p).collect()
}

/// Blocks of granules that lie apart, of ever other sizes, so that their addresses are used for others soon.
#[test]
fn scattered_blocks_of_a_stream_can_be_had_again_and_again() {
    apart_for(240, || {
        let d = Counted { mappings: 16, most_blocks: 72_000, ..Counted::mapped(CAPACITY) }.open();
        let (pool, s) = (d.default_pool(), d.stream());
        // The device's first heap is another one.
        d.alloc(512).map(free).unwrap().unwrap();
        d.empty_cache().unwrap();
        let kept = every_other(pool, s);
        let mut blocks = Vec::new();
        for round in 0..rounds(15_000) {
            let granules = 2 + round % 2;
            for _ in 0..16 / granules {
                match pool.alloc(granules * G, s) {
                    Ok(p) => blocks.push(p),
                    Err(e) => panic!("round {round}: {}", e.message),
                }
            }
            blocks.drain(..).for_each(|p| pool.free(p, s).unwrap());
        }
        kept.into_iter().for_each(|p| pool.free(p, s).unwrap());
        assert_eq!(d.room_for(G), CAPACITY / G);
    });
}

/// The same blocks of pools that sleep, and end asleep. There are more rounds than a device has heaps (65 536), and every
/// eighth, with two such blocks in its pool, more often than it may have blocks: so a heap or a block that one round does not
/// give back is missed. The device is small, so that the rounds take seconds.
#[test]
fn scattered_blocks_of_pools_that_end_asleep_can_be_had_again_and_again() {
    apart_for(240, || {
        let d = Counted { most_blocks: 7_500, ..Counted::mapped(8 * G) }.open();
        d.alloc(512).map(free).unwrap().unwrap();
        for round in 0..rounds(70_000) {
            let granules = if round % 8 == 0 { 8 } else { 4 };
            let (pool, s) = (d.pool(0), NULL);
            let all: Vec<usize> = (1..granules).map(|_| pool.alloc(G, s).unwrap()).collect();
            all.iter().step_by(2).for_each(|&p| pool.free(p, s).unwrap());
            pool.set_limit((granules - 1) * G).unwrap();
            let scattered: Vec<usize> = (0..granules / 4)
                .map(|_| pool.alloc(2 * G, s).unwrap_or_else(|e| panic!("round {round}: {}", e.message)))
                .collect();
            pool.sleep(false).unwrap();
            scattered.into_iter().for_each(|p| pool.free(p, s).unwrap());
            all.into_iter().skip(1).step_by(2).for_each(|p| pool.free(p, s).unwrap());
            pool.destroy().unwrap();
        }
        assert_eq!(d.room_for(G), 8);
    });
}

/// Streams fill the device with small blocks, one stream after the other.
#[test]
fn streams_that_take_turns_can_each_fill_the_device_with_small_blocks() {
    apart_for(240, || {
        let d = Counted::mapped(CAPACITY).open();
        let pool = d.default_pool();
        for turn in 0..rounds(32) {
            let s = d.stream();
            let mut blocks = Vec::new();
            while blocks.len() < CAPACITY / 512 {
                match pool.alloc(512, s) {
                    Ok(p) => blocks.push(p),
                    Err(e) => panic!("turn {turn}, after {} blocks: {}", blocks.len(), e.message),
                }
            }
            blocks.drain(..).for_each(|p| pool.free(p, s).unwrap());
        }
    });
}

/// A range of addresses serves blocks that begin and end elsewhere in its granules. What they hold is theirs alone, also where
/// they sleep, and those to whom they are exported find it.
#[test]
fn what_is_in_a_block_stays_there_though_its_range_was_mapped_for_another() {
    apart_for(60, || {
        const UNIT: usize = 16 * KIB;
        let d = host(CAPACITY, true);
        let (pool, s) = (d.pool(0), d.stream());
        // The end of one granule is free, the start of another one, and those between them.
        let all: Vec<usize> = [28, 100, 128, 128, 128, 123, 5]
            .into_iter()
            .map(|units| pool.alloc(units * UNIT, s).unwrap())
            .collect();
        let (head, tail) = (all[1], all[5]);
        let holes = [head, all[3], tail];
        let others = [(all[0], 28, 201), (all[2], 128, 202), (all[4], 128, 203), (all[6], 5, 204)];
        let fill = |at, units, value| d.fill(s, at, value, units * UNIT);
        others.iter().for_each(|&(at, units, value)| fill(at, units, value));
        holes.into_iter().for_each(|p| pool.free(p, s).unwrap());
        let mut first = None;
        let mut begun = Vec::new();
        for (round, (beside, units)) in
            [(7, 278), (30, 256), (40, 311), (50, 257), (60, 291), (70, 268)].into_iter().enumerate()
        {
            let value = round as u8 + 1;
            let beside = (pool.alloc(beside * UNIT, s).unwrap(), beside, 100 + value);
            let at = pool.alloc(units * UNIT, s).unwrap();
            assert_eq!(at / G, *first.get_or_insert(at / G), "the range of the first one");
            begun.push(at);
            let live: Vec<(usize, usize, u8)> =
                others.iter().copied().chain([beside, (at, units, value)]).collect();
            fill(at, units, value);
            fill(beside.0, beside.1, beside.2);
            d.stream_synchronize(s).unwrap();
            let look = |when: &str| {
                for &(at, units, value) in &live {
                    assert_eq!(filled(at, units * UNIT), Some(value), "{units} units, {when}");
                }
            };
            look("filled");
            pool.sleep(true).unwrap();
            pool.wake().unwrap();
            look("awake");
            let shared = state(d).shared_memory();
            let export = shared.export(at as u64).unwrap();
            let fds: Vec<_> = export.fds.iter().map(AsFd::as_fd).collect();
            let seen = shared.import(&export.info, &fds).unwrap();
            assert_eq!(filled(seen as usize, units * UNIT), Some(value), "as it is exported");
            d.fill(s, seen as usize, value + 50, units * UNIT);
            d.stream_synchronize(s).unwrap();
            assert_eq!(filled(at, units * UNIT), Some(value + 50), "as they change it");
            shared.close_import(seen).unwrap();
            drop(fds);
            drop(export);
            assert_eq!(shared.poll_exports().unwrap(), (0, 0), "nobody has it any more");
            let known = pool.checkpoint();
            pool.free(at, s).unwrap();
            let other = pool.alloc((units - 1) * UNIT, s).unwrap();
            assert_eq!(other / G, at / G, "the same range");
            fill(other, units - 1, 77);
            pool.restore(known).unwrap();
            assert_eq!(block(at + units * UNIT - 1).unwrap().0, at);
            fill(at, units, value);
            d.stream_synchronize(s).unwrap();
            look("restored");
            pool.free(at, s).unwrap();
            pool.free(beside.0, s).unwrap();
        }
        begun.sort_unstable();
        begun.dedup();
        assert_eq!(begun.len(), 6, "each began elsewhere");
        others.iter().for_each(|&(at, _, _)| pool.free(at, s).unwrap());
        pool.release().unwrap();
        d.empty_cache().unwrap();
        assert_eq!(d.room_for(G), CAPACITY / G);
    });
}
