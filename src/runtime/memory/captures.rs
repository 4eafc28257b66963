//! Graph captures and checkpoints of a device's pools; the core's `features/` have what they do.

use super::state::{How, Memory};
use crate::base::error::Result;
use crate::core::{CaptureId, CheckpointId, PoolId, Restored};
use crate::device::StreamId;
use crate::runtime::nvtx;

/// The captures of a device's streams, which a pool serves. Get it with [`Memory::captures`].
#[derive(Clone, Copy)]
pub struct Captures<'a>(&'a Memory);

/// The recorded layouts of a device's pools. Get it with [`Memory::checkpoints`].
#[derive(Clone, Copy)]
pub struct Checkpoints<'a>(&'a Memory);

impl Memory {
    /// The captures of the device's streams.
    pub fn captures(&self) -> Captures<'_> {
        Captures(self)
    }

    /// The checkpoints of the device's pools.
    pub fn checkpoints(&self) -> Checkpoints<'_> {
        Checkpoints(self)
    }
}

impl Captures<'_> {
    /// Serves all requests of `stream`, whatever pool they name, from `pool` from now on, until [`end`](Self::end).
    pub fn begin(&self, pool: PoolId, stream: StreamId) -> Result<CaptureId> {
        self.0.released.check(pool)?;
        let capture = self.0.pooled()?.pond.captures().begin(pool, stream)?;
        self.0.observers.keeps(pool);
        nvtx::mark(c"capture begins", stream);
        Ok(capture)
    }

    /// Keeps the pool as it is, as a capture does after its end, until that is released.
    pub fn keep(&self, pool: PoolId) -> Result<CaptureId> {
        self.0.released.check(pool)?;
        self.0.pooled()?.pond.captures().keep(pool)
    }

    /// Adds a stream to the capture.
    pub fn add(&self, capture: CaptureId, stream: StreamId) -> Result<()> {
        self.0.pooled()?.pond.captures().add(capture, stream)
    }

    /// Makes the capture's streams ordinary ones again; its pool is still kept as it is.
    pub fn end(&self, capture: CaptureId) -> Result<()> {
        self.0.pooled()?.pond.captures().end(capture)?;
        nvtx::mark(c"capture ends", 0);
        Ok(())
    }

    /// The graph of the capture is gone; ends the capture first if it has not ended.
    pub fn release(&self, capture: CaptureId) -> Result<()> {
        self.0.pooled()?.pond.captures().release(capture)
    }

    /// The same without waiting for the device; the pool's free memory stays with it.
    pub fn release_async(&self, capture: CaptureId) -> Result<()> {
        self.0.pooled()?.pond.captures().release_async(capture)
    }
}

impl Checkpoints<'_> {
    /// Records which blocks of the pool are live now.
    pub fn make(&self, pool: PoolId) -> Result<CheckpointId> {
        self.0.pooled()?.pond.checkpoints().make(pool)
    }

    /// Drops a checkpoint.
    pub fn destroy(&self, checkpoint: CheckpointId) -> Result<()> {
        self.0.pooled()?.pond.checkpoints().destroy(checkpoint)
    }

    /// Makes exactly those blocks of the pool live that were live at the checkpoint, at the same addresses. All or
    /// nothing. The result has addresses.
    pub fn restore(&self, pool: PoolId, checkpoint: CheckpointId) -> Result<Restored> {
        let memory = self.0;
        let How::Pooled(p) = memory.open()? else { return memory.pooled().map(|_| Restored::default()) };
        // Every block that is or was live has an address.
        let at = |offset| p.places.address(offset).unwrap_or(0);
        let done =
            p.pond.checkpoints().restore(pool, checkpoint, at, |freed| memory.watchers().freed(freed))?;
        memory.watchers().restored(&done);
        memory.hooks().restored(&done);
        Ok(done)
    }
}
