//! The search for memory of a request of whose heap nothing fits: the steps are taken in their order until one of them
//! brings enough. The files beside this one have the steps.
//!
//! No lock is held between the steps.

use super::super::blocks::{WaitingBlocks, collect_ids, give_up_whole};
use super::super::desc::{ALIAS, Id};
use super::super::ground::{Ground, gaps};
use super::super::heap::{LockedHeap, Runs, Scratch, Source, Unscattered};
use super::super::state::growth::transits::Parts;
use super::super::types::{PoolId, UNORDERED};
use super::super::units::{GRANULE_SHIFT, LARGE_UNITS};
use super::limits::{self, TOO_MANY_BLOCKS};
use super::ranges::Ranges;
use super::request::Request;
use super::scarcity::{Scarcity, sparing_limit};
use super::segments::Segments;
use super::serve::{Serving, has_host_room};
use super::step::{Step, Steps, Terms};
use super::trials::Trials;
use crate::base::error::{Code, Error, Result};

/// The number of new mappings of blocks of one size after which the device is asked for memory in one piece instead, as
/// long as little more is reserved than the program has ever used.
const MOST_MAPPED_ANEW: u32 = 8;
/// Whole ties are combined if no more than 1 / this of the block remains of the last one.
const MOST_LEFT: u64 = 8;
/// How much more may be reserved then: 1 / this of the allocated peak. With 1/100 a program of the traces on several streams,
/// whose heaps take granules from one another in every step, makes 2800 driver calls a pass.
const SLACK_PART: u64 = 80;
/// The number of new mappings for one size since memory was missing last, after which a program counts as warm although it
/// still maps. Then a block may also begin and end elsewhere in a range than the block before it where memory is scarce.
const MOST_MAPPED_WARM: u32 = 16;
/// How much more may be reserved for a warm program. The same one makes 0 to 12 driver calls a pass then, and up to 200 with
/// 1/80; with 1/50 it makes up to 70 (docs/decisions/mapping.md).
const SLACK_PART_WARM: u64 = 40;
/// After so many, how much more may be reserved where no more than half of what may be had is: a program whose streams take
/// granules from one another made up to 3700 driver calls in every pass with 1/40 (docs/decisions/mapping.md).
const MOST_MAPPED_AMPLE: u32 = 128;
const SLACK_PART_AMPLE: u64 = 8;

/// One search.
pub(super) struct Search<'a> {
    pub ground: &'a Ground,
    pub req: &'a Request,
    pub serving: Serving<'a>,
    /// The request's pool is contiguous: nothing is scattered.
    pub contiguous: bool,
    pub scratch: Scratch,
    /// Why the device did not give anything, the last time that it was asked. An error of the device says more than that
    /// it has no more memory, and is kept in preference to that.
    pub refused: Option<Error>,
    /// What the request fails for: lack of memory, or what is wrong with a device that gave none for another reason
    /// when it was asked last.
    pub lacks: Code,
    /// What was tried, also in searches before this one.
    pub trials: Trials,
    /// The device, or a limit, has refused before.
    retried: bool,
    /// Unused granules have been given back, to get others that lie in one piece.
    pub trimmed: bool,
    /// Whole free ties may be used.
    pub ties: bool,
    /// They were.
    pub used_ties: bool,
    /// Whole free ties of the request's heap are pieces of its block before the device is asked for more.
    combines: bool,
    /// Nothing else is left but to cut whole segments that should otherwise not be cut.
    pub whole: bool,
}

/// What a search may do in its next round.
struct Plan {
    /// Which granules a scattered block takes.
    runs: Runs,
    /// A block may be put together from scattered pieces.
    scattering: bool,
    /// It may take a range that begins and ends elsewhere.
    refits: bool,
    /// A block that fits somewhere is scattered if that costs less. For the first round only.
    sparing: bool,
    /// All blocks that wait are merged first, small ones too.
    all: bool,
    /// The device was asked for more although a block could have been scattered: that was mapped too often.
    grown_instead: bool,
    /// The block ids that other heaps have in stock were collected.
    collected: bool,
    /// Memory was just taken from the device for the request. Then whole segments are cut.
    fresh: bool,
}

/// How a round ended.
enum Round {
    /// With a block, at this offset.
    Served(u64),
    /// Something has changed: the next one may serve the request, without a step before it.
    Again,
    /// So many granules are missing.
    Lacks(u64),
}

impl Drop for Search<'_> {
    fn drop(&mut self) {
        // Another search may have left its own there, which goes with this one when nothing is locked.
        std::mem::swap(&mut *self.ground.scratch(), &mut self.scratch);
    }
}

impl Serving<'_> {
    /// Finds memory for a request of whose heap nothing fits; returns the offset of its block.
    #[cold]
    #[inline(never)]
    pub(super) fn refill(self) -> Result<u64> {
        let ground = self.ground;
        ground.check_reentry()?;
        let mut round = 0;
        let mut trials = Trials::default();
        let mut serving = self;
        loop {
            let since = ground.transits_so_far();
            let mut search = Search::new(serving, trials);
            // Another search has the lists, or this is the first.
            if search.scratch.is_new() && !has_host_room(ground) {
                return serving.out_of_memory(Code::OutOfMemory, None, trials);
            }
            if let Some(offset) = search.run()? {
                search.note_whole_ties();
                return Ok(offset);
            }
            let (lacks, refused) = (search.lacks, search.refused.take());
            trials = std::mem::take(&mut search.trials);
            serving = search.serving;
            drop(search);
            if !ground.should_search_again(since, &mut round) {
                return self.out_of_memory(lacks, refused, trials);
            }
        }
    }
}

impl<'a> Search<'a> {
    fn new(serving: Serving<'a>, trials: Trials) -> Search<'a> {
        let Serving { ground, req, .. } = serving;
        Search {
            ground,
            req,
            serving,
            contiguous: ground.pools().is_contiguous(req.pool),
            scratch: std::mem::take(&mut *ground.scratch()),
            refused: None,
            lacks: Code::OutOfMemory,
            trials,
            retried: false,
            trimmed: false,
            ties: false,
            used_ties: false,
            // Where memory is scarce, ties go back to the device for granules that serve anywhere.
            combines: ground.shared().tied.any() && ground.hints.ties_ended_at() == 0,
            whole: false,
        }
    }

    /// Goes through the steps until there is a block; returns its offset. `None`: there is no memory.
    fn run(&mut self) -> Result<Option<u64>> {
        let mut plan = self.plan();
        let mut steps: Option<Steps> = None; // the device is asked only when it must give something
        loop {
            // It may have begun to fall asleep since the request found its heap.
            self.check_awake()?;
            let missing = match self.round(&mut plan)? {
                Round::Served(offset) => return Ok(Some(offset)),
                Round::Again => continue,
                Round::Lacks(granules) => granules,
            };
            let steps = steps.get_or_insert_with(|| self.steps());
            let Some(step) = steps.next(missing) else {
                let spares = self.ground.config.source() == Source::OwnSegments;
                if std::mem::replace(&mut self.whole, true) || !spares {
                    return Ok(None);
                }
                steps.begin_again(); // others have some, too
                continue;
            };
            let helped = self.try_step(step, missing, plan.scattering);
            plan.fresh = helped && step.brings_new_memory();
            steps.note(step, helped);
            if let Some(e) = self.refused.take_if(|e| e.code() == Code::NotInitialized) {
                return Err(e); // the device has ended
            }
        }
    }

    /// What a search may do as it begins.
    fn plan(&self) -> Plan {
        let (ground, req) = (self.ground, self.req);
        Segments::of(ground).note_most();
        let scarcity = match req.is_large() && req.size.units >= LARGE_UNITS {
            true => Scarcity::note(ground, req.heap),
            false => Scarcity::NONE,
        };
        let scattering = ground.config.mapping && !self.contiguous && !req.in_one_piece(ground);
        // Where memory is scarce, how little of it a block makes hard to use counts for more than driver calls.
        let refits = scattering
            && req.is_large()
            && (scarcity.runs == Runs::Few || self.times_mapped_warm() >= MOST_MAPPED_WARM);
        Plan {
            runs: scarcity.runs,
            scattering,
            refits,
            sparing: scarcity.spares && scattering,
            all: self.serving.merges_small_first(),
            grown_instead: false,
            collected: false,
            fresh: false,
        }
    }

    /// The steps of the request.
    fn steps(&self) -> Steps {
        let stream = self.req.heap.stream();
        match () {
            () if stream == UNORDERED => Steps::unordered(),
            () if self.ground.order.records(stream) => Steps::captured(),
            () => Steps::ordered(),
        }
    }

    /// Tries to serve the request from what its heap has now.
    fn round(&mut self, plan: &mut Plan) -> Result<Round> {
        let (ground, req) = (self.ground, self.req);
        let grows_instead =
            req.is_large() && plan.scattering && !plan.grown_instead && self.is_mapped_too_often();
        let mut h = ground.lock(req.heap);
        let limit = match std::mem::take(&mut plan.sparing) {
            true => sparing_limit(ground, &mut h, req.size.units),
            false => None,
        };
        if let Some(to) = req.aligned {
            let id = self.serving.fit_aligned(&mut h, to, plan.fresh)?;
            if id != 0 {
                return Ok(Round::Served(self.serving.finish_aligned(h, id, to)));
            }
        } else if limit.is_none() {
            let id = self.serving.fit_merged(&mut h, plan.all, self.whole || plan.fresh);
            if id != 0 {
                return Ok(Round::Served(self.serving.finish(h, id, req.size.tier as u32)));
            }
        }
        if !h.stock(IDS_FOR_A_CUT) {
            drop(h);
            self.collect_ids(&mut plan.collected)?;
            return Ok(Round::Again);
        }
        match req.is_large() && plan.scattering {
            true => self.put_together(h, plan, limit, grows_instead),
            false => Ok(Round::Lacks(req.granules())),
        }
    }

    /// Tries to serve the request by a range that is mapped already, or by one over scattered pieces. It fits somewhere if
    /// there is a `limit`: what the pieces may cost to be better.
    fn put_together(
        &mut self,
        mut h: LockedHeap<'_>,
        plan: &mut Plan,
        limit: Option<u32>,
        grows_instead: bool,
    ) -> Result<Round> {
        let (ground, req) = (self.ground, self.req);
        if let Some(id) = Ranges::of(ground).revive(&mut h, req.size.units, plan.refits, &mut self.scratch) {
            return Ok(Round::Served(self.serving.finish(h, id, ALIAS)));
        }
        if limit.is_none() && grows_instead {
            drop(h);
            plan.grown_instead = true;
            if self.has_slack(req.granules(), plan.runs) {
                // Success or not: the next round finds what there is.
                let _ = self.grow(req.granules());
            }
            return Ok(Round::Again);
        }
        Ok(match self.scatter(&mut h, (limit, plan.runs)) {
            Ok(first) => match self.map_scattered(h, first, limit.is_none()) {
                Ok(offset) => Round::Served(offset),
                Err(e) => {
                    // The device refused to map them together; ask for memory in one piece.
                    self.refused = Some(e);
                    (plan.scattering, plan.all) = (false, true);
                    Round::Again
                }
            },
            Err(Unscattered::OutOfIds) => {
                drop(h);
                self.collect_ids(&mut plan.collected)?;
                Round::Again
            }
            Err(_) if limit.is_some() => Round::Again,
            Err(_) if !plan.all => {
                plan.all = true;
                Round::Again
            }
            Err(Unscattered::Lacks(n)) => Round::Lacks(n),
            Err(Unscattered::TooDear) => Round::Lacks(req.granules()),
        })
    }

    /// Takes one step and notes it for the report; returns whether it brought anything.
    fn try_step(&mut self, step: Step, missing: u64, scattering: bool) -> bool {
        if matches!(step, Step::Ties) {
            return self.use_whole_ties(); // no step of its own, but other terms for the others
        }
        let mut trials = std::mem::take(&mut self.trials);
        let helped = trials.note(step.reported(), || self.take(step, missing, scattering));
        self.trials = trials;
        helped
    }

    /// `NotPermitted` if the request's pool sleeps, falls asleep or wakes.
    fn check_awake(&self) -> Result<()> {
        self.ground.pools().check_awake(PoolId(self.req.heap.pool()))
    }

    /// Takes one step; returns whether it brought anything.
    fn take(&mut self, what: Step, missing: u64, scattering: bool) -> bool {
        let ground = self.ground;
        let makes_lists = match what {
            Step::Collect => ground.tuned.get().collect_above != 0,
            Step::Swap => ground.config.source() == Source::OwnSegments,
            Step::Untie => !ground.growing().ties.is_empty(),
            Step::Steal { same_pool: false, terms: Terms::Wait } => self.ties,
            Step::Trim => !ground.config.mapping || self.contiguous || self.req.in_one_piece(ground),
            _ => false,
        };
        if makes_lists && !has_host_room(ground) {
            return false;
        }
        match what {
            Step::Steal { same_pool, terms } => {
                let last = self.ties && !same_pool && terms == Terms::Wait;
                self.steal(missing, scattering, same_pool, terms)
                    || last && self.steal_shared_ties(missing, scattering)
            }
            Step::Device => {
                let got = self.note_refusal(|s| s.grow_tuned(missing));
                let (pool, mut g) = (self.req.heap.pool(), ground.growing());
                match !got && g.pool_room(pool) >> GRANULE_SHIFT < missing {
                    true => g.note_limited(pool),
                    false => g.note_missing(got),
                }
                drop(g);
                if !got {
                    self.combines = false; // what is taken from now on should serve anywhere
                    self.count_retry();
                }
                got
            }
            Step::Collect => self.collect(missing),
            Step::Whole => give_up_whole(ground),
            Step::Ready => WaitingBlocks::of(ground).poll_all(),
            Step::Swap => self.swap_segments(missing),
            Step::Untie => self.untie(missing),
            Step::Ties => false, // not here
            Step::Waiting => WaitingBlocks::of(ground).wait_for_any(),
            // Giving idle segments back may let the device serve one that is large enough.
            Step::Trim if !ground.config.mapping => self.trim_and_grow(missing),
            Step::Trim => {
                (self.contiguous || self.req.in_one_piece(ground)) && self.trim_for_one_piece(missing)
            }
        }
    }

    /// Counts that the device, or a limit, has refused, and that the search goes on: once a search.
    fn count_retry(&mut self) {
        if std::mem::replace(&mut self.retried, true) {
            return;
        }
        self.ground.refusals.count_retried();
        if let Some(p) = self.ground.pools().get(PoolId(self.req.pool)) {
            p.refusals.count_retried();
        }
    }

    /// Runs a step that the device may refuse, and keeps the reason for the error.
    pub(super) fn note_refusal(&mut self, step: impl FnOnce(&mut Self) -> Result<()>) -> bool {
        match step(self) {
            Ok(()) => true,
            Err(e) => {
                self.lacks = match e.code() {
                    code @ (Code::Device | Code::System) => code,
                    _ => Code::OutOfMemory,
                };
                let says_more = |before: &Error| before.code() != Code::OutOfMemory;
                if e.code() != Code::OutOfMemory || !self.refused.as_ref().is_some_and(says_more) {
                    self.refused = Some(e);
                }
                false
            }
        }
    }

    /// Makes the block ids that heaps have in stock available to all, once in a search: there are no others left.
    fn collect_ids(&mut self, collected: &mut bool) -> Result<()> {
        if std::mem::replace(collected, true) {
            return Err(limits::error(TOO_MANY_BLOCKS));
        }
        collect_ids(&self.ground.growing());
        Ok(())
    }

    // ---- scattered blocks --------------------------------------------------------------------------------

    /// Puts the block together from free memory of its heap: from what lies in no tie, and where that is not enough with
    /// ties, as far as these may be used. `limit` and `runs` as for [`LockedHeap::scatter`].
    fn scatter(
        &mut self,
        h: &mut LockedHeap<'_>,
        (limit, runs): (Option<u32>, Runs),
    ) -> Result<Id, Unscattered> {
        let (req, scratch) = (self.req, &mut self.scratch);
        let units = req.size.units;
        if self.ties {
            let found = h.scatter_ties(units, u64::MAX, scratch);
            self.used_ties |= found.is_ok();
            return found;
        }
        let lacks = match h.scatter(units, limit, runs, scratch) {
            Err(Unscattered::Lacks(n)) if self.combines && limit.is_none() => n,
            other => return other,
        };
        h.scatter_ties(units, req.granules() / MOST_LEFT, scratch).map_err(|e| match e {
            Unscattered::Lacks(n) => Unscattered::Lacks(n.min(lacks)),
            e => e,
        })
    }

    /// Whether granules were newly mapped together so often for blocks of this size that growing is better.
    fn is_mapped_too_often(&self) -> bool {
        self.ground.growing().times_mapped_anew(self.req.size.units).0 >= MOST_MAPPED_ANEW
    }

    /// How often granules were newly mapped together for blocks of this size since memory was missing last.
    fn times_mapped_warm(&self) -> u32 {
        self.ground.growing().times_mapped_anew(self.req.size.units).1
    }

    /// Whether `granules` more may be taken from the device just to spare driver calls.
    fn has_slack(&self, granules: u64, runs: Runs) -> bool {
        let peak = self.ground.ledger().device.peaks.allocated();
        let part = match self.times_mapped_warm() {
            MOST_MAPPED_AMPLE.. if runs == Runs::Few => SLACK_PART_AMPLE,
            MOST_MAPPED_WARM.. => SLACK_PART_WARM,
            _ => SLACK_PART,
        };
        let reserved = self.ground.growing().account.reserved();
        reserved + (granules << GRANULE_SHIFT) <= peak + peak / part
    }

    /// Maps the pieces in the scratch space, which were just taken out of the locked heap, as the requested block;
    /// returns its offset. On failure the heap has them again. `counts`: a new mapping counts for this size of block, and else
    /// among those that only spare memory.
    fn map_scattered(&mut self, mut h: LockedHeap<'_>, first: Id, counts: bool) -> Result<u64> {
        let (ground, req) = (self.ground, self.req);
        let ranges = Ranges::of(ground);
        // Tells a restore that these pieces are neither free nor part of a block yet.
        h.in_hand += 1;
        drop(h);
        let put_down = || {
            let mut h = ground.lock(req.heap);
            h.in_hand = h.in_hand.saturating_sub(1); // 0 if the device has ended
            h
        };
        gaps::here();
        let known = ground.aliases().take(&self.scratch.pieces);
        let range = match known {
            Some(range) => Ok(range),
            None => {
                // In transit until they are mapped: a pool that falls asleep waits for that, and from then on nothing of it is
                // mapped.
                let mut g = ground.growing();
                if let Err(e) = self.check_awake() {
                    put_down().unscatter(first);
                    return Err(e);
                }
                let transit = g.begin_transit(Parts::Of(req.heap.pool(), req.heap.pool()));
                drop(g);
                let new = ranges.map(&self.scratch.pieces, req.heap);
                let mut g = ground.growing();
                match &new {
                    Ok(_) if counts => g.note_mapped_anew(req.size.units),
                    Ok(_) => g.note_spared(req.heap.pool()),
                    Err(_) => put_down().unscatter(first),
                }
                transit.end(&mut g);
                new
            }
        }?;
        ranges.make_block(req.heap, range, req.size.units, first);
        gaps::here();
        Ok(self.serving.finish(put_down(), range.id, ALIAS))
    }
}

/// The number of block ids that cutting a part out of a free block takes: one for the part, one for what is behind it.
const IDS_FOR_A_CUT: u32 = 2;
