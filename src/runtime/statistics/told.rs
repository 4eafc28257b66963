//! What is told of a device in a text of its statistics, in whatever format.

use crate::base::histogram::Durations;
use crate::core::{Counter, MemoryStats, PoolId, StreamStats};
use crate::runtime::device::tags::DeviceTagStats;
use crate::runtime::pinned::numbers::HostMemoryStats;
use crate::runtime::watch::latency::Latency;

/// The version of the JSON's form; it grows when something goes, or changes its meaning.
pub(super) const VERSION: u32 = 1;

/// One pool, to be told.
pub(super) struct PoolStats {
    pub(super) id: PoolId,
    pub(super) name: Option<String>,
    pub(super) memory: MemoryStats,
}

/// All that is told of a device.
#[derive(Default)]
pub(super) struct Told {
    pub(super) device: String,
    pub(super) memory: MemoryStats,
    pub(super) pools: Vec<PoolStats>,
    pub(super) host: HostMemoryStats,
    /// Tags that were ever used, by name.
    pub(super) tags: Vec<(&'static str, DeviceTagStats)>,
    /// `None`: not asked for.
    pub(super) streams: Option<Vec<StreamStats>>,
    /// Nothing, if calls were never timed.
    pub(super) latencies: Vec<(Latency, Durations)>,
}

/// What is told of a tag over time: as [`MemoryStats`] names it, and where it stands on a page for Prometheus.
pub(super) struct TagFlow {
    /// In JSON.
    pub(super) name: &'static str,
    /// The class that it is of.
    pub(super) class: Option<&'static str>,
    pub(super) stem: &'static str,
    pub(super) unit: &'static str,
    pub(super) help: &'static str,
    pub(super) of: fn(&DeviceTagStats) -> Counter,
}

pub(super) const TAG_FLOWS: [TagFlow; 11] = {
    const fn flow(
        [name, stem, unit, help]: [&'static str; 4],
        of: fn(&DeviceTagStats) -> Counter,
    ) -> TagFlow {
        TagFlow { name, class: None, stem, unit, help, of }
    }
    const fn small(
        [name, stem, unit, help]: [&'static str; 4],
        of: fn(&DeviceTagStats) -> Counter,
    ) -> TagFlow {
        TagFlow { name, class: Some("small_pool"), stem, unit, help, of }
    }
    const LIVE: &str = "Live blocks with the tag";
    const ROUNDED: &str = "Live blocks with the tag after rounding";
    const ASKED: &str = "Live blocks with the tag as they were asked for";
    const ACTIVE: &str = "Blocks with the tag that are live or wait";
    const PINNED: &str = "Live pinned memory with the tag";
    const UNIFIED: &str = "Live unified memory with the tag";
    [
        flow(["allocation", "tag_blocks", "", LIVE], |t| t.memory.blocks),
        small(["allocation.small_pool", "tag_blocks", "", LIVE], |t| t.memory.small_blocks),
        flow(["allocated_bytes", "tag_allocated", "_bytes", ROUNDED], |t| t.memory.allocated),
        small(["allocated_bytes.small_pool", "tag_allocated", "_bytes", ROUNDED], |t| {
            t.memory.small_allocated
        }),
        flow(["requested_bytes", "tag_requested", "_bytes", ASKED], |t| t.memory.requested),
        flow(["active", "tag_active_blocks", "", ACTIVE], |t| t.memory.active_blocks),
        flow(["active_bytes", "tag_active", "_bytes", ACTIVE], |t| t.memory.active),
        flow(["host_blocks", "tag_host_blocks", "", PINNED], |t| t.pinned.blocks),
        flow(["host_bytes", "tag_host", "_bytes", PINNED], |t| t.pinned.requested),
        flow(["unified_blocks", "tag_unified_blocks", "", UNIFIED], |t| t.unified.blocks),
        flow(["unified_bytes", "tag_unified", "_bytes", UNIFIED], |t| t.unified.requested),
    ]
};

/// What is told of a stream: the names are the same in JSON and for Prometheus.
pub(super) fn stream_values(s: &StreamStats) -> [(&'static str, u64); 12] {
    [
        ("blocks", s.blocks),
        ("requested_bytes", s.requested_bytes),
        ("allocated_bytes", s.allocated_bytes),
        ("waiting_blocks", s.waiting_blocks),
        ("waiting_bytes", s.waiting_bytes),
        ("free_blocks", s.free_blocks),
        ("free_bytes", s.free_bytes),
        ("added_blocks_total", s.total_blocks),
        ("added_bytes_total", s.total_bytes),
        ("peak_blocks", s.peak_blocks),
        ("peak_requested_bytes", s.peak_requested_bytes),
        ("peak_allocated_bytes", s.peak_allocated_bytes),
    ]
}
