//! A pool for those who use it often.

use crate::base::error::{Code, Error, Result};
use crate::core::PoolId;
use crate::device::StreamId;
use crate::runtime::device::state::DeviceState;
use crate::runtime::device::table;
use crate::runtime::entry::fork;
use crate::runtime::ladder::{self, Caller};
use crate::runtime::memory::pool_numbers;
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

impl DeviceState {
    /// A handle of one of the device's pools. `InvalidArgument` for a pool that there is not.
    pub fn pool(&self, pool: PoolId) -> Result<PoolHandle> {
        let _pass = self.enter()?;
        self.memory().pools().stats(pool)?;
        let none = || Error::new(Code::Internal, "the device is not in the table");
        Ok(PoolHandle { device: table::by_id(self.id()).ok_or_else(none)?, pool })
    }
}

impl PoolHandle {
    /// The pool of a number that [`Pools::number`](crate::runtime::Pools::number) gave; its device may have ended.
    /// `InvalidArgument` if the number stands for no pool any more.
    pub fn of_number(number: u64) -> Result<PoolHandle> {
        let (device, pool) = pool_numbers::find(number)?;
        let none = || Error::new(Code::Internal, "the device is not in the table");
        Ok(PoolHandle { device: table::by_id(device).ok_or_else(none)?, pool })
    }

    /// The pool's number on its device.
    pub fn id(&self) -> PoolId {
        self.pool
    }

    /// The device that it is of.
    pub fn device(&self) -> &'static Arc<DeviceState> {
        self.device
    }

    /// Memory for work queued on `stream` from now on. 0 bytes give address 0.
    #[inline]
    pub fn alloc(&self, stream: StreamId, bytes: u64) -> Result<u64> {
        ladder::alloc(*self, stream, bytes, |got| got)
    }

    /// Memory that every stream and the host may use at once, as
    /// [`Memory::alloc_unordered`](crate::runtime::Memory::alloc_unordered) gives it. 0 bytes give
    /// address 0.
    pub fn alloc_unordered(&self, bytes: u64) -> Result<u64> {
        if let Some(addr) = ladder::alloc_unordered(*self, bytes) {
            return Ok(addr);
        }
        self.may_call()?;
        let addr = self.device.memory().alloc_unordered(self.pool, bytes)?;
        ladder::remember(*self, self.device, self.pool);
        Ok(addr)
    }

    /// Frees a block of the device in stream order: reusable at once by work queued later on `stream`, and, where that
    /// is not the block's own, when both have passed this point. Address 0 does nothing.
    #[inline]
    pub fn free(&self, addr: u64, stream: StreamId) -> Result<()> {
        ladder::free(*self, addr, stream, |done| done)
    }
}

impl Caller for PoolHandle {
    type Failure = Error;
    const UNWINDS: bool = true;

    /// None for devices whose number it has no room for.
    #[inline(always)]
    fn number(self) -> u64 {
        let device = u64::from(self.device.id());
        if device <= 0xFFFF { MARK | device << 32 | u64::from(self.pool.0) } else { 0 }
    }

    fn pool(self) -> Result<(&'static Arc<DeviceState>, PoolId)> {
        drop(self.device.enter()?); // fails where it has ended
        Ok((self.device, self.pool))
    }

    fn may_call(self) -> Result<()> {
        fork::check()
    }

    fn refused(self, e: Error) -> Error {
        self.device.memory().pools().naming(self.pool, e)
    }

    #[inline(always)]
    fn guard<T>(self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        body()
    }
}
