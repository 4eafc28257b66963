//! Calls on the pools of an open device that may wait for the device.

use crate::base::error::Result;
use crate::core::{CheckpointId, PoolId, Restored};
use crate::runtime::device::state::DeviceState;
use crate::runtime::entry::reentry::may_block;
#[cfg(doc)]
use crate::runtime::{Checkpoints, Pools};

/// Calls on the pools of an open device that may wait for the device; the others are [`Pools`]. Get it with [`DeviceState::pools`].
#[derive(Clone, Copy)]
pub struct DevicePools<'a>(pub(super) &'a DeviceState);

impl DeviceState {
    /// The pools of the device.
    pub fn pools(&self) -> DevicePools<'_> {
        DevicePools(self)
    }
}

impl DevicePools<'_> {
    /// [`Pools::sleep`] for each of these pools, or for none: `NotPermitted` in a stream callback.
    pub fn sleep(&self, pools: &[PoolId], save: bool) -> Result<()> {
        let _pass = self.0.enter()?;
        may_block()?;
        for (n, &pool) in pools.iter().enumerate() {
            self.0.memory().pools().sleep(pool, save).inspect_err(|_| {
                for &p in &pools[..n] {
                    let _ = self.0.memory().pools().wake(p); // else it stays asleep, as its account tells
                }
            })?;
        }
        Ok(())
    }

    /// [`Pools::wake`] for each of these pools. Those that were woken before one failed stay awake.
    pub fn wake(&self, pools: &[PoolId]) -> Result<()> {
        let _pass = self.0.enter()?;
        may_block()?;
        pools.iter().try_for_each(|&p| self.0.memory().pools().wake(p))
    }

    /// [`Checkpoints::restore`], which may wait: `NotPermitted` in a stream callback.
    pub fn restore(&self, pool: PoolId, checkpoint: CheckpointId) -> Result<Restored> {
        let _pass = self.0.enter()?;
        may_block()?;
        self.0.memory().checkpoints().restore(pool, checkpoint)
    }
}
