//! Histograms of durations from 1 ns to half an hour. A bucket is at most a quarter longer than its shortest duration.
//!
//! The buckets are those of a floating-point number with two bits after the first one: each power of two has four, of the
//! same width. Any thread adds at any time with a few relaxed atomic operations; threads are spread over several copies,
//! so that they seldom meet. A reading adds the copies up; it may contain a part of what is being added meanwhile.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The number of buckets.
pub const BUCKETS: usize = 160;
/// log2 of the copies of each histogram.
const STRIPE_BITS: u32 = 3;
const STRIPES: usize = 1 << STRIPE_BITS;
/// log2 of the buckets of a power of two.
const SUB_BITS: u32 = 2;
const SUBS: u64 = 1 << SUB_BITS;

/// The bucket of a duration. The last one also takes everything longer.
#[inline]
pub(crate) fn bucket_of(ns: u64) -> usize {
    if ns < SUBS {
        return ns as usize;
    }
    let power = ns.ilog2();
    let sub = ns >> (power - SUB_BITS) & (SUBS - 1);
    let index = u64::from(power - SUB_BITS + 1) * SUBS + sub;
    (index as usize).min(BUCKETS - 1)
}

/// [ns] The shortest duration in a bucket; the highest number for the bucket after the last.
pub(crate) fn start_of(bucket: usize) -> u64 {
    let (power, sub) = (bucket as u64 / SUBS, bucket as u64 % SUBS);
    match power {
        _ if bucket >= BUCKETS => u64::MAX,
        0 => sub,
        p => (SUBS + sub) << (p - 1),
    }
}

/// The contents of a histogram at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Durations {
    /// The number of durations.
    pub count: u64,
    /// \[ns\] their sum.
    pub total_ns: u64,
    /// \[ns\] the shortest; 0 if there was none.
    pub min_ns: u64,
    /// \[ns\] the longest.
    pub max_ns: u64,
    /// The number of durations in each bucket; their sum is `count`.
    pub buckets: [u64; BUCKETS],
}

impl Default for Durations {
    fn default() -> Self {
        Durations { count: 0, total_ns: 0, min_ns: 0, max_ns: 0, buckets: [0; BUCKETS] }
    }
}

impl Durations {
    /// \[ns\] The shortest duration in a bucket; the highest number for the bucket after the last.
    pub fn start_of(bucket: usize) -> u64 {
        start_of(bucket)
    }

    /// \[ns\] a duration that this part of them (0 to 1) does not exceed: the end of the bucket in which it is reached, at
    /// most the longest. 0 if there was none.
    pub fn quantile(&self, part: f64) -> u64 {
        let wanted = ((self.count as f64 * part.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut seen = 0u64;
        for (i, &n) in self.buckets.iter().enumerate() {
            seen = seen.saturating_add(n); // a caller may have filled the buckets
            if seen >= wanted {
                return (start_of(i + 1) - 1).min(self.max_ns);
            }
        }
        self.max_ns
    }
}

#[repr(align(128))]
struct Stripe {
    buckets: [AtomicU64; BUCKETS],
    total: AtomicU64,
    min: AtomicU64,
    max: AtomicU64,
}

/// See the head of this file.
pub(crate) struct Histogram([Stripe; STRIPES]);

impl Histogram {
    pub(crate) fn new() -> Histogram {
        Histogram(std::array::from_fn(|_| Stripe {
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            total: AtomicU64::new(0),
            min: AtomicU64::new(u64::MAX),
            max: AtomicU64::new(0),
        }))
    }

    /// Adds a duration. `thread` is a number that no other thread has.
    #[inline]
    pub(crate) fn add(&self, thread: u64, ns: u64) {
        let stripe = thread.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - STRIPE_BITS);
        let s = &self.0[stripe as usize % STRIPES];
        s.buckets[bucket_of(ns)].fetch_add(1, Relaxed);
        s.total.fetch_add(ns, Relaxed);
        // Seldom true.
        if ns < s.min.load(Relaxed) {
            s.min.fetch_min(ns, Relaxed);
        }
        if ns > s.max.load(Relaxed) {
            s.max.fetch_max(ns, Relaxed);
        }
    }

    /// The contents so far.
    pub(crate) fn read(&self) -> Durations {
        let mut d = Durations { min_ns: u64::MAX, ..Durations::default() };
        for s in &self.0 {
            for (sum, n) in d.buckets.iter_mut().zip(&s.buckets) {
                *sum += n.load(Relaxed);
            }
            d.total_ns = d.total_ns.saturating_add(s.total.load(Relaxed));
            d.min_ns = d.min_ns.min(s.min.load(Relaxed));
            d.max_ns = d.max_ns.max(s.max.load(Relaxed));
        }
        d.count = d.buckets.iter().sum();
        if d.count == 0 {
            return Durations::default();
        }
        // A duration that is being added may be in the buckets and not yet in the other numbers.
        d.min_ns = d.min_ns.min(d.max_ns);
        d
    }

    /// Empties it. What other threads add meanwhile may be lost, or stay in part.
    pub(crate) fn clear(&self) {
        for s in &self.0 {
            s.buckets.iter().chain([&s.total, &s.max]).for_each(|n| n.store(0, Relaxed));
            s.min.store(u64::MAX, Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_has_what_lies_between_its_start_and_the_next(ns in any::<u64>(), shift in 0u32..64) {
            let ns = ns >> shift;
            let b = bucket_of(ns);
            prop_assert!(start_of(b) <= ns && (ns < start_of(b + 1) || b == BUCKETS - 1), "{ns}: {b}");
        }
    }

    #[test]
    fn buckets_follow_each_other_and_are_a_quarter_wide_at_most() {
        for b in 0..BUCKETS - 1 {
            let (from, to) = (start_of(b), start_of(b + 1));
            assert!(from < to && to - from <= (from / 4).max(1), "{b}: {from} to {to}");
            assert_eq!((bucket_of(from), bucket_of(to - 1)), (b, b));
        }
        assert!((30 * 60..40 * 60).contains(&(start_of(BUCKETS - 1) / 1_000_000_000)));
        assert_eq!((start_of(BUCKETS), bucket_of(u64::MAX)), (u64::MAX, BUCKETS - 1));
    }

    #[test]
    fn threads_add_without_losing_any() {
        let h = Histogram::new();
        std::thread::scope(|s| {
            for t in 0..12 {
                let h = &h;
                s.spawn(move || (1..=10_000).for_each(|ns| h.add(t, ns)));
            }
        });
        let d = h.read();
        assert_eq!((d.count, d.total_ns, d.min_ns, d.max_ns), (120_000, 12 * 50_005_000, 1, 10_000));
        assert_eq!(d.buckets.iter().sum::<u64>(), d.count);
        // 5000 is in the bucket from 4096 to 5119.
        assert_eq!((d.quantile(0.5), d.quantile(1.0), d.quantile(0.0)), (5119, 10_000, 1));
        h.clear();
        assert_eq!(h.read(), Durations::default());
        assert_eq!(h.read().quantile(0.5), 0);
    }
}
