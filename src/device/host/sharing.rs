//! The facet of shared memory: granules of the memory file, whose descriptor is sent to the other process.

use super::device::HostDevice;
use super::shared::State;
use crate::base::error::{Code, Error, Result};
use crate::device::Run;
use crate::device::sharing::{Exported, Imported, Sharing};

impl Sharing for HostDevice {
    fn exports(&self) -> bool {
        true
    }

    /// It is the processor's memory, which every network library registers itself.
    fn reached_by_bus(&self) -> bool {
        false
    }

    fn by_granule(&self) -> bool {
        false // all granules are in one file
    }

    fn granules(&self, granules: &[Run]) -> Result<Exported> {
        let _pass = self.shared.enter()?;
        self.granules()?.share(granules)
    }

    fn segment(&self, _addr: u64) -> Result<Exported> {
        Err(Error::new(Code::Unsupported, "memory that is not mapped cannot be shared with other processes"))
    }

    fn open(&self, memory: &Imported<'_>) -> Result<u64> {
        let _pass = self.shared.enter()?;
        self.granules()?.open(memory)
    }

    fn close(&self, addr: u64) -> Result<()> {
        let _pass = self.shared.enter_blocking()?;
        let granules = self.granules()?;
        self.shared.devices.iter().for_each(State::drain);
        granules.close(addr)
    }
}
