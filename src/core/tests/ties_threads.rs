//! Threads on streams of their own that fill a small device with ties, or in segments, while others trim, capture, sleep,
//! limit and end pools, and calls of the device fail: no block overlaps another, none is handed out before the work on its
//! memory, and in the end all goes back.

use super::random::Random;
use super::*;
use std::time::{Duration, Instant};

/// What threads share that allocate and free on a device of ties.
pub(super) struct Crowd {
    pub(super) pond: Pond,
    pub(super) world: Arc<Mutex<World>>,
    books: Mutex<Books>,
}

/// Where a block is, and the memory behind it.
pub(super) type Piece = (u64, Vec<(u64, u64)>);

#[derive(Default)]
struct Books {
    taken: BTreeMap<u64, u64>,
    dirty: Vec<(u64, u64, u64, u64)>,
    /// Streams on which work may be queued: none that is about to end.
    streams: BTreeSet<u64>,
}

impl Crowd {
    pub(super) fn new(config: Config, world: World) -> Crowd {
        let world = Arc::new(Mutex::new(World { capacity: config.max_alloc, threads: true, ..world }));
        let pond = Pond::new(config, Arc::new(Sim(world.clone()))).unwrap();
        world.lock().unwrap().real = pond.ground().memory_granules();
        Crowd { pond, world, books: Mutex::default() }
    }

    /// Work may be queued on the stream from now on.
    pub(super) fn knows(&self, stream: u64) {
        self.books.lock().unwrap().streams.insert(stream);
    }

    pub(super) fn alloc(&self, pool: PoolId, stream: Option<u64>, bytes: u64) -> Result<Piece> {
        let offset = self.pond.alloc(pool, stream.unwrap_or(UNORDERED), bytes)?;
        Ok(self.note(offset, stream, bytes, false).unwrap())
    }

    /// Notes a block that was just allocated. `None`: it sleeps, as far as it `may`.
    pub(super) fn note(&self, offset: u64, stream: Option<u64>, bytes: u64, may: bool) -> Option<Piece> {
        let mut books = self.books.lock().unwrap();
        let w = self.world.lock().unwrap();
        if may && !w.is_there(offset, bytes) {
            return None;
        }
        let ranges = w.behind(offset, bytes);
        for &(a, n) in &ranges {
            if let Some((_, &end)) = books.taken.range(..a + n).next_back() {
                assert!(end <= a, "{bytes} bytes at {offset:#x} overlap a live block");
            }
            books.taken.insert(a, a + n);
            for &(x, y, s, q) in &books.dirty {
                if x.max(a) < y.min(a + n) && Some(s) != stream && !w.passed(s, q) {
                    let waits = stream.and_then(|t| w.streams.get(&t)).and_then(|t| t.waits.get(&s));
                    assert!(
                        waits.is_some_and(|&v| v >= q),
                        "reuse before stream {s} passed {q} (by {stream:?})"
                    );
                }
            }
        }
        Some((offset, ranges))
    }

    pub(super) fn free(&self, (offset, ranges): Piece, stream: Option<u64>) {
        let mut books = self.books.lock().unwrap();
        let mut w = self.world.lock().unwrap();
        let users: Vec<u64> = stream.map_or_else(|| books.streams.iter().copied().collect(), |s| vec![s]);
        for &s in &users {
            let st = w.streams.entry(s).or_default();
            st.queued += 1;
            let q = st.queued;
            for &(a, n) in &ranges {
                books.dirty.push((a, a + n, s, q));
            }
        }
        for (a, n) in ranges {
            assert_eq!(books.taken.remove(&a), Some(a + n));
        }
        books.dirty.retain(|d| !w.passed(d.2, d.3));
        drop(w);
        drop(books);
        self.pond.free(offset, None, None).unwrap();
    }
}

impl Crowd {
    /// Whether calls of the device fail.
    fn fails(&self) -> bool {
        self.world.lock().unwrap().fail_one_in > 0
    }

    /// Tries it again where calls of the device fail.
    fn until_done(&self, mut act: impl FnMut() -> Result<()>) {
        for _ in 0..1000 {
            match act() {
                Ok(()) => return,
                Err(e) => assert!(self.fails(), "{e}"),
            }
        }
        act().unwrap();
    }

    pub(super) fn complete(&self, stream: u64) {
        let mut w = self.world.lock().unwrap();
        let q = w.streams.get(&stream).map_or(0, |s| s.queued);
        w.complete(stream, q);
    }

    /// Allocates and frees on a stream of its own, which ends now and then; `place` is the number of the thread.
    fn allocate(&self, pools: [PoolId; 2], place: u64, mut r: Random, until: Instant) {
        let mut mine = Vec::new();
        let mut stream = (place > 0).then_some(place);
        let mut life = 0;
        let enter = |stream: Option<u64>| self.books.lock().unwrap().streams.extend(stream);
        enter(stream);
        while Instant::now() < until {
            match r.below(40) {
                0 => {
                    let Some(old) = stream else { continue };
                    mine.drain(..).for_each(|b| self.free(b, stream));
                    self.books.lock().unwrap().streams.remove(&old);
                    stream_ends(&self.pond, old);
                    life += 1;
                    stream = Some(1000 * place + life);
                    enter(stream);
                }
                1 => {
                    let all: Vec<u64> = self.world.lock().unwrap().streams.keys().copied().collect();
                    if !all.is_empty() {
                        self.complete(all[r.below(all.len() as u64) as usize]);
                    }
                }
                2..22 if mine.len() < 12 => {
                    let bytes = match r.below(4) {
                        0 => (1 + r.below(12)) * G,
                        1 => 1 + r.below(4096),
                        _ => 1 + r.below(16 * G),
                    };
                    match self.alloc(pools[r.below(2) as usize], stream, bytes) {
                        Ok(b) => mine.push(b),
                        Err(e) if e.code() == Code::Device => assert!(self.fails(), "{e}"),
                        Err(e) => assert_eq!(e.code(), Code::OutOfMemory, "{e}"),
                    }
                }
                _ if !mine.is_empty() => {
                    let at = r.below(mine.len() as u64) as usize;
                    self.free(mine.swap_remove(at), stream);
                }
                _ => {}
            }
        }
        mine.into_iter().for_each(|b| self.free(b, stream));
    }

    /// What others do meanwhile, with pools and streams of their own.
    fn meddle(&self, graph: PoolId, pools: [PoolId; 2], mut r: Random, until: Instant) {
        let (recorded, own) = (98, 99);
        while Instant::now() < until {
            match r.below(8) {
                6 => self.pond.set_limit([0, 0, 30, 44][r.below(4) as usize] * G),
                7 => {
                    let limit = [0, 0, 12, 30][r.below(4) as usize] * G;
                    self.pond.pool_set_limit(pools[r.below(2) as usize], limit).unwrap();
                }
                0 => _ = self.pond.empty_cache(None),
                1 => _ = self.pond.special().trim_to(None, r.below(40) * G),
                2 => {
                    let Ok(id) = self.pond.captures().begin(graph, recorded) else { continue };
                    self.world.lock().unwrap().recording.insert(recorded);
                    std::thread::sleep(Duration::from_millis(r.below(20)));
                    if let Ok(b) = self.alloc(graph, Some(recorded), (1 + r.below(6)) * G) {
                        self.free(b, Some(recorded));
                    }
                    self.world.lock().unwrap().recording.remove(&recorded);
                    self.until_done(|| self.pond.captures().end(id));
                    self.until_done(|| self.pond.captures().release(id));
                }
                3 => {
                    let p = self.pond.pool_create(0, r.below(3) == 0).unwrap();
                    if let Ok(b) = self.alloc(p, Some(own), (1 + r.below(9)) * G) {
                        self.free(b, Some(own));
                    }
                    if r.below(2) == 0 && self.pond.sleep().begin(p, false).is_ok() {
                        let _ = self.pond.sleep().wake(p);
                    }
                    self.complete(own);
                    // Busy as long as requests of others hold memory of it.
                    let mut ended = self.pond.pool_destroy(p);
                    for _ in 0..1000 {
                        if ended.is_err() {
                            std::thread::sleep(Duration::from_millis(1));
                            ended = self.pond.pool_destroy(p);
                        }
                    }
                    ended.unwrap();
                }
                4 => _ = self.pond.statistics().full(None, 0),
                _ => std::thread::sleep(Duration::from_millis(r.below(5))),
            }
        }
    }
}

fn run(seed: u64, time: Duration) {
    let mut r = Random(seed);
    let (tie, tie_growth) = (2 + r.below(14) as u32, 1 + r.below(20) as u32);
    let config = Config { tie, tie_growth, ..config(true, 48 * G) };
    let tuning = Tuning { in_one_piece: r.below(4) == 0, ..Tuning::default() };
    crowd(config, tuning, r, 0, time);
}

fn run_on_segments(seed: u64, time: Duration) {
    let mut r = Random(seed);
    let init_alloc = (4 + r.below(8)) * G;
    let sizes = Config { init_alloc, growing: r.below(3) > 0, ..config(false, 48 * G) };
    let collect_above = [0, 1, 30 * G][r.below(3) as usize];
    let tuning = Tuning { collect_above, ..Tuning::default() };
    let fail_one_in = [0, 0, 5, 50][r.below(4) as usize];
    crowd(sizes, tuning, r, fail_one_in, time);
}

/// All of them on such a device, of whose calls one in so many fails (0: none does).
fn crowd(config: Config, tuning: Tuning, mut r: Random, fail_one_in: u64, time: Duration) {
    let crowd = Crowd::new(config, World { fail_one_in, ..World::default() });
    crowd.pond.tune(tuning);
    let pools = [PoolId::DEFAULT, crowd.pond.pool_create(0, false).unwrap()];
    let graph = crowd.pond.pool_create(0, false).unwrap();
    let until = Instant::now() + time;
    std::thread::scope(|s| {
        let c = &crowd;
        for place in 0..4 {
            let r = Random(r.below(u64::MAX));
            s.spawn(move || c.allocate(pools, place, r, until));
        }
        let r = Random(r.below(u64::MAX));
        s.spawn(move || c.meddle(graph, pools, r, until));
    });
    crowd.world.lock().unwrap().fail_one_in = 0;
    crowd.finish();
}

impl Crowd {
    /// All blocks are free. All memory comes back.
    pub(super) fn finish(&self) {
        let pond = &self.pond;
        pond.ground().check();
        pond.ground().backing.sync_all().unwrap();
        pond.empty_cache(None).unwrap();
        pond.ground().check();
        let w = self.world.lock().unwrap();
        assert_eq!((w.taken, w.created.len(), w.shown.len()), (0, 0, 0), "all comes back");
        drop(w);
        assert_eq!(pond.stats(None).unwrap().reserved.current, 0);
        self.check_quiet();
    }

    /// No operation is under way.
    pub(super) fn check_quiet(&self) {
        let g = self.pond.ground().growing();
        assert_eq!(g.account.taken(0).device, g.account.reserved(), "nothing is claimed");
        assert!(!g.transits.has(None), "nothing is in transit");
    }
}

#[test]
fn threads_that_take_segments_from_each_other() {
    (1..=part_of(8) as u64).for_each(|seed| run_on_segments(seed, Duration::from_millis(300)));
}

#[test]
fn threads_that_take_ties_from_each_other() {
    (1..=part_of(8) as u64).for_each(|seed| run(seed, Duration::from_millis(300)));
}
