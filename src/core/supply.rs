//! Where a heap's memory comes from when it has none that fits: its own scattered granules, what other
//! heaps have free, the device, and under pressure whatever costs least.
//!
//! The promise on a device that maps: no request fails while the free granules of the device and of
//! all heaps together suffice. All of this runs under the growth lock, off the hot path.

use super::aliases::Gone;
use super::desc::{DIRECT, GranuleUse, Id, USES, use_of};
use super::heap::{Heap, Inner};
use super::pond::{Held, Pond, lock};
use super::pools::{RETIRED, UNORDERED};
use super::shape::{GRANULE_SHIFT, LARGE_UNITS, LARGE_UNITS_SHIFT, Tier};
use super::types::{Counter, PoolId};
use crate::base::error::{Code, Error, Result};
use crate::base::sync::{MutexGuard, Ordering, Ordering::Relaxed};
use crate::fail;
use std::collections::{BTreeMap, HashMap};

/// A piece of memory taken from the device with one call.
#[derive(Clone, Copy, Debug)]
struct Segment {
    first: u32, // granule
    units: u32, // that are served
    bytes: u64, // as asked from the device
}

/// What is taken from the device, and where there is room for more.
#[derive(Debug)]
pub(crate) struct Growth {
    /// Granule numbers with nothing behind them: first -> count.
    room: BTreeMap<u32, u32>,
    segments_held: BTreeMap<u32, Segment>, // by first granule
    pub reserved: Counter,
    pub segments: Counter,
    pub pools: BTreeMap<u32, Held>,
    /// By units of the block: how often granules had to be mapped together anew for it.
    mapped_anew: HashMap<u32, u32>,
    runs: Vec<(u32, u32, Id)>, // scratch
    pieces: Vec<(u32, u32)>,   // scratch
}

impl Growth {
    pub(crate) fn new(real: u32) -> Self {
        Growth {
            room: BTreeMap::from([(0, real)]),
            segments_held: BTreeMap::new(),
            reserved: Counter::default(),
            segments: Counter::default(),
            pools: BTreeMap::new(),
            mapped_anew: HashMap::new(),
            runs: Vec::new(),
            pieces: Vec::new(),
        }
    }

    fn hold(&mut self, pool: u32, bytes: u64, segments: u64) {
        self.reserved.add(bytes);
        self.segments.add(segments);
        let p = self.pools.entry(pool).or_default();
        p.reserved.add(bytes);
        p.segments.add(segments);
    }
    fn release(&mut self, pool: u32, bytes: u64, segments: u64) {
        self.reserved.sub(bytes);
        self.segments.sub(segments);
        if let Some(p) = self.pools.get_mut(&pool) {
            p.reserved.current = p.reserved.current.saturating_sub(bytes);
            p.segments.current = p.segments.current.saturating_sub(segments);
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
    fn give_room(&mut self, mut first: u32, mut count: u32) {
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
/// How much more: this part of the allocated peak.
const SLACK_PART: u64 = 125;

/// From whom memory may be taken, and on what terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Terms {
    /// The giver's stream has nothing queued.
    Idle,
    /// The taker waits for the giver's stream, on the device (a taker without a stream: on the host).
    Wait,
}

/// What is tried next for a request that found nothing, cheapest first.
const STEPS: [Step; 7] = [
    Step::Steal { same_pool: true, terms: Terms::Idle },
    Step::Device,
    Step::Steal { same_pool: true, terms: Terms::Wait },
    Step::Steal { same_pool: false, terms: Terms::Idle },
    Step::Pending,
    Step::Steal { same_pool: false, terms: Terms::Wait },
    Step::Trim,
];

#[derive(Clone, Copy, Debug)]
enum Step {
    Steal { same_pool: bool, terms: Terms },
    Device,
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
        let mut g = lock(&self.growth);
        let mut step = 0;
        let mut refused: Option<Error> = None;
        let mut scattering = self.config.mapping;
        let mut eased = false;
        loop {
            let mut h = heap.inner.lock();
            let id = self.fit_merged(heap, &mut h, tier, units);
            if id != 0 {
                drop(g);
                return Ok(self.finish(heap, h, id, tier as u32, contract, bytes));
            }
            let mut missing = if tier == Tier::Large { u64::from(units.div_ceil(LARGE_UNITS)) } else { 1 };
            if tier == Tier::Large && scattering {
                if let Some(id) = self.revive(&mut g, heap, &mut h, units) {
                    drop(g);
                    return Ok(self.finish(heap, h, id, Self::ALIAS_BITS, contract, bytes));
                }
                if g.mapped_anew.get(&units).is_some_and(|&n| n >= WORN) && !eased {
                    drop(h);
                    eased = true;
                    if self.has_slack(&g, missing) {
                        // Success or not: the next round finds what there is.
                        let _ = self.grow(&mut g, heap, missing, tier, contract);
                    }
                    continue;
                }
                let Growth { runs, pieces, .. } = &mut *g;
                match h.scatter(&self.maps, units, runs, pieces) {
                    Ok(first) => {
                        drop(h);
                        match self.show(&mut g, heap, first, units) {
                            Ok(id) => {
                                let h = heap.inner.lock();
                                drop(g);
                                return Ok(self.finish(heap, h, id, Self::ALIAS_BITS, contract, bytes));
                            }
                            Err(e) => {
                                // The device would not show them together; ask for memory in one piece.
                                heap.inner.lock().unscatter(&self.maps, first);
                                refused = Some(e);
                                scattering = false;
                                continue;
                            }
                        }
                    }
                    Err(u64::MAX) => {
                        fail!(Code::OutOfMemory, "more blocks than the library can keep track of")
                    }
                    Err(n) => missing = n,
                }
            }
            drop(h);
            let Some(&what) = STEPS.get(step) else { break };
            let got = match what {
                Step::Steal { same_pool, terms } => {
                    self.steal(&mut g, heap, missing, scattering, same_pool, terms)
                }
                Step::Device => match self.grow(&mut g, heap, missing, tier, contract) {
                    Ok(()) => true,
                    Err(e) => {
                        refused = Some(e);
                        false
                    }
                },
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

    /// Whether `granules` more may be taken from the device only to spare the driver work.
    fn has_slack(&self, g: &Growth, granules: u64) -> bool {
        let peak = lock(&self.ledger).device.peak[0] as u64;
        g.reserved.current + (granules << GRANULE_SHIFT) <= peak + peak / SLACK_PART
    }

    /// A block of scattered granules that were shown together before and are all free again: it costs no
    /// driver call.
    fn revive(&self, g: &mut Growth, heap: &Heap, h: &mut Inner, units: u32) -> Option<Id> {
        let mut aliases = self.aliases.lock();
        let known = aliases.idle_for(units, REVIVE_TRIES);
        if known.is_empty() {
            return None;
        }
        h.free_list(&self.maps, &mut g.runs);
        for index in known {
            if let Some(first) = h.take_pieces(&self.maps, &g.runs, aliases.pieces(index)) {
                let (entry, id, granule) = aliases.take_index(index)?;
                self.enter_alias(heap, id, granule, units, entry, first);
                return Some(id);
            }
        }
        None
    }

    /// Makes a range of addresses the block `id` of a heap.
    fn enter_alias(&self, heap: &Heap, id: Id, granule: u32, units: u32, entry: u32, first: Id) {
        let d = self.maps.desc(id);
        d.set_off(granule);
        d.set_units(units);
        d.set_aux(entry);
        d.set_next(first);
        self.maps.set_alias(granule, heap.index, id);
    }

    /// Shows the pieces in the growth scratch as one block; its id. On failure they are still taken.
    fn show(&self, g: &mut Growth, heap: &Heap, first: Id, units: u32) -> Result<Id> {
        let count = units.div_ceil(LARGE_UNITS);
        let known = self.aliases.lock().take(&g.pieces);
        let (entry, id, granule) = match known {
            Some(k) => k,
            None => {
                let new = self.map_pieces(g, heap, count)?;
                *g.mapped_anew.entry(units).or_default() += 1;
                new
            }
        };
        self.enter_alias(heap, id, granule, units, entry, first);
        Ok(id)
    }

    fn map_pieces(&self, g: &Growth, heap: &Heap, count: u32) -> Result<(u32, Id, u32)> {
        let pieces = &g.pieces;
        let mut at = self.aliases.lock().room(count, pieces.len());
        if at.is_none() && self.aliases.lock().any_idle() {
            self.forget_aliases(false)?;
            at = self.aliases.lock().room(count, pieces.len());
        }
        let Some(granule) = at else {
            fail!(Code::OutOfMemory, "no addresses left to show scattered granules at");
        };
        let Some(id) = heap.inner.lock().take_id(&self.maps) else {
            self.aliases.lock().give_room(granule, count);
            fail!(Code::OutOfMemory, "more blocks than the library can keep track of");
        };
        let shift = GRANULE_SHIFT;
        let mut shown = 0u32;
        for &(off, units) in pieces {
            let n = units.div_ceil(LARGE_UNITS);
            let offset = u64::from(granule + shown) << shift;
            if let Err(e) = self.backing.alias(offset, off >> LARGE_UNITS_SHIFT, n) {
                if shown > 0 {
                    // Nobody has seen these addresses: nothing can be using them.
                    let _ = self.backing.unalias(u64::from(granule) << shift, u64::from(shown) << shift);
                }
                self.aliases.lock().give_room(granule, count);
                heap.inner.lock().give_id(&self.maps, id);
                return Err(e);
            }
            shown += n;
        }
        for i in 1..count {
            self.maps.set_granule(granule + i, GranuleUse::new(use_of::ALIAS_REST, 0, heap.index, id));
        }
        let entry = self.aliases.lock().enter(pieces, id, granule, count);
        Ok((entry, id, granule))
    }

    /// Unmaps idle ranges: all of them, or the half that was not used for longest. Waits for the device
    /// first, since work that is still queued may use those addresses.
    fn forget_aliases(&self, all: bool) -> Result<()> {
        let idle = self.aliases.lock().idle_count();
        if idle == 0 {
            return Ok(());
        }
        self.backing.sync_all()?;
        let gone = self.aliases.lock().forget_idle(if all { 0 } else { idle / 2 });
        let shift = GRANULE_SHIFT;
        for Gone { granule, count, id } in gone {
            for i in 0..count {
                self.maps.set_granule(granule + i, GranuleUse::NONE);
            }
            if let Some(home) = self.heaps.get(0) {
                home.inner.lock().give_id(&self.maps, id);
            }
            // On failure the addresses stay in use for good; nothing else is lost.
            self.backing.unalias(u64::from(granule) << shift, u64::from(count) << shift)?;
            self.aliases.lock().give_room(granule, count);
        }
        Ok(())
    }

    /// Takes up to `missing` free granules from other heaps. Without `scattering` they must be in one run.
    fn steal(
        &self,
        g: &mut Growth,
        taker: &Heap,
        missing: u64,
        scattering: bool,
        same_pool: bool,
        terms: Terms,
    ) -> bool {
        let mine = taker.pool.load(Relaxed);
        if !same_pool && missing > self.own_room(g, mine) >> GRANULE_SHIFT {
            return false;
        }
        let mut left = missing;
        for i in 0..self.heap_count.load(Ordering::Acquire) as usize {
            let Some(giver) = self.heaps.get(i) else { continue };
            let pool = giver.pool.load(Relaxed);
            if giver.index == taker.index || left == 0 || (pool == mine) != same_pool || pool == u32::MAX {
                continue;
            }
            let mut taken: Vec<(u32, u32)> = Vec::new(); // (first, count)
            {
                let mut h = giver.inner.lock();
                if h.granules == 0 {
                    continue;
                }
                self.drain(giver, &mut h);
                self.flush(giver, &mut h);
                g.runs.clear();
                h.free_runs(&self.maps, &mut g.runs);
                if scattering || missing == 1 {
                    g.runs.sort_unstable_by_key(|r| (r.0, r.1));
                } else {
                    g.runs.retain(|r| u64::from(r.0) >= missing);
                    g.runs.sort_unstable_by_key(|r| std::cmp::Reverse((r.0, r.1)));
                    g.runs.truncate(1);
                }
                for &(count, first, id) in &g.runs {
                    // From the end of the run: its owner goes on from the front.
                    let n = u64::from(count).min(left) as u32;
                    if n == 0 || !h.take_run(&self.maps, id, first + count - n, n) {
                        break;
                    }
                    taken.push((first + count - n, n));
                    left -= u64::from(n);
                }
            }
            if taken.is_empty() {
                continue;
            }
            let to = if self.agree(giver, taker, terms) { taker } else { giver };
            let bytes = taken.iter().map(|t| u64::from(t.1)).sum::<u64>() << GRANULE_SHIFT;
            let count = bytes >> GRANULE_SHIFT;
            let mut h = to.inner.lock();
            for &(first, n) in &taken {
                h.give(&self.maps, to.index, first, n, 0);
            }
            drop(h);
            if to.index == giver.index {
                left += count;
            } else {
                g.moved(pool, mine, bytes, if self.config.mapping { count } else { 0 });
            }
        }
        left < missing
    }

    /// Whether memory that was just taken from `giver` may go to `taker`; makes the taker wait if need be.
    fn agree(&self, giver: &Heap, taker: &Heap, terms: Terms) -> bool {
        let from = giver.stream.load(Relaxed);
        let to = taker.stream.load(Relaxed);
        if from == UNORDERED {
            return true; // what is free there has waited for everyone already
        }
        let orphan = from == RETIRED;
        let mark = if orphan { self.orphan_mark(giver) } else { self.backing.mark(from).ok() };
        // An orphan without a mark: its stream's work is over, or the device is gone.
        let Some(m) = mark else { return orphan };
        let ok = match self.backing.passed(m) {
            Ok(true) => true,
            _ if terms == Terms::Idle => false,
            _ if to == UNORDERED => self.backing.sync(m).is_ok(),
            _ => self.backing.wait(to, m).is_ok(),
        };
        if !orphan {
            self.backing.forget(m);
        }
        ok
    }

    /// How many bytes more the limits let a pool take.
    fn allowed(&self, g: &Growth, pool: u32) -> (u64, &'static str) {
        let device = self.limit.load(Relaxed);
        let mut room = (self.config.max_alloc.saturating_sub(g.reserved.current), "the device has no more");
        if device > 0 {
            let r = device.saturating_sub(g.reserved.current);
            if r < room.0 {
                room = (r, "the device's limit is reached");
            }
        }
        let own = self.own_room(g, pool);
        if own < room.0 {
            room = (own, "the pool's limit is reached");
        }
        room
    }

    /// How many bytes more the pool's own limit lets it have, from the device or from other pools.
    fn own_room(&self, g: &Growth, pool: u32) -> u64 {
        match self.pool(PoolId(pool)).map_or(0, |p| p.limit.load(Relaxed)) {
            0 => u64::MAX,
            limit => limit.saturating_sub(g.pools.get(&pool).map_or(0, |p| p.reserved.current)),
        }
    }

    /// Takes memory from the device for a heap.
    fn grow(&self, g: &mut Growth, heap: &Heap, missing: u64, tier: Tier, contract: u64) -> Result<()> {
        let pool = heap.pool.load(Relaxed);
        let (allowed, why) = self.allowed(g, pool);
        if !self.config.mapping {
            return self.grow_segment(g, heap, tier, contract, allowed, why);
        }
        let shift = GRANULE_SHIFT;
        if missing > allowed >> shift {
            return Err(Error::new(Code::OutOfMemory, why));
        }
        let mut left = missing as u32;
        while left > 0 {
            let n = left.min(g.longest_room());
            let first = match (n, tier) {
                (0, _) => None,
                (_, Tier::Large) => g.take_room(n, self.end_of(heap)),
                _ => g.take_top(),
            };
            let Some(first) = first else {
                return Err(Error::new(Code::OutOfMemory, "the device has no more"));
            };
            if let Err(e) = self.backing.create(first, n) {
                g.give_room(first, n);
                return Err(e);
            }
            heap.inner.lock().give(&self.maps, heap.index, first, n, 0);
            g.hold(pool, u64::from(n) << shift, u64::from(n));
            left -= n;
        }
        Ok(())
    }

    /// The granule behind the last one that a heap owns: the best place for it to grow.
    fn end_of(&self, heap: &Heap) -> Option<u32> {
        let mut last = None;
        heap.inner.lock().large.walk(&self.maps, 1, |id| {
            let d = self.maps.desc(id);
            last = last.max(Some((d.off() + d.units()) >> LARGE_UNITS_SHIFT));
            true
        });
        last
    }

    /// A new segment: of the init size at first, of the realloc size later, and never too small for the
    /// request.
    fn grow_segment(
        &self,
        g: &mut Growth,
        heap: &Heap,
        tier: Tier,
        contract: u64,
        allowed: u64,
        why: &'static str,
    ) -> Result<()> {
        let shift = GRANULE_SHIFT;
        let unit = 1u64 << (shift - LARGE_UNITS_SHIFT);
        let chunk = self.maps.shape.min_chunk();
        // A fine tier needs a whole granule for its chunk, a large request its own units.
        let least = if tier == Tier::Large { contract.next_multiple_of(unit.max(chunk)) } else { 1 << shift };
        let usual = if g.segments_held.is_empty() { self.config.init_alloc } else { self.config.realloc };
        let mut sizes = [usual.max(least).min(allowed) / chunk * chunk, least];
        if sizes[0] < least {
            sizes[0] = least;
        }
        let mut refused = Error::new(Code::OutOfMemory, why);
        for bytes in sizes {
            if bytes > allowed {
                continue;
            }
            match self.take_segment(g, heap, bytes, (bytes >> (shift - LARGE_UNITS_SHIFT)) as u32) {
                Ok(first) => {
                    let units = (bytes >> (shift - LARGE_UNITS_SHIFT)) as u32;
                    let count = units.div_ceil(LARGE_UNITS);
                    for unit in units..count << LARGE_UNITS_SHIFT {
                        self.maps.set_large_at((first << LARGE_UNITS_SHIFT) + unit, 0);
                    }
                    let short = (count << LARGE_UNITS_SHIFT) - units;
                    heap.inner.lock().give(&self.maps, heap.index, first, count, short);
                    return Ok(());
                }
                Err(e) => refused = e,
            }
        }
        Err(refused)
    }

    /// One segment of `bytes` from the device, entered in the books; its first granule.
    fn take_segment(&self, g: &mut Growth, heap: &Heap, bytes: u64, units: u32) -> Result<u32> {
        let count = units.div_ceil(LARGE_UNITS);
        // One granule more: segments that are not neighbours on the device must not look like it.
        let Some(first) = g.take_room(count + 1, None) else {
            fail!(Code::OutOfMemory, "too many segments");
        };
        let offset = u64::from(first) << GRANULE_SHIFT;
        if let Err(e) = self.backing.segment(offset, bytes) {
            g.give_room(first, count + 1);
            return Err(e);
        }
        let pool = heap.pool.load(Relaxed);
        g.segments_held.insert(first, Segment { first, units, bytes });
        g.hold(pool, bytes, 1);
        Ok(first)
    }

    /// A request beyond the max chunk: a segment of its own, for as long as the block lives.
    #[cold]
    pub(crate) fn alloc_direct(&self, heap: &Heap, units: u32, contract: u64, bytes: u64) -> Result<u64> {
        let mut g = lock(&self.growth);
        let pool = heap.pool.load(Relaxed);
        let mut taken = Err(Error::new(Code::OutOfMemory, ""));
        for trimmed in [false, true] {
            let (allowed, why) = self.allowed(&g, pool);
            taken = if contract > allowed {
                Err(Error::new(Code::OutOfMemory, why))
            } else {
                self.take_segment(&mut g, heap, contract, units)
            };
            if taken.is_ok() || trimmed || !self.trim(&mut g, None)? {
                break;
            }
        }
        let first = match taken {
            Ok(first) => first,
            Err(e) => return self.out_of_memory(&g, heap, contract, bytes, Some(e)),
        };
        let mut h = heap.inner.lock();
        let Some(id) = h.take_id(&self.maps) else {
            drop(h);
            g.segment_gone(pool, first, contract);
            self.backing.segment_release(u64::from(first) << GRANULE_SHIFT, contract)?;
            fail!(Code::OutOfMemory, "more blocks than the library can keep track of");
        };
        h.enter_direct(&self.maps, heap.index, id, first, units);
        h.make_live_as(&self.maps, id, Tier::Large as u32, bytes);
        let d = self.maps.desc(id);
        d.set_state(d.state() | USES | DIRECT);
        let full = h.count_in(contract, bytes);
        drop(h);
        drop(g);
        if full {
            self.settle(heap);
        }
        Ok(self.offset(id))
    }

    /// Gives unused memory back to the device: of one pool, or of all. Waits for the device first.
    pub fn empty_cache(&self, pool: Option<PoolId>) -> Result<()> {
        if let Some(p) = pool
            && self.pool(p).is_none()
        {
            fail!(Code::InvalidArgument, "no such pool, or it was destroyed");
        }
        let mut g = lock(&self.growth);
        self.trim(&mut g, pool).map(|_| ())
    }

    fn trim(&self, g: &mut Growth, pool: Option<PoolId>) -> Result<bool> {
        self.backing.sync_all()?;
        self.poll_all(true);
        self.forget_orphan_marks();
        let shift = GRANULE_SHIFT;
        let mut any = false;
        let heaps =
            || (0..self.heap_count.load(Ordering::Acquire) as usize).filter_map(|i| self.heaps.get(i));
        for heap in heaps() {
            let mut h = heap.inner.lock();
            self.drain(heap, &mut h);
            self.flush(heap, &mut h);
        }
        if !self.config.mapping {
            self.gather(g, |_| pool.is_none());
            let held: Vec<Segment> = g.segments_held.values().copied().collect();
            for s in held {
                let owner = self.heaps.get(self.maps.granule(s.first).heap() as usize);
                let Some(heap) = owner.filter(|x| pool.is_none_or(|p| p.0 == x.pool.load(Relaxed))) else {
                    continue;
                };
                if !heap.inner.lock().take_segment(&self.maps, heap.index, s.first, s.units) {
                    continue;
                }
                g.segment_gone(heap.pool.load(Relaxed), s.first, s.bytes);
                self.backing.segment_release(u64::from(s.first) << shift, s.bytes)?;
                any = true;
            }
            // What the pool still has lies in segments that it shares: the others may have it.
            self.gather(g, |x| pool.is_some_and(|p| p.0 == x));
            return Ok(any);
        }
        // Addresses that show scattered granules hold on to them; idle ones go first.
        self.forget_aliases(true)?;
        for heap in heaps().filter(|x| pool.is_none_or(|p| p.0 == x.pool.load(Relaxed))) {
            let mut taken = Vec::new();
            {
                let mut h = heap.inner.lock();
                g.runs.clear();
                h.free_runs(&self.maps, &mut g.runs);
                for &(count, first, id) in &g.runs {
                    if h.take_run(&self.maps, id, first, count) {
                        taken.push((first, count));
                    }
                }
            }
            for (i, &(first, count)) in taken.iter().enumerate() {
                if let Err(e) = self.backing.release(first, count) {
                    // What the device would not take back stays the heap's.
                    let mut h = heap.inner.lock();
                    for &(first, count) in &taken[i..] {
                        h.give(&self.maps, heap.index, first, count, 0);
                    }
                    return Err(e);
                }
                g.give_room(first, count);
                g.release(heap.pool.load(Relaxed), u64::from(count) << shift, u64::from(count));
                any = true;
            }
        }
        Ok(any)
    }

    /// Segments shared by several heaps become one heap's, where they are free: of a pool's first heap, or,
    /// for pools that may go `across`, of the device's first. The device is idle.
    fn gather(&self, g: &mut Growth, across: impl Fn(u32) -> bool) {
        let n = self.heap_count.load(Ordering::Acquire) as usize;
        for i in 1..n {
            let Some(heap) = self.heaps.get(i) else { continue };
            let pool = heap.pool.load(Relaxed);
            let mut others = (0..i).filter_map(|j| self.heaps.get(j));
            let home = others.find(|x| {
                let p = x.pool.load(Relaxed);
                p == pool || across(pool) && p != u32::MAX
            });
            let Some(home) = home else { continue };
            let taken = heap.inner.lock().take_all(&self.maps);
            let unit = GRANULE_SHIFT - LARGE_UNITS_SHIFT;
            let mut h = home.inner.lock();
            for (first, count, short) in taken {
                h.give(&self.maps, home.index, first, count, short);
                let bytes = u64::from((count << LARGE_UNITS_SHIFT) - short) << unit;
                g.moved(pool, home.pool.load(Relaxed), bytes, 0);
            }
        }
    }

    /// Everything goes back to the device, live blocks too. The device is idle, and nobody uses the pond.
    pub fn close(&self) -> Result<()> {
        let mut g = lock(&self.growth);
        let _ = self.trim(&mut g, None);
        for s in std::mem::take(&mut g.segments_held).into_values() {
            self.backing.segment_release(u64::from(s.first) << GRANULE_SHIFT, s.bytes)?;
        }
        Ok(())
    }
}
