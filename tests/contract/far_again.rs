//! Segments that come and go at the same addresses, with other sizes and side by side, on a device that refuses a call now and
//! then: no block overlaps another one, each address inside of one leads to it, each free succeeds once, and in the end the device
//! has everything again. `AGAIN_SECONDS` says for how long.

use crate::apart::*;
use crate::api::*;
use crate::counted::Counted;
use crate::observers::state;
use crate::random::Random;
use crate::seam::{Hook, SeamType};
use millpond::capi::*;
use millpond::runtime::BlockStates;
use millpond::{Code, Error, Result, runtime};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Refuses one call in so many, and counts what the library has.
#[derive(Default)]
struct Moody {
    bytes: AtomicI64,
    calls: AtomicU64,
    refuses: AtomicBool,
}

impl Hook for Moody {
    fn pass<T>(&self, name: &'static str, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let one_in = match name {
            "alloc" => 13,
            "free" => 7,
            _ => 0,
        };
        if one_in > 0 && self.refuses.load(Relaxed) && self.calls.fetch_add(1, Relaxed).is_multiple_of(one_in)
        {
            let code = if name == "alloc" { Code::OutOfMemory } else { Code::Device };
            return Err(Error::new(code, "it is in no mood"));
        }
        let done = call();
        std::thread::yield_now();
        done
    }
    fn done(&self, _: usize, name: &'static str, bytes: u64) {
        match name {
            "alloc" => _ = self.bytes.fetch_add(bytes as i64, Relaxed),
            "free" => _ = self.bytes.fetch_sub(bytes as i64, Relaxed),
            _ => {}
        }
    }
}

struct Shared {
    d: Device,
    stop: AtomicBool,
    /// Live blocks: address and bytes.
    live: Mutex<BTreeMap<usize, usize>>,
    post: Mutex<Vec<usize>>,
    frees: AtomicU64,
}

impl Shared {
    fn alloc(&self, pool: Pool, bytes: usize, stream: Stream) -> Option<usize> {
        let at = match pool.alloc(bytes, stream) {
            Ok(at) => at,
            Err(e) => {
                assert!([MILLPOND_E_OUT_OF_MEMORY, MILLPOND_E_DEVICE].contains(&e.code), "{e:?}");
                return None;
            }
        };
        let mut live = self.live.lock().unwrap();
        let clash = live.range(..at + bytes).next_back().filter(|(a, n)| *a + *n > at);
        assert!(clash.is_none(), "{at:#x} of {bytes} overlaps {clash:x?}");
        live.insert(at, bytes);
        Some(at)
    }

    fn free(&self, at: usize, how: impl Fn() -> Outcome<()>) {
        let bytes = self.live.lock().unwrap().remove(&at).unwrap();
        while let Err(e) = how() {
            // Its segment could not go back.
            assert_eq!(e.code, MILLPOND_E_DEVICE, "{at:#x} of {bytes}: {e:?}");
        }
        self.frees.fetch_add(1, Relaxed);
    }

    fn work(&self, seed: u64) {
        let (d, mut r) = (self.d, Random(seed | 1));
        let stream = d.stream();
        let pools = [d.default_pool(), d.pool(0)];
        let mut mine: Vec<usize> = Vec::new();
        for _ in 0..400 + r.below(400) {
            if self.stop.load(Relaxed) {
                break;
            }
            match r.below(40) {
                0..16 => {
                    let bytes = match r.below(6) {
                        0 => MIB + r.below(5 * MIB),
                        1 | 2 => 1 + r.below(600 * KIB),
                        _ => 1 + r.below(8 * KIB),
                    };
                    mine.extend(self.alloc(pools[r.below(2)], bytes, stream));
                }
                16..30 if !mine.is_empty() => {
                    let at = mine.swap_remove(r.below(mine.len()));
                    match r.below(3) {
                        0 => self.free(at, || free(at)),
                        _ => self.free(at, || d.default_pool().free(at, stream)),
                    }
                }
                30..33 if !mine.is_empty() => {
                    let at = mine[r.below(mine.len())];
                    let bytes = self.live.lock().unwrap()[&at];
                    assert_eq!(block(at + r.below(bytes)).unwrap(), (at, bytes));
                }
                33 if !mine.is_empty() => {
                    self.post.lock().unwrap().push(mine.swap_remove(0));
                }
                34 => {
                    let other = self.post.lock().unwrap().pop();
                    other.into_iter().for_each(|at| self.free(at, || free(at)));
                }
                // All of it goes, and its segments with it.
                35 => mine.drain(..).for_each(|at| self.free(at, || free(at))),
                36 => _ = pools[1].empty_cache(),
                37 if r.below(4) == 0 => drop(state(d).snapshot().unwrap()),
                38 if r.below(4) == 0 => {
                    let all = state(d).memory().blocks(None, BlockStates::all()).unwrap();
                    let overlap = all.windows(2).find(|b| b[0].base + b[0].size > b[1].base);
                    assert!(overlap.is_none(), "{overlap:x?}");
                }
                _ => {}
            }
        }
        // Half of the time the thread ends before what it has.
        match r.below(2) {
            0 => self.post.lock().unwrap().extend(mine),
            _ => mine.into_iter().for_each(|at| self.free(at, || free(at))),
        }
        // What could not go back stays the device's unused memory.
        let may = |e: Failed| assert_eq!(e.code, MILLPOND_E_DEVICE, "{e:?}");
        let _ = pools[1].release().map_err(may);
        if r.below(2) == 0 {
            let _ = d.end_stream(stream).map_err(may);
        }
    }
}

/// Returns how many blocks were freed.
fn hunt(seed: u64, lasts: Duration) -> u64 {
    let _ = runtime::finalize();
    let segment = [2, 3, 8][seed as usize % 3] * MIB;
    let max_chunk = [MIB, 4 * MIB][seed as usize % 2] as u64;
    let inner = Counted { lowest: true, max_chunk, ..Counted::in_segments(192 * MIB, segment) }.kind();
    let moody = Arc::new(Moody::default());
    runtime::register_type(Arc::new(SeamType { name: "moody", inner, hook: moody.clone() })).unwrap();
    let d = Device::get("moody", 0).unwrap();
    let s = &Shared {
        d,
        stop: AtomicBool::new(false),
        live: Mutex::default(),
        post: Mutex::default(),
        frees: AtomicU64::new(0),
    };
    moody.refuses.store(!seed.is_multiple_of(4), Relaxed);
    let until = Instant::now() + lasts;
    std::thread::scope(|scope| {
        for n in 0..3 {
            scope.spawn(move || {
                for life in 0.. {
                    if Instant::now() > until || s.stop.load(Relaxed) {
                        break;
                    }
                    // Each life is a thread of its own.
                    std::thread::scope(|t| {
                        let done = t.spawn(move || s.work(seed * 7919 + n * 1009 + life * 31)).join();
                        if let Err(e) = done {
                            s.stop.store(true, Relaxed);
                            std::panic::resume_unwind(e);
                        }
                    });
                }
            });
        }
        scope.spawn(move || {
            while Instant::now() < until && !s.stop.load(Relaxed) {
                let _ = d.empty_cache();
                std::thread::sleep(Duration::from_micros(300));
            }
        });
    });
    moody.refuses.store(false, Relaxed);
    let rest = std::mem::take(&mut *s.post.lock().unwrap());
    rest.into_iter().for_each(|at| s.free(at, || free(at)));
    d.synchronize().unwrap();
    d.empty_cache().unwrap();
    let stats = d.stats();
    let left = (stats.allocated_bytes.current, stats.reserved_bytes.current, moody.bytes.load(Relaxed));
    assert_eq!(left, (0, 0, 0), "seed {seed}");
    s.frees.load(Relaxed)
}

#[test]
fn segments_come_again_at_the_same_addresses() {
    let seconds = std::env::var("AGAIN_SECONDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    apart_for(60 + 2 * seconds, || {
        let until = Instant::now() + lasting(Duration::from_secs(seconds));
        for seed in 1.. {
            if Instant::now() > until {
                break;
            }
            let frees = hunt(seed, Duration::from_millis(250));
            assert!(frees > 500, "seed {seed}: {frees} frees");
        }
    });
}
