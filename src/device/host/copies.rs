//! Copies and fills. Stream 0 runs them on the calling thread, after all work of the device; a copy from pageable memory
//! has read its source when it returns.

use super::device::{HostDevice, push};
use super::process;
use super::staging::check_end;
use super::stream::Work;
use crate::base::error::{Code, Error, Result};
use crate::device::{CopyKind, StreamId};

pub(super) fn check_ends(dst: u64, src: u64, bytes: u64) -> Result<()> {
    check_end(dst, bytes)?;
    check_end(src, bytes)
}

impl HostDevice {
    /// Queues a copy from pageable host memory, which has been read when this returns: through a staging buffer if it
    /// fits, otherwise by waiting until the stream has done the copy.
    fn upload(&self, stream: StreamId, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let target = self.state().stream(stream)?;
        // A callback must not wait, so there the limit is ignored.
        let force = process::in_callback();
        // SAFETY: the caller of `copy_async` guarantees a readable source.
        if let Some(from) = unsafe { self.state().staging.stage(src, bytes, force) } {
            return push(&target, stream, Work::Unstage { dst, from }).map(drop);
        }
        if force {
            return Err(Error::new(Code::OutOfMemory, "no host memory to stage a copy in a callback"));
        }
        push(&target, stream, Work::Move { dst, src, bytes })?.wait();
        Ok(())
    }

    pub(super) fn copy_now(&self, _kind: CopyKind, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let _pass = self.shared.enter_blocking()?;
        if bytes == 0 {
            return Ok(());
        }
        check_ends(dst, src, bytes)?;
        self.run_now(Work::Move { dst, src, bytes }, None)
    }

    pub(super) fn queue_copy(
        &self,
        stream: StreamId,
        kind: CopyKind,
        dst: u64,
        src: u64,
        bytes: u64,
    ) -> Result<()> {
        let _pass = self.shared.enter()?;
        if bytes == 0 {
            return self.check_stream(stream);
        }
        check_ends(dst, src, bytes)?;
        let pageable = kind == CopyKind::HostToDevice && !self.shared.blocks.stays_readable(src, bytes);
        if pageable && stream != 0 {
            return self.upload(stream, dst, src, bytes);
        }
        self.queue(stream, Work::Move { dst, src, bytes }).map(drop)
    }

    pub(super) fn fill_now(&self, dst: u64, value: u8, bytes: u64) -> Result<()> {
        let _pass = self.shared.enter_blocking()?;
        if bytes == 0 {
            return Ok(());
        }
        check_end(dst, bytes)?;
        self.run_now(Work::Fill { dst, value, bytes }, None)
    }

    pub(super) fn queue_fill(&self, stream: StreamId, dst: u64, value: u8, bytes: u64) -> Result<()> {
        let _pass = self.shared.enter()?;
        if bytes == 0 {
            return self.check_stream(stream);
        }
        check_end(dst, bytes)?;
        self.queue(stream, Work::Fill { dst, value, bytes }).map(drop)
    }
}
