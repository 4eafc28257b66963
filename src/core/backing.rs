//! What the allocator needs from outside, in its own terms: memory by offset, and points in streams. `runtime` supplies
//! it over a device; tests supply a simulation.
//!
//! No lock of the pond is held during a call, except in the few methods that say so. Calls may come from any thread and
//! run concurrently. A call for a range of memory is made only by the operation that owns the range, so no two calls
//! concern the same range at a time.

use super::units::GranuleRun;
use crate::base::error::{Code, Error, Result};

/// A freed block whose wait is over.
#[derive(Clone, Copy, Debug)]
pub struct Completed {
    /// Where it starts.
    pub offset: u64,
    /// \[B\] as charged.
    pub charged: u64,
    /// \[B\] as asked for.
    pub requested: u64,
    /// The stream that ordered its use, if one did.
    pub stream: Option<u64>,
    /// The stream no longer orders the use of the block, mostly because it has ended. Its work may still run.
    pub ended: bool,
    /// The number of its pool.
    pub pool: u32,
}

/// A point in the work of streams, numbered by the backing.
pub type Point = u64;

/// Points in streams. Each is made by [`Backing::mark`] or one of its kind, queried, waited for, and given back exactly
/// once. An `Err` says nothing about the point.
pub trait Points: Send + Sync {
    /// Whether the streams have passed the point.
    fn passed(&self, point: Point) -> Result<bool>;
    /// Makes work that is queued on `stream` from now on wait for the point. May wait on the host instead where the
    /// device cannot do it, and then fails in a stream callback.
    fn wait(&self, stream: u64, point: Point) -> Result<()>;
    /// Waits for the point on the host.
    fn sync(&self, point: Point) -> Result<()>;
    /// The point is not needed any more. Locks may be held, so an implementation makes no call to the device.
    fn forget(&self, point: Point);
}

/// The source of memory behind a [`Pond`](super::Pond). Offsets are bytes in the pond's own space.
pub trait Backing: Points {
    /// Creates granules `first..first + count` and maps each at its own offset, all or none.
    fn create(&self, first: u32, count: u32) -> Result<()>;
    /// The same in *ties*: physical allocations of `each` granules, the last one perhaps smaller. A tie is released as
    /// a whole, and mapped elsewhere only as a whole.
    fn create_tied(&self, first: u32, count: u32, _each: u32) -> Result<()> {
        self.create(first, count)
    }
    /// Creates granules again that the pond has released and needs back; with `tied`, all in one tie.
    fn create_again(&self, first: u32, count: u32, tied: bool) -> Result<()> {
        if tied { self.create_tied(first, count, count) } else { self.create(first, count) }
    }
    /// Unmaps and releases granules. A tie is released as a whole, so the range has all granules of a tie or none.
    /// After a failure all are there as before, at their own offsets.
    fn release(&self, first: u32, count: u32) -> Result<()>;
    /// Releases granules that the pond gives up. If the device refuses, the backing keeps trying.
    fn discard(&self, first: u32, count: u32) {
        let _ = self.release(first, count); // enough for a backing that never refuses
    }
    /// Also maps granules `first..first + count` at `offset`, all or none.
    fn alias(&self, offset: u64, first: u32, count: u32) -> Result<()>;
    /// Maps runs of granules side by side from `offset` on, all or none. Nobody knows these addresses yet.
    fn alias_runs(&self, offset: u64, runs: &[GranuleRun]) -> Result<()> {
        alias_one_by_one(self, offset, runs)
    }
    /// Unmaps `bytes` at `offset`.
    fn unalias(&self, offset: u64, bytes: u64) -> Result<()>;
    /// The same for a mapping that the pond gives up. If the device refuses, the backing keeps trying.
    fn discard_view(&self, offset: u64, bytes: u64) {
        let _ = self.unalias(offset, bytes); // as there
    }

    /// Copies the contents of granules `first..first + count` to host memory and keeps the copy. All or nothing.
    fn save(&self, _first: u32, _count: u32) -> Result<()> {
        Err(Error::new(Code::Unsupported, "the device cannot copy to the host"))
    }
    /// Copies them back into the granules, which have been created again. The copy is still kept.
    fn load(&self, _first: u32, _count: u32) -> Result<()> {
        Err(Error::new(Code::Unsupported, "the device cannot copy from the host"))
    }
    /// Drops the saved copy.
    fn drop_saved(&self, _first: u32, _count: u32) {}

    /// Takes a segment of `bytes` from the device, at the range of offsets from `offset` on.
    fn segment(&self, offset: u64, bytes: u64) -> Result<()>;
    /// Gives the segment at `offset` back.
    fn segment_release(&self, offset: u64, bytes: u64) -> Result<()>;

    /// Makes a point after everything that is queued on `stream` now; `None`: all of that is done. `EVERY` stands for
    /// all streams together. A device that has no such point may be waited for instead if `may_wait`; else that is
    /// `NotPermitted`.
    fn mark(&self, stream: u64, may_wait: bool) -> Result<Option<Point>>;
    /// A point that is passed when the caller's event is; `None`: it has been passed. The event stays the caller's.
    fn borrow_event(&self, _event: u64) -> Result<Option<Point>> {
        Err(Error::new(Code::Unsupported, "the device has no events"))
    }
    /// Whether graph capture records work that is queued on `stream` for later, so that no point can be made there. For
    /// the default stream, also whether the capture of another stream forbids work on it. For `EVERY`, whether a
    /// capture forbids waiting for the device.
    fn capturing(&self, _stream: u64) -> bool {
        false
    }
    /// An announced capture of the stream begins (`captured`) or has ended. In between the stream exists for certain,
    /// so the device may be asked about it.
    fn watch(&self, _stream: u64, _captured: bool) {}
    /// Waits on the host for everything on the device, including work of streams that have ended.
    fn sync_all(&self) -> Result<()>;
    /// Waits on the host for everything that is queued on `stream`.
    fn sync_stream(&self, stream: u64) -> Result<()>;
    /// Whether the calling thread may wait for streams: it is not running one of their callbacks. Locks may be held, so
    /// an implementation calls nothing and waits for nothing.
    fn may_wait(&self) -> bool {
        true
    }
    /// Whether the calling thread may take or release memory: it is not inside a call of the backing that may have
    /// called back.
    fn may_change(&self) -> bool {
        true
    }
    /// Whether all work that was queued on the device's streams before this call is done. `false` also if the device
    /// would have to make a call to find out; see `Streams::idle`.
    fn idle(&self) -> bool {
        false
    }
    /// Whether the stream exists; a device that does not know answers `true`.
    fn knows(&self, stream: u64) -> bool;
    /// Whether [`streams`](Self::streams) still lists the stream, or it may be somebody else's. If not, the device must
    /// not be asked about it. Makes no call to the device.
    fn lists(&self, _stream: u64) -> bool {
        true
    }
    /// Whether the device may be asked about the stream in a call of the program that does not name it. If not, the
    /// stream may have ended without notice by then, and a point of all streams (`EVERY`) takes the place of one on the
    /// stream.
    fn lasts(&self, _stream: u64) -> bool {
        true
    }
    /// The same for a stream that is not one of the device's own. If not, [`mark_elsewhere`](Self::mark_elsewhere)
    /// makes a point of all work that may be the stream's.
    fn lasts_elsewhere(&self, _stream: u64) -> bool {
        true
    }
    /// Whether the stream is one of the device's own. Another stream may still use the device's memory, but the device
    /// can wait for it only through points of [`mark_elsewhere`](Self::mark_elsewhere). `UnknownStream`: the stream
    /// does not exist. Any other error: the question could not be answered.
    fn owns(&self, stream: u64) -> Result<bool> {
        if self.knows(stream) {
            return Ok(true);
        }
        Err(Error::formatted(
            Code::UnknownStream,
            format_args!("there is no stream {stream:#x}, or it was destroyed"),
        ))
    }
    /// As [`mark`](Self::mark), for a stream that is not the device's own. It may have ended since `owns` was called;
    /// with `named`, it has not: the current call of the program names it, or
    /// [`lasts_elsewhere`](Self::lasts_elsewhere). The point is passed when a wait for the whole device that begins
    /// later returns.
    fn mark_elsewhere(&self, _stream: u64, _named: bool) -> Result<Option<Point>> {
        Err(Error::new(Code::Unsupported, "the device knows no streams but its own"))
    }
    /// Whether `stream` denotes the default stream, which waits for all others. Locks may be held, so an implementation
    /// calls nothing and waits for nothing.
    fn is_default(&self, stream: u64) -> bool {
        stream == 0
    }
    /// Whether the stream id denotes the same stream on all threads. Where it does not, it cannot order memory, and
    /// blocks for it are allocated like blocks without a stream.
    fn ordered_by(&self, _stream: u64) -> bool {
        true
    }
    /// Reports that a freed block that had to wait has become reusable, or is about to go back to the device. Locks of the
    /// pond may be held, so an implementation calls nothing and waits for nothing.
    fn free_completed(&self, _freed: Completed) {}
    /// The address of an offset that the pond has, for requests that want an aligned one. Locks of the pond are held, so an
    /// implementation calls nothing and waits for nothing.
    fn address(&self, offset: u64) -> u64 {
        offset
    }
    /// Calls `each` for every stream that may have work on the device, including the default one; with `EVERY` alone if
    /// there may be streams that nobody knows.
    fn streams(&self, each: &mut dyn FnMut(u64));
}

/// [`Backing::alias_runs`] for a backing that maps one run with each call.
pub fn alias_one_by_one<B: Backing + ?Sized>(backing: &B, offset: u64, runs: &[GranuleRun]) -> Result<()> {
    let mut at = offset;
    for run in runs {
        if let Err(e) = backing.alias(at, run.first, run.count) {
            if at > offset {
                backing.discard_view(offset, at - offset);
            }
            return Err(e);
        }
        at += run.bytes();
    }
    Ok(())
}
