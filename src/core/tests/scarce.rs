//! Programs that repeat themselves where memory is scarce.

use super::random::Random;
use super::refits::pick;
use super::ties_threads::{Crowd, Piece};
use super::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const UNIT: u64 = G / 128;

impl Bench {
    /// Sets a limit of a pool or of the device; 0: none.
    pub(super) fn limit(&mut self, pool: Option<PoolId>, bytes: u64) {
        match pool {
            Some(p) => self.pond.pool_set_limit(p, bytes).unwrap(),
            None => {
                self.pond.set_limit(bytes);
                self.world.lock().unwrap().limit = bytes;
            }
        }
        let reserved = self.pond.stats(pool).unwrap().reserved.current;
        self.limits.insert(pool, (bytes, bytes.max(reserved)));
    }

    /// There are no limits any more.
    pub(super) fn lift_limits(&mut self) {
        let all: Vec<_> = self.limits.keys().copied().collect();
        all.into_iter().for_each(|pool| self.limit(pool, 0));
    }

    /// No more is reserved than the limits allow, or than there was when they were set.
    pub(super) fn check_limits(&mut self) {
        for (pool, (limit, most)) in &mut self.limits {
            let reserved = self.pond.stats(*pool).unwrap().reserved.current;
            assert!(*limit == 0 || reserved <= *most, "{reserved} B are reserved of {limit} B by {pool:?}");
            *most = reserved.max(*limit);
        }
    }
}

/// Programs in the manner of those of `refits.rs`, on a device that is nearly full, with limits that change.
pub(super) fn scarce_program(r: &mut Random, n: u64, granules: u64) -> Vec<Op> {
    let mut sizes: Vec<u64> = Vec::new();
    let small_part = 2 + r.below(7);
    for _ in 0..3 + r.below(10) {
        sizes.push(if r.below(10) < small_part {
            (50 + r.below(78)) * UNIT
        } else {
            (1 + r.below(4)) * G + r.below(128) * UNIT
        });
    }
    let (pools, streams) = (1 + r.below(3), 1 + r.below(3));
    let rare = 3 + r.below(30);
    let limits = r.below(2) == 0;
    let loses = r.below(3) == 0;
    let captures = r.below(4) == 0;
    let allocs = 40 + r.below(20);
    let mut ops = Vec::new();
    for _ in 0..n {
        let at = r.below(1000) as usize;
        let pool = r.below(pools) as usize;
        let stream = r.below(streams);
        let bytes = sizes[r.below(sizes.len() as u64) as usize];
        ops.push(match (r.below(rare), r.below(100)) {
            (1.., k) if k < allocs => Op::Alloc { bytes, stream, pool },
            (1.., 97..) => Op::Run { stream },
            (1.., _) => Op::Free { at, on: None },
            (0, 0..15) if limits => Op::Limit {
                pool: [None, Some(0), Some(1), Some(2)][r.below(4) as usize],
                granules: if r.below(4) == 0 { 0 } else { granules / 4 + r.below(granules) },
            },
            (0, 15..25) if loses => {
                Op::Lose { granules: if r.below(2) == 0 { 0 } else { r.below(granules / 2) } }
            }
            (0, 25..30) if captures => Op::Capture { stream: 1 + r.below(2) },
            (0, 30..40) => Op::EndCapture,
            (0, 40..45) => Op::Release,
            (0, 45..50) => Op::Checkpoint { pool },
            (0, 50..56) => Op::Restore { nth: at },
            (0, 56..60) => Op::Sleep { save: r.below(2) == 0 },
            (0, 60..68) => Op::Wake,
            (0, 68..70) => Op::EmptyCache,
            (0, 70..74) => Op::Trim {
                pool: if r.below(2) == 0 { None } else { Some(pool) },
                keep: r.below(granules) * G,
            },
            (0, 74..76) => Op::EndStream { stream: r.below(3) },
            (0, 76..78) => Op::Resize { at, bytes },
            (0, 78..79) => Op::FailAlias(r.below(3) == 0),
            (0, 79..80) => Op::Export { at },
            (0, 80..86) => Op::Use { at, stream: r.below(3) },
            (0, 86..90) => Op::EndUse { at, stream: r.below(3), event: r.below(2) == 0 },
            (0, 90..94) => Op::AllocUnordered { bytes },
            _ => Op::Alloc { bytes, stream, pool },
        });
    }
    ops
}

#[test]
fn random_programs_with_limits_where_memory_is_scarce() {
    for seed in 1..=part_of(24) as u64 {
        let mut r = Random(seed * 1_000_003);
        let (granules, n) = (20 + r.below(50), 200 + r.below(400));
        let most_pieces = pick(&mut r, &[16_000, 16_000, 16_000, 40]);
        let b = Bench::new(Config { most_pieces, ..config(true, granules * G) });
        let contiguous = [0, 1].map(|_| r.below(10) == 0);
        let ops = scarce_program(&mut r, n, granules);
        run_on(b, contiguous, ops);
    }
}

/// A block gets its slot; 0 bytes: the slot becomes empty.
type Fill = (usize, u64);

/// A program that ends with nothing, and the most that it has.
struct Pass {
    steps: Vec<Fill>,
    slots: usize,
    peak: u64,
}

/// A program of few sizes, from half a granule to five.
fn program(r: &mut Random, k: u64) -> Pass {
    let slots = (12 + r.below(60)) * k;
    let sizes = 3 + r.below(20);
    let small = r.below(10);
    let mut size = |_| match r.below(10) < small {
        true => (60 + r.below(66)) * UNIT,
        false => (1 + r.below(4)) * G + r.below(128) * UNIT,
    };
    let sizes: Vec<u64> = (0..sizes).map(&mut size).collect();
    let mut held = vec![0; slots as usize];
    let (mut steps, mut now, mut peak) = (Vec::new(), 0, 0);
    for _ in 0..(100 + r.below(400)) * k {
        let slot = r.below(slots) as usize;
        let bytes = if held[slot] > 0 { 0 } else { pick(r, &sizes) };
        now = now + bytes - std::mem::replace(&mut held[slot], bytes);
        peak = peak.max(now);
        steps.push((slot, bytes));
    }
    steps.extend((0..slots as usize).filter(|&slot| held[slot] > 0).map(|slot| (slot, 0)));
    Pass { steps, slots: slots as usize, peak }
}

/// Runs a program so many times; how often it calls the device in each. Something else comes before each step.
fn passes_beside(b: &Bench, p: &Pass, pool: PoolId, times: usize, before: impl Fn(usize)) -> Vec<u64> {
    let once = |_| {
        let calls = b.world.lock().unwrap().calls;
        let mut at = vec![0; p.slots];
        for (i, &(slot, bytes)) in p.steps.iter().enumerate() {
            before(i);
            match bytes {
                0 => b.pond.free(at[slot], None, None).unwrap(),
                _ => at[slot] = b.pond.alloc(pool, 1, bytes).unwrap(),
            }
        }
        b.world.lock().unwrap().calls - calls
    };
    (0..times).map(once).collect()
}

/// The same for a program alone.
fn passes(b: &Bench, p: &Pass, pool: PoolId, times: usize) -> Vec<u64> {
    passes_beside(b, p, pool, times, |_| ())
}

/// A pool whose own limit is a tenth more than it needs, beside another one of the same size. What the other one has does not
/// make its memory scarce, and it comes to rest as it does alone on a device of that size.
#[test]
fn a_pool_comes_to_rest_below_its_own_limit_whatever_others_have() {
    let p = program(&mut Random(10 * 1_000_003), 10);
    let limit = (p.peak * 11 / 10).next_multiple_of(G);
    let mut b = Bench::new(config(true, 2 * limit + 64 * G));
    b.alloc(PoolId::DEFAULT, Some(7), limit).unwrap();
    let pool = b.pool(false);
    b.limit(Some(pool), limit);
    let calls = passes(&b, &p, pool, 8);
    assert!(calls[4..].iter().all(|&n| n < 200), "{calls:?}");
    b.finish();
}

/// A program with a tenth more than it needs, beside a small pool that its own limit refuses now and then: it comes to rest as
/// it does alone.
#[test]
fn what_the_limit_of_a_pool_refuses_makes_no_memory_scarce_for_others() {
    let p = program(&mut Random(7 * 1_000_003), 10);
    let mut b = Bench::new(config(true, (p.peak * 11 / 10).next_multiple_of(G) + 3 * G));
    let small = b.pool(false);
    b.limit(Some(small), 2 * G);
    b.alloc(small, Some(2), G).unwrap();
    let refused = |i| {
        if i % 20 == 0 {
            b.pond.alloc(small, 2, 2 * G).unwrap_err();
        }
    };
    let calls = passes_beside(&b, &p, PoolId::DEFAULT, 8, refused);
    assert!(calls[4..].iter().all(|&n| n < 200), "{calls:?}");
    b.finish();
}

/// Threads that fill a nearly full device, each never with more than its part, while others trim: each request is served.
#[test]
fn what_is_free_serves_threads_whose_memory_is_scarce() {
    const THREADS: u64 = 4;
    for round in 1..=part_of(32) as u64 {
        let failing = pick(&mut Random(round), &[0, 0, 40]); // one call in so many
        let mut r = Random(round * 1_000_003);
        let each = 8 + r.below(16); // granules
        let spare = r.below(4);
        let world = World { fail_one_in: failing, is_impatient: true, dice: round, ..World::default() };
        let crowd = Crowd::new(config(true, (THREADS * each + spare) * G), world);
        let limit = (2 * each + spare) * G;
        let pools = [PoolId::DEFAULT, crowd.pond.pool_create(limit, false).unwrap()];
        let device = (THREADS * each + spare) * G;
        crowd.pond.set_limit(device);
        crowd.world.lock().unwrap().limit = device;
        let (crowd, done) = (&crowd, &AtomicBool::new(false));
        let work = |me: u64| {
            let mut r = Random(round * 100 + me);
            crowd.knows(me + 1);
            let mut live: Vec<(Piece, u64)> = Vec::new();
            let mut held = 0;
            for _ in 0..200 {
                let granules = 1 + r.below(4);
                if r.below(5) < 3 && held + granules <= each {
                    match crowd.alloc(pools[me as usize % 2], Some(me + 1), granules * G - r.below(2) * 8192)
                    {
                        Ok(p) => {
                            live.push((p, granules));
                            held += granules;
                        }
                        Err(e) => assert!(failing > 0, "{e}: {held} of {each} granules, round {round}"),
                    }
                } else if !live.is_empty() {
                    let (p, n) = live.swap_remove(r.below(live.len() as u64) as usize);
                    crowd.free(p, Some(me + 1));
                    held -= n;
                }
            }
            live.into_iter().for_each(|(p, _)| crowd.free(p, Some(me + 1)));
        };
        let work = &work;
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut r = Random(round);
                while !done.load(Ordering::Relaxed) {
                    let pool = [None, Some(pools[1])][r.below(2) as usize];
                    _ = crowd.pond.special().trim_to(pool, r.below(4 * each) * G);
                    let s = crowd.pond.stats(Some(pools[1])).unwrap().reserved;
                    assert!(s.peak <= limit, "{s:?} of {limit}");
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            let all: Vec<_> = (0..THREADS).map(|me| s.spawn(move || work(me))).collect();
            let ended: Vec<_> = all.into_iter().map(|t| t.join()).collect();
            done.store(true, Ordering::Relaxed);
            ended.into_iter().for_each(|e| e.unwrap());
        });
        crowd.world.lock().unwrap().fail_one_in = 0;
        let s = crowd.pond.stats(None).unwrap();
        assert_eq!((s.allocated.current, s.blocks.current), (0, 0));
        assert_eq!(s.reserved.current, crowd.world.lock().unwrap().taken);
        crowd.pond.ground().check();
        let sum: u64 = pools.iter().map(|&p| crowd.pond.stats(Some(p)).unwrap().reserved.current).sum();
        assert_eq!(sum, s.reserved.current);
        crowd.pond.empty_cache(None).unwrap();
        assert_eq!(crowd.world.lock().unwrap().taken, 0);
    }
}
