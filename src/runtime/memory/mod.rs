//! The memory of one device, as the rest of the library sees it: addresses outside, a pond of offsets inside.
//! `backing/` has the device calls behind the pond, and the translation between addresses and offsets.

use crate::base::error::{Code, Result};
use crate::base::sync::system::lock;
use crate::core::{BlockInfo, BlockRecord, BlockStates, Order, PoolId, Stats};
use crate::device::{EventId, StreamId};
use crate::fail;
use crate::runtime::backing::DeviceBacking;
use crate::runtime::nvtx;

use std::sync::Arc;

mod build;
pub(super) mod captures;
mod deferred;
pub(super) mod fast_paths;
pub(super) mod group;
pub(super) mod handle_cache;
pub(super) mod hooked;
mod marks;
pub(super) mod oom;
pub(super) mod pool_numbers;
pub(super) mod pooled;
pub(super) mod pools;
mod readings;
mod released;
mod requests;
mod scope;
pub(super) mod settings;
pub(super) mod sharing;
pub(super) mod state;
pub(super) mod statistics;
pub(super) mod streams;
pub(super) mod tag_scopes;
mod timed;
pub(super) mod watched;

use marks::Mark;
pub(crate) use pooled::{Block, Given, Pooled};
use state::How;
pub(crate) use state::Memory;

/// \[B\] of reserved memory that blocks take. Those that sleep are active, and have none. (The granules that they lie in,
/// which are counted, are a little larger.)
fn in_use(stats: &Stats) -> u64 {
    stats.active.current.saturating_sub(stats.sleeping.current)
}

impl Memory {
    /// The block is also used by `stream`: its reuse waits for what is queued there at the free.
    pub fn record_stream(&self, addr: u64, stream: StreamId) -> Result<()> {
        match self.open()? {
            How::Pooled(p) => match p.places.offset(addr) {
                Some(offset) => p.pond.record_stream(offset, stream),
                None => Err(p.unknown(addr)),
            },
            How::Unpooled(u) => u.record_stream(addr, stream),
        }?;
        self.watchers().used(addr, stream);
        Ok(())
    }

    /// Ends the use of the block by `stream`, here or, given an event of the caller, there: after the free, reuse waits
    /// for that point and not for what is queued at the free. Without effect on a block of `stream` itself and on one
    /// without a stream; if the device is not pooled, as `record_stream`.
    pub fn record_end(&self, addr: u64, stream: StreamId, event: Option<EventId>) -> Result<()> {
        match self.open()? {
            How::Pooled(p) => match p.places.offset(addr) {
                Some(offset) => p.pond.end_use(offset, stream, event),
                None => Err(p.unknown(addr)),
            },
            How::Unpooled(u) => u.record_stream(addr, stream),
        }
    }

    /// The live block that contains `addr`.
    pub fn block(&self, addr: u64) -> Result<BlockInfo> {
        match self.open()? {
            How::Pooled(p) => match p.places.offset(addr) {
                Some(offset) => {
                    let mut b = p.pond.block(offset)?;
                    // It lies in one piece, which may go as soon as another thread frees it.
                    b.base = addr - (offset - b.base);
                    Ok(b)
                }
                None => Err(p.unknown(addr)),
            },
            How::Unpooled(u) => u.block(addr),
        }
    }

    /// The blocks of one pool, or of all, that are in one of these states, sorted by address, all as of the same
    /// moment: nobody allocates or frees while they are collected, which takes some 25 ms for a million blocks. The
    /// device is not called. A waiting block is reported as of the last time that its fences were queried.
    pub fn blocks(&self, pool: Option<PoolId>, states: BlockStates) -> Result<Vec<BlockRecord>> {
        match self.open()? {
            How::Pooled(p) => p.pond.walk(pool, states, |offset| p.places.address(offset)),
            How::Unpooled(u) => u.blocks(pool, states),
        }
    }

    /// Makes the live block that starts at `addr` one of `bytes` where it is: `OutOfMemory`, and nothing has changed, if
    /// neither what it is charged nor free memory behind it suffices. The device is not called.
    pub fn try_expand(&self, addr: u64, bytes: u64) -> Result<()> {
        let how = self.open()?;
        let resize = || match how {
            How::Pooled(p) => match p.places.offset(addr) {
                Some(offset) => p.pond.special().resize(offset, bytes),
                None => Err(p.unknown(addr)),
            },
            How::Unpooled(u) => u.resize(addr, bytes),
        };
        if self.observers.any() || self.hooks.any() {
            return self.watchers().resize(addr, bytes, resize);
        }
        resize()
    }

    /// Fails unless `addr .. addr + bytes` lies within the requested size of one live block.
    pub fn check_range(&self, addr: u64, bytes: u64) -> Result<()> {
        match self.open()? {
            How::Pooled(p) => {
                let b = self.block(addr)?;
                if p.pond.sleep().is_on(b.pool) {
                    fail!(Code::NotPermitted, "the pool of the block at {:#x} sleeps", b.base);
                }
                b.check_room(addr, bytes)
            }
            How::Unpooled(u) => u.check_range(addr, bytes),
        }
    }

    /// Gives unused memory of one pool, or of all, back to the device. Waits for the device first. Of all, so much is kept
    /// beside what blocks take as the option `empty_cache_floor_mb` says.
    pub fn empty_cache(&self, pool: Option<PoolId>) -> Result<()> {
        let _range = nvtx::range(c"empty_cache", 0);
        let how = self.open()?;
        let floor = if pool.is_none() { self.settings().empty_cache_floor() } else { 0 };
        let keep = if floor == 0 { 0 } else { in_use(&self.stats()).saturating_add(floor) };
        match how {
            How::Pooled(p) if pool.is_none() => p.pond.special().empty_cache_to(keep),
            How::Pooled(p) => p.pond.empty_cache(pool),
            How::Unpooled(u) => u.trim_to(pool, keep),
        }?;
        self.pools().end_released();
        Ok(())
    }

    /// Gives unused memory of one pool, or of all, back to the device until no more than `keep` bytes of it are
    /// reserved, or none is unused; waits for the device first. Memory goes in whole granules or segments, so less than
    /// `keep` may be left. Does nothing, and does not wait, where no more is reserved.
    pub fn trim_to(&self, pool: Option<PoolId>, keep: u64) -> Result<()> {
        let _range = nvtx::range(c"trim_to", keep);
        match self.open()? {
            How::Pooled(p) => p.pond.special().trim_to(pool, keep),
            How::Unpooled(u) => u.trim_to(pool, keep),
        }?;
        self.pools().end_released();
        Ok(())
    }

    /// The account of the device.
    pub fn stats(&self) -> Stats {
        self.free_deferred();
        match &self.how {
            How::Pooled(p) => p.stats(None).unwrap_or_default(),
            How::Unpooled(u) => u.stats(),
        }
    }

    /// The order of the device's streams.
    pub(crate) fn order(&self) -> &Order {
        match &self.how {
            How::Pooled(p) => p.pond.order(),
            How::Unpooled(u) => u.order(),
        }
    }

    pub(crate) fn backing(&self) -> &Arc<DeviceBacking> {
        match &self.how {
            How::Pooled(p) => &p.supply,
            How::Unpooled(u) => u.supply(),
        }
    }

    /// The number of live blocks. Makes no call on the device.
    pub fn live_blocks(&self) -> u64 {
        match &self.how {
            How::Pooled(p) if !self.marks.has(Mark::Closed) => p.pond.statistics().live_blocks(),
            How::Pooled(_) => 0,
            How::Unpooled(u) => u.live_blocks(),
        }
    }

    /// Gives everything back to the device; every later call returns `NotInitialized`. Idempotent.
    pub fn close(&self) -> Result<()> {
        if self.marks.set(Mark::Closed) {
            return Ok(());
        }
        self.rescue.close();
        self.group.end();
        self.hooks.close();
        self.observers.remove_all();
        {
            let _settled = lock(&self.settings.requested);
            self.observers.latencies.switch(false);
        }
        self.names.clear();
        if let Some((device, _)) = self.backing().owner() {
            pool_numbers::device_ended(*device);
        }
        self.backing().begin_close();
        match &self.how {
            How::Pooled(p) => {
                handle_cache::remove_all(p);
                p.places.end();
                let closed = p.pond.close();
                p.supply.segments.close();
                closed.and(p.supply.close())
            }
            How::Unpooled(u) => u.close(),
        }
    }

    /// Called after `close`, when no thread is still in a call that began before: what is left takes a few KiB.
    pub(crate) fn discard(&self) {
        if let How::Pooled(p) = &self.how {
            p.pond.discard();
        }
    }
}
