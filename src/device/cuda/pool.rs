//! The facet of the driver's own pool, behind `backend:cudaMallocAsync`.

use super::card::Card;
use crate::base::error::Result;
use crate::base::sync::system::{Mutex, lock};
use crate::device::{DriverPool, DriverPoolStats, ExternalStreams, StreamId};
use crate::locks;
use cudarc::driver::sys::CUmemPool_attribute as OfPool;
use std::sync::Arc;

/// A pool of ours, made when it is first needed.
pub(super) struct Pool {
    card: Arc<Card>,
    made: Mutex<Made, locks::CudaPool>,
    release_threshold: u64,
}

#[derive(Default)]
struct Made {
    /// 0: none yet.
    handle: u64,
    /// Other devices that may use the memory.
    readers: Vec<i32>,
    /// More of them, which nobody has asked for. Where the driver refuses one, the pool is made without it.
    guests: Vec<i32>,
}

impl Pool {
    pub(super) fn new(card: Arc<Card>, release_threshold: u64) -> Pool {
        Pool { card, made: Mutex::default(), release_threshold }
    }

    fn pool(&self) -> Result<u64> {
        let mut made = lock(&self.made);
        if made.handle == 0 {
            let driver = self.card.driver();
            let pool = driver.pool_create(self.card.primary.device, self.release_threshold)?;
            let admitted = made.readers.iter().try_for_each(|&peer| driver.pool_admit(pool, peer));
            admitted.inspect_err(|_| {
                let _ = driver.pool_destroy(pool);
            })?;
            made.guests.retain(|&peer| driver.pool_admit(pool, peer).is_ok());
            made.handle = pool;
        }
        Ok(made.handle)
    }

    /// From now on `peer` may use the memory, including what comes later.
    pub(super) fn admit(&self, peer: i32) -> Result<()> {
        let mut made = lock(&self.made);
        if made.readers.contains(&peer) {
            return Ok(());
        }
        if made.handle != 0 && !made.guests.contains(&peer) {
            self.card.driver().pool_admit(made.handle, peer)?;
        }
        made.guests.retain(|&guest| guest != peer);
        made.readers.push(peer);
        Ok(())
    }

    /// As `admit`, as long as the driver takes it: no later request fails for it. The caller knows that the devices reach
    /// each other; for others the driver may take the call, and fail the next request (CUDA programming guide, stream-ordered
    /// memory allocator, device accessibility).
    pub(super) fn invite(&self, peer: i32) -> Result<()> {
        let mut made = lock(&self.made);
        if !made.readers.contains(&peer) && !made.guests.contains(&peer) {
            if made.handle != 0 {
                self.card.driver().pool_admit(made.handle, peer)?;
            }
            made.guests.push(peer);
        }
        Ok(())
    }

    /// Destroys the pool, at the end of the device.
    pub(super) fn clear(&self) -> Result<()> {
        let pool = std::mem::take(&mut lock(&self.made).handle);
        match pool {
            0 => Ok(()),
            pool => self.card.driver().pool_destroy(pool),
        }
    }
}

impl DriverPool for Pool {
    fn alloc(&self, stream: StreamId, bytes: u64) -> Result<u64> {
        let _in = self.card.enter()?;
        self.card.known(stream)?;
        if self.card.is_default(stream) {
            self.card.null_is_free()?;
        }
        self.card.driver().pool_alloc(self.pool()?, stream, bytes)
    }

    fn free(&self, addr: u64, stream: StreamId) -> Result<()> {
        let _in = self.card.enter()?;
        if self.card.is_default(stream) {
            self.card.null_is_free()?;
        }
        self.card.driver().pool_free(addr, stream)
    }

    fn trim(&self, keep: u64) -> Result<()> {
        let _in = self.card.enter()?;
        self.card.driver().pool_trim(self.pool()?, keep)
    }

    fn stats(&self) -> Result<DriverPoolStats> {
        let _in = self.card.enter()?;
        let pool = self.pool()?;
        let number = |which| self.card.driver().pool_number(pool, which);
        Ok(DriverPoolStats {
            reserved: number(OfPool::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
            reserved_peak: number(OfPool::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?,
            used: number(OfPool::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
            used_peak: number(OfPool::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
        })
    }
}
