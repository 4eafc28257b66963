//! The memory of one device, as the rest of the library sees it: addresses outside, a pond of offsets
//! inside. Which device calls back the pond is in `supply.rs`.
//!
//! Where the device maps, a pond's offsets are one window of addresses and the translation is an
//! addition. Elsewhere each segment has its own place; the first, which is usually the only one, is
//! looked up like a window.

use crate::base::error::{Code, Error, Result};
use crate::core::{
    BlockInfo, CaptureId, CheckpointId, Config, Ending, Freed, GRANULE, Got, Heap, Order, Pond, Pool, PoolId,
    Request, Restored, Stats, Waits,
};
use crate::device::{Caps, Device, EventId, StreamId};
use crate::fail;
use crate::runtime::backing::{Places, Supply};
use crate::runtime::kept::Kept;
use crate::runtime::options::Options;
use crate::runtime::rescue::{OomCallback, Rescue};
use crate::runtime::scope::Scopes;
use crate::runtime::unpooled::Unpooled;
use crate::runtime::usage::Usage;
use settings::Settings;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

mod settings;
mod sharing;

/// [B] no device has more: a plugin that claims so names no size.
const MOST_BELIEVED: u64 = 1 << 50;
/// [B] what such a device is taken for.
const UNKNOWN_SIZE: u64 = 8 << 40;
/// [B] segments of a device that maps but must not: its own sizes are made for mapping.
const SEGMENT: u64 = 64 << 20;

/// The memory of one device. All calls may come from any thread.
pub struct Memory {
    how: How,
    rescue: Arc<Rescue>,
    scopes: Arc<Scopes>,
    /// [`CLOSED`] and [`KEPT`]; 0 in the usual case.
    marks: AtomicU8,
    kept: Arc<Kept>,
    settings: Settings,
}

/// The device has ended.
const CLOSED: u8 = 1;
/// There are frees to be done.
const KEPT: u8 = 2;

enum How {
    Pooled(Box<Pooled>),
    Unpooled(Box<Unpooled>),
}

/// A pond, and what lies around it.
#[cfg_attr(not(feature = "capi"), allow(dead_code, reason = "the C API's way of a request"))]
pub(crate) struct Pooled {
    pond: Pond,
    device: Arc<dyn Device>,
    supply: Arc<Supply>,
    places: Arc<Places>,
    maps: bool,
    rescue: Arc<Rescue>,
    kept: Arc<Kept>,
    closed: AtomicBool,
}

/// How a pond over `device` is.
fn config_of(device: &dyn Device, expandable: bool) -> Result<Config> {
    let sizes = device.sizes();
    let mut config = Config {
        min_chunk: sizes.min_chunk.max(1),
        max_chunk: sizes.max_chunk,
        max_alloc: sizes.max_alloc,
        padding: sizes.padding,
        init_alloc: sizes.init_alloc,
        realloc: sizes.realloc,
        mapping: device.caps().contains(Caps::MAPPING) && device.granule() == GRANULE,
        numbers: 0,
        growing: device.segments_grow(),
        window: Pond::WINDOW,
        most_pieces: device.most_mappings(),
    };
    if config.mapping && !expandable {
        config.mapping = false;
        config.init_alloc = config.init_alloc.min(SEGMENT);
        config.realloc = config.realloc.min(SEGMENT);
        // A larger block is not kept when it is freed: it would lock up much of the device.
        config.max_chunk = config.max_chunk.min(SEGMENT.max(config.max_alloc / 4));
    }
    if config.mapping {
        // Whole granules only; what the device has beyond the last one cannot be mapped.
        config.max_alloc =
            config.max_alloc.min(device.memory_info()?.total) / device.granule() * device.granule();
        config.numbers = device.granule_numbers()?;
    } else {
        if config.max_alloc > MOST_BELIEVED {
            config.max_alloc = UNKNOWN_SIZE;
        }
    }
    Ok(config)
}

/// Reserves the addresses of a pond: as many as it would like, else fewer.
fn reserve(device: &dyn Device, config: &mut Config, places: &Places) -> Result<()> {
    loop {
        let (real, alias) = Pond::span(config)?;
        match device.map_window(real + alias) {
            Ok(window) => {
                places.set_window(window, real + alias);
                return Ok(());
            }
            Err(e) if config.window <= 1 => return Err(e),
            Err(_) => config.window /= 2,
        }
    }
}

#[cold]
#[inline(never)]
fn ended<T>() -> Result<T> {
    Err(Error::new(Code::NotInitialized, "the device was finalised"))
}

#[cold]
#[inline(never)]
fn unknown<T>(addr: u64) -> Result<T> {
    fail!(Code::UnknownPointer, "{addr:#x} is not a block of this device")
}

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
        expandable: bool,
        rescue: &Arc<Rescue>,
        kept: &Arc<Kept>,
    ) -> Result<How> {
        let config = config_of(&**device, expandable)?;
        if Pond::span(&config).is_err() {
            return Ok(How::Unpooled(Box::new(Unpooled::new(device.clone(), usage.clone(), false)?)));
        }
        let pooled = match Pooled::new(device.clone(), usage.clone(), config, rescue.clone(), kept.clone()) {
            // A device that says now that it cannot map after all gives segments.
            Err(_) if config.mapping && !device.caps().contains(Caps::MAPPING) => {
                let config = config_of(&**device, expandable)?;
                Pooled::new(device.clone(), usage.clone(), config, rescue.clone(), kept.clone())?
            }
            other => other?,
        };
        Ok(How::Pooled(Box::new(pooled)))
    }

    #[inline]
    fn open(&self) -> Result<&How> {
        // Relaxed: calls that race with the end of the device may come before it.
        if self.marks.load(Relaxed) == 0 { Ok(&self.how) } else { self.open_marked() }
    }

    #[cold]
    #[inline(never)]
    fn open_marked(&self) -> Result<&How> {
        if self.is_closed() {
            return ended();
        }
        self.marks.fetch_and(!KEPT, Relaxed); // set again where any is left
        self.free_kept();
        Ok(&self.how)
    }

    fn is_closed(&self) -> bool {
        self.marks.load(Relaxed) & CLOSED != 0
    }

    /// The pool that a request to `pool` is for: of the thread's scope, if it names the default pool.
    #[inline]
    fn route(&self, pool: PoolId) -> PoolId {
        if pool == PoolId::DEFAULT && self.scopes.any() { self.scopes.route() } else { pool }
    }

    /// From now on requests of this thread to the default pool come from `pool`, until
    /// [`scope_end`](Self::scope_end). Scopes nest; a scope of the default pool ends the effect of outer ones.
    /// A scope that a thread leaves open ends with the thread.
    pub fn scope_begin(&self, pool: PoolId) -> Result<()> {
        self.scopes.begin(pool, || match self.open()? {
            How::Pooled(p) => p.pond.check_names(pool, None),
            How::Unpooled(u) => u.pool_stats(pool).map(drop),
        })
    }

    /// Ends this thread's innermost scope, which must be one of `pool`; else `NotPermitted`.
    pub fn scope_end(&self, pool: PoolId) -> Result<()> {
        self.scopes.end(pool)
    }

    /// Whether any thread has a scope open here: then the default pool is not the same for all threads.
    #[cfg_attr(not(feature = "capi"), allow(dead_code, reason = "the C API's way of a request"))]
    pub(crate) fn has_scopes(&self) -> bool {
        self.scopes.any()
    }

    /// Memory for work queued on `stream` from now on. 0 bytes give address 0.
    #[inline]
    pub fn alloc(&self, pool: PoolId, stream: StreamId, bytes: u64) -> Result<u64> {
        self.alloc_for(pool, Some(stream), bytes)
    }

    /// Memory that every stream and the host may use at once. 0 bytes give address 0.
    pub fn alloc_unordered(&self, pool: PoolId, bytes: u64) -> Result<u64> {
        self.alloc_for(pool, None, bytes)
    }

    fn alloc_for(&self, pool: PoolId, stream: Option<StreamId>, bytes: u64) -> Result<u64> {
        let pool = self.route(pool);
        let attempt = || self.try_alloc(pool, stream, bytes);
        let got = attempt().or_else(|e| self.rescue.retry(e, bytes, attempt));
        got.inspect_err(|e| self.count_failure(pool, stream, e))
    }

    /// A request has failed for good, whatever was tried.
    fn count_failure(&self, pool: PoolId, stream: Option<StreamId>, e: &Error) {
        if e.code() == Code::OutOfMemory {
            match &self.how {
                How::Pooled(p) => p.pond.count_out_of_memory(pool, stream),
                How::Unpooled(u) => u.count_out_of_memory(pool),
            }
        }
    }

    #[inline]
    fn try_alloc(&self, pool: PoolId, stream: Option<StreamId>, bytes: u64) -> Result<u64> {
        match (self.open()?, stream) {
            (How::Pooled(p), _) if bytes == 0 => p.nothing(pool, stream),
            (How::Pooled(p), Some(s)) => p.places.address(p.pond.alloc(pool, s, bytes)?),
            (How::Pooled(p), None) => p.places.address(p.pond.alloc_unordered(pool, bytes)?),
            (How::Unpooled(u), Some(s)) => u.alloc(pool, s, bytes),
            (How::Unpooled(u), None) => u.alloc_unordered(pool, bytes),
        }
    }

    /// Ends the block that starts at `addr`; work queued so far may still use it. With a stream, reuse
    /// also waits for what is queued there now. With `size`, that must be the size of the request. 0 is
    /// no block and does nothing.
    #[inline]
    pub fn free(&self, addr: u64, stream: Option<StreamId>, size: Option<u64>) -> Result<()> {
        match self.open()? {
            How::Pooled(p) => match p.places.offset(addr) {
                Some(offset) => p.pond.free(offset, stream, size),
                None if addr == 0 => Ok(()),
                None => unknown(addr),
            },
            How::Unpooled(u) => u.free(addr, stream, size),
        }
    }

    /// [`free`](Self::free) for who can neither be told that it failed nor come again: where the block cannot be freed
    /// here and now, that is done by a later call.
    #[cfg_attr(not(feature = "capi"), expect(dead_code, reason = "only C has such callers"))]
    pub(crate) fn free_for_good(&self, addr: u64) {
        self.kept.free(addr, |a| self.free(a, None, None));
        if self.kept.any() {
            self.marks.fetch_or(KEPT, Relaxed);
        }
    }

    /// Does the frees that could not be done where they came, as far as they can be here.
    pub(crate) fn free_kept(&self) {
        if !self.kept.any() {
            return;
        }
        self.marks.fetch_and(!KEPT, Relaxed); // the frees come by here
        if !self.kept.settle(|a| self.free(a, None, None)) {
            self.marks.fetch_or(KEPT, Relaxed);
        }
    }

    /// The block is also used by `stream`: its reuse waits for what is queued there at the free.
    pub fn record_stream(&self, addr: u64, stream: StreamId) -> Result<()> {
        match self.open()? {
            How::Pooled(p) => match p.places.offset(addr) {
                Some(offset) => p.pond.record_stream(offset, stream),
                None => unknown(addr),
            },
            How::Unpooled(u) => u.record_stream(addr, stream),
        }
    }

    /// What `stream` has done with the block so far ends here, or, given an event of the caller, there: after
    /// the free, reuse waits for that point and not for the free. Without effect on a block of `stream` itself
    /// and on one without a stream; where the device is not pooled, as `record_stream`.
    pub fn record_end(&self, addr: u64, stream: StreamId, event: Option<EventId>) -> Result<()> {
        match self.open()? {
            How::Pooled(p) => match p.places.offset(addr) {
                Some(offset) => p.pond.end_use(offset, stream, event),
                None => unknown(addr),
            },
            How::Unpooled(u) => u.record_stream(addr, stream),
        }
    }

    /// Whether a freed block, or one whose use has ended there, still waits for this event of the caller.
    pub fn holds_event(&self, event: EventId) -> Result<bool> {
        self.open()?;
        self.supply().holds_event(event)
    }

    /// Fails for an event that [`keep_event`](Self::keep_event) has kept: for the caller it is destroyed.
    pub(crate) fn check_event(&self, event: EventId) -> Result<()> {
        self.supply().check_event(event)
    }

    /// To be called before the device ends an event; `true`: it must not, it is ended here later.
    pub(crate) fn keep_event(&self, event: EventId) -> Result<bool> {
        self.open()?;
        self.supply().keep_event(event)
    }

    /// From now on all requests of `stream`, whatever pool they name, come from `pool`, until
    /// [`capture_end`](Self::capture_end); see the core's `capture.rs`.
    pub fn capture_begin(&self, pool: PoolId, stream: StreamId) -> Result<CaptureId> {
        self.pond()?.capture_begin(pool, stream)
    }

    /// One more stream belongs to the capture.
    pub fn capture_add(&self, capture: CaptureId, stream: StreamId) -> Result<()> {
        self.pond()?.capture_add(capture, stream)
    }

    /// The capture's streams are ordinary ones again; its pool is kept as it is.
    pub fn capture_end(&self, capture: CaptureId) -> Result<()> {
        self.pond()?.capture_end(capture)
    }

    /// The graph of the capture is gone; ends the capture first if it has not ended.
    pub fn capture_release(&self, capture: CaptureId) -> Result<()> {
        self.pond()?.capture_release(capture)
    }

    /// Gives the pool's physical memory back to the device; its addresses and blocks stay. With `save`, what it
    /// holds is kept in host memory.
    pub fn pool_sleep(&self, pool: PoolId, save: bool) -> Result<()> {
        self.pond()?.sleep(pool, save)
    }

    /// Brings the memory of a sleeping pool back at the same addresses. All or nothing.
    pub fn pool_wake(&self, pool: PoolId) -> Result<()> {
        self.pond()?.wake(pool)
    }

    /// Whether the pool sleeps.
    pub fn pool_sleeps(&self, pool: PoolId) -> bool {
        matches!(&self.how, How::Pooled(p) if p.pond.sleeps(pool))
    }

    /// Notes which blocks of the pool are live now.
    pub fn checkpoint(&self, pool: PoolId) -> Result<CheckpointId> {
        self.pond()?.checkpoint(pool)
    }

    /// The checkpoint is not needed any more.
    pub fn checkpoint_destroy(&self, checkpoint: CheckpointId) -> Result<()> {
        self.pond()?.checkpoint_destroy(checkpoint)
    }

    /// Makes exactly those blocks of the pool live that were at the checkpoint, at the same addresses. All or
    /// nothing. The answer has addresses.
    pub fn restore(&self, pool: PoolId, checkpoint: CheckpointId) -> Result<Restored> {
        let How::Pooled(p) = self.open()? else { return self.pond().and(Ok(Restored::default())) };
        // Every block that is or was live has an address.
        p.pond.restore(pool, checkpoint, |offset| p.places.address(offset).unwrap_or(0))
    }

    fn pond(&self) -> Result<&Pond> {
        Ok(&self.pooled()?.pond)
    }

    fn pooled(&self) -> Result<&Pooled> {
        match self.open()? {
            How::Pooled(p) => Ok(p),
            How::Unpooled(_) => Err(Error::new(Code::Unsupported, "this device is not pooled")),
        }
    }

    /// The live block that holds `addr`.
    pub fn block(&self, addr: u64) -> Result<BlockInfo> {
        match self.open()? {
            How::Pooled(p) => match p.places.offset(addr) {
                Some(offset) => {
                    let mut b = p.pond.block(offset)?;
                    b.base = p.places.address(b.base)?;
                    Ok(b)
                }
                None => unknown(addr),
            },
            How::Unpooled(u) => u.block(addr),
        }
    }

    /// Fails unless `addr .. addr + bytes` lies in one live block, as it was asked for.
    pub fn check_range(&self, addr: u64, bytes: u64) -> Result<()> {
        let b = match self.open()? {
            How::Pooled(p) => {
                let b = self.block(addr)?;
                if p.pond.sleeps(b.pool) {
                    fail!(Code::NotPermitted, "the pool of the block at {:#x} sleeps", b.base);
                }
                b
            }
            How::Unpooled(u) => return u.check_range(addr, bytes),
        };
        let room = b.requested.saturating_sub(addr - b.base);
        if bytes > room {
            fail!(
                Code::OutOfRange,
                "{bytes} bytes at {addr:#x} pass the end of the block by {}",
                bytes - room
            );
        }
        Ok(())
    }

    /// The pooled memory and one of its pools, for callers that look a pool up once and use it often.
    #[cfg_attr(not(feature = "capi"), allow(dead_code, reason = "the C API's way of a request"))]
    pub(crate) fn lane(&self, pool: PoolId) -> Option<(&Pooled, &'static Pool)> {
        match &self.how {
            How::Pooled(p) => Some((p, p.pond.pool(pool)?)),
            How::Unpooled(_) => None,
        }
    }

    /// A new pool whose reserved bytes never pass `limit` (0: none).
    pub fn pool_create(&self, limit: u64) -> Result<PoolId> {
        match self.open()? {
            How::Pooled(p) => p.pond.pool_create(limit),
            How::Unpooled(u) => u.pool_create(limit),
        }
    }

    /// Ends a pool. `Busy` while blocks of it live, and while a thread is in a scope of it.
    pub fn pool_destroy(&self, pool: PoolId) -> Result<()> {
        let how = self.open()?;
        self.scopes.unless_used(pool, || match how {
            How::Pooled(p) => p.pond.pool_destroy(pool),
            How::Unpooled(u) => u.pool_destroy(pool),
        })
    }

    /// Bounds what the pool reserves from now on; 0 is no bound.
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

    /// The peaks of a pool start again.
    pub fn pool_reset_peaks(&self, pool: PoolId) -> Result<()> {
        match self.open()? {
            How::Pooled(p) => p.pond.reset_peaks(Some(pool)),
            How::Unpooled(u) => u.pool_reset_peaks(pool),
        }
    }

    /// Unused memory of one pool, or of all, goes back to the device. Waits for the device first.
    pub fn empty_cache(&self, pool: Option<PoolId>) -> Result<()> {
        match self.open()? {
            How::Pooled(p) => p.pond.empty_cache(pool),
            How::Unpooled(u) => u.empty_cache(pool),
        }
    }

    /// The account of the device.
    pub fn stats(&self) -> Stats {
        self.free_kept();
        match &self.how {
            How::Pooled(p) => p.stats(None).unwrap_or_default(),
            How::Unpooled(u) => u.stats(),
        }
    }

    /// The peaks of the device start again.
    pub fn reset_peaks(&self) {
        match &self.how {
            How::Pooled(p) => {
                let _ = p.pond.reset_peaks(None); // cannot fail without a pool
            }
            How::Unpooled(u) => u.reset_peaks(),
        }
    }

    /// From now on a request that finds no memory calls `callback` with its bytes, on its own thread and
    /// with no lock held, after everything else was tried. When a callback returns true, for having freed
    /// something, the request is tried once more. Callbacks are called oldest first; they may allocate and
    /// free, and a request that fails inside one calls none. A panic counts as false. Gives the number to
    /// remove it with. Callbacks end with the device.
    pub fn add_oom_callback(&self, callback: impl Fn(u64) -> bool + Send + Sync + 'static) -> Result<u64> {
        let callback: Arc<OomCallback> = Arc::new(callback);
        self.rescue.add(callback)
    }

    /// Removes a callback; waits for threads that are in it, except where it is called from within an
    /// out-of-memory callback. `InvalidArgument` for a number that is none.
    pub fn remove_oom_callback(&self, id: u64) -> Result<()> {
        self.rescue.remove(id)
    }

    /// To be called when the device has made `stream`.
    pub fn stream_created(&self, stream: StreamId) {
        self.supply().add_stream(stream);
    }

    /// The default stream, and those that the device has made and that have not ended.
    pub(crate) fn streams(&self) -> Vec<StreamId> {
        self.supply().made_here()
    }

    /// Fails while the stream is captured: it cannot end then.
    pub fn check_stream_end(&self, stream: StreamId) -> Result<()> {
        self.order().check_end(stream)
    }

    /// To be called before the device ends `stream`. What is queued on it goes on counting for the memory that it uses.
    /// To be followed by [`stream_ended`](Self::stream_ended), or by [`stream_not_ended`](Self::stream_not_ended).
    pub(crate) fn stream_ending(&self, stream: StreamId) -> Ending {
        self.order().ending(stream)
    }

    /// To be called when the device has ended the stream.
    pub(crate) fn stream_ended(&self, ending: Ending) {
        self.supply().drop_stream(ending.id());
        match &self.how {
            How::Pooled(p) => p.pond.stream_ended(ending),
            How::Unpooled(u) => u.order().ended(ending),
        }
    }

    /// To be called when the device would not end the stream.
    pub(crate) fn stream_not_ended(&self, ending: Ending) {
        self.order().not_ended(ending);
    }

    /// A stream of the device with that number uses memory of this one, as far as `waits` says: blocks without a stream
    /// that are freed from now on wait for that, too.
    pub(crate) fn visited(&self, device: u32, waits: Waits) {
        if !waits.is_over() {
            self.order().visit(self.supply().visit(device, waits));
        }
    }

    /// The order of the device's streams.
    pub(crate) fn order(&self) -> &Order {
        match &self.how {
            How::Pooled(p) => p.pond.order(),
            How::Unpooled(u) => u.order(),
        }
    }

    fn supply(&self) -> &Supply {
        match &self.how {
            How::Pooled(p) => &p.supply,
            How::Unpooled(u) => u.supply(),
        }
    }

    /// Blocks that are live. Makes no call on the device.
    pub fn live_blocks(&self) -> u64 {
        match &self.how {
            How::Pooled(p) if !self.is_closed() => p.pond.live_blocks(),
            How::Pooled(_) => 0,
            How::Unpooled(u) => u.live_blocks(),
        }
    }

    /// Gives everything back to the device; every later call gets `NotInitialized`. Idempotent.
    pub fn close(&self) -> Result<()> {
        if self.marks.fetch_or(CLOSED, Relaxed) & CLOSED != 0 {
            return Ok(());
        }
        self.rescue.close();
        self.supply().begin_close();
        match &self.how {
            How::Pooled(p) => {
                p.closed.store(true, Relaxed);
                p.places.end();
                let closed = p.pond.close();
                p.supply.segments.close();
                closed.and(p.supply.close())
            }
            How::Unpooled(u) => u.close(),
        }
    }

    /// After `close`, when no thread is still in a call that had begun before: what is left takes a few KiB.
    pub(crate) fn discard(&self) {
        if let How::Pooled(p) = &self.how {
            p.pond.discard();
        }
    }
}

#[cfg_attr(not(feature = "capi"), allow(dead_code, reason = "the C API's way of a request"))]
impl Pooled {
    fn new(
        device: Arc<dyn Device>,
        usage: Arc<Usage>,
        mut config: Config,
        rescue: Arc<Rescue>,
        kept: Arc<Kept>,
    ) -> Result<Pooled> {
        let places = Arc::new(Places::default());
        if config.mapping {
            reserve(&*device, &mut config, &places)?;
        }
        let maps = config.mapping;
        let supply = Arc::new(Supply::new(device.clone(), usage, places.clone(), maps));
        match Pond::new(config, supply.clone()) {
            Ok(pond) => {
                let closed = AtomicBool::new(false);
                Ok(Pooled { pond, device, supply, places, maps, rescue, kept, closed })
            }
            Err(e) => {
                if maps {
                    device.map_close()?;
                }
                Err(e)
            }
        }
    }

    /// `Memory::alloc` with the pool at hand, in the usual case: see [`Pond::quick`]. It gives an address, 0 if the
    /// device has just ended. After the end of the device no pool has a heap. Never panics.
    #[inline(always)]
    pub(crate) fn quick(&self, pool: &Pool, stream: StreamId, bytes: u64) -> Got {
        if bytes == 0 {
            return Got::NoHeap;
        }
        self.pond.quick(pool, stream, bytes, &*self.places)
    }

    /// What `quick` asks for now and then.
    pub(crate) fn settle(&self, heap: &'static Heap) {
        self.pond.settle(heap);
    }

    /// What a request needs that `quick` could not serve; `bytes` is not 0.
    pub(crate) fn request(&self, heap: &'static Heap, bytes: u64) -> Result<Request> {
        self.pond.request(heap, bytes)
    }

    /// What comes next: see [`Pond::place`]. It gives an address, as `quick` does.
    pub(crate) fn place(&self, req: &Request) -> Option<Got> {
        self.pond.place(req, &*self.places)
    }

    /// A block where `quick` and `place` gave none, which may have found what the request needs.
    pub(crate) fn find(
        &self,
        pool: &Pool,
        stream: StreamId,
        bytes: u64,
        req: Option<Request>,
    ) -> Result<u64> {
        if self.kept.any() {
            self.kept.settle(|a| self.free_plain(a));
        }
        let attempt = |req: Option<Request>| {
            if self.closed.load(Relaxed) {
                return ended();
            }
            let req = match req {
                Some(req) => req,
                None => self.pond.request(self.pond.heap(pool, stream)?, bytes)?,
            };
            self.places.address(self.pond.find(&req)?)
        };
        let done = attempt(req).or_else(|e| self.rescue.retry(e, bytes, || attempt(None)));
        done.inspect_err(|e| {
            if e.code() == Code::OutOfMemory {
                self.pond.count_out_of_memory(pool.id(), Some(stream));
            }
        })
    }

    fn check_open(&self) -> Result<()> {
        if self.closed.load(Relaxed) { ended() } else { Ok(()) }
    }

    /// `Memory::free` with a stream, in the usual case: see [`Pond::free_quick`]. After the end of the device no
    /// address is near. Never panics.
    #[inline(always)]
    pub(crate) fn free_quick(&self, addr: u64, stream: StreamId) -> Freed {
        match self.places.near(addr) {
            Some(offset) => self.pond.free_quick(offset, Some(stream)),
            None => Freed::NotQuick,
        }
    }

    /// `Memory::free` with a stream, after `free_quick` found that it is not the usual case.
    pub(crate) fn free(&self, addr: u64, stream: StreamId, found: Freed) -> Result<()> {
        self.check_open()?;
        match self.places.offset(addr) {
            Some(offset) => match found {
                Freed::Unowned(heap) if self.pond.free_unowned(heap, offset) => Ok(()),
                _ => self.pond.free(offset, Some(stream), None),
            },
            None if addr == 0 => Ok(()),
            None => unknown(addr),
        }
    }

    /// `Memory::free` with an address only.
    fn free_plain(&self, addr: u64) -> Result<()> {
        self.check_open()?;
        match self.places.offset(addr) {
            Some(offset) => self.pond.free(offset, None, None),
            None => unknown(addr),
        }
    }

    /// A request of 0 bytes: no block, but its arguments must be right.
    fn nothing(&self, pool: PoolId, stream: Option<StreamId>) -> Result<u64> {
        self.pond.check_names(pool, stream)?;
        Ok(0)
    }

    fn stats(&self, pool: Option<PoolId>) -> Result<Stats> {
        let mut s = self.pond.stats(pool)?;
        s.driver_calls = self.supply.calls();
        Ok(s)
    }
}
