//! A quantity over time, with its peak and its total.

/// One quantity over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// Its value now.
    pub current: u64,
    /// The highest value since the start or the last reset of the peaks.
    pub peak: u64,
    /// The sum of everything ever added; never decreases, and stops at the maximum of its type.
    pub total: u64,
}

impl Counter {
    /// Adds to the current value, raising the peak with it.
    #[inline]
    pub fn add(&mut self, n: u64) {
        self.current += n;
        self.total = self.total.saturating_add(n);
        self.peak = self.peak.max(self.current);
    }

    /// Subtracts from the current value what an earlier [`add`](Counter::add) has added.
    #[inline]
    pub fn sub(&mut self, n: u64) {
        self.current -= n;
    }

    /// Adds what a [`sub`](Counter::sub) has subtracted in vain: it is in the total already.
    #[inline]
    pub fn add_again(&mut self, n: u64) {
        self.current += n;
        self.peak = self.peak.max(self.current);
    }

    /// Resets the peak to the current value.
    pub fn reset_peak(&mut self) {
        self.peak = self.current;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_keeps_its_peak_until_the_reset() {
        let mut c = Counter::default();
        c.add(5);
        c.sub(3);
        c.add(1);
        assert_eq!(c, Counter { current: 3, peak: 5, total: 6 });
        c.reset_peak();
        assert_eq!(c, Counter { current: 3, peak: 3, total: 6 });
    }
}
