//! A pond over a device: allocations and frees are translated from addresses to offsets and back.

use crate::base::error::{Code, Error, Result};
use crate::base::range_map::Memo;
use crate::base::room::while_kept;
use crate::core::{Config, Freed, GRANULE, Got, Heap, Layout, Outside, Pond, Pool, PoolId, PoolRef, Stats};
use crate::device::{Device, Mapping, StreamId, TieSizes};
use crate::runtime::backing::{DeviceBacking, Places};
use crate::runtime::entry::usage::Usage;
use crate::runtime::watch::observe::Observers;
use std::sync::{Arc, OnceLock};

/// [B] more than any device has: a plugin that reports more does not report a size.
const MOST_BELIEVED: u64 = 1 << 50;
/// [B] the size that is assumed for such a device.
const UNKNOWN_SIZE: u64 = 8 << 40;
/// [B] the segment size of a device that could map but must not: its own sizes are meant for mapping.
const SEGMENT: u64 = 64 << 20;

/// The memory of a device, as far as who has its pooled part needs it.
pub(crate) trait Whole: Sync {
    /// All steps of a free.
    fn free_with_all_steps(&self, block: Block, stream: StreamId) -> Result<()>;
}

/// A pond, with its device, backing and address translation.
pub(crate) struct Pooled {
    pub(in crate::runtime) pond: Pond,
    pub(super) device: Arc<dyn Device>,
    pub(super) supply: Arc<DeviceBacking>,
    pub(super) places: Arc<Places>,
    pub(super) maps: bool,
    pub(crate) observers: Arc<Observers>,
    /// What this is part of; set before one of its pools is found without it (`handle_cache.rs`).
    pub(in crate::runtime) whole: OnceLock<&'static dyn Whole>,
}

/// The result of the first step of a request.
pub(crate) enum Given {
    /// The address of the block.
    Block(u64),
    /// The offset of the block, whose [address](Outside::address) is to be found; and its heap, if the caller has to
    /// [settle](Outside::settle) it.
    Almost(u64, Option<&'static Heap>),
    /// Nothing was done.
    Missed,
}

/// What is to be freed.
#[derive(Clone, Copy)]
pub(crate) enum Block {
    /// The block at this address.
    At(u64),
    /// The block at this address, which is at this offset.
    Found { addr: u64, offset: u64 },
    /// The block at this offset, which the first step has missed: `heap` is what [`Pond::free_quick`] said.
    Missed { offset: u64, heap: Option<&'static Heap> },
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
        growing: device.facts().segments_grow,
        window: Pond::WINDOW,
        tie: 0,
        tie_growth: 0,
        most_pieces: u64::MAX,
        most_blocks: device.facts().most_blocks,
    };
    if device.mapping().is_some() && !expandable {
        config.init_alloc = config.init_alloc.min(SEGMENT);
        config.realloc = config.realloc.min(SEGMENT);
        // A larger block is not kept when it is freed: it would make much of the device unusable for other sizes.
        config.max_chunk = config.max_chunk.min(SEGMENT.max(config.max_alloc / 4));
    }
    if let Some(mapping) = device.mapping().filter(|_| expandable) {
        // Whole granules only; what the device has beyond the last one cannot be mapped.
        let total = while_kept(|| device.memory_info())?.known().map_or(u64::MAX, |m| m.total);
        config.max_alloc = config.max_alloc.min(total) / GRANULE * GRANULE;
        config.numbers = mapping.numbers();
        config.most_pieces = mapping.most_mappings();
        let TieSizes { most, request } = mapping.tie_sizes();
        (config.tie, config.tie_growth) = (most, request);
    } else if config.max_alloc > MOST_BELIEVED {
        config.max_alloc = UNKNOWN_SIZE;
    }
    Ok(config)
}

/// Reserves the addresses of a pond: as many as it wants, otherwise fewer.
fn reserve(mapping: &dyn Mapping, config: &mut Config, places: &Places) -> Result<()> {
    loop {
        let span = Pond::span(config)?;
        match while_kept(|| mapping.open_window(span.memory + span.window)) {
            Ok(window) => {
                places.set_window(window, span.memory + span.window);
                return Ok(());
            }
            Err(e) if config.window <= 1 => return Err(e),
            Err(_) => config.window /= 2,
        }
    }
}

impl Outside for Pooled {
    /// `NotInitialized` if the device has just ended.
    fn address(&self, offset: u64) -> Result<u64> {
        self.places.address(offset)
    }

    fn address_now(&self, offset: u64) -> Option<u64> {
        self.places.address_now(offset)
    }

    fn offset_again(&self, memo: &mut Memo, address: u64) -> Option<u64> {
        self.places.offset_again(memo, address)
    }

    fn settle(&self, heap: &'static Heap) {
        self.pond.fast_paths().settle(heap);
    }

    fn note(&self, heap: &'static Heap, offset: u64, bytes: u64, stream: StreamId) {
        self.tell_given(&Given::Almost(offset, None), stream, bytes, PoolId(heap.pool()));
    }
}

impl Pooled {
    pub(super) fn new(
        device: Arc<dyn Device>,
        usage: Arc<Usage>,
        observers: Arc<Observers>,
        mut config: Config,
    ) -> Result<Pooled> {
        let maps = config.mapping;
        let places = Arc::new(match maps {
            true => Places::default(),
            false => Places::of_segments((Pond::span(&config)?.memory / GRANULE) as usize)?,
        });
        if let Some(mapping) = device.mapping().filter(|_| maps) {
            reserve(mapping, &mut config, &places)?;
        }
        let supply =
            Arc::new(DeviceBacking::new(device.clone(), usage, observers.clone(), places.clone(), maps));
        match Pond::new(config, supply.clone()) {
            Ok(pond) => Ok(Pooled { pond, device, supply, places, observers, maps, whole: OnceLock::new() }),
            Err(e) => {
                if let Some(mapping) = device.mapping().filter(|_| maps) {
                    mapping.close_window()?;
                }
                Err(e)
            }
        }
    }

    /// The error of a call about a block at an address that is none of the memory's.
    #[cold]
    #[inline(never)]
    pub(super) fn unknown(&self, addr: u64) -> Error {
        Error::formatted(
            Code::UnknownPointer,
            format_args!("{addr:#x} is not a block of {}", self.supply.name()),
        )
    }

    /// The first step of a request: see [`Pond::alloc_quick`]. After the end of the device no pool has a heap. Never
    /// panics.
    #[inline(always)]
    pub(crate) fn alloc_quick(&self, pool: &Pool, stream: StreamId, bytes: u64) -> Given {
        match self.pond.alloc_quick(pool, stream, bytes) {
            Got::Block(offset, None) => match self.places.near_address(offset) {
                Some(addr) => Given::Block(addr),
                None => Given::Almost(offset, None),
            },
            Got::Block(offset, heap) => Given::Almost(offset, heap),
            Got::Missed(_) => Given::Missed,
        }
    }

    /// All other steps of a request: see [`Pond::alloc_from`].
    pub(super) fn alloc_from(
        &self,
        pool: PoolRef,
        stream: StreamId,
        bytes: u64,
        heap: Option<&'static Heap>,
        leave: impl Fn() -> Result<()>,
    ) -> Result<u64> {
        self.places.address(self.pond.alloc_from(pool, stream, bytes, heap, leave)?)
    }

    /// All steps of a request; with an `align` above 1 for an address that is a multiple of it, if the device gives one.
    pub(super) fn alloc(&self, pool: PoolId, stream: StreamId, bytes: u64, align: u64) -> Result<u64> {
        self.places.address(match align {
            ..=1 => self.pond.alloc(pool, stream, bytes)?,
            align => self.pond.special().alloc_aligned(pool, stream, bytes, align)?,
        })
    }

    /// The address of offset 0, and up to which offset that holds; (0, 0) if it holds for none.
    #[inline]
    pub(crate) fn near_range(&self) -> (u64, u64) {
        self.places.near_range()
    }

    /// The offset of an address. After the end of the device no address has one.
    #[inline(always)]
    pub(crate) fn offset(&self, addr: u64) -> Option<u64> {
        self.places.offset(addr)
    }

    /// The first step of a free: see [`Pond::free_quick`]. Never panics.
    #[inline(always)]
    pub(crate) fn free_quick(&self, offset: u64, stream: StreamId) -> Freed {
        self.pond.free_quick(offset, Some(stream), None, |_, _, _| ())
    }

    /// A free: all other steps where the first has missed, else all.
    pub(super) fn free(&self, block: Block, stream: Option<StreamId>, size: Option<u64>) -> Result<()> {
        let offset = match block {
            Block::At(addr) => match self.places.offset(addr) {
                Some(offset) => offset,
                None if addr == 0 => return Ok(()),
                None => return Err(self.unknown(addr)),
            },
            Block::Found { offset, .. } => offset,
            Block::Missed { offset, heap } => return self.pond.free_from(offset, stream, size, heap),
        };
        self.pond.free(offset, stream, size)
    }

    /// All steps of a free that names no stream.
    pub(super) fn free_at(&self, offset: u64, size: Option<u64>) -> Result<()> {
        self.pond.free(offset, None, size)
    }

    /// A request of 0 bytes: allocates nothing, but its arguments must be right.
    pub(super) fn nothing(&self, pool: PoolId, stream: Option<StreamId>) -> Result<u64> {
        self.pond.check_names(pool, stream)?;
        Ok(0)
    }

    pub(super) fn layout(&self) -> Result<Layout> {
        let mut layout = self.pond.snapshot(|offset| self.places.address(offset))?;
        layout.device.driver_calls = self.supply.calls().count();
        Ok(layout)
    }

    pub(super) fn stats(&self, pool: Option<PoolId>) -> Result<Stats> {
        let mut s = self.pond.stats(pool)?;
        s.driver_calls = self.supply.calls().count();
        Ok(s)
    }
}
