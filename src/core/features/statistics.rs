//! The statistics in full: the account by class, and how free memory lies.

use super::super::account::Accounts;
use super::super::blocks::{Blocks, WaitingBlocks};
use super::super::ground::Ground;
use super::super::heap::Space;
use super::super::heap::counters::{ALL, Grid, LARGE, SMALL};
use super::super::ledger::{Account, Line};
use super::super::shape::Tier;
use super::super::types::{Counter, Flow, LiveAndFreed, MemoryStats, NO_POOL, PoolId, Split, StreamStats};
use super::super::units::{GRANULE, GranuleRun};
use super::spaces::heap_spaces;
use super::walk::owner;
use crate::base::error::Result;
use crate::base::sync::give_way;
use std::collections::BTreeMap;

/// Free memory, by who can have it.
#[derive(Default)]
struct Spaces {
    /// Of the pool, or of the device.
    own: Space,
    /// What a request can have of that.
    usable: Space,
    /// What it can have of other pools.
    others: Space,
    /// What of both could go back to the device.
    idle: Vec<GranuleRun>,
}

impl Spaces {
    /// How many granules a scattered block can have, with so many from the device and as many of other pools' as the limit
    /// of the pool, of which `most` are left, lets it take.
    fn granules_with(&self, room: u64, most: u64) -> u64 {
        let Spaces { usable, others, .. } = self;
        if others.granules.saturating_add(room) <= most {
            return usable.granules + others.granules + room;
        }
        // For a part of its own the pool would need the rest of that tie. So parts are left alone, and others' too.
        let loose = (others.granules - others.tied).saturating_add(room).min(most);
        let tied = others.below_limit(others.tied - others.shared, most - loose);
        usable.granules - usable.shared + loose + tied
    }
}

/// A quantity by class, where the second class is the rest.
fn split_of(all: Counter, small: Counter, large: Counter) -> Split {
    let small = Counter { current: small.current.min(all.current), ..small };
    let large = Counter { current: all.current - small.current, ..large };
    // The rest moves with the whole, and its own counter may be behind by what is on the way.
    let large = Counter { total: large.total.max(large.current), ..large };
    let small = Counter { total: small.total.max(small.current), ..small };
    Split { all: all.into(), large_pool: large.into(), small_pool: small.into() }
}

/// The same in granules.
fn granules(bytes: Counter) -> Counter {
    Counter { current: bytes.current / GRANULE, peak: bytes.peak / GRANULE, total: bytes.total / GRANULE }
}

/// What is known only now.
fn now(all: u64, large: u64, small: u64) -> Split {
    let flow = |current| Flow { current, peak: current, ..Flow::default() };
    Split { all: flow(all), large_pool: flow(large), small_pool: flow(small) }
}

/// What [`Pond::statistics`](crate::core::Pond::statistics) gives.
#[derive(Clone, Copy)]
pub struct StatisticsCalls<'a> {
    ground: &'a Ground,
    accounts: Accounts<'a>,
}

impl<'a> StatisticsCalls<'a> {
    pub(crate) fn of(ground: &'a Ground) -> StatisticsCalls<'a> {
        StatisticsCalls { ground, accounts: Accounts::of(ground) }
    }

    /// All live pools, by number.
    pub fn pools(self) -> Vec<PoolId> {
        self.ground.pools().ids()
    }

    /// The number of live blocks of the device. Does not query the device.
    pub fn live_blocks(self) -> u64 {
        self.accounts.live_blocks()
    }

    /// How much is live, and how many blocks were ever freed. Does not query the device.
    pub fn live_and_freed(self) -> LiveAndFreed {
        self.accounts.live_and_freed()
    }

    /// The statistics in full, of the device or of one of its pools; `device_free` is how many bytes the device reports as
    /// free. The calls to the device are not counted here. The lengths of free memory are read heap by heap, a little
    /// later than the rest.
    pub fn full(self, pool: Option<PoolId>, device_free: u64) -> Result<MemoryStats> {
        let ground = self.ground;
        WaitingBlocks::of(ground).poll_all();
        let g = ground.growing();
        let mut ledger = ground.ledger();
        let named = pool.map(|p| ground.pools().live(p)).transpose()?;
        let number = pool.map(|p| p.0);
        let by_class = &ground.maps.reserved;
        let (account, gone, [small, large], oversize) =
            self.accounts.take_sums(&mut ledger, None, |ledger| {
                let (account, gone) = match pool {
                    None => (ledger.device, ledger.gone),
                    Some(p) => (ledger.pools.get(&p.0).copied().unwrap_or_default(), Grid::default()),
                };
                (account, gone, by_class.counters(number), by_class.oversize(number))
            });
        let crowded = ledger.looks.crowded();
        drop(ledger);
        let held = pool.map_or(g.account.device(), |p| g.account.of(p.0));
        let refusals = self.accounts.refusals(named);
        let mut m = MemoryStats {
            reserved_bytes: split_of(held.reserved, small, large),
            segment: match ground.config.mapping {
                true => split_of(held.segments, granules(small), granules(large)),
                false => split_of(held.segments, Counter::default(), held.segments),
            },
            oversize_allocations: oversize.into(),
            oversize_segments: held.oversize.into(),
            sleeping_bytes: held.sleeping.into(),
            num_alloc_retries: refusals.retried(),
            num_ooms: refusals.failed(),
            num_sync_all_streams: ground.order.device_waits(),
            max_split_size: match ground.tuned.max_split() {
                0 => u64::MAX,
                bytes => bytes,
            },
            limit_bytes: self.accounts.limit(named),
            ..MemoryStats::default()
        };
        set_lines(&mut m, &account, &gone);
        drop(g);
        if crowded {
            give_way(); // as in `Accounts::stats`
        }
        self.set_space(&mut m, pool, device_free)?;
        Ok(m)
    }

    /// What each stream has of the device, or of one of its pools, by stream. What is live and what waits is of one moment;
    /// how much is free is read before.
    pub fn streams(self, pool: Option<PoolId>) -> Result<Vec<StreamStats>> {
        let ground = self.ground;
        WaitingBlocks::of(ground).poll_all();
        ground.check_host_room()?;
        pool.map(|p| ground.pools().live(p)).transpose()?;
        let wanted = |of: u32| pool.is_none_or(|p| p.0 == of);
        let mut all: BTreeMap<Option<u64>, StreamStats> = BTreeMap::new();
        for h in heap_spaces(ground, false)?.into_iter().filter(|h| wanted(h.pool)) {
            let Some(heap) = ground.heaps().get(h.heap) else { continue };
            let s = all.entry(owner(ground, heap).stream).or_default();
            s.free_blocks += h.space.small_pieces + h.space.pieces;
            s.free_bytes += h.space.free();
        }
        let mut counted = Vec::with_capacity(ground.heaps().count() as usize + 8);
        {
            // No heap goes to another pool while the ledger is locked.
            let mut ledger = ground.ledger();
            let mut locked = Vec::with_capacity(counted.capacity());
            ground.lock_all(&mut ledger, &mut locked);
            for h in locked.iter_mut().filter(|h| wanted(h.heap.pool())) {
                Blocks::of(ground).drain(h);
                let (now, waiting) = (h.counters.current()[ALL], h.counters.waiting()[ALL]);
                counted.push((h.heap, now, waiting, h.counters.totals()[ALL], h.counters.highest()));
            }
        }
        for (heap, now, waiting, total, peak) in counted.into_iter().filter(|c| c.3[2] > 0) {
            let s = all.entry(owner(ground, heap).stream).or_default();
            s.blocks += now[2] as u64;
            s.requested_bytes += now[1] as u64;
            s.allocated_bytes += now[0] as u64;
            s.waiting_blocks += waiting[2] as u64;
            s.waiting_bytes += waiting[0] as u64;
            s.total_blocks = s.total_blocks.saturating_add(u64::try_from(total[2]).unwrap_or(u64::MAX));
            s.total_bytes = s.total_bytes.saturating_add(u64::try_from(total[0]).unwrap_or(u64::MAX));
            s.peak_blocks += peak[2] as u64;
            s.peak_requested_bytes += peak[1] as u64;
            s.peak_allocated_bytes += peak[0] as u64;
        }
        let named = |(&stream, s): (&Option<u64>, &StreamStats)| StreamStats { stream, ..*s };
        Ok(all.iter().map(named).filter(|s| s.total_blocks > 0 || s.free_bytes > 0).collect())
    }

    /// Reports how the free memory lies, and how much a request could have.
    fn set_space(self, m: &mut MemoryStats, pool: Option<PoolId>, device_free: u64) -> Result<()> {
        let ground = self.ground;
        // A block that may not be scattered needs its granules side by side.
        let contiguous = ground.config.mapping && pool.is_some_and(|p| ground.pools().is_contiguous(p.0));
        let one_piece = ground.config.mapping && (contiguous || ground.tuned.in_one_piece());
        let s = self.spaces(pool, one_piece)?;
        let (g, own) = (&ground.growing(), s.own);
        // Where other pools have parts too, nothing goes back with the cache of one pool.
        let (kept, kept_pieces) = if pool.is_some() { (own.beyond, own.beyond_pieces) } else { (0, 0) };
        let (large, pieces) = (own.large + kept, own.large_pieces + kept_pieces);
        m.inactive_split = now(own.small_pieces + pieces, pieces, own.small_pieces);
        m.inactive_split_bytes = now(own.small + large, large, own.small);
        m.free_bytes = own.free();
        m.releasable_bytes = own.whole - kept;
        let number = pool.map_or(NO_POOL, |p| p.0);
        // What the pool may still have, from anyone, and what the device may still give.
        let most = g.pool_room(number);
        let room = g.allowed(number).bytes;
        // If a limit is lower than what is reserved, that much goes back for nothing.
        let over = [g.device_lacks(0), g.pool_lacks(number, 0)];
        let (cached, all) = if one_piece {
            // What others have lies in other allocations than those of a contiguous pool.
            let theirs =
                if contiguous { 0 } else { s.others.below_limit(s.others.run, most / GRANULE) * GRANULE };
            let cached = s.usable.longest.max(theirs);
            // Unused granules go back to the device, to be taken again side by side: its own ones to respect the limit of
            // the pool, any to have the room.
            let free = s.usable.granules + s.others.granules;
            let over = over.map(|lacks| lacks.div_ceil(GRANULE));
            let room = (g.device_room().min(device_free) / GRANULE + free).saturating_sub(over[0]);
            let own = (most / GRANULE).saturating_add(s.usable.granules).saturating_sub(over[1]);
            let row = g.longest_room_with(s.idle.into_iter()).saturating_sub(contiguous.into());
            (cached, cached.max(room.min(own).min(row) * GRANULE))
        } else if ground.config.mapping {
            let (most, room) = (most / GRANULE, room.min(device_free) / GRANULE);
            let with = |room| s.usable.longest.max(s.granules_with(room, most) * GRANULE);
            (with(0), with(room))
        } else {
            let run = s.others.run.min(most / GRANULE) * GRANULE;
            // A larger request gets a segment of its own.
            let cached = s.usable.longest.max(run).min(ground.config.max_chunk);
            // Idle segments go back for one that is large enough: the pool's own ones to respect its limit, any to have the
            // room.
            let idle = s.usable.whole + s.others.whole;
            let room = g.device_room().min(device_free).saturating_add(idle).saturating_sub(over[0]);
            let own = most.saturating_add(s.usable.whole).saturating_sub(over[1]);
            (cached, cached.max(self.largest_segment(room.min(own).min(ground.config.max_alloc))))
        };
        m.largest_cached_bytes = self.largest_request(cached);
        m.largest_free_bytes = self.largest_request(all);
        Ok(())
    }

    /// [B] of the largest new segment for a large request of no more than `bytes`.
    fn largest_segment(self, bytes: u64) -> u64 {
        let step = self.ground.maps.shape.segment_step();
        bytes / step * step
    }

    /// [B] of the largest request that free memory of `bytes` side by side serves; 0: none.
    fn largest_request(self, bytes: u64) -> u64 {
        let config = &self.ground.config;
        match bytes / config.min_chunk * config.min_chunk {
            // A smaller tier needs a whole granule for its chunk.
            charged if charged < GRANULE && self.ground.maps.shape.size(charged).tier != Tier::Large => 0,
            charged => charged.saturating_sub(config.padding),
        }
    }

    /// The free memory of all heaps; with `idle` the granules that could go back are listed.
    fn spaces(self, pool: Option<PoolId>, idle: bool) -> Result<Spaces> {
        let mut all = Spaces::default();
        for h in heap_spaces(self.ground, idle)? {
            all.idle.extend(h.idle);
            let mine = pool.is_none_or(|p| p.0 == h.pool);
            if mine {
                all.own.add(&h.space);
            }
            if mine && (pool.is_some() || !h.pinned) {
                all.usable.add(&h.space);
            } else if !mine && !h.pinned {
                all.others.add(&h.space);
            }
        }
        Ok(all)
    }
}

/// Reports what the heaps have counted.
fn set_lines(m: &mut MemoryStats, account: &Account, gone: &Grid<u128>) {
    let [all, large, small] = [ALL, LARGE, SMALL].map(|k| account.peaks.line(&account.sums, gone, k));
    let split = |of: fn(&Line) -> Counter| Split {
        all: of(&all).into(),
        large_pool: of(&large).into(),
        small_pool: of(&small).into(),
    };
    m.allocation = split(|l| l.blocks);
    m.active = split(|l| l.active_blocks);
    m.allocated_bytes = split(|l| l.allocated);
    m.active_bytes = split(|l| l.active);
    m.requested_bytes = split(|l| l.active_requested);
}
