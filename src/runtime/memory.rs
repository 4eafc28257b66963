//! The memory of one device, as the rest of the library sees it: addresses outside, a pond of offsets
//! inside. Which device calls back the pond is in `supply.rs`.
//!
//! Where the device maps, a pond's offsets are one window of addresses and the translation is an
//! addition. Elsewhere each segment has its own place; the first, which is usually the only one, is
//! looked up like a window.

use crate::base::error::{Code, Error, Result};
use crate::core::{BlockInfo, CaptureId, CheckpointId, Config, Pond, PoolId, Restored, Stats};
#[cfg(feature = "capi")]
use crate::core::{Freed, Got, Heap, Pool};
use crate::device::{Caps, Device, EventId, StreamId};
use crate::fail;
use crate::runtime::options::Options;
use crate::runtime::rescue::{OomCallback, Rescue};
use crate::runtime::scope::Scopes;
use crate::runtime::supply::{Places, Supply};
use crate::runtime::unpooled::Unpooled;
use settings::Settings;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

mod settings;
mod sharing;

/// [B] the most that a pond over segments has room for, and more than any device has.
const MOST_IN_SEGMENTS: u64 = 8 << 40;
/// [B] segments of a device that maps but must not: its own sizes are made for mapping.
const SEGMENT: u64 = 64 << 20;

/// The memory of one device. All calls may come from any thread.
pub struct Memory {
    how: How,
    rescue: Arc<Rescue>,
    scopes: Arc<Scopes>,
    closed: AtomicBool,
    settings: Settings,
}

enum How {
    Pooled(Box<Pooled>),
    Unpooled(Box<Unpooled>),
}

/// A pond, and what lies around it.
pub(crate) struct Pooled {
    pond: Pond,
    device: Arc<dyn Device>,
    supply: Arc<Supply>,
    places: Arc<Places>,
    maps: bool,
    #[cfg_attr(
        not(feature = "capi"),
        expect(dead_code, reason = "only `alloc` with a pool at hand reads it")
    )]
    rescue: Arc<Rescue>,
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
        mapping: device.caps().contains(Caps::MAPPING) && device.granule() == Pond::GRANULE,
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
        // Plugins may claim any number.
        config.max_alloc = config.max_alloc.min(MOST_IN_SEGMENTS);
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
fn stranger<T>(addr: u64) -> Result<T> {
    fail!(Code::UnknownPointer, "{addr:#x} is not a block of this device")
}

impl Memory {
    /// The memory of `device`, empty, with the built-in options. A device whose sizes cannot be pooled is served
    /// without pooling.
    pub fn new(device: Arc<dyn Device>) -> Result<Memory> {
        Memory::with_options(device, Options::default())
    }

    /// A pond over the device, where its sizes allow.
    fn pool(device: &Arc<dyn Device>, expandable: bool, rescue: &Arc<Rescue>) -> Result<How> {
        let config = config_of(&**device, expandable)?;
        if Pond::span(&config).is_err() {
            return Ok(How::Unpooled(Box::new(Unpooled::new(device.clone(), false)?)));
        }
        let pooled = match Pooled::new(device.clone(), config, rescue.clone()) {
            // A device that says now that it cannot map after all gives segments.
            Err(_) if config.mapping && !device.caps().contains(Caps::MAPPING) => {
                Pooled::new(device.clone(), config_of(&**device, expandable)?, rescue.clone())?
            }
            other => other?,
        };
        Ok(How::Pooled(Box::new(pooled)))
    }

    #[inline]
    fn open(&self) -> Result<&How> {
        // Relaxed: calls that race with the end of the device may come before it.
        if self.closed.load(Relaxed) { ended() } else { Ok(&self.how) }
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
    #[cfg(feature = "capi")]
    pub(crate) fn has_scopes(&self) -> bool {
        self.scopes.any()
    }

    /// Memory for work queued on `stream` from now on. 0 bytes give address 0.
    #[inline]
    pub fn alloc(&self, pool: PoolId, stream: StreamId, bytes: u64) -> Result<u64> {
        let pool = self.route(pool);
        match self.try_alloc(pool, stream, bytes) {
            Ok(addr) => Ok(addr),
            Err(e) => self.rescue.retry(e, bytes, || self.try_alloc(pool, stream, bytes)),
        }
    }

    #[inline]
    fn try_alloc(&self, pool: PoolId, stream: StreamId, bytes: u64) -> Result<u64> {
        match self.open()? {
            How::Pooled(p) if bytes != 0 => p.places.address(p.pond.alloc(pool, stream, bytes)?),
            How::Pooled(p) => p.nothing(pool, Some(stream)),
            How::Unpooled(u) => u.alloc(pool, stream, bytes),
        }
    }

    /// Memory that every stream and the host may use at once. 0 bytes give address 0.
    pub fn alloc_unordered(&self, pool: PoolId, bytes: u64) -> Result<u64> {
        let pool = self.route(pool);
        match self.try_alloc_unordered(pool, bytes) {
            Ok(addr) => Ok(addr),
            Err(e) => self.rescue.retry(e, bytes, || self.try_alloc_unordered(pool, bytes)),
        }
    }

    fn try_alloc_unordered(&self, pool: PoolId, bytes: u64) -> Result<u64> {
        match self.open()? {
            How::Pooled(p) if bytes != 0 => p.places.address(p.pond.alloc_unordered(pool, bytes)?),
            How::Pooled(p) => p.nothing(pool, None),
            How::Unpooled(u) => u.alloc_unordered(pool, bytes),
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
                None => stranger(addr),
            },
            How::Unpooled(u) => u.free(addr, stream, size),
        }
    }

    /// The block is also used by `stream`: its reuse waits for what is queued there at the free.
    pub fn record_stream(&self, addr: u64, stream: StreamId) -> Result<()> {
        match self.open()? {
            How::Pooled(p) => match p.places.offset(addr) {
                Some(offset) => p.pond.record_stream(offset, stream),
                None => stranger(addr),
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
                None => stranger(addr),
            },
            How::Unpooled(u) => u.record_stream(addr, stream),
        }
    }

    /// Whether a freed block, or one whose use has ended there, still waits for this event of the caller.
    pub fn holds_event(&self, event: EventId) -> Result<bool> {
        match self.open()? {
            How::Pooled(p) => p.supply.holds_event(event),
            How::Unpooled(_) => Ok(false),
        }
    }

    /// Fails for an event that [`keep_event`](Self::keep_event) has kept: for the caller it is destroyed.
    pub(crate) fn check_event(&self, event: EventId) -> Result<()> {
        match &self.how {
            How::Pooled(p) => p.supply.check_event(event),
            How::Unpooled(_) => Ok(()),
        }
    }

    /// To be called before the device ends an event; `true`: it must not, it is ended here later.
    pub(crate) fn keep_event(&self, event: EventId) -> Result<bool> {
        match self.open()? {
            How::Pooled(p) => p.supply.keep_event(event),
            How::Unpooled(_) => Ok(false),
        }
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
                None => stranger(addr),
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
    #[cfg(feature = "capi")]
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
        if let How::Pooled(p) = &self.how {
            p.supply.add_stream(stream);
        }
    }

    /// Fails while the stream is captured: it cannot end then.
    pub fn check_stream_end(&self, stream: StreamId) -> Result<()> {
        match &self.how {
            How::Pooled(p) => p.pond.check_stream_end(stream),
            How::Unpooled(_) => Ok(()),
        }
    }

    /// To be called before the device ends `stream`.
    pub fn stream_destroyed(&self, stream: StreamId) {
        match &self.how {
            How::Pooled(p) => {
                p.pond.stream_destroyed(stream);
                p.supply.drop_stream(stream);
            }
            How::Unpooled(u) => u.stream_destroyed(stream),
        }
    }

    /// Blocks that are live.
    pub fn live_blocks(&self) -> u64 {
        match &self.how {
            How::Pooled(p) if !self.closed.load(Relaxed) => p.pond.live_blocks(),
            How::Pooled(_) => 0,
            How::Unpooled(u) => u.live_blocks(),
        }
    }

    /// Gives everything back to the device; every later call gets `NotInitialized`. Idempotent.
    pub fn close(&self) -> Result<()> {
        if self.closed.swap(true, Relaxed) {
            return Ok(());
        }
        self.rescue.close();
        match &self.how {
            How::Pooled(p) => {
                p.closed.store(true, Relaxed);
                p.places.end();
                let closed = p.pond.close();
                // No request is just growing into what is closed here.
                let given = p.pond.quiet(|| {
                    p.supply.segments.close();
                    p.supply.close()
                });
                closed.and(given)
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

impl Pooled {
    fn new(device: Arc<dyn Device>, mut config: Config, rescue: Arc<Rescue>) -> Result<Pooled> {
        let places = Arc::new(Places::default());
        if config.mapping {
            reserve(&*device, &mut config, &places)?;
        }
        let maps = config.mapping;
        let supply = Arc::new(Supply::new(device.clone(), places.clone(), maps));
        match Pond::new(config, Box::new(supply.clone())) {
            Ok(pond) => {
                Ok(Pooled { pond, device, supply, places, maps, rescue, closed: AtomicBool::new(false) })
            }
            Err(e) => {
                if maps {
                    device.map_close()?;
                }
                Err(e)
            }
        }
    }

    /// `Memory::alloc` with the pool at hand, in the usual case: see [`Pond::alloc_quick`]. It gives an address.
    /// After the end of the device no pool has a heap. Never panics.
    #[cfg(feature = "capi")]
    #[inline(always)]
    pub(crate) fn alloc_quick(&self, pool: &Pool, stream: StreamId, bytes: u64) -> Got {
        if bytes == 0 {
            return Got::No;
        }
        self.pond.alloc_quick(pool, stream, bytes, &*self.places)
    }

    /// What comes next when `alloc_quick` has missed: see [`Pond::alloc_placed`].
    #[cfg(feature = "capi")]
    pub(crate) fn alloc_placed(&self, heap: &'static Heap, bytes: u64) -> Got {
        self.pond.alloc_placed(heap, bytes, &*self.places)
    }

    /// What `alloc_quick` asks for now and then.
    #[cfg(feature = "capi")]
    pub(crate) fn settle(&self, heap: &'static Heap) {
        self.pond.settle(heap);
    }

    /// `Memory::alloc` with the pool at hand, after `alloc_quick` found that it is not the usual case; `bytes` is
    /// not 0.
    #[cfg(feature = "capi")]
    pub(crate) fn alloc(&self, pool: &Pool, stream: StreamId, bytes: u64, found: Got) -> Result<u64> {
        let first = match found {
            Got::Missed(heap) if !self.closed.load(Relaxed) => self.pond.alloc_in(heap, bytes),
            _ => self.second(pool, stream, bytes),
        };
        match first {
            Ok(offset) => self.places.address(offset),
            Err(e) => self.rescue.retry(e, bytes, || self.places.address(self.second(pool, stream, bytes)?)),
        }
    }

    #[cfg(feature = "capi")]
    fn second(&self, pool: &Pool, stream: StreamId, bytes: u64) -> Result<u64> {
        if self.closed.load(Relaxed) {
            return ended();
        }
        self.pond.alloc_from(pool, stream, bytes)
    }

    /// `Memory::free` with a stream, in the usual case: see [`Pond::free_quick`]. After the end of the device no
    /// address is near. Never panics.
    #[cfg(feature = "capi")]
    #[inline(always)]
    pub(crate) fn free_quick(&self, addr: u64, stream: StreamId) -> Freed {
        match self.places.near(addr) {
            Some(offset) => self.pond.free_quick(offset, Some(stream)),
            None => Freed::No,
        }
    }

    /// `Memory::free` with a stream, after `free_quick` found that it is not the usual case.
    #[cfg(feature = "capi")]
    pub(crate) fn free(&self, addr: u64, stream: StreamId, found: Freed) -> Result<()> {
        if self.closed.load(Relaxed) {
            return ended();
        }
        match self.places.offset(addr) {
            Some(offset) => match found {
                Freed::Unowned(heap) if self.pond.free_unowned(heap, offset) => Ok(()),
                _ => self.pond.free(offset, Some(stream), None),
            },
            None if addr == 0 => Ok(()),
            None => stranger(addr),
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
