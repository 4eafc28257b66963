//! The facet of devices whose physical memory is apart from addresses.

use crate::base::error::Result;

/// Bytes of one granule of physical memory, on every device.
pub const GRANULE: u64 = 2 << 20;

/// Physical memory in granules of 2 MiB, numbered from 0, and a window of addresses to show them in. A granule may stand
/// behind several addresses at once. All numbers and counts are of granules, all other sizes in bytes.
pub trait Mapping: Send + Sync {
    /// How many numbers there are for granules. At least as many as the device's memory has granules; where there are
    /// more, memory that sleeps (whose numbers stay taken) leaves numbers for other memory.
    fn numbers(&self) -> u64;
    /// How many mappings there may be in the window at a time; pieces that touch on both sides may count as one.
    fn most_mappings(&self) -> u64;
    /// Reserves `bytes` of addresses, aligned to the granule, and gives the first. At most one window a device. Where
    /// this fails the device may have no mapping from then on.
    fn open_window(&self, bytes: u64) -> Result<u64>;
    /// Unmaps everything, frees all granules, releases the window. Waits for the work that may still use them.
    fn close_window(&self) -> Result<()>;
    /// Makes physical granules `first..first + count`, or none of them.
    fn create(&self, first: u64, count: u64) -> Result<()>;
    /// Gives physical granules back; they must not be mapped.
    fn release(&self, first: u64, count: u64) -> Result<()>;
    /// Puts granules `first..first + count` behind the addresses `window + offset ..`, all or none.
    fn map(&self, offset: u64, first: u64, count: u64) -> Result<()>;
    /// Takes the granules away from behind the addresses `window + offset .. + bytes`. Waits for nothing.
    fn unmap(&self, offset: u64, bytes: u64) -> Result<()>;
}
