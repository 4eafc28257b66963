//! The facet of unified memory of a plugin.

use super::device::{ForeignDevice, call, missing};
use crate::base::error::{Code, Result};
use crate::device::{Advice, StreamId, Unified, UnifiedPlace, as_ptr};
use crate::fail;

impl Unified for ForeignDevice {
    fn alloc(&self, bytes: u64) -> Result<u64> {
        let size = Self::host_layout(bytes)?.size();
        match self.plugin.table.unified_memory_allocate {
            Some(callback) => self.take_host("unified_memory_allocate", "unified memory", callback, size),
            None => Err(missing("unified memory")),
        }
    }

    fn free(&self, addr: u64, bytes: u64) -> Result<()> {
        let bytes = Self::host_layout(bytes)?.size();
        self.give_host(addr, || {
            call!(self, unified_memory_deallocate(as_ptr(addr), bytes))
                .unwrap_or_else(|| Err(missing("unified memory")))
        })
    }

    fn prefetch(&self, _: StreamId, _: u64, _: u64, _: UnifiedPlace) -> Result<()> {
        missing_in_interface()
    }

    fn advise(&self, _: u64, _: u64, _: Advice, _: UnifiedPlace) -> Result<()> {
        missing_in_interface()
    }
}

#[cold]
fn missing_in_interface() -> Result<()> {
    fail!(
        Code::Unsupported,
        "the custom-runtime interface has no call that moves unified memory or gives advice on it"
    )
}
