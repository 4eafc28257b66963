//! What each tag has of a device's pinned or unified memory.

use crate::base::ordered::Map;
use crate::core::Counter;

/// Live memory of one kind with one tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostTagStats {
    /// Bytes as they were asked for.
    pub requested: Counter,
    /// How many blocks they are in.
    pub blocks: Counter,
}

/// Of each tag that was ever used; 0 is none.
#[derive(Default)]
pub(crate) struct TagSums(Map<u16, HostTagStats>);

impl TagSums {
    /// Makes room for a tag. `false`: the host has no memory for it.
    pub(crate) fn make_room(&mut self, tag: u16) -> bool {
        tag == 0 || self.0.contains_key(&tag) || self.0.make_room()
    }

    /// Counts a block that begins to live.
    pub(crate) fn count_in(&mut self, tag: u16, bytes: u64) {
        if tag != 0 {
            let s = self.0.entry(tag).or_default();
            s.requested.add(bytes);
            s.blocks.add(1);
        }
    }

    /// Counts one again that the device did not take back.
    pub(crate) fn count_again(&mut self, tag: u16, bytes: u64) {
        if let Some(s) = self.0.get_mut(&tag) {
            s.requested.add_again(bytes);
            s.blocks.add_again(1);
        }
    }

    /// Counts one whose life ends.
    pub(crate) fn count_out(&mut self, tag: u16, bytes: u64) {
        if let Some(s) = self.0.get_mut(&tag) {
            s.requested.sub(bytes);
            s.blocks.sub(1);
        }
    }

    /// All, by tag.
    pub(crate) fn each(&self) -> impl Iterator<Item = (u16, HostTagStats)> {
        self.0.iter().map(|(&tag, &s)| (tag, s))
    }
}
