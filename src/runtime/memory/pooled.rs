//! A pond over a device: allocations and frees are translated from addresses to offsets and back.

use super::{ended, unknown};
use crate::base::error::{Code, Result};
use crate::core::{Config, Freed, GRANULE, Got, Heap, Pond, Pool, PoolId, PoolRef, Request, Stats};
use crate::device::{Device, Mapping, StreamId};
use crate::runtime::backing::{Places, Supply};
use crate::runtime::kept::Kept;
use crate::runtime::rescue::Rescue;
use crate::runtime::usage::Usage;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// [B] more than any device has: a plugin that reports more does not report a size.
const MOST_BELIEVED: u64 = 1 << 50;
/// [B] the size that is assumed for such a device.
const UNKNOWN_SIZE: u64 = 8 << 40;
/// [B] the segment size of a device that could map but must not: its own sizes are meant for mapping.
const SEGMENT: u64 = 64 << 20;

/// A pond, with its device, backing and address translation.
pub(crate) struct Pooled {
    pub(super) pond: Pond,
    pub(super) device: Arc<dyn Device>,
    pub(super) supply: Arc<Supply>,
    pub(super) places: Arc<Places>,
    pub(super) maps: bool,
    pub(super) rescue: Arc<Rescue>,
    pub(super) kept: Arc<Kept>,
    pub(super) closed: AtomicBool,
}

/// The configuration of a pond over `device`.
pub(super) fn config_of(device: &dyn Device, expandable: bool) -> Result<Config> {
    let sizes = device.sizes();
    let mut config = Config {
        min_chunk: sizes.min_chunk.max(1),
        max_chunk: sizes.max_chunk,
        max_alloc: sizes.max_alloc,
        padding: sizes.padding,
        init_alloc: sizes.init_alloc,
        realloc: sizes.realloc,
        mapping: device.mapping().is_some() && expandable,
        numbers: 0,
        growing: device.segments_grow(),
        window: Pond::WINDOW,
        most_pieces: u64::MAX,
        most_blocks: device.most_blocks(),
    };
    if device.mapping().is_some() && !expandable {
        config.init_alloc = config.init_alloc.min(SEGMENT);
        config.realloc = config.realloc.min(SEGMENT);
        // A larger block is not kept when it is freed: it would make much of the device unusable for other sizes.
        config.max_chunk = config.max_chunk.min(SEGMENT.max(config.max_alloc / 4));
    }
    if let Some(mapping) = device.mapping().filter(|_| expandable) {
        // Whole granules only; what the device has beyond the last one cannot be mapped.
        config.max_alloc = config.max_alloc.min(device.memory_info()?.total) / GRANULE * GRANULE;
        config.numbers = mapping.numbers();
        config.most_pieces = mapping.most_mappings();
    } else if config.max_alloc > MOST_BELIEVED {
        config.max_alloc = UNKNOWN_SIZE;
    }
    Ok(config)
}

/// Reserves the addresses of a pond: as many as it wants, otherwise fewer.
fn reserve(mapping: &dyn Mapping, config: &mut Config, places: &Places) -> Result<()> {
    loop {
        let (real, alias) = Pond::span(config)?;
        match mapping.open_window(real + alias) {
            Ok(window) => {
                places.set_window(window, real + alias);
                return Ok(());
            }
            Err(e) if config.window <= 1 => return Err(e),
            Err(_) => config.window /= 2,
        }
    }
}

impl Pooled {
    pub(super) fn new(
        device: Arc<dyn Device>,
        usage: Arc<Usage>,
        mut config: Config,
        rescue: Arc<Rescue>,
        kept: Arc<Kept>,
    ) -> Result<Pooled> {
        let places = Arc::new(Places::default());
        let maps = config.mapping;
        if let Some(mapping) = device.mapping().filter(|_| maps) {
            reserve(mapping, &mut config, &places)?;
        }
        let supply = Arc::new(Supply::new(device.clone(), usage, places.clone(), maps));
        match Pond::new(config, supply.clone()) {
            Ok(pond) => {
                let closed = AtomicBool::new(false);
                Ok(Pooled { pond, device, supply, places, maps, rescue, kept, closed })
            }
            Err(e) => {
                if let Some(mapping) = device.mapping().filter(|_| maps) {
                    mapping.close_window()?;
                }
                Err(e)
            }
        }
    }

    /// `Memory::alloc` on a pool that was looked up before, in the usual case: see [`Pond::quick`]. Returns an address,
    /// 0 if the device has just ended. After the end of the device no pool has a heap. Never panics.
    #[inline(always)]
    pub(crate) fn quick(&self, pool: &Pool, stream: StreamId, bytes: u64) -> Got {
        if bytes == 0 {
            return Got::NoHeap;
        }
        self.pond.quick(pool, stream, bytes, &*self.places)
    }

    /// Settles the heap's account, when `quick` asks for it.
    pub(crate) fn settle(&self, heap: &'static Heap) {
        self.pond.settle(heap);
    }

    /// The request that `quick` could not serve from that heap of the pool; `bytes` is not 0.
    pub(crate) fn request(&self, heap: &'static Heap, pool: PoolRef, bytes: u64) -> Result<Request> {
        self.pond.request(heap, pool.id, bytes)
    }

    /// The next step: see [`Pond::place`]. Returns an address, as `quick` does.
    pub(crate) fn place(&self, req: &Request) -> Option<Got> {
        self.pond.place(req, &*self.places)
    }

    /// Allocates a block when `quick` and `place` returned none; they may have prepared the request.
    pub(crate) fn find(
        &self,
        pool: PoolRef,
        stream: StreamId,
        bytes: u64,
        req: Option<Request>,
    ) -> Result<u64> {
        if self.kept.any() {
            self.kept.settle(|a| self.check_open().and_then(|()| self.free_at(a, None, None)));
        }
        let attempt = |req: Option<Request>| {
            if self.closed.load(Relaxed) {
                return ended();
            }
            let req = match req {
                Some(req) => req,
                None => {
                    let (heap, served) = self.pond.heap(pool, stream)?;
                    self.pond.request(heap, served, bytes)?
                }
            };
            self.places.address(self.pond.find(&req)?)
        };
        let done = attempt(req).or_else(|e| self.rescue.retry(e, bytes, || attempt(None)));
        done.inspect_err(|e| {
            if e.code() == Code::OutOfMemory {
                self.pond.count_out_of_memory(pool.id, Some(stream));
            }
        })
    }

    fn check_open(&self) -> Result<()> {
        if self.closed.load(Relaxed) { ended() } else { Ok(()) }
    }

    /// `Memory::free` with a stream, in the usual case: see [`Pond::free_quick`]. After the end of the device no
    /// address is found. Never panics.
    #[inline(always)]
    pub(crate) fn free_quick(&self, addr: u64, stream: StreamId) -> Freed {
        match self.places.near(addr) {
            Some(offset) => self.pond.free_quick(offset, Some(stream)),
            None => Freed::NotQuick,
        }
    }

    /// `Memory::free` with a stream, after `free_quick` found that this is not the usual case.
    pub(crate) fn free(&self, addr: u64, stream: StreamId, found: Freed) -> Result<()> {
        self.check_open()?;
        match (found, self.places.offset(addr)) {
            (Freed::Unowned(heap), Some(offset)) if self.pond.free_unowned(heap, offset) => Ok(()),
            _ => self.free_at(addr, Some(stream), None),
        }
    }

    /// `Memory::free`, when nothing is known of the block.
    pub(super) fn free_at(&self, addr: u64, stream: Option<StreamId>, size: Option<u64>) -> Result<()> {
        match self.places.offset(addr) {
            Some(offset) => self.pond.free(offset, stream, size),
            None if addr == 0 => Ok(()),
            None => unknown(addr),
        }
    }

    /// A request of 0 bytes: allocates nothing, but its arguments must be right.
    pub(super) fn nothing(&self, pool: PoolId, stream: Option<StreamId>) -> Result<u64> {
        self.pond.check_names(pool, stream)?;
        Ok(0)
    }

    pub(super) fn stats(&self, pool: Option<PoolId>) -> Result<Stats> {
        let mut s = self.pond.stats(pool)?;
        s.driver_calls = self.supply.calls();
        Ok(s)
    }
}
