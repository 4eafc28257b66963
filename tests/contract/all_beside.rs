//! Everything that pools can do at once, on small devices: threads allocate and free, and beside them others let pools sleep and
//! wake, capture, go back to checkpoints, end streams whose work is late, change limits and options, and ask. Memory is scarce, so
//! requests also fail, trim and steal, and some devices refuse calls. Each block is filled on a stream with its owner's stamp, also
//! by another stream after its free, and looked at before the free. In the end the sums are right and nothing is reserved.
//! `ALL_SECONDS` says for how long, `ALL_SEED` where to begin, and with `ALL_MOODY` all devices refuse.

use crate::apart::*;
use crate::api::*;
use crate::random::Random;
use crate::seam::{Hook, SeamType};
use millpond::capi::*;
use millpond::device::Sizes;
use millpond::device::host::HostType;
use millpond::{Code, Error, HostOptions, Result, runtime};
use std::ffi::CString;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[path = "all_beside/others.rs"]
mod others;

/// Counts what the library has from both devices, and refuses calls now and then.
#[derive(Default)]
struct Book {
    bytes: AtomicI64,
    segment: u64,
    max_chunk: u64,
    /// Refuses one call in so many.
    refuses: AtomicBool,
    calls: AtomicU64,
}

impl Hook for Book {
    fn pass<T>(&self, name: &'static str, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let one_in = match name {
            "event_create" => 7,
            "alloc" | "granules_create" | "synchronize" | "event_synchronize" => 13,
            "free" | "granules_release" => 11,
            "map" | "map_runs" | "unmap" | "event_record" | "stream_wait_event" | "event_query" => 19,
            _ => 0,
        };
        if one_in > 0 && self.refuses.load(SeqCst) && self.calls.fetch_add(1, SeqCst).is_multiple_of(one_in) {
            let takes = ["alloc", "granules_create"].contains(&name);
            let code = if takes { Code::OutOfMemory } else { Code::Device };
            return Err(Error::new(code, "it is in no mood"));
        }
        let done = call();
        std::thread::yield_now();
        done
    }
    fn done(&self, _: usize, name: &'static str, bytes: u64) {
        match name {
            "alloc" | "granules_create" => _ = self.bytes.fetch_add(bytes as i64, SeqCst),
            "free" | "granules_release" => _ = self.bytes.fetch_sub(bytes as i64, SeqCst),
            _ => {}
        }
    }
    fn sizes(&self, own: Sizes) -> Sizes {
        if self.segment == 0 {
            return own;
        }
        Sizes { init_alloc: self.segment, realloc: self.segment, max_chunk: self.max_chunk, ..own }
    }
}

/// A block that its owner has filled on its stream, or will have.
#[derive(Clone, Copy, Debug)]
struct Block {
    at: usize,
    bytes: usize,
    stamp: u8,
    /// The stream that orders its memory; the owner has waited for it when the block is posted.
    stream: Stream,
    pool: Pool,
}

struct Shared {
    d: Device,
    stop: AtomicBool,
    post: Mutex<Vec<Block>>,
    /// Streams that all threads use, and one ends now and then.
    common: Mutex<Vec<Stream>>,
    /// How often each of the others did what it is for.
    did: [AtomicU64; 8],
    seed: u64,
    /// The device refuses calls now and then.
    moody: bool,
}

const SLEPT: usize = 0;
const WOKE: usize = 1;
const CAPTURED: usize = 2;
const RESTORED: usize = 3;
const SET: usize = 4;
const TRIMMED: usize = 5;
const LATE_ENDS: usize = 6;
const TAGGED: usize = 7;

/// Where one thread finds something wrong, the others stop.
struct Alarm<'a>(&'a AtomicBool);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(std::thread::panicking(), SeqCst);
    }
}

/// The places that are filled and looked at: (address, bytes).
fn places(at: usize, bytes: usize) -> [(usize, usize); 3] {
    let some = bytes.min(48);
    [(at, some), (at + bytes / 2 / 16 * 16, some.min(bytes - bytes / 2 / 16 * 16)), (at + bytes - some, some)]
}

impl Shared {
    fn size(r: &mut Random) -> usize {
        match r.below(10) {
            0..5 => 1 + r.below(6000),
            5..8 => 1 + r.below(300 * KIB),
            8 => 1 + r.below(3 * MIB),
            _ => MIB + r.below(9 * MIB),
        }
    }

    /// What may go wrong where memory is scarce, or something is captured.
    #[track_caller]
    fn may(&self, done: Outcome<()>, codes: &[u32]) -> bool {
        if let Err(e) = &done {
            assert!(codes.contains(&e.code) || self.is_refusal(e), "seed {}: {e:?}", self.seed);
        }
        done.is_ok()
    }

    /// Whether it may be that the device has refused a call.
    fn is_refusal(&self, e: &Failed) -> bool {
        self.moody && [MILLPOND_E_DEVICE, MILLPOND_E_OUT_OF_MEMORY].contains(&e.code)
    }

    /// What cannot fail but for a device that refuses, and then has changed nothing.
    #[track_caller]
    fn sure<T>(&self, call: impl Fn() -> Outcome<T>) -> T {
        loop {
            match call() {
                Ok(done) => return done,
                Err(e) => assert!(self.is_refusal(&e), "seed {}: {e:?}", self.seed),
            }
        }
    }

    fn alloc(&self, pool: Pool, stream: Stream, bytes: usize, stamp: u8) -> Option<Block> {
        match pool.alloc(bytes, stream) {
            Ok(at) => {
                places(at, bytes).iter().for_each(|&(at, n)| self.d.fill(stream, at, stamp, n));
                Some(Block { at, bytes, stamp, stream, pool })
            }
            Err(e) => {
                self.may(Err(e), &[MILLPOND_E_OUT_OF_MEMORY]);
                None
            }
        }
    }

    #[track_caller]
    fn look(&self, b: &Block) {
        for (at, n) in places(b.at, b.bytes) {
            let is = filled(at, n);
            assert_eq!(is, Some(b.stamp), "seed {}: {b:x?} at {:#x}", self.seed, at - b.at);
        }
    }

    /// The owner of a block frees it, in one of several ways; its stream is idle for this block or still has its fill queued.
    fn free(&self, r: &mut Random, b: Block, mine: bool) {
        let d = self.d;
        if mine {
            self.sure(|| d.stream_synchronize(b.stream));
        }
        self.look(&b);
        match r.below(5) {
            // Work on a stream of its own is late, and the stream ends before it.
            0 if mine => {
                let other = d.stream();
                self.sure(|| record_stream(b.at, other));
                let micros = r.below(1500) as u64;
                d.call(other, move || std::thread::sleep(Duration::from_micros(micros)));
                places(b.at, b.bytes).iter().for_each(|&(at, n)| d.fill(other, at, b.stamp, n));
                if r.below(3) == 0 {
                    self.sure(|| record_end(b.at, other));
                }
                match r.below(2) {
                    0 => {
                        self.sure(|| free(b.at));
                        self.sure(|| d.end_stream(other));
                    }
                    _ => {
                        self.sure(|| d.end_stream(other));
                        self.sure(|| b.pool.free(b.at, b.stream));
                    }
                }
                self.did[LATE_ENDS].fetch_add(1, SeqCst);
            }
            // So is work on a stream that another thread may end at any moment.
            1 if mine => {
                let common = {
                    let all = self.common.lock().unwrap();
                    r.of(&all)
                };
                if self.may(record_stream(b.at, common), &[MILLPOND_E_UNKNOWN_STREAM]) {
                    for (at, n) in places(b.at, b.bytes) {
                        let (device, on) = (ptr(d.0), ptr(common.0));
                        let filled = unsafe { millpond_memset_async(device, on, ptr(at), b.stamp, n) };
                        self.may(outcome(filled), &[MILLPOND_E_UNKNOWN_STREAM]);
                    }
                    match r.below(3) {
                        0 => _ = self.may(record_end(b.at, common), &[MILLPOND_E_UNKNOWN_STREAM]),
                        1 => {
                            let (mut e, unknown) = (null_mut(), [MILLPOND_E_UNKNOWN_STREAM]);
                            if !self.may(outcome(unsafe { millpond_event_create(ptr(d.0), &mut e) }), &[]) {
                                return self.sure(|| free(b.at));
                            }
                            let e = Event(e.expose_provenance());
                            if self.may(d.event_record(common, e), &unknown) {
                                self.may(record_end_at(b.at, common, e), &unknown);
                            }
                            self.sure(|| d.end_event(e));
                        }
                        _ => {}
                    }
                }
                let plain = r.below(2) == 0;
                self.sure(|| if plain { free(b.at) } else { b.pool.free(b.at, b.stream) });
                self.did[LATE_ENDS].fetch_add(1, SeqCst);
            }
            // Work on the own stream is late.
            2 if mine => {
                let micros = r.below(300) as u64;
                d.call(b.stream, move || std::thread::sleep(Duration::from_micros(micros)));
                places(b.at, b.bytes).iter().for_each(|&(at, n)| d.fill(b.stream, at, b.stamp, n));
                self.sure(|| b.pool.free(b.at, b.stream));
            }
            3 => self.sure(|| free_sized(b.at, b.bytes)),
            _ => self.sure(|| free(b.at)),
        }
    }

    /// The block becomes larger or smaller where it is, or stays.
    fn resize(&self, r: &mut Random, b: &mut Block) {
        let bytes = [1 + r.below(b.bytes), b.bytes + r.below(MIB)][r.below(2)];
        self.sure(|| self.d.stream_synchronize(b.stream));
        self.look(b);
        if self.may(outcome(unsafe { millpond_try_expand(ptr(b.at), bytes) }), &[MILLPOND_E_OUT_OF_MEMORY]) {
            b.bytes = bytes;
        }
        places(b.at, b.bytes).iter().for_each(|&(at, n)| self.d.fill(b.stream, at, b.stamp, n));
    }

    /// Several blocks at once, or one at a multiple.
    fn batch(&self, r: &mut Random, pool: Pool, stream: Stream, stamp: u8) -> Vec<Block> {
        let (mut all, on) = ([null_mut(); 3], ptr(stream.0));
        let sizes: [usize; 3] = std::array::from_fn(|_| Self::size(r).min(MIB));
        let (count, done) = match r.below(2) {
            0 => (3, unsafe {
                millpond_pool_alloc_batch(ptr(pool.0), sizes.as_ptr(), 3, on, all.as_mut_ptr())
            }),
            _ => (1, unsafe { millpond_pool_alloc_aligned(ptr(pool.0), sizes[0], 1 << 17, on, &mut all[0]) }),
        };
        if !self.may(outcome(done), &[MILLPOND_E_OUT_OF_MEMORY]) {
            return Vec::new();
        }
        let made = all.into_iter().zip(sizes).take(count);
        let made = made.map(|(p, bytes)| Block { at: p.expose_provenance(), bytes, stamp, stream, pool });
        made.inspect(|b| places(b.at, b.bytes).iter().for_each(|&(at, n)| self.d.fill(stream, at, stamp, n)))
            .collect()
    }

    fn release(&self, pool: Pool) {
        self.sure(|| pool.release());
    }

    /// One life of a worker: a thread with streams and a pool of its own.
    fn work(&self, seed: u64) {
        let (d, mut r) = (self.d, Random(seed | 1));
        let streams = [d.stream(), d.stream()];
        let own = d.pool(if r.below(3) == 0 { 12 * MIB } else { 0 });
        let mut mine: Vec<Block> = Vec::new();
        let tag = CString::new(format!("tag {}", r.below(5))).unwrap();
        for _ in 0..150 + r.below(250) {
            if self.stop.load(SeqCst) {
                break;
            }
            let (stream, stamp) = (r.of(&streams), 1 + r.below(250) as u8);
            match r.below(26) {
                0..8 if mine.len() < 24 => {
                    let pool = if r.below(3) == 0 { own } else { d.default_pool() };
                    mine.extend(self.alloc(pool, stream, Self::size(&mut r), stamp));
                }
                8..15 if !mine.is_empty() => {
                    let b = mine.swap_remove(r.below(mine.len()));
                    self.free(&mut r, b, true);
                }
                15 if !mine.is_empty() => {
                    let b = mine.swap_remove(r.below(mine.len()));
                    self.sure(|| d.stream_synchronize(b.stream));
                    self.look(&b);
                    self.post.lock().unwrap().push(b);
                }
                16 | 17 => {
                    let b = self.post.lock().unwrap().pop();
                    b.into_iter().for_each(|b| self.free(&mut r, b, false));
                }
                // A pair again and again, as by the fast path.
                18 | 19 => {
                    let bytes = Self::size(&mut r);
                    for _ in 0..r.below(40) {
                        let Some(b) = self.alloc(d.default_pool(), stream, bytes, stamp) else { break };
                        self.sure(|| b.pool.free(b.at, stream));
                    }
                }
                20 if self.seed.is_multiple_of(3) => {
                    self.sure(|| outcome(unsafe { millpond_scope_begin(ptr(own.0)) }));
                    let b = self.alloc(d.default_pool(), stream, Self::size(&mut r), stamp);
                    self.sure(|| outcome(unsafe { millpond_scope_end(ptr(own.0)) }));
                    mine.extend(b.map(|b| Block { pool: own, ..b }));
                }
                21 if self.seed % 4 == 1 => {
                    self.sure(|| outcome(unsafe { millpond_tag_push(tag.as_ptr()) }));
                    let b = self.alloc(d.default_pool(), stream, Self::size(&mut r), stamp);
                    self.sure(|| outcome(millpond_tag_pop()));
                    mine.extend(b);
                    self.did[TAGGED].fetch_add(1, SeqCst);
                }
                22 => {
                    if let Some(b) = mine.first_mut() {
                        let at = b.at + r.below(b.bytes);
                        assert_eq!(block(at).unwrap(), (b.at, b.bytes), "seed {}", self.seed);
                        self.resize(&mut r, b);
                    }
                }
                23 if mine.len() < 24 => mine.extend(self.batch(&mut r, own, stream, stamp)),
                _ => self.others(&mut r, own),
            }
        }
        // What is left is for others, or goes at once.
        let keeps = r.below(2) == 0;
        for b in mine {
            if keeps {
                self.sure(|| d.stream_synchronize(b.stream));
                self.post.lock().unwrap().push(b);
            } else {
                self.free(&mut r, b, true);
            }
        }
        self.release(own);
        streams.iter().for_each(|&s| self.sure(|| d.end_stream(s)));
    }

    fn others(&self, r: &mut Random, own: Pool) {
        let busy = [MILLPOND_E_BUSY];
        let done = match r.below(5) {
            0 => self.d.empty_cache(),
            1 => self.d.trim_to(r.below(64) * MIB),
            2 => own.empty_cache(),
            3 => self.d.set_budget(r.below(96) * MIB).map(drop),
            _ => own.trim_to(MIB),
        };
        if self.may(done, &busy) {
            self.did[TRIMMED].fetch_add(1, SeqCst);
        }
    }
}

fn hunt(seed: u64, lasts: Duration) -> [u64; 8] {
    let _ = runtime::finalize();
    let mapping = seed.is_multiple_of(2);
    let segment = [2, 4, 8][seed as usize % 3] * MIB as u64;
    let book = match mapping {
        true => Arc::new(Book::default()),
        false => Arc::new(Book { segment, max_chunk: segment / 2, ..Book::default() }),
    };
    let moody = seed % 5 == 3 || std::env::var_os("ALL_MOODY").is_some();
    let options = HostOptions { device_count: 2, capacity: 80 * MIB as u64, mapping };
    let inner = Arc::new(HostType::new("behind", options));
    runtime::register_type(Arc::new(SeamType { name: "booked", inner, hook: book.clone() })).unwrap();
    let (d, other) = (Device::get("booked", 0).unwrap(), Device::get("booked", 1).unwrap());
    let s = &Shared {
        d,
        stop: AtomicBool::new(false),
        post: Mutex::default(),
        common: Mutex::new((0..3).map(|_| d.stream()).collect()),
        did: Default::default(),
        seed,
        moody,
    };
    book.refuses.store(moody, SeqCst);
    let until = Instant::now() + lasts;
    std::thread::scope(|scope| {
        for n in 0..3 {
            scope.spawn(move || {
                let _alarm = Alarm(&s.stop);
                for life in 0.. {
                    if s.stop.load(SeqCst) {
                        break;
                    }
                    // Each life is a thread of its own.
                    std::thread::scope(|t| _ = t.spawn(move || s.work(seed * 7919 + n * 1009 + life * 31)));
                }
            });
        }
        let mut others: Vec<Box<dyn FnOnce() + Send>> = vec![
            Box::new(move || s.capturer(seed * 17 + 3)),
            Box::new(move || s.keeper(seed * 19 + 5)),
            Box::new(move || s.setter(seed * 23 + 7, other)),
        ];
        if mapping {
            others.push(Box::new(move || s.sleeper(seed * 29 + 9)));
        }
        for body in others {
            scope.spawn(move || {
                let _alarm = Alarm(&s.stop);
                body();
            });
        }
        while Instant::now() < until && !s.stop.load(SeqCst) {
            let stats = d.stats();
            let all = [stats.requested_bytes, stats.allocated_bytes, stats.active_bytes, stats.blocks];
            assert!(all.iter().all(|c| c.peak >= c.current), "seed {seed}: {stats:?}");
            std::thread::sleep(Duration::from_micros(900));
        }
        s.stop.store(true, SeqCst);
    });
    book.refuses.store(false, SeqCst);
    let mut r = Random(seed);
    let rest = std::mem::take(&mut *s.post.lock().unwrap());
    rest.into_iter().for_each(|b| s.free(&mut r, b, false));
    for device in [d, other] {
        device.synchronize().unwrap();
        device.empty_cache().unwrap();
        let x = device.stats();
        let left = [
            x.requested_bytes,
            x.allocated_bytes,
            x.active_bytes,
            x.blocks,
            x.reserved_bytes,
            x.sleeping_bytes,
        ]
        .map(|c| c.current);
        assert_eq!(left, [0; 6], "seed {seed}");
    }
    assert_eq!(book.bytes.load(SeqCst), 0, "seed {seed}: what the library has of the devices");
    let mut count = 0;
    let mut all: [millpond_tag_stats; 8] = unsafe { std::mem::zeroed() };
    let size = size_of::<millpond_tag_stats>();
    outcome(unsafe { millpond_device_list_tags(ptr(d.0), all.as_mut_ptr(), size, 8, &mut count) }).unwrap();
    for t in &all[..count] {
        let left = [t.requested_bytes, t.allocated_bytes, t.blocks, t.active_bytes, t.active_blocks];
        assert_eq!((left.map(|c| c.current), t.waiting_bytes), ([0; 5], 0), "seed {seed}: tag {}", t.tag);
    }
    s.did.each_ref().map(|n| n.load(SeqCst))
}

#[test]
fn all_that_pools_can_do_at_once() {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let (seconds, first) = (number("ALL_SECONDS").unwrap_or(4), number("ALL_SEED").unwrap_or(1));
    apart_for(60 + 2 * seconds, || {
        let until = Instant::now() + lasting(Duration::from_secs(seconds));
        let mut did = [0; 8];
        for seed in first.. {
            let more = hunt(seed, Duration::from_millis(400));
            did = std::array::from_fn(|n| did[n] + more[n]);
            if Instant::now() > until && did.iter().all(|&n| n > 0) {
                break;
            }
        }
    });
}
