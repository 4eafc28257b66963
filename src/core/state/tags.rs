//! The sums of the blocks with each tag. A tag is a number chosen by the caller; 0 is none.

use super::super::types::TagStats;
use std::collections::BTreeMap;

/// The sums of each tag that was ever used.
#[derive(Debug, Default)]
pub(crate) struct Tags {
    sums: BTreeMap<u16, TagStats>,
}

impl Tags {
    /// Counts a block that gets the tag, or is live again.
    pub(crate) fn count_in(&mut self, tag: u16, charged: u64, requested: u64) {
        let s = self.sums.entry(tag).or_default();
        s.requested.add(requested);
        s.allocated.add(charged);
        s.blocks.add(1);
    }

    /// Counts a block with the tag that was freed; `waits`: it is not reusable yet.
    pub(crate) fn count_out(&mut self, tag: u16, charged: u64, requested: u64, waits: bool) {
        let s = self.sums.entry(tag).or_default();
        s.requested.sub(requested);
        s.allocated.sub(charged);
        s.blocks.sub(1);
        s.waiting += if waits { charged } else { 0 };
    }

    /// Counts a freed block with the tag that has become reusable.
    pub(crate) fn count_back(&mut self, tag: u16, charged: u64) {
        self.sums.entry(tag).or_default().waiting -= charged;
    }

    /// All sums, by tag.
    pub(crate) fn all(&self) -> Vec<(u16, TagStats)> {
        self.sums.iter().map(|(&tag, &s)| (tag, s)).collect()
    }
}
