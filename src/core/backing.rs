//! What the allocator needs from outside, in its own words: memory by offset, and points in streams.
//! `runtime` supplies it over a device; tests supply a simulation.
//!
//! No call comes with a lock of the pond held, and each may come from any thread, beside any other. A call that is
//! made for a range of memory is made by the one who has that range, so no two calls concern the same one at a time.

use crate::base::error::{Code, Error, Result};

/// A point in the work of streams, as the backing numbers it.
pub type Point = u64;

/// Points in streams: made by [`Backing::mark`], asked and waited for, and given back exactly once. `Err` of any of
/// these says nothing about the point.
pub trait Points: Send + Sync {
    /// Whether the streams have passed it.
    fn passed(&self, point: Point) -> Result<bool>;
    /// Makes work queued on `stream` from now on wait for it; never blocks the caller.
    fn wait(&self, stream: u64, point: Point) -> Result<()>;
    /// Waits for it on the host.
    fn sync(&self, point: Point) -> Result<()>;
    /// The point is not needed any more. Makes no call to the device: it may come with locks held.
    fn forget(&self, point: Point);
}

/// The source of memory behind a [`Pond`](super::Pond). Offsets are bytes in the pond's own space.
pub trait Backing: Points {
    /// Makes granules `first..first + count` and maps each at its own offset. All or none.
    fn create(&self, first: u32, count: u32) -> Result<()>;
    /// Unmaps and releases granules. On failure they are there as before, at their offsets.
    fn release(&self, first: u32, count: u32) -> Result<()>;
    /// The same, for granules that the pond is rid of whatever the device says: the backing goes on asking it.
    fn discard(&self, first: u32, count: u32) {
        let _ = self.release(first, count); // a backing that never refuses need not do more
    }
    /// Shows granules `first..first + count` at `offset` too. All or none.
    fn alias(&self, offset: u64, first: u32, count: u32) -> Result<()>;
    /// Takes `bytes` at `offset` away from view.
    fn unalias(&self, offset: u64, bytes: u64) -> Result<()>;
    /// The same, for a view that the pond is rid of whatever the device says, as with [`discard`](Self::discard).
    fn discard_view(&self, offset: u64, bytes: u64) {
        let _ = self.unalias(offset, bytes); // as there
    }

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

    /// A point behind everything that is queued on `stream` now; `None`: all of that is over. `EVERY` stands for all
    /// streams together.
    fn mark(&self, stream: u64) -> Result<Option<Point>>;
    /// A point that is passed when the caller's event is; `None`: it is. The event stays the caller's.
    fn borrow_event(&self, _event: u64) -> Result<Option<Point>> {
        Err(Error::new(Code::Unsupported, "this device has no events"))
    }
    /// Whether work that is queued on `stream` is recorded for later (graph capture) and not run: then no
    /// point can be made there. Of the default stream: also whether the capture of another stream forbids it
    /// work; of `EVERY`: whether a capture forbids to wait for the device.
    fn capturing(&self, _stream: u64) -> bool {
        false
    }
    /// Waits on the host for everything on the device, also what streams that have ended have queued.
    fn sync_all(&self) -> Result<()>;
    /// Waits on the host for everything that is queued on `stream`.
    fn sync_stream(&self, stream: u64) -> Result<()>;
    /// Whether the calling thread may wait for streams: it runs none of their callbacks.
    fn may_wait(&self) -> bool {
        true
    }
    /// Whether the calling thread may have memory come and go: it is in no call of the backing, which may have called
    /// back.
    fn may_change(&self) -> bool {
        true
    }
    /// Whether the stream exists; a device that cannot tell answers `true`.
    fn knows(&self, stream: u64) -> bool;
    /// Whether the stream is still one of those that [`streams`](Self::streams) names, or may be somebody else's;
    /// without a call to the device. One that is not must not be asked about.
    fn lists(&self, _stream: u64) -> bool {
        true
    }
    /// Whether the stream is one of the device's own. One that is not may use the device's memory all the same, and is
    /// waited for with none of its calls but for points of [`mark_elsewhere`](Self::mark_elsewhere). `UnknownStream`:
    /// it does not exist; any other error: it could not be asked.
    fn owns(&self, stream: u64) -> Result<bool> {
        if self.knows(stream) {
            return Ok(true);
        }
        Err(Error::new(
            Code::UnknownStream,
            format!("stream {stream:#x} is not a stream of this device, or was destroyed"),
        ))
    }
    /// As [`mark`](Self::mark), for a stream that is not the device's own, also where it has ended since it was asked
    /// about. The point is passed when a wait for the whole device that begins later is over.
    fn mark_elsewhere(&self, _stream: u64) -> Result<Option<Point>> {
        Err(Error::new(Code::Unsupported, "this device knows no streams but its own"))
    }
    /// Whether it is a name of the default stream, which waits for all others.
    fn is_default(&self, stream: u64) -> bool {
        stream == 0
    }
    /// Whether the stream orders work of all threads. One that is another stream on each thread does not:
    /// blocks for it are given out as blocks without a stream are.
    fn ordered_by(&self, _stream: u64) -> bool {
        true
    }
    /// Calls `each` for every stream that may have work on the device, the default one included; with `EVERY` alone
    /// where there may be streams that nobody knows.
    fn streams(&self, each: &mut dyn FnMut(u64));
}
