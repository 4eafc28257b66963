//! The pond: one device's memory behind a few calls. What they do stands in the files below; here is the way of a
//! request and of a free, as far as it is the usual case.

use super::backing::Backing;
use super::desc::kind;
use super::features::{Exported, Pieces, Restored};
use super::ground::{Config, Ground};
use super::heap::{Heap, OwnedHeap};
use super::order::{Ending, Order};
use super::shape::{large_units, shift_of};
use super::state::captures::CaptureId;
use super::state::checkpoints::CheckpointId;
use super::state::pools::{Pool, PoolRef};
use super::state::tuned::Tuning;
use super::supply::Request;
use super::types::{BlockInfo, BlockRecord, BlockStates, PoolId, Stats, UNORDERED};
use crate::base::error::{Code, Error, Result};
use crate::base::sync::Ordering::Relaxed;
use std::sync::Arc;

/// What the caller of [`Pond::quick`] wants to have for an offset.
pub(crate) trait Locate {
    /// Never panics.
    fn locate(&self, offset: u64) -> u64;
}

/// The offset itself.
struct Offsets;

impl Locate for Offsets {
    #[inline(always)]
    fn locate(&self, offset: u64) -> u64 {
        offset
    }
}

/// What became of [`Pond::quick`].
pub(crate) enum Got {
    /// A block, and where it starts, as `Locate` says; and its heap, if [`Pond::settle`] is due.
    Block(u64, Option<&'static Heap>),
    /// Nothing is done; this heap serves such requests: go on with [`Pond::request`].
    Missed(&'static Heap),
    /// Nothing is done, and no heap is known for it: go on with [`Pond::heap`].
    NoHeap,
}

/// What became of [`Pond::free_quick`].
pub(crate) enum Freed {
    /// The block is freed.
    Done,
    /// Nothing is done: the heap may be another thread's; go on with [`Pond::free_unowned`].
    Unowned(&'static Heap),
    /// Nothing is done: go on with [`Pond::free`], which tells why.
    NotQuick,
}

/// One device's allocator. Any thread may call anything.
pub struct Pond {
    ground: Ground,
}

impl Pond {
    /// The usual [`Config::window`].
    pub const WINDOW: u32 = 4;

    /// How many bytes of offsets a pond of this configuration spans: the memory's own, then the window
    /// for scattered granules.
    pub fn span(config: &Config) -> Result<(u64, u64)> {
        config.span()
    }

    /// A pond over `backing`. Takes nothing from it yet.
    pub fn new(config: Config, backing: Arc<dyn Backing>) -> Result<Pond> {
        let ground = Ground::new(config, backing)?;
        ground.pool_create(0)?; // the default pool is number 0
        ground.tune(Tuning::default());
        Ok(Pond { ground })
    }

    // ---- the way of a request ------------------------------------------------------------------------

    /// A block of at least `bytes` (not 0) for work on `stream`; its offset.
    pub fn alloc(&self, pool: PoolId, stream: u64, bytes: u64) -> Result<u64> {
        let p = PoolRef { place: self.ground.live_pool(pool)?, id: pool };
        let mut got = self.quick(p.place, stream, bytes, &Offsets);
        let mut req = None;
        if !matches!(got, Got::Block(..)) {
            let (heap, served) = self.heap(p, stream)?;
            let request = self.request(heap, served, bytes)?;
            got = self.place(&request, &Offsets).unwrap_or(Got::NoHeap);
            req = Some(request);
        }
        match (got, req) {
            (Got::Block(at, full), _) => {
                if let Some(heap) = full {
                    self.settle(heap);
                }
                Ok(at)
            }
            (_, Some(req)) => self.find(&req),
            (_, None) => Err(Error::new(Code::Internal, "a request was lost")),
        }
    }

    /// A block that every stream and the host may use at once.
    pub fn alloc_unordered(&self, pool: PoolId, bytes: u64) -> Result<u64> {
        self.alloc(pool, UNORDERED, bytes)
    }

    /// A block, in the usual case: a block of the same size was freed, and the calling thread owns the heap.
    ///
    /// Never panics: the C API runs it unguarded.
    #[inline(always)]
    pub(crate) fn quick(&self, pool: &Pool, stream: u64, bytes: u64, to: &impl Locate) -> Got {
        let Some(heap) = pool.heap_of(stream) else { return Got::NoHeap };
        let shape = &self.ground.maps.shape;
        let Some(charged) = shape.charged(bytes) else { return Got::Missed(heap) };
        let place = shape.place(charged);
        let Some(mut h) = self.ground.enter(heap) else { return Got::Missed(heap) };
        // The heap is still the pool's. Whoever ends a pool, or gives its heap to another, takes the heap's lock, and so
        // ends the ownership of every other thread; and this one has done nothing else since it looked.
        let (d, shift) = match place {
            Some(p) if p.list() != 0 => match h.pop_fine(p.list()) {
                Some((_, d)) => (d, p.shift()),
                None => return Got::Missed(heap),
            },
            other => match h.pop_large(other.map_or_else(|| large_units(charged), |p| p.units())) {
                Some((_, d)) => (d, shift_of(d.tier_bits())),
                None => return Got::Missed(heap),
            },
        };
        let at = to.locate(u64::from(d.off()) << shift);
        h.revive(d, bytes);
        let full = h.counters.count_in(charged, bytes);
        Got::Block(at, full.then_some(heap))
    }

    /// A block cut from what is free in the heap, in the usual case: the calling thread owns the heap, and something
    /// fits. It needs nothing from the device. `None`: nothing is done; go on with [`find`](Self::find).
    pub(crate) fn place(&self, req: &Request, to: &impl Locate) -> Option<Got> {
        if req.bytes > self.ground.maps.shape.largest() {
            return None;
        }
        let mut h: OwnedHeap<'_> = self.ground.enter(req.heap)?;
        req.check_pool().ok()?;
        let id = self.ground.place_owned(&mut h, req);
        if id == 0 {
            return None;
        }
        let tier = req.size.tier as u32;
        h.make_live(id, tier, req.bytes);
        let at = to.locate(u64::from(self.ground.maps.desc(id).off()) << shift_of(tier));
        let full = h.counters.count_in(req.charged, req.bytes);
        Some(Got::Block(at, full.then_some(req.heap)))
    }

    /// The heap that serves a stream's requests to a pool, and the pool that it was of when it was found.
    pub(crate) fn heap(&self, pool: PoolRef, stream: u64) -> Result<(&'static Heap, PoolId)> {
        if let Some(heap) = pool.place.heap_of(stream) {
            return Ok((heap, pool.id));
        }
        let mut stream = stream;
        if stream != UNORDERED {
            self.ground.known(stream)?;
            if !self.ground.backing.ordered_by(stream) {
                stream = UNORDERED;
            }
        }
        self.ground.make_heap(pool.id, stream)
    }

    /// What a request of `bytes` to a heap of a pool needs. `OutOfMemory` for more than the device could ever give.
    pub(crate) fn request(&self, heap: &'static Heap, pool: PoolId, bytes: u64) -> Result<Request> {
        let shape = &self.ground.maps.shape;
        let charged = match shape.charged(bytes) {
            Some(charged) => charged,
            None if bytes > self.ground.config.max_alloc => return self.ground.too_large(bytes),
            None => self.ground.charged_tuned(bytes),
        };
        Ok(Request { heap, pool: pool.0, size: shape.size(charged), charged, bytes })
    }

    /// A block, whatever it takes; its offset.
    pub(crate) fn find(&self, req: &Request) -> Result<u64> {
        let ground = &self.ground;
        let mut h = match ground.enter(req.heap) {
            Some(h) => h.into(),
            None => req.heap.lock_to_allocate(ground.shared()),
        };
        req.check_pool()?;
        let mut id = 0;
        if req.bytes > ground.maps.shape.largest() {
            h.counters.totals(); // such sizes could make the sums wrap more than once
            id = ground.take_whole(&mut h, req.charged, req.size.units);
        }
        if id == 0 {
            id = h.pop(req.size).unwrap_or(0);
        }
        if id == 0 {
            return ground.alloc_missed(h, req);
        }
        let d = ground.maps.desc(id);
        let charged = ground.charge_of(d.tier_bits(), d.units(), req.bytes);
        Ok(ground.finish(h, id, d.tier_bits(), &Request { charged, ..*req }))
    }

    /// A request has failed for lack of memory, whatever was tried.
    pub fn count_out_of_memory(&self, pool: PoolId, stream: Option<u64>) {
        let served = stream.and_then(|s| self.ground.order.route(s)).unwrap_or(pool);
        self.ground.oom_count.fetch_add(1, Relaxed);
        if let Some(p) = self.ground.pool(served) {
            p.oom_count.fetch_add(1, Relaxed);
        }
    }

    /// A heap has passed its ceiling.
    pub(crate) fn settle(&self, heap: &Heap) {
        self.ground.settle(heap);
    }

    // ---- the way of a free ---------------------------------------------------------------------------

    /// Frees the block at `offset`. With a stream, the block is reusable once that stream has passed
    /// this point as well; with a size, that must be the size that was asked for.
    #[inline]
    pub fn free(&self, offset: u64, stream: Option<u64>, size: Option<u64>) -> Result<()> {
        if size.is_none() {
            match self.free_quick(offset, stream) {
                Freed::Done => return Ok(()),
                Freed::Unowned(heap) if self.free_unowned(heap, offset) => return Ok(()),
                _ => {}
            }
        }
        self.ground.free_slow(offset, stream, size)
    }

    /// Frees the block in the usual case: it is live, was used on its own stream only, `stream` is that, and
    /// the calling thread owns the heap. Never panics: the C API runs it unguarded.
    #[inline(always)]
    pub(crate) fn free_quick(&self, offset: u64, stream: Option<u64>) -> Freed {
        let maps = &self.ground.maps;
        let Some(record) = maps.record_of(offset) else { return Freed::NotQuick };
        let g = record.now();
        let Some(heap) = self.ground.heap(g.heap()) else { return Freed::NotQuick };
        if stream.is_some_and(|s| s != heap.stream()) {
            return Freed::NotQuick;
        }
        let Some(mut h) = self.ground.enter(heap) else { return Freed::Unowned(heap) };
        let Some((id, d, was)) = maps.plainly_live(record, g, offset) else { return Freed::NotQuick };
        let bytes = d.requested();
        if !h.end_life(d, was, kind::FREED) {
            return Freed::NotQuick; // another thread was first
        }
        h.counters.count_out(maps.shape.charged_of(bytes), bytes);
        h.shelve(id, d, was);
        Freed::Done
    }

    /// Goes on after `free_quick` found a heap that the calling thread does not own. `false`: nothing done.
    pub(crate) fn free_unowned(&self, heap: &'static Heap, offset: u64) -> bool {
        let maps = &self.ground.maps;
        let Some(f) = maps.find(offset).filter(|f| f.heap == heap.index) else { return false };
        if !heap.is_this_threads() {
            return heap.free_remotely(self.ground.shared(), f, offset);
        }
        // This thread allocates here, but does not own the lock.
        let mut h = self.ground.lock(heap);
        let record = maps.record_of(offset).filter(|r| r.now().heap() == heap.index);
        let Some((id, d, was)) = record.and_then(|r| maps.plainly_live(r, r.now(), offset)) else {
            return false;
        };
        let bytes = d.requested();
        if !h.end_life(d, was, kind::FREED) {
            return false;
        }
        h.counters.count_out(maps.shape.charged_of(bytes), bytes);
        h.shelve(id, d, was);
        true
    }

    // ---- everything else -----------------------------------------------------------------------------

    /// The pool of that id, if it lives.
    pub(crate) fn pool(&self, id: PoolId) -> Option<&'static Pool> {
        self.ground.pool(id)
    }

    /// Fails unless the pool and the stream exist.
    pub fn check_names(&self, pool: PoolId, stream: Option<u64>) -> Result<()> {
        self.ground.live_pool(pool)?;
        stream.map_or(Ok(()), |s| self.ground.known(s))
    }

    /// The live block that holds `offset`.
    pub fn block(&self, offset: u64) -> Result<BlockInfo> {
        self.ground.block(offset)
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
        self.ground.walk(pool, states, locate)
    }

    /// See `Ground::record_stream`.
    pub fn record_stream(&self, offset: u64, stream: u64) -> Result<()> {
        self.ground.record_stream(offset, stream)
    }

    /// What `stream` has done with the live block at `offset` so far ends here: after the free, its reuse waits
    /// for what is queued there *now*; or, given an event, for that. Later work there needs a new
    /// `record_stream`.
    pub fn end_use(&self, offset: u64, stream: u64, event: Option<u64>) -> Result<()> {
        self.ground.end_use(offset, stream, event)
    }

    /// The order of the device's streams.
    pub fn order(&self) -> &Order {
        &self.ground.order
    }

    /// The device has ended the stream. Its live blocks stay valid; what is free in its heaps goes to the next new
    /// stream, or to whoever runs short.
    pub fn stream_ended(&self, ending: Ending) {
        self.ground.stream_ended(ending);
    }

    /// A new pool; `limit` bounds what it reserves, 0 is no limit.
    pub fn pool_create(&self, limit: u64) -> Result<PoolId> {
        self.ground.pool_create(limit)
    }

    /// Ends a pool and gives its memory back. `Busy` while blocks of it live; the default pool stays.
    pub fn pool_destroy(&self, pool: PoolId) -> Result<()> {
        self.ground.pool_destroy(pool)
    }

    /// Sets a pool's limit of reserved bytes; 0: none.
    pub fn pool_set_limit(&self, pool: PoolId, bytes: u64) -> Result<()> {
        self.ground.pool_set_limit(pool, bytes)
    }

    /// Bounds `reserved` of the whole device, in bytes; 0: no bound.
    pub fn set_limit(&self, bytes: u64) {
        self.ground.limit.store(bytes, Relaxed);
    }

    /// Changes what the pond does from now on.
    pub fn tune(&self, t: Tuning) {
        self.ground.tune(t);
    }

    /// The exact account of the device, or of one of its pools.
    pub fn stats(&self, pool: Option<PoolId>) -> Result<Stats> {
        self.ground.stats(pool)
    }

    /// Live blocks of the device, which is not asked anything.
    pub fn live_blocks(&self) -> u64 {
        self.ground.live_blocks()
    }

    /// Peaks start again from the current values, of the device or of one pool.
    pub fn reset_peaks(&self, pool: Option<PoolId>) -> Result<()> {
        self.ground.reset_peaks(pool)
    }

    /// Gives unused memory back to the device: of one pool, or of all. Waits for the device first.
    pub fn empty_cache(&self, pool: Option<PoolId>) -> Result<()> {
        if let Some(p) = pool {
            self.ground.live_pool(p)?;
        }
        self.ground.trim(pool.map(|p| p.0)).map(drop)
    }

    /// A capture of `stream`, served by `pool` from now on. To be called before the device starts to record.
    pub fn capture_begin(&self, pool: PoolId, stream: u64) -> Result<CaptureId> {
        self.ground.capture_begin(pool, stream)
    }

    /// Another stream belongs to a capture that has not ended.
    pub fn capture_add(&self, capture: CaptureId, stream: u64) -> Result<()> {
        self.ground.capture_add(capture, stream)
    }

    /// The streams of the capture are ordinary ones again; the capture goes on keeping its pool.
    pub fn capture_end(&self, capture: CaptureId) -> Result<()> {
        self.ground.capture_end(capture)
    }

    /// The graph of the capture is gone, or was never made.
    pub fn capture_release(&self, capture: CaptureId) -> Result<()> {
        self.ground.capture_release(capture)
    }

    /// Notes which blocks of the pool are live now.
    pub fn checkpoint(&self, pool: PoolId) -> Result<CheckpointId> {
        self.ground.checkpoint(pool)
    }

    /// The checkpoint is not needed any more.
    pub fn checkpoint_destroy(&self, checkpoint: CheckpointId) -> Result<()> {
        self.ground.checkpoint_destroy(checkpoint)
    }

    /// Makes exactly those blocks of the pool live that were at the checkpoint. The caller promises that
    /// nobody uses the pool meanwhile. `place` says what the answer has for an offset.
    pub fn restore(
        &self,
        pool: PoolId,
        checkpoint: CheckpointId,
        place: impl Fn(u64) -> u64,
    ) -> Result<Restored> {
        self.ground.restore(pool, checkpoint, place)
    }

    /// Gives the pool's memory back to the device until `wake`; with `save`, what it holds is kept in host
    /// memory, else it is lost. Waits for the device.
    pub fn sleep(&self, pool: PoolId, save: bool) -> Result<()> {
        self.ground.sleep(pool, save)
    }

    /// Brings the pool's memory back, at the same addresses. All or nothing.
    pub fn wake(&self, pool: PoolId) -> Result<()> {
        self.ground.wake(pool)
    }

    /// Whether the pool sleeps.
    pub fn sleeps(&self, pool: PoolId) -> bool {
        self.ground.sleeps(pool)
    }

    /// Where the memory of the live block at `offset` is. `NotPermitted` while its pool sleeps.
    pub fn pieces(&self, offset: u64) -> Result<Pieces> {
        self.ground.pieces(offset)
    }

    /// The live block at `offset` is used by others until the point, which the backing has made, is passed.
    pub fn export(&self, offset: u64, point: u64) -> Result<()> {
        let fence = self.ground.order.adopt(point);
        self.ground.export(offset, fence)
    }

    /// What others still use, of all pools or of one.
    pub fn exported(&self, pool: Option<PoolId>) -> Exported {
        self.ground.exported(pool)
    }

    /// Everything goes back to the device, live blocks too. The device is idle, and nobody uses the pond.
    pub fn close(&self) -> Result<()> {
        self.ground.close()
    }

    /// After `close`, and so long after it that hardly a thread is still in a call that had begun before: the tables of
    /// the pond, nearly all of its host memory, go back to the system.
    pub fn discard(&self) {
        self.ground.discard();
    }

    /// For tests.
    #[cfg(test)]
    pub(crate) fn ground(&self) -> &Ground {
        &self.ground
    }
}
