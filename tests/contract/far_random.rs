//! Random programs in later segments, in which three threads take turns, and a model beside them: every statistic with its
//! peaks, every event of the history, and every address are what the model says, after whichever call. `FAR_PROGRAMS` says how
//! many.

use crate::apart::*;
use crate::api::*;
use crate::counted::Counted;
use crate::history::start;
use crate::observers::state;
use crate::random::Random;
use crate::statistics::reset_peaks;
use millpond::capi::*;
use millpond::runtime::EventKind;
use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};

type Work = Box<dyn FnOnce() + Send>;

/// A thread that does what it is told.
struct Hand(Sender<Work>);

impl Hand {
    fn new() -> Hand {
        let (to, from) = channel::<Work>();
        std::thread::spawn(move || from.iter().for_each(|work| work()));
        Hand(to)
    }

    /// Does it, and waits until it is done.
    fn does<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (to, from) = channel();
        self.0.send(Box::new(move || _ = to.send(work()))).unwrap();
        from.recv().unwrap()
    }
}

/// Requested bytes, charged bytes, blocks.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
struct Sum {
    now: [u64; 3],
    peak: [u64; 3],
    total: [u64; 3],
}

impl Sum {
    fn begins(&mut self, requested: usize) {
        for (n, by) in [requested as u64, charge(requested), 1].into_iter().enumerate() {
            self.now[n] += by;
            self.total[n] += by;
            self.peak[n] = self.peak[n].max(self.now[n]);
        }
    }

    fn ends(&mut self, requested: usize) {
        let by = [requested as u64, charge(requested), 1];
        self.now.iter_mut().zip(by).for_each(|(now, by)| *now -= by);
    }

    fn of(s: &millpond_stats) -> Sum {
        let all = [s.requested_bytes, s.allocated_bytes, s.blocks];
        Sum { now: all.map(|c| c.current), peak: all.map(|c| c.peak), total: all.map(|c| c.total) }
    }
}

fn charge(requested: usize) -> u64 {
    requested.next_multiple_of(512) as u64
}

#[derive(Clone, Copy, Debug)]
struct Live {
    at: usize,
    bytes: usize,
    pool: usize,
    stream: Stream,
}

struct Program {
    d: Device,
    pools: Vec<Pool>,
    streams: Vec<Stream>,
    /// Of the device, and of each pool.
    sums: Vec<Sum>,
    live: BTreeMap<usize, Live>,
    /// Addresses that were live.
    old: Vec<usize>,
    /// What a history should have.
    told: Option<Vec<(EventKind, u64, u64)>>,
    what: String,
}

/// What came of many requests and frees in a row, by the thread itself: the addresses that it got.
fn pairs(pool: Pool, stream: Stream, sizes: [usize; 2], count: usize) -> Vec<(usize, usize)> {
    let mut got = Vec::new();
    for n in 0..count {
        let bytes = sizes[n % 2];
        let Ok(at) = pool.alloc(bytes, stream) else { break };
        pool.free(at, stream).unwrap();
        got.push((at, bytes));
    }
    got
}

impl Program {
    fn begins(&mut self, b: Live) {
        let what = &self.what;
        let clash = self.live.range(..b.at + b.bytes).next_back().filter(|(_, x)| x.at + x.bytes > b.at);
        assert!(clash.is_none(), "{what}: {b:x?} overlaps {clash:x?}");
        self.live.insert(b.at, b);
        [0, 1 + b.pool].into_iter().for_each(|n| self.sums[n].begins(b.bytes));
        if let Some(told) = &mut self.told {
            told.push((EventKind::Alloc, b.at as u64, b.bytes as u64));
        }
    }

    fn ends(&mut self, b: Live) {
        self.live.remove(&b.at);
        // Of those that come again and again, one; and the newest of all.
        self.old.retain(|&at| at != b.at);
        self.old.push(b.at);
        let many = self.old.len().saturating_sub(100);
        self.old.drain(..many);
        [0, 1 + b.pool].into_iter().for_each(|n| self.sums[n].ends(b.bytes));
        if let Some(told) = &mut self.told {
            told.push((EventKind::FreeRequested, b.at as u64, b.bytes as u64));
        }
    }

    fn check(&self, by: &Hand) {
        let (d, pools) = (self.d, self.pools.clone());
        let seen = by.does(move || {
            let each = pools.iter().map(|p| Sum::of(&p.stats())).collect::<Vec<_>>();
            [vec![Sum::of(&d.stats())], each].concat()
        });
        assert_eq!(seen, self.sums, "{}", self.what);
    }

    /// Addresses at which no block begins.
    fn wrong(&self, r: &mut Random) -> usize {
        let of = |list: &[usize], n: usize| if list.is_empty() { 1 } else { list[n % list.len()] };
        let live: Vec<usize> = self.live.keys().copied().collect();
        let n = r.below(1 << 20);
        let at = match r.below(6) {
            0 | 1 => of(&self.old, n),
            2 => of(&live, n) + 8,
            3 => of(&live, n) + 512,
            4 => of(&live, n).wrapping_sub(512),
            _ => of(&self.old, n).wrapping_add((n % 64) << 21),
        };
        if self.live.contains_key(&at) || at == 0 { 3 } else { at }
    }

    /// What the history says is what happened.
    fn stop(&mut self) {
        let Some(told) = self.told.take() else { return };
        let h = state(self.d).history().unwrap();
        state(self.d).history_stop().unwrap();
        let seen: Vec<_> = h
            .events
            .iter()
            .map(|e| e.event)
            .filter(|e| {
                matches!(e.kind, EventKind::Alloc | EventKind::FreeRequested | EventKind::FreeRefused)
            })
            .inspect(|e| assert_eq!(e.bytes, charge(e.requested as usize), "{}: {e:?}", self.what))
            .map(|e| (e.kind, e.address, e.requested))
            .collect();
        let first = seen.iter().zip(&told).position(|(a, b)| a != b);
        assert_eq!((h.dropped, first, seen.len()), (0, None, told.len()), "{}", self.what);
    }
}

fn size(r: &mut Random) -> usize {
    match r.below(8) {
        0..4 => 1 + r.below(4096),
        4 | 5 => 1 + r.below(60 * KIB),
        6 => 60 * KIB - 700 + r.below(1400),
        _ => 1 + r.below(3 * MIB),
    }
}

fn program(seed: u64, segment: usize, steps: usize) {
    let d = Counted::in_segments(512 * MIB, segment).open();
    let mut r = Random(seed | 1);
    let hands = [Hand::new(), Hand::new(), Hand::new()];
    let pools = vec![d.default_pool(), d.pool(0), d.pool(0)];
    let streams = vec![d.stream(), d.stream(), d.stream()];
    let mut p = Program {
        d,
        sums: vec![Sum::default(); 1 + pools.len()],
        pools,
        streams,
        live: BTreeMap::new(),
        old: Vec::new(),
        told: None,
        what: String::new(),
    };
    // The first segment is full, and stays so.
    let first: Vec<usize> =
        (0..segment / MIB).map(|_| p.pools[0].alloc(MIB, p.streams[0]).unwrap()).collect();
    let stream = p.streams[0];
    first.iter().for_each(|&at| p.begins(Live { at, bytes: MIB, pool: 0, stream }));
    let near = first[0]..first[0] + segment;
    let (mut last, mut far) = (0, 0);
    for step in 0..steps {
        p.what = format!("seed {seed}, step {step}");
        // As a rule the same thread goes on: it owns the heaps.
        last = if r.below(12) == 0 { r.below(3) } else { last };
        let hand = &hands[last];
        let own = r.below(3);
        let (pool, stream) = (if r.below(3) == 0 { r.below(3) } else { 0 }, p.streams[own]);
        let target = p.pools[pool];
        match r.below(100) {
            // Phases: of growth, and of decline.
            n if n < if step / 150 % 2 == 0 { 40 } else { 18 } => {
                let bytes = size(&mut r);
                if let Ok(at) = hand.does(move || target.alloc(bytes, stream)) {
                    far += usize::from(!near.contains(&at));
                    p.begins(Live { at, bytes, pool, stream });
                }
            }
            n if n < 60 && !p.live.is_empty() => {
                let b = *p.live.values().nth(r.below(p.live.len())).unwrap();
                if near.contains(&b.at) {
                    continue;
                }
                let (named, on) = (p.pools[r.of(&[b.pool, b.pool, 0])], r.of(&[b.stream, b.stream, stream]));
                let how = r.below(8);
                hand.does(move || match how {
                    0 => free(b.at),
                    1 => free_sized(b.at, b.bytes),
                    2 => record_stream(b.at, on).and_then(|()| named.free(b.at, on)),
                    _ => named.free(b.at, on),
                })
                .unwrap();
                p.ends(b);
            }
            n if n < 78 => {
                let (sizes, count) = ([size(&mut r), size(&mut r)], 1 + r.below(60));
                let got = hand.does(move || pairs(target, stream, sizes, count));
                for (at, bytes) in got {
                    let b = Live { at, bytes, pool, stream };
                    p.begins(b);
                    p.ends(b);
                }
            }
            n if n < 84 => {
                let wrong = p.wrong(&mut r);
                let done = hand.does(move || target.free(wrong, stream));
                assert!(done.is_err(), "{}: {wrong:x} is freed", p.what);
            }
            84 | 85 => match p.told {
                None => {
                    start(d, 1 << 15, 0, None);
                    p.told = Some(Vec::new());
                }
                Some(_) => p.stop(),
            },
            86 => {
                let which = r.below(1 + p.pools.len());
                let of = which.checked_sub(1).map(|n| p.pools[n]);
                hand.does(move || reset_peaks(d, of));
                p.sums[which].peak = p.sums[which].now;
            }
            87 => hand.does(move || d.empty_cache()).unwrap(),
            88 => hand.does(move || target.empty_cache()).unwrap(),
            89 => hand.does(move || d.trim_to(64 * MIB)).unwrap(),
            90 if p.told.as_ref().is_none_or(Vec::is_empty) => {
                // What a stream had is its pool's; and so is what lives.
                let old = std::mem::replace(&mut p.streams[own], d.stream());
                hand.does(move || d.end_stream(old)).unwrap();
                let new = p.streams[own];
                p.live.values_mut().filter(|b| b.stream.0 == old.0).for_each(|b| b.stream = new);
            }
            91 if pool > 0 => {
                let mine: Vec<Live> = p.live.values().filter(|b| b.pool == pool).copied().collect();
                let all = mine.clone();
                hand.does(move || all.iter().for_each(|b| free(b.at).unwrap()));
                mine.into_iter().for_each(|b| p.ends(b));
                hand.does(move || target.destroy()).unwrap();
                p.pools[pool] = d.pool(0);
                p.sums[1 + pool] = Sum::default();
            }
            92 => hand.does(move || target.set_limit(256 * MIB)).unwrap(),
            // What a stream has of a pool goes with its segments, and comes again at other addresses.
            94 => {
                let is_its = |b: &&Live| b.pool == pool && b.stream == stream && !near.contains(&b.at);
                let mine: Vec<Live> = p.live.values().filter(is_its).copied().collect();
                let all = mine.clone();
                let warm = hand.does(move || {
                    let got = pairs(target, stream, [1000, 100_000], 60);
                    all.iter().for_each(|b| target.free(b.at, stream).unwrap());
                    d.empty_cache().unwrap();
                    got
                });
                for (at, bytes) in warm {
                    let b = Live { at, bytes, pool, stream };
                    p.begins(b);
                    p.ends(b);
                }
                mine.iter().for_each(|&b| p.ends(b));
                let all = mine.clone();
                let again =
                    hand.does(move || all.iter().map(|b| target.alloc(b.bytes, stream)).collect::<Vec<_>>());
                for (b, at) in mine.iter().zip(again) {
                    at.into_iter().for_each(|at| p.begins(Live { at, ..*b }));
                }
                let gone: Vec<usize> =
                    mine.iter().map(|b| b.at).filter(|at| !p.live.contains_key(at)).collect();
                let freed = hand.does(move || gone.into_iter().find(|&at| target.free(at, stream).is_ok()));
                assert_eq!(freed, None, "{}", p.what);
            }
            93 => {
                let options = r.of(&["roundup_power2_divisions:1", "", "garbage_collection_threshold:0.5"]);
                hand.does(move || d.set_options(options)).unwrap();
            }
            _ => p.check(hand),
        }
        if p.told.as_ref().is_some_and(|t| t.len() > 30_000) {
            p.stop();
        }
        if r.below(4) == 0 {
            p.check(&hands[r.below(3)]);
        }
    }
    p.stop();
    p.check(&hands[0]);
    assert!(far > steps / 10, "seed {seed}: only {far} blocks lie in later segments");
    let all: Vec<usize> = p.live.keys().copied().collect();
    all.into_iter().for_each(|at| free(at).unwrap());
    d.synchronize().unwrap();
    d.empty_cache().unwrap();
    let s = d.stats();
    assert_eq!((s.allocated_bytes.current, s.reserved_bytes.current), (0, 0), "seed {seed}");
}

#[test]
fn statistics_histories_and_addresses_are_those_of_a_model() {
    let programs = std::env::var("FAR_PROGRAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(rounds(24));
    apart_for(300 + programs as u64, || {
        for n in 1..=programs {
            program(n as u64 * 7919, [4, 8, 16, 64][n % 4] * MIB, 1500);
        }
    });
}
