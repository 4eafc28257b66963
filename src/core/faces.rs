//! Parts of the pond's face: the calls of one feature, together.

use super::features::{Exported, Pieces, Restored};
use super::ground::Ground;
use super::state::captures::CaptureId;
use super::state::checkpoints::CheckpointId;
use super::types::PoolId;
use crate::base::error::Result;

/// What [`Pond::captures`](super::Pond::captures) gives.
#[derive(Clone, Copy)]
pub struct CaptureCalls<'a>(pub(super) &'a Ground);

impl CaptureCalls<'_> {
    /// A capture of `stream`, served by `pool` from now on. To be called before the device starts to record.
    pub fn begin(self, pool: PoolId, stream: u64) -> Result<CaptureId> {
        self.0.capture_begin(pool, stream)
    }

    /// Another stream belongs to a capture that has not ended.
    pub fn add(self, capture: CaptureId, stream: u64) -> Result<()> {
        self.0.capture_add(capture, stream)
    }

    /// The streams of the capture are ordinary ones again; the capture goes on keeping its pool.
    pub fn end(self, capture: CaptureId) -> Result<()> {
        self.0.capture_end(capture)
    }

    /// The graph of the capture is gone, or was never made.
    pub fn release(self, capture: CaptureId) -> Result<()> {
        self.0.capture_release(capture)
    }
}

/// What [`Pond::checkpoints`](super::Pond::checkpoints) gives.
#[derive(Clone, Copy)]
pub struct CheckpointCalls<'a>(pub(super) &'a Ground);

impl CheckpointCalls<'_> {
    /// Notes which blocks of the pool are live now.
    pub fn make(self, pool: PoolId) -> Result<CheckpointId> {
        self.0.checkpoint(pool)
    }

    /// The checkpoint is not needed any more.
    pub fn destroy(self, checkpoint: CheckpointId) -> Result<()> {
        self.0.checkpoint_destroy(checkpoint)
    }

    /// Makes exactly those blocks of the pool live that were at the checkpoint. The caller promises that
    /// nobody uses the pool meanwhile. `place` says what the answer has for an offset.
    pub fn restore(
        self,
        pool: PoolId,
        checkpoint: CheckpointId,
        place: impl Fn(u64) -> u64,
    ) -> Result<Restored> {
        self.0.restore(pool, checkpoint, place)
    }
}

/// What [`Pond::sleep`](super::Pond::sleep) gives.
#[derive(Clone, Copy)]
pub struct SleepCalls<'a>(pub(super) &'a Ground);

impl SleepCalls<'_> {
    /// Gives the pool's memory back to the device until `wake`; with `save`, what it holds is kept in host
    /// memory, else it is lost. Waits for the device.
    pub fn begin(self, pool: PoolId, save: bool) -> Result<()> {
        self.0.sleep(pool, save)
    }

    /// Brings the pool's memory back, at the same addresses. All or nothing.
    pub fn wake(self, pool: PoolId) -> Result<()> {
        self.0.wake(pool)
    }

    /// Whether the pool sleeps.
    pub fn is_on(self, pool: PoolId) -> bool {
        self.0.sleeps(pool)
    }
}

/// What [`Pond::exports`](super::Pond::exports) gives.
#[derive(Clone, Copy)]
pub struct ExportCalls<'a>(pub(super) &'a Ground);

impl ExportCalls<'_> {
    /// Where the memory of the live block at `offset` is. `NotPermitted` while its pool sleeps.
    pub fn pieces(self, offset: u64) -> Result<Pieces> {
        self.0.pieces(offset)
    }

    /// The live block at `offset` is used by others until the point, which the backing has made, is passed.
    pub fn add(self, offset: u64, point: u64) -> Result<()> {
        let fence = self.0.order.adopt(point);
        self.0.export(offset, fence)
    }

    /// What others still use, of all pools or of one.
    pub fn all(self, pool: Option<PoolId>) -> Exported {
        self.0.exported(pool)
    }
}
