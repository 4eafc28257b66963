//! Copies and fills of one device, with fallbacks for callbacks that a plugin leaves null: an asynchronous copy becomes
//! a synchronous one once the stream is empty; device-to-device copies, peer copies and fills go through host memory in
//! pieces.

use super::device::{ForeignDevice, call};
use crate::base::error::{Code, Result};
use crate::device::{CopyKind, Device, StreamId, Streams, as_ptr};
use crate::fail;

/// The maximum piece of a copy that goes through the host (bytes).
const PIECE: u64 = 4 << 20;
/// How much of a fill on a stream is copied from the host, before it is doubled on the device (bytes).
const SEED: u64 = 64 << 10;

/// Host memory for the pieces of a copy of `bytes`.
fn staging(bytes: u64, value: u8) -> Result<Vec<u8>> {
    let size = bytes.min(PIECE) as usize;
    let mut buffer = Vec::new();
    if buffer.try_reserve_exact(size).is_err() {
        fail!(Code::OutOfMemory, "no {size} B of host memory to copy through");
    }
    buffer.resize(size, value);
    Ok(buffer)
}

/// Calls `piece(offset, length)` for each piece of a range; from its end if `backwards`.
fn pieces(bytes: u64, backwards: bool, mut piece: impl FnMut(u64, u64) -> Result<()>) -> Result<()> {
    let count = bytes.div_ceil(PIECE);
    (0..count).try_for_each(|i| {
        let i = if backwards { count - 1 - i } else { i };
        let offset = i * PIECE;
        piece(offset, PIECE.min(bytes - offset))
    })
}

impl ForeignDevice {
    /// A blocking copy; the caller has waited for earlier work.
    pub(super) fn copy_now(&self, kind: CopyKind, dst: u64, src: u64, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let (to, from, size) = (as_ptr(dst), as_ptr(src), bytes as usize);
        match kind {
            CopyKind::HostToDevice => call!(self, memory_copy_h2d(to, from, size)),
            CopyKind::DeviceToHost => call!(self, memory_copy_d2h(to, from, size)),
            CopyKind::DeviceToDevice => call!(self, memory_copy_d2d(to, from, size)),
        }
        .unwrap_or_else(|| self.copy_through_host(self, dst, src, bytes))
    }

    /// Copies from this device to `to`, which may be this one, in pieces. A plugin must have h2d and d2h copies, so
    /// only device-to-device copies get here.
    pub(super) fn copy_through_host(&self, to: &dyn Device, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let mut buffer = staging(bytes, 0)?;
        let same = to.ordinal() == self.ordinal();
        // Ranges of one device may overlap; going backwards, no byte is overwritten before it is read.
        pieces(bytes, same && dst > src, |offset, length| {
            let middle = buffer.as_mut_ptr() as usize as u64;
            self.copy_now(CopyKind::DeviceToHost, middle, src + offset, length)?;
            if same {
                self.copy_now(CopyKind::HostToDevice, dst + offset, middle, length)
            } else {
                to.copy(CopyKind::HostToDevice, dst + offset, middle, length)
            }
        })
    }

    /// A copy on a stream.
    pub(super) fn queue_copy(
        &self,
        stream: StreamId,
        kind: CopyKind,
        dst: u64,
        src: u64,
        bytes: u64,
    ) -> Result<()> {
        if let Some(native) = self.native_stream(stream)? {
            let (s, to, from, size) = (native.handle(), as_ptr(dst), as_ptr(src), bytes as usize);
            let queued = match kind {
                CopyKind::HostToDevice => call!(self, async_memory_copy_h2d(s, to, from, size)),
                CopyKind::DeviceToHost => call!(self, async_memory_copy_d2h(s, to, from, size)),
                CopyKind::DeviceToDevice => call!(self, async_memory_copy_d2d(s, to, from, size)),
            };
            if let Some(result) = queued {
                return result;
            }
        }
        Streams::synchronize(self, stream)?;
        self.copy_now(kind, dst, src, bytes)
    }

    /// Queues a fill on a stream. The interface has no such call, so the first piece is copied from the host on the
    /// stream, and copies within the device then double it. Without asynchronous copies this is a blocking fill once
    /// the stream is empty.
    pub(super) fn queue_fill(&self, stream: StreamId, dst: u64, value: u8, bytes: u64) -> Result<()> {
        let table = &self.plugin.table;
        if bytes == 0 || stream == 0 || table.async_memory_copy_h2d.is_none() {
            Streams::synchronize(self, stream)?;
            return self.fill_now(dst, value, bytes);
        }
        let doubles = table.async_memory_copy_d2d.is_some();
        let buffer = staging(if doubles { bytes.min(SEED) } else { bytes }, value)?;
        let source = buffer.as_ptr() as usize as u64;
        let mut done = 0;
        while done < bytes {
            // The plugin has read the host's bytes when the call returns.
            let (kind, from, most) = match doubles && done > 0 {
                true => (CopyKind::DeviceToDevice, dst, done),
                false => (CopyKind::HostToDevice, source, buffer.len() as u64),
            };
            let length = most.min(bytes - done);
            self.queue_copy(stream, kind, dst + done, from, length)?;
            done += length;
        }
        Ok(())
    }

    /// A blocking fill; the caller has waited for earlier work.
    pub(super) fn fill_now(&self, dst: u64, value: u8, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        if let Some(result) = call!(self, device_memory_set(as_ptr(dst), value, bytes as usize)) {
            return result;
        }
        let buffer = staging(bytes, value)?;
        let source = buffer.as_ptr() as usize as u64;
        pieces(bytes, false, |offset, length| {
            self.copy_now(CopyKind::HostToDevice, dst + offset, source, length)
        })
    }
}
