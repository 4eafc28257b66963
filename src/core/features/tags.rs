//! Tags of blocks: numbers that say what a block is for.
//!
//! A block gets its tag right after its allocation, before the caller has its address. A flag in its state marks it
//! from then on, and sends its free down the slow path, which updates the sums of the tag; so a block without a tag
//! costs nothing extra. The flag stays while a freed block waits. The tag itself is in a table beside the descriptors,
//! and is valid only with the flag.

use super::super::desc::{Id, TAGGED, kind};
use super::super::ground::Ground;
use super::super::heap::LockedHeap;
use super::super::types::TagStats;

impl Ground {
    /// Gives the live block at `offset` a tag, which is not 0. The block stays untagged if the host has no memory for
    /// the table.
    pub(crate) fn tag(&self, offset: u64, tag: u16) {
        let Ok((f, heap)) = self.live_block(offset) else { return };
        let h = self.lock(heap);
        if self.still_live(f.id, offset) && f.desc.state() & TAGGED == 0 {
            self.tag_live(&h, f.id, tag);
        }
    }

    /// The same, with the heap locked.
    pub(super) fn tag_live<G>(&self, _: &LockedHeap<'_, G>, id: Id, tag: u16) {
        let d = self.maps.desc(id);
        if self.maps.set_tag(id, tag) && d.flag_live(TAGGED) {
            self.tags.lock().count_in(tag, self.charge(id), d.requested());
        }
    }

    /// Gives a live block another tag than it has, or takes it away (0).
    pub(super) fn tag_instead<G>(&self, h: &LockedHeap<'_, G>, id: Id, tag: u16) {
        let d = self.maps.desc(id);
        let was = d.state();
        // A live block with a tag changes its state only under the heap's lock.
        if was & (TAGGED | kind::MASK) == TAGGED | kind::LIVE {
            self.untag(id, was, false);
            d.set_state(was & !TAGGED);
        }
        if tag != 0 {
            self.tag_live(h, id, tag);
        }
    }

    /// The tag of a live or waiting block; 0 for none.
    pub(crate) fn tag_of(&self, id: Id) -> u16 {
        let state = self.maps.desc(id).state();
        if state & TAGGED == 0 { 0 } else { self.maps.tag(id) }
    }

    /// Takes a freed block, whose state was `was`, out of the sums of its tag. Its heap is locked, and it is in no list
    /// yet. `waits`: it keeps its tag until it is reusable.
    pub(super) fn untag(&self, id: Id, was: u32, waits: bool) {
        if was & TAGGED == 0 {
            return;
        }
        let d = self.maps.desc(id);
        self.tags.lock().count_out(self.maps.tag(id), self.charge(id), d.requested(), waits);
        if waits {
            d.set_state(d.state() | TAGGED);
        }
    }

    /// Counts a freed block as reusable in the sums of its tag. Its heap is locked.
    pub(super) fn untag_waiting(&self, id: Id) {
        let d = self.maps.desc(id);
        if d.state() & (TAGGED | kind::MASK) == TAGGED | kind::WAITING {
            self.tags.lock().count_back(self.maps.tag(id), self.charge(id));
        }
    }

    /// Counts a freed block as live again, in the state `was`, since the device refused its free. Its heap is locked.
    pub(super) fn retag(&self, id: Id, was: u32) {
        if was & TAGGED == 0 {
            return;
        }
        let (tag, charged) = (self.maps.tag(id), self.charge(id));
        let mut tags = self.tags.lock();
        tags.count_back(tag, charged);
        tags.count_in(tag, charged, self.maps.desc(id).requested());
    }

    /// The sums of each tag.
    pub(crate) fn tag_stats(&self) -> Vec<(u16, TagStats)> {
        self.poll_all();
        for heap in self.all_heaps() {
            let mut h = self.look(heap);
            self.drain(&mut h);
        }
        self.tags.lock().all()
    }
}
