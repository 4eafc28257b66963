//! Blocks whose bytes are 0: an allocation and a fill on the same stream, both or neither.

use crate::base::error::Result;
use crate::core::PoolId;
use crate::device::StreamId;
use crate::runtime::device::state::DeviceState;
use crate::runtime::memory::Memory;

impl DeviceState {
    /// As [`Memory::alloc`], but the bytes are 0 for work queued on `stream` from now on: a fill is queued there. After an
    /// error, of the fill too, there is no block.
    pub fn alloc_zeroed(&self, pool: PoolId, stream: StreamId, bytes: u64) -> Result<u64> {
        let addr = self.memory().alloc(pool, stream, bytes)?;
        if addr != 0 {
            let done = self.memset_async(stream, addr, 0, bytes);
            done.inspect_err(|_| take_back(self.memory(), addr, stream))?;
        }
        Ok(addr)
    }
}

/// Takes back a block that the caller will not get: at once, or as soon as it can be freed.
pub(crate) fn take_back(memory: &Memory, addr: u64, stream: StreamId) {
    if memory.free(addr, Some(stream), None).is_err() {
        memory.free_for_good(addr);
    }
}
