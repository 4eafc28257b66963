//! Whole free segments, on a device whose segments are as large as requests need.
//!
//! A segment that is wholly free can go back to the device, so that its memory serves any other size. A segment that a
//! smaller block has cut cannot go back while that block lives: the rest of it is *stuck*, and serves only what fits
//! there. So a block may cut a whole segment only while little is stuck, compared with the memory that the program has
//! never needed.
//!
//! A free block is marked as a whole segment when it enters the bins. The mark stays right: the memory beside it in its
//! segment belongs to a heap or is in transit for as long as the block is in the bins, and beside a segment there is
//! nothing. All methods work on a locked heap.

use super::super::desc::{Id, use_of};
use super::super::units::{Extent, LARGE_UNITS, LARGE_UNITS_SHIFT};
#[cfg(test)]
use super::stuck::Idle;
use super::{HeapState, LockedHeap};
use std::ops::DerefMut;

/// The maximum number of whole segments that a search for a hole passes over. Without this bound, a program on three
/// streams needs a device 2 % larger: exchanging segments packs better than a hole that is far too large.
const MOST_PASSED: u32 = 64;

/// The mark of a free block in the bins that is a whole segment, in the descriptor's `aux`.
const WHOLE_SEGMENT: u32 = 1;

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

    /// Counts a block that enters the bins, and marks it if it is a whole segment.
    fn note_binned(&mut self, id: Id) {
        let d = self.maps().desc(id);
        let part = Extent::new(d.off(), d.units());
        let whole = self.is_whole_segment(part);
        d.set_aux(if whole { WHOLE_SEGMENT } else { 0 });
        self.state.idle.free += i64::from(part.units);
        self.state.idle.whole += if whole { i64::from(part.units) } else { 0 };
    }

    /// Counts a block that leaves the bins.
    fn note_taken(&mut self, id: Id) {
        let d = self.maps().desc(id);
        self.state.idle.free -= i64::from(d.units());
        self.state.idle.whole -= if d.aux() == WHOLE_SEGMENT { i64::from(d.units()) } else { 0 };
    }

    /// Puts a free large block, whose tags are in place, into the bins.
    #[inline(always)]
    pub(super) fn bin(&mut self, id: Id) {
        self.large_mut().insert(id);
        if self.state.keeps_whole {
            self.note_binned(id);
        }
    }

    /// Takes a free large block out of the bins.
    #[inline(always)]
    pub(super) fn unbin(&mut self, id: Id) {
        if self.state.keeps_whole {
            self.note_taken(id);
        }
        self.large_mut().remove(id);
    }

    /// [units] free in whole segments.
    pub(crate) fn whole_segments(&self) -> u64 {
        self.state.idle.whole as u64
    }

    /// Reports how much is stuck here to the device's count.
    #[inline]
    pub(crate) fn count_stuck(&mut self) {
        let uncounted = self.state.idle.uncounted();
        if uncounted != 0 {
            self.shared.stuck.count(uncounted);
            self.state.idle.counted += uncounted;
        }
    }

    /// Takes what this heap has counted out of the device's count: the heap is about to be emptied.
    pub(super) fn forget_stuck(&mut self) {
        self.shared.stuck.count(-self.state.idle.counted);
    }

    /// Whether `units` must not be cut from this free block: it is a whole segment, whole segments matter here, and too
    /// much memory would be stuck.
    #[inline]
    pub(crate) fn is_spared(&self, id: Id, units: u32) -> bool {
        let d = self.maps().desc(id);
        let rest = d.units() - units;
        self.state.keeps_whole
            && d.aux() == WHOLE_SEGMENT
            && rest != 0
            && i64::from(rest) > self.shared.stuck.room_beside(self.state.idle.uncounted())
    }

    /// The best fit that may be cut: one that is no whole segment, or a whole one while that much more may be stuck. 0 if
    /// too many spared segments come before it. It stays in the bins.
    pub(super) fn find_sparing(&self, units: u32) -> Id {
        let (mut found, mut left) = (0, MOST_PASSED);
        self.large().walk(units, |id| {
            if !self.is_spared(id, units) {
                found = id;
                return false;
            }
            left -= 1;
            left > 0
        });
        found
    }

    /// The counts of the free memory.
    #[cfg(test)]
    pub(crate) fn idle(&self) -> Idle {
        self.state.idle
    }
}
