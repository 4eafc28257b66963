//! Peaks stay exact where threads allocate and free at the same moment.

use super::random::Random;
use super::*;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

const THREADS: u64 = 4;
const ROUNDS: u64 = 300;

/// \[B\] What one thread has live at the end of a round, and never has more of before.
fn level(me: u64, round: u64) -> u64 {
    (4 << 20) + round * (me + 1) * 512
}

/// The blocks of one thread, which has a stream of its own.
struct Blocks<'a> {
    pond: &'a Pond,
    pool: PoolId,
    stream: u64,
    live: Vec<(u64, u64)>,
    bytes: u64,
}

impl Blocks<'_> {
    fn alloc(&mut self, bytes: u64) {
        self.live.push((self.pond.alloc(self.pool, self.stream, bytes).unwrap(), bytes));
        self.bytes += bytes;
    }

    fn free(&mut self, r: &mut Random) {
        if !self.live.is_empty() {
            let (at, bytes) = self.live.swap_remove(r.below(self.live.len() as u64) as usize);
            self.pond.free(at, None, None).unwrap();
            self.bytes -= bytes;
        }
    }

    /// Allocates and frees, and ends with as much as `level`, which it never exceeds.
    fn work(&mut self, r: &mut Random, level: u64) {
        for _ in 0..r.below(3) * r.below(200) {
            let bytes = if r.below(2) == 0 { (1 + r.below(16)) * 512 } else { (1 + r.below(8)) * (64 << 10) };
            if r.below(5) < 3 && self.bytes + bytes < level {
                self.alloc(bytes);
            } else {
                self.free(r);
            }
        }
        while self.bytes < level {
            let left = level - self.bytes;
            self.alloc(if left >= 64 << 10 { left.min(1 << 20) >> 16 << 16 } else { left.min(8 << 10) });
        }
    }
}

/// In each round all threads have the most at its end, and more than ever before. A reader looks at the statistics all the time,
/// so heaps of threads that do nothing for a while rest and stir again.
#[test]
fn peaks_of_threads_that_work_at_the_same_moment_are_exact() {
    let mut b = Bench::new(config(true, 1 << 30));
    let pools = [PoolId::DEFAULT, b.pool(false)];
    let pond = &b.pond;
    let mut wrong = Vec::new();
    let (meet, done) = (&Barrier::new(THREADS as usize + 1), &AtomicBool::new(false));
    std::thread::scope(|s| {
        for me in 0..THREADS {
            let pool = pools[me as usize % 2];
            s.spawn(move || {
                let mut mine = Blocks { pond, pool, stream: me + 1, live: Vec::new(), bytes: 0 };
                let mut r = Random(me);
                for round in 1..=ROUNDS {
                    meet.wait();
                    (0..r.below(3) * r.below(2000)).for_each(|_| std::hint::spin_loop());
                    mine.work(&mut r, level(me, round));
                    meet.wait();
                    meet.wait();
                }
                while !mine.live.is_empty() {
                    mine.free(&mut r);
                }
            });
        }
        s.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                pond.stats(None).unwrap();
            }
        });
        for round in 1..=ROUNDS {
            meet.wait();
            meet.wait();
            let of = |n: u64| (0..THREADS).filter(|me| me % 2 == n).map(|me| level(me, round)).sum::<u64>();
            let all = [(None, of(0) + of(1)), (Some(pools[0]), of(0)), (Some(pools[1]), of(1))];
            let found = all.map(|(pool, _)| pond.stats(pool).unwrap().allocated);
            done.store(round == ROUNDS, Ordering::Relaxed);
            meet.wait();
            let (found, known) = (found.map(|a| (a.current, a.peak)), all.map(|(_, known)| (known, known)));
            if found != known {
                wrong.push((round, found, known));
            }
        }
    });
    assert_eq!(wrong, [], "round, found, known");
}
