//! Copies and fills. The device end of each must lie in one live block (or unified memory) of its device; that is
//! checked here, once for all devices. The host end cannot be checked: the caller vouches for it, so `copy` and
//! `copy_async` are unsafe. `read` and `write` take slices instead.

use crate::base::error::{Code, Error, Result};
use crate::base::room::while_kept;
use crate::core::Waits;
use crate::device::{CopyKind, Peers, StreamId};
use crate::runtime::device::state::DeviceState;
use crate::runtime::device::table;
use crate::runtime::entry::reentry::may_block;

fn host_end(addr: u64, bytes: u64) -> Result<()> {
    if addr == 0 {
        return Err(Error::new(Code::InvalidArgument, "the host address is NULL"));
    }
    if addr.checked_add(bytes).is_none() {
        return Err(Error::new(Code::OutOfRange, "the host range passes the end of the address space"));
    }
    Ok(())
}

impl DeviceState {
    /// Fails unless `addr .. addr + bytes` lies in one live block, one range of unified memory or one import.
    pub fn check_range(&self, addr: u64, bytes: u64) -> Result<()> {
        if addr == 0 {
            return Err(Error::new(Code::InvalidArgument, "the device address is NULL"));
        }
        self.memory().check_range(addr, bytes).or_else(|e| match e.code() {
            Code::UnknownPointer => {
                let elsewhere = self.unified.check(addr, bytes).or_else(|| self.imports.check(addr, bytes));
                elsewhere.unwrap_or(Err(e))
            }
            _ => Err(e),
        })
    }

    fn check_copy(&self, kind: CopyKind, dst: u64, src: u64, bytes: u64) -> Result<()> {
        match kind {
            CopyKind::HostToDevice => self.check_range(dst, bytes).and(host_end(src, bytes)),
            CopyKind::DeviceToHost => self.check_range(src, bytes).and(host_end(dst, bytes)),
            CopyKind::DeviceToDevice => self.check_range(dst, bytes).and(self.check_range(src, bytes)),
        }
    }

    fn check_peer(&self, to: &DeviceState, dst: u64, src: u64, bytes: u64) -> Result<()> {
        if self.type_name() != to.type_name() {
            return Err(Error::formatted(
                Code::InvalidArgument,
                format_args!(
                    "a copy between devices of {:?} and {:?} is not possible",
                    self.type_name(),
                    to.type_name()
                ),
            ));
        }
        if bytes == 0 {
            return Ok(());
        }
        to.check_range(dst, bytes).and(self.check_range(src, bytes))
    }

    fn peers(&self) -> Result<&dyn Peers> {
        let none = || Error::new(Code::Unsupported, "this device makes no copies to and from others");
        self.device().peers().ok_or_else(none)
    }

    /// Copies `from` to the device address `dst`, and returns when the bytes have arrived.
    pub fn write(&self, dst: u64, from: &[u8]) -> Result<()> {
        let at = from.as_ptr().expose_provenance() as u64;
        // SAFETY: the slice is readable for the call, after which the copy is done.
        unsafe { self.copy(CopyKind::HostToDevice, dst, at, from.len() as u64) }
    }

    /// Copies from the device address `src` into `to`; waits for work queued on the device before.
    pub fn read(&self, src: u64, to: &mut [u8]) -> Result<()> {
        let at = to.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: the slice is ours alone to write for the call, after which the copy is done.
        unsafe { self.copy(CopyKind::DeviceToHost, at, src, to.len() as u64) }
    }

    /// Copies `bytes`, and returns when they have arrived; waits for work queued on the device before. 0 bytes do
    /// nothing. Errors: `UnknownPointer` and `OutOfRange` for a device end that is not inside one live block,
    /// `InvalidArgument` for a host end of NULL, `NotPermitted` in a stream callback.
    ///
    /// # Safety
    ///
    /// The host end, if `kind` has one, must be valid for `bytes` until this returns: for reads if it is the source;
    /// for writes if it is the destination, which nobody else may read or write meanwhile.
    pub unsafe fn copy(&self, kind: CopyKind, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let _pass = self.enter()?;
        may_block()?;
        if bytes == 0 {
            return Ok(());
        }
        self.check_copy(kind, dst, src, bytes)?;
        self.device().copy(kind, dst, src, bytes)
    }

    /// Queues a copy on `stream`. Errors as [`copy`](Self::copy), and `UnknownStream`.
    ///
    /// # Safety
    ///
    /// As for [`copy`](Self::copy), but until the stream has done the copy: for a host destination always, for a source
    /// if it is pinned or unified memory of the device. Any other source has been read when this returns.
    pub unsafe fn copy_async(
        &self,
        stream: StreamId,
        kind: CopyKind,
        dst: u64,
        src: u64,
        bytes: u64,
    ) -> Result<()> {
        let _pass = self.enter()?;
        self.streams().check(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        self.check_copy(kind, dst, src, bytes)?;
        // Noted before the copy is queued, so that a free that follows knows of it.
        match kind {
            CopyKind::HostToDevice => self.host_memory().note(src, stream)?,
            CopyKind::DeviceToHost => self.host_memory().note(dst, stream)?,
            CopyKind::DeviceToDevice => false,
        };
        self.device().copy_async(stream, kind, dst, src, bytes)
    }

    /// Copies from this device to `to`, of the same type, and returns when the bytes have arrived.
    pub fn copy_peer(&self, to: &DeviceState, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let _passes = (self.enter()?, to.enter()?);
        self.check_peer(to, dst, src, bytes)?;
        may_block()?;
        if bytes == 0 {
            return Ok(());
        }
        self.peers()?.copy(to.device(), dst, src, bytes)
    }

    /// Queues a copy from this device to `to` on a stream of this device or of `to`; 0 is this device's default stream.
    ///
    /// A block without a stream may be freed as soon as this has returned, on either device: its memory is not reused
    /// before the copy is done. The same holds for a block of that stream. Any other block must be ordered with the
    /// copy by the caller.
    pub fn copy_peer_async(
        &self,
        stream: StreamId,
        to: &DeviceState,
        dst: u64,
        src: u64,
        bytes: u64,
    ) -> Result<()> {
        let _passes = (self.enter()?, to.enter()?);
        self.check_peer(to, dst, src, bytes)?;
        let by_source = match (self.streams().check(stream), to.streams().check(stream)) {
            (Ok(()), _) => true,
            (Err(_), Ok(())) => false,
            (Err(e), Err(_)) => return Err(e),
        };
        if bytes == 0 {
            return Ok(());
        }
        if by_source {
            while_kept(|| self.peers()?.copy_async(stream, to.device(), dst, src, bytes))?;
            to.visited_by(self, stream);
            return Ok(());
        }
        match while_kept(|| to.peers()?.copy_from_async(stream, self.device(), dst, src, bytes)) {
            // The interface of plugins does not say whose stream such a copy takes, and some accept only the source's:
            // the copy is made here, once the stream has finished its work.
            Err(e) if e.code() == Code::Unsupported => {
                may_block()?;
                to.device().streams().synchronize(stream)?;
                self.peers()?.copy(to.device(), dst, src, bytes)
            }
            done => {
                done?;
                self.visited_by(to, stream);
                Ok(())
            }
        }
    }

    /// Notes that what is queued on `stream` of another device uses memory of this one.
    fn visited_by(&self, other: &DeviceState, stream: StreamId) {
        if self.id() == other.id() {
            return;
        }
        // All work of a device that is not in the table is over.
        let Some(other) = table::by_id(other.id()) else { return };
        let (order, mut waits) = (other.memory().order(), Waits::default());
        order.add_named(&order.stream_or_all(order.ordered(stream)), &mut waits);
        self.memory().streams().visited(order, waits);
    }

    /// Fills `bytes` with `value`, and returns when done.
    pub fn memset(&self, dst: u64, value: u8, bytes: u64) -> Result<()> {
        let _pass = self.enter()?;
        may_block()?;
        if bytes == 0 {
            return Ok(());
        }
        self.check_range(dst, bytes)?;
        self.device().memset(dst, value, bytes)
    }

    /// Queues a fill on `stream`.
    pub fn memset_async(&self, stream: StreamId, dst: u64, value: u8, bytes: u64) -> Result<()> {
        let _pass = self.enter()?;
        self.streams().check(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        self.check_range(dst, bytes)?;
        self.device().memset_async(stream, dst, value, bytes)
    }
}
