//! Two threads meet on a device that maps: in the midst of the first, the second, ... call of the device that a request, a
//! sleep, a wake, a trim or the end of a sleeping pool makes, another thread frees, allocates, trims, sets budgets, puts
//! pools to sleep and wakes them, ends a pool or a stream, or captures; and now and then a call of the device fails, too.

use super::random::Random;
use super::ties_threads::{Crowd, Piece};
use super::*;

const ALL: u64 = 48 * G;
const POOLS: usize = 5;
/// The pool in which nothing lives, that of captures, and one that sleeps and has no blocks.
const EMPTY: usize = 2;
const GRAPHS: usize = 3;
const ASLEEP: usize = 4;

struct Live {
    piece: Piece,
    stream: Option<u64>,
    pool: usize,
    /// What its granules hold, if they are its own.
    value: u64,
}

struct Party {
    crowd: Crowd,
    pools: [PoolId; POOLS],
    live: Mutex<Vec<Live>>,
    ended: Mutex<BTreeSet<u64>>,
    /// Pools whose contents were given up.
    lost: Mutex<BTreeSet<usize>>,
    failing: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Free,
    FreeAll,
    Trim(Option<usize>),
    Budget(u64),
    Raise,
    Sleep(usize, bool),
    Wake(usize),
    End(usize),
    EndStream,
    Told,
    Alloc(usize, Option<u64>, u64),
    Capture,
}

impl Party {
    fn new(seed: u64, failing: bool) -> Party {
        let mut r = Dice(Random(seed * 7919 + 3));
        let sizes = match r.below(3) {
            0 => config(true, ALL),
            _ => {
                Config { tie: 2 + r.below(8) as u32, tie_growth: 1 + r.below(8) as u32, ..config(true, ALL) }
            }
        };
        let crowd = Crowd::new(sizes, World::default());
        if r.below(2) == 0 {
            crowd.world.lock().unwrap().capacity = ALL * 3 / 4; // others have the rest
        }
        let mut pools = [PoolId::DEFAULT; POOLS];
        pools[1..].iter_mut().for_each(|p| *p = crowd.pond.pool_create(0, false).unwrap());
        let p = Party {
            crowd,
            pools,
            live: Mutex::default(),
            ended: Mutex::default(),
            lost: Mutex::default(),
            failing,
        };
        (0..3).for_each(|s| p.crowd.knows(s));
        for _ in 0..10 + r.below(40) {
            match r.below(10) {
                0..6 => {
                    let pool = [0, 1, 1, EMPTY, ASLEEP][r.below(5) as usize];
                    let (stream, bytes) = (Some(r.below(3)), r.bytes());
                    _ = p.alloc(pool, stream, bytes);
                }
                6..9 => p.free(r.below(100) as usize),
                _ => p.crowd.complete(r.below(3)),
            }
        }
        for pool in [EMPTY, ASLEEP] {
            while let Some(at) = p.find(pool) {
                p.free(at);
            }
        }
        p.write();
        p.act(Act::Sleep(ASLEEP, r.below(2) == 0));
        if r.below(3) == 0 {
            p.act(Act::Sleep(1, r.below(3) > 0));
        }
        p
    }

    fn find(&self, pool: usize) -> Option<usize> {
        self.live.lock().unwrap().iter().position(|x| x.pool == pool)
    }

    fn sleeps(&self, pool: usize) -> bool {
        self.crowd.pond.sleep().is_on(self.pools[pool])
    }

    fn alloc(&self, pool: usize, stream: Option<u64>, bytes: u64) -> Result<()> {
        let offset = self.crowd.pond.alloc(self.pools[pool], stream.unwrap_or(UNORDERED), bytes)?;
        let Some(piece) = self.crowd.note(offset, stream, bytes, true) else {
            // Its pool fell asleep when the block was just there.
            assert!(self.sleeps(pool));
            self.crowd.pond.free(offset, None, None).unwrap();
            return Ok(());
        };
        self.live.lock().unwrap().push(Live { piece, stream, pool, value: 0 });
        Ok(())
    }

    /// Writes to the granules that are wholly a block's.
    fn write(&self) {
        let mut w = self.crowd.world.lock().unwrap();
        for x in self.live.lock().unwrap().iter_mut() {
            if x.piece.1.iter().all(|&(a, n)| a % G == 0 && n % G == 0) {
                x.value = x.piece.0 / G + 1;
                let granules = x.piece.1.iter().flat_map(|&(a, n)| a / G..(a + n) / G);
                granules.for_each(|g| _ = w.content.insert(g as u32, x.value));
            }
        }
    }

    fn free(&self, at: usize) {
        let mut live = self.live.lock().unwrap();
        if live.is_empty() {
            return;
        }
        let at = at % live.len();
        let Live { piece, stream, .. } = live.swap_remove(at);
        drop(live);
        let stream = stream.filter(|s| !self.ended.lock().unwrap().contains(s));
        self.crowd.free(piece, stream);
    }

    fn said(&self, what: &str, said: Result<()>) {
        let Err(e) = said else { return };
        let fits = [Code::OutOfMemory, Code::Busy, Code::NotPermitted, Code::InvalidArgument];
        assert!(fits.contains(&e.code()) || self.failing && e.code() == Code::Device, "{what}: {e}");
    }

    fn act(&self, act: Act) {
        let pond = &self.crowd.pond;
        match act {
            Act::Free => self.free(7),
            Act::FreeAll => (0..50).for_each(|_| self.free(0)),
            Act::Trim(pool) => self.said("trim", pond.empty_cache(pool.map(|p| self.pools[p]))),
            Act::Budget(bytes) => {
                pond.set_limit(bytes);
                self.said("budget", pond.special().trim_to(None, bytes));
            }
            Act::Raise => pond.set_limit(0),
            Act::Sleep(pool, save) => {
                if !save {
                    self.lost.lock().unwrap().insert(pool);
                }
                self.said("sleep", pond.sleep().begin(self.pools[pool], save));
            }
            Act::Wake(pool) => self.said("wake", pond.sleep().wake(self.pools[pool])),
            Act::End(pool) => self.said("end", pond.pool_destroy(self.pools[pool])),
            Act::EndStream => {
                let next = || self.live.lock().unwrap().iter().position(|x| x.stream == Some(1));
                while let Some(at) = next() {
                    self.free(at);
                }
                self.ended.lock().unwrap().insert(1);
                stream_ends(pond, 1);
            }
            Act::Told => {
                _ = pond.statistics().full(None, 0).unwrap();
                _ = pond.statistics().full(Some(self.pools[1]), 0).unwrap();
            }
            Act::Alloc(pool, stream, bytes) => self.said("alloc", self.alloc(pool, stream, bytes)),
            Act::Capture => {
                let recorded = 2;
                let Ok(id) = pond.captures().begin(self.pools[GRAPHS], recorded) else { return };
                self.crowd.world.lock().unwrap().recording.insert(recorded);
                if let Ok(piece) = self.crowd.alloc(self.pools[GRAPHS], Some(recorded), 6 * G) {
                    self.crowd.free(piece, Some(recorded));
                }
                self.crowd.world.lock().unwrap().recording.remove(&recorded);
                self.until_done(|| pond.captures().end(id));
                self.until_done(|| pond.captures().release(id));
            }
        }
    }

    fn until_done(&self, mut act: impl FnMut() -> Result<()>) {
        while let Err(e) = act() {
            assert!(self.failing, "{e}");
        }
    }

    /// What the blocks held is still there, and all memory comes back.
    fn finish(&self) {
        let pond = &self.crowd.pond;
        self.act(Act::Raise);
        let sums = |of: Option<PoolId>| pond.stats(of).unwrap();
        for pool in (0..POOLS).filter(|&p| self.sleeps(p)) {
            let stats = sums(Some(self.pools[pool]));
            assert!(self.failing || stats.reserved.current == 0, "a pool that sleeps has {stats:?}");
        }
        let each = self.pools.iter().filter_map(|&p| pond.stats(Some(p)).ok());
        let of_pools = each.fold((0, 0), |sum, s| (sum.0 + s.reserved.current, sum.1 + s.sleeping.current));
        let all = (sums(None).reserved.current, sums(None).sleeping.current);
        // What the device does not take back of a pool that ends is nobody's.
        assert!(self.failing && all.0 > of_pools.0 || all == of_pools, "{all:?}, {of_pools:?}");
        assert_eq!(all.0, self.crowd.world.lock().unwrap().taken, "what the device says");
        let asleep: Vec<usize> = (0..POOLS).filter(|&p| self.sleeps(p)).collect();
        for pool in asleep {
            pond.empty_cache(None).unwrap();
            match pond.sleep().wake(self.pools[pool]) {
                Ok(()) => {}
                Err(e) => {
                    // Others have so much of it; they give it up.
                    assert_eq!(e.code(), Code::OutOfMemory, "{e}");
                    self.crowd.world.lock().unwrap().capacity = 4 * ALL;
                    pond.sleep().wake(self.pools[pool]).unwrap();
                }
            }
        }
        let lost = self.lost.lock().unwrap().clone();
        let w = self.crowd.world.lock().unwrap();
        for x in self.live.lock().unwrap().iter().filter(|x| x.value > 0 && !lost.contains(&x.pool)) {
            for g in x.piece.1.iter().flat_map(|&(a, n)| a / G..(a + n) / G) {
                assert_eq!(
                    w.content.get(&(g as u32)),
                    Some(&x.value),
                    "granule {g} of a block in pool {}",
                    x.pool
                );
            }
        }
        assert!(w.saved.is_empty(), "what was saved is dropped");
        drop(w);
        while !self.live.lock().unwrap().is_empty() {
            self.free(0);
        }
        self.crowd.finish();
    }
}

/// Numbers, sizes and acts.
struct Dice(Random);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0.below(n)
    }

    fn bytes(&mut self) -> u64 {
        match self.below(5) {
            0 => 1 + self.below(60 << 10),
            1 | 2 => (1 + self.below(10)) * G,
            _ => (1 + self.below(60)) * G / 8 + self.below(3),
        }
    }

    fn act(&mut self) -> Act {
        match self.below(20) {
            0 => Act::Free,
            1 => Act::FreeAll,
            2 => Act::Trim((self.below(2) > 0).then(|| self.below(3) as usize)),
            3..6 => Act::Budget((1 + self.below(40)) * G),
            6 => Act::Raise,
            7..10 => Act::Sleep([1, 1, EMPTY, ASLEEP][self.below(4) as usize], self.below(3) > 0),
            10..13 => Act::Wake([1, 1, ASLEEP][self.below(3) as usize]),
            13 => Act::End(ASLEEP),
            14 => Act::End(EMPTY),
            15 => Act::EndStream,
            16 => Act::Told,
            17 | 18 => Act::Alloc(self.below(2) as usize, Some(self.below(3)), self.bytes()),
            _ => Act::Capture,
        }
    }

    /// What makes calls of the device.
    fn long(&mut self) -> Act {
        match self.below(8) {
            0 | 1 => Act::Alloc(self.below(2) as usize, Some([0, 2][self.below(2) as usize]), self.bytes()),
            2 | 3 => Act::Sleep(1, self.below(3) > 0),
            4 | 5 => Act::Wake(1),
            6 => Act::End(ASLEEP),
            _ => Act::Budget(self.below(30) * G + 1),
        }
    }
}

/// Whether it came to a meeting in the nth call. The call of that number after it fails, if `fails` says one.
fn meet(seed: u64, first: Act, met: (u32, Act), fails: u32) -> bool {
    let p = Arc::new(Party::new(seed, fails > 0));
    let (nth, act) = met;
    let there = p.clone();
    p.crowd.world.lock().unwrap().meeting = Some((nth, Box::new(move || there.act(act))));
    if fails > 0 {
        let mut w = p.crowd.world.lock().unwrap();
        (w.fail_nth, w.fail_full) = (nth + fails - 1, seed.is_multiple_of(2));
    }
    p.act(first);
    let mut w = p.crowd.world.lock().unwrap();
    let came = w.meeting.take().is_none();
    let thread = w.met.take();
    drop(w);
    if let Some(thread) = thread {
        thread.join().expect("the other thread");
    }
    p.crowd.world.lock().unwrap().fail_nth = 0;
    p.crowd.check_quiet();
    p.crowd.pond.ground().check();
    p.finish();
    came
}

#[test]
fn two_threads_meet_in_each_call_of_a_device_that_maps() {
    for seed in 1..=part_of(60) as u64 {
        let mut r = Dice(Random(seed * 1_299_709 + 17));
        let first = r.long();
        for nth in 1..60 {
            let act = r.act();
            let fails = [0, 0, 1, 2, 3 + r.below(6) as u32][r.below(5) as usize];
            let what = format!("seed {seed}, {first:?}, call {nth}, {act:?}, fails {fails}");
            let done = std::panic::catch_unwind(|| meet(seed, first, (nth, act), fails));
            let Ok(came) = done else { panic!("{what}") };
            if !came {
                break;
            }
        }
    }
}

/// The request is under way when the pool begins to fall asleep, and would map granules that are just going.
#[test]
fn a_request_maps_nothing_of_a_pool_that_falls_asleep() {
    for _ in 0..10 {
        meet(558, Act::Sleep(1, true), (2, Act::Alloc(1, Some(0), 14_942_208)), 2);
    }
}
