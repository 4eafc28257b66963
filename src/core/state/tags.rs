//! What blocks with a tag sum up to, by tag. A tag is a number that the caller gives; 0 is none.

use super::super::types::TagStats;
use std::collections::BTreeMap;

/// The sums of each tag that was ever used.
#[derive(Debug, Default)]
pub(crate) struct Tags {
    sums: BTreeMap<u16, TagStats>,
}

impl Tags {
    /// A block gets the tag, or lives again.
    pub(crate) fn count_in(&mut self, tag: u16, charged: u64, requested: u64) {
        let s = self.sums.entry(tag).or_default();
        s.requested.add(requested);
        s.allocated.add(charged);
        s.blocks.add(1);
    }

    /// Its life ends; `waits`: it is not reusable yet.
    pub(crate) fn count_out(&mut self, tag: u16, charged: u64, requested: u64, waits: bool) {
        let s = self.sums.entry(tag).or_default();
        s.requested.sub(requested);
        s.allocated.sub(charged);
        s.blocks.sub(1);
        s.waiting += if waits { charged } else { 0 };
    }

    /// It waits no more.
    pub(crate) fn count_back(&mut self, tag: u16, charged: u64) {
        self.sums.entry(tag).or_default().waiting -= charged;
    }

    /// All of them, by tag.
    pub(crate) fn all(&self) -> Vec<(u16, TagStats)> {
        self.sums.iter().map(|(&tag, &s)| (tag, s)).collect()
    }
}
