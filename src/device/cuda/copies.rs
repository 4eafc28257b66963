//! Copies and fills. Blocking ones are work on NULL after a wait for the context, since not all streams are ordered with
//! NULL; they have arrived on return, even where the driver's own call promises less.

use super::device::CudaDevice;
use crate::base::error::Result;
use crate::device::{CopyKind, StreamId};

impl CudaDevice {
    pub(super) fn copy_now(&self, kind: CopyKind, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let _in = self.card.enter()?;
        if bytes == 0 {
            return Ok(());
        }
        self.card.rest_or_null()?;
        let driver = self.card.driver();
        match kind {
            CopyKind::HostToDevice => driver.copy_in(dst, src, bytes)?,
            CopyKind::DeviceToHost => return driver.copy_out(dst, src, bytes),
            CopyKind::DeviceToDevice => driver.copy_within(dst, src, bytes)?,
        }
        // The driver may return as soon as the source has been read.
        driver.stream_synchronize(0)
    }

    pub(super) fn queue_copy(
        &self,
        stream: StreamId,
        kind: CopyKind,
        dst: u64,
        src: u64,
        bytes: u64,
    ) -> Result<()> {
        let _in = self.card.enter()?;
        self.card.known(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        let driver = self.card.driver();
        match kind {
            CopyKind::DeviceToHost => driver.copy_out_async(dst, src, bytes, stream),
            CopyKind::DeviceToDevice => driver.copy_within_async(dst, src, bytes, stream),
            CopyKind::HostToDevice => {
                // The driver may read pageable memory after it returns; a captured copy reads it at each replay.
                let end = src.saturating_add(bytes - 1);
                let stays = self.blocks.holds(src, bytes) || driver.is_known(src) && driver.is_known(end);
                let stays = stays || driver.capture_id(stream)?.is_some();
                driver.copy_in_async(dst, src, bytes, stream)?;
                if stays {
                    return Ok(());
                }
                // Whoever is told of a failure may free the source at once: a wait that fails is made once more.
                driver.stream_synchronize(stream).inspect_err(|_| _ = driver.stream_synchronize(stream))
            }
        }
    }

    pub(super) fn fill_now(&self, dst: u64, value: u8, bytes: u64) -> Result<()> {
        let _in = self.card.enter()?;
        if bytes == 0 {
            return Ok(());
        }
        self.card.rest_or_null()?;
        self.card.driver().fill(dst, value, bytes)?;
        self.card.driver().stream_synchronize(0)
    }

    pub(super) fn queue_fill(&self, stream: StreamId, dst: u64, value: u8, bytes: u64) -> Result<()> {
        let _in = self.card.enter()?;
        self.card.known(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        self.card.driver().fill_async(dst, value, bytes, stream)
    }
}
