//! The facet of devices whose physical memory is separate from addresses.

use crate::base::error::{Code, Error, Result};

/// Bytes of one granule of physical memory, on every device.
pub const GRANULE: u64 = 2 << 20;

/// Physical memory in granules of 2 MiB, numbered from 0, and a window of addresses at which granules are mapped. A
/// granule may be mapped at several addresses at once. Numbers and counts are of granules, all other sizes in bytes.
pub trait Mapping: Send + Sync {
    /// How many granule numbers there are: at least as many as the device's memory has granules. If there are more,
    /// sleeping memory, which keeps its numbers, leaves numbers for other memory.
    fn numbers(&self) -> u64;
    /// How many mappings the window may have at a time. Mappings that are adjacent both in addresses and in granules
    /// may count as one.
    fn most_mappings(&self) -> u64;
    /// Reserves `bytes` of addresses, aligned to the granule, and returns the first. A device has at most one window.
    /// If this fails, the device may have no mapping facet from then on.
    fn open_window(&self, bytes: u64) -> Result<u64>;
    /// Unmaps everything, frees all granules and releases the window. Waits for the work that may still use them.
    fn close_window(&self) -> Result<()>;
    /// Creates physical granules `first..first + count`, all or none.
    fn create(&self, first: u64, count: u64) -> Result<()>;
    /// The same in physical allocations of `each` granules, the last perhaps of fewer: such granules are a *tie*. They are
    /// mapped, unmapped and released only together, in their order. A device whose memory is all one needs no more than
    /// `create`.
    fn create_tied(&self, first: u64, count: u64, each: u64) -> Result<()> {
        let _ = each;
        self.create(first, count)
    }
    /// How many granules a tie should have at most that is made only to spare calls, and how many must be wanted at once
    /// for that; 0: calls cost too little.
    fn tie(&self) -> (u32, u32) {
        (0, 0)
    }
    /// Gives physical granules back; they must not be mapped.
    fn release(&self, first: u64, count: u64) -> Result<()>;
    /// Maps granules `first..first + count` at the addresses from `window + offset` on, all or none.
    fn map(&self, offset: u64, first: u64, count: u64) -> Result<()>;
    /// Whether [`map_runs`](Self::map_runs) costs less than a [`map`](Self::map) for each run.
    fn maps_together(&self) -> bool {
        false
    }
    /// Maps runs of granules, each its first and how many, side by side from `window + offset` on, all or none. Only for
    /// devices that [map together](Self::maps_together).
    fn map_runs(&self, offset: u64, runs: &[(u64, u64)]) -> Result<()> {
        let _ = (offset, runs);
        Err(Error::new(Code::Unsupported, "this device maps one run at a time"))
    }
    /// Unmaps the addresses `window + offset .. window + offset + bytes`. Waits for nothing.
    fn unmap(&self, offset: u64, bytes: u64) -> Result<()>;
}
