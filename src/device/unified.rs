//! The facet of devices that have memory which host and device access at the same address.

use super::StreamId;
use crate::base::error::Result;

/// Where pages of unified memory may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnifiedPlace {
    /// In the memory of the device that is asked.
    Device,
    /// In the processor's.
    Host,
}

/// What a program says of the use of unified memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Advice {
    /// It is mostly read: each place may have a copy.
    ReadMostly = 1,
    /// Undoes that.
    UnsetReadMostly = 2,
    /// It should lie at a place.
    Preferred = 3,
    /// Undoes that.
    UnsetPreferred = 4,
    /// A place uses it and should have it mapped, wherever it lies.
    AccessedBy = 5,
    /// Undoes that.
    UnsetAccessedBy = 6,
}

impl Advice {
    /// All of them, in the order of their numbers.
    pub const ALL: [Advice; 6] = [
        Advice::ReadMostly,
        Advice::UnsetReadMostly,
        Advice::Preferred,
        Advice::UnsetPreferred,
        Advice::AccessedBy,
        Advice::UnsetAccessedBy,
    ];
}

/// Memory that host and device access at the same address.
pub trait Unified: Send + Sync {
    /// Allocates such memory.
    fn alloc(&self, bytes: u64) -> Result<u64>;
    /// Gives back what `alloc` returned. Waits for the work that may still use it.
    fn free(&self, addr: u64, bytes: u64) -> Result<()>;
    /// Queues on a stream of the device that the pages of a range, of this device or another one of its type, go to
    /// `place`. `Unsupported` where the device cannot, as in [`advise`](Self::advise).
    fn prefetch(&self, stream: StreamId, addr: u64, bytes: u64, place: UnifiedPlace) -> Result<()>;
    /// Says how such a range will be used. What has no place ignores it.
    fn advise(&self, addr: u64, bytes: u64, advice: Advice, place: UnifiedPlace) -> Result<()>;
}
