//! The contents of sleeping granules, in host memory. No lock is held while the device copies: a copy that is being
//! read is out of the table meanwhile.

use super::device_backing::DeviceBacking;
use super::ring;
use crate::base::error::{Code, Error, Result};
use crate::base::sync::system::lock;
use crate::device::CopyKind;
use crate::fail;

impl DeviceBacking {
    /// Copies the contents of granules to host memory, and keeps the copy.
    pub(super) fn save_granules(&self, first: u32, count: u32) -> Result<()> {
        let (addr, bytes) = (self.places.address(self.granule_at(first))?, self.granule_at(count));
        let mut to = Vec::<u8>::new();
        if to.try_reserve_exact(bytes as usize).is_err() {
            fail!(Code::OutOfMemory, "no {bytes} bytes of host memory to keep what sleeps");
        }
        to.resize(bytes as usize, 0);
        let at = to.as_mut_ptr().expose_provenance() as u64;
        let call = self.call()?;
        self.observers.reaches(addr, bytes, false);
        let done = ring::copy(call.device, CopyKind::DeviceToHost, at, addr, bytes);
        self.observers.reaches(addr, bytes, true);
        done?;
        drop(call);
        lock(&self.saved).insert(first, to);
        Ok(())
    }

    /// Copies them back. The copy is still kept.
    pub(super) fn load_granules(&self, first: u32, count: u32) -> Result<()> {
        let (addr, bytes) = (self.places.address(self.granule_at(first))?, self.granule_at(count));
        // Removed for the duration of the copy: no lock is held while the device copies.
        let Some(from) = lock(&self.saved).remove(&first) else {
            return Err(Error::new(Code::Internal, "what slept was not kept"));
        };
        let at = from.as_ptr().expose_provenance() as u64;
        self.observers.reaches(addr, bytes, false);
        let done = self.call().and_then(|c| ring::copy(c.device, CopyKind::HostToDevice, addr, at, bytes));
        self.observers.reaches(addr, bytes, true);
        lock(&self.saved).insert(first, from);
        done
    }

    /// Drops the copy.
    pub(super) fn drop_granules(&self, first: u32) {
        lock(&self.saved).remove(&first);
    }
}
