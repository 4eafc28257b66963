//! Exact peaks without a shared counter on the hot path: the sums of a device and of its pools, and how the room below
//! the peaks is shared among the heaps.
//!
//! Each heap may allocate up to its *ceiling* without asking. The ceilings of all heaps of a device together never
//! exceed the device's peak, and those of a pool never the pool's; so as long as no heap passes its ceiling, no peak
//! can have been passed. A heap that would pass its ceiling is settled (`features/account.rs`): the true sums are
//! taken, the peaks are raised if necessary, and the ceilings are distributed again. The same is done for bytes,
//! requested bytes and blocks at once.
//!
//! A heap in which nothing happens *rests*: it has no room below its ceiling, its part of the sums is kept here, and it
//! is not visited until it reports activity. So settling costs only as much as there are active heaps.

use super::heap::LockedHeap;
use super::heap::counters::{Seen, Triple};
use super::types::Counter;
use std::collections::{HashMap, VecDeque};

/// The peaks of one pool or device: allocated, requested, blocks; and of active bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peaks {
    peak: Triple,
    active: i64,
}

/// Sums over heaps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub now: Triple,
    pub total: [u128; 3],
    pub waiting: i64,
    pub heaps: i64,
    /// How far the heaps are below their own peaks.
    pub need: Triple,
}

/// The account of one pool or of the device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Account {
    pub peaks: Peaks,
    /// The sums of resting heaps.
    pub resting: Sums,
    /// The sums of all heaps, when last taken.
    pub sums: Sums,
    /// How far the sums are below the peaks.
    pub below: Triple,
}

/// All accounts of a device.
#[derive(Default)]
pub(crate) struct Ledger {
    pub device: Account,
    pub pools: HashMap<u32, Account>,
    /// The heaps that do not rest, by number.
    pub active: Vec<u32>,
    /// An empty list, kept for reuse.
    pub scratch: Vec<LockedHeap<'static>>,
    /// The totals of heaps of pools that have ended.
    pub gone: [u128; 3],
    /// Heaps that serve no pool.
    pub spare_heaps: Vec<u32>,
    /// The ids of the next pools in the slots of pools that have ended.
    pub spare_pools: VecDeque<u32>,
}

impl Sums {
    /// Adds the counters of a heap.
    pub(crate) fn add(&mut self, seen: &Seen) {
        for d in 0..3 {
            self.now[d] += seen.now[d];
            self.total[d] += seen.total[d];
        }
        self.waiting += seen.waiting;
    }

    /// Subtracts what was added.
    pub(crate) fn sub(&mut self, seen: &Seen) {
        for d in 0..3 {
            self.now[d] -= seen.now[d];
            self.total[d] -= seen.total[d];
        }
        self.waiting -= seen.waiting;
    }
}

impl Account {
    /// Resets the sums to those of the resting heaps.
    pub(crate) fn start(&mut self) {
        self.sums = self.resting;
    }

    /// Raises the peaks to the sums.
    pub(crate) fn raise(&mut self) {
        self.below = self.peaks.raise(&self.sums);
    }
}

impl Peaks {
    /// Raises the peaks to the sums; returns how far each quantity is below its peak.
    fn raise(&mut self, s: &Sums) -> Triple {
        for d in 0..3 {
            self.peak[d] = self.peak[d].max(s.now[d]);
        }
        self.active = self.active.max(s.now[0] + s.waiting);
        let below = |d: usize| self.peak[d] - s.now[d];
        // Bytes may grow only as long as neither the allocated nor the active peak would be passed.
        [below(0).min(self.active - s.now[0] - s.waiting), below(1), below(2)]
    }

    /// Resets the peaks to the current values.
    pub(crate) fn reset(&mut self, s: &Sums) {
        self.peak = s.now;
        self.active = s.now[0] + s.waiting;
    }

    /// [B] the maximum that was ever allocated.
    pub(crate) fn allocated(&self) -> u64 {
        self.peak[0] as u64
    }

    /// The counters for allocated, requested, blocks and active; `gone` is added to the totals.
    pub(crate) fn counters(&self, s: &Sums, gone: [u128; 3]) -> [Counter; 4] {
        let total = |d: usize| u64::try_from(s.total[d] + gone[d]).unwrap_or(u64::MAX);
        let c = |d: usize| Counter { current: s.now[d] as u64, peak: self.peak[d] as u64, total: total(d) };
        let current = (s.now[0] + s.waiting) as u64;
        let active = Counter { current, peak: self.active as u64, total: total(0) };
        [c(0), c(1), c(2), active]
    }
}

/// The part of `left` that one heap gets, when `left` is shared among the heaps of `sums`: what it needs to return to
/// its own peak, plus an equal part of the rest. If there is not enough for all, the heap that asks gets what it needs,
/// but at least half, and the others share the rest in proportion to their needs. The parts never add up to more than
/// `left`.
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

    #[test]
    fn totals_beyond_64_bits_stay_at_the_most() {
        let sums = Sums { total: [u128::from(u64::MAX) + 5, 7, 1], ..Sums::default() };
        let [allocated, requested, ..] = Peaks::default().counters(&sums, [0, 1, 0]);
        assert_eq!((allocated.total, requested.total), (u64::MAX, 8));
    }
}
