//! The facet of host memory that the caller registers.

use super::device::HostDevice;
use super::shared::State;
use crate::base::error::Result;
use crate::device::Registration;

impl Registration for HostDevice {
    fn register(&self, addr: u64, bytes: u64) -> Result<()> {
        let _pass = self.shared.enter()?;
        self.shared.blocks.register(self.ordinal, addr, bytes)
    }

    /// Waits for all work queued on the type's devices.
    fn unregister(&self, addr: u64) -> Result<()> {
        let _pass = self.shared.enter_blocking()?;
        self.shared.devices.iter().for_each(State::drain);
        self.shared.blocks.unregister(self.ordinal, addr)
    }
}
