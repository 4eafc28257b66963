//! A restore and another thread meet: in the midst of the first, the second, ... call of the device that the restore makes,
//! the other one frees, allocates, trims, uses and exports blocks, restores, too, ends a stream, captures, or puts the pool to
//! sleep, and now and then a call fails. The program has promised that nobody does; no memory may have two owners all the
//! same, or an owner too early, and a restore that fails has changed nothing.

use super::super::ground::gaps;
use super::super::state::checkpoints::CheckpointId;
use super::random::Random;
use super::*;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

const ALL: u64 = 64 << 20;

#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) at: u64,
    pub(super) bytes: u64,
    pub(super) stream: Option<u64>,
    pub(super) pool: PoolId,
    pub(super) uses: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Act {
    Free(usize),
    FreeAll,
    Alloc(bool, Option<u64>, u64),
    Trim(bool),
    Use(usize),
    Export(usize),
    Restore,
    Resize(usize, u64),
    EndStream,
    Capture,
    Sleep(bool),
    Told,
    Run,
}

pub(super) struct Party {
    pub(super) pond: Pond,
    pub(super) world: Arc<Mutex<World>>,
    pub(super) pool: PoolId,
    pub(super) live: Mutex<Vec<Live>>,
    /// Physical start, end, stream, and what the program had queued there when its block was freed.
    pub(super) dirty: Mutex<Vec<(u64, u64, u64, u64)>>,
    /// How many blocks of the pool the program has allocated, less those that it has freed.
    count: AtomicI64,
    pub(super) kept: CheckpointId,
    pub(super) saved: Vec<Live>,
    pub(super) mapping: bool,
    pub(super) failing: bool,
    /// Only other pools are used beside the restore.
    pub(super) alone: bool,
    /// Several threads do several things each.
    pub(super) crowded: bool,
}

impl Party {
    pub(super) fn new(seed: u64, mapping: bool, failing: bool) -> Party {
        let mut r = Random(seed * 7919 + 5);
        let sizes = match mapping {
            true => Config { tie: [0, 3][r.below(2) as usize], tie_growth: 1, ..config(true, ALL) },
            false => Config {
                max_chunk: [ALL, 6 << 20][r.below(2) as usize],
                growing: r.below(2) == 0,
                ..config(false, ALL)
            },
        };
        let world = Arc::new(Mutex::new(World { capacity: ALL, threads: true, ..World::default() }));
        let pond = Pond::new(sizes, Arc::new(Sim(world.clone()))).unwrap();
        world.lock().unwrap().real = pond.ground().memory_granules();
        let pool = pond.pool_create(0, false).unwrap();
        let (live, dirty, count) = Default::default();
        let kept = pond.checkpoints().make(pool).unwrap();
        let mut p = Party {
            pond,
            world,
            pool,
            live,
            dirty,
            count,
            kept,
            saved: vec![],
            mapping,
            failing,
            alone: false,
            crowded: false,
        };
        p.shuffle(&mut r, 30);
        p.kept = p.pond.checkpoints().make(pool).unwrap();
        p.saved = p.live.lock().unwrap().iter().filter(|b| b.pool == pool).cloned().collect();
        p.shuffle(&mut r, 30);
        p
    }

    fn shuffle(&self, r: &mut Random, steps: usize) {
        for _ in 0..steps {
            let n = self.live.lock().unwrap().len();
            match r.below(10) {
                0..=4 => {
                    let bytes = match r.below(4) {
                        0 => 1 + r.below(60 << 10),
                        1 => (1 + r.below(3)) * G,
                        _ => 1 + r.below(4 * G),
                    };
                    let stream = [Some(0), Some(1), Some(2), None][r.below(4) as usize];
                    self.alloc(r.below(4) > 0, stream, bytes);
                }
                5..=8 if n > 0 => {
                    let at = r.below(n as u64) as usize;
                    if r.below(3) == 0 {
                        self.act(Act::Use(at));
                    }
                    self.free(at, true);
                }
                _ => self.run(r.below(3)),
            }
        }
    }

    pub(super) fn alloc(&self, ours: bool, stream: Option<u64>, bytes: u64) {
        let pool = if ours { self.pool } else { PoolId::DEFAULT };
        if let Ok(at) = self.pond.alloc(pool, stream.unwrap_or(UNORDERED), bytes) {
            self.count.fetch_add(i64::from(ours), Ordering::Relaxed);
            self.live.lock().unwrap().push(Live { at, bytes, stream, pool, uses: vec![] });
        }
    }

    /// What is queued on the streams that have used a block, with more of it if it is to be, comes before its end.
    pub(super) fn soil(&self, b: &Live, more: bool) {
        let mut w = self.world.lock().unwrap();
        if !w.is_there(b.at, b.bytes) {
            return;
        }
        let ranges = w.behind(b.at, b.bytes);
        let users: Vec<u64> = match b.stream {
            Some(s) => b.uses.iter().copied().chain([s]).collect(),
            None => w.streams.keys().copied().collect(),
        };
        for s in users {
            if more {
                w.work(s);
            }
            let q = w.streams.get(&s).map_or(0, |st| st.work);
            self.dirty.lock().unwrap().extend(ranges.iter().map(|&(a, n)| (a, a + n, s, q)));
        }
    }

    pub(super) fn free(&self, at: usize, more: bool) {
        let mut live = self.live.lock().unwrap();
        if live.is_empty() {
            return;
        }
        let at = at % live.len();
        let b = live.swap_remove(at);
        drop(live);
        if self.pond.block(b.at).is_ok() {
            self.soil(&b, more);
        }
        match self.pond.free(b.at, None, None) {
            Ok(()) => _ = self.count.fetch_sub(i64::from(b.pool == self.pool), Ordering::Relaxed),
            Err(e) if e.code() == Code::Device => self.live.lock().unwrap().push(b),
            Err(e) => assert!([Code::DoubleFree, Code::UnknownPointer].contains(&e.code()), "{e}"),
        }
    }

    pub(super) fn run(&self, stream: u64) {
        let mut w = self.world.lock().unwrap();
        let q = w.streams.get(&stream).map_or(0, |s| s.queued);
        w.complete(stream, q);
    }

    pub(super) fn some(&self, at: usize) -> Option<Live> {
        let live = self.live.lock().unwrap();
        (!live.is_empty()).then(|| live[at % live.len()].clone())
    }

    pub(super) fn act(&self, act: Act) {
        let pond = &self.pond;
        match act {
            Act::Free(at) => self.free(at, false),
            Act::FreeAll => (0..60).for_each(|_| self.free(0, false)),
            Act::Alloc(ours, stream, bytes) => self.alloc(ours, stream, bytes),
            Act::Trim(ours) => _ = pond.empty_cache(ours.then_some(self.pool)),
            Act::Use(at) => {
                let Some(b) = self.some(at) else { return };
                let user = [2, 3][at % 2];
                if pond.record_stream(b.at, user).is_ok() {
                    let mut live = self.live.lock().unwrap();
                    if let Some(x) = live.iter_mut().find(|x| x.at == b.at) {
                        x.uses.push(user);
                    }
                    self.world.lock().unwrap().work(user);
                }
            }
            Act::Export(at) => {
                let Some(b) = self.some(at) else { return };
                self.world.lock().unwrap().work(9);
                if let Ok(Some(fence)) = pond.order().user(9).and_then(|u| pond.order().fence(&u)) {
                    _ = pond.exports().add_fence(b.at, fence);
                }
            }
            Act::Restore => _ = pond.checkpoints().restore(self.pool, self.kept, |at| at, |_| ()),
            Act::Resize(at, bytes) => {
                let Some(b) = self.some(at) else { return };
                if pond.special().resize(b.at, bytes).is_ok() {
                    let mut live = self.live.lock().unwrap();
                    live.iter_mut().filter(|x| x.at == b.at).for_each(|x| x.bytes = bytes);
                }
            }
            Act::EndStream => stream_ends(pond, 1),
            Act::Capture => {
                let Ok(id) = pond.captures().begin(self.pool, 5) else { return };
                self.world.lock().unwrap().recording.insert(5);
                self.alloc(true, Some(5), 3 * G);
                self.world.lock().unwrap().recording.remove(&5);
                while pond.captures().end(id).is_err() {}
                while pond.captures().release(id).is_err() {}
            }
            Act::Sleep(save) => {
                if pond.sleep().begin(self.pool, save).is_ok() {
                    while let Err(e) = pond.sleep().wake(self.pool) {
                        if self.crowded && e.code() == Code::OutOfMemory {
                            return; // others have its memory
                        }
                    }
                }
            }
            Act::Told => {
                _ = pond.statistics().full(Some(self.pool), 0);
                _ = pond.stats(None);
            }
            Act::Run => (0..4).for_each(|s| self.run(s)),
        }
    }

    /// Frees these, which are all that there are. Then all memory goes back.
    pub(super) fn end(&self, all: Vec<Live>) {
        for b in all {
            self.pond.free(b.at, None, None).unwrap();
        }
        self.pond.ground().backing.sync_all().unwrap();
        self.pond.exports().all(None);
        self.pond.empty_cache(None).unwrap();
        self.pond.ground().check();
        let s = self.pond.stats(None).unwrap();
        assert_eq!((s.active.current, s.reserved.current, self.world.lock().unwrap().taken), (0, 0, 0));
    }

    /// The blocks that live, by the pond's own word. Each has memory of its own.
    pub(super) fn check_owners(&self) -> Vec<Live> {
        self.pond.ground().check();
        let mut all: BTreeMap<u64, Live> = BTreeMap::new();
        for b in self.saved.iter().chain(self.live.lock().unwrap().iter()) {
            match self.pond.block(b.at) {
                Ok(i) if i.base == b.at => {
                    all.insert(b.at, Live { bytes: i.requested, pool: i.pool, ..b.clone() });
                }
                _ => {}
            }
        }
        let w = self.world.lock().unwrap();
        let mut taken: BTreeMap<u64, u64> = BTreeMap::new();
        for b in all.values() {
            for (a, n) in w.behind(b.at, b.bytes) {
                let before = taken.range(..a + n).next_back();
                assert!(before.is_none_or(|(_, &end)| end <= a), "{:#x} overlaps another block", b.at);
                taken.insert(a, a + n);
            }
        }
        drop(w);
        let s = self.pond.stats(None).unwrap();
        assert_eq!(s.blocks.current, all.len() as u64, "blocks that nobody knows");
        all.into_values().collect()
    }

    /// What the restore has made live comes after all work on its memory.
    fn check_order(&self, live: &[(u64, u64)]) {
        let all = self.dirty.lock().unwrap().len();
        self.check_order_up_to(live, all);
    }

    /// The same for the first `known` of the notes of work. What was freed later has been freed again.
    pub(super) fn check_order_up_to(&self, live: &[(u64, u64)], known: usize) {
        let w = self.world.lock().unwrap();
        let dirty = self.dirty.lock().unwrap();
        for b in self.saved.iter().filter(|b| live.iter().any(|l| l.0 == b.at)) {
            if self.pond.block(b.at).is_err() || self.mapping && !w.is_there(b.at, b.bytes) {
                continue; // freed again
            }
            for (a, n) in w.behind(b.at, b.bytes) {
                let on = |d: &&(u64, u64, u64, u64)| d.0.max(a) < d.1.min(a + n);
                if dirty[known..].iter().any(|d| on(&d)) {
                    break;
                }
                for &(_, _, s, q) in dirty[..known].iter().filter(on) {
                    if Some(s) != b.stream && !w.passed(s, q) {
                        let waits = b.stream.and_then(|t| w.streams.get(&t)).and_then(|t| t.waits.get(&s));
                        assert!(
                            waits.is_some_and(|&v| v >= q),
                            "{:#x} of {:?} is live again before stream {s} has passed {q}",
                            b.at,
                            b.stream
                        );
                    }
                }
            }
        }
    }
}

/// Whether it came to a meeting in the nth call, or there was none to come to. The call of number `fails` after it fails.
/// `moment`: how long the restore stands still while the other thread begins.
fn meet(seed: u64, mapping: bool, met: Option<(u32, Act)>, fails: u32, moment: Option<Duration>) -> bool {
    let p = Arc::new(Party::new(seed, mapping, fails > 0));
    let before = p.check_owners();
    let key = |b: &Live| (b.at, b.bytes);
    let ours: BTreeSet<(u64, u64)> = before.iter().filter(|b| b.pool == p.pool).map(key).collect();
    let want: BTreeSet<(u64, u64)> = p.saved.iter().map(key).collect();
    // Work on what is going to be freed is queued.
    let count = p.count.load(Ordering::Relaxed);
    let gone = |b: &&Live| b.pool == p.pool && !want.contains(&key(b));
    before.iter().filter(gone).for_each(|b| p.soil(b, true));
    if let Some((nth, act)) = met {
        let there = p.clone();
        let mut w = p.world.lock().unwrap();
        w.meeting = Some((nth, Box::new(move || there.act(act))));
        w.moment = moment;
        if fails > 0 {
            (w.fail_nth, w.fail_full) = (nth + fails - 1, seed.is_multiple_of(2));
        }
    }
    let done = p.pond.checkpoints().restore(p.pool, p.kept, |at| at, |_| ());
    let mut w = p.world.lock().unwrap();
    let came = met.is_some() && w.meeting.take().is_none();
    let thread = w.met.take();
    drop(w);
    if let Some(thread) = thread {
        thread.join().expect("the other thread");
    }
    p.world.lock().unwrap().fail_nth = 0;
    if let Ok(done) = &done {
        p.check_order(&done.live);
    }
    let after = p.check_owners();
    let now: BTreeSet<(u64, u64)> = after.iter().filter(|b| b.pool == p.pool).map(key).collect();
    let quiet = matches!(
        met.filter(|_| came).map(|m| m.1),
        None | Some(
            Act::Trim(_)
                | Act::Use(_)
                | Act::Told
                | Act::Run
                | Act::Export(_)
                | Act::EndStream
                | Act::Sleep(_)
        )
    );
    match &done {
        Ok(_) if quiet => assert_eq!(now, want, "exactly these are live"),
        Err(e) if quiet => assert_eq!(now, ours, "{e}: nothing has changed"),
        _ => {}
    }
    let (freed, made) = done.as_ref().map_or((0, 0), |d| (d.freed.len(), d.live.len()));
    if !matches!(met, Some((_, Act::Restore))) {
        let others = p.count.load(Ordering::Relaxed) - count;
        let balance = ours.len() as i64 - freed as i64 + made as i64 + others;
        assert_eq!(now.len() as i64, balance, "what the restore has told is what it did");
    }
    let codes = [Code::NotPermitted, Code::Busy, Code::OutOfMemory, Code::UnknownStream];
    if let Err(e) = &done {
        assert!(codes.contains(&e.code()) || p.failing && e.code() == Code::Device, "{e}");
    }
    p.world.lock().unwrap().complete(9, u64::MAX);
    p.end(after);
    came
}

pub(super) fn act(r: &mut Random) -> Act {
    let at = r.below(50) as usize;
    let bytes = 1 + r.below(5 * G);
    match r.below(17) {
        0 | 1 => Act::Free(at),
        2 => Act::FreeAll,
        3..=5 => Act::Alloc(r.below(3) > 0, [Some(0), Some(1), Some(2), None][r.below(4) as usize], bytes),
        6 => Act::Trim(r.below(2) == 0),
        7 | 8 => Act::Use(at),
        9 => Act::Export(at),
        10 => Act::Restore,
        11 => Act::Resize(at, bytes),
        12 => Act::EndStream,
        13 => Act::Capture,
        14 => Act::Sleep(r.below(2) == 0),
        15 => Act::Told,
        _ => Act::Run,
    }
}

/// From nothing to 200 us, at several scales: the threads then run side by side.
pub(super) fn moment(r: &mut Random) -> Duration {
    let most = [1, 5, 20, 80, 200][r.below(5) as usize];
    Duration::from_micros(r.below(most + 1))
}

#[test]
fn a_restore_meets_another_thread_in_each_call() {
    let mut all = 0;
    for seed in 1..=part_of(40) as u64 {
        let mut r = Random(seed * 1_299_709 + 17);
        let mapping = seed % 2 == 0;
        for nth in 0..40 {
            let met = (nth > 0).then(|| (nth, act(&mut r)));
            let fails = [0, 0, 1, 2, 3 + r.below(4) as u32][r.below(5) as usize];
            let moment = (seed % 4 > 1).then(|| moment(&mut r));
            let what = format!("seed {seed}, mapping {mapping}, {met:?}, fails {fails}, {moment:?}");
            let fails = if nth > 0 { fails } else { 0 };
            let done = std::panic::catch_unwind(|| meet(seed, mapping, met, fails, moment));
            let Ok(came) = done else { panic!("{what}") };
            if nth > 0 && !came {
                break;
            }
            all += 1;
        }
    }
    assert!(all > part_of(40), "{all}");
}

#[test]
fn a_restore_meets_a_request_with_memory_in_hand() {
    let config = config(true, 6 * G);
    let world = Arc::new(Mutex::new(World { capacity: 6 * G, ..World::default() }));
    let pond: &'static Pond = Box::leak(Box::new(Pond::new(config, Arc::new(Sim(world.clone()))).unwrap()));
    world.lock().unwrap().real = pond.ground().memory_granules();
    let pool = pond.pool_create(0, false).unwrap();
    let all: Vec<u64> = (0..6).map(|_| pond.alloc(pool, 1, G).unwrap()).collect();
    let kept = pond.checkpoints().make(pool).unwrap();
    all.iter().step_by(2).for_each(|&at| pond.free(at, None, None).unwrap());
    let restore = move || pond.checkpoints().restore(pool, kept, |at| at, |_| ());
    let met = Rc::new(Cell::new(0));
    let act = {
        let met = met.clone();
        move || {
            met.set(met.get() + 1);
            assert_eq!(restore().unwrap_err().code(), Code::Busy);
        }
    };
    let at = gaps::at_each(act, || pond.alloc(pool, 1, 3 * G).unwrap());
    assert_eq!(met.get(), 2, "before the pieces are mapped together, and after it");
    pond.ground().check();
    assert_eq!(pond.block(at).unwrap().requested, 3 * G);
    let done = restore().unwrap();
    assert_eq!((done.freed().len(), done.live.len()), (1, 3));
    pond.ground().check();
}

#[test]
fn a_restore_meets_a_block_that_is_just_being_freed() {
    for mapping in [true, false] {
        let b = Bench::new(config(mapping, 64 << 20));
        let pool = b.pond.pool_create(0, false).unwrap();
        let all = [300, 3 * G].map(|bytes| b.pond.alloc(pool, 1, bytes).unwrap());
        let kept = b.pond.checkpoints().make(pool).unwrap();
        let restore = || b.pond.checkpoints().restore(pool, kept, |at| at, |_| ());
        for at in all {
            let block = b.pond.ground().maps.find(at).unwrap().desc;
            // Another thread has the right to free it, and no more yet.
            assert!(block.claim_remote());
            assert_eq!(restore().unwrap_err().code(), Code::Busy);
            block.unclaim_remote();
            assert!(restore().unwrap().live.is_empty());
            b.pond.ground().check();
        }
        all.into_iter().for_each(|at| b.pond.free(at, None, None).unwrap());
    }
}
