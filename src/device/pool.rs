//! The facet of devices whose driver has a stream-ordered pool of its own.

use super::StreamId;
use crate::base::error::Result;

/// What a driver's own pool tells, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverPoolStats {
    /// Taken from the device now.
    pub reserved: u64,
    /// The most that was, since the pool was made.
    pub reserved_peak: u64,
    /// In blocks now.
    pub used: u64,
    /// The most that was.
    pub used_peak: u64,
}

/// The driver's pool.
pub trait DriverPool: Send + Sync {
    /// Memory for work queued on `stream` from now on.
    fn alloc(&self, stream: StreamId, bytes: u64) -> Result<u64>;
    /// Gives back what `alloc` returned, after the work queued on `stream` so far. Waits for nothing.
    fn free(&self, addr: u64, stream: StreamId) -> Result<()>;
    /// Unused memory beyond `keep` bytes goes back to the device.
    fn trim(&self, keep: u64) -> Result<()>;
    /// What it tells of itself.
    fn stats(&self) -> Result<DriverPoolStats>;
}
