//! The pond: one device's memory behind a few calls.

use super::aliases::Aliases;
use super::backing::Backing;
use super::capture::Captures;
use super::checkpoint::Checkpoints;
use super::desc::{ALIAS, Found, GranuleUse, Id, Maps, USES, kind};
use super::heap::{Heap, Inner};
use super::pools::{Ledger, Pool, RETIRED, UNORDERED};
use super::shape::{GRANULE_SHIFT, LARGE_UNITS_SHIFT, Shape};
use super::sleep::Asleep;
use super::supply::Growth;
use super::tuning::Tuned;
use super::types::{BlockInfo, Counter, PoolId};
use crate::base::biased::Guard;
use crate::base::error::{Code, Error, Result};
use crate::base::slots::Slots;
use crate::base::sync::{AtomicU32, AtomicU64, Lock, Mutex, MutexGuard, Ordering::Relaxed, thread_token};
use crate::base::told;
use crate::fail;
use std::collections::BTreeMap;
use std::sync::PoisonError;

mod miss;

/// The device's sizes, all in bytes; see `device::Sizes` for their meaning.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Rounding and alignment of requests; a power of two.
    pub min_chunk: u64,
    /// Larger requests get a segment of their own. Without effect where the device maps.
    pub max_chunk: u64,
    /// Never more than this from the device.
    pub max_alloc: u64,
    /// Added to each request.
    pub padding: u64,
    /// The first segment.
    pub init_alloc: u64,
    /// Later segments.
    pub realloc: u64,
    /// Physical granules can be put behind any address.
    pub mapping: bool,
    /// How many numbers there are for granules; fewer than `max_alloc` has count as that many.
    pub numbers: u64,
    /// Later segments grow with what is reserved already.
    pub growing: bool,
    /// Granules of addresses for scattered blocks, for each granule of memory that is mapped.
    pub window: u32,
    /// How many pieces of scattered blocks may be shown at a time, also those of freed blocks.
    pub most_pieces: u64,
}

/// What the caller of [`Pond::alloc_quick`] wants to have for an offset.
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

/// What became of [`Pond::alloc_quick`].
pub(crate) enum Got {
    /// A block, and where it starts, as `Locate` says; and its heap, if [`Pond::settle`] is due.
    Block(u64, Option<&'static Heap>),
    /// Nothing is done; this heap serves such requests: ask [`Pond::alloc_placed`], then [`Pond::alloc_in`].
    Missed(&'static Heap),
    /// Nothing is done: ask [`Pond::alloc_from`].
    No,
}

/// What became of [`Pond::free_quick`].
pub(crate) enum Freed {
    /// The block is freed.
    Done,
    /// Nothing is done: the heap may be another thread's; ask [`Pond::free_unowned`].
    Unowned(&'static Heap),
    /// Nothing is done: ask [`Pond::free`], which tells why.
    No,
}

/// One device's allocator. Any thread may call anything.
pub struct Pond {
    pub(crate) maps: Maps,
    pub(crate) config: Config,
    pub(crate) backing: Box<dyn Backing>,
    pub(crate) heaps: Slots<Heap>,
    pub(crate) heap_count: AtomicU32,
    pub(crate) pools: Slots<Pool>,
    pub(crate) pool_count: AtomicU32,
    pub(crate) growth: Mutex<Growth>,
    pub(crate) ledger: Mutex<Ledger>,
    /// [units of the large tier] how much of a heap may be free in granules that are partly used; `u64::MAX` as long as
    /// there is more to be had from the device, as far as was seen last. A hint.
    pub(crate) most_ragged: AtomicU64,
    pub(crate) aliases: Lock<Aliases>,
    pub(crate) captures: Mutex<Captures>,
    /// Streams that are captured now.
    pub(crate) captured: AtomicU32,
    pub(crate) checkpoints: Mutex<Checkpoints>,
    /// What sleeps, by pool. Changed under the growth lock.
    pub(crate) asleep: Mutex<BTreeMap<u32, Asleep>>,
    pub(crate) limit: AtomicU64, // [B] 0: none
    pub(crate) oom_count: AtomicU64,
    pub(crate) tuned: Tuned,
    /// Granules of memory; addresses from here on show scattered granules.
    pub(crate) real: u32,
}

/// The lock of a mutex, whoever panicked with it.
pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pond {
    /// The growth lock. `NotPermitted` in a callback that the holder of this lock has made.
    pub(crate) fn hold_growth(&self) -> Result<MutexGuard<'_, Growth>> {
        told::check()?;
        Ok(lock(&self.growth))
    }

    /// Runs `body` while no memory comes from the device or goes back to it.
    pub fn quiet<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        let _growth = self.hold_growth()?;
        body()
    }

    /// Bytes of a granule, the quantum of ownership and of mapping.
    pub const GRANULE: u64 = 1 << GRANULE_SHIFT;
    /// The usual [`Config::window`].
    pub const WINDOW: u32 = 4;

    /// How many bytes of offsets a pond of this configuration spans: the memory's own, then the window
    /// for scattered granules.
    pub fn span(config: &Config) -> Result<(u64, u64)> {
        Shape::new(config.min_chunk, config.padding, config.max_alloc, true)?; // fails where pooling cannot be
        let (real, alias) = Self::granules(config)?;
        Ok((u64::from(real) << GRANULE_SHIFT, u64::from(alias) << GRANULE_SHIFT))
    }

    /// Whether segments may be smaller than a granule: a plugin's init or realloc size is.
    fn has_small_segments(config: &Config) -> bool {
        !config.mapping && config.init_alloc.min(config.realloc) < 1 << GRANULE_SHIFT
    }

    fn granules(config: &Config) -> Result<(u32, u32)> {
        let most = config.max_alloc >> GRANULE_SHIFT;
        let real = if config.mapping {
            // Small blocks count their offsets in 32 bits: rather fewer spare numbers than none of them.
            most.max(config.numbers.min((1 << (32 - (GRANULE_SHIFT - 9))) - 1))
        } else {
            // Segments start at a granule each and keep a gap; small ones waste offsets, not memory.
            let whole = (config.max_alloc >> GRANULE_SHIFT).saturating_mul(2) + 65_536;
            if Self::has_small_segments(config) {
                let segments = config.max_alloc / config.init_alloc.min(config.realloc).max(1);
                whole.max(segments.saturating_mul(2).min(1 << 22))
            } else {
                whole
            }
        };
        if real == 0 || real >= 1 << 24 {
            fail!(Code::InvalidArgument, "a device of {} bytes cannot be pooled", config.max_alloc);
        }
        // The offsets of large and scattered blocks are counted in units of the large tier, in 32 bits.
        let window = (most * u64::from(config.window)).max(4096).min((1 << (32 - LARGE_UNITS_SHIFT)) - real);
        Ok((real as u32, if config.mapping { window as u32 } else { 0 }))
    }

    /// A pond over `backing`. Takes nothing from it yet.
    pub fn new(config: Config, backing: Box<dyn Backing>) -> Result<Pond> {
        let (real, alias) = Self::granules(&config)?;
        let small_ok = (u64::from(real) << (GRANULE_SHIFT - 9)) < 1 << 32;
        let mut shape = Shape::new(config.min_chunk, config.padding, config.max_alloc, small_ok)?;
        if Self::has_small_segments(&config) {
            shape = shape.without_chunks();
        }
        let pond = Pond {
            maps: Maps::new(shape, real, alias)?,
            config,
            backing,
            heaps: Slots::new(1 << 16)?,
            heap_count: AtomicU32::new(0),
            pools: Slots::new(1 << 16)?,
            pool_count: AtomicU32::new(0),
            growth: Mutex::new(Growth::new(real)),
            ledger: Mutex::new(Ledger::default()),
            most_ragged: AtomicU64::new(u64::MAX),
            aliases: Lock::new(Aliases::new(real, alias, config.most_pieces)),
            captures: Mutex::new(Captures::default()),
            captured: AtomicU32::new(0),
            checkpoints: Mutex::new(Checkpoints::default()),
            asleep: Mutex::new(BTreeMap::new()),
            limit: AtomicU64::new(0),
            oom_count: AtomicU64::new(0),
            tuned: Tuned::new(),
            real,
        };
        pond.pool_create(0)?; // the default pool is number 0
        Ok(pond)
    }

    /// A block of at least `bytes` (not 0) for work on `stream`; its offset.
    pub fn alloc(&self, pool: PoolId, stream: u64, bytes: u64) -> Result<u64> {
        match self.pool(pool) {
            Some(p) => {
                let mut got = self.alloc_quick(p, stream, bytes, &Offsets);
                if let Got::Missed(heap) = got {
                    got = self.alloc_placed(heap, bytes, &Offsets);
                }
                match got {
                    Got::Block(at, full) => {
                        if let Some(heap) = full {
                            self.settle(heap);
                        }
                        Ok(at)
                    }
                    Got::Missed(heap) => self.alloc_in(heap, bytes),
                    Got::No => self.alloc_from(p, stream, bytes),
                }
            }
            None => Err(Error::new(Code::InvalidArgument, "no such pool, or it was destroyed")),
        }
    }

    /// `alloc` with the pool at hand.
    pub fn alloc_from(&self, pool: &Pool, stream: u64, bytes: u64) -> Result<u64> {
        match pool.heap_of(stream) {
            Some(heap) => self.alloc_in(heap, bytes),
            None => self.alloc_first(PoolId(pool.id.load(Relaxed)), stream, bytes),
        }
    }

    /// A block, in the usual case: a block of the same size was freed, and the calling thread owns the heap.
    ///
    /// Never panics: the C API runs it unguarded.
    #[inline(always)]
    pub(crate) fn alloc_quick(&self, pool: &Pool, stream: u64, bytes: u64, to: &impl Locate) -> Got {
        let Some(heap) = pool.heap_of(stream) else { return Got::No };
        let shape = &self.maps.shape;
        let Some(contract) = shape.contract(bytes) else { return Got::No };
        let key = match shape.place(contract) {
            Some(p) if p.list() != 0 => {
                let Some(mut h) = heap.inner.enter() else { return Got::Missed(heap) };
                let Some((_, d)) = h.pop_fine(&self.maps, p.list()) else { return Got::Missed(heap) };
                let at = to.locate(u64::from(d.off()) << p.shift());
                h.make_live(d, bytes);
                let full = h.count_in(contract, bytes);
                return Got::Block(at, full.then_some(heap));
            }
            Some(p) => p.key(),
            None => Shape::large_key(contract),
        };
        let Some(mut h) = heap.inner.enter() else { return Got::Missed(heap) };
        let Some(d) = h.pop_large(&self.maps, key).and_then(|id| self.maps.get(id)) else {
            return Got::Missed(heap);
        };
        let at = to.locate(u64::from(d.off()) << shape.shift_of(d.tier_bits()));
        h.make_live(d, bytes);
        let full = h.count_in(contract, bytes);
        Got::Block(at, full.then_some(heap))
    }

    /// A block that every stream and the host may use at once.
    pub fn alloc_unordered(&self, pool: PoolId, bytes: u64) -> Result<u64> {
        self.alloc(pool, UNORDERED, bytes)
    }

    /// Fails unless the pool and the stream exist.
    pub fn check_names(&self, pool: PoolId, stream: Option<u64>) -> Result<()> {
        if self.pool(pool).is_none() {
            fail!(Code::InvalidArgument, "no such pool, or it was destroyed");
        }
        stream.map_or(Ok(()), |s| self.known(s))
    }

    /// `UnknownStream` unless the stream exists.
    pub(crate) fn known(&self, stream: u64) -> Result<()> {
        if stream == RETIRED || stream == UNORDERED || !self.backing.knows(stream) {
            fail!(Code::UnknownStream, "stream {stream:#x} is not a stream of this device, or was destroyed");
        }
        Ok(())
    }

    #[cold]
    fn alloc_first(&self, pool: PoolId, stream: u64, bytes: u64) -> Result<u64> {
        let mut stream = stream;
        if stream != UNORDERED {
            self.known(stream)?;
            if !self.backing.ordered_by(stream) {
                stream = UNORDERED;
            }
        }
        let heap = self.make_heap(pool, stream)?;
        self.alloc_in(heap, bytes)
    }

    /// The heap's lock for a thread that does not own it. Who allocates last is whom frees go by.
    pub(crate) fn lock_to_allocate(heap: &Heap) -> Guard<'_, Inner> {
        let h = heap.inner.lock();
        let token = thread_token();
        if heap.owner.load(Relaxed) != token {
            heap.owner.store(token, Relaxed);
        }
        h
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn too_large(&self, bytes: u64) -> Result<u64> {
        self.oom_count.fetch_add(1, Relaxed);
        fail!(
            Code::OutOfMemory,
            "{bytes} bytes are more than the device could ever give ({})",
            self.config.max_alloc
        )
    }

    /// [B] where a block starts.
    #[inline(always)]
    pub(crate) fn offset(&self, id: Id) -> u64 {
        let d = self.maps.desc(id);
        u64::from(d.off()) << self.maps.shape.shift_of(d.tier_bits())
    }

    /// The block that starts at `offset` must be live.
    fn live(&self, offset: u64) -> Result<Found<'_>> {
        match self.maps.find(offset) {
            Some(f) if self.maps.desc(f.id).kind() == kind::LIVE => Ok(f),
            found => self.not_live(offset, found),
        }
    }

    #[cold]
    #[inline(never)]
    fn not_live(&self, offset: u64, found: Option<Found<'_>>) -> Result<Found<'_>> {
        let freed =
            |f: Found<'_>| matches!(self.maps.desc(f.id).kind(), kind::QUICK | kind::REMOTE | kind::PENDING);
        if found.is_some_and(freed) {
            return Err(Error::new(Code::DoubleFree, "the block at this address was freed before"));
        }
        if let Some(f) = self.maps.find_holding(offset)
            && self.maps.desc(f.id).kind() == kind::LIVE
        {
            fail!(
                Code::UnknownPointer,
                "the address lies {} bytes inside a block",
                offset - self.offset(f.id)
            );
        }
        Err(Error::new(
            Code::UnknownPointer,
            "no live block starts at this address (it may have been freed before)",
        ))
    }

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
        self.free_slow(offset, stream, size)
    }

    /// Frees the block in the usual case: it is live, was used on its own stream only, `stream` is that, and
    /// the calling thread owns the heap. Never panics: the C API runs it unguarded.
    #[inline(always)]
    pub(crate) fn free_quick(&self, offset: u64, stream: Option<u64>) -> Freed {
        let Some(g) = self.maps.granule_of(offset) else { return Freed::No };
        let Some(heap) = self.heaps.get(g.heap() as usize) else { return Freed::No };
        if stream.is_some_and(|s| s != heap.stream.load(Relaxed)) {
            return Freed::No;
        }
        let Some(mut h) = heap.inner.enter() else { return Freed::Unowned(heap) };
        if self.free_in(&mut h, g, offset) { Freed::Done } else { Freed::No }
    }

    /// Goes on after `free_quick` found a heap that the calling thread does not own. `false`: nothing done.
    pub(crate) fn free_unowned(&self, heap: &Heap, offset: u64) -> bool {
        let Some(f) = self.maps.find(offset).filter(|f| f.heap == heap.index) else { return false };
        if heap.owner.load(Relaxed) != thread_token() {
            return self.free_remote(heap, f, offset);
        }
        // This thread allocates here, but does not own the lock.
        let mut h = heap.inner.lock();
        self.maps
            .granule_of(offset)
            .is_some_and(|g| g.heap() == heap.index && self.free_in(&mut h, g, offset))
    }

    /// Frees a block of a locked heap if it is plainly live.
    #[inline(always)]
    fn free_in(&self, h: &mut Inner, g: GranuleUse, offset: u64) -> bool {
        let Some((id, d, state)) = self.maps.plainly_live(g, offset) else { return false };
        let bytes = d.requested();
        h.count_out(self.maps.shape.contract_of(bytes), bytes);
        h.retire(id, d, state);
        true
    }

    #[cold]
    pub(crate) fn set_idle(&self, entry: u32) {
        self.aliases.lock().set_idle(entry);
    }

    /// Another thread's heap: one push, and its owner does the rest.
    #[inline(never)]
    fn free_remote(&self, heap: &Heap, f: Found<'_>, offset: u64) -> bool {
        let d = f.desc;
        if !d.claim_remote() {
            return false;
        }
        if self.offset(f.id) != offset {
            // The descriptor went to another block between the look and the claim: the caller freed
            // twice, in two threads at once. That other block stays the caller's.
            d.set_kind(kind::LIVE);
            return false;
        }
        heap.push_remote(&self.maps, f.id);
        true
    }

    #[inline(never)]
    fn free_slow(&self, offset: u64, stream: Option<u64>, size: Option<u64>) -> Result<()> {
        let f = self.live(offset)?;
        let Some(heap) = self.heaps.get(f.heap as usize) else {
            return Err(Error::new(Code::Internal, "a block without a heap"));
        };
        let other = stream.filter(|&s| s != heap.stream.load(Relaxed));
        if let Some(s) = other {
            self.known(s)?;
        }
        let mut h = heap.inner.lock();
        let d = self.maps.desc(f.id);
        if d.kind() != kind::LIVE || self.offset(f.id) != offset {
            drop(h);
            return self
                .live(offset)
                .and(Err(Error::new(Code::UnknownPointer, "the block moved on while it was freed")));
        }
        if let Some(size) = size
            && size != d.requested()
        {
            fail!(Code::WrongSize, "the block was asked for with {} bytes, not {size}", d.requested());
        }
        if other.is_none() && d.state() & USES == 0 {
            let bytes = d.requested();
            h.count_out(self.charge(f.id), bytes);
            self.reuse(&mut h, f.id);
            return Ok(());
        }
        self.free_after(heap, h, f.id, other)
    }

    /// Makes a block that nobody waits for reusable. Its heap is locked.
    pub(crate) fn reuse(&self, h: &mut Inner, id: Id) {
        if self.keep_whole(h, id) {
            return;
        }
        let d = self.maps.desc(id);
        h.retire(id, d, d.state());
    }

    /// Takes in what other threads have freed. The heap is locked.
    pub(crate) fn drain(&self, heap: &Heap, h: &mut Inner) {
        if heap.remote.is_empty() {
            return;
        }
        let mut id = heap.remote.take();
        while id != 0 {
            let d = self.maps.desc(id);
            if d.kind() != kind::REMOTE {
                break; // the caller freed a block in two threads at once; the link cannot be trusted
            }
            let next = d.prev();
            let bytes = d.requested();
            h.count_out(self.maps.shape.contract_of(bytes), bytes);
            self.reuse(h, id);
            id = next;
        }
    }

    /// The live block that holds `offset`.
    pub fn block(&self, offset: u64) -> Result<BlockInfo> {
        let f = match self.maps.find(offset) {
            Some(f) if self.maps.desc(f.id).kind() == kind::LIVE => f,
            _ => match self.maps.find_holding(offset) {
                Some(f) if self.maps.desc(f.id).kind() == kind::LIVE => f,
                _ => return Err(Error::new(Code::UnknownPointer, "no live block holds this address")),
            },
        };
        let Some(heap) = self.heaps.get(f.heap as usize) else {
            return Err(Error::new(Code::Internal, "a block without a heap"));
        };
        let d = self.maps.desc(f.id);
        let requested = d.requested();
        let stream = heap.stream.load(Relaxed);
        Ok(BlockInfo {
            base: self.offset(f.id),
            size: self.charge(f.id),
            requested,
            stream: (stream != UNORDERED && stream != RETIRED).then_some(stream),
            pool: PoolId(heap.pool.load(Relaxed)),
        })
    }

    /// The scattered blocks' tier bits, for the other files of the core.
    pub(crate) const ALIAS_BITS: u32 = ALIAS;

    /// Checks every heap's invariants. For tests; nothing else may run.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let used = lock(&self.growth).used(self.real);
        for i in 0..self.heap_count.load(Relaxed) as usize {
            if let Some(x) = self.heaps.get(i) {
                x.inner.lock().check(&self.maps, x.index, used);
            }
        }
    }
}

/// Pieces held, of a pool or the device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    pub reserved: Counter,
    pub segments: Counter,
    pub sleeping: Counter,
}
