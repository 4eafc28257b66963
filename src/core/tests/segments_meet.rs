//! Two threads meet on a device in segments: in the midst of the first, the second, ... call of the device that a request
//! makes, another thread frees, allocates, trims, ends a pool or a stream, captures, or sets limits.

use super::random::Random;
use super::ties_threads::{Crowd, Piece};
use super::*;

const MIB: u64 = 1 << 20;
const ALL: u64 = 64 * MIB;

struct Live {
    piece: Piece,
    stream: Option<u64>,
    pool: usize,
}

struct Party {
    crowd: Crowd,
    pools: [PoolId; 4],
    live: Mutex<Vec<Live>>,
    /// No streams any more.
    ended: Mutex<BTreeSet<u64>>,
}

/// The pool in which nothing lives, and that of captures.
const EMPTY: usize = 2;
const GRAPHS: usize = 3;

/// What another thread does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Free,
    FreeAll,
    Trim(Option<usize>),
    EndPool,
    EndStream,
    Told,
    Raise,
    // From here on what may leave the request with less.
    Alloc(usize, Option<u64>, u64),
    Limit,
    PoolLimit,
    Capture,
}

impl Act {
    fn helps(self) -> bool {
        !matches!(self, Act::Alloc(..) | Act::Limit | Act::PoolLimit | Act::Capture)
    }
}

impl Party {
    fn new(seed: u64) -> Party {
        let growing = !seed.is_multiple_of(3);
        let init_alloc = [8, 16, 24][seed as usize / 3 % 3] * MIB;
        let sizes = Config { init_alloc, realloc: 8 * MIB, ..config(false, ALL) };
        let crowd = Crowd::new(Config { growing, ..sizes }, World::default());
        let pools = [PoolId::DEFAULT, PoolId::DEFAULT, PoolId::DEFAULT, PoolId::DEFAULT];
        let mut p = Party { crowd, pools, live: Mutex::default(), ended: Mutex::default() };
        (1..4).for_each(|i| p.pools[i] = p.crowd.pond.pool_create(0, false).unwrap());
        for s in 0..3 {
            p.crowd.knows(s);
        }
        let mut r = Random(seed * 7919 + 3);
        for _ in 0..r.below(40) {
            match r.below(10) {
                0..5 => {
                    let (pool, stream) = (r.below(3) as usize, Some(r.below(3)));
                    _ = p.alloc(pool, stream, r.bytes());
                }
                5..8 => p.free(r.below(100) as usize),
                8 => p.crowd.complete(r.below(3)),
                _ => {
                    let limit = [0, 24, 40][r.below(3) as usize] * MIB;
                    let pool = r.below(2) as usize;
                    p.crowd.pond.pool_set_limit(p.pools[pool], limit).unwrap();
                }
            }
        }
        // Nothing lives in the pool that is to end.
        while let Some(at) = p.find(EMPTY) {
            p.free(at);
        }
        p
    }

    fn find(&self, pool: usize) -> Option<usize> {
        self.live.lock().unwrap().iter().position(|x| x.pool == pool)
    }

    fn alloc(&self, pool: usize, stream: Option<u64>, bytes: u64) -> Result<()> {
        let piece = self.crowd.alloc(self.pools[pool], stream, bytes)?;
        self.live.lock().unwrap().push(Live { piece, stream, pool });
        Ok(())
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

    fn act(&self, act: Act) {
        let pond = &self.crowd.pond;
        match act {
            Act::Free => self.free(7),
            Act::FreeAll => (0..50).for_each(|_| self.free(0)),
            Act::Trim(pool) => _ = pond.empty_cache(pool.map(|p| self.pools[p])),
            Act::EndPool => {
                let ended = pond.pool_destroy(self.pools[EMPTY]);
                assert!(ended.is_ok() || ended.as_ref().is_err_and(|e| e.code() == Code::Busy), "{ended:?}");
            }
            Act::EndStream => {
                // None of its blocks live, so that all work on its memory is known.
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
            Act::Raise => {
                pond.set_limit(0);
                self.pools[..2].iter().for_each(|&p| pond.pool_set_limit(p, 0).unwrap());
            }
            Act::Alloc(pool, stream, bytes) => _ = self.alloc(pool, stream, bytes),
            Act::Limit => pond.set_limit(30 * MIB),
            Act::PoolLimit => {
                self.pools[..2].iter().for_each(|&p| pond.pool_set_limit(p, 20 * MIB).unwrap());
            }
            Act::Capture => {
                let recorded = 2;
                let Ok(id) = pond.captures().begin(self.pools[GRAPHS], recorded) else { return };
                self.crowd.world.lock().unwrap().recording.insert(recorded);
                if let Ok(piece) = self.crowd.alloc(self.pools[GRAPHS], Some(recorded), 6 * MIB) {
                    self.crowd.free(piece, Some(recorded));
                }
                self.crowd.world.lock().unwrap().recording.remove(&recorded);
                pond.captures().end(id).unwrap();
                pond.captures().release(id).unwrap();
            }
        }
    }

    /// All memory is there for one block, and then for the device.
    fn finish(&self) {
        while !self.live.lock().unwrap().is_empty() {
            self.free(0);
        }
        self.act(Act::Raise);
        let piece = self.crowd.alloc(self.pools[1], Some(2), ALL).expect("nothing is in use");
        self.crowd.free(piece, Some(2));
        self.crowd.finish();
    }
}

impl Random {
    fn bytes(&mut self) -> u64 {
        match self.below(5) {
            0 => 1 + self.below(60 << 10),
            1 => (1 + self.below(16)) * 2 * MIB,
            _ => (1 + self.below(80)) * MIB / 4 + self.below(3),
        }
    }

    fn act(&mut self) -> Act {
        match self.below(14) {
            0 => Act::Free,
            1 => Act::FreeAll,
            2 | 3 => Act::Trim((self.below(2) > 0).then(|| self.below(3) as usize)),
            4 => Act::EndPool,
            5 => Act::EndStream,
            6 => Act::Told,
            7 => Act::Raise,
            8..11 => Act::Alloc(self.below(2) as usize, Some(self.below(3)), self.bytes()),
            11 => Act::Limit,
            12 => Act::PoolLimit,
            _ => Act::Capture,
        }
    }
}

/// A request for which the state of `seed` is made, and another thread's act in the midst of the `nth` call. Returns whether
/// it came to that, and whether the request was served.
fn meet(seed: u64, act: Option<(u32, Act)>) -> (bool, Result<()>) {
    let p = Arc::new(Party::new(seed));
    let mut r = Random(seed * 104_729 + 11);
    let (pool, stream) = (r.below(2) as usize, (r.below(6) > 0).then(|| [0, 2][r.below(2) as usize]));
    let bytes = match r.below(4) {
        0 => r.bytes(),
        _ => (1 + r.below(30)) * 2 * MIB,
    };
    if let Some((nth, act)) = act {
        let there = p.clone();
        p.crowd.world.lock().unwrap().meeting = Some((nth, Box::new(move || there.act(act))));
    }
    let said = p.alloc(pool, stream, bytes);
    if let Err(e) = &said {
        assert_eq!(e.code(), Code::OutOfMemory, "{e}");
    }
    let mut w = p.crowd.world.lock().unwrap();
    let came = w.meeting.take().is_none() && act.is_some();
    let met = w.met.take();
    drop(w);
    if let Some(met) = met {
        met.join().expect("the other thread");
    }
    p.crowd.check_quiet();
    p.crowd.pond.ground().check();
    p.finish();
    (came, said)
}

#[test]
fn two_threads_meet_in_each_call() {
    for seed in 1..=part_of(80) as u64 {
        let (_, said) = meet(seed, None);
        let mut r = Random(seed * 1_299_709 + 17);
        for nth in 1..40 {
            let act = r.act();
            let what = format!("seed {seed}, call {nth}, {act:?}, alone {said:?}");
            let done = std::panic::catch_unwind(|| {
                let (came, other) = meet(seed, Some((nth, act)));
                if said.is_ok() && act.helps() {
                    other.expect("it is served where nobody else takes anything");
                }
                came
            });
            let Ok(came) = done else { panic!("{what}") };
            if !came {
                break;
            }
        }
    }
}

/// Requests that nothing can serve take nothing from a thread that needs no more than it has freed.
#[test]
fn a_request_that_fails_takes_nothing_from_others() {
    #[derive(Clone, Copy, Debug)]
    enum Why {
        Device,
        Limit,
        PoolLimit,
    }
    for growing in [true, false] {
        for why in [Why::Device, Why::Limit, Why::PoolLimit] {
            let sizes = Config { init_alloc: 8 * MIB, realloc: 8 * MIB, ..config(false, 128 * MIB) };
            let crowd = Crowd::new(Config { growing, ..sizes }, World::default());
            let pond = &crowd.pond;
            let p = pond.pool_create(0, false).unwrap();
            match why {
                Why::Device => crowd.world.lock().unwrap().capacity = 64 * MIB,
                Why::Limit => pond.set_limit(64 * MIB),
                Why::PoolLimit => {
                    pond.set_limit(64 * MIB);
                    pond.pool_set_limit(p, 20 * MIB).unwrap();
                }
            }
            (0..3).for_each(|s| crowd.knows(s));
            let all = crowd.alloc(PoolId::DEFAULT, Some(0), 40 * MIB).unwrap();
            let until = std::time::Instant::now() + std::time::Duration::from_millis(150);
            std::thread::scope(|s| {
                s.spawn(|| {
                    while std::time::Instant::now() < until {
                        // The rest has 24 MiB.
                        pond.alloc(p, 2, 30 * MIB).unwrap_err();
                    }
                });
                let mut rounds = 0u64;
                while std::time::Instant::now() < until {
                    rounds += 1;
                    let bytes = [10 * MIB, 3000, 8 * MIB, 100_000, 5 * MIB][rounds as usize % 5];
                    let piece = crowd.alloc(PoolId::DEFAULT, Some(1), bytes).unwrap_or_else(|e| {
                        panic!("{why:?}, growing {growing}, round {rounds}, {bytes} bytes: {e}")
                    });
                    crowd.free(piece, Some(1));
                    if rounds.is_multiple_of(3) {
                        crowd.complete(1);
                    }
                }
            });
            crowd.free(all, Some(0));
            pond.set_limit(0);
            crowd.finish();
        }
    }
}

/// The end of a device beside a thread in the midst of a call: it waits until that has placed what it has got, or has not any
/// more, and then takes each segment once.
#[test]
fn the_end_waits_for_what_is_in_transit() {
    #[derive(Clone, Copy, Debug)]
    enum Busy {
        Takes,
        Trims,
        Frees,
    }
    // Which of its calls is the one for the segment.
    for (busy, nth) in [(Busy::Takes, 1), (Busy::Trims, 2), (Busy::Frees, 2)] {
        let sizes = Config { max_chunk: 16 * MIB, ..config(false, ALL) };
        let crowd = Arc::new(Crowd::new(sizes, World::default()));
        let pond = &crowd.pond;
        let alloc = |bytes| pond.alloc(PoolId::DEFAULT, 0, bytes).unwrap();
        let block = match busy {
            Busy::Takes => None,
            Busy::Trims => Some(alloc(MIB)),
            Busy::Frees => Some(alloc(20 * MIB)),
        };
        if let Busy::Trims = busy {
            pond.free(block.unwrap(), Some(0), None).unwrap();
        }
        let there = crowd.clone();
        let ends = Box::new(move || there.pond.close().unwrap());
        crowd.world.lock().unwrap().meeting = Some((nth, ends));
        match busy {
            Busy::Takes => _ = alloc(MIB),
            Busy::Trims => assert!(pond.empty_cache(None).is_ok()),
            Busy::Frees => pond.free(block.unwrap(), Some(0), None).unwrap(),
        }
        let met = crowd.world.lock().unwrap().met.take();
        met.unwrap_or_else(|| panic!("{busy:?}: there is no call {nth}")).join().unwrap();
        let w = crowd.world.lock().unwrap();
        assert_eq!((w.taken, w.segments.len()), (0, 0), "{busy:?}");
    }
}
