//! The oracle with real time: several threads, each with blocks, streams and a pool of its own, on devices whose
//! streams run by themselves. Some frees cross threads; streams end with work queued; now and then two threads free one
//! block.
//!
//! It checks that live blocks never overlap, that each piece of work finds its block's tag in the memory, that exactly
//! one of two racing frees succeeds, and that everything comes back in the end. On the host device any call may be slow
//! (`Shaky`).

use super::api::{self, Device, Pool, Stream};
use super::random::Random;
use super::seam::{Hook, SeamType};
use super::{cuda, fake, threaded};
use millpond::HostOptions;
use millpond::Result;
use millpond::capi::*;
use millpond::device::host::HostType;
use millpond::runtime::{self, HistoryOptions};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::{Duration, Instant};

thread_local! {
    static DICE: RefCell<Option<Random>> = const { RefCell::new(None) };
}

/// Now and then the thread stands still for a while.
fn dawdle() {
    let us = DICE.with_borrow_mut(|d| {
        let d = d.as_mut()?;
        (d.below(24) == 0).then(|| d.below(300))
    });
    if let Some(us) = us {
        std::thread::sleep(Duration::from_micros(us));
    }
}

// ---- a host device whose calls take their time -----------------------------------------------------------------

struct Shaky;

impl Hook for Shaky {
    fn pass<T>(&self, _: &'static str, call: impl FnOnce() -> Result<T>) -> Result<T> {
        self.look("", call)
    }
    fn look<T>(&self, _: &'static str, call: impl FnOnce() -> T) -> T {
        dawdle();
        let answer = call();
        dawdle();
        answer
    }
}

// ---- the program -----------------------------------------------------------------------------------------------

const MIB: usize = 1 << 20;
/// Blocks that two threads free at a time.
const RACES: usize = 16;

/// In place of a stream that has ended.
const ENDED: Stream = Stream(usize::MAX);

#[derive(Clone, Copy)]
struct Owned {
    at: usize,
    bytes: usize,
    tag: u64,
    /// The stream that orders it.
    stream: Option<Stream>,
    /// It is of its thread's own pool, which ends with the thread.
    own: bool,
}

struct Shared {
    d: Device,
    live: Mutex<BTreeMap<usize, usize>>,
    /// For another thread to free.
    post: Mutex<Vec<Owned>>,
    /// Requests are under way; closed while two frees race, so that the address is not in use again.
    open: RwLock<()>,
    wrong: Mutex<Option<String>>,
    stop: AtomicBool,
    done: AtomicU64,
    tags: AtomicU64,
    work: AtomicU64,
}

fn locked<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|e| e.into_inner())
}

impl Shared {
    fn violate(&self, what: String) {
        locked(&self.wrong).get_or_insert(what);
        self.stop.store(true, Relaxed);
    }

    fn check(&self, what: &str, result: api::Outcome<()>) {
        if let Err(e) = result {
            self.violate(format!("{what} fails with code {}: {}", e.code, e.message));
        }
    }

    fn born(&self, at: usize, bytes: usize) {
        let mut live = locked(&self.live);
        let before = live.range(..at + bytes).next_back().map(|(a, b)| (*a, *b));
        if before.is_some_and(|(a, b)| a + b > at) {
            drop(live);
            return self.violate(format!("live blocks overlap: {at:#x}+{bytes} and {before:x?}"));
        }
        live.insert(at, bytes);
    }

    /// Work on a block that takes its time: it looks for the tag, or makes it.
    fn queue(self: &Arc<Shared>, stream: Stream, b: Owned, first: bool, us: u64) {
        let me = self.clone();
        self.work.fetch_add(1, Relaxed);
        self.d.call(stream, move || {
            if us > 0 {
                std::thread::sleep(Duration::from_micros(us));
            }
            me.touch(b, first);
            me.work.fetch_sub(1, Relaxed);
        });
    }

    fn touch(&self, b: Owned, first: bool) {
        for at in [b.at, b.at + b.bytes - 8] {
            let p: *mut u64 = std::ptr::with_exposed_provenance_mut(at);
            let seen = unsafe { p.read_unaligned() };
            if !first && seen != b.tag {
                self.violate(format!("the work on the block of tag {:#x} finds {seen:#x}", b.tag));
            }
            unsafe { p.write_unaligned(b.tag) };
        }
    }

    fn free(&self, b: Owned, on: Option<Stream>, pool: Pool) {
        locked(&self.live).remove(&b.at);
        let done = match on {
            Some(s) => pool.free(b.at, s),
            None => api::free(b.at),
        };
        self.check("a free", done);
    }
}

/// One thread: what it has, and what it does.
fn worker(s: &Arc<Shared>, seed: u64, no_streams: bool) {
    DICE.set(Some(Random(seed ^ 0xD1CE)));
    let mut r = Random(seed);
    let own = s.d.pool(0);
    let default = s.d.default_pool();
    let mut streams = [s.d.stream(), s.d.stream()];
    let mut blocks: Vec<Owned> = Vec::new();
    while !s.stop.load(Relaxed) {
        s.done.fetch_add(1, Relaxed);
        let stream = streams[r.below(2) as usize];
        match r.below(100) {
            0..34 => {
                if blocks.len() > 6 {
                    continue;
                }
                let bytes = match r.below(3) {
                    0 => 16 + r.below(4000) as usize,
                    1 => 16 + r.below(900 << 10) as usize,
                    _ => 2 * MIB * (1 + r.below(2) as usize),
                };
                let ordered = no_streams || r.below(3) > 0;
                let mine = r.below(4) == 0;
                let pool = if mine { own } else { default };
                let pass = s.open.read().unwrap();
                let got = if ordered { pool.alloc(bytes, stream) } else { s.d.alloc(bytes) };
                let tag = s.tags.fetch_add(1, Relaxed) << 8 | 0xA5;
                match got {
                    Ok(at) => {
                        s.born(at, bytes);
                        drop(pass);
                        let b =
                            Owned { at, bytes, tag, stream: ordered.then_some(stream), own: mine && ordered };
                        match b.stream {
                            Some(stream) => s.queue(stream, b, true, r.below(60) * r.below(2)),
                            None => s.touch(b, true),
                        }
                        blocks.push(b);
                    }
                    Err(e) if e.code == MILLPOND_E_OUT_OF_MEMORY => {}
                    Err(e) => s.violate(format!("a request fails with code {}: {}", e.code, e.message)),
                }
            }
            34..60 if !blocks.is_empty() => {
                let b = blocks[r.below(blocks.len() as u64) as usize];
                // A block of another stream that has ended is left alone.
                let on = b.stream.unwrap_or(stream);
                if streams.contains(&on) {
                    s.queue(on, b, false, r.below(80) * r.below(2));
                }
            }
            60..84 if !blocks.is_empty() => {
                let b = blocks.swap_remove(r.below(blocks.len() as u64) as usize);
                match r.below(4) {
                    0 if !b.own => locked(&s.post).push(b),
                    1 => s.free(b, None, default),
                    2 => s.free(b, Some(stream), default),
                    _ => s.free(b, b.stream.filter(|x| streams.contains(x)), default),
                }
            }
            84..90 => {
                let b = locked(&s.post).pop();
                if let Some(b) = b {
                    s.free(b, (r.below(2) == 0).then_some(stream), default);
                }
            }
            90..93 => {
                let n = r.below(2) as usize;
                let old = streams[n];
                // A new stream may get its number, and is another one all the same.
                blocks.iter_mut().filter(|b| b.stream == Some(old)).for_each(|b| b.stream = Some(ENDED));
                // Blocks of it that others are to free stay: only its own thread names it.
                s.check("the end of a stream", s.d.end_stream(old));
                streams[n] = s.d.stream();
            }
            93 => s.check("emptying the cache", s.d.empty_cache()),
            94 => s.check("a wait", s.d.stream_synchronize(stream)),
            95 => drop(s.d.stats()),
            96 => {
                let p = s.d.pool(0);
                let pass = s.open.read().unwrap();
                if let Ok(at) = p.alloc(MIB, stream) {
                    s.born(at, MIB);
                    drop(pass);
                    let b = Owned {
                        at,
                        bytes: MIB,
                        tag: s.tags.fetch_add(1, Relaxed) << 8 | 0xA5,
                        stream: Some(stream),
                        own: true,
                    };
                    s.queue(stream, b, true, r.below(100));
                    s.free(b, Some(stream), p);
                }
                s.check("the end of a pool", p.destroy());
            }
            97 => race(s, stream, &mut r),
            98 => s.check("emptying a pool", own.empty_cache()),
            99 => {
                // So many that the thread has a fast path there.
                let bytes = [1000, 50_000, 300_000, 5 * MIB / 2][r.below(4) as usize];
                let pool = if r.below(3) == 0 { own } else { default };
                for _ in 0..60 {
                    let pass = s.open.read().unwrap();
                    let Ok(at) = pool.alloc(bytes, stream) else { break };
                    s.born(at, bytes);
                    drop(pass);
                    let tag = s.tags.fetch_add(1, Relaxed) << 8 | 0xA5;
                    let b = Owned { at, bytes, tag, stream: Some(stream), own: true };
                    if r.below(10) == 0 {
                        s.queue(stream, b, true, r.below(20));
                    }
                    s.free(b, Some(stream), pool);
                }
            }
            _ => {}
        }
    }
    for b in blocks {
        s.free(b, None, default);
    }
    for stream in streams {
        s.check("a wait", s.d.stream_synchronize(stream));
        s.check("the end of a stream", s.d.end_stream(stream));
    }
    s.check("the end of a pool", own.destroy());
}

/// Two threads free the same blocks, one after the other, each as nearly at the same moment as can be.
fn race(s: &Arc<Shared>, stream: Stream, r: &mut Random) {
    let _closed = s.open.write().unwrap();
    let bytes = [4096, 64 << 10, 256 << 10, 3 * MIB][r.below(4) as usize];
    let pool = s.d.default_pool();
    let all: Vec<usize> = (0..RACES).map_while(|_| pool.alloc(bytes, stream).ok()).collect();
    let there = AtomicU64::new(0);
    let one = |late: u64| {
        let mut done = Vec::new();
        for (n, &at) in all.iter().enumerate() {
            there.fetch_add(1, Relaxed);
            let mut spins = 0_u64;
            while there.load(Relaxed) < 2 * (n as u64 + 1) {
                spins += 1;
                if spins > 2000 { std::thread::yield_now() } else { std::hint::spin_loop() }
            }
            (0..late * n as u64 % 97).for_each(|_| std::hint::spin_loop());
            done.push(api::free(at));
        }
        done
    };
    let late = [r.below(40), r.below(40)];
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| one(late[0]));
        let second = one(late[1]);
        (first.join().unwrap(), second)
    });
    for (a, b) in first.iter().zip(&second) {
        match (a, b) {
            (Ok(()), Err(e)) | (Err(e), Ok(()))
                if matches!(e.code, MILLPOND_E_DOUBLE_FREE | MILLPOND_E_UNKNOWN_POINTER) => {}
            _ => return s.violate(format!("of two racing frees: {a:?} and {b:?}")),
        }
    }
}

fn run(d: Device, seed: u64, seconds: u64, no_streams: bool) -> u64 {
    let s = Arc::new(Shared {
        d,
        live: Mutex::default(),
        post: Mutex::default(),
        open: RwLock::default(),
        wrong: Mutex::default(),
        stop: AtomicBool::new(false),
        done: AtomicU64::new(0),
        tags: AtomicU64::new(1),
        work: AtomicU64::new(0),
    });
    let until = Instant::now() + Duration::from_secs(seconds);
    let workers: Vec<_> = (0..3)
        .map(|n| {
            let s = s.clone();
            std::thread::spawn(move || worker(&s, seed * 64 + n, no_streams))
        })
        .collect();
    let (mut before, mut since) = (0, Instant::now());
    let device = runtime::by_id(d.0 as u32).unwrap();
    for round in 0.. {
        if Instant::now() > until || s.stop.load(Relaxed) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
        // Histories come and go, of few events and of many.
        let done = match round % 8 {
            2 => {
                device.history_start(&HistoryOptions { events: 64 << (round % 3 * 4), ..Default::default() })
            }
            5 => device.history_stop().map(drop),
            _ => Ok(()),
        };
        if let Err(e) = done {
            s.violate(format!("a history: {e}"));
        }
        let done = s.done.load(Relaxed);
        if done != before {
            (before, since) = (done, Instant::now());
        }
        assert!(since.elapsed() < Duration::from_secs(10), "seed {seed}: no thread gets on");
    }
    s.stop.store(true, Relaxed);
    let end = Instant::now();
    while workers.iter().any(|w| !w.is_finished()) {
        std::thread::sleep(Duration::from_millis(1));
        assert!(end.elapsed() < Duration::from_secs(20), "seed {seed}: a thread never ends");
    }
    workers.into_iter().for_each(|w| w.join().unwrap());
    let rest = std::mem::take(&mut *locked(&s.post));
    rest.into_iter().for_each(|b| s.free(b, None, d.default_pool()));
    if let Some(text) = locked(&s.wrong).take() {
        panic!("seed {seed}: {text}");
    }
    d.synchronize().unwrap();
    while s.work.load(Relaxed) > 0 {
        std::thread::sleep(Duration::from_millis(1));
        assert!(end.elapsed() < Duration::from_secs(30), "seed {seed}: work of a stream is never done");
    }
    d.empty_cache().unwrap();
    let x = d.stats();
    let left =
        [x.requested_bytes, x.allocated_bytes, x.active_bytes, x.reserved_bytes, x.blocks].map(|c| c.current);
    assert_eq!(left, [0; 5], "seed {seed}: what is left of everything");
    s.done.load(Relaxed)
}

/// Programs of three threads on this kind of device.
pub fn hunt(kind: &str, seconds: u64, seed: u64) {
    let until = Instant::now() + Duration::from_secs(seconds);
    let (mut operations, mut seed, first) = (0, seed, seed);
    while Instant::now() < until {
        let _ = runtime::finalize();
        let mut hold = None;
        let d = match kind {
            "plugin" => threaded::plugin("threads"),
            "cuda" => {
                hold = Some(cuda::Fake::new(&[("capacity", "64M")], |_| {}));
                Device::get("cuda", 0).unwrap()
            }
            _ => {
                let options = HostOptions { device_count: 1, capacity: 48 << 20, mapping: kind == "mapping" };
                let inner = Arc::new(HostType::new("behind", options));
                let shaky = SeamType { name: "shaky", inner, hook: Arc::new(Shaky) };
                runtime::register_type(Arc::new(shaky)).unwrap();
                Device::get("shaky", 0).unwrap()
            }
        };
        operations += run(d, seed, seconds.clamp(1, 3), false);
        let _ = runtime::finalize();
        drop(hold);
        seed += 1;
    }
    let _ = fake::CURRENT.with(std::cell::Cell::get);
    eprintln!("oracle: {operations} operations of three threads on {kind}, seeds {first} to {}", seed - 1);
}
