//! Growth in ties, which are granules in one physical allocation of the device (`tied.rs`), and how ties make room when
//! memory is scarce.
//!
//! Granules of a tie cannot be mapped elsewhere one by one, and go back to the device together. A contiguous pool has
//! nothing else: each of its ties has a number without memory behind it, so that no block lies across two of them. Where
//! memory is scarce, ties that are wholly free are exchanged for loose granules; and where that is impossible, they go to
//! other heaps, and are mapped elsewhere, as wholes.

use super::super::blocks::{WaitingBlocks, gained};
use super::super::ground::{Ground, Growing};
use super::super::heap::Heap;
use super::super::state::growth::transits::Parts;
use super::super::types::{PoolId, UNORDERED};
use super::super::units::{GRANULE, GRANULE_SHIFT, GranuleSet, granule_bytes};
use super::device::{DeviceMemory, New};
use super::limits::{self, NO_MORE};
use super::search::Search;
use super::steal::{Giver, wait_for_giver};
use super::step::Terms;
use super::taken::{Lot, Of, Taken};
use super::trim::{GivenBack, Trim};
use crate::base::error::Result;
use std::collections::HashMap;

/// [B] of a tie of a contiguous pool, if no request needs more: blocks share it as they share a segment.
const SHARED_TIE: u64 = 64 << 20;
/// The maximum size of such a tie, as a part of the device: 1 / this.
const SHARED_PART: u64 = 32;
/// While no more than 1 / this of what may be had is reserved, growth is in ties that is 1 / `EARLY_GROWTH` of the usual.
const EARLY_PART: u64 = 8;
/// See there.
const EARLY_GROWTH: u64 = 16;
/// A growth of less than 1 / this of the device is not in ties once half of the device is reserved.
const LARGE_GROWTH_PART: u64 = 8;
/// Ties are made again when no more than 1 / this is reserved of what was when they ended.
const PLENTIFUL_AGAIN: u64 = 4;
/// Large growth is in about so many ties while memory is plentiful: each costs the device the same, whatever its size, and
/// what one request has taken is seldom cut.
const TIES_OF_GROWTH: u32 = 4;
/// [granules] of the largest tie that is made for that.
const LARGEST_TIE: u32 = 512;
/// [granules] of the smallest tie that is made to spare calls.
const LEAST_TIE: u32 = 2;

/// How plentiful memory is, in granules.
struct Plenty {
    /// What may still be taken.
    room: u64,
    /// That and what is reserved.
    all: u64,
    /// Why no more may be taken.
    why: &'static str,
}

impl Growing<'_> {
    fn plenty(&self, pool: u32) -> Plenty {
        let allowed = self.allowed(pool);
        let room = allowed.bytes >> GRANULE_SHIFT;
        Plenty { room, all: room + (self.account.reserved() >> GRANULE_SHIFT), why: allowed.why }
    }
}

/// [granules] The smallest growth that is in ties, where `least` is that of a device with plenty of memory. Granules of a
/// tie that is cut later serve in place only, which costs memory when it becomes scarce; a large block is seldom cut, and
/// what is reserved first is little of all. Measured on recorded programs (docs/decisions/large-handles.md): a quarter of
/// it up to the end costs one of them 2.5 % of the device, a sixteenth in the first eighth 0.13 %.
fn least_growth_in_ties(least: u64, plenty: &Plenty) -> u64 {
    let Plenty { room, all, .. } = *plenty; // room <= all
    match () {
        () if EARLY_PART * (all - room) <= all => least / EARLY_GROWTH,
        () if 4 * room >= 3 * all => least,
        () if 2 * room >= all => 2 * least,
        () => (2 * least).max(all / LARGE_GROWTH_PART),
    }
}

impl Search<'_> {
    /// Takes a tie for a request of a contiguous pool that needs so many granules: a usual one, or one of just that size.
    pub(super) fn grow_tie(&mut self, least: u64) -> Result<()> {
        let (ground, heap) = (self.ground, self.req.heap);
        let tuned = ground.tuned.get().segment.div_ceil(GRANULE);
        let usual = match tuned {
            0 => SHARED_TIE.min(ground.config.max_alloc / SHARED_PART) / GRANULE,
            tuned => tuned,
        };
        let mut refused = limits::error(NO_MORE);
        let sizes = [usual.max(least), least];
        for &wanted in &sizes[..if usual > least { 2 } else { 1 }] {
            let taken = DeviceMemory::of(ground).take_granules(heap, |g| {
                let allowed = g.allowed(heap.pool());
                // One number more, which stays empty.
                let room = u64::from(g.room.longest()).saturating_sub(1);
                let count = wanted.min(allowed.bytes >> GRANULE_SHIFT).min(room) as u32;
                if granule_bytes(count) < least << GRANULE_SHIFT {
                    return Err(if room < least { NO_MORE } else { allowed.why });
                }
                let numbers = g.room.take(count + 1, None).ok_or(NO_MORE)?;
                Ok(New { numbers, apart: true, tie: Some(count) })
            });
            match taken {
                Ok(_) => return Ok(()),
                Err(e) => refused = e,
            }
        }
        Err(refused)
    }

    /// Takes granules in ties for a request that lacks so many, as far as memory is plentiful; returns how many. No more
    /// are reserved than by loose granules.
    pub(super) fn take_ties(&self, missing: u32) -> u32 {
        let (ground, req) = (self.ground, self.req);
        let pool = req.heap.pool();
        let most = u64::from(ground.config.tie);
        if most < u64::from(LEAST_TIE) || !req.is_large() || ground.pools().is_pinned(req.heap) {
            return 0;
        }
        let plenty = ground.growing().plenty(pool);
        // The limits say little about what the device has, so what counts is how much has gone back since.
        let ended_at = ground.hints.ties_ended_at();
        if ended_at > 0 {
            if PLENTIFUL_AGAIN * (plenty.all - plenty.room) > ended_at {
                return 0;
            }
            ground.hints.allow_ties();
        }
        if u64::from(missing) < least_growth_in_ties(ground.config.tie_growth.into(), &plenty) {
            return 0;
        }
        let in_one_piece = req.in_one_piece(ground);
        let large = (missing / TIES_OF_GROWTH).min(LARGEST_TIE);
        let most = most.max(u64::from(large));
        let mut taken = 0;
        while taken < missing {
            let after = self.end_of_heap();
            let got = DeviceMemory::of(ground).take_granules(req.heap, |g| {
                let Plenty { room, all, why } = g.plenty(pool);
                // The less there is, the smaller they are.
                let each = (2 * most * room / all.max(1)).min(most) as u32;
                let part = (room / 2).max(u64::from(each)).min(room);
                let count = u64::from(missing - taken).min(part).min(g.room.longest().into()) as u32;
                if count.min(each) < LEAST_TIE || in_one_piece && count < missing {
                    return Err(why);
                }
                let numbers = g.room.take(count, after).ok_or(NO_MORE)?;
                Ok(New { numbers, apart: false, tie: Some(each) })
            });
            match got {
                Ok(n) => taken += n,
                Err(_) => break, // loose granules may do
            }
        }
        taken
    }

    /// Lets the search use whole free ties from now on, in any pool and as pieces of a scattered block. The free rest of
    /// the last one then serves in place only, so this comes after all steps that may exchange ties for loose granules.
    pub(super) fn use_whole_ties(&mut self) -> bool {
        if self.contiguous || self.ties || self.ground.growing().ties.is_empty() {
            return false;
        }
        self.ties = true;
        true
    }

    /// Takes free ties of which several heaps have parts, after a theft within their pool: as many as serve, with a wait for
    /// the streams of all these heaps. Without `scattering`, only one that has all that is missing serves.
    pub(super) fn steal_shared_ties(&mut self, missing: u64, scattering: bool) -> bool {
        let (ground, taker) = (self.ground, self.req.heap);
        let mine = taker.pool();
        let (mut held, claim) = {
            let mut g = ground.growing();
            if ground.pools().sleeps(PoolId(mine)) {
                return false; // as in `steal`
            }
            let room = g.pool_room(mine) >> GRANULE_SHIFT;
            let taken = g.take_shared_ties(ground.heaps_in(None), (missing, scattering), (mine, room));
            let others = |t: &&Taken| t.heap.pool() != mine;
            let claim = taken.iter().filter(others).map(|t| t.granules().bytes()).sum();
            // Others must not find the same room below the pool's limit meanwhile.
            g.account.claim_own(mine, claim);
            (g.in_transit(taken, Parts::Any), claim)
        };
        let lots = ground.growing().lots_of(std::mem::take(&mut held.taken));
        let mut any = false;
        for Lot { parts, .. } in lots {
            let waited = |t: &Taken| {
                t.heap.index == taker.index
                    || wait_for_giver(ground, Giver::of(ground, t.heap), (taker, true), Terms::Wait)
            };
            let agreed = parts.iter().all(waited);
            any |= agreed;
            let g = &mut *ground.growing();
            for Taken { heap, block } in parts {
                let (from, part) = (heap.pool(), block.part.touched());
                if agreed && from != mine {
                    g.account.move_between(from, mine, part.bytes(), u64::from(part.count));
                }
                if agreed && heap.index != taker.index {
                    gained(part.bytes());
                }
                ground.lock(if agreed { taker } else { heap }).give(block);
            }
        }
        let mut g = ground.growing();
        g.account.unclaim_own(mine, claim);
        held.end(&mut g);
        self.used_ties |= any;
        any
    }

    /// Notes that a request was served. If it needed whole ties, memory is scarce, and more ties would be in the way.
    pub(super) fn note_whole_ties(&self) {
        if self.used_ties {
            end_ties(self.ground);
        }
    }

    /// Gives ties that are wholly free back to the device, so that it can give granules that can be mapped anywhere: as few
    /// as the request needs, and none if the limits would refuse it all the same. Waits for the streams that have used
    /// them.
    pub(super) fn untie(&mut self, missing: u64) -> bool {
        // A contiguous pool would get a tie again: the last step does that, and what a block in one piece needs. And once
        // whole ties may be used, the request would lose some of those that it counts on.
        let elsewhere = self.contiguous || self.req.in_one_piece(self.ground) || self.ties;
        if elsewhere || self.ground.growing().ties.is_empty() || self.ground.order.check_wait().is_err() {
            return false;
        }
        // If the device refuses what the limits would then allow, others may have some of it: once more.
        self.untie_once(missing) || self.refused_by_device() && self.untie_once(missing)
    }

    fn untie_once(&mut self, missing: u64) -> bool {
        let ground = self.ground;
        WaitingBlocks::of(ground).poll_all();
        let given = self.give_for_growth(missing, Of::Ties, give_ties_back);
        if given {
            end_ties(ground);
        }
        given && self.note_refusal(|s| s.grow(missing))
    }
}

/// Memory is scarce: no more ties are made.
fn end_ties(ground: &Ground) {
    let reserved = ground.growing().account.reserved() >> GRANULE_SHIFT;
    ground.hints.end_ties(reserved);
}

/// Gives ties that were taken back to the device, once the streams that have used them have finished their work. Those for
/// which this is unknown, and those that the device refuses, go back to the heaps.
fn give_ties_back(ground: &Ground, taken: Vec<Taken>) -> GivenBack {
    let trim = Trim::of(ground);
    let mut idle: HashMap<u32, bool> = HashMap::new();
    for t in &taken {
        idle.entry(t.heap.index).or_insert_with(|| wait_for_heap(ground, t.heap));
    }
    let (mut ready, mut rest) = (Vec::new(), Vec::new());
    let lots = ground.growing().lots_of(taken);
    for lot in lots {
        let over = lot.parts.iter().all(|t| idle.get(&t.heap.index) == Some(&true));
        if over { ready.push(lot) } else { rest.extend(lot.parts) }
    }
    if !rest.is_empty() {
        ground.growing().return_all(rest);
    }
    let parts = || ready.iter().flat_map(|lot| &lot.parts);
    let granules: GranuleSet = parts().map(|t| t.granules()).collect();
    let shown = ground.aliases().shows_unused(&granules);
    let done = match shown {
        true => trim.unmap_ranges_with(&parts().copied().collect::<Vec<_>>()),
        false => Ok(()),
    };
    trim.release_lots(ready, done)
}

/// Waits on the host for what a heap's stream has queued by now; returns whether that was possible.
fn wait_for_heap(ground: &Ground, heap: &'static Heap) -> bool {
    if heap.stream() == UNORDERED {
        return true; // free memory there has waited for everyone already
    }
    let Some(stream) = ground.look(heap).stream.clone() else { return false };
    match ground.order.fence(&stream) {
        Ok(None) => true,
        Ok(Some(fence)) => ground.order.sync(&fence).is_ok(),
        Err(_) => ground.order.sync_device().is_ok(),
    }
}
