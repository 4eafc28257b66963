//! Reading the statistics of pinned memory in full.

use crate::base::error::Result;
use crate::base::sync::system::lock;
use crate::runtime::device::state::DeviceState;
use crate::runtime::pinned::numbers::{HostMemoryStats, Times};

impl DeviceState {
    /// The statistics of the device's pinned host memory in full. Looks which freed blocks wait for nothing any more.
    pub fn host_memory_stats(&self) -> Result<HostMemoryStats> {
        let _pass = self.enter()?;
        self.host_settle(usize::MAX);
        let s = lock(&self.host.state);
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
    /// [`host_memory_stats`](Self::host_memory_stats).
    pub fn host_reset_accumulated(&self) -> Result<()> {
        let _pass = self.enter()?;
        let mut s = lock(&self.host.state);
        s.before = s.in_full();
        (s.more.taking, s.more.giving) = (Times::default(), Times::default());
        Ok(())
    }
}
