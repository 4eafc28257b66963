//! What each tag has of a device: of its memory, and of its pinned and unified memory.

use crate::base::error::Result;
use crate::base::sync::system::lock;
use crate::core::TagStats;
use crate::runtime::device::state::DeviceState;
use crate::runtime::entry::tags::Tag;
use crate::runtime::pinned::tags::HostTagStats;
use std::collections::BTreeMap;

/// What the blocks of one tag have of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTagStats {
    /// The tag.
    pub tag: Tag,
    /// Memory of the device.
    pub memory: TagStats,
    /// Pinned memory.
    pub pinned: HostTagStats,
    /// Unified memory.
    pub unified: HostTagStats,
}

impl DeviceTagStats {
    /// A tag that has nothing.
    pub(crate) fn of(tag: Tag) -> DeviceTagStats {
        DeviceTagStats {
            tag,
            memory: TagStats::default(),
            pinned: HostTagStats::default(),
            unified: HostTagStats::default(),
        }
    }

    /// What the blocks of each tag have that was ever used on a device, by its number. The device's memory and its pinned and
    /// unified memory are read one after the other.
    pub fn all(device: &DeviceState) -> Result<Vec<DeviceTagStats>> {
        let mut all: BTreeMap<Tag, DeviceTagStats> = BTreeMap::new();
        for (tag, memory) in device.memory().statistics().by_tag()? {
            all.entry(tag).or_insert_with(|| DeviceTagStats::of(tag)).memory = memory;
        }
        let pinned: Vec<_> = lock(&device.host.state).tags.each().collect();
        let unified: Vec<_> = lock(&device.unified.0).tags.each().collect();
        let tagged = |(n, s)| Some((Tag::of_number(n)?, s));
        for (tag, pinned) in pinned.into_iter().filter_map(tagged) {
            all.entry(tag).or_insert_with(|| DeviceTagStats::of(tag)).pinned = pinned;
        }
        for (tag, unified) in unified.into_iter().filter_map(tagged) {
            all.entry(tag).or_insert_with(|| DeviceTagStats::of(tag)).unified = unified;
        }
        Ok(all.into_values().collect())
    }
}
