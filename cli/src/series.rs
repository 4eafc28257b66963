//! The curves of the picture: at most a few thousand buckets of operations, each with the lowest
//! and the highest value that it saw, so that no spike is lost however long the program is.

/// Lowest, highest and last value within one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) min: u64,
    pub(crate) max: u64,
    pub(crate) last: u64,
}

impl Span {
    fn one(value: u64) -> Span {
        Span { min: value, max: value, last: value }
    }

    fn add(&mut self, value: u64) {
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.last = value;
    }
}

/// `CURVES` values over `operations` operations, kept in at most `buckets` buckets.
#[derive(Clone, Debug)]
pub(crate) struct Series<const CURVES: usize> {
    operations: u64,             // how many will come
    buckets: u64,                // how many buckets they share
    seen: u64,                   // how many came
    spans: Vec<[Span; CURVES]>,  // bucket by bucket
    peaks: [(u64, u64); CURVES], // highest value of each curve, and the operation that reached it first
}

impl<const CURVES: usize> Series<CURVES> {
    /// For `operations` operations to come, in at most `buckets` buckets.
    pub(crate) fn new(operations: u64, buckets: u64) -> Self {
        let buckets = buckets.min(operations).max(1);
        Series {
            operations: operations.max(1),
            buckets,
            seen: 0,
            spans: Vec::with_capacity(buckets as usize),
            peaks: [(0, 0); CURVES],
        }
    }

    /// The values after the next operation.
    pub(crate) fn push(&mut self, values: [u64; CURVES]) {
        let bucket =
            (u128::from(self.seen) * u128::from(self.buckets) / u128::from(self.operations)) as usize;
        if bucket < self.spans.len() {
            for (span, value) in self.spans[bucket].iter_mut().zip(values) {
                span.add(value);
            }
        } else if self.spans.len() < self.buckets as usize {
            self.spans.push(values.map(Span::one));
        } else if let Some(last) = self.spans.last_mut() {
            // More operations than announced: the last bucket takes them.
            for (span, value) in last.iter_mut().zip(values) {
                span.add(value);
            }
        }
        for (peak, value) in self.peaks.iter_mut().zip(values) {
            if value > peak.0 {
                *peak = (value, self.seen);
            }
        }
        self.seen += 1;
    }

    /// The buckets in order; fewer than asked for when the replay ended early.
    pub(crate) fn spans(&self) -> &[[Span; CURVES]] {
        &self.spans
    }

    /// The highest value of a curve, and the operation that reached it first.
    pub(crate) fn peak(&self, curve: usize) -> (u64, u64) {
        self.peaks[curve]
    }

    /// How many operations were announced: the width of the picture.
    pub(crate) fn operations(&self) -> u64 {
        self.operations
    }

    /// The first operation of a bucket.
    pub(crate) fn start(&self, bucket: usize) -> u64 {
        // The smallest `seen` with seen * buckets / operations >= bucket.
        (bucket as u128 * u128::from(self.operations)).div_ceil(u128::from(self.buckets)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_operations_are_kept_one_by_one() {
        let mut s = Series::<1>::new(3, 2000);
        for v in [5, 9, 1] {
            s.push([v]);
        }
        let kept: Vec<u64> = s.spans().iter().map(|[a]| a.max).collect();
        assert_eq!(kept, [5, 9, 1]);
        assert!(s.spans().iter().all(|[a]| a.min == a.max && a.last == a.max));
        assert_eq!(s.peak(0), (9, 1));
    }

    #[test]
    fn no_spike_is_lost() {
        for (n, buckets) in [(10_007u64, 100u64), (100, 100), (101, 100), (199, 100), (1, 7), (65_536, 2000)]
        {
            for spike in [0, n / 3, n - 1] {
                let mut s = Series::<2>::new(n, buckets);
                for i in 0..n {
                    s.push([if i == spike { 1000 } else { 10 }, if i == spike { 1 } else { 10 }]);
                }
                assert!(s.spans().len() as u64 <= buckets);
                assert_eq!(s.peak(0), (1000, spike));
                let highest = s.spans().iter().map(|[a, _]| a.max).max();
                let lowest = s.spans().iter().map(|[_, b]| b.min).min();
                assert_eq!((highest, lowest), (Some(1000), Some(1)), "{n} {buckets} {spike}");
                let at = s.spans().iter().position(|[a, _]| a.max == 1000).unwrap();
                assert!(
                    s.start(at) <= spike && spike < s.start(at + 1).max(spike + 1),
                    "{n} {buckets} {spike}"
                );
                if at + 1 < s.spans().len() {
                    assert!(spike < s.start(at + 1));
                }
            }
        }
    }

    #[test]
    fn every_bucket_starts_where_it_says() {
        let (n, buckets) = (1003u64, 64u64);
        let mut s = Series::<1>::new(n, buckets);
        for i in 0..n {
            s.push([i]);
        }
        for (b, [span]) in s.spans().iter().enumerate() {
            assert_eq!(span.min, s.start(b));
            assert_eq!(span.last, s.start(b + 1).min(n) - 1);
        }
    }

    #[test]
    fn more_operations_than_announced_do_no_harm() {
        let mut s = Series::<1>::new(4, 2);
        for i in 0..9 {
            s.push([i]);
        }
        assert_eq!(s.spans().len(), 2);
        assert_eq!(s.spans()[1][0].max, 8);
        let empty = Series::<1>::new(0, 2000);
        assert_eq!((empty.spans().len(), empty.peak(0)), (0, (0, 0)));
    }
}
