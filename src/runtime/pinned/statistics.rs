//! The account of pinned memory by the names that users of PyTorch know.

use super::cache::State;
use super::numbers::HostMemoryStats;

impl State {
    /// All of it, since the device was opened.
    pub(crate) fn in_full(&self) -> HostMemoryStats {
        HostMemoryStats {
            allocations: self.more.segments.into(),
            allocated_bytes: self.stats.reserved.into(),
            active_requests: self.more.active_blocks.into(),
            active_bytes: self.more.active.into(),
            host_alloc_time: self.more.taking,
            host_free_time: self.more.giving,
            num_host_alloc: self.more.segments.total,
            num_host_free: self.more.segments.total - self.more.segments.current,
            cached_bytes: self.stats.cached,
            pending_bytes: self.stats.pending,
        }
    }
}
