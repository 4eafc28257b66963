//! Threads with blocks in later segments, beside others that give segments back, begin and end histories, and ask: whatever is asked at
//! any moment is exact, and no block is another's, too. `FAR_SECONDS` says for how long.

use crate::apart::*;
use crate::api::*;
use crate::history::start;
use crate::observers::state;
use crate::random::Random;
use millpond::capi::*;
use millpond::runtime::{EventKind, History};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

const WORKERS: usize = 3;

#[derive(Clone, Copy)]
struct Block {
    at: usize,
    bytes: usize,
    stamp: u8,
}

struct Shared {
    d: Device,
    pool: Pool,
    stop: AtomicBool,
    /// Held to read in each call; to write by who wants that nobody is in one.
    calls: RwLock<()>,
    post: Mutex<Vec<Block>>,
    /// Requested bytes, charged bytes, blocks: live now, and ever.
    live: [AtomicU64; 3],
    ever: [AtomicU64; 3],
}

fn charge(bytes: usize) -> [u64; 3] {
    [bytes as u64, bytes.next_multiple_of(512) as u64, 1]
}

/// Where one thread finds something wrong, the others stop.
struct Alarm<'a>(&'a AtomicBool);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(std::thread::panicking(), Relaxed);
    }
}

impl Shared {
    fn alloc(&self, bytes: usize, stream: Stream, stamp: u8) -> Option<Block> {
        let at = match self.pool.alloc(bytes, stream) {
            Ok(at) => at,
            Err(e) => {
                assert_eq!(e.code, MILLPOND_E_OUT_OF_MEMORY, "{}", e.message);
                return None;
            }
        };
        for (n, by) in charge(bytes).into_iter().enumerate() {
            self.live[n].fetch_add(by, Relaxed);
            self.ever[n].fetch_add(by, Relaxed);
        }
        let some = bytes.min(64);
        poke(at, stamp, some);
        poke(at + bytes - some, stamp, some);
        Some(Block { at, bytes, stamp })
    }

    fn free(&self, b: Block, stream: Option<Stream>) {
        let some = b.bytes.min(64);
        let same = [b.at, b.at + b.bytes - some].map(|at| filled(at, some));
        assert_eq!(same, [Some(b.stamp); 2], "a block is another's, too");
        for (n, by) in charge(b.bytes).into_iter().enumerate() {
            self.live[n].fetch_sub(by, Relaxed);
        }
        match stream {
            Some(s) => self.pool.free(b.at, s),
            None => free(b.at),
        }
        .unwrap();
    }

    /// What the account says is what lives, as nobody is in a call.
    fn check(&self) {
        let s = self.d.stats();
        let counters = [s.requested_bytes, s.allocated_bytes, s.blocks];
        assert_eq!(counters.map(|c| c.current), self.live.each_ref().map(|n| n.load(Relaxed)));
        assert_eq!(counters.map(|c| c.total), self.ever.each_ref().map(|n| n.load(Relaxed)));
        assert!(counters.iter().all(|c| c.peak >= c.current));
    }

    /// One life of a worker; what it has left is for others.
    fn work(&self, seed: u64, stream: Stream) {
        let mut r = Random(seed | 1);
        let mut held: Vec<Block> = Vec::new();
        let usual = [1 + r.below(4096), 1 + r.below(60 * KIB), 64 * KIB + r.below(2 * MIB)];
        for _ in 0..1000 + r.below(3000) {
            if self.stop.load(Relaxed) {
                break;
            }
            let _calls = self.calls.read().unwrap();
            let bytes = if r.below(8) == 0 { 1 + r.below(3 * MIB) } else { r.of(&usual) };
            let stamp = r.below(256) as u8;
            match r.below(16) {
                0..3 if held.len() < 30 => held.extend(self.alloc(bytes, stream, stamp)),
                3..5 if !held.is_empty() => self.free(held.swap_remove(r.below(held.len())), Some(stream)),
                5 if !held.is_empty() => {
                    self.post.lock().unwrap().push(held.swap_remove(r.below(held.len())))
                }
                6 | 7 => {
                    let b = self.post.lock().unwrap().pop();
                    b.into_iter().for_each(|b| self.free(b, [Some(stream), None][r.below(2)]));
                }
                8 if !held.is_empty() => {
                    let b = held[r.below(held.len())];
                    for wrong in [b.at + 8, b.at.wrapping_sub(1), b.at + b.bytes.max(512) - 256] {
                        assert!(self.pool.free(wrong, stream).is_err());
                    }
                }
                _ => {
                    for n in 0..1 + r.below(40) {
                        let bytes = usual[if n % 3 == 0 { 2 } else { n % 2 }];
                        self.alloc(bytes, stream, stamp).into_iter().for_each(|b| self.free(b, Some(stream)));
                    }
                }
            }
        }
        self.post.lock().unwrap().extend(held);
    }
}

/// Of each address, a request and a free come in turn.
fn alternate(h: &History, whole: bool) {
    let mut last = HashMap::new();
    for e in h.events.iter().map(|e| e.event) {
        let lives = match e.kind {
            EventKind::Alloc => true,
            EventKind::FreeRequested => false,
            _ => continue,
        };
        assert_eq!(e.bytes, e.requested.next_multiple_of(512), "{e:?}");
        if whole && h.dropped == 0 && last.insert(e.address, lives) == Some(lives) {
            let of = |x: &millpond::runtime::Event| x.address == e.address;
            let all: Vec<_> = h.events.iter().enumerate().filter(|(_, x)| of(&x.event)).collect();
            panic!("{e:?} of {} events: {:#?}", h.events.len(), &all[all.len().saturating_sub(6)..]);
        }
    }
}

fn hunt(seed: u64, lasts: Duration) {
    // Segments of some MiB, and many.
    let d = host(if seed.is_multiple_of(2) { 192 * MIB } else { GIB }, false);
    let s = &Shared {
        d,
        pool: d.default_pool(),
        stop: AtomicBool::new(false),
        calls: RwLock::new(()),
        post: Mutex::default(),
        live: Default::default(),
        ever: Default::default(),
    };
    let until = Instant::now() + lasts;
    std::thread::scope(|scope| {
        for n in 0..WORKERS as u64 {
            scope.spawn(move || {
                let _alarm = Alarm(&s.stop);
                let mut lives = 0;
                while !s.stop.load(Relaxed) {
                    lives += 1;
                    let stream = d.stream();
                    // A thread that ends has whatever it has: room below peaks, fast paths, seats.
                    std::thread::scope(|one| _ = one.spawn(|| s.work(seed * 1000 + n * 100 + lives, stream)));
                    if lives % 2 == 0 {
                        let _calls = s.calls.read().unwrap();
                        d.end_stream(stream).unwrap();
                    }
                }
            });
        }
        scope.spawn(move || {
            let _alarm = Alarm(&s.stop);
            while !s.stop.load(Relaxed) {
                d.empty_cache().unwrap();
                d.trim_to(32 * MIB).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        scope.spawn(move || {
            let _alarm = Alarm(&s.stop);
            let mut r = Random(seed + 99);
            while !s.stop.load(Relaxed) {
                let still = r.below(2) == 0;
                let nobody = still.then(|| s.calls.write().unwrap());
                start(d, if r.below(3) == 0 { 64 } else { 1 << 18 }, 0, None);
                drop(nobody);
                std::thread::sleep(Duration::from_millis(r.below(30) as u64));
                alternate(&state(d).history().unwrap(), still);
                // As where it begins: what is under way may be left out.
                let nobody = still.then(|| s.calls.write().unwrap());
                state(d).history_stop().unwrap();
                drop(nobody);
                alternate(&state(d).history().unwrap(), still);
            }
        });
        let _alarm = Alarm(&s.stop);
        let mut totals = [0; 3];
        for n in 0.. {
            if Instant::now() > until {
                break;
            }
            let stats = d.stats();
            let counters = [stats.requested_bytes, stats.allocated_bytes, stats.blocks];
            assert!(counters.iter().all(|c| c.peak >= c.current && c.total >= c.peak), "{stats:?}");
            assert!(counters.iter().zip(totals).all(|(c, before)| c.total >= before), "{stats:?}");
            totals = counters.map(|c| c.total);
            if n % 4 == 0 {
                let _nobody = s.calls.write().unwrap();
                s.check();
            }
            std::thread::sleep(Duration::from_micros(700));
        }
        s.stop.store(true, Relaxed);
    });
    s.check();
    let rest = std::mem::take(&mut *s.post.lock().unwrap());
    rest.into_iter().for_each(|b| s.free(b, None));
    d.synchronize().unwrap();
    d.empty_cache().unwrap();
    let stats = d.stats();
    assert_eq!((stats.allocated_bytes.current, stats.reserved_bytes.current), (0, 0));
    assert!(stats.blocks.total > 1000, "{stats:?}");
}

#[test]
fn what_is_asked_of_later_segments_is_exact_at_any_moment() {
    let seconds = std::env::var("FAR_SECONDS").ok().and_then(|n| n.parse().ok()).unwrap_or(4);
    apart_for(60 + 2 * seconds, || {
        let until = Instant::now() + Duration::from_secs(seconds);
        for seed in 1.. {
            if Instant::now() > until {
                break;
            }
            hunt(seed, lasting(Duration::from_secs(2)));
        }
    });
}
