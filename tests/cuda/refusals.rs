//! The mapping calls of the device type `cuda` fail at random, once, twice or for a while, and so do the calls that
//! undo them: no block loses its contents, no two blocks share memory, and a device that works again gets everything
//! back.

use crate::cuda::*;
use crate::random::Random;
use millpond::runtime::{DeviceState, PoolId};
use millpond::{Code, Error};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const POOL: PoolId = PoolId::DEFAULT;
/// CUDA_ERROR_LAUNCH_FAILED, here as an ordinary failure; and CUDA_ERROR_OUT_OF_MEMORY.
const CODES: [u32; 2] = [719, 2];
const CALLS: [&str; 5] = ["cuMemUnmap", "cuMemMap", "cuMemRelease", "cuMemSetAccess", "cuMemCreate"];
/// [B] blocks that end with a granule, and others.
const SIZES: [u64; 5] = [GRANULE, 10 * MIB + 5000, 3 * MIB, 70_000, 6 * MIB];

#[derive(Clone, Copy)]
struct Block {
    at: u64,
    bytes: u64,
    pool: PoolId,
    /// What it holds at some places; `None`: what a failed sleep has lost.
    holds: Option<u8>,
}

impl Block {
    /// One place in each granule, and the end.
    fn places(&self) -> impl Iterator<Item = u64> + use<> {
        let end = self.at + self.bytes;
        (self.at..end).step_by(GRANULE as usize).chain([end - 1])
    }

    fn fill(&mut self, fake: &Fake, with: u8) {
        self.places().for_each(|p| fake.write(0, p, &[with]).unwrap());
        self.holds = Some(with);
    }

    fn check(&self, fake: &Fake, when: &str) {
        for p in self.places() {
            let read = fake.read(0, p, 1);
            let right = match self.holds {
                Some(with) => read == Ok(vec![with]),
                None => read.is_ok(),
            };
            assert!(
                right,
                "{when}: {:#x} of {:#x}+{} holds {read:?}, not {:?}",
                p, self.at, self.bytes, self.holds
            );
        }
    }
}

/// Every refused call was legal: the failure is the device's own.
#[track_caller]
fn check_error(e: &Error, when: &str) {
    let fine = matches!(e.code(), Code::OutOfMemory | Code::Device);
    assert!(fine, "{when}: {:?}: {e}", e.code());
}

fn some_calls_fail(fake: &Fake, dice: &mut Random) {
    for _ in 0..=dice.below(3) {
        fake.fail(dice.of(&CALLS), 1 + dice.below(4) as u64, dice.of(&CODES), dice.below(3) == 0);
    }
}

/// One thread's share: blocks of its own, on a stream of its own.
struct Worker {
    d: Arc<DeviceState>,
    stream: u64,
    pools: Vec<PoolId>,
    blocks: Vec<Block>,
    count: u8,
}

impl Worker {
    fn step(&mut self, fake: &Fake, dice: &mut Random, when: &str) {
        let m = self.d.memory();
        match dice.below(8) {
            0..=3 => {
                let (pool, bytes) = (dice.of(&self.pools), dice.of(&SIZES));
                match m.alloc(pool, self.stream, bytes) {
                    Ok(at) => {
                        let mut b = Block { at, bytes, pool, holds: None };
                        self.count = self.count.wrapping_add(1);
                        b.fill(fake, self.count);
                        self.blocks.push(b);
                    }
                    Err(e) => check_error(&e, when),
                }
            }
            4..=6 if !self.blocks.is_empty() => {
                let b = self.blocks.swap_remove(dice.below(self.blocks.len()));
                b.check(fake, when);
                m.free(b.at, Some(self.stream), None).unwrap_or_else(|e| panic!("{when}: {e}"));
            }
            _ => {
                let pool = [None, Some(dice.of(&self.pools))][dice.below(2)];
                m.empty_cache(pool).unwrap_or_else(|e| check_error(&e, when));
            }
        }
    }

    fn check(&self, fake: &Fake, when: &str) {
        self.blocks.iter().for_each(|b| b.check(fake, when));
    }

    fn end(self) {
        for b in self.blocks {
            self.d.memory().free(b.at, Some(self.stream), None).unwrap();
        }
    }
}

/// Everything comes back to a device that is well again.
fn all_comes_back(fake: Fake, d: &DeviceState, when: &str) {
    d.memory().empty_cache(None).unwrap_or_else(|e| panic!("{when}: {e}"));
    assert_eq!((d.memory().stats().reserved.current, fake.used(0)), (0, 0), "{when}");
    fake.end();
}

fn programs() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let first = number("MILLPOND_REFUSALS_SEED").unwrap_or(1);
    first..first + number("MILLPOND_REFUSALS").unwrap_or(60)
}

#[test]
fn one_thread() {
    for seed in programs() {
        let mut dice = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let (fake, d) = one(&[]);
        let p = d.memory().pools().create(0).unwrap();
        let mut w = Worker {
            stream: d.streams().create().unwrap(),
            d: d.clone(),
            pools: vec![POOL, p],
            blocks: Vec::new(),
            count: 0,
        };
        let mut sleeps = false;
        for round in 0..60 {
            let when = format!("seed {seed}, round {round}");
            if dice.below(3) == 0 {
                some_calls_fail(&fake, &mut dice);
            }
            if sleeps || dice.below(6) > 0 {
                let pools = if sleeps { vec![POOL] } else { vec![POOL, p] };
                let asleep: Vec<Block> =
                    if sleeps { w.blocks.extract_if(.., |b| b.pool == p).collect() } else { Vec::new() };
                w.pools = pools;
                w.step(&fake, &mut dice, &when);
                w.blocks.extend(asleep);
                if sleeps && dice.below(3) == 0 {
                    match d.pools().wake(&[p]) {
                        Ok(()) => sleeps = false,
                        Err(e) => check_error(&e, &when),
                    }
                }
            } else {
                let slept = d.pools().sleep(&[p], true);
                sleeps = d.memory().pools().sleeps(p);
                if let Err(e) = slept {
                    check_error(&e, &when);
                    if e.message().contains("is lost") {
                        w.blocks.iter_mut().filter(|b| b.pool == p).for_each(|b| b.holds = None);
                    }
                }
            }
            if dice.below(3) == 0 {
                fake.fail_clear();
            }
            let awake = w.blocks.iter().filter(|b| b.pool != p || !sleeps);
            awake.for_each(|b| b.check(&fake, &when));
        }
        fake.fail_clear();
        let when = format!("seed {seed}, at the end");
        if sleeps {
            // The others may have the memory that it needs.
            for b in w.blocks.extract_if(.., |b| b.pool != p) {
                b.check(&fake, &when);
                d.memory().free(b.at, Some(w.stream), None).unwrap();
            }
            d.pools().wake(&[p]).unwrap_or_else(|e| panic!("{when}: {e}"));
        }
        w.check(&fake, &when);
        w.end();
        all_comes_back(fake, &d, &when);
    }
}

#[test]
fn several_threads() {
    for seed in programs() {
        let (fake, d) = one(&[]);
        let p = d.memory().pools().create(0).unwrap();
        let done = AtomicBool::new(false);
        let workers: Vec<Worker> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3u64)
                .map(|t| {
                    let (fake, d) = (&fake, d.clone());
                    scope.spawn(move || {
                        let mut dice = Random((seed * 8 + t).wrapping_mul(0x9E37_79B9_7F4A_7C15));
                        let stream = d.streams().create().unwrap();
                        let mut w = Worker {
                            d,
                            stream,
                            pools: vec![POOL, p],
                            blocks: Vec::new(),
                            count: 70 * t as u8,
                        };
                        for round in 0..200 {
                            w.step(fake, &mut dice, &format!("seed {seed}, thread {t}, round {round}"));
                        }
                        w
                    })
                })
                .collect();
            let mut dice = Random(seed.wrapping_mul(0xD1B5_4A32_D192_ED03));
            let (done, fake) = (&done, &fake);
            let chaos = scope.spawn(move || {
                while !done.load(Relaxed) {
                    some_calls_fail(fake, &mut dice);
                    std::thread::sleep(std::time::Duration::from_micros(300));
                    if dice.below(2) == 0 {
                        fake.fail_clear();
                    }
                }
            });
            let ended: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
            done.store(true, Relaxed);
            chaos.join().unwrap();
            ended.into_iter().map(|w| w.unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
        });
        fake.fail_clear();
        let when = format!("seed {seed}, at the end");
        workers.iter().for_each(|w| w.check(&fake, &when));
        workers.into_iter().for_each(Worker::end);
        all_comes_back(fake, &d, &when);
    }
}

/// A view that could be shown only in part, and is not taken away, keeps its granules: who wants to give these back is
/// told what the driver says.
#[test]
fn what_still_shows_granules_is_the_reason_that_they_stay() {
    let mut told = 0;
    for refusals in 1..8 {
        let (fake, d) = one(&[]);
        let m = d.memory();
        let s = d.streams().create().unwrap();
        let all: Vec<u64> = (0..32).map(|_| m.alloc(POOL, s, GRANULE).unwrap()).collect();
        all.iter().step_by(2).for_each(|&at| m.free(at, Some(s), None).unwrap());
        fake.fail("cuMemMap", 2, CODES[0], true);
        fake.fail("cuMemUnmap", 1, CODES[0], true);
        m.alloc(POOL, s, 8 * MIB).unwrap_err();
        fake.fail_clear();
        for nth in 1..=refusals {
            fake.fail("cuMemUnmap", nth, CODES[0], false);
        }
        if let Err(e) = m.empty_cache(None) {
            assert!(e.code() == Code::Device && e.message().contains("cuMemUnmap"), "{refusals}: {e}");
            told += 1;
        }
        fake.fail_clear();
        all.iter().skip(1).step_by(2).for_each(|&at| m.free(at, Some(s), None).unwrap());
        all_comes_back(fake, &d, &format!("{refusals} refusals"));
    }
    assert!(told > 2, "{told}");
}
