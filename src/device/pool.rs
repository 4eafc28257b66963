//! The facet of devices whose driver has a stream-ordered pool of its own.

use super::StreamId;
use crate::base::error::Result;

/// Statistics of a driver's own pool, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverPoolStats {
    /// Currently taken from the device.
    pub reserved: u64,
    /// The maximum of that since the pool was made.
    pub reserved_peak: u64,
    /// Currently in blocks.
    pub used: u64,
    /// The maximum of that since the pool was made.
    pub used_peak: u64,
}

/// The driver's pool.
pub trait DriverPool: Send + Sync {
    /// Memory for work queued on `stream` from now on.
    fn alloc(&self, stream: StreamId, bytes: u64) -> Result<u64>;
    /// Gives back what `alloc` returned, after the work queued on `stream` so far. Waits for nothing.
    fn free(&self, addr: u64, stream: StreamId) -> Result<()>;
    /// Gives unused memory beyond `keep` bytes back to the device.
    fn trim(&self, keep: u64) -> Result<()>;
    /// Its statistics.
    fn stats(&self) -> Result<DriverPoolStats>;
}
