//! The facet of unified memory, which here is the processor's memory as any other.

use super::device::HostDevice;
use super::memory::Kind;
use crate::base::error::Result;
use crate::device::{Advice, StreamId, Unified, UnifiedPlace};

impl Unified for HostDevice {
    fn alloc(&self, bytes: u64) -> Result<u64> {
        let _pass = self.shared.enter()?;
        self.shared.blocks.alloc(&self.state().budget, Kind::Unified, bytes)
    }

    /// Waits for all work queued on the type's devices, which may still use the memory.
    fn free(&self, addr: u64, bytes: u64) -> Result<()> {
        self.take_back(Kind::Unified, addr, bytes)
    }

    /// All places are the processor's memory: nothing has to move.
    fn prefetch(&self, stream: StreamId, _: u64, _: u64, _: UnifiedPlace) -> Result<()> {
        let _pass = self.shared.enter()?;
        self.check_stream(stream)
    }

    fn advise(&self, _: u64, _: u64, _: Advice, _: UnifiedPlace) -> Result<()> {
        self.shared.enter().map(drop)
    }
}
