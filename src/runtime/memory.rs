//! The memory of one device, as the rest of the library sees it: addresses outside, a pond of offsets inside.
//! `backing/` has the device calls behind the pond, and the translation between addresses and offsets.

use crate::base::error::{Code, Result};
use crate::core::{
    BlockInfo, BlockRecord, BlockStates, CaptureId, CheckpointId, Ending, Layout, Order, Pond, PoolId,
    Restored, Stats, TagStats, Waits,
};
use crate::device::{Device, EventId, StreamId};
use crate::fail;
use crate::runtime::backing::Supply;
use crate::runtime::observe::Observers;
use crate::runtime::options::Options;
use crate::runtime::tags::{self, Tag};
use crate::runtime::tools::nvtx;
use crate::runtime::unpooled::Unpooled;
use crate::runtime::usage::Usage;
use crate::runtime::{handle_cache, lock};
pub use statistics::StreamStats;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

mod hooked;
mod oom;
pub(super) mod pooled;
mod readings;
mod released;
mod requests;
mod settings;
mod sharing;
pub(super) mod state;
mod statistics;
mod timed;
mod watched;

pub(crate) use pooled::{Block, Given, Pooled};
use pooled::{config_of, unknown};
pub use state::Memory;
use state::{How, Marks};

impl Memory {
    /// The memory of `device`, empty, with the built-in options. A device whose sizes cannot be pooled is served
    /// without pooling.
    pub fn new(device: Arc<dyn Device>) -> Result<Memory> {
        Memory::with_options(device, Arc::new(Usage::new()), Options::default())
    }

    /// A pond over the device, where its sizes allow.
    fn pool(
        device: &Arc<dyn Device>,
        usage: &Arc<Usage>,
        seen: &Arc<Observers>,
        expandable: bool,
    ) -> Result<How> {
        let config = config_of(&**device, expandable)?;
        if Pond::span(&config).is_err() {
            let unpooled = Unpooled::new(device.clone(), usage.clone(), seen.clone(), false)?;
            return Ok(How::Unpooled(Box::new(unpooled)));
        }
        let new = |config| Pooled::new(device.clone(), usage.clone(), seen.clone(), config);
        let pooled = match new(config) {
            // A device that says now that it cannot map after all gives segments.
            Err(_) if config.mapping && device.mapping().is_none() => new(config_of(&**device, expandable)?)?,
            other => other?,
        };
        Ok(How::Pooled(Box::new(pooled)))
    }

    /// The pool that serves a request to `pool`: that of the thread's scope, if the request names the default pool.
    #[inline]
    fn route(&self, pool: PoolId) -> PoolId {
        if pool == PoolId::DEFAULT && self.scopes.any() { self.scopes.route() } else { pool }
    }

    /// Serves this thread's requests to the default pool from `pool` from now on, until [`scope_end`](Self::scope_end).
    /// Scopes nest; a scope of the default pool ends the effect of outer ones. A scope that a thread leaves open ends
    /// with the thread.
    pub fn scope_begin(&self, pool: PoolId) -> Result<()> {
        self.released.check(pool)?;
        // Before the check of the pool, which is made under a lock: this may have deferred frees to do.
        let how = self.open()?;
        self.scopes.begin(pool, || match how {
            How::Pooled(p) => p.pond.check_names(pool, None),
            How::Unpooled(u) => u.check_pool(pool),
        })?;
        // From here on requests to the default pool must go through `route`.
        if let Some((pooled, default)) = self.pooled_pool(PoolId::DEFAULT) {
            handle_cache::bypass(pooled, default);
        }
        Ok(())
    }

    /// Ends this thread's innermost scope, which must be one of `pool`; otherwise `NotPermitted`.
    pub fn scope_end(&self, pool: PoolId) -> Result<()> {
        self.scopes.end(pool)
    }

    /// The block is also used by `stream`: its reuse waits for what is queued there at the free.
    pub fn record_stream(&self, addr: u64, stream: StreamId) -> Result<()> {
        match self.open()? {
            How::Pooled(p) => match p.places.offset(addr) {
                Some(offset) => p.pond.record_stream(offset, stream),
                None => unknown(addr),
            },
            How::Unpooled(u) => u.record_stream(addr, stream),
        }?;
        self.tell_use(addr, stream);
        Ok(())
    }

    /// Ends the use of the block by `stream`, here or, given an event of the caller, there: after the free, reuse waits
    /// for that point and not for what is queued at the free. Without effect on a block of `stream` itself and on one
    /// without a stream; if the device is not pooled, as `record_stream`.
    pub fn record_end(&self, addr: u64, stream: StreamId, event: Option<EventId>) -> Result<()> {
        match self.open()? {
            How::Pooled(p) => match p.places.offset(addr) {
                Some(offset) => p.pond.end_use(offset, stream, event),
                None => unknown(addr),
            },
            How::Unpooled(u) => u.record_stream(addr, stream),
        }
    }

    /// Whether a freed block, or one whose use has ended at the event, still waits for this event of the caller.
    pub fn holds_event(&self, event: EventId) -> Result<bool> {
        self.open()?;
        self.supply().holds_event(event)
    }

    /// Fails for an event that [`keep_event`](Self::keep_event) has kept: the caller has destroyed it.
    pub(crate) fn check_event(&self, event: EventId) -> Result<()> {
        self.supply().check_event(event)
    }

    /// Must be called before the device destroys an event; `true`: it must not, the event is destroyed here later.
    pub(crate) fn keep_event(&self, event: EventId) -> Result<bool> {
        self.open()?;
        self.supply().keep_event(event)
    }

    /// Serves all requests of `stream`, whatever pool they name, from `pool` from now on, until
    /// [`capture_end`](Self::capture_end); see the core's `capture.rs`.
    pub fn capture_begin(&self, pool: PoolId, stream: StreamId) -> Result<CaptureId> {
        self.released.check(pool)?;
        let capture = self.pond()?.captures().begin(pool, stream)?;
        self.observers.keeps(pool);
        nvtx::mark(c"capture begins", stream);
        Ok(capture)
    }

    /// Keeps the pool as it is, as a capture does after its end, until that is released.
    pub fn capture_keep(&self, pool: PoolId) -> Result<CaptureId> {
        self.released.check(pool)?;
        self.pond()?.captures().keep(pool)
    }

    /// Adds a stream to the capture.
    pub fn capture_add(&self, capture: CaptureId, stream: StreamId) -> Result<()> {
        self.pond()?.captures().add(capture, stream)
    }

    /// Makes the capture's streams ordinary ones again; its pool is still kept as it is.
    pub fn capture_end(&self, capture: CaptureId) -> Result<()> {
        self.pond()?.captures().end(capture)?;
        nvtx::mark(c"capture ends", 0);
        Ok(())
    }

    /// The graph of the capture is gone; ends the capture first if it has not ended.
    pub fn capture_release(&self, capture: CaptureId) -> Result<()> {
        self.pond()?.captures().release(capture)
    }

    /// The same without waiting for the device; the pool's free memory stays with it.
    pub fn capture_release_async(&self, capture: CaptureId) -> Result<()> {
        self.pond()?.captures().release_async(capture)
    }

    /// Gives the pool's physical memory back to the device; its addresses and blocks stay. With `save`, the contents
    /// are kept in host memory.
    pub fn pool_sleep(&self, pool: PoolId, save: bool) -> Result<()> {
        self.pond()?.sleep().begin(pool, save)
    }

    /// Brings the memory of a sleeping pool back at the same addresses. All or nothing.
    pub fn pool_wake(&self, pool: PoolId) -> Result<()> {
        self.pond()?.sleep().wake(pool)
    }

    /// Whether the pool sleeps.
    pub fn pool_sleeps(&self, pool: PoolId) -> bool {
        matches!(&self.how, How::Pooled(p) if p.pond.sleep().is_on(pool))
    }

    /// Records which blocks of the pool are live now.
    pub fn checkpoint(&self, pool: PoolId) -> Result<CheckpointId> {
        self.pond()?.checkpoints().make(pool)
    }

    /// Drops a checkpoint.
    pub fn checkpoint_destroy(&self, checkpoint: CheckpointId) -> Result<()> {
        self.pond()?.checkpoints().destroy(checkpoint)
    }

    /// Makes exactly those blocks of the pool live that were live at the checkpoint, at the same addresses. All or
    /// nothing. The result has addresses.
    pub fn restore(&self, pool: PoolId, checkpoint: CheckpointId) -> Result<Restored> {
        let How::Pooled(p) = self.open()? else { return self.pond().and(Ok(Restored::default())) };
        // Every block that is or was live has an address.
        let at = |offset| p.places.address(offset).unwrap_or(0);
        let done = p.pond.checkpoints().restore(pool, checkpoint, at, |freed| self.tell_freed(freed))?;
        self.tell_restored(&done);
        self.hook_restored(&done);
        Ok(done)
    }

    fn pond(&self) -> Result<&Pond> {
        Ok(&self.pooled()?.pond)
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
                None => unknown(addr),
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
                None => unknown(addr),
            },
            How::Unpooled(u) => u.resize(addr, bytes),
        };
        if self.observers.any() || self.hooks.any() {
            return self.resize_told(addr, bytes, resize);
        }
        resize()
    }

    /// Every block and the account, as they are at one moment: see [`DeviceState::snapshot`].
    ///
    /// [`DeviceState::snapshot`]: crate::runtime::DeviceState::snapshot
    pub(crate) fn layout(&self) -> Result<Layout> {
        self.free_deferred();
        match self.open()? {
            How::Pooled(p) => p.layout(),
            How::Unpooled(u) => u.layout(),
        }
    }

    /// A block that its owner does not know yet gets the tag that the thread has in force.
    #[cold]
    pub(super) fn tag(&self, addr: u64) {
        match (tags::current(), &self.how) {
            (0, _) => {}
            _ if addr == 0 => {}
            (tag, How::Pooled(p)) => _ = p.places.offset(addr).map(|offset| p.pond.tags().give(offset, tag)),
            (tag, How::Unpooled(u)) => u.tag(addr, tag),
        }
    }

    /// What the blocks of each tag have that was ever used here, by its number.
    pub fn tag_stats(&self) -> Result<Vec<(Tag, TagStats)>> {
        let all = match self.open()? {
            How::Pooled(p) => p.pond.tags().stats(),
            How::Unpooled(u) => u.tag_stats(),
        };
        Ok(all.into_iter().filter_map(|(n, s)| Some((Tag::of_number(n)?, s))).collect())
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

    /// Whether there is such a pool.
    pub fn has_pool(&self, pool: PoolId) -> bool {
        match &self.how {
            How::Pooled(p) => p.pond.pool(pool).is_some(),
            How::Unpooled(u) => u.check_pool(pool).is_ok(),
        }
    }

    /// A new pool whose reserved bytes never exceed `limit` (0: none).
    pub fn pool_create(&self, limit: u64) -> Result<PoolId> {
        match self.open()? {
            How::Pooled(p) => p.pond.pool_create(limit, false),
            How::Unpooled(u) => u.pool_create(limit),
        }
    }

    /// The same; each block of the pool lies in one physical allocation of the device, so that others see all of it by its
    /// address. `Unsupported` where the driver's own pool keeps the memory.
    pub fn pool_create_contiguous(&self, limit: u64) -> Result<PoolId> {
        match self.open()? {
            How::Pooled(p) => p.pond.pool_create(limit, true),
            How::Unpooled(u) if !u.by_driver() => u.pool_create(limit),
            How::Unpooled(_) => fail!(Code::Unsupported, "the driver's pool does not say where a block lies"),
        }
    }

    /// Ends a pool. `Busy` while it has live blocks, and while a thread is in a scope of it.
    pub fn pool_destroy(&self, pool: PoolId) -> Result<()> {
        let how = self.open()?;
        if pool == PoolId::DEFAULT {
            // Even if a thread is in a scope of it: it exists as long as the device.
            fail!(Code::InvalidArgument, "the default pool of a device cannot be destroyed");
        }
        let cached = self.pooled_pool(pool);
        self.scopes.unless_used(pool, || match how {
            How::Pooled(p) => p.pond.pool_destroy(pool),
            How::Unpooled(u) => u.pool_destroy(pool),
        })?;
        if let Some((pooled, ended)) = cached {
            handle_cache::remove(pooled, ended);
            pooled.pond.pool_forgotten(pool);
        }
        self.forget_released(pool);
        self.readings.forget(pool);
        self.rescue.end_pool(pool);
        Ok(())
    }

    /// Limits what the pool reserves from now on; 0 means no limit.
    pub fn pool_set_limit(&self, pool: PoolId, bytes: u64) -> Result<()> {
        match self.open()? {
            How::Pooled(p) => p.pond.pool_set_limit(pool, bytes),
            How::Unpooled(u) => u.pool_set_limit(pool, bytes),
        }
    }

    /// The account of a pool.
    pub fn pool_stats(&self, pool: PoolId) -> Result<Stats> {
        match self.open()? {
            How::Pooled(p) => p.stats(Some(pool)),
            How::Unpooled(u) => u.pool_stats(pool),
        }
    }

    /// Resets the peaks of a pool to the current values.
    pub fn pool_reset_peaks(&self, pool: PoolId) -> Result<()> {
        self.readings.reset_peaks(Some(pool));
        match self.open()? {
            How::Pooled(p) => p.pond.reset_peaks(Some(pool)),
            How::Unpooled(u) => u.pool_reset_peaks(pool),
        }
    }

    /// Gives unused memory of one pool, or of all, back to the device. Waits for the device first. Of all, so much is kept
    /// beside what blocks take as the option `empty_cache_floor_mb` says.
    pub fn empty_cache(&self, pool: Option<PoolId>) -> Result<()> {
        let _range = nvtx::range(c"empty_cache", 0);
        let how = self.open()?;
        let floor = if pool.is_none() { self.empty_cache_floor() } else { 0 };
        let keep = if floor == 0 { 0 } else { self.stats().active.current.saturating_add(floor) };
        match how {
            How::Pooled(p) if pool.is_none() => p.pond.special().empty_cache_to(keep),
            How::Pooled(p) => p.pond.empty_cache(pool),
            How::Unpooled(u) => u.trim_to(pool, keep),
        }
    }

    /// Gives unused memory of one pool, or of all, back to the device until no more than `keep` bytes of it are
    /// reserved, or none is unused; waits for the device first. Memory goes in whole granules or segments, so less than
    /// `keep` may be left. Does nothing, and does not wait, where no more is reserved.
    pub fn trim_to(&self, pool: Option<PoolId>, keep: u64) -> Result<()> {
        let _range = nvtx::range(c"trim_to", keep);
        match self.open()? {
            How::Pooled(p) => p.pond.special().trim_to(pool, keep),
            How::Unpooled(u) => u.trim_to(pool, keep),
        }
    }

    /// The account of the device.
    pub fn stats(&self) -> Stats {
        self.free_deferred();
        match &self.how {
            How::Pooled(p) => p.stats(None).unwrap_or_default(),
            How::Unpooled(u) => u.stats(),
        }
    }

    /// Resets the peaks of the device to the current values.
    pub fn reset_peaks(&self) {
        self.readings.reset_peaks(None);
        match &self.how {
            How::Pooled(p) => {
                let _ = p.pond.reset_peaks(None); // cannot fail without a pool
            }
            How::Unpooled(u) => u.reset_peaks(),
        }
    }

    /// Must be called when the device has created `stream`.
    pub fn stream_created(&self, stream: StreamId) {
        self.order().made(stream);
        self.supply().add_stream(stream);
    }

    /// The default stream, and the streams that the device has created and that have not ended.
    pub(crate) fn streams(&self) -> Vec<StreamId> {
        self.supply().made_here()
    }

    /// Fails while the stream is being captured: it must not end then.
    pub fn check_stream_end(&self, stream: StreamId) -> Result<()> {
        self.order().check_end(stream)
    }

    /// Must be called before the device ends `stream`. What is queued on it still counts for the memory that it uses.
    /// Must be followed by [`stream_ended`](Self::stream_ended) or [`stream_not_ended`](Self::stream_not_ended).
    /// `UnknownStream` if another thread is ending it.
    pub(crate) fn stream_ending(&self, stream: StreamId) -> Result<Ending> {
        self.order().ending(stream)
    }

    /// Must be called when the device has ended the stream.
    pub(crate) fn stream_ended(&self, ending: Ending) {
        self.supply().drop_stream(ending.id());
        self.observers.ended(ending.id());
        match &self.how {
            How::Pooled(p) => p.pond.stream_ended(ending),
            How::Unpooled(u) => u.order().ended(ending),
        }
    }

    /// Must be called when the device refused to end the stream.
    pub(crate) fn stream_not_ended(&self, ending: Ending) {
        self.order().not_ended(ending);
    }

    /// A stream of the device with that order of streams uses memory of this one until `waits` is over: blocks without a
    /// stream that are freed from now on wait for that, too.
    pub(crate) fn visited(&self, of: &'static Order, waits: Waits) {
        if !waits.is_over() {
            self.order().note_foreign_work(self.supply().visit(of, waits));
        }
    }

    /// The order of the device's streams.
    pub(crate) fn order(&self) -> &Order {
        match &self.how {
            How::Pooled(p) => p.pond.order(),
            How::Unpooled(u) => u.order(),
        }
    }

    pub(crate) fn supply(&self) -> &Arc<Supply> {
        match &self.how {
            How::Pooled(p) => &p.supply,
            How::Unpooled(u) => u.supply(),
        }
    }

    /// The number and the name of the device that it is of.
    pub(crate) fn set_owner(&self, device: u32, name: String) {
        self.supply().set_owner(device, name);
    }

    /// The number of live blocks. Makes no call on the device.
    pub fn live_blocks(&self) -> u64 {
        match &self.how {
            How::Pooled(p) if !self.is_closed() => p.pond.statistics().live_blocks(),
            How::Pooled(_) => 0,
            How::Unpooled(u) => u.live_blocks(),
        }
    }

    /// Gives everything back to the device; every later call returns `NotInitialized`. Idempotent.
    pub fn close(&self) -> Result<()> {
        if self.marks.fetch_or(Marks::CLOSED.bits(), Relaxed) & Marks::CLOSED.bits() != 0 {
            return Ok(());
        }
        self.rescue.close();
        self.hooks.close();
        self.observers.remove_all();
        {
            let _settled = lock(&self.settings.requested);
            self.observers.latencies.switch(false);
        }
        self.supply().begin_close();
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
