//! Peaks stay exact where several threads take turns on the heaps, calls of the device fail, limits and pools come and go,
//! peaks are reset and checkpoints restored in between.

use super::super::blocks::WaitingBlocks;
use super::super::state::checkpoints::CheckpointId;
use super::random::Random;
use super::*;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Bytes, bytes as requested and blocks.
type Three = [u64; 3];

/// What is live, and what is live or waits; and the peaks of both.
#[derive(Clone, Copy, Default, Debug)]
struct Known {
    live: Three,
    active: Three,
    peaks: [Three; 2],
}

impl Known {
    fn raise(&mut self) {
        for d in 0..3 {
            self.peaks[0][d] = self.peaks[0][d].max(self.live[d]);
            self.peaks[1][d] = self.peaks[1][d].max(self.active[d]);
        }
    }

    fn reset(&mut self) {
        self.peaks = [self.live, self.active];
    }
}

fn add(to: &mut Three, n: Three) {
    (0..3).for_each(|d| to[d] += n[d]);
}

fn sub(from: &mut Three, n: Three) {
    (0..3).for_each(|d| from[d] -= n[d]);
}

#[derive(Clone, Copy, PartialEq)]
struct Held {
    at: u64,
    has: Three,
    pool: PoolId,
    used: bool,
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread that does what it is told.
struct Worker(Sender<Job>);

impl Worker {
    fn new() -> Worker {
        let (tell, told): (Sender<Job>, Receiver<Job>) = channel();
        std::thread::spawn(move || told.into_iter().for_each(|job| job()));
        Worker(tell)
    }

    fn call<R: Send + 'static>(&self, act: impl FnOnce() -> R + Send + 'static) -> R {
        let (tell, told) = channel();
        self.0.send(Box::new(move || _ = tell.send(act()))).unwrap();
        told.recv().unwrap()
    }
}

struct Party {
    pond: Arc<Pond>,
    world: Arc<Mutex<World>>,
    workers: Vec<Worker>,
    live: Vec<Held>,
    /// With what was queued on that stream at the free.
    waiting: Vec<(Held, u64)>,
    pools: Vec<PoolId>,
    all: Known,
    each: BTreeMap<PoolId, Known>,
    kept: Option<(CheckpointId, PoolId, Vec<Held>)>,
    failing: bool,
    mapping: bool,
}

/// \[B\] Larger blocks are segments of their own, where there are any.
const OWN: u64 = 4 << 20;
/// The stream that uses blocks of the others.
const USER: u64 = 9;

impl Party {
    fn known(&mut self, pool: PoolId, change: impl Fn(&mut Known)) {
        change(&mut self.all);
        self.all.raise();
        let k = self.each.get_mut(&pool).unwrap();
        change(k);
        k.raise();
    }

    /// The next call fails, or the one after that, or none does.
    fn set_failing(&self, r: &mut Random) -> bool {
        let nth = if self.failing && r.below(3) == 0 { 1 + r.below(4) as u32 } else { 0 };
        let mut w = self.world.lock().unwrap();
        (w.fail_nth, w.fail_full) = (nth, r.below(2) == 0);
        nth > 0
    }

    fn heal(&self) {
        self.world.lock().unwrap().fail_nth = 0;
    }

    /// All that waits is over, also where the device was waited for.
    fn end_waits(&mut self) {
        self.heal();
        let mut w = self.world.lock().unwrap();
        let q = w.streams.get(&USER).map_or(0, |s| s.queued);
        w.complete(USER, q);
        drop(w);
        WaitingBlocks::of(self.pond.ground()).poll_all();
        self.note_passed();
    }

    /// Some wait may be over: what was active in between is not known. Whether any was.
    fn note_passed(&mut self) -> bool {
        self.heal();
        WaitingBlocks::of(self.pond.ground()).poll_all();
        let w = self.world.clone();
        let passed: Vec<_> =
            self.waiting.extract_if(.., |b| w.lock().unwrap().passed(USER, b.1)).map(|b| b.0).collect();
        for b in &passed {
            self.known(b.pool, |k| sub(&mut k.active, b.has));
        }
        !passed.is_empty()
    }

    /// The block was freed: it waits, if another stream has used it.
    fn note_freed(&mut self, b: Held) {
        self.known(b.pool, |k| sub(&mut k.live, b.has));
        if b.used {
            let q = self.world.lock().unwrap().streams[&USER].queued;
            self.waiting.push((b, q));
            self.note_passed();
        } else {
            self.known(b.pool, |k| sub(&mut k.active, b.has));
        }
    }

    fn reset(&mut self, pool: Option<PoolId>) {
        self.pond.reset_peaks(pool).unwrap();
        match pool {
            None => self.all.reset(),
            Some(p) => self.each.get_mut(&p).unwrap().reset(),
        }
    }

    fn reset_all(&mut self) {
        self.end_waits();
        let pools: Vec<Option<PoolId>> = self.each.keys().copied().map(Some).chain([None]).collect();
        pools.into_iter().for_each(|p| self.reset(p));
    }

    fn check(&self, what: &str) {
        for (pool, k) in self.each.iter().map(|(&p, k)| (Some(p), k)).chain([(None, &self.all)]) {
            self.stay_patient();
            let s = self.pond.stats(pool).unwrap();
            let m = self.pond.statistics().full(pool, 0).unwrap();
            let live = [s.allocated, s.requested, s.blocks];
            let blocks = m.active.all;
            assert_eq!(live.map(|c| c.current), k.live, "{what}, {pool:?}");
            assert_eq!(live.map(|c| c.peak), k.peaks[0], "{what}, {pool:?}");
            let active = [s.active.current, s.active_requested.current, blocks.current];
            assert_eq!(active, k.active, "{what}, {pool:?}");
            let active = [s.active.peak, s.active_requested.peak, blocks.peak];
            assert_eq!(active, k.peaks[1], "{what}, {pool:?}");
        }
    }

    /// Questions do not end the work of a stream here.
    fn stay_patient(&self) {
        self.world.lock().unwrap().asked = 0;
    }

    fn step(&mut self, r: &mut Random) {
        self.stay_patient();
        if self.note_passed() {
            self.reset_all();
        }
        let pond = self.pond.clone();
        let worker = r.below(self.workers.len() as u64) as usize;
        let pool = self.pools[r.below(self.pools.len() as u64) as usize];
        let some = (!self.live.is_empty()).then(|| r.below(self.live.len().max(1) as u64) as usize);
        match (r.below(30), some) {
            (0..=11, _) if self.live.len() < 60 => {
                let stream = 1 + r.below(4);
                let bytes = match r.below(4) {
                    0 | 1 => 1 + r.below(4 << 10),
                    2 => 1 + r.below(60 << 10),
                    _ => 1 + r.below(5 * G),
                };
                self.set_failing(r);
                let got = self.workers[worker].call(move || pond.alloc(pool, stream, bytes));
                self.heal();
                let over = self.note_passed();
                if let Ok(at) = got {
                    let has = [self.pond.block(at).unwrap().size, bytes, 1];
                    self.live.push(Held { at, has, pool, used: false });
                    self.known(pool, |k| {
                        add(&mut k.live, has);
                        add(&mut k.active, has);
                    });
                }
                if over {
                    self.reset_all(); // it is not known what came first
                }
            }
            (12..=20, Some(i)) => {
                let used = r.below(3) == 0;
                if used && !self.live[i].used {
                    self.world.lock().unwrap().streams.entry(USER).or_default().queued += 1;
                    self.pond.record_stream(self.live[i].at, USER).unwrap();
                    self.live[i].used = true;
                }
                let at = self.live[i].at;
                let fails = self.set_failing(r);
                let done = self.workers[worker].call(move || pond.free(at, None, None));
                self.heal();
                if let Err(e) = done {
                    assert!(fails, "{e}");
                    return;
                }
                let b = self.live.swap_remove(i);
                self.note_freed(b);
            }
            (21, Some(i)) => {
                let (at, pool, before) = (self.live[i].at, self.live[i].pool, self.live[i].has);
                let bytes = 1 + r.below(2 * before[1]);
                if self.workers[worker].call(move || pond.special().resize(at, bytes)).is_ok() {
                    let has = [self.pond.block(at).unwrap().size, bytes, 1];
                    self.live[i].has = has;
                    self.known(pool, |k| {
                        for of in [&mut k.live, &mut k.active] {
                            sub(of, before);
                            add(of, has);
                        }
                    });
                }
            }
            (22, _) => self.end_waits(),
            (23, _) if r.below(4) == 0 => {
                let which = (r.below(2) == 0).then_some(pool);
                self.set_failing(r);
                _ = self.workers[worker].call(move || pond.empty_cache(which));
                self.note_passed();
            }
            (24, _) => match r.below(4) {
                0 => self.pond.set_limit([0, 40 * G, 20 * G][r.below(3) as usize]),
                1 => self.pond.pool_set_limit(pool, [0, 20 * G, 5 * G][r.below(3) as usize]).unwrap(),
                2 => self.reset(None),
                _ => self.reset(Some(pool)),
            },
            (25, _) if self.pools.len() < 4 => {
                let p = self.pond.pool_create(0, false).unwrap();
                self.pools.push(p);
                self.each.insert(p, Known::default());
            }
            (26, _) if pool != PoolId::DEFAULT => {
                let mine = |b: &&Held| b.pool == pool;
                if self.live.iter().filter(mine).count() > 5
                    || self.kept.as_ref().is_some_and(|k| k.1 == pool)
                {
                    return;
                }
                for b in self.live.extract_if(.., |b| b.pool == pool).collect::<Vec<_>>() {
                    let pond = self.pond.clone();
                    self.workers[worker].call(move || pond.free(b.at, None, None)).unwrap();
                    self.note_freed(b);
                }
                self.end_waits();
                self.set_failing(r);
                let done = self.workers[worker].call(move || pond.pool_destroy(pool));
                self.heal();
                if done.is_ok() {
                    self.pools.retain(|&p| p != pool);
                    self.each.remove(&pool);
                }
            }
            (27, _) if self.kept.is_none() => {
                let id = self.pond.checkpoints().make(pool).unwrap();
                let blocks = self.live.iter().copied().filter(|b| b.pool == pool).collect();
                self.kept = Some((id, pool, blocks));
            }
            (28, _) => {
                let Some((id, pool, blocks)) = self.kept.take() else { return };
                self.end_waits();
                self.set_failing(r);
                let done =
                    self.workers[worker].call(move || pond.checkpoints().restore(pool, id, |at| at, |_| ()));
                self.heal();
                self.pond.checkpoints().destroy(id).unwrap();
                let Ok(done) = done else { return };
                let gone: BTreeSet<(u64, u64)> = done.freed().into_iter().collect();
                let come: BTreeSet<(u64, u64)> = done.live.iter().copied().collect();
                let left: Vec<Held> = self
                    .live
                    .extract_if(.., |b| b.pool == pool && gone.contains(&(b.at, b.has[1])))
                    .collect();
                let back: Vec<Held> =
                    blocks.iter().filter(|b| come.contains(&(b.at, b.has[1]))).copied().collect();
                assert_eq!((left.len(), back.len()), (gone.len(), come.len()));
                self.live.extend(back.iter().map(|b| Held { used: false, ..*b }));
                // A segment of its own that is freed is active until the device has it.
                let stays = |b: &&Held| !self.mapping && b.has[0] > OWN;
                let (own, left): (Vec<&Held>, Vec<&Held>) = left.iter().partition(stays);
                self.known(pool, |k| {
                    left.iter().chain(&own).for_each(|b| sub(&mut k.live, b.has));
                    left.iter().for_each(|b| sub(&mut k.active, b.has));
                    for of in [&mut k.live, &mut k.active] {
                        back.iter().for_each(|b| add(of, b.has));
                    }
                });
                self.known(pool, |k| own.iter().for_each(|b| sub(&mut k.active, b.has)));
            }
            (29, _) if r.below(3) == 0 => {
                let stream = 1 + r.below(4);
                stream_ends(&self.pond, stream);
                if self.note_passed() {
                    self.reset_all();
                }
            }
            _ => {}
        }
    }
}

fn run(seed: u64, config: Config, failing: bool) {
    let mut r = Random(seed);
    let mapping = config.mapping;
    let world = Arc::new(Mutex::new(World { capacity: config.max_alloc, ..World::default() }));
    let pond = Arc::new(Pond::new(config, Arc::new(Sim(world.clone()))).unwrap());
    world.lock().unwrap().real = pond.ground().memory_granules();
    let mut p = Party {
        pond,
        world,
        workers: (0..3).map(|_| Worker::new()).collect(),
        live: vec![],
        waiting: vec![],
        pools: vec![PoolId::DEFAULT],
        all: Known::default(),
        each: [(PoolId::DEFAULT, Known::default())].into(),
        kept: None,
        failing,
        mapping,
    };
    for step in 0..600 {
        p.step(&mut r);
        if r.below(12) == 0 {
            p.check(&format!("seed {seed}, step {step}"));
        }
    }
    p.check(&format!("seed {seed}, at the end"));
}

#[test]
fn peaks_are_exact_where_threads_take_turns() {
    for seed in 0..part_of(16) as u64 {
        run(seed, config(true, 512 << 20), false);
        run(seed, Config { max_chunk: OWN, ..config(false, 512 << 20) }, false);
    }
}

#[test]
fn peaks_are_exact_where_calls_fail() {
    for seed in 0..part_of(16) as u64 {
        run(seed, Config { tie: 4, tie_growth: 2, ..config(true, 512 << 20) }, true);
        run(seed, Config { max_chunk: OWN, ..config(false, 512 << 20) }, true);
    }
}

/// A free that the device refuses: meanwhile the block did not count, and another one has taken its place.
#[test]
fn a_block_whose_free_is_refused_counts_at_once() {
    let world = Arc::new(Mutex::new(World { capacity: 64 << 20, ..World::default() }));
    let sizes = Config { max_chunk: OWN, ..config(false, 64 << 20) };
    let pond = Arc::new(Pond::new(sizes, Arc::new(Sim(world.clone()))).unwrap());
    let mine = pond.alloc(PoolId::DEFAULT, 1, 8 * G).unwrap();
    let (there, made) = (pond.clone(), Arc::new(Mutex::new(0)));
    let also = made.clone();
    let another = move || *also.lock().unwrap() = there.alloc(PoolId::DEFAULT, 1, 8 * G).unwrap();
    world.lock().unwrap().amid = Some(("segment_release", Box::new(another)));
    world.lock().unwrap().fail_release = true;
    assert_eq!(pond.free(mine, None, None).unwrap_err().code(), Code::Device);
    world.lock().unwrap().fail_release = false;
    let other = *made.lock().unwrap();
    pond.free(other, None, None).unwrap();
    let s = pond.stats(None).unwrap();
    assert_eq!((s.allocated.current, s.allocated.peak), (8 * G, 16 * G));
    assert_eq!((s.allocated.total, s.blocks.total), (16 * G, 2), "it is no new block");
    pond.free(mine, None, None).unwrap();
}
