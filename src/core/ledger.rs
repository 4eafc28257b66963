//! Exact peaks without a shared counter on the hot path: the sums of a device and of its pools, and how the room below
//! the peaks is shared among the heaps.
//!
//! Each heap may allocate up to its *ceiling* without asking. The ceilings of all heaps of a device together never
//! exceed the device's peak, and those of a pool never the pool's; so as long as no heap passes its ceiling, no peak
//! can have been passed. A heap that would pass its ceiling is settled (`account.rs`): the true sums are taken, the peaks
//! are raised if necessary, and the ceilings are distributed again. The same is done for bytes, requested bytes and
//! blocks at once, and for each of the two classes of memory and both together: a heap has a ceiling of each, and keeps
//! below all of them.
//!
//! True sums need the locks of all active heaps, which interrupts the threads that own them. So where the heaps have been
//! higher than all may be together, part of the room is dealt to none and is *spare* (`spare.rs`): a heap that has used up its
//! own takes some of that, alone, and one that frees have left far more than it was dealt gives some back.
//!
//! Blocks that wait are not live, but active, which has peaks of its own: room is below both. When a wait ends, the heap may
//! allocate what the block had, but no more than the peaks of what is live allow.
//!
//! A heap in which nothing happens *rests*: it has no room below its ceiling, its part of the sums is kept here, and it
//! is skipped until it reports activity. So settling costs only as much as there are active heaps.

use super::heap::counters::{ALL, Grid, KINDS, Seen, Triple, grid};
use super::heap::{LockedHeap, LookedHeaps};
use super::types::Counter;
use crate::base::ordered::Map;
use std::collections::VecDeque;

/// The peaks of one pool or device: allocated, requested, blocks; and the same with what waits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peaks {
    peak: Grid,
    active: Grid,
}

/// Sums over heaps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub now: Grid,
    pub total: Grid<u128>,
    pub waiting: Grid,
    pub heaps: i64,
    /// How far the heaps are below their own peaks.
    pub need: Grid,
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
    pub below: Grid,
    /// How much more they may grow as waits end: how far what is live is below its peaks beyond that.
    pub returns: Grid,
    /// What of `below` no heap was dealt when the sums were taken; [`Spare`](super::spare::Spare) has what is left of it.
    pub spare: Grid,
}

/// All accounts of a device.
#[derive(Default)]
pub(crate) struct Ledger {
    pub device: Account,
    pub pools: Map<u32, Account>,
    /// The heaps that do not rest, by number.
    pub active: Vec<u32>,
    /// An empty list, kept for reuse.
    pub scratch: Vec<LockedHeap<'static>>,
    /// The same for heaps that are about to be locked.
    pub looks: LookedHeaps,
    /// The totals of heaps of pools that have ended.
    pub gone: Grid<u128>,
    /// Heaps that serve no pool.
    pub spare_heaps: Vec<u32>,
    /// How often the sums were taken for a heap.
    #[cfg(test)]
    pub taken: u64,
    /// The ids of the next pools in the slots of pools that have ended.
    pub spare_pools: VecDeque<u32>,
}

/// What is counted of one class of memory, or of both.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Line {
    pub allocated: Counter,
    pub requested: Counter,
    pub blocks: Counter,
    pub active: Counter,
    pub active_requested: Counter,
    pub active_blocks: Counter,
}

impl Ledger {
    /// Makes room in its lists for so many heaps: whoever takes sums, or gives up a heap, needs no memory of the host then.
    /// `false`: the host has none.
    pub(crate) fn make_room(&mut self, heaps: usize) -> bool {
        let Ledger { active, scratch, looks, spare_heaps, .. } = self;
        let no_room = active.try_reserve(heaps.saturating_sub(active.len())).is_err()
            || scratch.try_reserve(heaps.saturating_sub(scratch.len())).is_err()
            || spare_heaps.try_reserve(heaps.saturating_sub(spare_heaps.len())).is_err();
        !no_room && looks.make_room(heaps)
    }

    /// Deals to a heap of that pool: how much more it may allocate, and how much more than that as its waits end.
    pub(crate) fn deal(&mut self, pool: u32, need: &Grid, waiting: &Grid) -> (Grid, Grid) {
        let Some(pool) = self.pools.get_mut(&pool) else { return Default::default() };
        let least = |a: Grid, b: Grid| grid(|k, d| a[k][d].min(b[k][d]));
        let room = least(self.device.room(need), pool.room(need));
        for a in [&mut self.device, pool] {
            a.spare = grid(|k, d| a.spare[k][d] - room[k][d]);
        }
        (room, least(self.device.returns(waiting), pool.returns(waiting)))
    }

    /// Removes a heap, which is locked, from its pool; the ledger keeps the totals of what it has allocated.
    pub(crate) fn remove(&mut self, h: &mut LockedHeap<'_>) {
        let seen = h.counters.seen;
        if seen.rests {
            self.device.resting.sub(&seen);
            if let Some(p) = self.pools.get_mut(&h.heap.pool()) {
                p.resting.sub(&seen);
            }
        }
        let totals = h.counters.take_totals();
        for (gone, total) in self.gone.iter_mut().flatten().zip(totals.iter().flatten()) {
            *gone += total;
        }
    }
}

impl Sums {
    /// Adds the counters of a heap.
    pub(crate) fn add(&mut self, seen: &Seen) {
        for k in KINDS {
            for d in 0..3 {
                self.now[k][d] += seen.now[k][d];
                self.total[k][d] += seen.total[k][d];
                self.waiting[k][d] += seen.waiting[k][d];
            }
        }
    }

    /// Subtracts what was added.
    pub(crate) fn sub(&mut self, seen: &Seen) {
        for k in KINDS {
            for d in 0..3 {
                self.now[k][d] -= seen.now[k][d];
                self.total[k][d] -= seen.total[k][d];
                self.waiting[k][d] -= seen.waiting[k][d];
            }
        }
    }

    /// Adds a heap that may get room, and what it needs.
    pub(crate) fn add_need(&mut self, need: &Grid) {
        self.heaps += 1;
        for k in KINDS {
            (0..3).for_each(|d| self.need[k][d] += need[k][d]);
        }
    }

    /// What is active: live, or waiting.
    fn active(&self, kind: usize) -> Triple {
        std::array::from_fn(|d| self.now[kind][d] + self.waiting[kind][d])
    }
}

impl Account {
    /// Resets the sums to those of the resting heaps.
    pub(crate) fn start(&mut self) {
        self.sums = self.resting;
    }

    /// Raises the peaks to the sums. No heap is dealt anything yet.
    pub(crate) fn raise(&mut self) {
        (self.below, self.returns) = self.peaks.raise(&self.sums);
        self.spare = self.below;
    }

    /// The part of what is left below the peaks for a heap that needs so much.
    fn room(&self, need: &Grid) -> Grid {
        let s = &self.sums;
        grid(|k, d| share(self.below[k][d], s.heaps, s.need[k][d], need[k][d]))
    }

    /// The part of what may be allocated again as waits end for a heap in which so much waits.
    fn returns(&self, waiting: &Grid) -> Grid {
        grid(|k, d| portion(self.returns[k][d], waiting[k][d], self.sums.waiting[k][d]))
    }
}

impl Peaks {
    /// Raises the peaks to the sums; returns how far each quantity is below its peak, and how far what is live is below its
    /// own beyond that.
    fn raise(&mut self, s: &Sums) -> (Grid, Grid) {
        let active: Grid = std::array::from_fn(|k| s.active(k));
        self.peak = grid(|k, d| self.peak[k][d].max(s.now[k][d]));
        self.active = grid(|k, d| self.active[k][d].max(active[k][d]));
        let live = grid(|k, d| self.peak[k][d] - s.now[k][d]);
        // Neither the peak of what is live nor that of what is active may be passed.
        let below = grid(|k, d| live[k][d].min(self.active[k][d] - active[k][d]));
        (below, grid(|k, d| live[k][d] - below[k][d]))
    }

    /// Resets the peaks to the current values.
    pub(crate) fn reset(&mut self, s: &Sums) {
        self.peak = s.now;
        self.active = std::array::from_fn(|k| s.active(k));
    }

    /// [B] the maximum that was ever allocated.
    pub(crate) fn allocated(&self) -> u64 {
        self.peak[ALL][0] as u64
    }

    /// The counters of a class or of both; `gone` is added to the totals.
    pub(crate) fn line(&self, s: &Sums, gone: &Grid<u128>, kind: usize) -> Line {
        let total = |d: usize| u64::try_from(s.total[kind][d] + gone[kind][d]).unwrap_or(u64::MAX);
        let (now, peak) = (s.now[kind], self.peak[kind]);
        let c = |d: usize| Counter { current: now[d] as u64, peak: peak[d] as u64, total: total(d) };
        let active = |d: usize| {
            let (current, peak) = (s.active(kind)[d] as u64, self.active[kind][d] as u64);
            Counter { current, peak, total: total(d) }
        };
        Line {
            allocated: c(0),
            requested: c(1),
            blocks: c(2),
            active: active(0),
            active_requested: active(1),
            active_blocks: active(2),
        }
    }
}

/// The part of `left` that one heap gets, when `left` is shared among so many heaps, which need `all` together: what it
/// needs to return to its own peak, plus an equal part of the rest. If there is not enough for all, half of it is shared in
/// proportion to their needs, and the other half is spare. The parts never add up to more than `left`.
fn share(left: i64, heaps: i64, all: i64, need: i64) -> i64 {
    let left = left.max(0);
    if all <= left {
        return need + (left - all) / heaps.max(1);
    }
    if heaps <= 1 { left } else { portion(left - left / 2, need, all) }
}

/// The part of `left` for one who has `own` of `all`, but no more than that.
fn portion(left: i64, own: i64, all: i64) -> i64 {
    if all <= left {
        return own;
    }
    // Wide numbers only where narrow ones do not do: dividing them takes hundreds of instructions.
    match left.checked_mul(own) {
        Some(product) => product / all.max(1),
        None => (i128::from(left) * i128::from(own) / i128::from(all.max(1))) as i64,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shares_never_pass_what_is_left(left in 0i64..1 << 40, needs in prop::collection::vec(0i64..1 << 40, 1..20)) {
            let (all, heaps) = (needs.iter().sum(), needs.len() as i64);
            let dealt: i64 = needs.iter().map(|&n| share(left, heaps, all, n)).sum();
            prop_assert!((0..=left).contains(&dealt), "{dealt} of {left}");
            let parts: i64 = needs.iter().map(|&n| portion(left, n, all)).sum();
            prop_assert!((0..=left.min(all)).contains(&parts), "{parts} of {left}");
        }
    }

    #[test]
    fn totals_beyond_64_bits_stay_at_the_most() {
        let all = [u128::from(u64::MAX) + 5, 7, 1];
        let sums = Sums { total: [[0; 3], [0; 3], all], ..Sums::default() };
        let line = Peaks::default().line(&sums, &[[0; 3], [0; 3], [0, 1, 0]], ALL);
        assert_eq!((line.allocated.total, line.requested.total), (u64::MAX, 8));
    }
}
