//! Reading the statistics of pinned memory in full.

use crate::base::error::Result;
use crate::base::sync::system::lock;
use crate::runtime::device::host_memory::HostMemory;
use crate::runtime::pinned::numbers::{HostMemoryStats, Times};

impl HostMemory<'_> {
    /// The statistics of the device's pinned host memory in full. Looks which freed blocks wait for nothing any more.
    pub fn full_stats(&self) -> Result<HostMemoryStats> {
        let _pass = self.0.enter()?;
        self.settle(usize::MAX);
        let s = lock(&self.0.host.state);
        let (mut m, then) = (s.in_full(), s.before);
        for (now, then) in [
            (&mut m.allocations, then.allocations),
            (&mut m.allocated_bytes, then.allocated_bytes),
            (&mut m.active_requests, then.active_requests),
            (&mut m.active_bytes, then.active_bytes),
        ] {
            now.allocated -= then.allocated;
            now.freed -= then.freed;
        }
        m.num_host_alloc -= then.num_host_alloc;
        m.num_host_free -= then.num_host_free;
        Ok(m)
    }

    /// What was allocated and freed so far, and how long the calls took, is not told any more by
    /// [`full_stats`](Self::full_stats).
    pub fn reset_accumulated(&self) -> Result<()> {
        let _pass = self.0.enter()?;
        let mut s = lock(&self.0.host.state);
        s.before = s.in_full();
        (s.more.taking, s.more.giving) = (Times::default(), Times::default());
        Ok(())
    }
}
