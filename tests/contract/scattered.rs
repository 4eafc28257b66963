//! Programs that run for long: the library's own memory for keeping track of blocks is reused as blocks come and go,
//! whatever their streams and pools. The device only counts, and some have few blocks at a time, so that what a round does
//! not give back is missed in seconds.

use crate::apart::*;
use crate::api::*;
use crate::counted::Counted;

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
