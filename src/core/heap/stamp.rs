//! What the bins of the large tier looked like when a fit failed: as long as no block is added to them, none can
//! succeed.

use super::{HeapState, LockedHeap};
use std::ops::DerefMut;

/// A state of the bins. Equal stamps of one heap: no block was added in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp(u32);

impl<G: DerefMut<Target = HeapState>> LockedHeap<'_, G> {
    /// The state of the bins. `None` where a fit depends on more than the bins: on how much memory is stuck elsewhere, or on
    /// ids, of which too few are in stock.
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        (!self.state.keeps_whole && self.has_ids_to_cut()).then(|| Stamp(self.state.large.inserted()))
    }
}
