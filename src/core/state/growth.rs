//! What the growth lock guards: the memory that is taken from the device, the granule numbers that are free for more, and
//! the memory that is in transit between heaps and the device. Each noun has a file; the methods here concern several.
//!
//! Memory is *in transit* while one operation has taken it out of heaps or the device and has not placed it yet,
//! because it is calling the device with no lock held. No other thread sees it; a thread that finds no memory waits for
//! it before giving up.

use super::super::desc::Reserved;
use super::super::tied::Tied;
use super::super::units::{Extent, GranuleRun};
use crate::base::ordered::Map;
use account::Account;
use room::Room;
use segments::{Segment, Segments};
use std::collections::HashMap;
use std::sync::Arc;
use stock::Stock;
use ties::Ties;
use transits::Transits;

pub(crate) mod account;
pub(crate) mod room;
pub(crate) mod segments;
pub(crate) mod stock;
pub(crate) mod ties;
pub(crate) mod transits;

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Growth {
    pub account: Account,
    pub room: Room,
    pub ties: Ties,
    pub segments: Segments,
    pub stock: Stock,
    pub transits: Transits,
    /// Of what was last to be taken out of heaps, something is left for lack of ids to cut it.
    pub lacks_ids: bool,
    /// By units of the block: how often granules had to be newly mapped together for it.
    mapped_anew: HashMap<u32, MappedAnew>,
    times_grown: u32, // for want of memory
    /// By pool, since memory was missing last.
    spared: Map<u32, u64>,
}

/// How often granules had to be newly mapped together for blocks of one size.
#[derive(Clone, Copy, Debug, Default)]
struct MappedAnew {
    all: u32,
    since: u32, // the device gave memory for the `grown`th time
    grown: u32,
}

impl MappedAnew {
    fn note(&mut self, grown: u32) {
        if std::mem::replace(&mut self.grown, grown) != grown {
            self.since = 0;
        }
        (self.all, self.since) = (self.all + 1, self.since + 1);
    }
}

impl Growth {
    /// Notes that memory was missing, which the device gave or refused.
    pub(crate) fn note_missing(&mut self, given: bool) {
        self.times_grown = self.times_grown.wrapping_add(given.into());
        self.spared.clear();
    }

    /// Notes that memory was missing to a pool that its own limit refuses. To others it is not.
    pub(crate) fn note_limited(&mut self, pool: u32) {
        self.spared.remove(&pool);
    }

    /// Notes a new mapping for a block that fitted somewhere in the pool, but would have broken a granule there.
    pub(crate) fn note_spared(&mut self, pool: u32) {
        *self.spared.entry(pool).or_default() += 1;
    }

    /// The number of such mappings of a pool since memory was missing last.
    pub(crate) fn times_spared(&self, pool: u32) -> u64 {
        self.spared.get(&pool).copied().unwrap_or_default()
    }

    /// Notes a new mapping for a block of `units`.
    pub(crate) fn note_mapped_anew(&mut self, units: u32) {
        self.mapped_anew.entry(units).or_default().note(self.times_grown);
    }

    /// How often granules were mapped anew for blocks of `units`: ever, and since memory was missing last.
    pub(crate) fn times_mapped_anew(&self, units: u32) -> (u32, u32) {
        let n = self.mapped_anew.get(&units).copied().unwrap_or_default();
        (n.all, if n.grown == self.times_grown { n.since } else { 0 })
    }

    /// The state of a device with so many granule numbers, which has given nothing yet.
    pub(crate) fn new(numbers: u32, by_class: Option<Arc<Reserved>>, tied: Arc<Tied>) -> Self {
        Growth {
            account: Account::new(by_class),
            room: Room::new(numbers),
            ties: Ties::new(tied),
            ..Growth::default()
        }
    }

    /// Forgets a pool that has ended. All it still has is the count of segments that were given to it and of which others
    /// have parts; the commons count them from now on.
    pub(crate) fn forget_pool(&mut self, pool: u32) {
        let (segments, oversize) = self.segments.leave_pool(pool);
        self.account.forget_pool(pool, segments, oversize);
        self.stock.forget_pool(pool);
        self.spared.remove(&pool);
    }

    /// Frees the numbers of granules that have gone back to the device, loose ones or all of a tie.
    pub(crate) fn forget_granules(&mut self, run: GranuleRun) {
        let numbers = self.ties.forget(run);
        self.room.give(numbers);
    }

    /// The length of the longest run of numbers without memory if these granules had gone back too.
    pub(crate) fn longest_room_with(&self, runs: impl Iterator<Item = GranuleRun>) -> u64 {
        self.room.longest_with(runs.map(|run| self.ties.numbers_of(run)))
    }

    /// Enters a segment that the device has given to a pool; the tuning says whether it is oversize.
    pub(crate) fn enter_segment(&mut self, part: Extent, bytes: u64, pool: u32, oversize: bool) {
        self.segments.enter(part, bytes, pool, oversize);
        if oversize {
            self.account.add_oversize(pool);
        }
        self.account.hold(pool, bytes, 1);
    }

    /// Forgets a segment that has gone back to the device. Its bytes are released already, by those that had them.
    pub(crate) fn segment_gone(&mut self, segment: Segment) {
        let segment = self.segments.end_leaving(segment);
        self.room.give(Segment::numbers_of(segment.part));
        self.account.release(segment.pool, 0, 1);
        if segment.oversize {
            self.account.remove_oversize(segment.pool);
        }
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
    use super::super::super::types::COMMONS;
    use super::super::super::units::LARGE_UNITS;
    use super::account::Taken;
    use super::*;

    #[test]
    fn a_segment_counts_to_the_byte_for_whoever_has_its_parts() {
        let mut g = Growth::new(100, None, Arc::default());
        let part = Extent::new(0, 2 * LARGE_UNITS + 5);
        let bytes = part.bytes() + 777; // less than a unit beyond
        g.enter_segment(part, bytes, 1, false);
        let head = Extent::new(0, LARGE_UNITS);
        let tail = Extent::new(LARGE_UNITS, LARGE_UNITS + 5);
        assert_eq!(g.segments.bytes_of(head) + g.segments.bytes_of(tail), bytes);
        g.account.move_between(1, 2, g.segments.bytes_of(tail), 0);
        g.account.move_between(1, 2, g.segments.bytes_of(head), 0);
        assert_eq!((g.account.of(1).reserved.current, g.account.of(1).segments.current), (0, 1));
        let s = g.segments.take(0).unwrap();
        g.account.release(2, bytes, 0);
        g.segment_gone(s);
        for pool in [1, 2] {
            let h = g.account.of(pool);
            assert_eq!((h.reserved.current, h.segments.current), (0, 0), "{pool}");
        }
        assert_eq!(g.account.device().reserved.current, 0);
    }

    #[test]
    fn a_pool_may_end_while_a_segment_that_was_given_to_it_goes_back() {
        for refused in [false, true] {
            let mut g = Growth::new(100, None, Arc::default());
            let part = Extent::new(0, LARGE_UNITS);
            g.enter_segment(part, part.bytes(), 1, true);
            g.account.move_between(1, 2, part.bytes(), 0); // the other pool has stolen all of it, and gives it back
            let mut s = g.segments.take(0).unwrap();
            let is_seen = |g: &Growth| g.segments.of(0).is_some() || !g.segments.is_empty();
            assert!(!is_seen(&g) && g.segments.take(0).is_none(), "it is on its way");
            g.forget_pool(1);
            let counts =
                |g: &Growth, pool| (g.account.of(pool).segments.current, g.account.of(pool).oversize.current);
            assert_eq!((counts(&g, 1), counts(&g, COMMONS)), ((0, 0), (1, 1)));
            if refused {
                g.segments.keep(s);
                assert!(is_seen(&g));
                s = g.segments.take(0).unwrap();
            }
            g.account.release(2, part.bytes(), 0);
            g.segment_gone(s);
            assert_eq!((counts(&g, 1), counts(&g, COMMONS)), ((0, 0), (0, 0)));
            assert_eq!((g.account.device().reserved.current, g.account.device().segments.current), (0, 0));
        }
    }

    #[test]
    fn what_is_asked_for_counts_for_the_limits_and_not_for_the_peaks() {
        let mut g = Growth::new(100, None, Arc::default());
        g.account.hold(1, 10, 1);
        g.account.claim(1, 5);
        let taken = |device, pool| Taken { device, pool };
        assert_eq!((g.account.taken(1), g.account.taken(2)), (taken(15, 15), taken(15, 0)));
        g.account.unclaim(1, 5);
        assert_eq!((g.account.taken(1).pool, g.account.device().reserved.peak), (10, 10));
    }

    #[test]
    fn when_memory_was_missing_mappings_are_counted_anew() {
        let mut g = Growth::new(100, None, Arc::default());
        for given in [true, false] {
            g.note_mapped_anew(5);
            (0..3).for_each(|_| g.note_spared(1));
            assert_eq!((g.times_mapped_anew(5).1, g.times_spared(1), g.times_spared(2)), (1, 3, 0));
            g.note_missing(given);
            assert_eq!((g.times_mapped_anew(5).1, g.times_spared(1)), (u32::from(!given), 0));
        }
    }

    #[test]
    fn a_pool_that_its_limit_refuses_counts_anew_alone() {
        let mut g = Growth::new(100, None, Arc::default());
        [1, 2, 3].into_iter().for_each(|pool| g.note_spared(pool));
        g.note_limited(1);
        g.forget_pool(2);
        assert_eq!([1, 2, 3].map(|pool| g.times_spared(pool)), [0, 0, 1]);
    }
}
