//! The facet of host memory that the caller registers.

use super::device::CudaDevice;
use crate::base::error::Result;
use crate::device::Registration;

impl Registration for CudaDevice {
    fn register(&self, addr: u64, bytes: u64) -> Result<()> {
        let _in = self.card.enter()?;
        self.blocks.register_callers(addr, bytes)
    }

    fn unregister(&self, addr: u64) -> Result<()> {
        let _in = self.card.enter()?;
        self.card.rest()?;
        self.blocks.unregister_callers(addr)
    }
}
