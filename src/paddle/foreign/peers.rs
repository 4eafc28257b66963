//! The facet of other devices of the plugin. Copies go through the host if the plugin has no call for them.

use super::device::ForeignDevice;
use crate::base::error::{Code, Error, Result};
use crate::device::{CopyKind, Device, Peers, StreamId, Streams, as_ptr};
use crate::fail;
use crate::paddle::abi::C_Device_st;
use std::ffi::c_int;

impl ForeignDevice {
    /// The plugin's id of another of its devices.
    fn id_of(&self, other: &dyn Device) -> Result<c_int> {
        match self.ids.get(other.ordinal()) {
            Some(&id) => Ok(id),
            None => fail!(Code::InvalidArgument, "{:?} has no such device", self.plugin.name()),
        }
    }

    /// A blocking copy to another device of the type; the caller has waited for earlier work.
    fn copy_now_to(&self, to: &dyn Device, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let mut target = C_Device_st { id: self.id_of(to)? };
        if to.ordinal() == self.ordinal() {
            return self.copy_now(CopyKind::DeviceToDevice, dst, src, bytes);
        }
        match self.plugin.table.memory_copy_p2p {
            Some(memory_copy_p2p) => {
                let mut device = self.enter()?;
                // SAFETY: the plugin's contract; the runtime checked both ranges.
                let status = self.plugin.run("memory_copy_p2p", || unsafe {
                    memory_copy_p2p(&mut target, &mut device, as_ptr(dst), as_ptr(src), bytes as usize)
                })?;
                self.plugin.check("memory_copy_p2p", status)
            }
            None => self.copy_through_host(to, dst, src, bytes),
        }
    }
}

impl Peers for ForeignDevice {
    fn copy(&self, to: &dyn Device, dst: u64, src: u64, bytes: u64) -> Result<()> {
        Device::synchronize(self)?;
        to.synchronize()?;
        self.copy_now_to(to, dst, src, bytes)
    }

    fn copy_async(&self, stream: StreamId, to: &dyn Device, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let native = self.native_stream(stream)?;
        let mut target = C_Device_st { id: self.id_of(to)? };
        if to.ordinal() == self.ordinal() {
            return self.queue_copy(stream, CopyKind::DeviceToDevice, dst, src, bytes);
        }
        if let (Some(native), Some(async_memory_copy_p2p)) = (native, self.plugin.table.async_memory_copy_p2p)
        {
            let mut device = self.enter()?;
            // SAFETY: the plugin's contract; the runtime checked both ranges and the stream.
            let status = self.plugin.run("async_memory_copy_p2p", || unsafe {
                async_memory_copy_p2p(
                    &mut target,
                    &mut device,
                    native.handle(),
                    as_ptr(dst),
                    as_ptr(src),
                    bytes as usize,
                )
            })?;
            return self.plugin.check("async_memory_copy_p2p", status);
        }
        Streams::synchronize(self, stream)?;
        self.copy_now_to(to, dst, src, bytes)
    }

    /// The interface does not say whose stream a peer copy takes, and some plugins accept only the source's.
    fn copy_from_async(&self, _: StreamId, _: &dyn Device, _: u64, _: u64, _: u64) -> Result<()> {
        Err(Error::new(Code::Unsupported, "streams of this device make no copies from other devices"))
    }

    fn can_admit(&self, peer: &dyn Device) -> Result<bool> {
        Ok(peer.ordinal() == self.ordinal())
    }

    fn admit(&self, peer: &dyn Device) -> Result<()> {
        if self.can_admit(peer)? {
            return Ok(());
        }
        Err(Error::new(Code::Unsupported, "that device cannot use memory of this one"))
    }

    fn invite(&self, _: &dyn Device) -> Result<()> {
        Ok(()) // plugins have no such thing
    }
}
