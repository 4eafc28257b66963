//! Where a heap's memory comes from when it has none that fits: its own scattered granules, what other
//! heaps have free, the device, and under pressure whatever costs least.
//!
//! The promise on a device that maps: no request fails while the free granules of the device and of
//! all heaps together suffice; of granules in ties (`ties.rs`) those of ties that are wholly free. What another thread has in its hands at the moment is waited for before a request fails.
//!
//! All of this is off the hot path. The growth lock is held for moments only, and never while the device is asked.

use super::desc::Id;
use super::ground::Ground;
use super::heap::{Heap, LockedHeap, Scratch, Source, Unscattered};
use super::shape::{Class, Size, Tier};
use super::types::{NO_POOL, PoolId, UNORDERED};
use super::units::LARGE_UNITS;
use crate::base::error::{Code, Error, Result};
use crate::base::sync::Ordering::Relaxed;
use crate::fail;
use std::sync::Arc;

mod aligned;
mod collect;
mod device;
mod fit;
mod gained;
mod own;
mod parts;
mod scarcity;
mod scatter;
mod steal;
mod ties;
mod trials;
mod trim;

pub(in crate::core) use gained::gained;
use scarcity::Scarcity;
pub(crate) use steal::Terms;
pub(crate) use trials::Trials;

/// What a request needs: computed once, and carried through.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    /// The heap that serves it.
    pub heap: &'static Heap,
    /// The pool that the heap was found for: if that ends, the heap serves nobody, or another pool.
    pub pool: u32,
    pub size: Size,
    pub charged: u64, // [B]
    pub bytes: u64,   // [B] as asked for
    /// It begins at a multiple of more than every block does.
    pub aligned: Option<Aligned>,
}

/// The terms of a block that begins at a multiple of something.
#[derive(Clone, Copy)]
pub(crate) struct Aligned {
    /// [B] a power of two up to a granule.
    pub to: u64,
    /// [units] of the block; the request's size is what must be free so that it is certainly part of that.
    pub units: u32,
}

impl Request {
    /// Fails where the pool of the request has ended. The heap is locked.
    pub(crate) fn check_pool(&self) -> Result<()> {
        if self.heap.pool() != self.pool || self.pool == NO_POOL {
            return Err(Error::new(Code::InvalidArgument, "the pool was destroyed meanwhile"));
        }
        Ok(())
    }

    /// Whether it is one for the large tier.
    fn is_large(&self) -> bool {
        self.size.tier == Tier::Large
    }

    /// Whether it is never served by memory that is shown together.
    fn in_one_piece(&self, ground: &Ground) -> bool {
        self.aligned.is_some() || ground.tuned.in_one_piece()
    }

    /// The granules that it needs if it has none.
    fn granules(&self) -> u64 {
        if self.is_large() { u64::from(self.size.units.div_ceil(LARGE_UNITS)) } else { 1 }
    }
}

/// Ranges of the right size that are looked at for one whose granules are all free.
const REVIVE_TRIES: usize = 32;

/// New mappings of blocks of one size after which the device is asked for memory in one piece instead, as
/// long as little more is reserved than the program has ever used.
const WORN: u32 = 8;
/// How much more: this part of the allocated peak. It buys that a program on several streams, whose heaps take
/// granules from one another in every step, comes to rest: on the traces 1/80 leaves such a program
/// 61 driver calls in each of its passes 15 to 30, 1/100 leaves it 2800.
const SLACK_PART: u64 = 80;

/// What is tried next for a request that found nothing, cheapest first.
const STEPS: [Step; 12] = [
    Step::Steal { same_pool: true, terms: Terms::Idle },
    Step::Collect,
    Step::Device,
    Step::Whole,
    Step::Swap,
    Step::Steal { same_pool: true, terms: Terms::Wait },
    Step::Steal { same_pool: false, terms: Terms::Idle },
    Step::Waiting,
    Step::Steal { same_pool: false, terms: Terms::Wait },
    Step::Untie,
    Step::Ties,
    Step::Trim,
];
/// Where the device stands among them.
const DEVICE: usize = 2;
/// The step to go on from when blocks that waited have come back: they may be in any heap, and may have stayed whole.
const AFTER_WAITING: usize = 3;

/// The same for a request without a stream, which waits on the host where others make their stream wait: what is ready
/// somewhere comes before any wait.
const UNORDERED_STEPS: [Step; 13] = [
    Step::Steal { same_pool: true, terms: Terms::Idle },
    Step::Collect,
    Step::Device,
    Step::Whole,
    Step::Swap,
    Step::Ready,
    Step::Steal { same_pool: false, terms: Terms::Idle },
    Step::Steal { same_pool: true, terms: Terms::Wait },
    Step::Waiting,
    Step::Steal { same_pool: false, terms: Terms::Wait },
    Step::Untie,
    Step::Ties,
    Step::Trim,
];

/// For a stream that is captured: it can neither be marked nor wait.
const CAPTURED: [Step; 2] = [Step::Device, Step::Ties];

#[derive(Clone, Copy, Debug)]
enum Step {
    Steal {
        same_pool: bool,
        terms: Terms,
    },
    Collect,
    Device,
    Whole,
    /// Idle segments back to the device, for one of the right size, where segments are as large as requests need.
    Swap,
    /// Ties that are wholly free back to the device, for granules that can be shown anywhere.
    Untie,
    /// From now on ties that are wholly free as wholes, also in other pools and as pieces of a scattered block.
    Ties,
    /// Freed blocks that wait for nothing any more.
    Ready,
    /// Freed blocks, the first that is ready; then the memory of released captures.
    Waiting,
    Trim,
}

/// One try of a request to find memory.
struct Search<'a> {
    ground: &'a Ground,
    req: &'a Request,
    /// The request's pool is contiguous: nothing is scattered.
    contiguous: bool,
    scratch: Scratch,
    /// Why the device would not give anything, the last time that it was asked. That something is wrong with it tells
    /// more than that it has no more.
    refused: Option<Error>,
    /// What the request fails for: lack of memory, or what is wrong with a device that gave none for another reason
    /// when it was asked last.
    lacks: Code,
    /// What was tried, also in searches before this one.
    trials: Trials,
    /// The device, or a limit, has refused before.
    retried: bool,
    /// Unused granules have been given back, to get others that lie in one piece.
    trimmed: bool,
    /// Ties that are wholly free serve as wholes.
    ties: bool,
    /// Nothing else is left but to cut whole segments that had better be spared.
    whole: bool,
}

/// Why the device was not asked for more: words of the library's own, beside which it has none.
pub(super) mod ours {
    pub(in crate::core) const NO_MORE: &str = "the device has no more";
    pub(in crate::core) const DEVICE_LIMIT: &str = "the device's limit is reached";
    pub(in crate::core) const POOL_LIMIT: &str = "the pool's limit is reached";
    pub(in crate::core) const TOO_MANY_BLOCKS: &str = "more blocks than the library can keep track of";
    pub(in crate::core) const TOO_MANY_SEGMENTS: &str = "too many segments";
}

/// A request that continues without the lock of its heap. The heap's pool does not end meanwhile.
pub(super) struct Asking<'a> {
    ground: &'a Ground,
    heap: &'static Heap,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut h = self.ground.look(self.heap);
        h.requests = h.requests.saturating_sub(1); // 0 if the device has ended
    }
}

impl Ground {
    /// Notes that a request continues while the heap is unlocked.
    fn asking(&self, h: &mut LockedHeap<'_>) -> Asking<'_> {
        h.requests += 1;
        Asking { ground: self, heap: h.heap }
    }

    /// A block for a request of whose heap nothing fits; its offset.
    #[cold]
    #[inline(never)]
    pub(crate) fn refill(&self, req: &Request) -> Result<u64> {
        self.check_reentry()?;
        let mut round = 0;
        let mut trials = Trials::default();
        loop {
            let since = self.now();
            let scratch = std::mem::take(&mut *self.scratch.lock());
            let lacks = Code::OutOfMemory;
            let mut search = Search {
                ground: self,
                req,
                contiguous: self.is_contiguous(req.pool),
                scratch,
                refused: None,
                lacks,
                trials,
                retried: false,
                trimmed: false,
                ties: false,
                whole: false,
            };
            if let Some(offset) = search.run()? {
                search.note_whole_ties();
                return Ok(offset);
            }
            let (lacks, refused) = (search.lacks, search.refused.take());
            trials = std::mem::take(&mut search.trials);
            drop(search);
            if !self.look_again(since, &mut round) {
                return self.out_of_memory(req, lacks, refused, trials);
            }
        }
    }

    /// The error of a request that found nothing, with the steps that were tried. The caller makes the report from it
    /// (`features/explain.rs`).
    #[cold]
    fn out_of_memory(
        &self,
        req: &Request,
        code: Code,
        why: Option<Error>,
        mut trials: Trials,
    ) -> Result<u64> {
        let own = |e: &Error| [ours::NO_MORE, ours::DEVICE_LIMIT, ours::POOL_LIMIT].contains(&e.message());
        let books = |e: &Error| [ours::TOO_MANY_BLOCKS, ours::TOO_MANY_SEGMENTS].contains(&e.message());
        trials.books = why.as_ref().is_some_and(books);
        trials.device_said = why.as_ref().filter(|e| !own(e)).map(|e| e.message().to_owned());
        let reserved = self.growing().device.reserved.current;
        let why = why.map_or(String::new(), |e| format!("; {e}"));
        let message = format!(
            "no room for {} bytes ({} after rounding): {reserved} of {} bytes are reserved{why}",
            req.bytes, req.charged, self.config.max_alloc
        );
        Err(Error::new(code, message).with(Arc::new(trials)))
    }
}

impl Drop for Search<'_> {
    fn drop(&mut self) {
        // Another search may have left its own there, which goes with this one when nothing is locked.
        std::mem::swap(&mut *self.ground.scratch.lock(), &mut self.scratch);
    }
}

impl Search<'_> {
    /// Goes through the steps until there is a block. `None`: there is no memory.
    fn run(&mut self) -> Result<Option<u64>> {
        let (ground, req) = (self.ground, self.req);
        let mut steps: Option<&[Step]> = None; // the device is asked only when it must give something
        let mut step = 0;
        let mut refused_for = u64::MAX; // granules that the device was asked for last
        let mut scattering = ground.config.mapping && !self.contiguous && !req.in_one_piece(ground);
        let mut all = ground.merges_small_first();
        let (mut eased, mut collected) = (false, false);
        // Whole segments are cut when nothing else is left, and when one was just taken for the request.
        let mut fresh = false;
        ground.note_most();
        let scarcity = match req.is_large() && req.size.units >= LARGE_UNITS {
            true => ground.note_scarcity(req.heap),
            false => Scarcity::NONE,
        };
        // What is to be scattered although it fits somewhere, if that costs less.
        let mut sparing = scarcity.spares && scattering;
        loop {
            let worn = req.is_large() && scattering && !eased && ground.is_worn(req.size.units);
            let mut h = ground.lock(req.heap);
            let limit = match std::mem::take(&mut sparing) {
                true => ground.sparing_limit(&mut h, req.size.units),
                false => None,
            };
            let spared = limit.is_some();
            if let Some(to) = req.aligned {
                let id = ground.fit_aligned(&mut h, req, to, fresh)?;
                if id != 0 {
                    return Ok(Some(ground.finish_aligned(h, id, req, to)));
                }
            } else if !spared {
                let id = ground.fit_merged(&mut h, req.size, all, self.whole || fresh);
                if id != 0 {
                    return Ok(Some(ground.finish(h, id, req.size.tier as u32, req)));
                }
            }
            if !h.stock(2) {
                drop(h);
                self.collect_ids(&mut collected)?;
                continue;
            }
            let mut missing = req.granules();
            if req.is_large() && scattering {
                if let Some(id) = ground.revive_range(&mut h, req.size.units, &mut self.scratch) {
                    return Ok(Some(ground.finish(h, id, super::desc::ALIAS, req)));
                }
                if !spared && worn {
                    drop(h);
                    eased = true;
                    if ground.has_slack(missing) {
                        // Success or not: the next round finds what there is.
                        let _ = self.grow(missing);
                    }
                    continue;
                }
                let scattered = match self.ties {
                    true => h.scatter_ties(req.size.units, &mut self.scratch),
                    false => h.scatter(req.size.units, limit, scarcity.runs, &mut self.scratch),
                };
                match scattered {
                    Ok(first) => match self.show(h, first, !spared) {
                        Ok(offset) => return Ok(Some(offset)),
                        Err(e) => {
                            // The device would not show them together; ask for memory in one piece.
                            self.refused = Some(e);
                            (scattering, all) = (false, true);
                            continue;
                        }
                    },
                    Err(Unscattered::OutOfIds) => {
                        drop(h);
                        self.collect_ids(&mut collected)?;
                        continue;
                    }
                    Err(_) if spared => continue,
                    Err(_) if !all => {
                        all = true;
                        continue;
                    }
                    Err(Unscattered::Lacks(n)) => missing = n,
                    Err(Unscattered::TooDear) => {}
                }
            }
            drop(h);
            let captured = || ground.order.records(req.heap.stream());
            let unordered = req.heap.stream() == UNORDERED;
            let steps = *steps.get_or_insert_with(|| match () {
                () if unordered => &UNORDERED_STEPS,
                () if captured() => &CAPTURED,
                () => &STEPS,
            });
            if step > DEVICE && missing < refused_for {
                step = DEVICE; // others gave a part, and the device may have the rest
            }
            let Some(&what) = steps.get(step) else {
                if std::mem::replace(&mut self.whole, true) || ground.config.source() != Source::OwnSegments {
                    return Ok(None);
                }
                step = 0; // others have some, too
                continue;
            };
            if matches!(what, Step::Device) {
                refused_for = missing;
            }
            // A step that helped is tried again as long as it keeps helping.
            let mut trials = std::mem::take(&mut self.trials);
            let helped = match what {
                Step::Ties => self.use_whole_ties(), // no step of its own, but other terms for the others
                _ => trials.step(what, || self.take(what, missing, scattering)),
            };
            self.trials = trials;
            fresh = helped && matches!(what, Step::Device | Step::Swap | Step::Trim);
            if !helped {
                step += 1;
            } else if matches!(what, Step::Ties) {
                step = 0;
            } else if matches!(what, Step::Ready | Step::Waiting) {
                step = if unordered { 0 } else { AFTER_WAITING };
            }
            if let Some(e) = self.refused.take_if(|e| e.code() == Code::NotInitialized) {
                return Err(e); // the device has ended
            }
        }
    }

    /// Takes one step; whether it brought something.
    fn take(&mut self, what: Step, missing: u64, scattering: bool) -> bool {
        let ground = self.ground;
        match what {
            Step::Steal { same_pool, terms } => self.steal(missing, scattering, same_pool, terms),
            Step::Device => {
                let got = self.note_refusal(|s| s.grow_tuned(missing));
                if !got {
                    self.count_retry();
                }
                got
            }
            Step::Collect => self.collect(missing),
            Step::Whole => ground.give_up_whole(),
            Step::Ready => ground.poll_all(),
            Step::Swap => self.swap_segments(missing),
            Step::Untie => self.untie(missing),
            Step::Ties => false, // not here
            Step::Waiting => ground.wait_for_any(),
            // Giving idle segments back may let the device serve one that is large enough.
            Step::Trim if !ground.config.mapping => self.trim_and_grow(missing),
            Step::Trim => {
                (self.contiguous || self.req.in_one_piece(ground)) && self.trim_for_one_piece(missing)
            }
        }
    }

    /// The device, or a limit, has refused, and the search goes on: counted once a search.
    fn count_retry(&mut self) {
        if std::mem::replace(&mut self.retried, true) {
            return;
        }
        self.ground.retries.fetch_add(1, Relaxed);
        if let Some(p) = self.ground.pool(PoolId(self.req.pool)) {
            p.retries.fetch_add(1, Relaxed);
        }
    }

    /// Runs a step that the device may refuse, and keeps why for the error.
    fn note_refusal(&mut self, step: impl FnOnce(&mut Self) -> Result<()>) -> bool {
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

    /// There are no ids left: those that heaps have at hand become everybody's, once in a search.
    fn collect_ids(&self, collected: &mut bool) -> Result<()> {
        if std::mem::replace(collected, true) {
            fail!(Code::OutOfMemory, "{}", ours::TOO_MANY_BLOCKS);
        }
        for heap in self.ground.heaps_but(self.req.heap) {
            let mut h = self.ground.look(heap);
            self.ground.drain(&mut h);
            h.flush();
            h.give_ids_up();
        }
        Ok(())
    }
}

impl Ground {
    /// Whether small blocks are merged before a large one is scattered. In a lone heap that maps this comes last: they
    /// are rarely what a large one lacks, and would all have to be cut anew. Where heaps take granules from one
    /// another, an empty chunk that is kept too long takes granules from other heaps, so that each step remaps them.
    pub(crate) fn merges_small_first(&self) -> bool {
        !self.config.mapping || self.heap_count.load(Relaxed) > 1
    }

    /// A fit after everything of its tier that was freed so far is merged; with `all`, after everything is.
    pub(crate) fn fit_merged(&self, h: &mut LockedHeap<'_>, size: Size, all: bool, whole: bool) -> Id {
        self.drain(h);
        if size.tier != Tier::Large {
            h.flush_fine(size.tier);
        }
        h.flush_large();
        let mut id = h.fit(size);
        if id == 0 && (all || size.tier != Tier::Large) {
            h.flush(); // small blocks may hold the last granule that is missing
            id = h.fit(size);
        }
        if id == 0 {
            id = match size.tier {
                Tier::Large => h.fit_any(size.units, whole),
                _ if whole => h.fit_fine(size, true),
                _ => 0,
            };
        }
        h.count_stuck();
        id
    }

    /// Makes a block that was just taken live, and counts it; its offset.
    pub(crate) fn finish(&self, mut h: LockedHeap<'_>, id: Id, tier_bits: u32, req: &Request) -> u64 {
        h.make_live(id, tier_bits, req.bytes);
        self.flag_tuned(&h, id, req.charged);
        let full = h.counters.count_in(Class::of(tier_bits), req.charged, req.bytes);
        let offset = self.offset(id);
        drop(h);
        if full {
            self.settle(req.heap);
        }
        offset
    }
}
