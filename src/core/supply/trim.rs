//! Gives unused memory back to the device.
//!
//! Other threads continue meanwhile. So what goes back is first taken out of its heap, where nobody finds it any more,
//! and only then is the device waited for: work that was queued before the free may still use it until then. Memory
//! that the device refuses, and segments that are not completely free, go back to the heaps from which they were taken.

use super::super::desc::GranuleUse;
use super::super::ground::{Ground, Growing};
use super::super::heap::{FreeBlock, Heap, Source};
use super::super::state::growth::{Parts, Segment, joined};
use super::super::state::tags::Tags;
use super::super::tied::choose;
use super::super::types::{COMMONS, PoolId, UNORDERED};
use super::super::units::{Extent, GRANULE, GRANULE_SHIFT, GranuleRun};
use super::{Search, ours};
use crate::base::error::Result;
use crate::base::sort;
use crate::base::sync::pause;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Free memory that was taken out of a heap.
#[derive(Clone, Copy)]
pub(super) struct Taken {
    pub heap: &'static Heap,
    pub block: FreeBlock,
}

/// What goes back to the device together, and the parts of it.
pub(super) type Lot = (GranuleRun, Vec<Taken>);

impl Ground {
    /// Gives all unused memory of one pool, or of all, back to the device. Waits for the device first. Returns whether
    /// anything went back.
    pub(crate) fn trim(&self, pool: Option<u32>) -> Result<bool> {
        self.trim_to(pool, 0)
    }

    /// The same until no more than `keep` bytes of it are reserved: as little as suffices, which may be the whole of a tie.
    /// Does nothing, and does not wait, if it has no more.
    pub(crate) fn trim_to(&self, pool: Option<u32>, keep: u64) -> Result<bool> {
        self.check_reentry()?;
        // Whoever keeps nothing has all idle ranges of addresses unmapped, too.
        let excess = |g: &Growing<'_>| match (keep, pool) {
            (0, _) => u64::MAX,
            (_, Some(p)) => g.holdings(p).reserved.current.saturating_sub(keep),
            (_, None) => g.device.reserved.current.saturating_sub(keep),
        };
        if excess(&self.growing()) == 0 {
            return Ok(false);
        }
        self.order.sync_device()?;
        self.poll_all();
        let wanted = || self.heaps_in(pool.map(PoolId));
        let parts = pool.map_or(Parts::Any, |p| Parts::Of(p, p));
        let mut any = false;
        if self.config.mapping {
            let (taken, transit) = {
                let mut g = self.growing();
                let most = excess(&g).div_ceil(GRANULE);
                let taken = self.take_free(&mut g, wanted(), most, false);
                // Nobody waits for an operation that holds nothing.
                let transit = (!taken.is_empty()).then(|| g.begin_transit(parts));
                (taken, transit)
            };
            let done = self.give_granules_back(taken, &mut any);
            if let Some(transit) = transit {
                transit.end(&mut self.growing());
            }
            done?;
        } else {
            // What is left of a pool may leave it, and must be held by nobody until then.
            let may_leave = pool.filter(|_| keep == 0);
            let (mut taken, most, transit) = {
                let mut g = self.growing();
                let most = excess(&g);
                let taken = self.take_all_free(&mut g, wanted());
                let taken = if may_leave.is_some() { taken } else { self.keep_whole(&g, taken) };
                let transit = (!taken.is_empty()).then(|| g.begin_transit(parts));
                (taken, most, transit)
            };
            let done = self.give_segments_back(&mut taken, most, &mut any);
            // Parts of segments that others use: a pool without blocks does not keep them.
            let leaves = may_leave.filter(|&p| !taken.is_empty() && self.is_empty(p));
            let commons = leaves.and_then(|_| self.commons().ok());
            let commons = commons.filter(|_| self.order.sync_device().is_ok());
            let mut g = self.growing();
            match commons {
                Some(commons) => {
                    for Taken { heap, block } in taken {
                        self.give_to_nobody(&mut g, heap.pool(), commons, block);
                    }
                }
                None => self.return_all(&g, taken),
            }
            if let Some(transit) = transit {
                transit.end(&mut g);
            }
            done?;
        }
        Ok(any)
    }

    /// Whether a pool other than the default one has no blocks, live or waiting.
    fn is_empty(&self, pool: u32) -> bool {
        let idle = |x: &'static Heap| {
            let h = self.look(x);
            h.waiting.is_empty() && h.counters.is_empty()
        };
        PoolId(pool) != PoolId::DEFAULT && self.heaps_of(pool).into_iter().all(idle)
    }

    /// Makes memory of a pool unowned. Nothing that was queued before may use it. Growth is locked.
    pub(in crate::core) fn give_to_nobody(
        &self,
        g: &mut Growing<'_>,
        pool: u32,
        commons: &'static Heap,
        block: FreeBlock,
    ) {
        let bytes = g.bytes_of(block.part);
        let pieces = if self.config.mapping { u64::from(block.part.touched().count) } else { 0 };
        g.change_pool(pool, COMMONS, bytes, pieces);
        g.note_stock(COMMONS, commons.index);
        self.lock(commons).give(block);
    }

    /// The heap of memory that belongs to no pool. Such memory waits for nothing.
    pub(in crate::core) fn commons(&self) -> Result<&'static Heap> {
        match self.all_heaps().find(|x| x.pool() == COMMONS) {
            Some(heap) => Ok(heap),
            None => self.new_heap(COMMONS, UNORDERED),
        }
    }

    /// Merges everything that was freed so far in those heaps, except pinned ones.
    fn merge_wanted(&self, mut heaps: Vec<&'static Heap>) -> Vec<&'static Heap> {
        heaps.retain(|x| !self.is_pinned(x));
        for &heap in &heaps {
            let mut h = self.lock(heap);
            self.drain(&mut h);
            h.give_up_whole();
            h.flush();
            h.give_ids_up(); // others may need some to split their blocks
        }
        heaps
    }

    /// Takes `most` free granules out of the wanted heaps, as far as there are so many, of ties none or all: then perhaps
    /// some more, but as few as suffice. With `ties`, nothing else. Nobody else can use them then, but work that was queued
    /// before they were freed still may.
    pub(super) fn take_free(
        &self,
        g: &mut Growing<'_>,
        wanted: Vec<&'static Heap>,
        most: u64,
        ties: bool,
    ) -> Vec<Taken> {
        let heaps = self.merge_wanted(wanted);
        let chosen =
            if g.has_ties() { self.choose_free_ties(g, &heaps, most, ties) } else { BTreeSet::new() };
        let of_ties: u64 = chosen.iter().map(|t| u64::from(t.count)).sum();
        let mut left = if ties { 0 } else { most.saturating_sub(of_ties) };
        let mut taken = Vec::new();
        let mut cut = BTreeSet::new(); // ties of which a heap has some
        for &heap in &heaps {
            let mut h = self.lock(heap);
            let mut runs = Vec::new();
            h.free_runs(&mut runs);
            for (run, id) in runs {
                // From the end of the run: its owner continues from the front.
                for (piece, tie) in g.cut_at_ties(run).into_iter().rev() {
                    let n = match tie {
                        None => u64::from(piece.count).min(left) as u32,
                        Some(tie) if !chosen.contains(&tie) => 0,
                        Some(tie) if tie == piece => piece.count,
                        Some(tie) => {
                            cut.insert(tie);
                            0
                        }
                    };
                    if n > 0
                        && let Some(block) = h.take_part(id, piece.last(n).extent())
                    {
                        taken.push(Taken { heap, block });
                        left -= if tie.is_none() { u64::from(n) } else { 0 };
                    }
                }
            }
        }
        if !cut.is_empty() {
            self.take_cut_ties(g, &heaps, &cut, &mut taken);
        }
        taken
    }

    /// The ties that go if `most` granules are to go: those that are wholly free, be it in several heaps, where loose
    /// granules are not enough. With `only`, there shall be nothing else.
    fn choose_free_ties(
        &self,
        g: &Growing<'_>,
        heaps: &[&'static Heap],
        most: u64,
        only: bool,
    ) -> BTreeSet<GranuleRun> {
        let (mut loose, mut free) = (0, BTreeMap::<GranuleRun, u32>::new());
        for &heap in heaps {
            let mut runs = Vec::new();
            self.look(heap).free_runs(&mut runs);
            for (piece, tie) in runs.into_iter().flat_map(|(run, _)| g.cut_at_ties(run)) {
                match tie {
                    None => loose += u64::from(piece.count),
                    Some(tie) => *free.entry(tie).or_default() += piece.count,
                }
            }
        }
        let mut ties: Vec<_> = free.into_iter().filter(|(tie, n)| *n == tie.count).map(|t| t.0).collect();
        choose(&mut ties, |t| *t, if only { 0 } else { loose }, most).into_iter().collect()
    }

    /// Takes ties of which several heaps have parts (after a restore), if all their parts are free.
    fn take_cut_ties(
        &self,
        g: &Growing<'_>,
        heaps: &[&'static Heap],
        ties: &BTreeSet<GranuleRun>,
        taken: &mut Vec<Taken>,
    ) {
        let mut parts: BTreeMap<GranuleRun, Vec<Taken>> = BTreeMap::new();
        for &heap in heaps {
            let mut h = self.lock(heap);
            let mut runs = Vec::new();
            h.free_runs(&mut runs);
            for (run, id) in runs {
                for (piece, tie) in g.cut_at_ties(run).into_iter().rev() {
                    let Some(tie) = tie.filter(|t| ties.contains(t)) else { continue };
                    if let Some(block) = h.take_part(id, piece.extent()) {
                        parts.entry(tie).or_default().push(Taken { heap, block });
                    }
                }
            }
        }
        for (tie, parts) in parts {
            match parts.iter().map(|t| t.block.part.units).sum::<u32>() == tie.extent().units {
                true => taken.extend(parts),
                false => self.return_all(g, parts),
            }
        }
    }

    /// What was taken, by what goes back to the device together.
    pub(super) fn lots_of(&self, taken: Vec<Taken>) -> Vec<Lot> {
        let g = self.growing();
        let mut lots: Vec<Lot> = Vec::new();
        for t in taken {
            let run: GranuleRun = t.block.part.touched();
            let lot = g.tie_of(run.first).unwrap_or(run);
            let known = if lot == run { None } else { lots.iter_mut().find(|l| l.0 == lot) };
            match known {
                Some(l) => l.1.push(t),
                None => lots.push((lot, vec![t])),
            }
        }
        lots
    }

    /// Gives granules that were taken back to the device, and unmaps all idle ranges of addresses, which may contain
    /// them. Waits for the device. What the device refuses goes back to the heaps. `any` is set if something went back.
    pub(super) fn give_granules_back(&self, taken: Vec<Taken>, any: &mut bool) -> Result<()> {
        let done = self.order.sync_device().and_then(|()| self.unmap_what_shows(&taken));
        self.release_lots(self.lots_of(taken), done, any)
    }

    /// Gives granules back to the device that nothing uses any more, as long as all goes well.
    pub(super) fn release_lots(&self, lots: Vec<Lot>, mut done: Result<()>, any: &mut bool) -> Result<()> {
        for (run, parts) in lots {
            if done.is_ok() {
                done = self.backing.release(run.first, run.count);
            }
            let mut g = self.growing();
            if done.is_err() {
                self.return_all(&g, parts);
                continue;
            }
            for Taken { heap, block } in parts {
                let part = block.part.touched();
                g.release(heap.pool(), part.bytes(), u64::from(part.count));
                self.look(heap).put_id(block.id);
            }
            let numbers = g.forget_tie(run);
            g.give_room(numbers);
            *any = true;
        }
        done
    }

    /// Unmaps all idle ranges of addresses. Waits for other threads that are just unmapping ranges with granules that
    /// were taken.
    pub(super) fn unmap_what_shows(&self, taken: &[Taken]) -> Result<()> {
        let granules: HashSet<u32> = taken.iter().flat_map(|t| t.block.part.touched().granules()).collect();
        let mut round = 0;
        loop {
            let ranges = self.take_idle_ranges(true);
            if !ranges.is_empty() {
                // Work that is still queued may use those addresses.
                if let Err(e) = self.order.sync_device() {
                    self.keep_ranges(&ranges);
                    return Err(e);
                }
                self.unmap_ranges(ranges)?;
            }
            if !self.aliases.lock().shows_unused(|granule| granules.contains(&granule)) {
                return Ok(());
            }
            pause(round);
            round = round.saturating_add(1);
        }
    }

    /// For segments: takes all free memory out of the wanted heaps, sorted by offset.
    pub(super) fn take_all_free(&self, g: &mut Growing<'_>, wanted: Vec<&'static Heap>) -> Vec<Taken> {
        let mut taken = Vec::new();
        for heap in self.merge_wanted(wanted) {
            let blocks = self.lock(heap).take_all(|granule| g.segment_end(granule));
            taken.extend(blocks.into_iter().map(|block| Taken { heap, block }));
        }
        sort::by_key(&mut taken, |t| t.block.part.off);
        taken
    }

    /// Gives segments that were taken completely back to the device until these have `wanted` bytes: the smallest that
    /// is enough, otherwise the largest first. Waits for the device. Removes them from `taken`. `any` is set if
    /// something went back.
    pub(super) fn give_segments_back(
        &self,
        taken: &mut Vec<Taken>,
        mut wanted: u64,
        any: &mut bool,
    ) -> Result<()> {
        if wanted == 0 {
            return Ok(());
        }
        let runs = joined(taken.iter().map(|t| t.block.part));
        let whole = |s: &&Segment| runs.binary_search(&s.part).is_ok();
        let mut idle: Vec<Segment> = self.growing().segments().filter(whole).copied().collect();
        if idle.is_empty() {
            return Ok(());
        }
        sort::by_key(&mut idle, |s| (s.bytes, s.offset()));
        self.order.sync_device()?;
        while wanted > 0
            && let Some(segment) = next_back(&mut idle, wanted)
        {
            wanted = wanted.saturating_sub(segment.bytes);
            self.growing().take_segment(segment.part.touched().first);
            let done = self.release_segment(&segment);
            let mut g = self.growing();
            if let Err(e) = done {
                g.keep_segment(segment);
                return Err(e);
            }
            // Its parts may have belonged to several pools; they leave those accounts to the byte.
            g.keep_segment(segment);
            let inside =
                |t: &Taken| segment.part.off <= t.block.part.off && t.block.part.end() <= segment.part.end();
            let gone: Vec<Taken> = taken.extract_if(.., |t| inside(t)).collect();
            let last = gone.last().map_or(segment.pool, |t| t.heap.pool());
            for t in &gone {
                let bytes = g.bytes_of(t.block.part);
                g.change_pool(t.heap.pool(), last, bytes, 0);
                self.look(t.heap).put_id(t.block.id);
            }
            g.take_segment(segment.part.touched().first);
            self.forget_segment(&mut g, segment, last);
            *any = true;
        }
        Ok(())
    }

    /// A segment, all of which belonged to `owner`, has gone back to the device, and no heap owns it.
    pub(in crate::core) fn forget_segment(&self, g: &mut Growing<'_>, segment: Segment, owner: u32) {
        for granule in segment.part.touched().granules() {
            self.maps.set_granule(granule, GranuleUse::NONE);
        }
        g.segment_gone(segment, owner);
    }

    /// Keeps those parts of `taken` that make up complete segments, which can go back to the device. Returns the rest
    /// to its heaps, so that nobody has to wait for it.
    pub(super) fn keep_whole(&self, g: &Growing<'_>, mut taken: Vec<Taken>) -> Vec<Taken> {
        let runs = joined(taken.iter().map(|t| t.block.part));
        let whole: Vec<Extent> =
            g.segments().map(|s| s.part).filter(|p| runs.binary_search(p).is_ok()).collect();
        let inside = |part: Extent| {
            let at = whole.partition_point(|s| s.off <= part.off);
            at > 0 && part.end() <= whole[at - 1].end()
        };
        let rest = taken.extract_if(.., |t| !inside(t.block.part)).collect();
        self.return_all(g, rest);
        taken
    }

    /// Returns memory that was taken to the heaps that had it.
    pub(super) fn return_all(&self, _: &Growing<'_>, taken: Vec<Taken>) {
        for Taken { heap, block } in taken {
            self.lock(heap).give(block);
        }
    }

    /// Gives everything back to the device, including live blocks. The device is idle, and nobody uses the pond.
    pub(crate) fn close(&self) -> Result<()> {
        self.forget_heaps();
        self.forget_captures();
        self.order.close();
        let _ = self.trim(None);
        self.forget_uses();
        let segments: Vec<Segment> = self.growing().segments().copied().collect();
        // Continues after a failure: the device may take the others.
        let mut first = Ok(());
        for s in segments {
            self.growing().take_segment(s.part.touched().first);
            first = first.and(self.backing.segment_release(s.offset(), s.bytes));
        }
        first
    }

    /// Gives the tables of the pond, nearly all of its host memory, back to the system. Called after `close`, so much
    /// later that hardly any thread is still in a call that began before. A call that is still in progress finds no
    /// block: no heap has one, and no address leads to one. Therefore both are cleared together, with every heap
    /// locked.
    pub(crate) fn discard(&self) {
        let _g = self.growing();
        let mut locked: Vec<_> = self.all_heaps().map(|x| self.look(x)).collect();
        for h in &mut locked {
            h.become_empty(self.config.source());
        }
        self.maps.discard();
        self.tied.discard();
        *self.tags.lock() = Tags::default();
    }
}

impl Search<'_> {
    /// Where no block is scattered: gives unused granules back, once in a search, to get as many that lie in one piece; as
    /// few as the request needs, and none if the limits would refuse it all the same. Waits for the device.
    pub(super) fn trim_for_one_piece(&mut self, missing: u64) -> bool {
        if std::mem::replace(&mut self.trimmed, true) || self.ground.order.check_wait().is_err() {
            return false;
        }
        // If the device refuses what the limits would then allow, others may have some of it: once more.
        self.trim_once(missing) || self.refused_by_device() && self.trim_once(missing)
    }

    /// Whether the device refused memory that the limits allow.
    pub(super) fn refused_by_device(&self) -> bool {
        let own = [ours::NO_MORE, ours::DEVICE_LIMIT, ours::POOL_LIMIT];
        self.refused.as_ref().is_some_and(|e| !own.contains(&e.message()))
    }

    /// Takes free memory out of the heaps so that the device, once it has that back, can give `missing` granules: as little
    /// as the limits demand, or as many if the device itself is short of them. Nothing, if that would not do. With `ties`
    /// only such as are wholly free; without, the granules shall lie in a row.
    pub(super) fn take_for_growth(
        &self,
        g: &mut Growing<'_>,
        missing: u64,
        ties: bool,
    ) -> Option<Vec<Taken>> {
        let (ground, pool) = (self.ground, self.req.heap.pool());
        let row = missing + u64::from(self.contiguous); // with a number that stays empty
        let own_room = ground.own_room(g, pool) >> GRANULE_SHIFT;
        let room = ground.device_room(g) >> GRANULE_SHIFT;
        let (own, any) = (missing.saturating_sub(own_room), missing.saturating_sub(room));
        let in_a_row = ties || u64::from(g.longest_room()) >= row;
        // What the device refuses although the limits allow it may be had for less than all that is missing.
        let (least, most) = if own == 0 && any == 0 { (0, missing) } else { (any, any) };
        let (own_most, most) = if in_a_row { (own, most) } else { (u64::MAX, u64::MAX) };
        let count =
            |taken: &[Taken]| -> u64 { taken.iter().map(|t| u64::from(t.block.part.touched().count)).sum() };
        let mut taken = match own_most {
            0 => Vec::new(),
            n => ground.take_free(g, ground.heaps_of(pool), n, ties),
        };
        let of_own = count(&taken);
        if of_own >= own && most > of_own {
            taken.extend(ground.take_free(g, ground.heaps_in(None), most - of_own, ties));
        }
        let rows = || g.longest_room_with(taken.iter().map(|t| t.block.part.touched()));
        let serves = of_own >= own && count(&taken) >= least && (in_a_row || rows() >= row);
        if taken.is_empty() || !serves {
            ground.return_all(g, taken);
            return None;
        }
        Some(taken)
    }

    fn trim_once(&mut self, missing: u64) -> bool {
        let ground = self.ground;
        ground.poll_all();
        let (taken, transit) = {
            let mut g = ground.growing();
            let Some(taken) = self.take_for_growth(&mut g, missing, false) else { return false };
            (taken, g.begin_transit(Parts::Any))
        };
        let mut any = false;
        let _ = ground.give_granules_back(taken, &mut any);
        transit.end(&mut ground.growing());
        any && self.note_refusal(|s| s.grow(missing))
    }

    /// For segments: gives idle ones back to the device, so that it can give one that is large enough: as few as are
    /// needed, if that is known. If that does not help, adjacent free memory of several heaps moves to the request's heap.
    pub(super) fn trim_and_grow(&mut self, missing: u64) -> bool {
        let ground = self.ground;
        if ground.order.sync_device().is_err() {
            return false;
        }
        ground.poll_all();
        let own = ground.config.source() == Source::OwnSegments;
        let lacks = if own { self.lacks_for_segment() } else { None };
        let (mut taken, transit) = {
            let mut g = ground.growing();
            let taken = ground.take_all_free(&mut g, ground.heaps_in(None));
            let taken = ground.keep_whole(&g, taken);
            let transit = (!taken.is_empty()).then(|| g.begin_transit(Parts::Any));
            (taken, transit)
        };
        let mut any = false;
        let mut released = Ok(());
        let grown = match lacks {
            Some(lacks) => self.swap_for(missing, &lacks, &mut taken),
            None => {
                released = ground.give_segments_back(&mut taken, u64::MAX, &mut any);
                any && self.note_refusal(|s| s.grow(missing))
            }
        };
        if let Some(transit) = transit {
            let mut g = ground.growing();
            ground.return_all(&g, taken);
            transit.end(&mut g);
        }
        grown || released.is_ok() && self.move_run()
    }

    /// Moves the smallest run that is long enough and that several heaps own to the request's heap, if the limit of its
    /// pool allows. Waits for the device, holding nothing but that run.
    fn move_run(&mut self) -> bool {
        let (ground, req) = (self.ground, self.req);
        let units = if req.is_large() { req.size.units } else { super::LARGE_UNITS };
        let mine = req.heap.pool();
        let fits = |g: &Growing<'_>, parts: &[Taken]| {
            let others = parts.iter().filter(|t| t.heap.pool() != mine);
            others.map(|t| g.bytes_of(t.block.part)).sum::<u64>() <= ground.own_room(g, mine)
        };
        let (parts, transit) = {
            let mut g = ground.growing();
            let mut taken = ground.take_all_free(&mut g, ground.heaps_in(None));
            let runs = joined(taken.iter().map(|t| t.block.part));
            let run = runs.into_iter().filter(|r| r.units >= units).min_by_key(|r| r.units);
            let inside = |part: Extent| run.is_some_and(|r| r.off <= part.off && part.end() <= r.end());
            let parts: Vec<Taken> = taken.extract_if(.., |t| inside(t.block.part)).collect();
            ground.return_all(&g, taken);
            if parts.is_empty() || !fits(&g, &parts) {
                ground.return_all(&g, parts);
                return false;
            }
            (parts, g.begin_transit(Parts::Any))
        };
        let idle = ground.order.sync_device().is_ok();
        let mut g = ground.growing();
        // The limit is checked again: the pool may have grown meanwhile.
        let moves = idle && fits(&g, &parts);
        if moves {
            for t in parts {
                let bytes = g.bytes_of(t.block.part);
                g.change_pool(t.heap.pool(), mine, bytes, 0);
                ground.lock(req.heap).give(t.block);
            }
        } else {
            ground.return_all(&g, parts);
        }
        transit.end(&mut g);
        moves
    }
}

/// The next segment to give back for `wanted` bytes: the smallest that is enough, otherwise the largest. `idle` is
/// sorted by size.
fn next_back(idle: &mut Vec<Segment>, wanted: u64) -> Option<Segment> {
    let enough = idle.partition_point(|s| s.bytes < wanted);
    let last = idle.len().checked_sub(1)?;
    Some(idle.remove(enough.min(last)))
}
