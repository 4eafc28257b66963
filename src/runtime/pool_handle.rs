//! A pool for those who use it often.

use crate::base::error::{Code, Error, Result};
use crate::core::{Freed, Got, PoolId};
use crate::device::StreamId;
use crate::runtime::device::DeviceState;
use crate::runtime::handle_cache;
use std::sync::Arc;

/// A pool of an open device, looked up once: requests and frees with it are the fastest that there are. It is a name,
/// and owns nothing: when the pool or the device has ended, every call tells so. All calls may come from any thread.
#[derive(Clone, Copy)]
pub struct PoolHandle {
    device: &'static Arc<DeviceState>,
    pool: PoolId,
}

/// Above the numbers of pools; the C API's handles have other marks.
const MARK: u64 = 0x9001 << 48;

/// The number of a pool in the cache of look-ups; `None` for devices whose number it has no room for.
pub(super) fn number(device: u32, pool: PoolId) -> Option<u64> {
    (device <= 0xFFFF).then(|| MARK | u64::from(device) << 32 | u64::from(pool.0))
}

impl DeviceState {
    /// A handle of one of the device's pools. `InvalidArgument` for a pool that there is not.
    pub fn pool(&self, pool: PoolId) -> Result<PoolHandle> {
        let _pass = self.enter()?;
        self.memory().pool_stats(pool)?;
        let none = || Error::new(Code::Internal, "the device is not in the table");
        Ok(PoolHandle { device: crate::runtime::by_id(self.id()).ok_or_else(none)?, pool })
    }
}

impl PoolHandle {
    /// The pool's own name.
    pub fn id(&self) -> PoolId {
        self.pool
    }

    /// The device that it is of.
    pub fn device(&self) -> &'static Arc<DeviceState> {
        self.device
    }

    fn number(&self) -> u64 {
        number(self.device.id(), self.pool).unwrap_or(0)
    }

    /// Memory for work queued on `stream` from now on. 0 bytes give address 0.
    #[inline]
    pub fn alloc(&self, stream: StreamId, bytes: u64) -> Result<u64> {
        let Some((memory, found)) = handle_cache::find(self.number()) else {
            return self.alloc_first(stream, bytes);
        };
        let request = match memory.quick(found.place, stream, bytes) {
            // 0: the device has just ended.
            Got::Block(addr, full) if addr != 0 => {
                if let Some(heap) = full {
                    memory.settle(heap);
                }
                return Ok(addr);
            }
            Got::Missed(heap) => memory.request(heap, found.pool(), bytes).ok(),
            _ => None,
        };
        match request.as_ref().and_then(|r| memory.place(r)) {
            Some(Got::Block(addr, full)) if addr != 0 => {
                if let Some(heap) = full {
                    memory.settle(heap);
                }
                Ok(addr)
            }
            _ if bytes == 0 => self.alloc_first(stream, bytes),
            _ => memory.find(found.pool(), stream, bytes, request),
        }
    }

    #[cold]
    fn alloc_first(&self, stream: StreamId, bytes: u64) -> Result<u64> {
        let _pass = self.device.enter()?;
        let addr = self.device.memory().alloc(self.pool, stream, bytes)?;
        if let Some(number) = number(self.device.id(), self.pool) {
            handle_cache::enter(number, self.device.memory(), self.pool);
        }
        Ok(addr)
    }

    /// Frees a block of the device in stream order: reusable at once by work queued later on `stream`, and, where that
    /// is not the block's own, when both have passed this point. Address 0 does nothing.
    #[inline]
    pub fn free(&self, addr: u64, stream: StreamId) -> Result<()> {
        let Some((memory, _)) = handle_cache::find(self.number()) else {
            let _pass = self.device.enter()?;
            return self.device.memory().free(addr, Some(stream), None);
        };
        match memory.free_quick(addr, stream) {
            Freed::Done => Ok(()),
            found => memory.free(addr, stream, found),
        }
    }
}
