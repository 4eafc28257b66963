//! The account of a pond: exact sums and peaks at any moment, and how the room below the peaks is shared among the heaps.
//! `ledger.rs` has the numbers and the reason why they are exact.
//!
//! Whoever takes the sums holds the ledger, and locks the heaps that do not rest in the order of their numbers.

use super::blocks::{Blocks, WaitingBlocks};
use super::ground::{Ground, Pool, Refusals};
use super::heap::counters::{ALL, Grid};
use super::heap::{Heap, LEDGER, LockedHeap};
use super::ledger::{Account, Ledger, Sums};
use super::spare::Spares;
use super::state::growth::account::Holdings;
use super::types::{LiveAndFreed, PoolId, Stats};
use super::units::LARGE_SHIFT;
use crate::base::error::Result;
use crate::base::sort;
use crate::base::sync::give_way;

/// The account of a pond; see the head of this file.
#[derive(Clone, Copy)]
pub(crate) struct Accounts<'a> {
    ground: &'a Ground,
    blocks: Blocks<'a>,
}

/// All heaps of a pond, locked.
pub(crate) struct Everything<'l, 'a> {
    // Each in the order of their numbers.
    active: &'l [LockedHeap<'a>],
    resting: &'l [LockedHeap<'a>],
}

impl<'l, 'a> Everything<'l, 'a> {
    /// The heap of that number.
    pub(crate) fn heap(&self, index: u32) -> Option<&'l LockedHeap<'a>> {
        let in_list = |list: &'l [LockedHeap<'a>]| {
            let at = list.binary_search_by_key(&index, |h| h.heap.index).ok()?;
            list.get(at)
        };
        in_list(self.active).or_else(|| in_list(self.resting))
    }
}

/// Empties a list and changes its lifetime; the standard library reuses the allocation.
#[expect(clippy::unnecessary_filter_map, reason = "the lifetime changes")]
pub(crate) fn recycled<'b>(list: Vec<LockedHeap<'_>>) -> Vec<LockedHeap<'b>> {
    list.into_iter().filter_map(|_| None).collect()
}

impl<'a> Accounts<'a> {
    pub(crate) fn of(ground: &'a Ground) -> Accounts<'a> {
        Accounts { ground, blocks: Blocks::of(ground) }
    }

    /// Settles a heap that has passed its ceiling: raises the peaks if necessary, and distributes the ceilings again. The
    /// heap does so alone where it has passed its own peak only, or the part of one class, and where enough is spare.
    #[cold]
    #[inline(never)]
    pub(crate) fn settle(self, heap: &'static Heap) {
        if self.balance(heap) {
            return;
        }
        let mut ledger = self.ground.ledger();
        // Whoever had the ledger until now may have dealt the heap what it lacks, or left it spare.
        if !self.balance(heap) {
            self.take_sums(&mut ledger, Some(heap), |_| ());
        }
    }

    /// A heap gives back of what it has far more of than it was dealt, and takes what it lacks of what is spare. Returns
    /// whether it lacks nothing any more.
    fn balance(self, heap: &'static Heap) -> bool {
        let mut h = self.ground.lock(heap);
        self.blocks.drain(&mut h);
        let beyond = h.counters.take_more_of_all();
        let surplus = h.counters.has_surplus();
        if !beyond && !surplus {
            return true;
        }
        // The ledger has locked this heap with all others whenever it sets what is spare, as long as it deals to it.
        let heaps = h.counters.sharers();
        let Some(pool) = self.ground.pools().get(PoolId(heap.pool())).filter(|_| heaps > 1) else {
            return false;
        };
        let spare = Spares { device: &self.ground.spare, pool: &pool.spare };
        if surplus {
            spare.give(&h.counters.give_surplus());
        }
        let Some(more) = spare.take(heaps, &h.counters.room()) else { return false };
        h.counters.note_peak();
        h.counters.add_room(more);
        !h.counters.take_more_of_all()
    }

    /// Takes the true sums, with every heap locked in which anything may have happened since the last time, raises the
    /// peaks, calls `f` with the ledger, and shares out the room below the peaks: each heap first gets what it once had
    /// and has not now, so that a program that repeats itself need not ask again; `first`, which asks, does not rest.
    pub(crate) fn take_sums<R>(
        self,
        ledger: &mut Ledger,
        first: Option<&Heap>,
        f: impl FnOnce(&mut Ledger) -> R,
    ) -> R {
        #[cfg(test)]
        {
            ledger.taken += u64::from(first.is_some());
        }
        let mut all = recycled(std::mem::take(&mut ledger.scratch));
        self.lock_active(ledger, &mut all);
        let result = self.sum_up(ledger, first, &mut all, |ledger, _| f(ledger));
        all.clear();
        ledger.scratch = recycled(all);
        result
    }

    /// Takes the true sums while nothing can happen in any heap, so that everything that `f` reads is of the same moment.
    /// `f` gets all heaps, which are locked.
    pub(crate) fn with_everything<R>(
        self,
        ledger: &mut Ledger,
        f: impl FnOnce(&Ledger, &Everything<'_, 'a>) -> R,
    ) -> R {
        let mut everything = Vec::new();
        self.ground.lock_all(ledger, &mut everything);
        self.enter_active(ledger);
        // Those that rest only stay locked: nothing has happened in them since their sums were taken.
        let is_active = |h: &LockedHeap<'_>| ledger.active.binary_search(&h.heap.index).is_ok();
        let (mut active, resting): (Vec<_>, Vec<_>) = everything.into_iter().partition(is_active);
        self.sum_up(ledger, None, &mut active, |ledger, active| {
            f(ledger, &Everything { active, resting: &resting })
        })
    }

    /// Takes the sums with those heaps locked in which anything may have happened.
    fn sum_up<R>(
        self,
        ledger: &mut Ledger,
        first: Option<&Heap>,
        all: &mut [LockedHeap<'a>],
        f: impl FnOnce(&mut Ledger, &[LockedHeap<'a>]) -> R,
    ) -> R {
        let is_first = |h: &LockedHeap<'_>| first.is_some_and(|f| f.index == h.heap.index);
        ledger.device.sums = Sums::default();
        for h in all.iter_mut() {
            self.blocks.drain(h);
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
        self.ground.shared().stuck.note_peak(ledger.device.peaks.allocated() >> LARGE_SHIFT);
        for h in all.iter() {
            if let Some(p) = ledger.pools.get_mut(&h.heap.pool()) {
                p.raise();
            }
        }
        let result = f(ledger, all);
        for h in all.iter_mut() {
            if !h.counters.seen.rests {
                let (room, returns) = ledger.deal(h.heap.pool(), &h.counters.need(), &h.counters.waiting());
                h.counters.set_room(room, returns, ledger.device.sums.heaps);
            } else {
                h.counters.set_room(Grid::default(), Grid::default(), 0);
                let seen = h.counters.seen;
                ledger.device.resting.add(&seen);
                if let Some(p) = ledger.pools.get_mut(&h.heap.pool()) {
                    p.resting.add(&seen);
                }
                ledger.active.retain(|&i| i != h.heap.index);
                h.rest(LEDGER);
            }
        }
        // All heaps that may take of it are locked.
        self.ground.spare.set(&ledger.device.spare);
        for h in all.iter() {
            let pool = h.heap.pool();
            if let (Some(account), Some(p)) = (ledger.pools.get(&pool), self.ground.pools().get(PoolId(pool)))
            {
                p.spare.set(&account.spare);
            }
        }
        result
    }

    /// Enters the heaps that have changed since the last time among the active ones, in order.
    fn enter_active(self, ledger: &mut Ledger) {
        let ground = self.ground;
        ground.shared().changed.take(LEDGER, |i| ground.heaps().get(i).map(Heap::listed), &mut ledger.active);
        sort::by_key(&mut ledger.active, |&i| i);
    }

    /// Locks all heaps that do not rest, in the order of their numbers. Meanwhile the resting ones do not change.
    fn lock_active(self, ledger: &mut Ledger, all: &mut Vec<LockedHeap<'a>>) {
        let ground = self.ground;
        self.enter_active(ledger);
        loop {
            let heaps = ledger.active.iter().filter_map(|&i| ground.heaps().get(i));
            heaps.for_each(|heap| ledger.looks.ask(heap));
            ledger.looks.take(ground.shared(), all);
            let before = ledger.active.len();
            self.enter_active(ledger);
            if ledger.active.len() == before {
                return;
            }
            all.clear();
        }
    }

    /// The exact account of the device, or of one of its pools.
    pub(crate) fn stats(self, pool: Option<PoolId>) -> Result<Stats> {
        WaitingBlocks::of(self.ground).poll_all();
        let growth = self.ground.growing();
        let mut ledger = self.ground.ledger();
        let named = pool.map(|p| self.ground.pools().live(p)).transpose()?;
        let (account, gone) = self.take_sums(&mut ledger, None, |ledger| match pool {
            None => (ledger.device, ledger.gone),
            // If nothing has happened since its sums were taken, they are still right.
            Some(p) => (ledger.pools.get(&p.0).copied().unwrap_or_default(), Grid::default()),
        });
        let held = pool.map_or(growth.account.device(), |p| growth.account.of(p.0));
        let stats = self.stats_of(named, &account, &gone, held);
        let crowded = ledger.looks.crowded();
        drop((ledger, growth));
        if crowded {
            give_way(); // else who allocates would wait for a lock most of the time
        }
        Ok(stats)
    }

    /// The account of a pool, or of the device, from what the ledger and the growth account have.
    pub(crate) fn stats_of(
        self,
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
            active_requested: all.active_requested,
            reserved: held.reserved,
            blocks: all.blocks,
            segments: held.segments,
            driver_calls: 0,
            out_of_memory_count: self.refusals(pool).failed(),
            limit: self.limit(pool),
            sleeping: held.sleeping,
        }
    }

    /// The refused requests of a pool, or of the device.
    pub(crate) fn refusals(self, pool: Option<&'a Pool>) -> &'a Refusals {
        pool.map_or(&self.ground.refusals, |p| &p.refusals)
    }

    /// The limit of a pool, or of the device.
    pub(crate) fn limit(self, pool: Option<&Pool>) -> u64 {
        pool.map_or_else(|| self.ground.limit(), Pool::limit)
    }

    /// The number of live blocks. Does not query the device.
    pub(crate) fn live_blocks(self) -> u64 {
        let mut ledger = self.ground.ledger();
        let now = self.take_sums(&mut ledger, None, |ledger| ledger.device.sums.now);
        now[ALL][2] as u64
    }

    /// How much is live, and how many blocks were ever freed. Does not query the device.
    pub(crate) fn live_and_freed(self) -> LiveAndFreed {
        let mut ledger = self.ground.ledger();
        let (account, gone) = self.take_sums(&mut ledger, None, |ledger| (ledger.device, ledger.gone));
        let all = account.peaks.line(&account.sums, &gone, ALL);
        LiveAndFreed {
            live_bytes: all.allocated.current,
            freed_blocks: all.blocks.total.saturating_sub(all.blocks.current),
        }
    }

    /// Resets the peaks of the device, or of one pool, to the current values.
    pub(crate) fn reset_peaks(self, pool: Option<PoolId>) -> Result<()> {
        let mut growth = self.ground.growing();
        let mut ledger = self.ground.ledger();
        pool.map(|p| self.ground.pools().live(p)).transpose()?;
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
        let mut all = recycled(std::mem::take(&mut ledger.scratch));
        self.ground.lock_all(&mut ledger, &mut all);
        for h in all.iter_mut().filter(|h| pool.is_none_or(|p| p.0 == h.heap.pool())) {
            self.blocks.drain(h);
            h.counters.reset_highest();
        }
        all.clear();
        ledger.scratch = recycled(all);
        growth.account.reset_peaks(pool.map(|p| p.0));
        Ok(())
    }
}
