//! The second step of a request, for which no block of exactly its size was freed: a best fit in what the heap has already
//! merged. The heap's lock is held; nothing outside is called.

use super::super::desc::Id;
use super::super::shape::{Class, Size, Tier, shift_of};
use super::super::units::LARGE_UNITS;
use super::fast::{EnteredHeap, Fast, Reused};
use super::{HeapState, LockedHeap};
use std::ops::DerefMut;

/// [units] What scattering must spare to be worth the driver calls of a new mapping, where a block also fits somewhere.
pub(crate) const WORTH_MAPPING: u32 = 8;

impl<G: DerefMut<Target = HeapState>> LockedHeap<'_, G> {
    /// A best fit, not yet live; 0 if nothing that is already merged fits.
    #[inline]
    pub(crate) fn place(&mut self, size: Size) -> Id {
        self.state.countdown = self.state.countdown.saturating_sub(1);
        if size.tier == Tier::Large { self.place_large(size.units) } else { self.fit(size) }
    }

    #[inline]
    fn place_large(&mut self, units: u32) -> Id {
        if !self.state.quick.is_empty() {
            if self.state.quick.is_too_much(self.state.granules) {
                self.flush_large();
            } else if units < LARGE_UNITS {
                // A small request must not break a whole granule, which large requests need, while a smaller hole may be
                // among what waits.
                let hole = self.large().find(units);
                if hole == 0 || self.maps().desc(hole).units() >= LARGE_UNITS {
                    self.flush_large();
                } else if !self.state.keeps_whole {
                    return self.cut_found(hole, units);
                }
            }
        }
        if self.state.ragged && self.is_better_scattered(units) {
            return 0;
        }
        self.fit_large(units)
    }

    /// Whether a block should be scattered rather than placed at its best fit: memory is scarce, and much of the free
    /// memory lies in partly used granules.
    #[cold]
    pub(crate) fn is_better_scattered(&self, units: u32) -> bool {
        units >= LARGE_UNITS && self.fit_cost(units).is_some_and(|c| c > WORTH_MAPPING)
    }
}

impl EnteredHeap {
    /// Cuts a block from the free memory of the heap, for a request that [`alloc`](Self::alloc) has missed; misses if
    /// nothing that is merged fits, or if the heap has other things to do first.
    pub(crate) fn alloc_best_fit(mut self, bytes: u64) -> Fast {
        let served = &self.state.served;
        if bytes.wrapping_sub(1) < served.largest() && self.state.countdown != 0 {
            let charged = served.charged_of(bytes);
            let size = self.maps().shape.size(charged);
            let id = self.place(size);
            if id != 0 {
                let tier = size.tier as u32;
                self.make_live(id, tier, bytes);
                let offset = u64::from(self.maps().desc(id).off()) << shift_of(tier);
                let full = self.state.counters.count_in(Class::of(tier), charged, bytes);
                return self.given(if full { Reused::Full(offset) } else { Reused::Block(offset) });
            }
        }
        self.missed()
    }
}
