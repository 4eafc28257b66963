//! The pond against a simulated device that knows the truth: which granules exist, what stands behind
//! which address, what each stream has still to do. Every block is checked against every other in
//! physical space, and against work that may still use its memory.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

use super::backing::{Backing, Point, Points};
use super::ground::Config;
use super::pond::Pond;
use super::state::tuned::Tuning;
use super::types::PoolId;
use crate::base::error::{Code, Error, Result};
use crate::base::sync::levels::check_unlocked;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex};

mod capture;
mod checkpoint;
mod guards;
mod scale;
mod scattered;
mod sim;
mod sleep;
mod tuned;
mod walk;

use capture::Graphs;
use checkpoint::Saved;
use sim::{Sim, World};

const G: u64 = 2 << 20;

#[derive(Clone)]
struct Block {
    offset: u64,
    bytes: u64,
    stream: Option<u64>,
    uses: Vec<u64>,
    ended: Vec<(u64, u64)>, // stream, and what was queued there when the use ended
    pool: PoolId,
    ranges: Vec<(u64, u64)>,  // the memory behind it
    past: Option<(u64, u64)>, // its stream has ended, and this was queued there
}

/// A stream ends, as the device agrees.
fn stream_ends(pond: &Pond, stream: u64) {
    pond.stream_ended(pond.order().ending(stream).unwrap());
}

/// A pond, its device and what the test knows of both.
struct Bench {
    pond: Pond,
    world: Arc<Mutex<World>>,
    live: Vec<Block>,
    taken: BTreeMap<u64, u64>,        // physical range -> its end
    dirty: Vec<(u64, u64, u64, u64)>, // physical start, end, stream, queued at the free
    requested: u64,
    peak: u64,
}

fn config(mapping: bool, capacity: u64) -> Config {
    Config {
        min_chunk: 512,
        max_chunk: capacity,
        max_alloc: capacity,
        padding: 0,
        init_alloc: 8 << 20,
        realloc: 8 << 20,
        growing: false,
        mapping,
        numbers: 2 * capacity / G,
        window: Pond::WINDOW,
        most_pieces: 16_000,
        most_blocks: u64::MAX,
    }
}

impl Bench {
    fn new(config: Config) -> Bench {
        let world = Arc::new(Mutex::new(World { capacity: config.max_alloc, ..World::default() }));
        let pond = Pond::new(config, Arc::new(Sim(world.clone()))).unwrap();
        world.lock().unwrap().real = pond.ground().real;
        Bench { pond, world, live: vec![], taken: BTreeMap::new(), dirty: vec![], requested: 0, peak: 0 }
    }

    fn alloc(&mut self, pool: PoolId, stream: Option<u64>, bytes: u64) -> Result<usize> {
        self.alloc_as(pool, pool, stream, bytes)
    }

    /// A request that names one pool and is served by another.
    fn alloc_as(&mut self, named: PoolId, pool: PoolId, stream: Option<u64>, bytes: u64) -> Result<usize> {
        let offset = match stream {
            Some(s) => self.pond.alloc(named, s, bytes)?,
            None => self.pond.alloc_unordered(named, bytes)?,
        };
        self.enter(Block {
            offset,
            bytes,
            stream,
            uses: vec![],
            ended: vec![],
            pool,
            ranges: vec![],
            past: None,
        });
        Ok(self.live.len() - 1)
    }

    /// The block has become live: it must overlap nobody, and come after all work that may use its memory.
    fn enter(&mut self, mut b: Block) {
        let (offset, bytes, stream) = (b.offset, b.bytes, b.stream);
        assert_eq!(offset % 512, 0);
        let w = self.world.lock().unwrap();
        b.ranges = w.behind(offset, bytes);
        for (a, n) in b.ranges.iter().copied() {
            if let Some((_, &end)) = self.taken.range(..a + n).next_back() {
                assert!(end <= a, "{bytes} bytes at {offset:#x} overlap a live block");
            }
            self.taken.insert(a, a + n);
            for &(x, y, s, q) in &self.dirty {
                if x < a + n && a < y && Some(s) != stream && !w.passed(s, q) && b.past.is_none() {
                    let waits = stream.and_then(|t| w.streams.get(&t)).and_then(|t| t.waits.get(&s));
                    assert!(
                        waits.is_some_and(|&v| v >= q),
                        "reuse before stream {s} passed {q} (by {stream:?})"
                    );
                }
            }
        }
        drop(w);
        self.requested += bytes;
        self.peak = self.peak.max(self.requested);
        self.live.push(b);
    }

    /// The use on `stream` ends at its last work now; with `event`, the caller says so with an event.
    fn end_use(&mut self, i: usize, stream: u64, event: bool) {
        let b = &mut self.live[i];
        let mut w = self.world.lock().unwrap();
        let captured = !w.recording.is_empty() && (stream == 0 || w.recording.contains(&stream));
        let st = w.streams.entry(stream).or_default();
        st.queued += 1; // the work that used the block
        let (q, known) = (st.queued, (stream, st.queued, st.waits.clone()));
        let e = w.events.len() as u64 + 1;
        if event {
            w.events.insert(e, known);
            w.streams.entry(stream).or_default().queued += 3; // more work, that does not use it
        }
        drop(w);
        self.pond.end_use(b.offset, stream, event.then_some(e)).unwrap();
        if b.stream == Some(stream) && b.past.is_none() || b.stream.is_none() {
            return;
        }
        b.uses.retain(|&s| s != stream);
        if captured {
            b.uses.push(stream);
        } else {
            b.ended.push((stream, q));
        }
    }

    fn free(&mut self, i: usize, on: Option<u64>) {
        let offset = self.leave(i, on);
        self.pond.free(offset, on, None).unwrap();
        self.dirty.retain(|d| !self.world.lock().unwrap().passed(d.2, d.3));
    }

    /// The block is about to be freed; its offset.
    fn leave(&mut self, i: usize, on: Option<u64>) -> u64 {
        let b = self.live.swap_remove(i);
        let mut w = self.world.lock().unwrap();
        let mut users: Vec<u64> = b.uses.clone();
        users.extend(on);
        match b.stream {
            Some(s) if b.past.is_none() => users.push(s),
            Some(_) => {}
            None => users.extend(w.streams.keys().copied()),
        }
        let ranges = b.ranges.clone();
        for (s, q) in b.past.into_iter().chain(b.ended) {
            self.dirty.extend(ranges.iter().map(|&(a, n)| (a, a + n, s, q)));
        }
        for &s in &users {
            let st = w.streams.entry(s).or_default();
            st.queued += 1; // the work that used the block
            let q = st.queued;
            for &(a, n) in &ranges {
                self.dirty.push((a, a + n, s, q));
            }
        }
        for (a, n) in ranges {
            assert_eq!(self.taken.remove(&a), Some(a + n));
        }
        drop(w);
        self.requested -= b.bytes;
        b.offset
    }

    fn finish(mut self) {
        while !self.live.is_empty() {
            self.free(0, None);
        }
        self.pond.ground().check();
        self.pond.ground().backing.sync_all().unwrap();
        let s = self.pond.stats(None).unwrap();
        assert_eq!(
            (s.requested.current, s.allocated.current, s.active.current, s.blocks.current),
            (0, 0, 0, 0)
        );
        self.pond.empty_cache(None).unwrap();
        self.pond.ground().check();
        let w = self.world.lock().unwrap();
        assert_eq!(w.taken, 0, "all bytes come back");
        assert!(w.saved.is_empty() && w.created.is_empty() && w.shown.is_empty() && w.segments.is_empty());
        drop(w);
        assert_eq!(self.pond.stats(None).unwrap().reserved.current, 0);
        assert!(self.world.lock().unwrap().marks.is_empty(), "marks are given back");
    }
}

fn log_size() -> impl Strategy<Value = u64> {
    (0u32..25, 0u64..1 << 24).prop_map(|(bits, r)| 1 + r % (1 << bits))
}

#[derive(Clone, Debug)]
enum Op {
    Alloc { bytes: u64, stream: u64, pool: usize },
    AllocUnordered { bytes: u64 },
    Free { at: usize, on: Option<u64> },
    Use { at: usize, stream: u64 },
    EndUse { at: usize, stream: u64, event: bool },
    Run { stream: u64 },
    Capture { stream: u64 },
    EndCapture,
    Release,
    Checkpoint { pool: usize },
    Restore { nth: usize },
    Sleep { save: bool },
    Wake,
    EmptyCache,
    EndStream { stream: u64 },
    FailAlias(bool),
    Tune(Tuning),
}
fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (log_size(), 0u64..3, 0usize..3).prop_map(|(bytes, stream, pool)| Op::Alloc { bytes, stream, pool }),
        1 => log_size().prop_map(|bytes| Op::AllocUnordered { bytes }),
        10 => (0usize..1000, prop_oneof![4 => Just(None), 1 => (0u64..3).prop_map(Some)])
            .prop_map(|(at, on)| Op::Free { at, on }),
        1 => (0usize..1000, 0u64..3).prop_map(|(at, stream)| Op::Use { at, stream }),
        1 => (0usize..1000, 0u64..3, any::<bool>())
            .prop_map(|(at, stream, event)| Op::EndUse { at, stream, event }),
        2 => (0u64..3).prop_map(|stream| Op::Run { stream }),
        1 => (1u64..3).prop_map(|stream| Op::Capture { stream }),
        1 => Just(Op::EndCapture),
        1 => Just(Op::Release),
        1 => (0usize..3).prop_map(|pool| Op::Checkpoint { pool }),
        2 => (0usize..100).prop_map(|nth| Op::Restore { nth }),
        1 => any::<bool>().prop_map(|save| Op::Sleep { save }),
        1 => Just(Op::Wake),
        1 => Just(Op::EmptyCache),
        1 => (0u64..3).prop_map(|stream| Op::EndStream { stream }),
        1 => any::<bool>().prop_map(Op::FailAlias),
        1 => tuned::tuning().prop_map(Op::Tune),
    ]
}

fn run(mapping: bool, ops: Vec<Op>) {
    let mut b = Bench::new(config(mapping, 96 << 20));
    let second = b.pond.pool_create(0).unwrap();
    let third = b.pond.pool_create(0).unwrap();
    let pools = [PoolId::DEFAULT, second, third];
    let mut graphs = Graphs::new(third);
    let mut saved: Vec<Saved> = Vec::new();
    for op in ops {
        match op {
            Op::Capture { stream } => graphs.begin(&mut b, stream),
            Op::EndCapture => graphs.end(&mut b),
            Op::Sleep { save } => b.sleep(second, save, mapping),
            Op::Wake => b.wake(second),
            Op::Release => graphs.release(&mut b),
            Op::Checkpoint { pool } => saved.push(b.checkpoint(pools[pool])),
            Op::Restore { nth } if !saved.is_empty() => b.restore(&saved[nth % saved.len()]),
            Op::EndUse { at, stream, event } if !b.live.is_empty() => {
                let at = at % b.live.len();
                b.end_use(at, stream, event);
            }
            Op::Alloc { bytes, stream, pool } => {
                if b.pond.sleeps(pools[pool]) && !graphs.recording(stream) {
                    let refused = b.pond.alloc(pools[pool], stream, bytes).unwrap_err();
                    assert_eq!(refused.code(), Code::NotPermitted);
                    continue;
                }
                let served = if graphs.recording(stream) { third } else { pools[pool] };
                if let Err(e) = b.alloc_as(pools[pool], served, Some(stream), bytes) {
                    assert_eq!(e.code(), Code::OutOfMemory, "{e}");
                    let free = (96 << 20) - b.requested;
                    // On a mapping device only rounding and what is pinned down by other pools can be lost.
                    assert!(
                        !mapping
                            || bytes > free
                            || b.live.len() > 8
                            || free - bytes < 90 << 20
                            || !graphs.none(),
                        "{e}"
                    );
                }
            }
            Op::AllocUnordered { bytes } => {
                let _ = b.alloc(PoolId::DEFAULT, None, bytes);
            }
            Op::Free { at, on } if !b.live.is_empty() => {
                let at = at % b.live.len();
                b.free(at, on);
            }
            Op::Use { at, stream } if !b.live.is_empty() => {
                let at = at % b.live.len();
                b.pond.record_stream(b.live[at].offset, stream).unwrap();
                if b.live[at].stream != Some(stream) || b.live[at].past.is_some() {
                    b.live[at].uses.push(stream);
                }
            }
            Op::Run { stream } => {
                let mut w = b.world.lock().unwrap();
                let q = w.streams.get(&stream).map_or(0, |s| s.queued);
                w.complete(stream, q);
            }
            Op::EmptyCache if b.world.lock().unwrap().recording.is_empty() => {
                b.pond.empty_cache(None).unwrap();
            }
            Op::EmptyCache => assert_eq!(b.pond.empty_cache(None).unwrap_err().code(), Code::Busy),
            Op::EndStream { stream } if graphs.recording(stream) => {
                assert_eq!(b.pond.order().check_end(stream).unwrap_err().code(), Code::Busy);
            }
            Op::EndStream { stream } if stream == 0 && graphs.any_recording() => {} // it never ends anyway
            Op::EndStream { stream } => {
                let mut w = b.world.lock().unwrap();
                let st = w.streams.entry(stream).or_default();
                st.queued += 1;
                let q = st.queued;
                drop(w);
                for x in b.live.iter_mut().filter(|x| x.stream == Some(stream) && x.past.is_none()) {
                    x.past = Some((stream, q));
                }
                for x in &mut b.live {
                    if x.uses.contains(&stream) {
                        x.uses.retain(|&s| s != stream); // waited for when the stream ends
                        b.dirty.extend(x.ranges.iter().map(|&(a, n)| (a, a + n, stream, q)));
                    }
                }
                stream_ends(&b.pond, stream);
            }
            Op::FailAlias(f) => b.world.lock().unwrap().fail_alias = f,
            Op::Tune(t) => b.pond.tune(t),
            _ => {}
        }
        b.pond.ground().check();
        graphs.check(&b);
        let s = b.pond.stats(None).unwrap();
        assert_eq!((s.requested.current, s.requested.peak), (b.requested, b.peak));
        assert_eq!(s.reserved.current, b.world.lock().unwrap().taken);
        let sum: u64 = pools.iter().map(|&p| b.pond.stats(Some(p)).unwrap().allocated.current).sum();
        assert_eq!(sum, s.allocated.current);
        let sizes: u64 = b.live.iter().map(|x| b.pond.block(x.offset).unwrap().size).sum();
        assert_eq!(sizes, s.allocated.current, "what is told of the blocks is what is counted");
        b.check_walk(&pools);
        for (i, x) in b.live.iter().enumerate() {
            let inside = x.offset + (x.bytes - 1) / 4 * (i as u64 % 5);
            assert_eq!(b.pond.block(inside).unwrap().base, x.offset, "{} bytes into it", inside - x.offset);
        }
    }
    assert!(b.live.iter().all(|x| b.pond.block(x.offset).unwrap().pool == x.pool));
    b.world.lock().unwrap().fail_alias = false;
    graphs.finish(&mut b);
    b.wake(second);
    if b.pond.sleeps(second) {
        // The device was full. What sleeps waits until there is room.
        while let Some(i) = b.live.iter().position(|x| x.pool != second) {
            b.free(i, None);
        }
        b.wake(second);
    }
    assert!(!b.pond.sleeps(second));
    b.finish();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 300, ..ProptestConfig::default() })]
    #[test]
    fn random_programs_on_a_mapping_device(ops in prop::collection::vec(op(), 1..300)) { run(true, ops); }
    #[test]
    fn random_programs_on_segments(ops in prop::collection::vec(op(), 1..300)) { run(false, ops); }
}

#[test]
fn a_warm_program_makes_no_driver_call() {
    let mut b = Bench::new(config(true, 64 << 20));
    let sizes: Vec<u64> = (0..40).map(|i: u64| 1 + i * i * 1777 % (3 << 20)).collect();
    let mut calls = Vec::new();
    for _ in 0..4 {
        for (i, &s) in sizes.iter().enumerate() {
            b.alloc(PoolId::DEFAULT, Some(0), s).unwrap();
            if i % 3 == 2 {
                b.free(b.live.len() / 2, None);
            }
        }
        while !b.live.is_empty() {
            b.free(b.live.len() - 1, None);
        }
        calls.push(b.world.lock().unwrap().calls);
    }
    assert!(calls[0] > 0);
    assert_eq!(calls[2], calls[3]);
    b.finish();
}

/// Memory that another thread frees while the device is waited for may have work on it that is queued after.
#[test]
fn nothing_goes_back_that_was_freed_during_the_wait() {
    for (mapping, collected, nth) in
        [(true, false, 1), (true, false, 2), (false, false, 2), (true, true, 2), (false, true, 2)]
    {
        let world = Arc::new(Mutex::new(World { capacity: 256 << 20, ..World::default() }));
        let config = Config { realloc: G, init_alloc: G, ..config(mapping, 256 << 20) };
        let pond = Arc::new(Pond::new(config, Arc::new(Sim(world.clone()))).unwrap());
        world.lock().unwrap().real = pond.ground().real;
        let get = |stream, bytes| pond.alloc(PoolId::DEFAULT, stream, bytes).unwrap();
        let before = get(1, G);
        let parts: Vec<u64> = (0..6).map(|_| get(2, G)).collect();
        parts.iter().step_by(2).for_each(|&p| pond.free(p, Some(2), None).unwrap());
        // On a mapping device in the three holes, shown side by side.
        let during = get(2, if mapping { 3 * G } else { G });
        pond.free(before, Some(1), None).unwrap();
        let (there, device) = (pond.clone(), world.clone());
        world.lock().unwrap().meanwhile.push_back((
            nth,
            Box::new(move || {
                let mut w = device.lock().unwrap();
                let st = w.streams.entry(2).or_default();
                st.queued += 1;
                let queued = st.queued;
                w.in_flight = w.behind(during, G).iter().map(|r| ((r.0 / G) as u32, queued)).collect();
                drop(w);
                there.free(during, Some(2), None).unwrap();
            }),
        ));
        if collected {
            pond.tune(Tuning { collect_above: 1, ..Tuning::default() });
            get(3, 5 * G);
        } else {
            pond.empty_cache(None).unwrap();
        }
        assert!(world.lock().unwrap().meanwhile.is_empty(), "{mapping} {collected}: not so many waits");
        pond.tune(Tuning::default());
        pond.empty_cache(None).unwrap();
        let left = if collected { 8 * G } else { 3 * G };
        assert_eq!(world.lock().unwrap().taken, left, "{mapping} {collected}");
        pond.ground().check();
    }
}

#[test]
fn sizes_at_the_edges() {
    let cap = 64u64 << 20;
    let mut b = Bench::new(config(true, cap));
    for bytes in [1, 512, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, G - 1, G, G + 1, cap] {
        let i = b.alloc(PoolId::DEFAULT, Some(7), bytes).unwrap();
        assert_eq!(b.pond.block(b.live[i].offset + bytes - 1).unwrap().requested, bytes);
        b.free(i, None);
    }
    for bytes in [cap + 1, u64::MAX - 600, u64::MAX] {
        assert_eq!(b.pond.alloc(PoolId::DEFAULT, 7, bytes).unwrap_err().code(), Code::OutOfMemory);
    }
    b.finish();
}

#[test]
fn bad_frees_are_refused_and_lose_nothing() {
    let mut b = Bench::new(config(true, 64 << 20));
    for bytes in [100u64, 5000, 3 << 20] {
        let i = b.alloc(PoolId::DEFAULT, Some(0), bytes).unwrap();
        let at = b.live[i].offset;
        let code = |r: Result<()>| r.unwrap_err().code();
        assert_eq!(code(b.pond.free(at + 512, None, None)), Code::UnknownPointer);
        assert_eq!(code(b.pond.free(at + 1, None, None)), Code::UnknownPointer);
        assert_eq!(code(b.pond.free(u64::MAX, None, None)), Code::UnknownPointer);
        assert_eq!(code(b.pond.free(60 << 20, None, None)), Code::UnknownPointer);
        for wrong in [bytes + 1, bytes - 1, 1] {
            assert_eq!(code(b.pond.free(at, None, Some(wrong))), Code::WrongSize);
        }
        b.pond.free(at, None, Some(bytes)).unwrap();
        assert_eq!(code(b.pond.free(at, None, None)), Code::DoubleFree);
        let s = b.pond.stats(None).unwrap();
        assert_eq!((s.blocks.current, s.allocated.current), (0, 0));
        let gone = b.live.pop().unwrap();
        for (a, _) in b.world.lock().unwrap().behind(gone.offset, gone.bytes) {
            b.taken.remove(&a);
        }
        b.requested -= bytes;
    }
    b.finish();
}

#[test]
fn limits_hold_and_pools_come_and_go() {
    let mut b = Bench::new(config(true, 64 << 20));
    let p = b.pond.pool_create(4 << 20).unwrap();
    let i = b.alloc(p, Some(0), 3 << 20).unwrap();
    assert_eq!(b.alloc(p, Some(0), 3 << 20).unwrap_err().code(), Code::OutOfMemory);
    assert_eq!(b.pond.pool_destroy(p).unwrap_err().code(), Code::Busy);
    b.free(i, None);
    b.pond.pool_destroy(p).unwrap();
    assert_eq!(b.pond.alloc(p, 0, 1).unwrap_err().code(), Code::InvalidArgument);
    assert!(b.pond.stats(Some(p)).is_err());
    for _ in 0..1000 {
        let q = b.pond.pool_create(0).unwrap();
        assert_ne!(q, p);
        let i = b.alloc(q, Some(1), 1000).unwrap();
        b.free(i, None);
        b.pond.pool_destroy(q).unwrap();
    }
    // Slots rest for a while, and are used again then.
    assert!(b.pond.ground().pool_count.load(crate::base::sync::Ordering::Relaxed) < 80);
    b.pond.set_limit(6 << 20);
    b.alloc(PoolId::DEFAULT, Some(0), 5 << 20).unwrap();
    assert_eq!(b.alloc(PoolId::DEFAULT, Some(0), 3 << 20).unwrap_err().code(), Code::OutOfMemory);
    b.finish();
}

#[test]
fn streams_by_the_thousand_leave_nothing_behind() {
    let mut b = Bench::new(config(true, 64 << 20));
    for s in 10..3010 {
        let i = b.alloc(PoolId::DEFAULT, Some(s), 3 << 20).unwrap();
        b.free(i, None);
        stream_ends(&b.pond, s);
    }
    assert!(b.pond.ground().heap_count.load(crate::base::sync::Ordering::Relaxed) <= 2);
    assert!(b.pond.stats(None).unwrap().reserved.peak <= 4 << 20);
    b.finish();
}

#[test]
fn a_large_plugin_chunk_and_padding_are_honoured() {
    let mut c = config(false, 256 << 20);
    (c.min_chunk, c.padding, c.init_alloc, c.realloc, c.max_chunk) =
        (1 << 20, 100, 16 << 20, 4 << 20, 8 << 20);
    let mut b = Bench::new(c);
    let i = b.alloc(PoolId::DEFAULT, Some(0), (1 << 20) - 100).unwrap();
    assert_eq!(b.pond.stats(None).unwrap().allocated.current, 1 << 20);
    assert_eq!(b.world.lock().unwrap().taken, 16 << 20, "the first segment has the init size");
    let j = b.alloc(PoolId::DEFAULT, Some(0), (1 << 20) - 99).unwrap();
    assert_eq!(b.pond.stats(None).unwrap().allocated.current, 3 << 20);
    assert_eq!((b.live[i].offset % (1 << 20), b.live[j].offset % (1 << 20)), (0, 0));
    let k = b.alloc(PoolId::DEFAULT, Some(0), 9 << 20).unwrap();
    assert_eq!(
        b.world.lock().unwrap().taken,
        26 << 20,
        "past the max chunk: exactly size + padding, rounded"
    );
    b.free(k, None);
    assert_eq!(b.world.lock().unwrap().taken, 26 << 20, "its stream may still use it");
    b.pond.ground().backing.sync_all().unwrap();
    b.pond.stats(None).unwrap();
    assert_eq!(b.world.lock().unwrap().taken, 16 << 20, "and given back when that is over");
    for _ in 0..14 {
        b.alloc(PoolId::DEFAULT, Some(0), 100).unwrap();
    }
    assert_eq!(b.world.lock().unwrap().taken, 20 << 20, "later segments have the realloc size");
    b.finish();
}

#[test]
fn threads_on_own_and_shared_streams_keep_the_books_exact() {
    let pond = Arc::new(Bench::new(config(true, 512 << 20)).pond);
    let (tx, rx) = std::sync::mpsc::sync_channel::<u64>(64);
    let owners = Mutex::new(BTreeMap::<u64, u64>::new());
    std::thread::scope(|s| {
        for t in 0..8u64 {
            let (pond, tx, owners) = (pond.clone(), tx.clone(), &owners);
            s.spawn(move || {
                let mut mine = Vec::new();
                let mut x = t * 77 + 1;
                for _ in 0..4000 {
                    x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let bytes = 1 + (x >> 33) % (1 << ((x >> 20) % 22));
                    {
                        let o = pond.alloc(PoolId::DEFAULT, t % 4, bytes).unwrap();
                        let mut own = owners.lock().unwrap();
                        if let Some((_, &end)) = own.range(..o + bytes).next_back() {
                            assert!(end <= o, "overlap");
                        }
                        own.insert(o, o + bytes);
                        drop(own);
                        mine.push(o);
                    }
                    if mine.len() > 40 {
                        let o = mine.swap_remove((x >> 40) as usize % mine.len());
                        if x & 4 == 0 {
                            tx.send(o).unwrap();
                        } else {
                            owners.lock().unwrap().remove(&o);
                            pond.free(o, None, None).unwrap();
                        }
                    }
                }
                for o in mine {
                    owners.lock().unwrap().remove(&o);
                    pond.free(o, None, None).unwrap();
                }
            });
        }
        drop(tx);
        for o in rx {
            owners.lock().unwrap().remove(&o);
            pond.free(o, None, None).unwrap();
        }
    });
    let s = pond.stats(None).unwrap();
    assert_eq!((s.blocks.current, s.allocated.current, s.requested.current), (0, 0, 0));
    assert_eq!(s.blocks.total, 32_000);
    pond.ground().check();
    pond.empty_cache(None).unwrap();
    assert_eq!(pond.stats(None).unwrap().reserved.current, 0);
}
