//! Whole segments that are free, on a device whose segments are as large as requests need them.
//!
//! Such a segment can go back to the device, and its memory serves any other size then. One that a smaller block has
//! cut cannot, as long as that block lives: the rest serves only what fits. So a block cuts a whole segment only as long
//! as the memory that is stuck in this way is little beside what the program has never needed.

use super::super::desc::{Id, use_of};
use super::super::units::{Extent, LARGE_UNITS, LARGE_UNITS_SHIFT};
use super::{HeapState, LockedHeap};
use crate::base::sync::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::ops::DerefMut;

/// [units] Smaller blocks are cut from whatever fits best: 1 MiB.
pub(crate) const OWN_SEGMENT: u32 = LARGE_UNITS / 2;

/// How many whole segments are passed over in search of a hole.
const MOST_PASSED: u32 = 64;

/// So many sixteenths of what the program has never needed may be stuck. Measured on recorded programs
/// (docs/performance.md): with two, programs that have twice what they need begin to call the device; with four, those
/// that have little more need 0.6 % more of it.
const STUCK_SIXTEENTHS: i64 = 3;

/// How much memory of a device is stuck in segments that are partly used, and how much may be. All in units.
#[derive(Debug)]
pub(crate) struct Stuck {
    /// What can be had from the device altogether.
    most: AtomicU64,
    /// The sums over the heaps, as of the last look at each: what is stuck, and what is used.
    stuck: AtomicI64,
    used: AtomicI64,
    peak: AtomicI64,
}

impl Default for Stuck {
    fn default() -> Stuck {
        Stuck {
            most: AtomicU64::new(u64::MAX >> 1),
            stuck: AtomicI64::new(0),
            used: AtomicI64::new(0),
            peak: AtomicI64::new(0),
        }
    }
}

impl Stuck {
    /// Sets what can be had from the device; `peak` was allocated at some time.
    pub(crate) fn update(&self, most: u64, peak: u64) {
        self.most.store(most.min(u64::MAX >> 1), Relaxed);
        self.peak.fetch_max(peak as i64, Relaxed);
    }

    /// Whether `more` may be stuck than is now: together a part of what the program has never needed.
    pub(crate) fn allows(&self, more: u64) -> bool {
        let unneeded = self.most.load(Relaxed) as i64 - self.peak.load(Relaxed);
        self.stuck.load(Relaxed).saturating_add(more as i64) <= unneeded / 16 * STUCK_SIXTEENTHS
    }

    /// Adds to what is stuck, and to what is used; `more` is about to be used.
    fn add(&self, stuck: i64, used: i64, more: u32) {
        if stuck != 0 {
            self.stuck.fetch_add(stuck, Relaxed);
        }
        let used = self.used.fetch_add(used, Relaxed) + used;
        self.peak.fetch_max(used + i64::from(more), Relaxed);
    }
}

/// The memory of a heap, all in units. Kept only where whole segments matter.
#[derive(Debug, Default)]
pub(super) struct Idle {
    owned: i64,
    /// In the bins of the large tier.
    free: i64,
    /// Of that, in segments that are wholly free.
    whole: i64,
    /// What is counted in [`Stuck`]: stuck, and used.
    counted: (i64, i64),
}

#[cfg(test)]
impl Idle {
    /// Owned, free, and free in whole segments.
    pub(super) fn sums(&self) -> (i64, i64, i64) {
        (self.owned, self.free, self.whole)
    }
}

impl<G: DerefMut<Target = HeapState>> LockedHeap<'_, G> {
    /// Whether a free block is a whole segment: nobody owns what lies before and behind it.
    fn is_whole_segment(&self, part: Extent) -> bool {
        let maps = self.maps();
        let unowned = |unit: u32| maps.granule(unit >> LARGE_UNITS_SHIFT).use_() == use_of::UNOWNED;
        let (off, end) = (part.off, part.end());
        off % LARGE_UNITS == 0
            && (off == 0 || unowned(off - 1))
            && if end % LARGE_UNITS == 0 { unowned(end) } else { maps.large_tags().at(end) == 0 }
    }

    fn note_binned(&mut self, id: Id) {
        let d = self.maps().desc(id);
        let part = Extent::new(d.off(), d.units());
        let whole = self.is_whole_segment(part);
        // What lies beside it may change owners until it is taken out again.
        d.set_aux(u32::from(whole));
        self.state.idle.free += i64::from(part.units);
        self.state.idle.whole += if whole { i64::from(part.units) } else { 0 };
    }

    fn note_taken(&mut self, id: Id) {
        let d = self.maps().desc(id);
        self.state.idle.free -= i64::from(d.units());
        self.state.idle.whole -= if d.aux() == 1 { i64::from(d.units()) } else { 0 };
    }

    /// Puts a free large block, whose tags are in place, into the bins.
    #[inline(always)]
    pub(super) fn bin(&mut self, id: Id) {
        let maps = self.maps();
        self.state.large.insert(maps, id);
        if self.state.keeps_whole {
            self.note_binned(id);
        }
    }

    /// Takes one out of the bins.
    #[inline(always)]
    pub(super) fn unbin(&mut self, id: Id) {
        if self.state.keeps_whole {
            self.note_taken(id);
        }
        let maps = self.maps();
        self.state.large.remove(maps, id);
    }

    /// [units] What is free in whole segments.
    pub(crate) fn whole_segments(&self) -> u64 {
        self.state.idle.whole as u64
    }

    /// Notes memory that the heap owns from now on (`sign` 1), or no longer (-1).
    pub(super) fn note_owned(&mut self, part: Extent, sign: i64) {
        self.state.idle.owned += sign * i64::from(part.units);
    }

    /// Tells [`Stuck`] how much is stuck and used here; `more` is about to be used.
    fn count_stuck(&mut self, more: u32) {
        let idle = &mut self.state.idle;
        let now = (idle.free - idle.whole, idle.owned - idle.free);
        let before = std::mem::replace(&mut idle.counted, now);
        self.shared.stuck.add(now.0 - before.0, now.1 - before.1, more);
    }

    /// The best fit that cuts no whole segment, unless so much more may be stuck; 0 if there is none. It stays in the
    /// bins.
    pub(super) fn find_sparing(&mut self, units: u32) -> Id {
        self.count_stuck(units);
        let (maps, stuck) = (self.maps(), self.shared.stuck);
        let (mut found, mut left) = (0, MOST_PASSED);
        self.state.large.walk(maps, units, |id| {
            let d = maps.desc(id);
            let part = Extent::new(d.off(), d.units());
            if part.units == units
                || stuck.allows(u64::from(part.units - units))
                || !self.is_whole_segment(part)
            {
                found = id;
                return false;
            }
            left -= 1;
            left > 0
        });
        found
    }
}
