//! What the tuning (`state/tuned.rs`) changes for single blocks.
//!
//! The hot path knows only which requests it serves itself (`shape::Served`). Larger requests take the slow path. A flag
//! makes the frees of their blocks take the slow path too, and their charge is that of their units if those are more
//! than the request needs. So a block is charged the same at its free as at its allocation, whatever has changed in
//! between.

use super::super::desc::{Id, OVERSIZE, TUNED};
use super::super::ground::Ground;
use super::super::heap::{HeapState, LockedHeap};
use super::super::shape::{Tier, shift_of};
use super::super::state::tuned::Tuning;
use super::super::units::LARGE_SHIFT;
use super::Blocks;
use std::ops::DerefMut;

/// [B] the hot path never serves larger requests, so that 64-bit sums of bytes are checked in time.
const LARGEST: u64 = 1 << 30;

/// Changes what the pond does from now on.
pub(crate) fn tune(ground: &Ground, t: Tuning) {
    ground.tuned.set(t);
    let whole = if t.max_split == 0 { u64::MAX } else { t.max_split - 1 };
    // A request is below `whole` when its charge is.
    let whole = whole.saturating_sub(ground.config.padding + ground.config.min_chunk);
    let largest = ground.config.max_alloc.min(LARGEST).min(whole).min(t.untouched());
    ground.maps.shape.set_largest(largest);
    // A heap that is made meanwhile has it from there.
    for heap in ground.heaps().all() {
        ground.look(heap).served = ground.maps.shape.served();
    }
    if t.max_split == 0 {
        give_up_whole(ground);
    }
}

/// Merges the whole blocks of all heaps, so that they may be split. Returns whether there were any.
pub(crate) fn give_up_whole(ground: &Ground) -> bool {
    let mut any = false;
    for heap in ground.heaps().all() {
        any |= ground.lock(heap).give_up_whole();
    }
    any
}

impl Blocks<'_> {
    /// [B] that a request of `bytes` is charged, which may be rounded by the tuning. `None`: `bytes` are more than `most`,
    /// which the device can give.
    #[inline]
    pub(crate) fn charged(self, bytes: u64, most: u64) -> Option<u64> {
        let charged = self.maps.shape.charged(bytes);
        charged.or_else(|| (bytes <= most).then(|| self.charged_tuned(bytes, most)))
    }

    /// The same for a request that the hot path does not serve.
    fn charged_tuned(self, bytes: u64, most: u64) -> u64 {
        let shape = &self.maps.shape;
        let plain = shape.charged_of(bytes);
        let rounded = shape.charged_of(self.tuned.get().round_up(bytes));
        // Rounding beyond the device's size would only make the request fail.
        let charged = if rounded > most { plain } else { rounded };
        let size = shape.size(charged);
        self.maps.charge_of(size.tier as u32, size.units, bytes)
    }

    /// Takes a kept whole block that serves a request of so many units of the large tier; 0: there is none.
    pub(crate) fn take_whole(self, h: &mut LockedHeap<'_>, charged: u64, units: u32) -> Id {
        let t = self.tuned.get();
        if t.max_split == 0 || charged < t.max_split {
            return 0;
        }
        let more = (t.max_round >> LARGE_SHIFT).min(u64::from(u32::MAX)) as u32;
        h.take_whole(units, units.saturating_add(more))
    }

    /// Flags a block that has just become live with this charge, if its free must check the tuning.
    pub(crate) fn flag_tuned<G: DerefMut<Target = HeapState>>(
        self,
        h: &LockedHeap<'_, G>,
        id: Id,
        charged: u64,
    ) {
        if self.maps.shape.is_tuned(self.maps.desc(id).requested(), charged) {
            h.flag(id, TUNED);
        }
        self.flag_oversize(h, id, charged);
    }

    /// Flags a block that has just become live, and whose free takes the slow path, if it is one of those that stay
    /// whole.
    pub(crate) fn flag_oversize<G: DerefMut<Target = HeapState>>(
        self,
        h: &LockedHeap<'_, G>,
        id: Id,
        charged: u64,
    ) {
        let max_split = self.tuned.max_split();
        if max_split != 0 && charged >= max_split {
            h.flag(id, OVERSIZE);
            self.maps.reserved.oversize_begins(h.heap.pool());
        }
    }

    /// Counts the end of the life of a block that was in this state, if it counted as oversize.
    pub(crate) fn end_oversize<G>(self, h: &LockedHeap<'_, G>, was: u32) {
        if was & OVERSIZE != 0 {
            self.maps.reserved.oversize_ends(h.heap.pool());
        }
    }

    /// Counts a block as oversize again that is live again in this state.
    pub(crate) fn oversize_again<G>(self, h: &LockedHeap<'_, G>, was: u32) {
        if was & OVERSIZE != 0 {
            self.maps.reserved.oversize_begins(h.heap.pool());
        }
    }

    /// Whether a freed block stays whole.
    pub(super) fn stays_whole(self, id: Id) -> bool {
        let max_split = self.tuned.max_split();
        let d = self.maps.desc(id);
        max_split != 0
            && d.tier_bits() >= Tier::Large as u32
            && u64::from(d.units()) << shift_of(d.tier_bits()) >= max_split
    }
}
