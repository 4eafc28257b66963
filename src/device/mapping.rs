//! The facet of devices whose physical memory is separate from addresses.

use crate::base::error::{Code, Error, Result};
use crate::fail;
use std::ops::Range;

/// Bytes of one granule of physical memory, on every device.
pub const GRANULE: u64 = 2 << 20;

/// Granules with successive numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The number of the first one.
    pub first: u64,
    /// How many there are.
    pub count: u64,
}

/// Which ties are worth making only to save calls of the driver, in granules. The default: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TieSizes {
    /// The largest of them.
    pub most: u32,
    /// How many granules a request must need at once for that.
    pub request: u32,
}

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
    /// The same in physical allocations of `each` granules; the last may have fewer. The granules of one allocation are a
    /// *tie*: they are mapped, unmapped and released only together, in their order. A device whose memory is one piece
    /// anyway only needs `create`.
    fn create_tied(&self, first: u64, count: u64, each: u64) -> Result<()> {
        let _ = each;
        self.create(first, count)
    }
    /// Which ties save calls of the driver. None where calls are cheap.
    fn tie_sizes(&self) -> TieSizes {
        TieSizes::default()
    }
    /// Gives physical granules back; they must not be mapped.
    fn release(&self, first: u64, count: u64) -> Result<()>;
    /// Maps granules `first..first + count` at the addresses from `window + offset` on, all or none.
    fn map(&self, offset: u64, first: u64, count: u64) -> Result<()>;
    /// Unmaps the addresses `window + offset .. window + offset + bytes`. Waits for nothing.
    fn unmap(&self, offset: u64, bytes: u64) -> Result<()>;
    /// Mapping several runs with one call, where that costs less than a [`map`](Self::map) for each.
    fn together(&self) -> Option<&dyn MapsTogether> {
        None
    }
}

/// Mapping several runs of granules with one call.
pub trait MapsTogether: Send + Sync {
    /// Maps runs of granules side by side from `window + offset` on, all or none.
    fn map_runs(&self, offset: u64, runs: &[Run]) -> Result<()>;
}

/// The slots of a window that a range of its addresses covers; a slot has room for one granule. `bytes` is `None` for a
/// size that does not fit into 64 bits. A `window` of 0 is none.
pub(crate) fn slots_of(window: u64, slots: usize, offset: u64, bytes: Option<u64>) -> Result<Range<usize>> {
    if window == 0 {
        return Err(Error::new(Code::InvalidArgument, "this device has no window"));
    }
    let bytes = bytes.unwrap_or(u64::MAX);
    if bytes == 0 || !offset.is_multiple_of(GRANULE) || !bytes.is_multiple_of(GRANULE) {
        fail!(Code::InvalidArgument, "{bytes} bytes at offset {offset}: not whole granules of 2 MiB");
    }
    let (first, count) = (offset / GRANULE, bytes / GRANULE);
    match first.checked_add(count) {
        Some(end) if end <= slots as u64 => Ok(first as usize..end as usize),
        _ => fail!(Code::OutOfRange, "{bytes} bytes at offset {offset} run past the window"),
    }
}
