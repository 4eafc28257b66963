//! Where a heap's memory comes from when it has none that fits: its own scattered granules, what other
//! heaps have free, the device, and under pressure whatever costs least.
//!
//! The promise on a device that maps: no request fails while the free granules of the device and of
//! all heaps together suffice. All of this runs under the growth lock, off the hot path.

use super::desc::{DIRECT, Id, USES};
use super::heap::{Heap, Scratch};
use super::pond::{Held, Pond, lock};
use super::pools::{RETIRED, UNORDERED};
use super::shape::{GRANULE_SHIFT, LARGE_UNITS, LARGE_UNITS_SHIFT, Tier};
use super::types::{Counter, PoolId};
use crate::base::error::{Code, Error, Result};
use crate::base::sync::{MutexGuard, Ordering, Ordering::Relaxed};
use crate::fail;
use std::collections::{BTreeMap, HashMap};

mod collect;
mod device;
mod scatter;
mod steal;
mod trim;

/// A piece of memory taken from the device with one call.
#[derive(Clone, Copy, Debug)]
struct Segment {
    first: u32, // granule
    units: u32, // that are served
    bytes: u64, // as asked from the device
    serial: u64,
}

/// What is taken from the device, and where there is room for more.
#[derive(Debug)]
pub(crate) struct Growth {
    /// Granule numbers with nothing behind them: first -> count.
    room: BTreeMap<u32, u32>,
    segments_held: BTreeMap<u32, Segment>, // by first granule
    last_serial: u64,
    pub reserved: Counter,
    pub segments: Counter,
    pub sleeping: Counter,
    pub pools: BTreeMap<u32, Held>,
    /// By units of the block: how often granules had to be mapped together anew for it.
    mapped_anew: HashMap<u32, u32>,
    scratch: Scratch,
    runs: Vec<(u32, u32, Id)>, // scratch
    pieces: Vec<(u32, u32)>,   // scratch
    known: Vec<u32>,           // scratch
}

impl Growth {
    pub(crate) fn new(real: u32) -> Self {
        Growth {
            room: BTreeMap::from([(0, real)]),
            segments_held: BTreeMap::new(),
            last_serial: 0,
            reserved: Counter::default(),
            segments: Counter::default(),
            sleeping: Counter::default(),
            pools: BTreeMap::new(),
            mapped_anew: HashMap::new(),
            scratch: Scratch::default(),
            runs: Vec::new(),
            pieces: Vec::new(),
            known: Vec::new(),
        }
    }

    fn hold(&mut self, pool: u32, bytes: u64, segments: u64) {
        self.reserved.add(bytes);
        self.segments.add(segments);
        let p = self.pools.entry(pool).or_default();
        p.reserved.add(bytes);
        p.segments.add(segments);
    }
    pub(crate) fn release(&mut self, pool: u32, bytes: u64, segments: u64) {
        self.reserved.sub(bytes);
        self.segments.sub(segments);
        if let Some(p) = self.pools.get_mut(&pool) {
            p.reserved.current = p.reserved.current.saturating_sub(bytes);
            p.segments.current = p.segments.current.saturating_sub(segments);
        }
    }
    /// Memory of a pool goes to sleep: it is not reserved any more, but its granule numbers are not free.
    pub(crate) fn fall_asleep(&mut self, pool: u32, granules: u64) {
        self.release(pool, granules << GRANULE_SHIFT, granules);
        self.sleeping.add(granules << GRANULE_SHIFT);
        self.pools.entry(pool).or_default().sleeping.add(granules << GRANULE_SHIFT);
    }
    /// It is there again, or, if not `reserved`, gone for good.
    pub(crate) fn wake_up(&mut self, pool: u32, granules: u64, reserved: bool) {
        self.sleeping.sub(granules << GRANULE_SHIFT);
        if let Some(p) = self.pools.get_mut(&pool) {
            p.sleeping.sub(granules << GRANULE_SHIFT);
        }
        if reserved {
            self.hold(pool, granules << GRANULE_SHIFT, granules);
        }
    }
    fn moved(&mut self, from: u32, to: u32, bytes: u64, segments: u64) {
        if from != to {
            if let Some(p) = self.pools.get_mut(&from) {
                p.reserved.current = p.reserved.current.saturating_sub(bytes);
                p.segments.current = p.segments.current.saturating_sub(segments);
            }
            let p = self.pools.entry(to).or_default();
            p.reserved.add(bytes);
            p.segments.add(segments);
        }
    }
    /// The highest granule number with nothing behind it: for chunks, which stay away from large blocks.
    fn take_top(&mut self) -> Option<u32> {
        let (&at, &n) = self.room.last_key_value()?;
        if n == 1 {
            self.room.remove(&at)
        } else {
            self.room.insert(at, n - 1)
        };
        Some(at + n - 1)
    }
    /// `count` granule numbers in a row; a run that follows `after` directly is preferred.
    fn take_room(&mut self, count: u32, after: Option<u32>) -> Option<u32> {
        let at = after
            .filter(|a| self.room.get(a).is_some_and(|&n| n >= count))
            .or_else(|| self.room.iter().find(|r| *r.1 >= count).map(|r| *r.0))?;
        let n = self.room.remove(&at)?;
        if n > count {
            self.room.insert(at + count, n - count);
        }
        Some(at)
    }
    pub(crate) fn give_room(&mut self, mut first: u32, mut count: u32) {
        if let Some((&f, &n)) = self.room.range(..first).next_back()
            && f + n == first
        {
            self.room.remove(&f);
            first = f;
            count += n;
        }
        if let Some(n) = self.room.remove(&(first + count)) {
            count += n;
        }
        self.room.insert(first, count);
    }
    /// The largest run of granule numbers with nothing behind them.
    fn longest_room(&self) -> u32 {
        self.room.values().copied().max().unwrap_or(0)
    }
    /// The granule numbers that have something behind them, as runs.
    pub(crate) fn occupied(&self, real: u32) -> Vec<(u32, u32)> {
        let (mut at, mut runs) = (0, Vec::new());
        for (&first, &count) in &self.room {
            if first > at {
                runs.push((at, first - at));
            }
            at = first + count;
        }
        if at < real {
            runs.push((at, real - at));
        }
        runs
    }
    /// The number of the segment that has this granule, never used again, and how many units the granule
    /// lacks. `None`: no segment has it.
    pub(crate) fn segment_of(&self, granule: u32) -> Option<(u64, u32)> {
        let (_, s) = self.segments_held.range(..=granule).next_back()?;
        let units = (granule - s.first) << LARGE_UNITS_SHIFT;
        (units < s.units).then(|| (s.serial, LARGE_UNITS.saturating_sub(s.units - units)))
    }
    /// One past the last granule number that has something behind it. For tests.
    #[cfg(test)]
    pub(crate) fn used(&self, real: u32) -> u32 {
        self.room.last_key_value().filter(|r| r.0 + r.1 == real).map_or(real, |r| *r.0)
    }
    /// A direct block's segment has gone.
    pub(crate) fn segment_gone(&mut self, pool: u32, first: u32, bytes: u64) {
        if let Some(s) = self.segments_held.remove(&first) {
            self.give_room(first, s.units.div_ceil(LARGE_UNITS) + 1);
        }
        self.release(pool, bytes, 1);
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

/// [units] less cost that must make up for the driver calls of a new mapping, where a block fits somewhere as well.
pub(crate) const WORTH_MAPPING: u32 = 8;

/// From whom memory may be taken, and on what terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Terms {
    /// The giver's stream has nothing queued.
    Idle,
    /// The taker waits for the giver's stream, on the device (a taker without a stream: on the host).
    Wait,
}

/// What is tried next for a request that found nothing, cheapest first.
const STEPS: [Step; 9] = [
    Step::Steal { same_pool: true, terms: Terms::Idle },
    Step::Collect,
    Step::Device,
    Step::Whole,
    Step::Steal { same_pool: true, terms: Terms::Wait },
    Step::Steal { same_pool: false, terms: Terms::Idle },
    Step::Pending,
    Step::Steal { same_pool: false, terms: Terms::Wait },
    Step::Trim,
];

/// For a stream that is captured: it can neither be marked nor wait.
const CAPTURED: [Step; 1] = [Step::Device];

#[derive(Clone, Copy, Debug)]
enum Step {
    Steal { same_pool: bool, terms: Terms },
    Collect,
    Device,
    Whole,
    Pending,
    Trim,
}

impl Pond {
    /// A block for a heap in which nothing fits.
    #[cold]
    #[inline(never)]
    pub(crate) fn refill(
        &self,
        heap: &'static Heap,
        tier: Tier,
        units: u32,
        contract: u64,
        bytes: u64,
    ) -> Result<u64> {
        let mut g = self.hold_growth()?;
        let mut steps: Option<&[Step]> = None; // the device is asked only when it must give something
        let mut step = 0;
        let mut refused: Option<Error> = None;
        let mut scattering = self.config.mapping;
        let mut all = self.merges_small_first();
        let mut eased = false;
        // What is to be scattered although it fits somewhere, if that costs less.
        let mut sparing = tier == Tier::Large && units >= LARGE_UNITS && self.note_scarcity(&g, heap);
        loop {
            let mut h = heap.inner.lock();
            let limit = match std::mem::take(&mut sparing) {
                true => self.sparing_limit(heap, &mut h, units),
                false => None,
            };
            let spared = limit.is_some();
            if !spared {
                let id = self.fit_merged(heap, &mut h, tier, units, all);
                if id != 0 {
                    drop(g);
                    return Ok(self.finish(heap, h, id, tier as u32, contract, bytes));
                }
            }
            let mut missing = if tier == Tier::Large { u64::from(units.div_ceil(LARGE_UNITS)) } else { 1 };
            if tier == Tier::Large && scattering {
                if let Some(id) = self.revive(&mut g, heap, &mut h, units) {
                    drop(g);
                    return Ok(self.finish(heap, h, id, Self::ALIAS_BITS, contract, bytes));
                }
                if !spared && g.mapped_anew.get(&units).is_some_and(|&n| n >= WORN) && !eased {
                    drop(h);
                    eased = true;
                    if self.has_slack(&g, missing) {
                        // Success or not: the next round finds what there is.
                        let _ = self.grow(&mut g, heap, missing, tier, contract);
                    }
                    continue;
                }
                match h.scatter(&self.maps, units, limit, &mut g.scratch) {
                    Ok(first) => {
                        drop(h);
                        match self.show(&mut g, heap, first, units, !spared) {
                            Ok(id) => {
                                let h = heap.inner.lock();
                                drop(g);
                                return Ok(self.finish(heap, h, id, Self::ALIAS_BITS, contract, bytes));
                            }
                            Err(e) => {
                                // The device would not show them together; ask for memory in one piece.
                                heap.inner.lock().unscatter(&self.maps, first);
                                refused = Some(e);
                                (scattering, all) = (false, true);
                                continue;
                            }
                        }
                    }
                    Err(_) if spared => continue,
                    Err(u64::MAX) => {
                        fail!(Code::OutOfMemory, "more blocks than the library can keep track of")
                    }
                    Err(_) if !all => {
                        all = true;
                        continue;
                    }
                    Err(n) => missing = n,
                }
            }
            drop(h);
            let captured = || self.recording(heap.stream.load(Relaxed));
            let steps = *steps.get_or_insert_with(|| if captured() { &CAPTURED } else { &STEPS });
            let Some(&what) = steps.get(step) else { break };
            let got = match what {
                Step::Steal { same_pool, terms } => {
                    self.steal(&mut g, heap, missing, scattering, same_pool, terms)
                }
                Step::Device => match self.grow_tuned(&mut g, heap, missing, tier, contract) {
                    Ok(()) => true,
                    Err(e) => {
                        refused = Some(e);
                        false
                    }
                },
                Step::Collect => self.collect(&mut g, heap, missing, contract),
                Step::Whole => self.give_up_whole(),
                Step::Pending => self.poll_all(true),
                // Giving idle segments back may let the device serve one that is large enough.
                Step::Trim => {
                    !self.config.mapping
                        && self.trim(&mut g, None).unwrap_or(false)
                        && self.grow(&mut g, heap, missing, tier, contract).is_ok()
                }
            };
            // A step that brought something is tried again only while it goes on bringing.
            if !got {
                step += 1;
            }
        }
        self.out_of_memory(&g, heap, contract, bytes, refused)
    }

    fn out_of_memory(
        &self,
        g: &MutexGuard<'_, Growth>,
        heap: &Heap,
        contract: u64,
        bytes: u64,
        why: Option<Error>,
    ) -> Result<u64> {
        self.oom_count.fetch_add(1, Relaxed);
        if let Some(p) = self.pool(PoolId(heap.pool.load(Relaxed))) {
            p.oom_count.fetch_add(1, Relaxed);
        }
        let why = why.map_or(String::new(), |e| format!("; {e}"));
        fail!(
            Code::OutOfMemory,
            "no room for {bytes} bytes ({contract} after rounding): {} of {} bytes are reserved{why}",
            g.reserved.current,
            self.config.max_alloc
        )
    }
}
