//! Questions about live blocks whose answers stay right while their heap is locked.

use super::super::desc::{Id, kind};
use super::LockedHeap;

impl<G> LockedHeap<'_, G> {
    /// Whether a block of this heap that was found at `offset` before the heap was locked is still live.
    pub(crate) fn still_live(&self, id: Id, offset: u64) -> bool {
        let maps = self.shared.maps;
        maps.desc(id).kind() == kind::LIVE && maps.starts_at(id, offset)
    }
}
