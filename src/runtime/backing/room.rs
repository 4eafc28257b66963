//! How much may be taken from the device beside what others need of it.

use super::calls::check_free;
use super::device_backing::DeviceBacking;
use crate::base::error::Result;
use std::sync::atomic::Ordering::Relaxed;

impl DeviceBacking {
    /// [B] that the device says it has left, without what is left to others; `None` if it does not say.
    pub(crate) fn memory_free(&self) -> Result<Option<u64>> {
        let told = self.call()?.device.memory_info()?.known();
        Ok(told.map(|m| m.free.saturating_sub(self.headroom.load(Relaxed))))
    }

    /// [B] of the device that are left to others.
    pub(crate) fn headroom(&self) -> u64 {
        self.headroom.load(Relaxed)
    }

    /// Sets how many bytes of the device are left to others.
    pub(crate) fn set_headroom(&self, bytes: u64) {
        self.headroom.store(bytes, Relaxed);
    }

    /// Sets whether requests for which the device has no memory are kept from it.
    pub(crate) fn set_careful(&self, careful: bool) {
        self.careful.store(careful, Relaxed);
    }

    /// Fails if the device would have less left than it is to have.
    pub(super) fn check_free(&self, bytes: u64) -> Result<()> {
        let headroom = self.headroom.load(Relaxed);
        if headroom == 0 && !self.careful.load(Relaxed) {
            return Ok(());
        }
        check_free(self.call()?.device, bytes, headroom).inspect_err(|_| self.calls.reject())
    }
}
