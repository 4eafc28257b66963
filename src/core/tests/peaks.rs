//! Peaks are exact at any moment, however the room below them is shared among the heaps.

use super::super::account::Accounts;
use super::super::blocks::WaitingBlocks;
use super::random::Random;
use super::*;
use std::time::Duration;

/// What is live, and what is live or waits, of a pool or of all; and the peaks of both.
#[derive(Clone, Copy, Default)]
struct Known {
    now: [u64; 2],
    peak: [u64; 2],
}

impl Known {
    fn change(&mut self, live: i64, active: i64) {
        self.now = [self.now[0].wrapping_add_signed(live), self.now[1].wrapping_add_signed(active)];
        self.peak = std::array::from_fn(|n| self.peak[n].max(self.now[n]));
    }
}

/// Streams of two pools allocate and free, blocks wait for another stream, and nobody asks for the peaks but now and then.
#[test]
fn peaks_of_streams_that_wait_and_take_turns_are_exact() {
    for seed in 0..150 {
        let mut r = Random(seed);
        let mut b = Bench::new(config(true, 1 << 30));
        let pools = [PoolId::DEFAULT, b.pool(false)];
        let mut known = [Known::default(); 3]; // of each pool, and of both
        let mut waiting = [0; 2];
        let exact = |b: &Bench, known: &[Known; 3], step: usize| {
            for (n, pool) in [Some(pools[0]), Some(pools[1]), None].into_iter().enumerate() {
                let s = b.pond.stats(pool).unwrap();
                let peaks = [s.allocated.peak, s.active.peak];
                assert_eq!(peaks, known[n].peak, "seed {seed}, step {step}, account {n}");
            }
        };
        for step in 0..400 {
            match r.below(10) {
                0..=4 => {
                    let n = usize::from(r.below(3) == 0);
                    let bytes = match r.below(2) {
                        0 => (1 + r.below(16)) * 512,
                        _ => (1 + r.below(30)) * (64 << 10),
                    };
                    if b.live.len() < 60 {
                        b.alloc(pools[n], Some(r.below(3)), bytes).unwrap();
                        [n, 2].iter().for_each(|&k| known[k].change(bytes as i64, bytes as i64));
                    }
                }
                5..=7 if !b.live.is_empty() => {
                    let i = r.below(b.live.len() as u64) as usize;
                    let (n, bytes) = (usize::from(b.live[i].pool != pools[0]), b.live[i].bytes);
                    let waits = r.below(3) == 0;
                    if waits {
                        b.pond.record_stream(b.live[i].offset, 9).unwrap();
                        b.live[i].uses.push(9);
                        waiting[n] += bytes;
                    }
                    b.free(i, None);
                    let active = if waits { 0 } else { -(bytes as i64) };
                    [n, 2].iter().for_each(|&k| known[k].change(-(bytes as i64), active));
                }
                8 => {
                    let queued = b.world.lock().unwrap().streams.get(&9).map_or(0, |s| s.queued);
                    b.world.lock().unwrap().complete(9, queued);
                    WaitingBlocks::of(b.pond.ground()).poll_all();
                    for (n, bytes) in waiting.iter_mut().enumerate() {
                        [n, 2].iter().for_each(|&k| known[k].change(0, -(*bytes as i64)));
                        *bytes = 0;
                    }
                }
                _ if r.below(12) == 0 => exact(&b, &known, step),
                _ => {}
            }
        }
        exact(&b, &known, 400);
    }
}

/// Sixteen streams of random sizes stay close to the peak of all together. Where one lacks room it seldom interrupts the others.
#[test]
fn streams_close_to_the_peak_seldom_have_all_heaps_locked() {
    const STREAMS: usize = 16;
    let mut r = Random(5);
    let b = Bench::new(config(false, 1 << 30));
    let mut live = vec![[None::<u64>; 50]; STREAMS];
    let mut taken = [0; 2];
    for taken in &mut taken {
        for _ in 0..100_000 {
            let stream = r.below(STREAMS as u64) as usize;
            let place = &mut live[stream][r.below(50) as usize];
            if let Some(at) = place.take() {
                b.pond.free(at, None, None).unwrap();
            }
            let bytes = (512 << r.below(11)) + r.below(512);
            *place = Some(b.pond.alloc(PoolId::DEFAULT, 1 + stream as u64, bytes).unwrap());
        }
        *taken = b.pond.ground().ledger().taken;
    }
    let often = taken[1] - taken[0];
    assert!(often < 600, "{often} times in 100 000 requests");
    live.into_iter().flatten().flatten().for_each(|at| b.pond.free(at, None, None).unwrap());
}

/// The sums are taken while a heap that had rested begins to allocate. It may not take of what is spare then: the ledger, which has
/// not seen it, is about to deal that to others.
#[test]
fn a_heap_that_stirs_while_the_sums_are_taken_waits_for_the_ledger() {
    const BLOCK: u64 = 2 << 20;
    let b = Bench::new(config(true, 1 << 30));
    let pond = &b.pond;
    let some = |stream, n| {
        let one = || pond.alloc(PoolId::DEFAULT, stream, BLOCK).unwrap();
        std::iter::repeat_with(one).take(n).collect::<Vec<u64>>()
    };
    let free = |all: Vec<u64>| all.into_iter().for_each(|at| pond.free(at, None, None).unwrap());
    let own = [some(1, 32), some(2, 32), some(3, 10)]; // so that later none needs memory of others
    own.into_iter().for_each(free);
    for pool in [None, Some(PoolId::DEFAULT)] {
        Accounts::of(pond.ground()).reset_peaks(pool).unwrap();
    }
    (0..40).for_each(|_| _ = pond.stats(None).unwrap()); // all rest
    free(some(1, 32));
    free(some(2, 32)); // together they have never had more than 32
    pond.stats(None).unwrap(); // a quarter is dealt to each, and half is spare
    let (told, hears) = std::sync::mpsc::channel();
    let late = std::thread::scope(|s| {
        let mut ledger = pond.ground().ledger();
        let accounts = Accounts::of(pond.ground());
        let late = accounts.take_sums(&mut ledger, None, |_| {
            let late = s.spawn(move || {
                let all = some(3, 10);
                told.send(()).unwrap();
                all
            });
            assert!(hears.recv_timeout(Duration::from_millis(100)).is_err(), "it has not waited");
            late
        });
        drop(ledger);
        late.join().unwrap()
    });
    free(some(1, 23));
    assert_eq!(pond.stats(None).unwrap().allocated.peak, 33 * BLOCK);
    free(late);
}
