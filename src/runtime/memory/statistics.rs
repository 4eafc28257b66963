//! The statistics in full: of a device, its pools and its streams.

use super::{How, Memory};
use crate::base::error::Result;
use crate::core::{BlockState, BlockStates, Flow, MemoryStats, PoolId, Split, Stats};
use std::collections::BTreeMap;

/// What a stream has of a device, or of one of its pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStats {
    /// The stream; `None` for blocks that every stream may use, and for what a stream left that has ended.
    pub stream: Option<u64>,
    /// Live blocks, and their bytes as they were asked for and after rounding.
    pub blocks: u64,
    /// See `blocks`.
    pub requested_bytes: u64,
    /// See `blocks`.
    pub allocated_bytes: u64,
    /// Freed blocks that wait, and their bytes.
    pub waiting_blocks: u64,
    /// See `waiting_blocks`.
    pub waiting_bytes: u64,
    /// Free pieces that serve its requests first, and their bytes.
    pub free_blocks: u64,
    /// See `free_blocks`.
    pub free_bytes: u64,
}

/// Of memory without pooling: each block is a segment of its own, and nothing is free.
fn unpooled(s: &Stats) -> MemoryStats {
    let split =
        |c: crate::core::Counter| Split { all: c.into(), large_pool: c.into(), small_pool: Flow::default() };
    MemoryStats {
        allocation: split(s.blocks),
        segment: split(s.segments),
        // Each has a segment until the device has it back.
        active: split(s.segments),
        allocated_bytes: split(s.allocated),
        reserved_bytes: split(s.reserved),
        active_bytes: split(s.active),
        requested_bytes: split(s.requested),
        num_ooms: s.out_of_memory_count,
        num_device_alloc: s.segments.total,
        num_device_free: s.segments.total.saturating_sub(s.segments.current),
        max_split_size: u64::MAX,
        limit_bytes: s.limit,
        free_bytes: s.reserved.current.saturating_sub(s.active.current),
        ..MemoryStats::default()
    }
}

impl Memory {
    /// The statistics in full, of the device or of one of its pools. The device is asked how much it has.
    pub fn memory_stats(&self, pool: Option<PoolId>) -> Result<MemoryStats> {
        Ok(self.readings.enter(pool, self.read(pool)?))
    }

    fn read(&self, pool: Option<PoolId>) -> Result<MemoryStats> {
        let how = self.open()?;
        self.free_deferred();
        // A device that cannot tell has what the limits say.
        let free = || self.supply().memory_free().ok().flatten().unwrap_or(u64::MAX);
        match how {
            How::Pooled(p) => {
                let mut m = p.pond.statistics().full(pool, free())?;
                [m.num_device_alloc, m.num_device_free] = p.supply.calls().counts_done();
                m.num_oom_rejections = p.supply.calls().rejections();
                Ok(m)
            }
            How::Unpooled(u) => {
                let s = pool.map_or_else(|| Ok(u.stats()), |p| u.pool_stats(p))?;
                let mut m = unpooled(&s);
                let room =
                    |limit: u64, taken: u64| if limit == 0 { u64::MAX } else { limit.saturating_sub(taken) };
                let device = u.stats();
                let most = room(device.limit, device.reserved.current).min(room(s.limit, s.reserved.current));
                m.largest_free_bytes = most.min(free());
                Ok(m)
            }
        }
    }

    /// All that was ever allocated, freed or counted so far is not told any more by
    /// [`memory_stats`](Self::memory_stats): `allocated`, `freed` and the `num_` counters start again from 0. The
    /// totals of [`stats`](Self::stats) stay.
    pub fn reset_accumulated(&self, pool: Option<PoolId>) -> Result<()> {
        let now = self.read(pool)?;
        self.readings.reset_accumulated(pool, now);
        Ok(())
    }

    /// All pools that there are, by number; the default one is the first.
    pub fn pools(&self) -> Vec<PoolId> {
        match &self.how {
            How::Pooled(p) => p.pond.statistics().pools(),
            How::Unpooled(u) => u.pools(),
        }
    }

    /// What each stream has of the device, or of one of its pools, by stream: by a walk
    /// ([`blocks`](Self::blocks)), with its price.
    pub fn stream_stats(&self, pool: Option<PoolId>) -> Result<Vec<StreamStats>> {
        let mut all: BTreeMap<Option<u64>, StreamStats> = BTreeMap::new();
        for b in self.blocks(pool, BlockStates::all())? {
            let s = all.entry(b.stream).or_insert(StreamStats { stream: b.stream, ..StreamStats::default() });
            let (count, bytes) = match b.state {
                BlockState::Live => {
                    s.requested_bytes += b.requested;
                    (&mut s.blocks, &mut s.allocated_bytes)
                }
                BlockState::Waiting => (&mut s.waiting_blocks, &mut s.waiting_bytes),
                BlockState::Free => (&mut s.free_blocks, &mut s.free_bytes),
            };
            *count += 1;
            *bytes += b.size;
        }
        Ok(all.into_values().collect())
    }
}
