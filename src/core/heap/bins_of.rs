//! The bins of a heap, with the descriptors that their lists run through.

use super::super::bins::{LargeBins, Linked, MediumBins, SmallBins};
use super::{HeapState, LockedHeap};
use std::ops::DerefMut;

impl<G: DerefMut<Target = HeapState>> LockedHeap<'_, G> {
    /// The bins of the large tier, to read.
    #[inline(always)]
    pub(super) fn large(&self) -> Linked<'_, &LargeBins> {
        self.state.large.linked(self.shared.maps.descs())
    }

    /// The bins of the large tier, to change.
    #[inline(always)]
    pub(super) fn large_mut(&mut self) -> Linked<'_, &mut LargeBins> {
        self.state.large.linked_mut(self.shared.maps.descs())
    }

    /// The bins of the small tier.
    #[inline(always)]
    pub(super) fn small_mut(&mut self) -> Linked<'_, &mut SmallBins> {
        self.state.small.linked_mut(self.shared.maps.descs())
    }

    /// The bins of the medium tier.
    #[inline(always)]
    pub(super) fn medium_mut(&mut self) -> Linked<'_, &mut MediumBins> {
        self.state.medium.linked_mut(self.shared.maps.descs())
    }
}
