//! The facet of mapped memory: granules of a memory file, mapped in a window of addresses.

use super::device::HostDevice;
use super::granules::Granules;
use super::shared::State;
use crate::base::error::Result;
use crate::device::Mapping;

impl Mapping for HostDevice {
    /// A quarter of what Linux allows a process (`vm.max_map_count`, 65530 by default).
    fn most_mappings(&self) -> u64 {
        16_000
    }

    fn numbers(&self) -> u64 {
        self.granules().map_or(0, Granules::numbers)
    }

    fn open_window(&self, bytes: u64) -> Result<u64> {
        let _pass = self.shared.enter()?;
        self.granules()?.open_window(bytes)
    }

    /// Waits for all work queued on the type's devices, which may still use the memory.
    fn close_window(&self) -> Result<()> {
        let _pass = self.shared.enter_blocking()?;
        let granules = self.granules()?;
        self.shared.devices.iter().for_each(State::drain);
        granules.close_window(&self.state().budget)
    }

    fn create(&self, first: u64, count: u64) -> Result<()> {
        let _pass = self.shared.enter()?;
        self.granules()?.create(&self.state().budget, first, count)
    }

    fn release(&self, first: u64, count: u64) -> Result<()> {
        let _pass = self.shared.enter()?;
        self.granules()?.release(&self.state().budget, first, count)
    }

    fn map(&self, offset: u64, first: u64, count: u64) -> Result<()> {
        let _pass = self.shared.enter()?;
        self.granules()?.map(offset, first, count)
    }

    fn unmap(&self, offset: u64, bytes: u64) -> Result<()> {
        let _pass = self.shared.enter()?;
        self.granules()?.unmap(offset, bytes)
    }
}
