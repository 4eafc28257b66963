//! Exact peaks without a shared counter on the hot path.
//!
//! Each heap may allocate up to its *ceiling* without asking. The ceilings of all heaps of a device
//! together never exceed the device's peak, and those of a pool never the pool's; so as long as no heap
//! passes its own, no peak can have been passed. A heap that would pass its ceiling comes here: with
//! every heap locked, the true sums are taken, the peaks raised if they must be, and the ceilings dealt
//! anew. The same is done for bytes, requested bytes and blocks at once.

use super::heap::{Inner, Triple};
use super::types::Counter;

/// Peaks of one pool or device: allocated, requested, blocks; and of active bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peaks {
    pub peak: Triple,
    pub active: i64,
}

/// Sums over heaps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub now: Triple,
    pub total: [u64; 3],
    pub pending: i64,
    pub granules: u64,
    pub heaps: i64,
    pub need: Triple,
}

impl Sums {
    /// Adds one heap.
    pub(crate) fn add(&mut self, h: &Inner) {
        let now = h.current();
        for (d, now) in now.into_iter().enumerate() {
            self.now[d] += now;
            self.total[d] += h.total[d].get() as u64;
        }
        self.pending += h.pending_bytes;
        self.granules += h.granules;
        self.heaps += 1;
        for (sum, need) in self.need.iter_mut().zip(h.need()) {
            *sum += need;
        }
    }
}

impl Peaks {
    /// Raises the peaks to the sums; the answer is how far each quantity is below its peak.
    pub(crate) fn raise(&mut self, s: &Sums) -> Triple {
        for d in 0..3 {
            self.peak[d] = self.peak[d].max(s.now[d]);
        }
        self.active = self.active.max(s.now[0] + s.pending);
        let below = |d: usize| self.peak[d] - s.now[d];
        // Bytes are free to grow only where neither the allocated nor the active peak would be passed.
        [below(0).min(self.active - s.now[0] - s.pending), below(1), below(2)]
    }

    /// Peaks start again from what is there now.
    pub(crate) fn reset(&mut self, s: &Sums) {
        self.peak = s.now;
        self.active = s.now[0] + s.pending;
    }

    /// As counters: allocated, requested, blocks, active.
    pub(crate) fn counters(&self, s: &Sums) -> [Counter; 4] {
        let c = |d: usize| Counter { current: s.now[d] as u64, peak: self.peak[d] as u64, total: s.total[d] };
        let active =
            Counter { current: (s.now[0] + s.pending) as u64, peak: self.active as u64, total: s.total[0] };
        [c(0), c(1), c(2), active]
    }
}

/// Gives a heap the right to allocate `share` more without asking.
pub(crate) fn deal(h: &mut Inner, share: Triple) {
    h.set_room(share);
}

/// The part that one heap gets of `left`, which is to be dealt among the heaps of `sums`: what it needs to
/// come back to its own peak, and an equal part of the rest. Where there is not enough for all, the one that
/// asks gets what it needs, at least half, and the others in proportion to their needs. The parts never
/// add up to more than `left`.
pub(crate) fn share(left: i64, sums: &Sums, d: usize, need: i64, urgent: Option<(Triple, bool)>) -> i64 {
    let (left, all) = (left.max(0), sums.need[d]);
    if all <= left {
        return need + (left - all) / sums.heaps.max(1);
    }
    let (first, mine) = urgent.map_or((0, false), |(n, mine)| (n[d].max(left / 2).min(left), mine));
    if mine {
        return first;
    }
    let others = all - urgent.map_or(0, |(n, _)| n[d]);
    (i128::from(left - first) * i128::from(need) / i128::from(others.max(1))) as i64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shares_never_pass_what_is_left(left in 0i64..1 << 40, needs in prop::collection::vec(0i64..1 << 40, 1..20), who in 0usize..40) {
            let sums = Sums { need: [needs.iter().sum(), 0, 0], heaps: needs.len() as i64, ..Sums::default() };
            let urgent = needs.get(who).map(|&n| [n, 0, 0]);
            let dealt: i64 = needs
                .iter()
                .enumerate()
                .map(|(i, &n)| share(left, &sums, 0, n, urgent.map(|u| (u, i == who))))
                .sum();
            prop_assert!((0..=left).contains(&dealt), "{dealt} of {left}");
        }
    }
}
