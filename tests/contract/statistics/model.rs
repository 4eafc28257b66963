//! Random programs, and every statistic that heaps count computed by brute force beside them: all of them are the same.

use super::*;
use crate::random::Random;

/// What the model counts: blocks, active blocks, their bytes, and requested bytes.
const QUANTITIES: usize = 5;
/// All, the large class, the small class.
const CLASSES: usize = 3;

/// The account of the device or of a pool.
#[derive(Clone, Default)]
struct Book([[millpond_flow; CLASSES]; QUANTITIES]);

impl Book {
    fn change(&mut self, quantity: usize, small: bool, by: i64) {
        for class in [0, 1 + usize::from(small)] {
            let f = &mut self.0[quantity][class];
            f.current = f.current.checked_add_signed(by).unwrap();
            f.peak = f.peak.max(f.current);
            *if by > 0 { &mut f.allocated } else { &mut f.freed } += by.unsigned_abs();
        }
    }

    fn reset_peaks(&mut self) {
        self.0.iter_mut().flatten().for_each(|f| f.peak = f.current);
    }

    fn reset_accumulated(&mut self) {
        self.0.iter_mut().flatten().for_each(|f| (f.allocated, f.freed) = (0, 0));
    }

    #[track_caller]
    fn check(&self, s: &millpond_memory_stats, what: &str) {
        let told = [&s.allocation, &s.active, &s.allocated_bytes, &s.active_bytes, &s.requested_bytes];
        for (n, (told, want)) in told.into_iter().zip(&self.0).enumerate() {
            assert_eq!([told.all, told.large_pool, told.small_pool], *want, "{what}: quantity {n}");
        }
    }
}

/// What a stream has of a pool: live blocks, requested bytes and charged bytes, and their peaks.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
struct OfStream {
    now: [i64; 3],
    peak: [i64; 3],
}

struct Live {
    at: usize,
    charged: i64,
    requested: i64,
    small: bool,
    pool: usize,
    stream: Stream,
    used_elsewhere: bool,
}

struct Model {
    d: Device,
    pools: Vec<Pool>,
    /// Of the device, and of each pool.
    books: Vec<Book>,
    /// Of each pool, by stream.
    streams: Vec<BTreeMap<usize, OfStream>>,
    waiting: Vec<Live>,
}

impl Model {
    fn change(&mut self, b: &Live, quantity: usize, by: i64) {
        self.books[0].change(quantity, b.small, by);
        self.books[1 + b.pool].change(quantity, b.small, by);
    }

    fn begins(&mut self, b: &Live) {
        for (quantity, by) in [1, 1, b.charged, b.charged, b.requested].into_iter().enumerate() {
            self.change(b, quantity, by);
        }
        self.change_stream(b, 1);
    }

    fn change_stream(&mut self, b: &Live, by: i64) {
        let s = self.streams[b.pool].entry(b.stream.0).or_default();
        for (n, size) in [1, b.requested, b.charged].into_iter().enumerate() {
            s.now[n] += by * size;
            s.peak[n] = s.peak[n].max(s.now[n]);
        }
    }

    fn ends(&mut self, b: Live) {
        self.change_stream(&b, -1);
        self.change(&b, 0, -1);
        self.change(&b, 2, -b.charged);
        if b.used_elsewhere {
            self.waiting.push(b);
        } else {
            self.is_over(&b);
        }
    }

    fn is_over(&mut self, b: &Live) {
        self.change(b, 1, -1);
        self.change(b, 3, -b.charged);
        self.change(b, 4, -b.requested);
    }

    fn reset_peaks(&mut self, pool: Option<usize>) {
        reset_peaks(self.d, pool.map(|n| self.pools[n]));
        self.books[pool.map_or(0, |n| 1 + n)].reset_peaks();
        let of = pool.map_or(0..self.pools.len(), |n| n..n + 1);
        self.streams[of].iter_mut().flat_map(BTreeMap::values_mut).for_each(|s| s.peak = s.now);
    }

    /// In the list of a pool each stream's peaks are exact, in that of the device they are the sums.
    fn check_streams(&self, what: &str) {
        let mut sums: BTreeMap<usize, OfStream> = BTreeMap::new();
        for (n, (&pool, of_pool)) in self.pools.iter().zip(&self.streams).enumerate() {
            let told = streams_of(self.d, Some(pool));
            assert_eq!(told, *of_pool, "{what}, pool {n}");
            for (&stream, s) in of_pool {
                let sum = sums.entry(stream).or_default();
                for (sum, s) in sum.now.iter_mut().chain(&mut sum.peak).zip(s.now.iter().chain(&s.peak)) {
                    *sum += s;
                }
            }
        }
        assert_eq!(streams_of(self.d, None), sums, "{what}, all pools");
    }

    fn check(&self, what: &str) {
        self.check_streams(what);
        self.books[0].check(&read(self.d, None), what);
        for (n, &pool) in self.pools.iter().enumerate() {
            self.books[1 + n].check(&read(self.d, Some(pool)), &format!("{what}, pool {n}"));
        }
    }
}

/// What the list of a pool, or of the device, has of each stream.
fn streams_of(d: Device, pool: Option<Pool>) -> BTreeMap<usize, OfStream> {
    let of = |r: &millpond_stream_stats| OfStream {
        now: [r.block_count, r.requested_bytes, r.allocated_bytes].map(|n| n as i64),
        peak: [r.peak_count, r.peak_requested_bytes, r.peak_allocated_bytes].map(|n| n as i64),
    };
    list_streams(d, pool, 10).0.iter().map(|r| (r.stream.addr(), of(r))).collect()
}

/// What a live block is charged.
fn charge(at: usize) -> usize {
    let mut i: millpond_block_info = unsafe { std::mem::zeroed() };
    i.struct_size = size_of::<millpond_block_info>();
    outcome(unsafe { millpond_get_block(ptr(at), &mut i) }).unwrap();
    i.size_bytes
}

fn program(seed: u64, mapping: bool) {
    let d = host(2 * GIB, mapping);
    let mut r = Random(seed | 1);
    let pools = vec![d.default_pool(), d.pool(0), d.pool(0)];
    let streams = [d.stream(), d.stream()];
    // Work that never ends until somebody lets it: what was used there waits.
    let side = d.stream();
    let mut gate = d.gate(side);
    let books = vec![Book::default(); 1 + pools.len()];
    let mut m = Model { d, books, streams: vec![BTreeMap::new(); pools.len()], pools, waiting: Vec::new() };
    let mut live: Vec<Live> = Vec::new();
    for step in 0..1500 {
        match r.below(100) {
            // Phases: of growth, and of decline.
            n if n < if step / 150 % 2 == 0 { 55 } else { 30 } || live.is_empty() => {
                let requested = match r.below(10) {
                    0..5 => 1 + r.below(4096),
                    5..8 => 1 + r.below(60 * KIB),
                    8 => 1 + r.below(3 * MIB),
                    _ => 60 * KIB - 700 + r.below(1400),
                };
                let (pool, stream) = (r.below(3), streams[r.below(2)]);
                let at = m.pools[pool].alloc(requested, stream).unwrap();
                let size = charge(at);
                let (charged, requested) = (size as i64, requested as i64);
                let b = Live {
                    at,
                    charged,
                    requested,
                    small: size <= 60 * KIB,
                    pool,
                    stream,
                    used_elsewhere: false,
                };
                m.begins(&b);
                live.push(b);
            }
            n if n < 90 => {
                let b = live.swap_remove(r.below(live.len()));
                m.pools[b.pool].free(b.at, b.stream).unwrap();
                m.ends(b);
            }
            n if n < 94 => {
                let at = r.below(live.len());
                record_stream(live[at].at, side).unwrap();
                live[at].used_elsewhere = true;
            }
            94 => {
                gate.open();
                d.synchronize().unwrap();
                read(d, None); // which finds that nothing waits any more
                for b in std::mem::take(&mut m.waiting) {
                    m.is_over(&b);
                }
                gate = d.gate(side);
            }
            95 => {
                let which = r.below(1 + m.pools.len()).checked_sub(1);
                m.reset_peaks(which);
            }
            96 => {
                let which = r.below(1 + m.pools.len());
                reset_accumulated(d, which.checked_sub(1).map(|n| m.pools[n]));
                m.books[which].reset_accumulated();
            }
            _ => m.check(&format!("seed {seed}, step {step}")),
        }
    }
    m.check(&format!("seed {seed}, at the end"));
    gate.open();
    for b in live {
        m.pools[b.pool].free(b.at, b.stream).unwrap();
    }
    d.synchronize().unwrap();
    assert_eq!(read(d, None).active.all.current, 0);
}

#[test]
fn every_count_and_peak_is_that_of_a_model() {
    apart_for(300, || (1..25).for_each(|n| program(n * 7919, n % 2 == 0)));
}

/// A stream's peak leaves out what another thread has freed, though its heap does not know of it yet.
#[test]
fn a_peak_of_a_stream_leaves_out_what_another_thread_has_freed() {
    apart(|| {
        let d = host(256 * MIB, true);
        let (pool, s, t) = (d.pool(0), d.stream(), d.stream());
        // Small ones, whose memory no other stream takes.
        let take = |count: usize, stream| -> Vec<usize> {
            (0..count).map(|_| pool.alloc(4096, stream).unwrap()).collect()
        };
        let free = |blocks: &[usize], stream| blocks.iter().for_each(|&at| pool.free(at, stream).unwrap());
        let pairs = || (0..1000).for_each(|_| free(&take(1, s), s));
        let all = take(16, s);
        let (theirs, mine) = all.split_at(8);
        free(mine, s);
        reset_peaks(d, None);
        // Room below the peak of the device.
        free(&take(128, t), t);
        // Until this thread owns the heap, so that it allocates by the first step.
        pairs();
        std::thread::scope(|scope| _ = scope.spawn(|| free(theirs, s)));
        let next = take(8, s);
        let of_s = streams_of(d, Some(pool))[&s.0];
        let [now, peak] = [8, 9].map(|n| [n, n * 4096, n * 4096]);
        assert_eq!(of_s, OfStream { now, peak });
        free(&next, s);
    });
}

/// What was used elsewhere waits however often the statistics look, and a class whose peak lies at another time than that
/// of all together has its own.
#[test]
fn peaks_of_the_classes_lie_at_different_times() {
    apart(|| {
        let d = host(256 * MIB, true);
        let (pool, s) = (d.default_pool(), d.stream());
        let small: Vec<usize> = (0..1000).map(|_| pool.alloc(4096, s).unwrap()).collect();
        small.iter().for_each(|&at| pool.free(at, s).unwrap());
        let large: Vec<usize> = (0..10).map(|_| pool.alloc(5 * MIB, s).unwrap()).collect();
        large.iter().for_each(|&at| pool.free(at, s).unwrap());
        let told = read(d, None);
        assert_eq!(told.allocated_bytes.small_pool.peak, 1000 * 4096);
        assert_eq!(told.allocated_bytes.large_pool.peak, 50 * MIB as u64);
        assert_eq!(told.allocated_bytes.all.peak, 50 * MIB as u64);
        assert_eq!((told.allocation.all.peak, told.allocation.large_pool.peak), (1000, 10));
    });
}
