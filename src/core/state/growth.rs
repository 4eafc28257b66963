//! What is taken from the device, which granule numbers are free for more, and what is in transit between heaps and the
//! device.
//!
//! Memory is *in transit* while one operation has taken it out of heaps or the device and has not placed it yet,
//! because it is calling the device with no lock held. No other thread sees it; a thread that finds no memory waits for
//! it before giving up.

use super::super::desc::Reserved;
use super::super::tied::Tied;
use super::super::types::{COMMONS, Counter};
use super::super::units::{Extent, GranuleRun, granule_bytes};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// A piece of memory taken from the device with one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub part: Extent, // the part that is served
    pub bytes: u64,   // as requested from the device
    pub serial: u64,  // never reused
    pub pool: u32,    // that counts it in its number of segments
    pub oversize: bool,
}

impl Segment {
    /// [B] where it starts.
    pub(crate) fn offset(&self) -> u64 {
        granule_bytes(self.part.touched().first)
    }
}

/// The memory that a pool or the device has reserved.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Holdings {
    pub reserved: Counter,
    pub segments: Counter,
    pub sleeping: Counter,
    /// Segments that were oversize when they came.
    pub oversize: Counter,
}

/// Whose memory an operation has in transit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parts {
    /// That of one pool or two.
    Of(u32, u32),
    /// That of any pool.
    Any,
}

/// The state that the growth lock guards.
#[derive(Default)]
pub(crate) struct Growth {
    /// Granule numbers without memory: first -> count.
    room: BTreeMap<u32, u32>,
    segments: BTreeMap<u32, Segment>, // by first granule
    /// Those that are on their way back to the device.
    leaving: BTreeMap<u32, Segment>,
    /// By first granule: granules that have one physical allocation together, and whether the number behind them stays
    /// empty. They have it as long as those numbers are taken, asleep too.
    ties: BTreeMap<u32, (u32, bool)>,
    /// The same for those who do not hold the lock.
    tied: Arc<Tied>,
    last_serial: u64,
    pub device: Holdings,
    /// The same bytes by class; none in tests.
    reserved: Option<Arc<Reserved>>,
    pools: BTreeMap<u32, Holdings>,
    /// [B] being requested from the device now, by pool, and in total.
    claims: BTreeMap<u32, u64>,
    claimed: u64,
    /// By units of the block: how often granules had to be newly mapped together for it.
    pub mapped_anew: HashMap<u32, u32>,
    /// Heaps that may have free granules, by pool: those that had some left when last searched, and those that may have
    /// changed since.
    stock: BTreeSet<(u32, u32)>,
    transits: BTreeMap<u64, Parts>, // by number
    last_transit: u64,
    pub transits_ended: u64,
}

impl Growth {
    pub(crate) fn new(real: u32, reserved: Option<Arc<Reserved>>, tied: Arc<Tied>) -> Self {
        Growth { room: BTreeMap::from([(0, real)]), reserved, tied, ..Growth::default() }
    }

    // ---- the account -------------------------------------------------------------------------------

    /// What a pool holds.
    pub(crate) fn holdings(&self, pool: u32) -> Holdings {
        self.pools.get(&pool).copied().unwrap_or_default()
    }

    /// The device has given memory to a pool.
    pub(crate) fn hold(&mut self, pool: u32, bytes: u64, segments: u64) {
        for h in [&mut self.device, self.pools.entry(pool).or_default()] {
            h.reserved.add(bytes);
            h.segments.add(segments);
        }
        self.reserved.as_ref().inspect(|r| r.taken(pool, bytes));
    }

    /// A pool's memory has gone back to the device.
    pub(crate) fn release(&mut self, pool: u32, bytes: u64, segments: u64) {
        for h in [&mut self.device, self.pools.entry(pool).or_default()] {
            h.reserved.sub(bytes);
            h.segments.sub(segments);
        }
        self.reserved.as_ref().inspect(|r| r.given(pool, bytes));
    }

    /// Memory moves from one pool to another.
    pub(crate) fn change_pool(&mut self, from: u32, to: u32, bytes: u64, segments: u64) {
        if from == to {
            return;
        }
        let h = self.pools.entry(from).or_default();
        h.reserved.sub(bytes);
        h.segments.sub(segments);
        let h = self.pools.entry(to).or_default();
        h.reserved.add(bytes);
        h.segments.add(segments);
        self.reserved.as_ref().inspect(|r| r.moved(from, to, bytes));
    }

    /// A pool's memory goes to sleep, with so many chunks in it: it is no longer reserved, but its granule numbers stay
    /// taken.
    pub(crate) fn fall_asleep(&mut self, pool: u32, granules: u64, chunks: u64) {
        let bytes = granules * granule_bytes(1);
        self.release(pool, bytes, granules);
        self.reserved.as_ref().inspect(|r| r.chunks_gone(pool, chunks));
        self.device.sleeping.add(bytes);
        self.pools.entry(pool).or_default().sleeping.add(bytes);
    }

    /// Sleeping memory is back or, if not `reserved`, gone for good.
    pub(crate) fn wake_up(&mut self, pool: u32, granules: u64, chunks: u64, reserved: bool) {
        let bytes = granules * granule_bytes(1);
        self.reserved.as_ref().inspect(|r| r.chunks_made(pool, chunks));
        self.device.sleeping.sub(bytes);
        self.pools.entry(pool).or_default().sleeping.sub(bytes);
        if reserved {
            self.hold(pool, bytes, granules);
        }
    }

    /// The device is being asked for memory: until it answers, the bytes count towards the limits.
    pub(crate) fn claim(&mut self, pool: u32, bytes: u64) {
        self.claim_own(pool, bytes);
        self.claimed += bytes;
    }

    /// The device has answered.
    pub(crate) fn unclaim(&mut self, pool: u32, bytes: u64) {
        self.unclaim_own(pool, bytes);
        self.claimed -= bytes;
    }

    /// Memory of another pool is on its way to this one: until it is there, the bytes count towards its limit.
    pub(crate) fn claim_own(&mut self, pool: u32, bytes: u64) {
        *self.claims.entry(pool).or_default() += bytes;
    }

    /// The memory has arrived, or stays where it was.
    pub(crate) fn unclaim_own(&mut self, pool: u32, bytes: u64) {
        if let Some(c) = self.claims.get_mut(&pool) {
            *c -= bytes;
            if *c == 0 {
                self.claims.remove(&pool);
            }
        }
    }

    /// [B] reserved or being requested: for the device, and for a pool.
    pub(crate) fn taken(&self, pool: u32) -> (u64, u64) {
        let claims = self.claims.get(&pool).copied().unwrap_or(0);
        (self.device.reserved.current + self.claimed, self.holdings(pool).reserved.current + claims)
    }

    /// Resets the peaks of a pool, or of the device, to the current values.
    pub(crate) fn reset_peaks(&mut self, pool: Option<u32>) {
        let held = match pool {
            None => Some(&mut self.device),
            Some(p) => self.pools.get_mut(&p),
        };
        if let Some(h) = held {
            let all = [&mut h.reserved, &mut h.segments, &mut h.sleeping, &mut h.oversize];
            all.into_iter().for_each(Counter::reset_peak);
        }
        self.reserved.as_ref().inspect(|r| r.reset_peaks(pool));
    }

    /// The pool has ended; all it still has is the count of shared segments, which moves to the commons.
    pub(crate) fn forget_pool(&mut self, pool: u32) {
        let all = self.segments.values_mut().chain(self.leaving.values_mut());
        for s in all.filter(|s| s.pool == pool) {
            s.pool = COMMONS;
            let commons = self.pools.entry(COMMONS).or_default();
            commons.segments.add(1);
            commons.oversize.add(u64::from(s.oversize));
        }
        self.pools.remove(&pool);
        let gone: Vec<_> = self.stock.range((pool, 0)..=(pool, u32::MAX)).copied().collect();
        gone.iter().for_each(|s| _ = self.stock.remove(s));
    }

    // ---- granule numbers ---------------------------------------------------------------------------

    /// Takes the highest granule number without memory: for chunks, which stay away from large blocks.
    pub(crate) fn take_top(&mut self) -> Option<GranuleRun> {
        let (&at, &n) = self.room.last_key_value()?;
        if n == 1 {
            self.room.remove(&at)
        } else {
            self.room.insert(at, n - 1)
        };
        Some(GranuleRun::new(at + n - 1, 1))
    }

    /// Takes `count` consecutive granule numbers; a run directly after `after` is preferred.
    pub(crate) fn take_room(&mut self, count: u32, after: Option<u32>) -> Option<GranuleRun> {
        let at = after
            .filter(|a| self.room.get(a).is_some_and(|&n| n >= count))
            .or_else(|| self.room.iter().find(|r| *r.1 >= count).map(|r| *r.0))?;
        let n = self.room.remove(&at)?;
        if n > count {
            self.room.insert(at + count, n - count);
        }
        Some(GranuleRun::new(at, count))
    }

    /// These numbers have no memory any more.
    pub(crate) fn give_room(&mut self, run: GranuleRun) {
        let GranuleRun { mut first, mut count } = run;
        if let Some((&f, &n)) = self.room.range(..first).next_back()
            && f + n == first
        {
            self.room.remove(&f);
            first = f;
            count += n;
        }
        count += self.room.remove(&(first + count)).unwrap_or(0);
        self.room.insert(first, count);
    }

    /// The length of the longest run of granule numbers without memory.
    pub(crate) fn longest_room(&self) -> u32 {
        self.room.values().copied().max().unwrap_or(0)
    }

    /// The same if these runs had none either.
    pub(crate) fn longest_room_with(&self, runs: impl Iterator<Item = GranuleRun>) -> u64 {
        let mut all: Vec<GranuleRun> = self.room.iter().map(|(&at, &n)| GranuleRun::new(at, n)).collect();
        // With the empty number behind a tie.
        let apart = |tie: GranuleRun| self.ties.get(&tie.first).is_some_and(|t| t.0 == tie.count && t.1);
        all.extend(runs.map(|run| GranuleRun::new(run.first, run.count + u32::from(apart(run)))));
        all.sort_unstable();
        let (mut longest, mut end, mut row) = (0, 0, 0);
        for run in all {
            row = if run.first == end { row + u64::from(run.count) } else { u64::from(run.count) };
            end = run.end();
            longest = longest.max(row);
        }
        longest
    }

    /// The runs of granule numbers that have memory.
    pub(crate) fn occupied(&self, real: u32) -> Vec<GranuleRun> {
        let (mut at, mut runs) = (0, Vec::new());
        for (&first, &count) in &self.room {
            if first > at {
                runs.push(GranuleRun::new(at, first - at));
            }
            at = first + count;
        }
        if at < real {
            runs.push(GranuleRun::new(at, real - at));
        }
        runs
    }

    // ---- ties --------------------------------------------------------------------------------------

    /// These granules have one physical allocation together. With `apart`, the number behind them stays empty, so that
    /// no block lies across their end.
    pub(crate) fn enter_tie(&mut self, run: GranuleRun, apart: bool) {
        self.ties.insert(run.first, (run.count, apart));
        self.tied.enter(run);
    }

    /// These granules have gone back to the device; returns the numbers that they had. They may be those of a tie.
    pub(crate) fn forget_tie(&mut self, tie: GranuleRun) -> GranuleRun {
        let gone = self.ties.remove(&tie.first);
        if gone.is_some() {
            self.tied.leave(tie);
        }
        let apart = gone.is_some_and(|t| t.1);
        GranuleRun::new(tie.first, tie.count + u32::from(apart))
    }

    /// The tie of a granule, if it is in one.
    pub(crate) fn tie_of(&self, granule: u32) -> Option<GranuleRun> {
        let (&first, &(count, _)) = self.ties.range(..=granule).next_back()?;
        (granule < first + count).then_some(GranuleRun::new(first, count))
    }

    pub(crate) fn has_ties(&self) -> bool {
        !self.ties.is_empty()
    }

    /// Cuts a run of granules where ties begin and end: the pieces, each with its tie.
    pub(crate) fn cut_at_ties(&self, run: GranuleRun) -> Vec<(GranuleRun, Option<GranuleRun>)> {
        let (mut at, mut pieces) = (run.first, Vec::new());
        while at < run.end() {
            let tie = self.tie_of(at);
            let next = match tie {
                Some(tie) => tie.end(),
                None => self.ties.range(at..).next().map_or(u32::MAX, |t| *t.0),
            };
            let end = next.min(run.end());
            pieces.push((GranuleRun::new(at, end - at), tie));
            at = end;
        }
        pieces
    }

    // ---- segments ----------------------------------------------------------------------------------

    /// The granule numbers of a segment: one more than it has granules, so that segments that are not adjacent on the
    /// device do not appear adjacent.
    pub(crate) fn numbers_of(part: Extent) -> GranuleRun {
        let touched = part.touched();
        GranuleRun::new(touched.first, touched.count + 1)
    }

    /// The device has given a segment to a pool; the tuning says whether it is oversize.
    pub(crate) fn enter_segment(&mut self, part: Extent, bytes: u64, pool: u32, oversize: bool) {
        self.last_serial += 1;
        let serial = self.last_serial;
        self.segments.insert(part.touched().first, Segment { part, bytes, serial, pool, oversize });
        if oversize {
            self.holders(pool).into_iter().for_each(|h| h.oversize.add(1));
        }
        self.hold(pool, bytes, 1);
    }

    /// Removes a segment that is about to go back to the device, so that nobody finds it any more. Followed by
    /// [`keep_segment`](Self::keep_segment) or [`segment_gone`](Self::segment_gone).
    pub(crate) fn take_segment(&mut self, first: u32) -> Option<Segment> {
        let segment = self.segments.remove(&first)?;
        self.leaving.insert(first, segment);
        Some(segment)
    }

    /// The device refused to take the segment back.
    pub(crate) fn keep_segment(&mut self, segment: Segment) {
        let segment = self.as_it_is_now(segment);
        self.segments.insert(segment.part.touched().first, segment);
    }

    /// A segment that was taken: the pool that it was given to may have ended since.
    fn as_it_is_now(&mut self, segment: Segment) -> Segment {
        self.leaving.remove(&segment.part.touched().first).unwrap_or(segment)
    }

    /// The segment went back to the device; all its memory belonged to `owner`.
    pub(crate) fn segment_gone(&mut self, segment: Segment, owner: u32) {
        let segment = self.as_it_is_now(segment);
        self.give_room(Self::numbers_of(segment.part));
        self.release(owner, segment.bytes, 0);
        self.release(segment.pool, 0, 1);
        if segment.oversize {
            self.holders(segment.pool).into_iter().for_each(|h| h.oversize.sub(1));
        }
    }

    fn holders(&mut self, pool: u32) -> [&mut Holdings; 2] {
        [&mut self.device, self.pools.entry(pool).or_default()]
    }

    /// All segments, by their first granule.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.values()
    }

    pub(crate) fn has_segments(&self) -> bool {
        !self.segments.is_empty()
    }

    /// The segment that contains this granule.
    pub(crate) fn segment_of(&self, granule: u32) -> Option<&Segment> {
        let (_, s) = self.segments.range(..=granule).next_back()?;
        (granule < s.part.touched().end()).then_some(s)
    }

    /// [units] the end of this granule's segment.
    pub(crate) fn segment_end(&self, granule: u32) -> Option<u32> {
        self.segment_of(granule).map(|s| s.part.end())
    }

    /// [B] what memory counts in the account of its pool. The end of a segment includes what the segment has beyond its
    /// last whole unit.
    pub(crate) fn bytes_of(&self, part: Extent) -> u64 {
        match self.segment_of(part.touched().first) {
            Some(s) if s.part.end() == part.end() => s.bytes - Extent::new(0, part.off - s.part.off).bytes(),
            _ => part.bytes(),
        }
    }

    // ---- heaps that may have free granules -----------------------------------------------------------

    /// Notes that a heap of a pool may have free granules.
    pub(crate) fn note_stock(&mut self, pool: u32, heap: u32) {
        self.stock.insert((pool, heap));
    }

    /// Notes that it has none.
    pub(crate) fn forget_stock(&mut self, pool: u32, heap: u32) {
        self.stock.remove(&(pool, heap));
    }

    /// Stores the numbers of the heaps of a pool, or of all other pools, that may have free granules, in `into`.
    pub(crate) fn stock(&self, pool: u32, same: bool, into: &mut Vec<u32>) {
        into.clear();
        if same {
            into.extend(self.stock.range((pool, 0)..=(pool, u32::MAX)).map(|s| s.1));
        } else {
            into.extend(self.stock.iter().filter(|s| s.0 != pool).map(|s| s.1));
            into.sort_unstable();
        }
    }

    // ---- memory in transit -----------------------------------------------------------------------------

    /// An operation takes memory into transit. Returns the transit's number.
    pub(crate) fn begin_transit(&mut self, parts: Parts) -> u64 {
        self.last_transit += 1;
        self.transits.insert(self.last_transit, parts);
        self.last_transit
    }

    /// The operation has placed all of it.
    pub(crate) fn end_transit(&mut self, number: u64) {
        self.transits.remove(&number);
        self.transits_ended += 1;
    }

    /// Whether memory of the pool, or of any pool, is in transit.
    pub(crate) fn is_in_transit(&self, pool: Option<u32>) -> bool {
        self.transits.values().any(|parts| match (pool, parts) {
            (Some(p), &Parts::Of(a, b)) => p == a || p == b,
            _ => true,
        })
    }
}

/// Joins adjacent parts of free memory. The parts must be sorted and must not overlap.
pub(crate) fn joined(parts: impl Iterator<Item = Extent>) -> Vec<Extent> {
    let mut runs: Vec<Extent> = Vec::new();
    for part in parts {
        match runs.last_mut() {
            Some(r) if r.end() == part.off => r.units += part.units,
            _ => runs.push(part),
        }
    }
    runs
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::super::super::units::LARGE_UNITS;
    use super::*;

    #[test]
    fn room_is_joined_and_taken_where_it_is_wanted() {
        let mut g = Growth::new(10, None, Arc::default());
        let a = g.take_room(3, None).unwrap();
        let b = g.take_room(3, None).unwrap();
        assert_eq!(g.take_top(), Some(GranuleRun::new(9, 1)));
        g.give_room(a);
        assert_eq!(g.longest_room(), 3);
        assert_eq!(g.take_room(1, Some(6)), Some(GranuleRun::new(6, 1)));
        assert_eq!(g.occupied(10), [GranuleRun::new(3, 4), GranuleRun::new(9, 1)]);
        g.give_room(b);
        assert_eq!(g.longest_room(), 6);
    }

    #[test]
    fn runs_are_cut_where_ties_begin_and_end() {
        let mut g = Growth::new(100, None, Arc::default());
        let (a, b) = (GranuleRun::new(10, 4), GranuleRun::new(14, 3));
        g.enter_tie(a, true);
        g.enter_tie(b, false);
        let run = GranuleRun::new;
        assert_eq!(
            g.cut_at_ties(run(5, 14)),
            [(run(5, 5), None), (a, Some(a)), (b, Some(b)), (run(17, 2), None)]
        );
        assert_eq!(g.cut_at_ties(run(12, 3)), [(run(12, 2), Some(a)), (run(14, 1), Some(b))]);
        assert_eq!((g.forget_tie(a), g.forget_tie(b)), (run(10, 5), b));
        assert_eq!(g.cut_at_ties(run(5, 14)), [(run(5, 14), None)]);
    }

    #[test]
    fn a_segment_counts_to_the_byte_for_whoever_has_its_parts() {
        let mut g = Growth::new(100, None, Arc::default());
        let part = Extent::new(0, 2 * LARGE_UNITS + 5);
        let bytes = part.bytes() + 777; // less than a unit beyond
        g.enter_segment(part, bytes, 1, false);
        let head = Extent::new(0, LARGE_UNITS);
        let tail = Extent::new(LARGE_UNITS, LARGE_UNITS + 5);
        assert_eq!(g.bytes_of(head) + g.bytes_of(tail), bytes);
        g.change_pool(1, 2, g.bytes_of(tail), 0);
        g.change_pool(1, 2, g.bytes_of(head), 0);
        assert_eq!((g.holdings(1).reserved.current, g.holdings(1).segments.current), (0, 1));
        let s = g.take_segment(0).unwrap();
        g.segment_gone(s, 2);
        for pool in [1, 2] {
            let h = g.holdings(pool);
            assert_eq!((h.reserved.current, h.segments.current), (0, 0), "{pool}");
        }
        assert_eq!(g.device.reserved.current, 0);
    }

    #[test]
    fn a_pool_may_end_while_a_segment_that_was_given_to_it_goes_back() {
        for refused in [false, true] {
            let mut g = Growth::new(100, None, Arc::default());
            let part = Extent::new(0, LARGE_UNITS);
            g.enter_segment(part, part.bytes(), 1, true);
            g.change_pool(1, 2, part.bytes(), 0); // the other pool has stolen all of it, and gives it back
            let mut s = g.take_segment(0).unwrap();
            g.forget_pool(1);
            let counts =
                |g: &Growth, pool| (g.holdings(pool).segments.current, g.holdings(pool).oversize.current);
            assert_eq!((counts(&g, 1), counts(&g, COMMONS)), ((0, 0), (1, 1)));
            if refused {
                g.keep_segment(s);
                s = g.take_segment(0).unwrap();
            }
            g.segment_gone(s, 2);
            assert_eq!((counts(&g, 1), counts(&g, COMMONS)), ((0, 0), (0, 0)));
            assert_eq!((g.device.reserved.current, g.device.segments.current), (0, 0));
        }
    }

    #[test]
    fn what_is_asked_for_counts_for_the_limits_and_not_for_the_peaks() {
        let mut g = Growth::new(100, None, Arc::default());
        g.hold(1, 10, 1);
        g.claim(1, 5);
        assert_eq!((g.taken(1), g.taken(2)), ((15, 15), (15, 0)));
        g.unclaim(1, 5);
        assert_eq!((g.taken(1).1, g.device.reserved.peak), (10, 10));
    }
}
