//! The sums of the blocks with each tag. A tag is a number chosen by the caller; 0 is none.

use super::super::shape::Class;
use super::super::types::TagStats;
use crate::base::ordered::Map;

/// The sums of each tag that was ever used.
#[derive(Debug, Default)]
pub(crate) struct Tags {
    sums: Map<u16, TagStats>,
}

/// A block with a tag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tagged {
    pub tag: u16,
    pub class: Class,
    /// [B]
    pub charged: u64,
    /// [B]
    pub requested: u64,
}

impl Tags {
    /// Makes room for a tag. `false`: the host has no memory for it.
    pub(crate) fn make_room(&mut self, tag: u16) -> bool {
        self.sums.contains_key(&tag) || self.sums.make_room()
    }

    fn sums(&mut self, tag: u16) -> &mut TagStats {
        self.sums.entry(tag).or_default()
    }

    /// Counts a block that gets the tag.
    pub(crate) fn count_in(&mut self, b: Tagged) {
        let s = self.sums(b.tag);
        s.requested.add(b.requested);
        s.allocated.add(b.charged);
        s.blocks.add(1);
        if b.class == Class::Small {
            s.small_allocated.add(b.charged);
            s.small_blocks.add(1);
        }
        s.active.add(b.charged);
        s.active_blocks.add(1);
    }

    /// Counts a block with the tag that was freed; `waits`: it is not reusable yet.
    pub(crate) fn count_out(&mut self, b: Tagged, waits: bool) {
        let s = self.sums(b.tag);
        s.requested.sub(b.requested);
        s.allocated.sub(b.charged);
        s.blocks.sub(1);
        if b.class == Class::Small {
            s.small_allocated.sub(b.charged);
            s.small_blocks.sub(1);
        }
        s.waiting += b.charged;
        if !waits {
            self.count_back(b);
        }
    }

    /// Counts a freed block with the tag that waited and is live again: it was not freed after all.
    pub(crate) fn count_again(&mut self, b: Tagged) {
        let s = self.sums(b.tag);
        s.waiting -= b.charged;
        s.requested.add_again(b.requested);
        s.allocated.add_again(b.charged);
        s.blocks.add_again(1);
        if b.class == Class::Small {
            s.small_allocated.add_again(b.charged);
            s.small_blocks.add_again(1);
        }
    }

    /// Counts a freed block with the tag that has become reusable.
    pub(crate) fn count_back(&mut self, b: Tagged) {
        let s = self.sums(b.tag);
        s.waiting -= b.charged;
        s.active.sub(b.charged);
        s.active_blocks.sub(1);
    }

    /// Calls `each` for the sums of every tag, in their order.
    pub(crate) fn each(&self, mut each: impl FnMut(u16, &TagStats)) {
        self.sums.iter().for_each(|(&tag, s)| each(tag, s));
    }

    /// All sums, by tag.
    pub(crate) fn all(&self) -> Vec<(u16, TagStats)> {
        self.sums.iter().map(|(&tag, &s)| (tag, s)).collect()
    }
}
