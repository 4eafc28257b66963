//! The contents of sleeping granules. No lock is held while the device copies: a copy that is being read is out of the
//! table meanwhile.

use super::device_backing::DeviceBacking;
use super::kept::Kept;
use crate::base::error::{Code, Error, Result};
use crate::base::room::while_kept;
use crate::base::sync::system::lock;
use crate::device::Device;

impl DeviceBacking {
    /// Copies the contents of granules to host memory, and keeps the copy.
    pub(super) fn save_granules(&self, first: u32, count: u32) -> Result<()> {
        let (addr, bytes) = (self.places.address(self.granule_at(first))?, self.granule_at(count));
        let call = self.call()?;
        let mut to = while_kept(|| Kept::new(call.device, bytes))?;
        self.observers.reaches(addr, bytes, false);
        let done = while_kept(|| to.copy_from(call.device, addr, bytes));
        self.observers.reaches(addr, bytes, true);
        if let Err(e) = done {
            self.give_back_kept(call.device, Some(to));
            return Err(e);
        }
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
        self.observers.reaches(addr, bytes, false);
        let done = self.call().and_then(|c| while_kept(|| from.copy_to(c.device, addr, bytes)));
        self.observers.reaches(addr, bytes, true);
        lock(&self.saved).insert(first, from);
        done
    }

    /// Drops the copy.
    pub(super) fn drop_granules(&self, first: u32) {
        let kept = lock(&self.saved).remove(&first);
        match self.call() {
            Ok(call) => self.give_back_kept(call.device, kept),
            Err(_) => lock(&self.refused_kept).extend(kept), // the device ends; `close` comes
        }
    }

    /// Gives memory of copies back, with all that the device refused before, as it may beside a capture.
    pub(super) fn give_back_kept(&self, device: &dyn Device, more: Option<Kept>) {
        let all = std::mem::take(&mut *lock(&self.refused_kept));
        let left: Vec<Kept> = all.into_iter().chain(more).filter_map(|kept| kept.end(device)).collect();
        if !left.is_empty() {
            lock(&self.refused_kept).extend(left);
        }
    }

    /// Drops all copies: the device ends.
    pub(super) fn drop_all_saved(&self) {
        let all = std::mem::take(&mut *lock(&self.saved));
        lock(&self.refused_kept).extend(all.into_values());
        self.give_back_kept(&*self.device, None);
    }
}
