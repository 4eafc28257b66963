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
use super::heap::Source;
use super::pond::Pond;
use super::shape::shift_of;
use super::state::tuned::Tuning;
use super::types::{PoolId, UNORDERED};
use crate::base::error::{Code, Error, Result};
use crate::base::sync::levels::{Called, check_unlocked};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex};

mod beside;
mod capture;
mod checkpoint;
mod falls_asleep;
mod few_ids;
mod guards;
mod ids;
mod maps_meet;
mod oom;
mod peaks;
mod peaks_meet;
mod peaks_threads;
mod programs;
mod random;
mod refits;
mod resize;
mod restores_crowd;
mod restores_meet;
mod scale;
mod scarce;
mod scattered;
mod segments;
mod segments_faults;
mod segments_meet;
mod sim;
mod sleep;
mod spaces;
mod ties;
mod ties_moved;
mod ties_programs;
mod ties_threads;
mod told;
mod tuned;
mod walk;

use capture::Graphs;
use checkpoint::Saved;
use sim::{Sim, World};

const G: u64 = 2 << 20;

/// So many rounds or cases of a test that repeats something, or an eighth of them where a part will do (`make check`).
fn part_of(all: usize) -> usize {
    if std::env::var_os("MILLPOND_TEST_QUICK").is_some() { all / 8 } else { all }
}

/// How many random programs each test runs.
fn random_programs() -> ProptestConfig {
    ProptestConfig {
        cases: part_of(64) as u32,
        max_shrink_iters: 300,
        max_shrink_time: 30_000, // ms: a failure must not take the time of all other tests
        ..ProptestConfig::default()
    }
}

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
    room: u64,                // [B] of the memory that it holds, used or not
}

/// A stream ends, as the device agrees.
fn stream_ends(pond: &Pond, stream: u64) {
    pond.stream_ended(pond.order().ending(stream).unwrap());
}

/// A pond, its device and what the test knows of both.
pub(super) struct Bench {
    pub(super) pond: Pond,
    world: Arc<Mutex<World>>,
    live: Vec<Block>,
    taken: BTreeMap<u64, u64>,        // physical range -> its end
    dirty: Vec<(u64, u64, u64, u64)>, // physical start, end, stream, queued at the free
    contiguous: Vec<PoolId>,
    requested: u64,
    peak: u64,
    limits: BTreeMap<Option<PoolId>, (u64, u64)>, // [B] the limit, and what may be reserved
    refitted: usize, // blocks that lay in a range with other ends than the block had for which it was mapped
}

pub(super) fn config(mapping: bool, capacity: u64) -> Config {
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
        tie: 0,
        tie_growth: 0,
        most_pieces: 16_000,
        most_blocks: u64::MAX,
    }
}

impl Bench {
    pub(super) fn new(config: Config) -> Bench {
        let world = Arc::new(Mutex::new(World { capacity: config.max_alloc, ..World::default() }));
        let pond = Pond::new(config, Arc::new(Sim(world.clone()))).unwrap();
        world.lock().unwrap().real = pond.ground().memory_granules();
        Bench {
            pond,
            world,
            live: vec![],
            taken: BTreeMap::new(),
            dirty: vec![],
            contiguous: vec![],
            requested: 0,
            peak: 0,
            limits: BTreeMap::new(),
            refitted: 0,
        }
    }

    /// Ends a stream on which work is queued: its blocks, and what it used of others, wait for that work.
    fn end_stream(&mut self, stream: u64) {
        let mut w = self.world.lock().unwrap();
        let st = w.streams.entry(stream).or_default();
        st.queued += 1;
        let q = st.queued;
        drop(w);
        for x in self.live.iter_mut().filter(|x| x.stream == Some(stream) && x.past.is_none()) {
            x.past = Some((stream, q));
        }
        for x in &mut self.live {
            if x.uses.contains(&stream) {
                x.uses.retain(|&s| s != stream); // waited for when the stream ends
                self.dirty.extend(x.ranges.iter().map(|&(a, n)| (a, a + n, stream, q)));
            }
        }
        stream_ends(&self.pond, stream);
    }

    /// A new pool.
    fn pool(&mut self, contiguous: bool) -> PoolId {
        let pool = self.pond.pool_create(0, contiguous).unwrap();
        self.contiguous.extend(contiguous.then_some(pool));
        pool
    }

    fn alloc(&mut self, pool: PoolId, stream: Option<u64>, bytes: u64) -> Result<usize> {
        self.alloc_as(pool, pool, stream, bytes)
    }

    /// A request that names one pool and is served by another.
    fn alloc_as(&mut self, named: PoolId, pool: PoolId, stream: Option<u64>, bytes: u64) -> Result<usize> {
        let offset = self.pond.alloc(named, stream.unwrap_or(UNORDERED), bytes)?;
        self.enter_new(offset, pool, stream, bytes);
        Ok(self.live.len() - 1)
    }

    /// The same for a block at a multiple of `align`.
    fn alloc_aligned(
        &mut self,
        named: PoolId,
        pool: PoolId,
        stream: u64,
        bytes: u64,
        align: u64,
    ) -> Result<()> {
        let offset = self.pond.special().alloc_aligned(named, stream, bytes, align)?;
        assert_eq!(offset % align, 0, "{bytes} bytes");
        self.enter_new(offset, pool, Some(stream), bytes);
        Ok(())
    }

    fn enter_new(&mut self, offset: u64, pool: PoolId, stream: Option<u64>, bytes: u64) {
        self.enter(Block {
            offset,
            bytes,
            stream,
            uses: vec![],
            ended: vec![],
            pool,
            ranges: vec![],
            past: None,
            room: 0,
        });
    }

    /// The block has become live: it must overlap nobody, and come after all work that may use its memory.
    fn enter(&mut self, b: Block) {
        self.enter_beyond(b, 0);
    }

    /// The same for a block of which its owner has so many bytes already.
    fn enter_beyond(&mut self, mut b: Block, had: u64) {
        let (offset, bytes, stream) = (b.offset, b.bytes, b.stream);
        assert_eq!(offset % 512, 0);
        let w = self.world.lock().unwrap();
        b.ranges = w.behind(offset, bytes);
        if self.contiguous.contains(&b.pool) && w.segments.is_empty() {
            let (tie, n) = w.tie_of((offset / G) as u32).expect("a tie");
            let end = u64::from(tie + n) * G;
            assert!(offset + bytes <= end, "{bytes} bytes at {offset:#x} lie across the end of tie {tie}");
        }
        let had: BTreeSet<(u64, u64)> =
            if had > 0 { w.behind(offset, had).into_iter().collect() } else { [].into() };
        let is_new = |x: u64, y: u64| !had.iter().any(|&(a, n)| a <= x && y <= a + n);
        for (a, n) in b.ranges.iter().copied() {
            if let Some((_, &end)) = self.taken.range(..a + n).next_back() {
                assert!(end <= a, "{bytes} bytes at {offset:#x} overlap a live block");
            }
            self.taken.insert(a, a + n);
            for &(x, y, s, q) in &self.dirty {
                let (from, to) = (x.max(a), y.min(a + n));
                if from < to && is_new(from, to) && Some(s) != stream && !w.passed(s, q) && b.past.is_none() {
                    let waits = stream.and_then(|t| w.streams.get(&t)).and_then(|t| t.waits.get(&s));
                    assert!(
                        waits.is_some_and(|&v| v >= q),
                        "reuse before stream {s} passed {q} (by {stream:?})"
                    );
                }
            }
        }
        drop(w);
        b.room = self.room(offset);
        self.refitted += usize::from(self.pond.ground().aliases().is_refitted((offset / G) as u32));
        self.requested += bytes;
        self.peak = self.peak.max(self.requested);
        self.live.push(b);
    }

    /// \[B\] of the memory that the block at `offset` holds.
    fn room(&self, offset: u64) -> u64 {
        let d = self.pond.ground().maps.find(offset).unwrap().desc;
        u64::from(d.units()) << shift_of(d.tier_bits())
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
        assert!(!self.any_exported());
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
    AllocAligned { bytes: u64, stream: u64, pool: usize, align: u32 },
    Resize { at: usize, bytes: u64 },
    Trim { pool: Option<usize>, keep: u64 },
    AllocUnordered { bytes: u64 },
    Free { at: usize, on: Option<u64> },
    FreeScattered { nth: usize },
    Export { at: usize },
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
    Limit { pool: Option<usize>, granules: u64 },
    Lose { granules: u64 },
    EndStream { stream: u64 },
    FailAlias(bool),
    Tune(Tuning),
}
fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (log_size(), 0u64..3, 0usize..3).prop_map(|(bytes, stream, pool)| Op::Alloc { bytes, stream, pool }),
        2 => (log_size(), 0u64..3, 0usize..3, 8u32..22)
            .prop_map(|(bytes, stream, pool, align)| Op::AllocAligned { bytes, stream, pool, align }),
        3 => (0usize..1000, log_size()).prop_map(|(at, bytes)| Op::Resize { at, bytes }),
        1 => (prop::option::of(0usize..3), 1u64..64 << 20).prop_map(|(pool, keep)| Op::Trim { pool, keep }),
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

fn run(source: Source, contiguous: [bool; 2], tie: u32, ops: Vec<Op>) {
    let b = Bench::new(Config {
        growing: source == Source::OwnSegments,
        tie,
        tie_growth: 2,
        ..config(source == Source::Granules, 96 << 20)
    });
    run_on(b, contiguous, ops);
}

/// The same on a device; returns how many blocks lay in a range with other ends than the block had for which it was mapped.
fn run_on(mut b: Bench, contiguous: [bool; 2], ops: Vec<Op>) -> usize {
    let (mapping, granules) = (b.pond.ground().config.mapping, b.pond.ground().config.max_alloc / G);
    let [second, third] = contiguous.map(|c| b.pool(c));
    let pools = [PoolId::DEFAULT, second, third];
    let mut graphs = Graphs::new(third);
    let mut saved: Vec<Saved> = Vec::new();
    // A request may find no memory though there is enough: not all may be scattered, or others have it.
    let few_ids = b.pond.ground().config.most_blocks < u64::MAX;
    let mut held = few_ids || b.pond.ground().config.most_pieces < 1000;
    let lacks_ids = |e: &Error| few_ids && e.code() == Code::OutOfMemory;
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
                if b.pond.sleep().is_on(pools[pool]) && !graphs.recording(stream) {
                    let refused = b.pond.alloc(pools[pool], stream, bytes).unwrap_err();
                    assert_eq!(refused.code(), Code::NotPermitted);
                    continue;
                }
                let served = if graphs.recording(stream) { third } else { pools[pool] };
                if let Err(e) = b.alloc_as(pools[pool], served, Some(stream), bytes) {
                    assert_eq!(e.code(), Code::OutOfMemory, "{e}");
                    let scattered = mapping && !held && !b.contiguous.contains(&served);
                    if scattered && graphs.none() && !b.world.lock().unwrap().fail_alias {
                        let free = granules - b.granules_taken();
                        assert!((bytes + 512).div_ceil(G) > free, "{e}, but {free} granules are free");
                    }
                }
            }
            Op::AllocAligned { bytes, stream, pool, align } => {
                let served = if graphs.recording(stream) { third } else { pools[pool] };
                let asleep = b.pond.sleep().is_on(served);
                if let Err(e) = b.alloc_aligned(pools[pool], served, stream, bytes, 1 << align) {
                    let right = if asleep { Code::NotPermitted } else { Code::OutOfMemory };
                    assert_eq!(e.code(), right, "{e}");
                }
            }
            Op::Resize { at, bytes } if !b.live.is_empty() => {
                let at = at % b.live.len();
                let asleep = b.pond.sleep().is_on(b.live[at].pool);
                if let Err(e) = b.resize(at, bytes) {
                    let right = if asleep { Code::NotPermitted } else { Code::OutOfMemory };
                    assert_eq!(e.code(), right, "{e}");
                }
            }
            Op::Trim { pool, keep } => {
                let pool = pool.map(|n| pools[n]);
                let reserved = |b: &Bench| b.pond.stats(pool).unwrap().reserved.current;
                let before = reserved(&b);
                let largest = b.world.lock().unwrap().ties.values().copied().max().unwrap_or(1);
                match b.pond.special().trim_to(pool, keep) {
                    Ok(()) if mapping => {
                        let after = reserved(&b);
                        // What goes last, a granule or a tie, may be more than has to.
                        let piece = G * u64::from(largest.max(1));
                        assert!(after <= before && (after == before || after + piece > keep), "{after}");
                    }
                    Ok(()) => assert!(reserved(&b) <= before),
                    Err(e) => assert!(lacks_ids(&e) || e.code() == Code::Busy && !graphs.none(), "{e}"),
                }
            }
            Op::AllocUnordered { bytes } => {
                let _ = b.alloc(PoolId::DEFAULT, None, bytes);
            }
            Op::Free { at, on } if !b.live.is_empty() => {
                let at = at % b.live.len();
                b.free(at, on);
            }
            Op::Export { at } => {
                b.export(at);
                held = true; // what others use is not there for anybody
            }
            Op::FreeScattered { nth } => b.free_scattered(nth),
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
                b.pond.empty_cache(None).unwrap_or_else(|e| assert!(lacks_ids(&e), "{e}"));
            }
            Op::EmptyCache => assert_eq!(b.pond.empty_cache(None).unwrap_err().code(), Code::Busy),
            Op::EndStream { stream } if graphs.recording(stream) => {
                assert_eq!(b.pond.order().check_end(stream).unwrap_err().code(), Code::Busy);
            }
            Op::EndStream { stream } if stream == 0 && graphs.any_recording() => {} // it never ends anyway
            Op::EndStream { stream } => b.end_stream(stream),
            Op::Limit { pool, granules } => {
                held = true;
                b.limit(pool.map(|n| pools[n]), granules * G);
            }
            Op::Lose { granules: lost } => {
                held = true;
                b.world.lock().unwrap().capacity = (granules - lost.min(granules)) * G;
            }
            Op::FailAlias(f) => b.world.lock().unwrap().fail_alias = f,
            Op::Tune(t) => {
                b.pond.tune(t);
                held = true;
            }
            _ => {}
        }
        b.pond.ground().check();
        graphs.check(&b);
        b.check_ties();
        let s = b.pond.stats(None).unwrap();
        assert_eq!((s.requested.current, s.requested.peak), (b.requested, b.peak));
        assert_eq!(s.reserved.current, b.world.lock().unwrap().taken);
        b.check_limits();
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
    {
        let mut w = b.world.lock().unwrap();
        (w.fail_alias, w.capacity) = (false, granules * G);
    }
    b.lift_limits();
    graphs.finish(&mut b);
    b.wake(second);
    if b.pond.sleep().is_on(second) {
        // The device was full. What sleeps waits until there is room.
        while let Some(i) = b.live.iter().position(|x| x.pool != second) {
            b.free(i, None);
        }
        b.wake(second);
    }
    assert!(!b.pond.sleep().is_on(second));
    let refitted = b.refitted;
    b.finish();
    refitted
}

proptest! {
    #![proptest_config(random_programs())]
    #[test]
    fn random_programs_on_a_mapping_device(ops in prop::collection::vec(op(), 1..300)) {
        run(Source::Granules, [false; 2], 0, ops);
    }
    #[test]
    fn random_programs_with_ties(
        contiguous in any::<[bool; 2]>(), tie in 0u32..9, ops in prop::collection::vec(op(), 1..300)
    ) {
        run(Source::Granules, contiguous, tie, ops);
    }
    #[test]
    fn random_programs_on_segments(ops in prop::collection::vec(op(), 1..300)) {
        run(Source::Segments, [false, true], 5, ops);
    }
    #[test]
    fn random_programs_on_segments_of_their_own(ops in prop::collection::vec(op(), 1..300)) {
        run(Source::OwnSegments, [false; 2], 0, ops);
    }
}
