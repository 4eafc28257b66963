//! Tags of blocks: numbers that say what a block is for.
//!
//! A block gets its tag right after its allocation, before the caller has its address. A flag in its state marks it
//! from then on, and sends its free down the slow path, which updates the sums of the tag; so a block without a tag
//! costs nothing extra. The flag stays while a freed block waits. The tag itself is in a table beside the descriptors,
//! and is valid only with the flag. All methods but [`tag_of`](Blocks::tag_of) need the lock of the block's heap.

use super::super::desc::{Id, TAGGED, kind};
use super::super::heap::LockedHeap;
use super::super::shape::Class;
use super::super::state::tags::Tagged;
use super::Blocks;

impl Blocks<'_> {
    /// Gives a live block without a tag one that is not 0. The block stays untagged if the host has no memory for the
    /// table, or for the sums of a new tag.
    pub(crate) fn tag<G>(self, _: &LockedHeap<'_, G>, id: Id, tag: u16) {
        let d = self.maps.desc(id);
        if d.state() & TAGGED != 0 || !self.maps.set_tag(id, tag) {
            return;
        }
        let mut tags = self.tags.lock();
        if tags.make_room(tag) && d.flag_live(TAGGED) {
            tags.count_in(self.tagged(id));
        }
    }

    /// The block for the sums of its tag.
    fn tagged(self, id: Id) -> Tagged {
        let d = self.maps.desc(id);
        Tagged {
            tag: self.maps.tag(id),
            class: Class::of(d.tier_bits()),
            charged: self.maps.charge(id),
            requested: d.requested(),
        }
    }

    /// Changes the tag of a live block; 0 takes it away.
    pub(crate) fn retag<G>(self, h: &LockedHeap<'_, G>, id: Id, tag: u16) {
        let d = self.maps.desc(id);
        let was = d.state();
        // A live block with a tag changes its state only under the heap's lock.
        if was & (TAGGED | kind::MASK) == TAGGED | kind::LIVE {
            self.untag(h, id, was, false);
            d.set_state(was & !TAGGED);
        }
        if tag != 0 {
            self.tag(h, id, tag);
        }
    }

    /// The tag of a live or waiting block; 0 for none.
    pub(crate) fn tag_of(self, id: Id) -> u16 {
        let state = self.maps.desc(id).state();
        if state & TAGGED == 0 { 0 } else { self.maps.tag(id) }
    }

    /// Takes a freed block, whose state was `was`, out of the sums of its tag. The block is in no list yet. `waits`: it
    /// keeps its tag until it is reusable.
    pub(crate) fn untag<G>(self, _: &LockedHeap<'_, G>, id: Id, was: u32, waits: bool) {
        if was & TAGGED == 0 {
            return;
        }
        self.tags.lock().count_out(self.tagged(id), waits);
        let d = self.maps.desc(id);
        if waits {
            d.set_state(d.state() | TAGGED);
        }
    }

    /// Counts a waiting block as reusable in the sums of its tag.
    pub(crate) fn untag_waiting<G>(self, _: &LockedHeap<'_, G>, id: Id) {
        let d = self.maps.desc(id);
        if d.state() & (TAGGED | kind::MASK) == TAGGED | kind::WAITING {
            self.tags.lock().count_back(self.tagged(id));
        }
    }

    /// Counts a waiting block as live again, in the state `was`: the device refused to take it back.
    pub(crate) fn tag_again<G>(self, _: &LockedHeap<'_, G>, id: Id, was: u32) {
        if was & TAGGED == 0 {
            return;
        }
        self.tags.lock().count_again(self.tagged(id));
    }

    /// Counts a live block with a tag whose size has changed: `before` is what it was charged and asked for.
    pub(crate) fn resize_tagged<G>(self, _: &LockedHeap<'_, G>, id: Id, before: (u64, u64), now: (u64, u64)) {
        let block = self.tagged(id);
        let with = |(charged, requested)| Tagged { charged, requested, ..block };
        let mut tags = self.tags.lock();
        tags.count_out(with(before), false);
        tags.count_in(with(now));
    }
}
