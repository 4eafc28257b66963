//! What the allocator needs from outside, in its own words: memory by offset, and points in streams.
//! `runtime` supplies it over a device; tests supply a simulation.

use super::heap::Mark;
use crate::base::error::{Code, Error, Result};

/// The source of memory behind a [`Pond`](super::Pond). Offsets are bytes in the pond's own space.
///
/// Calls come with no lock of a heap held, from any thread; `create`, `segment` and `alias` and their
/// opposites never run at the same time as one another for one pond.
pub trait Backing: Send + Sync {
    /// Makes granules `first..first + count` and maps each at its own offset. All or none.
    fn create(&self, first: u32, count: u32) -> Result<()>;
    /// Unmaps and releases granules.
    fn release(&self, first: u32, count: u32) -> Result<()>;
    /// Shows granules `first..first + count` at `offset` too. All or none.
    fn alias(&self, offset: u64, first: u32, count: u32) -> Result<()>;
    /// Takes `bytes` at `offset` away from view.
    fn unalias(&self, offset: u64, bytes: u64) -> Result<()>;

    /// Copies what granules `first..first + count` hold to host memory, and keeps it. All or nothing.
    fn save(&self, _first: u32, _count: u32) -> Result<()> {
        Err(Error::new(Code::Unsupported, "this device cannot copy to the host"))
    }
    /// Puts it into the granules, which have been made anew. It is still kept.
    fn load(&self, _first: u32, _count: u32) -> Result<()> {
        Err(Error::new(Code::Unsupported, "this device cannot copy from the host"))
    }
    /// What was saved is not needed any more.
    fn drop_saved(&self, _first: u32, _count: u32) {}

    /// Takes a segment of `bytes` from the device and gives it the range at `offset`.
    fn segment(&self, offset: u64, bytes: u64) -> Result<()>;
    /// Gives the segment at `offset` back.
    fn segment_release(&self, offset: u64, bytes: u64) -> Result<()>;

    /// A mark behind everything that is queued on `stream` now.
    fn mark(&self, stream: u64) -> Result<Mark>;
    /// A mark that is passed when the caller's event is; the event stays the caller's.
    fn borrow_event(&self, _event: u64) -> Result<Mark> {
        Err(Error::new(Code::Unsupported, "this device has no events"))
    }
    /// Whether work that is queued on `stream` is recorded for later (graph capture) and not run: then no
    /// mark can be made there. Of the default stream: also whether the capture of another stream forbids it
    /// work; of `EVERY`: whether a capture forbids to wait for the device.
    fn capturing(&self, _stream: u64) -> bool {
        false
    }
    /// Whether the streams have passed it.
    fn passed(&self, mark: Mark) -> Result<bool>;
    /// Makes work queued on `stream` from now on wait for it; never blocks the caller.
    fn wait(&self, stream: u64, mark: Mark) -> Result<()>;
    /// Waits for it on the host.
    fn sync(&self, mark: Mark) -> Result<()>;
    /// The mark is not needed any more.
    fn forget(&self, mark: Mark);
    /// Waits on the host for everything on the device.
    fn sync_all(&self) -> Result<()>;
    /// Whether the stream exists; a device that cannot tell answers `true`.
    fn knows(&self, stream: u64) -> bool;
    /// Whether it is a name of the default stream, which waits for all others.
    fn is_default(&self, stream: u64) -> bool {
        stream == 0
    }
    /// Whether the stream orders work of all threads. One that is another stream on each thread does not:
    /// blocks for it are given out as blocks without a stream are.
    fn ordered_by(&self, _stream: u64) -> bool {
        true
    }
    /// Calls `each` for every stream that may have work on the device, the default one included.
    fn streams(&self, each: &mut dyn FnMut(u64));
}
