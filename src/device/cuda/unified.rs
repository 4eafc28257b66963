//! The facet of unified memory: the driver's managed memory.

use super::device::CudaDevice;
use super::memory::Kind;
use crate::base::error::{Code, Result};
use crate::device::{Advice, StreamId, Unified, UnifiedPlace};
use crate::fail;
use cudarc::driver::sys::CUmem_advise;

impl Unified for CudaDevice {
    fn alloc(&self, bytes: u64) -> Result<u64> {
        let _in = self.card.enter()?;
        self.blocks.alloc(Kind::Managed, bytes, 0)
    }

    /// The driver's free waits for the device.
    fn free(&self, addr: u64, bytes: u64) -> Result<()> {
        let _in = self.card.enter()?;
        self.blocks.free(&[Kind::Managed], addr, bytes)
    }

    fn prefetch(&self, stream: StreamId, addr: u64, bytes: u64, place: UnifiedPlace) -> Result<()> {
        let _in = self.card.enter()?;
        self.card.known(stream)?;
        if self.card.driver().capture_id(stream)?.is_some() {
            fail!(Code::NotPermitted, "stream {stream:#x} is being captured: a graph has no prefetches");
        }
        let to = self.number_of(place)?;
        self.card.driver().managed_prefetch(addr, bytes, to, stream)
    }

    fn advise(&self, addr: u64, bytes: u64, advice: Advice, place: UnifiedPlace) -> Result<()> {
        let _in = self.card.enter()?;
        self.card.null_is_free()?; // the call counts as work on the default stream
        let by = self.number_of(place)?;
        let advice = match advice {
            Advice::ReadMostly => CUmem_advise::CU_MEM_ADVISE_SET_READ_MOSTLY,
            Advice::UnsetReadMostly => CUmem_advise::CU_MEM_ADVISE_UNSET_READ_MOSTLY,
            Advice::Preferred => CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
            Advice::UnsetPreferred => CUmem_advise::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION,
            Advice::AccessedBy => CUmem_advise::CU_MEM_ADVISE_SET_ACCESSED_BY,
            Advice::UnsetAccessedBy => CUmem_advise::CU_MEM_ADVISE_UNSET_ACCESSED_BY,
        };
        self.card.driver().managed_advise(addr, bytes, advice, by)
    }
}

impl CudaDevice {
    /// What the driver calls a place of managed memory.
    fn number_of(&self, place: UnifiedPlace) -> Result<i32> {
        if !self.moves_managed {
            fail!(
                Code::Unsupported,
                "the driver neither moves unified memory to and from this device nor takes advice on it: the device has \
                 no concurrent managed access, or the driver no call for it"
            );
        }
        Ok(match place {
            UnifiedPlace::Device => self.card.primary.device,
            UnifiedPlace::Host => -1, // CU_DEVICE_CPU
        })
    }
}
