//! The pond: one device's memory behind a few calls. What they do stands in the files below.

use super::account::Accounts;
use super::backing::Backing;
use super::blocks;
use super::faces::{FastPathCalls, SpecialCalls, WatchCalls};
use super::features::{
    self, CaptureCalls, CheckpointCalls, Explain, ExportCalls, PoolEnd, SleepCalls, Snapshot,
    StatisticsCalls, TagCalls, Uses, Walk,
};
use super::ground::{AddressSpan, Config, Ground, Pool, PoolRef};
use super::heap::Heap;
use super::ladder::{Freed, Got};
use super::layout::Layout;
use super::order::{Ending, Order};
use super::report::OomReport;
use super::state::tuned::Tuning;
use super::types::{BlockInfo, BlockRecord, BlockStates, PoolId, Stats};
use crate::base::error::Result;
use std::sync::Arc;

/// One device's allocator. Any thread may call anything.
pub struct Pond {
    ground: Ground,
}

impl Pond {
    /// The usual [`Config::window`].
    pub const WINDOW: u32 = 4;

    /// The range of offsets that a pond of this configuration needs.
    pub fn span(config: &Config) -> Result<AddressSpan> {
        config.span()
    }

    /// A pond over `backing`. Takes nothing from it yet.
    pub fn new(config: Config, backing: Arc<dyn Backing>) -> Result<Pond> {
        let ground = Ground::new(config, backing)?;
        ground.new_pool(0, false)?; // the default pool is number 0
        blocks::tune(&ground, Tuning::default());
        Ok(Pond { ground })
    }

    // ---- requests and frees: see `ladder.rs` ---------------------------------------------------------

    /// A block of at least `bytes` (not 0) for work on `stream`; its offset.
    pub fn alloc(&self, pool: PoolId, stream: u64, bytes: u64) -> Result<u64> {
        let pool = PoolRef { place: self.ground.pools().live(pool)?, id: pool };
        self.ground.alloc_from(pool, stream, bytes, None, || Ok(()))
    }

    /// The first step of a request. Never panics.
    #[inline(always)]
    pub(crate) fn alloc_quick(&self, pool: &Pool, stream: u64, bytes: u64) -> Got {
        self.ground.alloc_quick(pool, stream, bytes)
    }

    /// Takes the other steps of a request; returns the offset of the block. `heap` is the heap that the first step
    /// returned. `leave` is called before any step that may reach the device, and ends the request if it fails.
    pub(crate) fn alloc_from(
        &self,
        pool: PoolRef,
        stream: u64,
        bytes: u64,
        heap: Option<&'static Heap>,
        leave: impl Fn() -> Result<()>,
    ) -> Result<u64> {
        self.ground.alloc_from(pool, stream, bytes, heap, leave)
    }

    /// The fast paths of threads into heaps.
    #[inline]
    pub(crate) fn fast_paths(&self) -> FastPathCalls<'_> {
        FastPathCalls::of(&self.ground)
    }

    /// Counts a request that has failed for lack of memory, whatever was tried.
    pub fn count_out_of_memory(&self, pool: PoolId, stream: Option<u64>) {
        let served = stream.and_then(|s| self.ground.order.route(s)).unwrap_or(pool);
        self.ground.refusals.count_failed();
        if let Some(p) = self.ground.pools().get(served) {
            p.refusals.count_failed();
        }
    }

    /// The report of a request that has just failed on this thread.
    pub fn explain(&self, pool: PoolId, stream: Option<u64>, bytes: u64) -> OomReport {
        Explain::of(&self.ground).request(pool, stream, bytes)
    }

    /// Tags of blocks.
    pub fn tags(&self) -> TagCalls<'_> {
        TagCalls::of(&self.ground)
    }

    /// For those who watch what happens.
    #[inline]
    pub(crate) fn watched(&self) -> WatchCalls<'_> {
        WatchCalls::of(&self.ground)
    }

    /// Frees the block at `offset`. With a stream, the block is reusable once that stream has passed
    /// this point as well; with a size, that must be the size that was asked for.
    #[inline(always)]
    pub fn free(&self, offset: u64, stream: Option<u64>, size: Option<u64>) -> Result<()> {
        if stream.is_none() && size.is_none() && self.ground.free_idle(offset) {
            return Ok(());
        }
        match self.free_quick(offset, stream, size, |_, _, _| ()) {
            Freed::Done => Ok(()),
            Freed::Missed(heap) => self.ground.free_from(offset, stream, size, heap),
        }
    }

    /// The first step of a free. `tell` is called with the heap, the charge and what was asked for, before anybody can
    /// have the block again: with the heap's lock held. Never panics, if that does not.
    #[inline(always)]
    pub(crate) fn free_quick(
        &self,
        offset: u64,
        stream: Option<u64>,
        size: Option<u64>,
        tell: impl FnOnce(&Heap, u64, u64),
    ) -> Freed {
        self.ground.free_quick(offset, stream, size, tell)
    }

    /// All other steps of a free; `heap` is what the first step said.
    pub(crate) fn free_from(
        &self,
        offset: u64,
        stream: Option<u64>,
        size: Option<u64>,
        heap: Option<&'static Heap>,
    ) -> Result<()> {
        self.ground.free_from(offset, stream, size, heap)
    }

    // ---- everything else -----------------------------------------------------------------------------

    /// The pool of that id, if it lives.
    pub(crate) fn pool(&self, id: PoolId) -> Option<&'static Pool> {
        self.ground.pools().get(id)
    }

    /// Fails unless the pool and the stream exist.
    pub fn check_names(&self, pool: PoolId, stream: Option<u64>) -> Result<()> {
        self.ground.pools().live(pool)?;
        stream.map_or(Ok(()), |s| self.ground.order.check_own(s))
    }

    /// The live block that holds `offset`.
    pub fn block(&self, offset: u64) -> Result<BlockInfo> {
        features::block_at(&self.ground, offset)
    }

    /// The blocks of one pool, or of all, that are in one of these states, all as they are at one moment, by where
    /// `locate` says that they are; it is called with locks held. Other threads allocate and free again once they are
    /// collected.
    pub fn walk(
        &self,
        pool: Option<PoolId>,
        states: BlockStates,
        locate: impl Fn(u64) -> Result<u64>,
    ) -> Result<Vec<BlockRecord>> {
        self.ground.check_host_room()?;
        Walk::of(&self.ground).blocks(pool, states, locate)
    }

    /// All memory and the whole account at one moment. Nobody can allocate or free meanwhile, and the device is not called;
    /// before that, it is asked which waits are over. `locate` as in [`walk`](Self::walk).
    pub fn snapshot(&self, locate: impl Fn(u64) -> Result<u64>) -> Result<Layout> {
        self.ground.check_host_room()?;
        Snapshot::of(&self.ground).take(locate)
    }

    /// Records that work on `stream` also uses the live block at `offset`: its free will wait for what is queued there
    /// by then. A block without a stream waits for all streams of its device anyway.
    pub fn record_stream(&self, offset: u64, stream: u64) -> Result<()> {
        Uses::of(&self.ground).record(offset, stream)
    }

    /// What `stream` has done with the live block at `offset` so far ends here: after the free, its reuse waits
    /// for what is queued there *now*; or, given an event, for that. Later work there needs a new
    /// `record_stream`.
    pub fn end_use(&self, offset: u64, stream: u64, event: Option<u64>) -> Result<()> {
        Uses::of(&self.ground).end(offset, stream, event)
    }

    /// The order of the device's streams.
    pub fn order(&self) -> &Order {
        &self.ground.order
    }

    /// Call this after the device has ended the stream. Its live blocks stay valid; the free memory of its heaps goes
    /// to the next new stream, or to heaps that run short.
    pub fn stream_ended(&self, ending: Ending) {
        Uses::of(&self.ground).stream_ended(ending);
    }

    /// A new pool; `limit` bounds what it reserves, 0 is no limit. `contiguous`: each of its blocks lies in one physical
    /// allocation.
    pub fn pool_create(&self, limit: u64, contiguous: bool) -> Result<PoolId> {
        self.ground.new_pool(limit, contiguous)
    }

    /// Ends a pool and gives its memory back. `Busy` while blocks of it live; the default pool stays. To be followed by
    /// [`pool_forgotten`](Self::pool_forgotten).
    pub fn pool_destroy(&self, pool: PoolId) -> Result<()> {
        self.ground.check_host_room()?;
        PoolEnd::of(&self.ground, pool)?.run()
    }

    /// Releases the slot of a pool that has ended. Call it once no lookup can find the slot by that pool any more:
    /// another pool may get it from now on.
    pub fn pool_forgotten(&self, pool: PoolId) {
        self.ground.release_slot(pool);
    }

    /// Sets a pool's limit of reserved bytes; 0: none.
    pub fn pool_set_limit(&self, pool: PoolId, bytes: u64) -> Result<()> {
        self.ground.pools().live(pool)?.set_limit(bytes);
        Ok(())
    }

    /// Bounds `reserved` of the whole device, in bytes; 0: no bound.
    pub fn set_limit(&self, bytes: u64) {
        self.ground.set_limit(bytes);
    }

    /// Changes what the pond does from now on.
    pub fn tune(&self, t: Tuning) {
        blocks::tune(&self.ground, t);
    }

    /// The exact account of the device, or of one of its pools.
    pub fn stats(&self, pool: Option<PoolId>) -> Result<Stats> {
        Accounts::of(&self.ground).stats(pool)
    }

    /// The statistics beyond that account.
    pub fn statistics(&self) -> StatisticsCalls<'_> {
        StatisticsCalls::of(&self.ground)
    }

    /// Peaks start again from the current values, of the device or of one pool.
    pub fn reset_peaks(&self, pool: Option<PoolId>) -> Result<()> {
        Accounts::of(&self.ground).reset_peaks(pool)
    }

    /// Gives unused memory back to the device: of one pool, or of all. Waits for the device first.
    pub fn empty_cache(&self, pool: Option<PoolId>) -> Result<()> {
        match pool {
            Some(_) => self.special().trim_to(pool, 0),
            None => self.special().empty_cache_to(0),
        }
    }

    /// What few callers ask for.
    pub fn special(&self) -> SpecialCalls<'_> {
        SpecialCalls::of(&self.ground)
    }

    /// Streams that are captured into graphs.
    pub fn captures(&self) -> CaptureCalls<'_> {
        CaptureCalls::of(&self.ground)
    }

    /// The live blocks of a pool at one moment, noted and restored.
    pub fn checkpoints(&self) -> CheckpointCalls<'_> {
        CheckpointCalls::of(&self.ground)
    }

    /// Pools that give their memory away for a while.
    pub fn sleep(&self) -> SleepCalls<'_> {
        SleepCalls::of(&self.ground)
    }

    /// Blocks that others beside this process use.
    pub fn exports(&self) -> ExportCalls<'_> {
        ExportCalls::of(&self.ground)
    }

    /// Everything goes back to the device, live blocks too. The device is idle, and nobody uses the pond.
    pub fn close(&self) -> Result<()> {
        features::close(&self.ground)
    }

    /// After `close`, and so long after it that hardly a thread is still in a call that had begun before: the tables of
    /// the pond, nearly all of its host memory, go back to the system.
    pub fn discard(&self) {
        features::discard(&self.ground);
    }

    /// For tests.
    #[cfg(test)]
    pub(crate) fn ground(&self) -> &Ground {
        &self.ground
    }
}
