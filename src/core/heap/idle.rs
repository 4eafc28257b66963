//! Whole segments that are free, on a device whose segments are as large as requests need them.
//!
//! Such a segment can go back to the device, and its memory serves any other size then. One that a smaller block has
//! cut cannot, as long as that block lives: the rest is *stuck*, and serves only what fits. So a block cuts a whole
//! segment only as long as what is stuck is little beside what the program has never needed.
//!
//! A free block knows whether it is a whole segment from the time that it is put into the bins: what lies beside it in
//! a segment belongs to a heap, or is held by an operation, for as long as the block stays there; beside a segment
//! there is nothing.

use super::super::desc::{Id, use_of};
use super::super::units::{Extent, LARGE_UNITS, LARGE_UNITS_SHIFT};
use super::{HeapState, LockedHeap};
use crate::base::sync::{AtomicI64, Ordering::Relaxed};
use std::ops::DerefMut;

/// How many whole segments are passed over in search of a hole. With all of them, a program on three streams needs a
/// device 2 % larger: an exchange of segments packs better than a hole that is far too large.
const MOST_PASSED: u32 = 64;

/// So many sixteenths of what the program has never needed may be stuck. Measured on recorded programs
/// (docs/decisions/segments.md): with two, programs that have twice what they need call the device more; with four, those
/// that have little more need 0.6 % more of it.
const STUCK_SIXTEENTHS: i64 = 3;

/// How much memory of a device is stuck in segments that are partly used, and how much may be. All in units, and hints:
/// they decide where a block goes, never whether it may.
#[derive(Debug)]
pub(crate) struct Stuck {
    /// What can be had from the device altogether.
    most: AtomicI64,
    /// The most that was ever allocated.
    peak: AtomicI64,
    /// What is stuck: the sum of what the heaps have counted.
    stuck: AtomicI64,
}

impl Default for Stuck {
    fn default() -> Stuck {
        Stuck { most: AtomicI64::new(i64::MAX), peak: AtomicI64::new(0), stuck: AtomicI64::new(0) }
    }
}

impl Stuck {
    /// Sets what can be had from the device.
    pub(crate) fn set_most(&self, most: u64) {
        self.most.store(i64::try_from(most).unwrap_or(i64::MAX), Relaxed);
    }

    /// So much was allocated at some time. Called with the ledger locked.
    pub(crate) fn note_peak(&self, peak: u64) {
        let peak = i64::try_from(peak).unwrap_or(i64::MAX);
        if peak > self.peak.load(Relaxed) {
            self.peak.store(peak, Relaxed);
        }
    }

    /// How much more may be stuck than is now: together a part of what the program has never needed. `uncounted` is
    /// stuck, too.
    fn room_beside(&self, uncounted: i64) -> i64 {
        let unneeded = self.most.load(Relaxed) - self.peak.load(Relaxed);
        unneeded / 16 * STUCK_SIXTEENTHS - self.stuck.load(Relaxed) - uncounted
    }

    /// The same, as far as the heaps have counted.
    pub(crate) fn room(&self) -> u64 {
        self.room_beside(0).max(0) as u64
    }

    /// What the heaps have counted.
    #[cfg(test)]
    pub(crate) fn now(&self) -> i64 {
        self.stuck.load(Relaxed)
    }
}

/// The free memory of a heap, all in units. Kept only where whole segments matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Idle {
    /// In the bins of the large tier.
    pub free: i64,
    /// Of that, in segments that are wholly free.
    pub whole: i64,
    /// What of the rest is counted in [`Stuck`]: all of it, when the last request was served from the bins, or the heap
    /// last got or lost memory.
    pub counted: i64,
}

impl Idle {
    /// What is stuck and not counted yet.
    fn uncounted(&self) -> i64 {
        self.free - self.whole - self.counted
    }
}

impl<G: DerefMut<Target = HeapState>> LockedHeap<'_, G> {
    /// Whether a free block is a whole segment.
    fn is_whole_segment(&self, part: Extent) -> bool {
        let maps = self.maps();
        let nothing = |unit: u32| maps.granule(unit >> LARGE_UNITS_SHIFT).use_() == use_of::NONE;
        let (off, end) = (part.off, part.end());
        off % LARGE_UNITS == 0
            && (off == 0 || nothing(off - 1))
            && if end % LARGE_UNITS == 0 { nothing(end) } else { maps.large_tags().at(end) == 0 }
    }

    fn note_binned(&mut self, id: Id) {
        let d = self.maps().desc(id);
        let part = Extent::new(d.off(), d.units());
        let whole = self.is_whole_segment(part);
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

    /// Tells [`Stuck`] how much is stuck here.
    #[inline]
    pub(crate) fn count_stuck(&mut self) {
        let uncounted = self.state.idle.uncounted();
        if uncounted != 0 {
            self.shared.stuck.stuck.fetch_add(uncounted, Relaxed);
            self.state.idle.counted += uncounted;
        }
    }

    /// The heap is about to be emptied.
    pub(super) fn forget_stuck(&mut self) {
        self.shared.stuck.stuck.fetch_sub(self.state.idle.counted, Relaxed);
    }

    /// Whether `units` may not be cut from this free block: it is a whole segment, whole segments matter here, and too
    /// much would be stuck.
    #[inline]
    pub(crate) fn is_spared(&self, id: Id, units: u32) -> bool {
        let d = self.maps().desc(id);
        let rest = d.units() - units;
        self.state.keeps_whole
            && d.aux() == 1
            && rest != 0
            && i64::from(rest) > self.shared.stuck.room_beside(self.state.idle.uncounted())
    }

    /// The best fit that cuts no whole segment, unless so much more may be stuck; 0 if it comes after too many of them.
    /// It stays in the bins.
    pub(super) fn find_sparing(&self, units: u32) -> Id {
        let (mut found, mut left) = (0, MOST_PASSED);
        self.state.large.walk(self.maps(), units, |id| {
            if !self.is_spared(id, units) {
                found = id;
                return false;
            }
            left -= 1;
            left > 0
        });
        found
    }

    /// What is kept of the free memory.
    #[cfg(test)]
    pub(crate) fn idle(&self) -> Idle {
        self.state.idle
    }
}
