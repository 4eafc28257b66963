//! Tags of blocks, as users see them; `blocks/tags.rs` has the rest.

use super::super::blocks::{Blocks, WaitingBlocks};
use super::super::ground::Ground;
use super::super::types::TagStats;

/// Tags of blocks; from [`Pond::tags`](crate::core::Pond::tags).
#[derive(Clone, Copy)]
pub struct TagCalls<'a> {
    ground: &'a Ground,
}

impl<'a> TagCalls<'a> {
    pub(crate) fn of(ground: &'a Ground) -> TagCalls<'a> {
        TagCalls { ground }
    }

    /// Gives the live block at `offset`, which its owner does not know yet, a tag that is not 0. The block stays untagged
    /// if the host has no memory for the tag.
    pub fn give(self, offset: u64, tag: u16) {
        let Ok((f, heap)) = self.ground.live_block(offset) else { return };
        let h = self.ground.lock(heap);
        if h.still_live(f.id, offset) {
            Blocks::of(self.ground).tag(&h, f.id, tag);
        }
    }

    /// The sums of each tag that was ever given.
    pub fn stats(self) -> Vec<(u16, TagStats)> {
        WaitingBlocks::of(self.ground).poll_all();
        for heap in self.ground.heaps().all() {
            Blocks::of(self.ground).drain(&mut self.ground.look(heap));
        }
        self.ground.tags().lock().all()
    }
}
