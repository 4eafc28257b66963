//! Clocks, random numbers and order statistics.

use std::time::Instant;

/// [ns] the CPU time of the calling thread: another program's time slices do not count.
pub(crate) fn cpu_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec that lives for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// A short-time clock for single calls.
pub(crate) struct Ticks {
    start: Instant,
    per_ns: f64,
}

impl Ticks {
    /// Learns how fast the clock ticks.
    pub(crate) fn new() -> Ticks {
        let mut ticks = Ticks { start: Instant::now(), per_ns: 1.0 };
        let mut best = 0f64;
        for _ in 0..3 {
            let (w, t) = (Instant::now(), ticks.now());
            while w.elapsed().as_micros() < 5000 {}
            best = (ticks.now() - t) as f64 / w.elapsed().as_nanos() as f64;
        }
        ticks.per_ns = best;
        ticks
    }

    /// Ticks so far; work before is done, work after has not begun.
    #[inline(always)]
    pub(crate) fn now(&self) -> u64 {
        #[cfg(target_arch = "x86_64")]
        {
            let mut aux = 0u32;
            // SAFETY: `aux` lives for the call, and every x86-64 processor of the last 15 years has both instructions.
            unsafe {
                let t = std::arch::x86_64::__rdtscp(&mut aux);
                std::arch::x86_64::_mm_lfence();
                t
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self.start.elapsed().as_nanos() as u64
        }
    }

    /// [ns] of a difference of ticks.
    pub(crate) fn ns(&self, ticks: u64) -> f64 {
        let _ = self.start;
        ticks as f64 / self.per_ns
    }
}

/// splitmix64: the same sequences on every machine.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x0123_4567))
    }
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// 0 .. n
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
    /// Between `low` and `high`, each power of two as often as the next.
    pub(crate) fn log_uniform(&mut self, low: f64, high: f64) -> u64 {
        let unit = (self.next() >> 11) as f64 * (-53f64).exp2();
        (low.ln() + unit * (high.ln() - low.ln())).exp() as u64
    }
}

/// The value below which the fraction `q` of `v` lies; 0 of nothing.
pub(crate) fn quantile(v: &mut [f64], q: f64) -> f64 {
    if v.is_empty() {
        return 0.0;
    }
    v.sort_by(f64::total_cmp);
    v[((q * v.len() as f64) as usize).min(v.len() - 1)]
}

/// The median, of an even number the mean of the two in the middle; 0 of nothing.
pub(crate) fn median(v: &[f64]) -> f64 {
    let mut v = v.to_vec();
    v.sort_by(f64::total_cmp);
    match (v.len(), v.len() / 2) {
        (0, _) => 0.0,
        (n, half) if n % 2 == 0 => (v[half - 1] + v[half]) / 2.0,
        (_, half) => v[half],
    }
}

/// Runs `body(k)`, k operations, in batches of about 200 us of CPU time for `seconds`, and returns the median of
/// the batches' [ns] per operation. Short batches, so that what else runs on the machine disturbs few.
pub(crate) fn batches(seconds: f64, mut body: impl FnMut(u64)) -> f64 {
    let mut k = 1u64;
    // Twice: the first operations of a fresh allocator are slow and say nothing about how many make a batch.
    for _ in 0..2 {
        k = 1;
        loop {
            let t = cpu_ns();
            body(k); // calibrates, and warms up
            let took = cpu_ns() - t;
            if took > 100_000 || k > 1 << 24 {
                k = ((k as f64 * 200_000.0 / took.max(1) as f64) as u64).max(1);
                break;
            }
            k *= 2;
        }
    }
    let mut all = Vec::with_capacity(20_000);
    let start = Instant::now();
    while all.is_empty() || (start.elapsed().as_secs_f64() < seconds && all.len() < 20_000) {
        let t = cpu_ns();
        body(k);
        all.push((cpu_ns() - t) as f64 / k as f64);
    }
    median(&all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_start_does_not_make_small_batches() {
        let (mut first, mut longest) = (true, 0);
        batches(0.001, |k| {
            let from = cpu_ns();
            while first && cpu_ns() - from < 2_000_000 {}
            first = false;
            (0..k).for_each(|i| _ = std::hint::black_box(i));
            longest = longest.max(k);
        });
        assert!(longest > 1000, "{longest}");
    }

    #[test]
    fn quantiles_of_a_hundred() {
        let mut v: Vec<f64> = (0..100).rev().map(f64::from).collect();
        assert_eq!(quantile(&mut v, 0.5), 50.0);
        assert_eq!(quantile(&mut v, 0.99), 99.0);
        assert_eq!(quantile(&mut [], 0.5), 0.0);
        assert_eq!((median(&v), median(&v[..99]), median(&[])), (49.5, 49.0, 0.0));
    }

    #[test]
    fn random_sizes_stay_in_their_range() {
        let mut r = Rng::new(1);
        let v: Vec<u64> = (0..10_000).map(|_| r.log_uniform(512.0, 65536.0)).collect();
        assert!(v.iter().all(|&x| (512..=65536).contains(&x)));
        let below = v.iter().filter(|&&x| x < 5793).count(); // the geometric middle
        assert!((4500..5500).contains(&below), "{below}");
    }
}
