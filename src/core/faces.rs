//! Parts of the pond's interface: one type for the calls of each feature.

use super::features::{Exported, Pieces, Restored};
use super::ground::Ground;
use super::heap::{Heap, HeapPath, Outside};
use super::state::captures::CaptureId;
use super::state::checkpoints::CheckpointId;
use super::state::pools::{Pool, PoolRef};
use super::types::{Freeing, LiveAndFreed, MemoryStats, PoolId, TagStats};
use crate::base::biased::Name;
use crate::base::error::Result;
use crate::base::sync::Ordering::Relaxed;

/// The fast paths of threads into heaps (`heap/fast.rs`); from [`Pond::fast_paths`](super::Pond::fast_paths).
#[derive(Clone, Copy)]
pub(crate) struct FastPathCalls<'a>(pub(super) &'a Ground);

impl FastPathCalls<'static> {
    /// See `Ground::open_fast_path`.
    #[inline]
    pub(crate) fn open(
        self,
        pool: &Pool,
        name: Name,
        near: (u64, u64),
        outside: &'static dyn Outside,
        may: impl FnOnce() -> bool,
    ) -> std::result::Result<HeapPath, Option<&'static Heap>> {
        self.0.open_fast_path(pool, name, near, outside, may)
    }
}

impl FastPathCalls<'_> {
    /// Settles the accounts after a first step that returned this heap with its block.
    pub(crate) fn settle(self, heap: &'static Heap) {
        self.0.settle_quick(heap);
    }

    /// Closes the fast paths into the heaps of a pool, or of all. The caller has removed the pools' numbers before, and holds
    /// neither a heap's lock nor one below `HEAP`.
    pub(crate) fn close(self, pool: Option<&Pool>) {
        match pool {
            Some(pool) => self.0.close_fast_paths(pool),
            None => self.0.all_heaps().for_each(Heap::close_fast_path),
        }
    }
}

/// Stream capture; from [`Pond::captures`](super::Pond::captures).
#[derive(Clone, Copy)]
pub struct CaptureCalls<'a>(pub(super) &'a Ground);

impl CaptureCalls<'_> {
    /// Begins a capture of `stream`, whose requests `pool` serves from now on. Call it before the device starts to
    /// record.
    pub fn begin(self, pool: PoolId, stream: u64) -> Result<CaptureId> {
        self.0.capture_begin(pool, stream)
    }

    /// Keeps a pool as it is, as a capture does after its end, until the release.
    pub fn keep(self, pool: PoolId) -> Result<CaptureId> {
        self.0.capture_keep(pool)
    }

    /// Adds a stream to a capture that has not ended.
    pub fn add(self, capture: CaptureId, stream: u64) -> Result<()> {
        self.0.capture_add(capture, stream)
    }

    /// Ends the recording: the streams are ordinary ones again, but the capture still keeps its pool.
    pub fn end(self, capture: CaptureId) -> Result<()> {
        self.0.capture_end(capture)
    }

    /// Releases the capture. Call it once its graph is destroyed, or if it was never made.
    pub fn release(self, capture: CaptureId) -> Result<()> {
        self.0.capture_release(capture, true)
    }

    /// The same without waiting for the device: the pool's memory serves nobody until what is queued now is done.
    pub fn release_async(self, capture: CaptureId) -> Result<()> {
        self.0.capture_release(capture, false)
    }
}

/// Checkpoints; from [`Pond::checkpoints`](super::Pond::checkpoints).
#[derive(Clone, Copy)]
pub struct CheckpointCalls<'a>(pub(super) &'a Ground);

impl CheckpointCalls<'_> {
    /// Records which blocks of the pool are live now.
    pub fn make(self, pool: PoolId) -> Result<CheckpointId> {
        self.0.checkpoint(pool)
    }

    /// Drops a checkpoint that is no longer needed.
    pub fn destroy(self, checkpoint: CheckpointId) -> Result<()> {
        self.0.checkpoint_destroy(checkpoint)
    }

    /// Makes exactly those blocks of the pool live that were live at the checkpoint. The caller promises that nobody
    /// uses the pool meanwhile. `place` converts the offsets in the answer. `tell` is called for each block that is
    /// freed, with locks held, before its memory can be used again.
    pub fn restore(
        self,
        pool: PoolId,
        checkpoint: CheckpointId,
        place: impl Fn(u64) -> u64,
        tell: impl Fn(&Freeing),
    ) -> Result<Restored> {
        self.0.restore(pool, checkpoint, place, tell)
    }
}

/// Sleep and wake; from [`Pond::sleep`](super::Pond::sleep).
#[derive(Clone, Copy)]
pub struct SleepCalls<'a>(pub(super) &'a Ground);

impl SleepCalls<'_> {
    /// Gives the pool's memory back to the device until `wake`. With `save` its contents are kept in host memory;
    /// without, they are lost. Waits for the device.
    pub fn begin(self, pool: PoolId, save: bool) -> Result<()> {
        self.0.sleep(pool, save)
    }

    /// Brings the pool's memory back at the same addresses, all of it or none.
    pub fn wake(self, pool: PoolId) -> Result<()> {
        self.0.wake(pool)
    }

    /// Whether the pool is asleep.
    pub fn is_on(self, pool: PoolId) -> bool {
        self.0.sleeps(pool)
    }
}

/// Blocks used by other processes or devices; from [`Pond::exports`](super::Pond::exports).
#[derive(Clone, Copy)]
pub struct ExportCalls<'a>(pub(super) &'a Ground);

impl ExportCalls<'_> {
    /// The pieces of memory behind the live block at `offset`. `NotPermitted` while its pool sleeps.
    pub fn pieces(self, offset: u64) -> Result<Pieces> {
        self.0.pieces(offset)
    }

    /// Marks the live block at `offset` as used by others until `point`, which the backing has made, is passed.
    pub fn add(self, offset: u64, point: u64) -> Result<()> {
        let fence = self.0.order.adopt(point);
        self.0.export(offset, fence)
    }

    /// What others still use of all pools, or of one.
    pub fn all(self, pool: Option<PoolId>) -> Exported {
        self.0.exported(pool)
    }
}

/// What [`Pond::tags`](super::Pond::tags) gives.
#[derive(Clone, Copy)]
pub struct TagCalls<'a>(pub(super) &'a Ground);

impl TagCalls<'_> {
    /// Gives the live block at `offset`, which its owner does not know yet, a tag that is not 0.
    pub fn give(self, offset: u64, tag: u16) {
        self.0.tag(offset, tag);
    }

    /// What the blocks of each tag have that was ever given.
    pub fn stats(self) -> Vec<(u16, TagStats)> {
        self.0.tag_stats()
    }
}

/// What [`Pond::statistics`](super::Pond::statistics) gives.
#[derive(Clone, Copy)]
pub struct StatisticsCalls<'a>(pub(super) &'a Ground);

impl StatisticsCalls<'_> {
    /// The statistics in full, of the device or of one of its pools; `device_free` is how many bytes the device says
    /// that it has left. The calls to the device are not counted here.
    pub fn full(self, pool: Option<PoolId>, device_free: u64) -> Result<MemoryStats> {
        self.0.memory_stats(pool, device_free)
    }

    /// All pools that live, by number.
    pub fn pools(self) -> Vec<PoolId> {
        self.0.live_pools()
    }

    /// The number of live blocks of the device, which is not asked anything.
    pub fn live_blocks(self) -> u64 {
        self.0.live_blocks()
    }

    /// How much is live, and how many blocks were ever freed. Does not query the device.
    pub fn live_and_freed(self) -> LiveAndFreed {
        self.0.live_and_freed()
    }
}

/// Requests that few callers make; from [`Pond::special`](super::Pond::special).
#[derive(Clone, Copy)]
pub struct SpecialCalls<'a>(pub(super) &'a Ground);

impl SpecialCalls<'_> {
    /// As [`Pond::alloc`](super::Pond::alloc), at an address that is a multiple of `align` bytes, a power of two up to a
    /// granule; but a block that is a segment of its own is where the device has put it.
    pub fn alloc_aligned(self, pool: PoolId, stream: u64, bytes: u64, align: u64) -> Result<u64> {
        let pool = PoolRef { place: self.0.live_pool(pool)?, id: pool };
        self.0.alloc_aligned(pool, stream, bytes, align)
    }

    /// \[B\] of each charge that is the device's own.
    pub(crate) fn padding(self) -> u64 {
        self.0.config.padding
    }

    /// See `Ground::resize`.
    pub fn resize(self, offset: u64, bytes: u64) -> Result<()> {
        self.0.resize(offset, bytes)
    }

    /// [`Pond::empty_cache`](super::Pond::empty_cache) until no more than `keep` bytes are reserved. Does nothing if no
    /// more are.
    pub fn trim_to(self, pool: Option<PoolId>, keep: u64) -> Result<()> {
        if let Some(p) = pool {
            self.0.live_pool(p)?;
        }
        self.0.trim_to(pool.map(|p| p.0), keep).map(drop)
    }

    /// [`Pond::empty_cache`](super::Pond::empty_cache) of all pools, until no more than `keep` bytes are reserved.
    pub fn empty_cache_to(self, keep: u64) -> Result<()> {
        self.0.no_ties.store(0, Relaxed); // a new start
        self.trim_to(None, keep)
    }
}

/// What `Pond::watched` gives.
#[derive(Clone, Copy)]
pub(crate) struct WatchCalls<'a>(pub(super) &'a Ground);

impl WatchCalls<'_> {
    /// The live block that starts at `offset`, as a free with that stream is told.
    #[inline]
    pub(crate) fn to_be_freed(self, offset: u64, stream: Option<u64>) -> Option<Freeing> {
        self.0.to_be_freed(offset, stream)
    }

    /// What a request is charged that the first step has served.
    #[inline(always)]
    pub(crate) fn charged(self, bytes: u64) -> u64 {
        self.0.maps.shape.charged_of(bytes)
    }
}
