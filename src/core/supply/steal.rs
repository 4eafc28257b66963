//! Free granules of other heaps: which heaps may give some, and what the taker must wait for.
//!
//! Granules are taken under the growth lock and are in transit while the taker is made to wait, with no lock held.

use super::super::blocks::{Blocks, gained};
use super::super::desc::Id;
use super::super::ground::{Ground, Growing};
use super::super::heap::{FreeBlock, Heap, STOCK, Scratch, Source};
use super::super::order::{Stream, not_now};
use super::super::state::growth::transits::Parts;
use super::super::types::{COMMONS, NO_POOL, PoolId, UNORDERED};
use super::super::units::{GRANULE_SHIFT, GranuleRun};
use super::parts::{Wanted, parts_to_take, smallest_first};
use super::search::Search;
use super::step::Terms;
use std::sync::Arc;

/// How many heaps with busy streams are tried for one request while the device may have more memory.
const MOST_BUSY: u32 = 8;
/// How many ids of the taker's are at hand for what it takes in one step. What lies in more pieces keeps the ids of its givers.
const MOST_LENT: u64 = 64;

/// The stream whose work may still use memory that was taken out of its heap.
pub(crate) struct Giver {
    /// The stream that the heap serves, or why it serves none.
    pub id: u64,
    pub stream: Option<Arc<Stream>>,
}

impl Giver {
    /// Whose memory a heap has.
    pub(super) fn of(ground: &Ground, heap: &'static Heap) -> Giver {
        let h = ground.look(heap);
        Giver { id: heap.stream(), stream: h.stream.clone() }
    }
}

impl Search<'_> {
    /// Takes up to `missing` free granules from other heaps. Without `scattering` they must form one run.
    ///
    /// What is taken gets ids of the taker's. With those of the givers, whose descriptors lie side by side, the threads of two
    /// heaps would write into the same cache lines from then on.
    pub(super) fn steal(&mut self, missing: u64, scattering: bool, same_pool: bool, terms: Terms) -> bool {
        self.lend_ids(missing.min(MOST_LENT) as u32);
        let helped = self.steal_with_ids(missing, scattering, same_pool, terms);
        self.lend_ids(0);
        helped
    }

    /// So many ids of the taker's are at hand, if it has them; the others go back to it.
    #[inline(never)]
    fn lend_ids(&mut self, count: u32) {
        self.ground.lock(self.req.heap).lend_ids(count, &mut self.scratch.ids);
    }

    fn steal_with_ids(&mut self, missing: u64, scattering: bool, same_pool: bool, terms: Terms) -> bool {
        let (ground, taker) = (self.ground, self.req.heap);
        let mine = taker.pool();
        if self.contiguous && !same_pool {
            return false; // what others have lies in other allocations
        }
        let mut left = missing;
        let mut busy = 0;
        self.find_givers(same_pool);
        for at in 0..self.scratch.givers.len() {
            let Some(giver) = ground.heaps().get(self.scratch.givers[at]) else { continue };
            if left == 0 || terms == Terms::Idle && same_pool && busy > MOST_BUSY {
                break;
            }
            let (from, claim, transit) = {
                let mut g = ground.growing();
                let pool = giver.pool();
                // Checked again under the lock.
                if (pool == mine) != same_pool || pool == NO_POOL || ground.pools().is_pinned(giver) {
                    continue;
                }
                if !same_pool && missing > g.pool_room(mine) >> GRANULE_SHIFT {
                    return left < missing;
                }
                // A pool that falls asleep waits for what is in transit to it, and from then on gets nothing.
                if ground.pools().sleeps(PoolId(mine)) {
                    return left < missing;
                }
                let wanted = Wanted {
                    most: left,
                    cuts: self.whole,
                    apart: scattering || missing == 1,
                    in_place: same_pool.then(|| self.req.granules()),
                    ties: match (self.ties, same_pool) {
                        (false, _) => 0,
                        (true, true) => u64::MAX,
                        (true, false) => g.pool_room(mine) >> GRANULE_SHIFT,
                    },
                };
                let Some(from) = g.take_from(giver, wanted, &mut self.scratch) else {
                    g.stock.forget(pool, giver.index);
                    continue;
                };
                if self.scratch.taken.is_empty() {
                    continue; // none of its runs is long enough
                }
                let bytes = self.scratch.taken.iter().map(|b| g.segments.bytes_of(b.part)).sum::<u64>();
                let claim = if same_pool { 0 } else { bytes };
                // Others must not find the same room below the pool's limit meanwhile.
                g.account.claim_own(mine, claim);
                (from, claim, g.begin_transit(Parts::Of(pool, mine)))
            };
            let agreed = wait_for_giver(ground, from, (taker, true), terms);
            let to = if agreed { taker } else { giver };
            let mut g = ground.growing();
            g.account.unclaim_own(mine, claim);
            let taken = std::mem::take(&mut self.scratch.taken);
            let granules: u64 = taken.iter().map(|b| u64::from(b.part.touched().count)).sum();
            let pieces = if ground.config.mapping { granules } else { 0 };
            for &block in &taken {
                let bytes = g.segments.bytes_of(block.part);
                if agreed {
                    g.account.move_between(giver.pool(), mine, bytes, 0);
                    gained(bytes);
                }
                let mut h = ground.lock(to);
                let block = if agreed { block } else { h.with_own_id(block, &mut self.scratch.ids) };
                h.give(block);
            }
            if agreed {
                let tied = |b: &FreeBlock| ground.shared().tied.is_tied(b.part.touched().first);
                self.used_ties |= self.ties && taken.iter().any(tied);
                g.account.move_between(giver.pool(), mine, 0, pieces);
                left = left.saturating_sub(granules); // ties go as wholes
            } else {
                busy += 1;
            }
            transit.end(&mut g);
            self.scratch.taken = taken;
        }
        left < missing
    }

    /// Lists the heaps other than the taker that may have free granules: of its pool, or of others.
    fn find_givers(&mut self, same_pool: bool) {
        let (ground, taker) = (self.ground, self.req.heap);
        let Scratch { changed, givers, .. } = &mut self.scratch;
        changed.clear();
        givers.clear();
        let heaps = ground.heaps().count() as usize + 8;
        if changed.try_reserve(heaps).is_err() || givers.try_reserve(heaps).is_err() {
            return;
        }
        let mut g = ground.growing();
        ground.shared().changed.take(STOCK, |i| ground.heaps().get(i).map(Heap::listed), changed);
        let serves = |heap: &&Heap| heap.pool() != NO_POOL; // it is entered again when it gets a pool
        for heap in changed.iter().filter_map(|&i| ground.heaps().get(i)).filter(serves) {
            if !g.stock.note(heap.pool(), heap.index) {
                heap.listed().is_seen_by(STOCK); // back onto the list, for the next search
                ground.shared().changed.note(heap.index, heap.listed());
            }
        }
        match same_pool {
            true => g.stock.of_pool(taker.pool(), givers),
            false => g.stock.of_others(taker.pool(), givers),
        }
        givers.retain(|&i| i != taker.index);
        drop(g);
        // A mark on the default stream comes after the work of others, and theirs after it: those that are asked behind
        // it would not be idle either.
        changed.clear();
        givers.retain(|&i| {
            let is_last = ground.heaps().get(i).is_some_and(|x| ground.backing.is_default(x.stream()));
            if is_last {
                changed.push(i);
            }
            !is_last
        });
        givers.append(changed);
    }
}

impl Growing<'_> {
    /// Takes free granules out of a heap. They are in the scratch space; the result says whose they were. `None`: the
    /// heap has none.
    fn take_from(&self, giver: &'static Heap, wanted: Wanted, scratch: &mut Scratch) -> Option<Giver> {
        let Wanted { most, apart, .. } = wanted;
        let Scratch { free_runs: runs, taken, ids, .. } = scratch;
        taken.clear();
        runs.clear();
        let mut h = self.ground.look(giver);
        if h.granules == 0 {
            h.rest(STOCK);
            return None;
        }
        Blocks::of(self.ground).drain(&mut h);
        h.flush();
        let (free, all) = h.free_runs(runs);
        if !self.ties.is_empty() {
            *runs = parts_to_take(&self.ties, runs, wanted);
        } else {
            if self.ground.config.source() == Source::OwnSegments {
                // One run, the smallest that is enough: what is left of it serves only what fits there.
                let units = GranuleRun::new(0, most as u32).extent().units;
                let spared = |id| !wanted.cuts && h.is_spared(id, units);
                let serves = |r: &&(GranuleRun, Id)| u64::from(r.0.count) >= most && !spared(r.1);
                let one = runs.iter().filter(serves).min_by_key(|r| (r.0.count, r.0.first)).copied();
                runs.clear();
                runs.extend(one);
            } else if apart {
                smallest_first(runs);
            } else {
                let serves = |r: &&(GranuleRun, Id)| u64::from(r.0.count) >= most;
                let one = runs.iter().filter(serves).max_by_key(|r| (r.0.count, r.0.first)).copied();
                runs.clear();
                runs.extend(one);
            }
            let mut left = most;
            for (run, _) in runs.iter_mut() {
                // From the end of the run: its owner continues from the front.
                *run = run.last(u64::from(run.count).min(left) as u32);
                left -= u64::from(run.count);
            }
            runs.retain(|r| r.0.count > 0);
        }
        let mut cut = true;
        if taken.try_reserve(runs.len()).is_ok() {
            for &(run, id) in runs.iter() {
                let part = loop {
                    let part = h.take_part(id, run.extent());
                    // If need be it is cut with ids that were lent.
                    let lent = if part.is_none() { ids.pop() } else { None };
                    match lent {
                        Some(lent) => h.put_id(lent),
                        None => break part,
                    }
                };
                let Some(mut block) = part else {
                    cut = false;
                    break;
                };
                if let Some(id) = ids.pop() {
                    h.put_id(std::mem::replace(&mut block.id, id));
                }
                taken.push(block);
            }
        }
        // There is nothing new to see until the heap changes.
        if all && cut {
            h.rest(STOCK);
        }
        (free > 0).then(|| Giver { id: giver.stream(), stream: h.stream.clone() })
    }
}

/// Makes the taker wait for the giver's stream, if the terms allow that and it is necessary. Returns whether memory that
/// was just taken out of the giver's heap may go to the taker's. With the taker comes whether the program's call names its
/// stream.
pub(crate) fn wait_for_giver(
    ground: &Ground,
    giver: Giver,
    (taker, named): (&'static Heap, bool),
    terms: Terms,
) -> bool {
    if giver.id == UNORDERED {
        return true; // free memory there has waited for everyone already
    }
    let Some(stream) = giver.stream else { return false };
    let to = taker.stream();
    if ground.look(taker).stream.as_ref().is_some_and(|own| Arc::ptr_eq(own, &stream)) {
        return terms != Terms::Replayed; // the same stream in another pool: its work is ordered by itself
    }
    match ground.order.fence(&stream) {
        Ok(None) => true,
        _ if terms != Terms::Wait => false,
        Ok(Some(fence)) if to == UNORDERED => ground.order.sync(&fence).is_ok(),
        Ok(Some(fence)) => {
            let held = match named {
                true => ground.order.hold_back(to, &fence),
                false => ground.order.hold_back_later(to, &fence),
            };
            match held {
                Ok(true) => true,
                Err(e) if not_now(&e) => false,
                _ => ground.order.sync(&fence).is_ok(),
            }
        }
        // How far the stream's work is can only be known after a wait for the whole device.
        Err(_) => ground.order.sync_device().is_ok(),
    }
}

/// The pool of memory without an owner has no limit and no requests of its own.
const _: () = assert!(COMMONS != NO_POOL);
