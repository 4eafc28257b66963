//! The pond against a simulated device that knows the truth: which granules exist, what stands behind
//! which address, what each stream has still to do. Every block is checked against every other in
//! physical space, and against work that may still use its memory.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

use super::backing::Backing;
use super::heap::Mark;
use super::pond::{Config, Pond};
use super::tuning::Tuning;
use super::types::PoolId;
use crate::base::error::{Code, Error, Result};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

mod tuned;

const G: u64 = 2 << 20;

#[derive(Default)]
struct World {
    real: u32,
    created: BTreeSet<u32>,
    shown: BTreeMap<u32, u32>,    // address granule -> physical granule
    segments: BTreeMap<u64, u64>, // offset -> bytes
    taken: u64,
    capacity: u64,
    streams: BTreeMap<u64, Stream>,
    marks: HashMap<Mark, (u64, u64, Waits)>, // stream, queued, what that work waits for
    next_mark: Mark,
    calls: u64,
    fail_alias: bool,
    fail_create: bool,
}
#[derive(Default)]
struct Stream {
    queued: u64,
    done: u64,
    waits: Waits,
}
type Waits = BTreeMap<u64, u64>; // other stream -> queued there
impl World {
    /// Physical ranges behind an address range.
    fn behind(&self, offset: u64, bytes: u64) -> Vec<(u64, u64)> {
        let mut out: Vec<(u64, u64)> = Vec::new();
        if !self.segments.is_empty() {
            let (&o, &n) = self.segments.range(..=offset).next_back().expect("a segment");
            assert!(offset + bytes <= o + n, "block runs past its segment");
            return vec![(offset, bytes)];
        }
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            let stop = end.min((at / G + 1) * G);
            let g = (at / G) as u32;
            let p = if g < self.real { g } else { *self.shown.get(&g).expect("address is mapped") };
            assert!(self.created.contains(&p), "granule {p} exists");
            out.push((u64::from(p) * G + at % G, stop - at));
            at = stop;
        }
        out
    }
    fn passed(&self, s: u64, q: u64) -> bool {
        self.streams.get(&s).is_none_or(|s| s.done >= q)
    }
    /// The stream runs up to `q`, and so does what it waits for.
    fn complete(&mut self, s: u64, q: u64) {
        let Some(st) = self.streams.get_mut(&s) else { return };
        if st.done >= q {
            return;
        }
        st.done = q;
        for (t, v) in st.waits.clone() {
            self.complete(t, v);
        }
    }
}

struct Sim(Arc<Mutex<World>>);
impl Backing for Sim {
    fn create(&self, first: u32, count: u32) -> Result<()> {
        let mut w = self.0.lock().unwrap();
        w.calls += 1;
        if w.fail_create || w.taken + u64::from(count) * G > w.capacity {
            return Err(Error::new(Code::OutOfMemory, "simulated device is full"));
        }
        w.taken += u64::from(count) * G;
        for g in first..first + count {
            assert!(g < w.real && w.created.insert(g), "granule {g} made twice");
        }
        Ok(())
    }
    fn release(&self, first: u32, count: u32) -> Result<()> {
        let mut w = self.0.lock().unwrap();
        w.calls += 1;
        w.taken -= u64::from(count) * G;
        for g in first..first + count {
            assert!(w.created.remove(&g), "granule {g} released, but it is not there");
            assert!(!w.shown.values().any(|&p| p == g), "granule {g} released while shown elsewhere");
        }
        Ok(())
    }
    fn alias(&self, offset: u64, first: u32, count: u32) -> Result<()> {
        let mut w = self.0.lock().unwrap();
        w.calls += 1;
        if w.fail_alias {
            return Err(Error::new(Code::Device, "simulated mapping failure"));
        }
        for i in 0..count {
            assert!(w.created.contains(&(first + i)));
            assert_eq!(w.shown.insert((offset / G) as u32 + i, first + i), None, "address mapped twice");
        }
        Ok(())
    }
    fn unalias(&self, offset: u64, bytes: u64) -> Result<()> {
        let mut w = self.0.lock().unwrap();
        w.calls += 1;
        for i in 0..bytes / G {
            assert!(w.shown.remove(&((offset / G + i) as u32)).is_some(), "unmapped what was not mapped");
        }
        Ok(())
    }
    fn segment(&self, offset: u64, bytes: u64) -> Result<()> {
        let mut w = self.0.lock().unwrap();
        w.calls += 1;
        if w.fail_create || w.taken + bytes > w.capacity {
            return Err(Error::new(Code::OutOfMemory, "simulated device is full"));
        }
        w.taken += bytes;
        w.segments.insert(offset, bytes);
        Ok(())
    }
    fn segment_release(&self, offset: u64, bytes: u64) -> Result<()> {
        let mut w = self.0.lock().unwrap();
        w.calls += 1;
        assert_eq!(w.segments.remove(&offset), Some(bytes));
        w.taken -= bytes;
        Ok(())
    }
    fn mark(&self, stream: u64) -> Result<Mark> {
        let mut w = self.0.lock().unwrap();
        let st = w.streams.entry(stream).or_default();
        let known = (stream, st.queued, st.waits.clone());
        w.next_mark += 1;
        let m = w.next_mark;
        w.marks.insert(m, known);
        Ok(m)
    }
    fn passed(&self, mark: Mark) -> Result<bool> {
        let w = self.0.lock().unwrap();
        let &(s, q, _) = &w.marks[&mark];
        Ok(w.passed(s, q))
    }
    fn wait(&self, stream: u64, mark: Mark) -> Result<()> {
        let mut w = self.0.lock().unwrap();
        let (s, q, mut all) = w.marks[&mark].clone();
        all.insert(s, q.max(all.get(&s).copied().unwrap_or(0)));
        let st = w.streams.entry(stream).or_default();
        st.queued += 1; // the wait itself is work
        let waits = &mut st.waits;
        for (s, q) in all {
            let e = waits.entry(s).or_default();
            *e = q.max(*e);
        }
        Ok(())
    }
    fn sync(&self, mark: Mark) -> Result<()> {
        let mut w = self.0.lock().unwrap();
        let &(s, q, _) = &w.marks[&mark];
        w.complete(s, q);
        Ok(())
    }
    fn forget(&self, mark: Mark) {
        assert!(self.0.lock().unwrap().marks.remove(&mark).is_some(), "mark forgotten twice");
    }
    fn sync_all(&self) -> Result<()> {
        for s in self.0.lock().unwrap().streams.values_mut() {
            s.done = s.queued;
        }
        Ok(())
    }
    fn knows(&self, _: u64) -> bool {
        true
    }
    fn streams(&self, each: &mut dyn FnMut(u64)) {
        let all: Vec<u64> = self.0.lock().unwrap().streams.keys().copied().collect();
        all.into_iter().for_each(each);
    }
}

struct Block {
    offset: u64,
    bytes: u64,
    stream: Option<u64>,
    uses: Vec<u64>,
    pool: PoolId,
    past: Option<(u64, u64)>, // its stream has ended, and this was queued there
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
    }
}

impl Bench {
    fn new(config: Config) -> Bench {
        let world = Arc::new(Mutex::new(World {
            real: (config.max_alloc / G) as u32,
            capacity: config.max_alloc,
            ..World::default()
        }));
        let pond = Pond::new(config, Box::new(Sim(world.clone()))).unwrap();
        Bench { pond, world, live: vec![], taken: BTreeMap::new(), dirty: vec![], requested: 0, peak: 0 }
    }

    fn alloc(&mut self, pool: PoolId, stream: Option<u64>, bytes: u64) -> Result<usize> {
        let offset = match stream {
            Some(s) => self.pond.alloc(pool, s, bytes)?,
            None => self.pond.alloc_unordered(pool, bytes)?,
        };
        assert_eq!(offset % 512, 0);
        let w = self.world.lock().unwrap();
        for (a, n) in w.behind(offset, bytes) {
            if let Some((_, &end)) = self.taken.range(..a + n).next_back() {
                assert!(end <= a, "{bytes} bytes at {offset:#x} overlap a live block");
            }
            self.taken.insert(a, a + n);
            for &(x, y, s, q) in &self.dirty {
                if x < a + n && a < y && Some(s) != stream && !w.passed(s, q) {
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
        self.live.push(Block { offset, bytes, stream, uses: vec![], pool, past: None });
        Ok(self.live.len() - 1)
    }

    fn free(&mut self, i: usize, on: Option<u64>) {
        let b = self.live.swap_remove(i);
        let mut w = self.world.lock().unwrap();
        let mut users: Vec<u64> = b.uses.clone();
        users.extend(on);
        match b.stream {
            Some(s) if b.past.is_none() => users.push(s),
            Some(_) => {}
            None => users.extend(w.streams.keys().copied()),
        }
        let ranges = w.behind(b.offset, b.bytes);
        if let Some((s, q)) = b.past {
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
        self.pond.free(b.offset, on, None).unwrap();
        self.dirty.retain(|d| !self.world.lock().unwrap().passed(d.2, d.3));
    }

    fn finish(mut self) {
        while !self.live.is_empty() {
            self.free(0, None);
        }
        self.pond.check();
        self.pond.backing.sync_all().unwrap();
        let s = self.pond.stats(None).unwrap();
        assert_eq!(
            (s.requested.current, s.allocated.current, s.active.current, s.blocks.current),
            (0, 0, 0, 0)
        );
        self.pond.empty_cache(None).unwrap();
        self.pond.check();
        let w = self.world.lock().unwrap();
        assert_eq!(w.taken, 0, "all bytes come back");
        assert!(w.created.is_empty() && w.shown.is_empty() && w.segments.is_empty());
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
    Run { stream: u64 },
    EmptyCache,
    EndStream { stream: u64 },
    FailAlias(bool),
    Tune(Tuning),
}
fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (log_size(), 0u64..3, 0usize..2).prop_map(|(bytes, stream, pool)| Op::Alloc { bytes, stream, pool }),
        1 => log_size().prop_map(|bytes| Op::AllocUnordered { bytes }),
        10 => (0usize..1000, prop_oneof![4 => Just(None), 1 => (0u64..3).prop_map(Some)])
            .prop_map(|(at, on)| Op::Free { at, on }),
        1 => (0usize..1000, 0u64..3).prop_map(|(at, stream)| Op::Use { at, stream }),
        2 => (0u64..3).prop_map(|stream| Op::Run { stream }),
        1 => Just(Op::EmptyCache),
        1 => (0u64..3).prop_map(|stream| Op::EndStream { stream }),
        1 => any::<bool>().prop_map(Op::FailAlias),
        1 => tuned::tuning().prop_map(Op::Tune),
    ]
}

fn run(mapping: bool, ops: Vec<Op>) {
    let mut b = Bench::new(config(mapping, 96 << 20));
    let second = b.pond.pool_create(0).unwrap();
    let pools = [PoolId::DEFAULT, second];
    for op in ops {
        match op {
            Op::Alloc { bytes, stream, pool } => {
                if let Err(e) = b.alloc(pools[pool], Some(stream), bytes) {
                    assert_eq!(e.code(), Code::OutOfMemory, "{e}");
                    let free = (96 << 20) - b.requested;
                    // On a mapping device only rounding and what is pinned down by other pools can be lost.
                    assert!(!mapping || bytes > free || b.live.len() > 8 || free - bytes < 90 << 20, "{e}");
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
            Op::EmptyCache => b.pond.empty_cache(None).unwrap(),
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
                        let ranges = b.world.lock().unwrap().behind(x.offset, x.bytes);
                        b.dirty.extend(ranges.iter().map(|&(a, n)| (a, a + n, stream, q)));
                    }
                }
                b.pond.stream_destroyed(stream);
            }
            Op::FailAlias(f) => b.world.lock().unwrap().fail_alias = f,
            Op::Tune(t) => b.pond.tune(t),
            _ => {}
        }
        b.pond.check();
        let s = b.pond.stats(None).unwrap();
        assert_eq!((s.requested.current, s.requested.peak), (b.requested, b.peak));
        assert_eq!(s.reserved.current, b.world.lock().unwrap().taken);
        let sum: u64 = pools.iter().map(|&p| b.pond.stats(Some(p)).unwrap().allocated.current).sum();
        assert_eq!(sum, s.allocated.current);
        let sizes: u64 = b.live.iter().map(|x| b.pond.block(x.offset).unwrap().size).sum();
        assert_eq!(sizes, s.allocated.current, "what is told of the blocks is what is counted");
    }
    assert!(b.live.iter().all(|x| b.pond.block(x.offset).unwrap().pool == x.pool));
    b.world.lock().unwrap().fail_alias = false;
    b.finish();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 300, failure_persistence: None, ..ProptestConfig::default() })]
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

#[test]
fn scattered_granules_serve_a_block_that_no_hole_could() {
    let mut b = Bench::new(config(true, 32 << 20));
    for _ in 0..16 {
        b.alloc(PoolId::DEFAULT, Some(0), G).unwrap();
    }
    for _ in 0..8 {
        let odd = b.live.iter().position(|x| (x.offset / G) % 2 == 1).unwrap();
        b.free(odd, None);
    }
    let i = b.alloc(PoolId::DEFAULT, Some(0), 16 << 20).expect("8 scattered granules are enough");
    assert!(b.live[i].offset >= 32 << 20, "it lies in the alias window");
    let calls = b.world.lock().unwrap().calls;
    let at = b.live[i].offset;
    b.free(i, None);
    b.pond.free(at, None, None).expect_err("it was freed");
    let a = b.alloc(PoolId::DEFAULT, Some(0), G).unwrap(); // pulls the scattered block apart
    b.free(a, None);
    let i = b.alloc(PoolId::DEFAULT, Some(0), 16 << 20).unwrap();
    assert_eq!(b.live[i].offset, at, "the same granules show at the same addresses");
    assert_eq!(b.world.lock().unwrap().calls, calls, "and at no cost");
    assert_eq!(b.pond.alloc(PoolId::DEFAULT, 0, 1).unwrap_err().code(), Code::OutOfMemory);
    b.finish();
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
        assert_eq!(code(b.pond.free(at, None, Some(bytes + 1))), Code::WrongSize);
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
    assert_eq!(b.pond.stats(Some(p)).unwrap().out_of_memory_count, 1);
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
    assert!(b.pond.pool_count.load(crate::base::sync::Ordering::Relaxed) < 4);
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
        b.pond.stream_destroyed(s);
    }
    assert!(b.pond.heap_count.load(crate::base::sync::Ordering::Relaxed) <= 2);
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
    assert_eq!(b.world.lock().unwrap().taken, 16 << 20, "and given back at the free");
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
    pond.check();
    pond.empty_cache(None).unwrap();
    assert_eq!(pond.stats(None).unwrap().reserved.current, 0);
}
