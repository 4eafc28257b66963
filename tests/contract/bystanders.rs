//! What a request costs does not depend on how many other streams and pools have memory: with a thousand of them at
//! most twice what it costs alone. The device only counts and its streams do nothing, so that all that is measured is
//! the library. The best of several tries counts, each on a device of its own.

use crate::apart::*;
use crate::api::*;
use crate::counted::Counted;

const HEAPS: usize = 1000;
const TRIES: usize = 5;

/// Who else has memory.
#[derive(Clone, Copy)]
enum Others {
    /// Other streams of the same pool.
    Streams,
    /// Other pools.
    Pools,
}

/// A device on which `count` others have a small block each.
fn device(count: usize, others: Others) -> (Device, Pool, Stream) {
    let d = Counted::mapped(64 * GIB).open();
    let (pool, s) = (d.default_pool(), d.stream());
    pool.alloc(512, s).unwrap();
    for _ in 0..count {
        match others {
            Others::Streams => pool.alloc(512, d.stream()).unwrap(),
            Others::Pools => d.pool(0).alloc(512, NULL).unwrap(),
        };
    }
    (d, pool, s)
}

/// So many requests in the best try, alone and beside others.
fn cost(others: Others, body: impl Fn(Device, Pool, Stream)) -> [Cost; 2] {
    let one = |count| {
        let (d, pool, s) = device(count, others);
        Cost::of(|| body(d, pool, s)).0
    };
    let both = || [0, HEAPS].map(one);
    // In turns: what else runs on the machine changes.
    (1..TRIES).fold(both(), |[a, b], _| {
        let [lone, beside] = both();
        [a.least(lone), b.least(beside)]
    })
}

#[track_caller]
fn flat(what: &str, [lone, beside]: [Cost; 2]) {
    assert!(beside.is_within(2.0, lone), "{what}: {lone:?} alone, {beside:?} beside {HEAPS} others");
}

/// Requests without frees: each one raises the peaks.
fn rising(others: Others, bytes: usize) -> [Cost; 2] {
    let requests = 4000;
    cost(others, |_, pool, s| (0..requests).for_each(|_| _ = pool.alloc(bytes, s).unwrap()))
}

/// Requests that each need a granule of the device.
fn growing(others: Others) -> [Cost; 2] {
    let requests = 1000;
    cost(others, |_, pool, s| (0..requests).for_each(|_| _ = pool.alloc(2 * MIB, s).unwrap()))
}

/// Memory rises, beside other streams of the pool.
#[test]
fn rising_memory_beside_other_streams() {
    alone(240, || {
        flat("small blocks", rising(Others::Streams, 512));
        flat("larger blocks", rising(Others::Streams, 100 * KIB));
    });
}

/// Memory rises, beside other pools.
#[test]
fn rising_memory_beside_other_pools() {
    alone(240, || {
        flat("small blocks", rising(Others::Pools, 512));
        flat("larger blocks", rising(Others::Pools, 100 * KIB));
    });
}

/// New granules, beside other streams of the pool.
#[test]
fn new_granules_beside_other_streams() {
    alone(240, || flat("granules", growing(Others::Streams)));
}

/// New granules, beside other pools.
#[test]
fn new_granules_beside_other_pools() {
    alone(240, || flat("granules", growing(Others::Pools)));
}

/// Memory that rises and falls, a little higher each time.
#[test]
fn memory_that_rises_and_falls_beside_other_streams() {
    alone(240, || {
        let (rounds, each) = (200, 40);
        let body = |_: Device, pool: Pool, s: Stream| {
            for round in 0..rounds {
                let all: Vec<usize> = (0..each).map(|_| pool.alloc(4 * KIB, s).unwrap()).collect();
                all.into_iter().for_each(|p| pool.free(p, s).unwrap());
                pool.alloc(512 * (1 + round % 4), s).unwrap();
            }
        };
        flat("rise and fall", cost(Others::Streams, body));
    });
}

/// Pairs of request and free, once the program is warm.
#[test]
fn pairs_beside_other_streams() {
    alone(240, || {
        let pairs = 100_000;
        let body = |_: Device, pool: Pool, s: Stream| {
            (0..pairs).for_each(|_| pool.free(pool.alloc(512, s).unwrap(), s).unwrap());
        };
        flat("pairs", cost(Others::Streams, body));
    });
}

/// The beginning and the end of a stream that has used memory.
#[test]
fn streams_that_come_and_go_beside_other_streams() {
    alone(240, || {
        let rounds = 500;
        let body = |d: Device, pool: Pool, _: Stream| {
            for _ in 0..rounds {
                let s = d.stream();
                pool.free(pool.alloc(512, s).unwrap(), s).unwrap();
                d.end_stream(s).unwrap();
            }
        };
        flat("streams", cost(Others::Streams, body));
    });
}

/// Pools that come and go.
#[test]
fn pools_that_come_and_go_beside_other_pools() {
    alone(240, || {
        let rounds = 500;
        let body = |d: Device, _: Pool, s: Stream| {
            for _ in 0..rounds {
                let pool = d.pool(0);
                pool.free(pool.alloc(512, s).unwrap(), s).unwrap();
                pool.destroy().unwrap();
            }
        };
        flat("pools", cost(Others::Pools, body));
    });
}

/// Blocks that another stream has used, which wait after their free.
#[test]
fn uses_on_another_stream_beside_other_streams() {
    alone(240, || {
        let rounds = 20_000;
        let body = |d: Device, pool: Pool, s: Stream| {
            let other = d.stream();
            for _ in 0..rounds {
                let p = pool.alloc(512, s).unwrap();
                record_stream(p, other).unwrap();
                pool.free(p, s).unwrap();
            }
        };
        flat("uses", cost(Others::Streams, body));
    });
}
