//! The pond's account: statistics and peaks, exact at any moment, and how the room below the peaks is shared out.

use super::super::ground::Ground;
use super::super::heap::counters::{ALL, Grid};
use super::super::heap::{Heap, LEDGER, LockedHeap};
use super::super::ledger::{Account, Ledger, Sums};
use super::super::state::growth::Holdings;
use super::super::state::pools::Pool;
use super::super::types::{LiveAndFreed, PoolId, Stats};
use super::super::units::LARGE_SHIFT;
use crate::base::error::Result;
use crate::base::sync::{Ordering::Relaxed, lock};

/// Empties a list and changes its lifetime; the standard library reuses the allocation.
#[expect(clippy::unnecessary_filter_map, reason = "the lifetime changes")]
fn recycled<'b>(list: Vec<LockedHeap<'_>>) -> Vec<LockedHeap<'b>> {
    list.into_iter().filter_map(|_| None).collect()
}

impl Ground {
    /// A heap has passed its ceiling: raises the peaks if necessary, and distributes the ceilings again.
    #[cold]
    #[inline(never)]
    pub(crate) fn settle(&self, heap: &Heap) {
        let mut ledger = lock(&self.ledger);
        self.take_sums(&mut ledger, Some(heap), |_| ());
    }

    /// Takes the true sums, with every heap locked in which anything may have happened since the last time, raises the
    /// peaks, calls `f` with the ledger, and shares out the room below the peaks: each heap first gets what it once had
    /// and has not now, so that a program that repeats itself need not ask again; `first` is served first.
    pub(super) fn take_sums<R>(
        &self,
        ledger: &mut Ledger,
        first: Option<&Heap>,
        f: impl FnOnce(&mut Ledger) -> R,
    ) -> R {
        let mut all = recycled(std::mem::take(&mut ledger.scratch));
        self.lock_active(ledger, &mut all);
        let result = self.sum_up(ledger, first, &mut all, f);
        all.clear();
        ledger.scratch = recycled(all);
        result
    }

    /// Takes the true sums while nothing can happen in any heap, so that what `f` sees besides is of the same moment.
    pub(super) fn with_everything<R>(&self, ledger: &mut Ledger, f: impl FnOnce(&Ledger) -> R) -> R {
        let everything = self.lock_all();
        self.come_to_life(ledger);
        // Those that rest only stay locked: nothing has happened in them since their sums were taken.
        let is_active = |h: &LockedHeap<'_>| ledger.active.binary_search(&h.heap.index).is_ok();
        let (mut active, resting): (Vec<_>, Vec<_>) = everything.into_iter().partition(is_active);
        let result = self.sum_up(ledger, None, &mut active, |ledger| f(ledger));
        drop(resting);
        result
    }

    /// `take_sums` with those heaps locked in which anything may have happened.
    fn sum_up<R>(
        &self,
        ledger: &mut Ledger,
        first: Option<&Heap>,
        all: &mut [LockedHeap<'_>],
        f: impl FnOnce(&mut Ledger) -> R,
    ) -> R {
        let is_first = |h: &LockedHeap<'_>| first.is_some_and(|f| f.index == h.heap.index);
        ledger.device.sums = Sums::default();
        for h in all.iter_mut() {
            self.drain(h);
            h.counters.note_peak();
            let seen = h.counters.seen;
            if seen.rests {
                ledger.device.resting.sub(&seen);
                if let Some(p) = ledger.pools.get_mut(&h.heap.pool()) {
                    p.resting.sub(&seen);
                }
                h.counters.seen.rests = false;
            }
        }
        ledger.device.start();
        for h in all.iter() {
            if let Some(p) = ledger.pools.get_mut(&h.heap.pool()) {
                p.start();
            }
        }
        for h in all.iter_mut() {
            let (seen, may_rest) = h.counters.look();
            let active = is_first(h) || !may_rest;
            h.counters.seen.rests = !active;
            let need = h.counters.need();
            let pool = ledger.pools.get_mut(&h.heap.pool());
            for account in [Some(&mut ledger.device), pool].into_iter().flatten() {
                account.sums.add(&seen);
                if active {
                    account.sums.add_need(&need);
                }
            }
        }
        ledger.device.raise();
        self.stuck.note_peak(ledger.device.peaks.allocated() >> LARGE_SHIFT);
        for h in all.iter() {
            if let Some(p) = ledger.pools.get_mut(&h.heap.pool()) {
                p.raise();
            }
        }
        let result = f(ledger);
        let urgent = all.iter().find(|h| is_first(h)).map(|h| h.counters.need());
        for h in all.iter_mut() {
            let pool = ledger.pools.get_mut(&h.heap.pool());
            if !h.counters.seen.rests {
                let urgent = urgent.as_ref().map(|n| (n, is_first(h)));
                let need = h.counters.need();
                let room = pool.map_or(Grid::default(), |p| {
                    let (of_device, of_pool) = (ledger.device.room(&need, urgent), p.room(&need, urgent));
                    std::array::from_fn(|k| std::array::from_fn(|d| of_device[k][d].min(of_pool[k][d])))
                });
                h.counters.set_room(room);
            } else {
                h.counters.set_room(Grid::default());
                let seen = h.counters.seen;
                ledger.device.resting.add(&seen);
                if let Some(p) = pool {
                    p.resting.add(&seen);
                }
                ledger.active.retain(|&i| i != h.heap.index);
                h.rest(LEDGER);
            }
        }
        result
    }

    /// Enters the heaps that have come to life since somebody looked among the active ones, in order.
    fn come_to_life(&self, ledger: &mut Ledger) {
        self.changed.take(LEDGER, |i| self.heap(i).map(Heap::listed), &mut ledger.active);
        ledger.active.sort_unstable();
    }

    /// Locks all heaps that do not rest, in the order of their numbers. Meanwhile the resting ones do not change.
    fn lock_active<'a>(&'a self, ledger: &mut Ledger, all: &mut Vec<LockedHeap<'a>>) {
        self.come_to_life(ledger);
        loop {
            all.extend(ledger.active.iter().filter_map(|&i| self.heap(i)).map(|x| self.look(x)));
            let before = ledger.active.len();
            self.come_to_life(ledger);
            if ledger.active.len() == before {
                return;
            }
            all.clear();
        }
    }

    /// A heap leaves its pool, whose sums keep what the heap has allocated. The ledger and the heap are locked.
    pub(crate) fn leave_ledger(&self, ledger: &mut Ledger, h: &mut LockedHeap<'_>) {
        let seen = h.counters.seen;
        if seen.rests {
            ledger.device.resting.sub(&seen);
            if let Some(p) = ledger.pools.get_mut(&h.heap.pool()) {
                p.resting.sub(&seen);
            }
        }
        let totals = h.counters.take_totals();
        for (gone, total) in ledger.gone.iter_mut().flatten().zip(totals.iter().flatten()) {
            *gone += total;
        }
    }

    /// The exact account of the device, or of one of its pools.
    pub(crate) fn stats(&self, pool: Option<PoolId>) -> Result<Stats> {
        self.poll_all();
        let growth = self.growing();
        let mut ledger = lock(&self.ledger);
        let named = pool.map(|p| self.live_pool(p)).transpose()?;
        let (account, gone) = self.take_sums(&mut ledger, None, |ledger| match pool {
            None => (ledger.device, ledger.gone),
            // If nothing has happened since its sums were taken, they are still right.
            Some(p) => (ledger.pools.get(&p.0).copied().unwrap_or_default(), Grid::default()),
        });
        let held = pool.map_or(growth.device, |p| growth.holdings(p.0));
        Ok(self.stats_of(named, &account, &gone, held))
    }

    /// The account of a pool, or of the device, from its books.
    pub(super) fn stats_of(
        &self,
        pool: Option<&Pool>,
        account: &Account,
        gone: &Grid<u128>,
        held: Holdings,
    ) -> Stats {
        let all = account.peaks.line(&account.sums, gone, ALL);
        Stats {
            requested: all.requested,
            allocated: all.allocated,
            active: all.active,
            reserved: held.reserved,
            blocks: all.blocks,
            segments: held.segments,
            driver_calls: 0,
            out_of_memory_count: pool.map_or(&self.oom_count, |p| &p.oom_count).load(Relaxed),
            limit: pool.map_or(&self.limit, |p| &p.limit).load(Relaxed),
            sleeping: held.sleeping,
        }
    }

    /// The number of live blocks. Does not query the device.
    pub(crate) fn live_blocks(&self) -> u64 {
        let mut ledger = lock(&self.ledger);
        let now = self.take_sums(&mut ledger, None, |ledger| ledger.device.sums.now);
        now[ALL][2] as u64
    }

    /// How much is live, and how many blocks were ever freed. Does not query the device.
    pub(crate) fn live_and_freed(&self) -> LiveAndFreed {
        let mut ledger = lock(&self.ledger);
        let (account, gone) = self.take_sums(&mut ledger, None, |ledger| (ledger.device, ledger.gone));
        let all = account.peaks.line(&account.sums, &gone, ALL);
        let freed_blocks = all.blocks.total.saturating_sub(all.blocks.current);
        LiveAndFreed { live_bytes: all.allocated.current, freed_blocks }
    }

    /// Resets the peaks of the device, or of one pool, to the current values.
    pub(crate) fn reset_peaks(&self, pool: Option<PoolId>) -> Result<()> {
        let mut growth = self.growing();
        let mut ledger = lock(&self.ledger);
        pool.map(|p| self.live_pool(p)).transpose()?;
        self.take_sums(&mut ledger, None, |ledger| {
            let account = match pool {
                None => Some(&mut ledger.device),
                Some(p) => ledger.pools.get_mut(&p.0),
            };
            if let Some(a) = account {
                a.peaks.reset(&a.sums);
                a.raise();
            }
        });
        growth.reset_peaks(pool.map(|p| p.0));
        Ok(())
    }
}
