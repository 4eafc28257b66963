//! The facet of other devices of the type: the memory of all of them is the processor's.

use super::copies::check_ends;
use super::device::HostDevice;
use super::shared::State;
use super::stream::Work;
use crate::base::error::{Code, Error, Result};
use crate::device::{Device, Peers, StreamId};

impl HostDevice {
    /// The state of the device `to`.
    fn peer(&self, to: &dyn Device) -> Result<&State> {
        let found = self.shared.devices.get(to.ordinal());
        found.ok_or_else(|| Error::new(Code::InvalidArgument, "a peer copy to a device of another type"))
    }
}

impl Peers for HostDevice {
    fn copy(&self, to: &dyn Device, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let _pass = self.shared.enter_blocking()?;
        let peer = self.peer(to)?;
        if bytes == 0 {
            return Ok(());
        }
        check_ends(dst, src, bytes)?;
        self.run_now(Work::Move { dst, src, bytes }, Some(peer))
    }

    fn copy_async(&self, stream: StreamId, to: &dyn Device, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let _pass = self.shared.enter()?;
        self.peer(to)?;
        if bytes == 0 {
            return self.check_stream(stream);
        }
        check_ends(dst, src, bytes)?;
        self.queue(stream, Work::Move { dst, src, bytes }).map(drop)
    }

    /// As `copy_async`: the processor makes the copy, on whichever device's thread.
    fn copy_from_async(
        &self,
        stream: StreamId,
        from: &dyn Device,
        dst: u64,
        src: u64,
        bytes: u64,
    ) -> Result<()> {
        Peers::copy_async(self, stream, from, dst, src, bytes)
    }

    fn can_admit(&self, peer: &dyn Device) -> Result<bool> {
        let _pass = self.shared.enter()?;
        Ok(self.peer(peer).is_ok())
    }

    fn admit(&self, peer: &dyn Device) -> Result<()> {
        let _pass = self.shared.enter()?;
        self.peer(peer).map(drop)
    }

    fn invite(&self, peer: &dyn Device) -> Result<()> {
        self.admit(peer)
    }
}
