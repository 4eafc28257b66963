//! Gives unused memory back to the device.
//!
//! Other threads continue meanwhile. So what goes back is first taken out of its heap, where nobody finds it any more,
//! and only then is the device waited for: work that was queued before the free may still use it until then. Memory
//! that the device refuses, and segments that are not completely free, go back to the heaps from which they were taken.
//! No lock is held while the device is called or waited for.

use super::super::blocks::WaitingBlocks;
use super::super::ground::{Ground, Growing};
use super::super::heap::Heap;
use super::super::state::growth::joined;
use super::super::state::growth::segments::Segment;
use super::super::state::growth::transits::Parts;
use super::super::types::PoolId;
use super::super::units::{GRANULE, GranuleSet};
use super::limits::{self, TOO_MANY_BLOCKS, is_limit, is_table};
use super::ranges::Ranges;
use super::taken::{Lot, Of, Taken, count};
use crate::base::error::{Error, Result};
use crate::base::sort;
use crate::base::sync::pause;

/// What gives memory back to the device; see the head of this file.
#[derive(Clone, Copy)]
pub(crate) struct Trim<'a> {
    ground: &'a Ground,
}

/// What a step has given back.
#[derive(Debug)]
pub(super) struct GivenBack {
    /// Whether anything went back.
    pub any: bool,
    /// Whether all went well.
    pub done: Result<()>,
}

impl<'a> Trim<'a> {
    pub(crate) fn of(ground: &'a Ground) -> Trim<'a> {
        Trim { ground }
    }

    /// Gives all unused memory of one pool, or of all, back to the device, but for what there are no ids to cut. Waits for
    /// the device first.
    pub(crate) fn all(self, pool: Option<u32>) -> Result<()> {
        match self.down_to(pool, 0) {
            Err(e) if !is_table(&e) => Err(e),
            _ => Ok(()),
        }
    }

    /// Gives as much unused memory back as the device takes. Waits for the device first. Returns whether anything went back.
    pub(crate) fn all_that_goes(self) -> bool {
        self.give_down_to(None, 0).is_ok_and(|given| given.any)
    }

    /// Gives unused memory back for `bytes` that a pool was refused for lack of memory: as much as the device takes where it
    /// refused, and where a limit did, as little as suffices, or none if it would refuse all the same. Unused memory of the
    /// pool itself stays. Waits for the device. Returns whether anything went back.
    pub(crate) fn for_refused(self, pool: PoolId, bytes: u64, refused: &Error) -> bool {
        if !is_limit(refused) {
            return self.all_that_goes();
        }
        let ground = self.ground;
        let lacks = {
            let g = ground.growing();
            (g.pool_lacks(pool.0, bytes) == 0).then(|| g.device_lacks(bytes).div_ceil(GRANULE))
        };
        let Some(most) = lacks.filter(|_| ground.order.sync_device().is_ok()) else { return false };
        WaitingBlocks::of(ground).poll_all();
        let (mut left, mut any) = (most, false);
        while left > 0 {
            let mut held = {
                let mut g = ground.growing();
                let mut others = ground.heaps_in(None);
                others.retain(|x| x.pool() != pool.0);
                let taken = g.take_free(others, left, Of::Any);
                // What goes back leaves its ids for the rest.
                if count(&taken) < left && (taken.is_empty() || !g.lacks_ids) {
                    g.return_all(taken);
                    break;
                }
                left = left.saturating_sub(count(&taken));
                g.in_transit(taken, Parts::Any)
            };
            let given = self.give_granules_back(std::mem::take(&mut held.taken));
            held.end(&mut ground.growing());
            any |= given.any;
            if given.done.is_err() {
                break;
            }
        }
        any
    }

    /// Gives unused memory of one pool, or of all, back until no more than `keep` bytes of it are reserved: as little as
    /// suffices, which may be the whole of a tie. If no more is reserved, it does nothing, and does not wait. `OutOfMemory`
    /// where there are no ids to cut the rest of what could go.
    pub(crate) fn down_to(self, pool: Option<u32>, keep: u64) -> Result<bool> {
        let given = self.give_down_to(pool, keep)?;
        given.done.map(|()| given.any)
    }

    fn give_down_to(self, pool: Option<u32>, keep: u64) -> Result<GivenBack> {
        let ground = self.ground;
        ground.check_reentry()?;
        // Without a minimum, all idle ranges of addresses are unmapped, too.
        let reserved = |g: &Growing<'_>| match pool {
            Some(p) => g.account.of(p).reserved.current,
            None => g.account.reserved(),
        };
        let excess = |g: &Growing<'_>| if keep == 0 { u64::MAX } else { reserved(g).saturating_sub(keep) };
        if excess(&ground.growing()) == 0 {
            return Ok(GivenBack { any: false, done: Ok(()) });
        }
        ground.order.sync_device()?;
        WaitingBlocks::of(ground).poll_all();
        let heaps = || ground.heaps_in(pool.map(PoolId));
        let parts = pool.map_or(Parts::Any, |p| Parts::Of(p, p));
        let given = if ground.config.mapping {
            let (mut any, mut least) = (false, u64::MAX);
            loop {
                let (mut held, lacks_ids) = {
                    let mut g = ground.growing();
                    let most = excess(&g).div_ceil(GRANULE);
                    let taken = g.take_free(heaps(), most, Of::Any);
                    let lacks_ids = g.lacks_ids;
                    (g.in_transit(taken, parts), lacks_ids)
                };
                let mut given = self.give_granules_back(std::mem::take(&mut held.taken));
                let mut g = ground.growing();
                held.end(&mut g);
                any |= given.any;
                given.any = any;
                if !lacks_ids || given.done.is_err() {
                    break given;
                }
                // What went back has left its ids for the rest, and so have the ranges of addresses.
                let now = reserved(&g);
                if now >= least {
                    given.done = Err(limits::error(TOO_MANY_BLOCKS));
                    break given;
                }
                least = now;
            }
        } else {
            // What is left of a pool may leave it, and must be held by nobody until then.
            let may_leave = pool.filter(|_| keep == 0);
            let (mut held, most) = {
                let mut g = ground.growing();
                let most = excess(&g);
                let held = match may_leave {
                    Some(_) => {
                        let taken = g.take_all_free(heaps());
                        g.in_transit(taken, parts)
                    }
                    None => g.take_whole_segments(heaps(), parts),
                };
                (held, most)
            };
            let given = self.give_segments_back(&mut held.taken, most);
            // Parts of segments that others use: a pool without blocks does not keep them.
            let leaves = may_leave.filter(|&p| !held.taken.is_empty() && self.is_empty(p));
            let commons = leaves.and_then(|_| ground.commons().ok());
            let commons = commons.filter(|_| ground.order.sync_device().is_ok());
            let mut g = ground.growing();
            if let Some(commons) = commons {
                for Taken { heap, block } in held.taken.drain(..) {
                    g.give_to_nobody(heap.pool(), commons, block);
                }
            }
            held.end(&mut g);
            given
        };
        Ok(given)
    }

    /// Whether a pool other than the default one has no blocks, live or waiting.
    fn is_empty(self, pool: u32) -> bool {
        let idle = |x: &'static Heap| {
            let h = self.ground.look(x);
            h.waiting.is_empty() && h.counters.is_empty()
        };
        PoolId(pool) != PoolId::DEFAULT && self.ground.heaps_of(pool).into_iter().all(idle)
    }

    /// Gives granules that were taken back to the device, and unmaps all idle ranges of addresses, which may contain
    /// them. Waits for the device. What the device refuses goes back to the heaps.
    pub(super) fn give_granules_back(self, taken: Vec<Taken>) -> GivenBack {
        let done = self.ground.order.sync_device().and_then(|()| self.unmap_ranges_with(&taken));
        let lots = self.ground.growing().lots_of(taken);
        self.release_lots(lots, done)
    }

    /// Gives granules back to the device that nothing uses any more, as long as all goes well: `done` is how it went so
    /// far. What does not go back is returned to the heaps.
    pub(super) fn release_lots(self, lots: Vec<Lot>, mut done: Result<()>) -> GivenBack {
        let ground = self.ground;
        let mut any = false;
        for Lot { run, parts } in lots {
            if done.is_ok() {
                done = ground.backing.release(run.first, run.count);
            }
            let mut g = ground.growing();
            if done.is_err() {
                g.return_all(parts);
                continue;
            }
            for t in parts {
                let part = t.granules();
                g.account.release(t.heap.pool(), part.bytes(), u64::from(part.count));
                ground.look(t.heap).put_id(t.block.id);
            }
            g.forget_granules(run);
            any = true;
        }
        GivenBack { any, done }
    }

    /// Unmaps all idle ranges of addresses. Waits for other threads that are just unmapping ranges with granules that
    /// were taken.
    pub(super) fn unmap_ranges_with(self, taken: &[Taken]) -> Result<()> {
        let granules: GranuleSet = taken.iter().map(|t| t.granules()).collect();
        let ranges = Ranges::of(self.ground);
        let mut round = 0;
        loop {
            let idle = ranges.take_idle(true);
            if !idle.is_empty() {
                // Work that is still queued may use those addresses.
                ranges.wait_and_unmap(idle)?;
            }
            if !self.ground.aliases().shows_unused(&granules) {
                return Ok(());
            }
            pause(round);
            round = round.saturating_add(1);
        }
    }

    /// Gives segments that were taken completely back to the device until these have `wanted` bytes: the smallest that
    /// is enough, otherwise the largest first. Waits for the device. Removes them from `taken`.
    pub(super) fn give_segments_back(self, taken: &mut Vec<Taken>, wanted: u64) -> GivenBack {
        let mut any = false;
        let done = self.try_give_segments_back(taken, wanted, &mut any);
        GivenBack { any, done }
    }

    fn try_give_segments_back(self, taken: &mut Vec<Taken>, mut wanted: u64, any: &mut bool) -> Result<()> {
        let ground = self.ground;
        if wanted == 0 {
            return Ok(());
        }
        let runs = joined(taken.iter().map(|t| t.block.part));
        let whole = |s: &&Segment| runs.binary_search(&s.part).is_ok();
        let mut idle: Vec<Segment> = ground.growing().segments.iter().filter(whole).copied().collect();
        if idle.is_empty() {
            return Ok(());
        }
        sort::by_key(&mut idle, |s| (s.bytes, s.offset()));
        ground.order.sync_device()?;
        while wanted > 0
            && let Some(segment) = next_back(&mut idle, wanted)
        {
            wanted = wanted.saturating_sub(segment.bytes);
            let first = segment.part.touched().first;
            ground.growing().segments.take(first);
            let done = ground.release_segment(&segment);
            let mut g = ground.growing();
            if let Err(e) = done {
                g.segments.keep(segment);
                return Err(e);
            }
            // Its parts may have belonged to several pools; they leave those accounts to the byte, by no other pool's peak.
            g.segments.keep(segment);
            let inside =
                |t: &Taken| segment.part.off <= t.block.part.off && t.block.part.end() <= segment.part.end();
            let gone: Vec<Taken> = taken.extract_if(.., |t| inside(t)).collect();
            for t in &gone {
                let bytes = g.segments.bytes_of(t.block.part);
                g.account.release(t.heap.pool(), bytes, 0);
                ground.look(t.heap).put_id(t.block.id);
            }
            g.segments.take(first);
            g.forget_segment(segment);
            *any = true;
        }
        Ok(())
    }
}

/// The next segment to give back for `wanted` bytes: the smallest that is enough, otherwise the largest. `idle` is
/// sorted by size.
fn next_back(idle: &mut Vec<Segment>, wanted: u64) -> Option<Segment> {
    let enough = idle.partition_point(|s| s.bytes < wanted);
    let last = idle.len().checked_sub(1)?;
    Some(idle.remove(enough.min(last)))
}
