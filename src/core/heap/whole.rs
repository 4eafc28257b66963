//! Freed blocks that stay whole (`state/tuned.rs`): kept apart from the bins, sorted by size, until they are given up.
//! All methods work on a locked heap.

use super::super::desc::{Id, kind};
use super::{HeapState, LockedHeap};
use std::ops::DerefMut;

impl<G: DerefMut<Target = HeapState>> LockedHeap<'_, G> {
    /// Keeps a freed large block as it is.
    pub(crate) fn put_whole(&mut self, id: Id) {
        let d = self.maps().desc(id);
        d.set_kind(kind::FREED);
        let entry = (d.units(), d.off(), id);
        let at = self.state.whole.partition_point(|w| *w < entry);
        self.state.whole.insert(at, entry);
    }

    /// The smallest kept block of `least` to `most` units, at the lowest offset among equals; 0 if there is none.
    pub(crate) fn take_whole(&mut self, least: u32, most: u32) -> Id {
        let whole = &mut self.state.whole;
        let at = whole.partition_point(|w| w.0 < least);
        match whole.get(at) {
            Some(w) if w.0 <= most => whole.remove(at).2,
            _ => 0,
        }
    }

    /// Merges all kept blocks; returns whether there were any.
    pub(crate) fn give_up_whole(&mut self) -> bool {
        let all = std::mem::take(&mut self.state.whole);
        for &(_, _, id) in &all {
            self.merge(id);
        }
        self.count_stuck();
        !all.is_empty()
    }
}
