//! Requests that the tuning concerns (`state/tuned.rs`).
//!
//! The hot path knows nothing of the tuning but one number that it compares with anyway: the largest request that it
//! serves itself. Requests above that come here. A flag sends the free of what they get the slow way, and its charge is
//! that of its units where those are more than the request needs. So a block is charged the same at its free as at its
//! allocation, whatever was changed in between.

use super::super::desc::{Id, TUNED};
use super::super::ground::Ground;
use super::super::heap::{HeapState, LockedHeap};
use super::super::shape::{Tier, shift_of};
use super::super::state::tuned::Tuning;
use super::super::units::LARGE_SHIFT;
use std::ops::DerefMut;

/// [B] larger requests are never served by the hot path: sums of bytes that have 64 bits are looked at in time.
const LARGEST: u64 = 1 << 30;

impl Ground {
    /// Changes what the pond does from now on.
    pub(crate) fn tune(&self, t: Tuning) {
        self.tuned.set(t);
        let whole = if t.max_split == 0 { u64::MAX } else { t.max_split - 1 };
        // A request is below `whole` when its charge is.
        let whole = whole.saturating_sub(self.config.padding + self.config.min_chunk);
        let largest = self.config.max_alloc.min(LARGEST).min(whole).min(t.untouched());
        self.maps.shape.set_largest(largest);
        if t.max_split == 0 {
            self.give_up_whole();
        }
    }

    /// What a request that may be rounded is charged.
    pub(crate) fn charged_tuned(&self, bytes: u64) -> u64 {
        let shape = &self.maps.shape;
        let plain = shape.charged_of(bytes);
        let rounded = shape.charged_of(self.tuned.get().round_up(bytes));
        // More than the device has helps nobody.
        let charged = if rounded > self.config.max_alloc { plain } else { rounded };
        let size = shape.size(charged);
        self.charge_of(size.tier as u32, size.units, bytes)
    }

    /// A kept block that was freed whole and serves a request of so many units of the large tier; 0: none.
    pub(crate) fn take_whole(&self, h: &mut LockedHeap<'_>, charged: u64, units: u32) -> Id {
        let t = self.tuned.get();
        if t.max_split == 0 || charged < t.max_split {
            return 0;
        }
        let more = (t.max_round >> LARGE_SHIFT).min(u64::from(u32::MAX)) as u32;
        h.take_whole(units, units.saturating_add(more))
    }

    /// Flags a block that has just become live with this charge, if its free must look at the tuning. Its heap is
    /// locked.
    pub(crate) fn flag_tuned<G: DerefMut<Target = HeapState>>(
        &self,
        h: &LockedHeap<'_, G>,
        id: Id,
        charged: u64,
    ) {
        let (d, shape) = (self.maps.desc(id), &self.maps.shape);
        if d.requested() > shape.largest() || charged != shape.charged_of(d.requested()) {
            h.flag(id, TUNED);
        }
    }

    /// Whether a freed block is one that stays whole.
    pub(crate) fn stays_whole(&self, id: Id) -> bool {
        let max_split = self.tuned.max_split();
        let d = self.maps.desc(id);
        max_split != 0
            && d.tier_bits() >= Tier::Large as u32
            && u64::from(d.units()) << shift_of(d.tier_bits()) >= max_split
    }

    /// Merges the whole blocks of all heaps, so that they may be split. `true` when there were any.
    pub(crate) fn give_up_whole(&self) -> bool {
        let mut any = false;
        for heap in self.all_heaps() {
            any |= self.lock(heap).give_up_whole();
        }
        any
    }
}
