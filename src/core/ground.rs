//! The complete state of one pond, with its locks. The code that acts on it is on the floors above.
//!
//! None of its locks (`docs/architecture.md`, "Locks") is held while the backing is called or a thread waits for
//! another: what an operation needs meanwhile it takes out of the heaps and holds as memory in transit
//! ([`Transit`]).

use super::aliases::Aliases;
use super::backing::Backing;
use super::desc::{Found, Id, Maps, kind};
use super::heap::{Changed, Heap, LockedHeap, OwnedHeap, Scratch, Shared, Source, Stuck};
use super::ledger::Ledger;
use super::order::Order;
use super::shape::{Fine, Shape, shift_of};
use super::state::captures::Captures;
use super::state::checkpoints::Checkpoints;
use super::state::growth::{Growth, Parts};
use super::state::pools::Pool;
use super::state::sleeping::SleepingPools;
use super::state::tags::Tags;
use super::state::tuned::Tuned;
use super::tied::Tied;
use super::types::{POOL_SLOTS, PoolId};
#[cfg(test)]
use super::units::Extent;
use super::units::{GRANULE_SHIFT, GranuleRun, LARGE_UNITS_SHIFT, granule_bytes};
use crate::base::error::{Code, Error, Result};
use crate::base::slots::Slots;
use crate::base::sync::{
    AtomicU32, AtomicU64, Condvar, Lock, Mutex, MutexGuard, Ordering, Ordering::Relaxed, lock,
};
use crate::fail;
use crate::locks;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// The device's sizes, all in bytes; see `device::Sizes` for their meaning.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Rounding and alignment of requests; a power of two.
    pub min_chunk: u64,
    /// Larger requests get a segment of their own. Ignored if the device maps.
    pub max_chunk: u64,
    /// The maximum that is taken from the device.
    pub max_alloc: u64,
    /// Added to each request.
    pub padding: u64,
    /// The size of the first segment.
    pub init_alloc: u64,
    /// The size of later segments.
    pub realloc: u64,
    /// Physical granules can be mapped at any address.
    pub mapping: bool,
    /// How many granule numbers there are; at least as many as `max_alloc` has granules.
    pub numbers: u64,
    /// Later segments grow with what is already reserved.
    pub growing: bool,
    /// Granules of addresses for scattered blocks, for each granule of memory; only where the device maps.
    pub window: u32,
    /// How many granules at most should be taken in one allocation while memory is plentiful, to spare calls; 0: none.
    /// Only where the device maps.
    pub tie: u32,
    /// How many granules must be asked for at once for that.
    pub tie_growth: u32,
    /// The maximum number of mapped pieces of scattered blocks at a time, including those of freed blocks.
    pub most_pieces: u64,
    /// The maximum number of blocks that are kept track of at a time, including free ones.
    pub most_blocks: u64,
}

/// The maximum number of granules: 32 TiB of memory. A large unit needs a 32-bit index also in the block table, where
/// the units of the large tier share the indices with those of the other tiers.
const MOST_GRANULES: u64 = 1 << 24;
/// The number of granules whose small units, and one past the last, still have 32-bit numbers.
const MOST_WITH_SMALL: u64 = (1 << 20) - 1;
/// The same for medium units.
const MOST_WITH_MEDIUM: u64 = (1 << 23) - 1;

impl Config {
    /// Whether segments may be smaller than a granule, because a plugin's init or realloc size is.
    fn has_small_segments(&self) -> bool {
        !self.mapping && self.init_alloc.min(self.realloc) < granule_bytes(1)
    }

    /// What the memory comes in.
    pub(crate) fn source(&self) -> Source {
        match self.mapping {
            true => Source::Granules,
            false if self.growing => Source::OwnSegments,
            false => Source::Segments,
        }
    }

    /// The number of granules of memory, and of granules of addresses for scattered blocks.
    fn granules(&self) -> Result<(u32, u32)> {
        let most = self.max_alloc >> GRANULE_SHIFT;
        let real = if self.mapping {
            // Fewer spare numbers are better than no small blocks.
            most.max(self.numbers.min(MOST_WITH_SMALL))
        } else {
            // Each segment starts at a granule and keeps a gap; small ones waste offsets, not memory.
            let whole = most.saturating_mul(2).saturating_add(65_536).min(most.max(MOST_GRANULES));
            if self.has_small_segments() {
                let segments = self.max_alloc / self.init_alloc.min(self.realloc).max(1);
                whole.max(segments.saturating_mul(2).min(1 << 22))
            } else {
                whole
            }
        };
        if real == 0 || real > MOST_GRANULES {
            fail!(Code::InvalidArgument, "a device of {} bytes cannot be pooled", self.max_alloc);
        }
        // The offsets of large and scattered blocks are counted in units of the large tier, in 32 bits.
        let window = (most * u64::from(self.window)).max(4096).min((1 << (32 - LARGE_UNITS_SHIFT)) - real);
        Ok((real as u32, if self.mapping { window as u32 } else { 0 }))
    }

    fn shape(&self) -> Result<Shape> {
        let real = u64::from(self.granules()?.0);
        // The chunks of the fine tiers are whole granules.
        let chunks = !self.has_small_segments();
        let fine =
            Fine { small: chunks && real <= MOST_WITH_SMALL, medium: chunks && real <= MOST_WITH_MEDIUM };
        let shape = Shape::new(self.min_chunk, self.padding, self.max_alloc, fine)?;
        Ok(if self.mapping { shape } else { shape.with_max_chunk(self.max_chunk) })
    }

    /// [B] the ranges of offsets that a pond of this configuration needs: for the memory, and for the window of
    /// scattered blocks.
    pub(crate) fn span(&self) -> Result<(u64, u64)> {
        self.shape()?; // fails if pooling is impossible
        let (real, alias) = self.granules()?;
        Ok((granule_bytes(real), granule_bytes(alias)))
    }
}

/// The state of a pond; see the head of this file.
pub(crate) struct Ground {
    pub maps: Maps,
    pub config: Config,
    pub backing: Arc<dyn Backing>,
    pub order: Order,
    pub heaps: Slots<Heap, { 1 << 16 }>, // as many as a granule's record can name
    pub heap_count: AtomicU32,
    pub pools: Slots<Pool, { POOL_SLOTS as usize }>,
    pub pool_count: AtomicU32,
    growth: Mutex<Growth, locks::Growth>,
    transit_ended: Condvar,
    /// Which granules lie in ties.
    pub tied: Arc<Tied>,
    pub ledger: Mutex<Ledger, locks::Ledger>,
    pub aliases: Lock<Aliases, locks::Aliases>,
    /// Lists of the last search for memory, kept for reuse.
    pub scratch: Lock<Scratch>,
    pub changed: Changed,
    /// The heaps in which freed blocks wait, by number. A hint: one that is just being entered may be missing.
    pub waiting: Lock<BTreeSet<u32>, locks::Waiting>,
    /// How many pools have released captures whose graphs may still run; see `Pool::released`.
    pub released: AtomicU32,
    pub captures: Mutex<Captures, locks::Captures>,
    pub checkpoints: Mutex<Checkpoints, locks::Checkpoints>,
    pub sleeping: Mutex<SleepingPools, locks::Sleeping>,
    pub limit: AtomicU64, // [B] 0: none
    pub oom_count: AtomicU64,
    pub tags: Lock<Tags>,
    /// Searches in which the device, or a limit, refused, and that went on elsewhere.
    pub retries: AtomicU64,
    pub tuned: Tuned,
    /// [units of the large tier] how much of a heap may be free in partly used granules; `u64::MAX` as long as the
    /// device has more memory to give, as far as was last seen. A hint.
    pub most_ragged: AtomicU64,
    /// [granules] Memory was scarce when so much was reserved: free ties had to serve otherwise than in place, and no more
    /// are made to spare calls until most of it has gone back, or the cache is emptied. 0: it was not.
    pub no_ties: AtomicU64,
    /// How much free memory may be stuck in partly used segments.
    pub stuck: Stuck,
    /// [B] What was reserved when the device last refused a segment that the limits allow; `u64::MAX`: it has not.
    pub refused_at: AtomicU64,
    /// [B] the least alignment that a block of a fresh segment could not have; `u64::MAX`: all could.
    pub misaligned: AtomicU64,
    /// Granules of memory; granule numbers from here on are addresses for scattered blocks.
    pub real: u32,
}

/// The growth lock, held until this is dropped. Meanwhile nothing is waited for and no device is called.
pub(crate) struct Growing<'a> {
    pub ground: &'a Ground,
    state: MutexGuard<'a, Growth, locks::Growth>,
}

impl Deref for Growing<'_> {
    type Target = Growth;
    fn deref(&self) -> &Growth {
        &self.state
    }
}

impl DerefMut for Growing<'_> {
    fn deref_mut(&mut self) -> &mut Growth {
        &mut self.state
    }
}

impl<'a> Growing<'a> {
    /// Begins a transit: the operation owns memory until the result is ended or dropped.
    pub(crate) fn begin_transit(&mut self, parts: Parts) -> Transit<'a> {
        Transit { ground: self.ground, number: self.state.begin_transit(parts) }
    }

    /// Waits until another thread's operation has placed its memory; the lock is released meanwhile.
    pub(crate) fn wait_for_transit(self) -> Growing<'a> {
        let ground = self.ground;
        Growing { ground, state: ground.transit_ended.wait(self.state) }
    }
}

thread_local! {
    /// The number of this thread's operations that have had memory in transit, on any device. It has no destructor, so
    /// it works at thread exit too.
    static OWN_TRANSITS: Cell<u64> = const { Cell::new(0) };
}

/// How many transits had ended when a search for memory began: of all threads, and of the calling thread.
#[derive(Clone, Copy)]
pub(crate) struct Since {
    all: u64,
    own: u64,
}

/// How often a request that found nothing searches again because other threads had memory in transit meanwhile.
const MOST_ROUNDS: u32 = 1000;

/// Memory in transit, owned by one operation. To be ended under the growth lock, once all of it has been placed.
pub(crate) struct Transit<'a> {
    ground: &'a Ground,
    number: u64,
}

impl Transit<'_> {
    pub(crate) fn end(self, g: &mut Growing<'_>) {
        self.end_under(g);
        std::mem::forget(self);
    }

    fn end_under(&self, growth: &mut Growth) {
        growth.end_transit(self.number);
        OWN_TRANSITS.with(|n| n.set(n.get() + 1));
        self.ground.transit_ended.notify_all();
    }
}

impl Drop for Transit<'_> {
    fn drop(&mut self) {
        self.end_under(&mut lock(&self.ground.growth));
    }
}

impl Ground {
    /// The state of an empty pond over `backing`, from which nothing is taken yet.
    pub(crate) fn new(config: Config, backing: Arc<dyn Backing>) -> Result<Ground> {
        let (real, alias) = config.granules()?;
        let maps = Maps::new(config.shape()?, real, alias, config.most_blocks)?;
        let tied = Arc::new(if config.mapping { Tied::new(real)? } else { Tied::default() });
        Ok(Ground {
            config,
            order: Order::new(backing.clone()),
            backing,
            heaps: Slots::new()?,
            heap_count: AtomicU32::new(0),
            pools: Slots::new()?,
            pool_count: AtomicU32::new(0),
            growth: Mutex::new(Growth::new(real, Some(maps.reserved.clone()), tied.clone())),
            tied,
            maps,
            transit_ended: Condvar::new(),
            ledger: Mutex::default(),
            aliases: Lock::new(Aliases::new(GranuleRun::new(real, alias), config.most_pieces)),
            scratch: Lock::new(Scratch::default()),
            changed: Changed::default(),
            waiting: Lock::new(BTreeSet::new()),
            released: AtomicU32::new(0),
            captures: Mutex::default(),
            checkpoints: Mutex::default(),
            sleeping: Mutex::default(),
            limit: AtomicU64::new(0),
            oom_count: AtomicU64::new(0),
            tags: Lock::new(Tags::default()),
            retries: AtomicU64::new(0),
            tuned: Tuned::default(),
            most_ragged: AtomicU64::new(u64::MAX),
            no_ties: AtomicU64::new(0),
            stuck: Stuck::default(),
            refused_at: AtomicU64::new(u64::MAX),
            misaligned: AtomicU64::new(u64::MAX),
            real,
        })
    }

    /// The growth lock.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn growing(&self) -> Growing<'_> {
        Growing { ground: self, state: lock(&self.growth) }
    }

    /// `NotPermitted` inside a call that the device, a plugin or a segment callback makes while memory is taken or
    /// released: a call that changes memory there could recurse for ever.
    pub(crate) fn check_reentry(&self) -> Result<()> {
        if !self.backing.may_change() {
            fail!(
                Code::NotPermitted,
                "a segment callback, or a call of the device, must not ask for memory of it"
            );
        }
        Ok(())
    }

    /// Must be called before a search for memory begins.
    pub(crate) fn now(&self) -> Since {
        Since { all: self.growing().transits_ended, own: OWN_TRANSITS.with(Cell::get) }
    }

    /// Whether a search that found nothing should be repeated, for the `round`th time: other threads have had memory in
    /// transit since it began. Waits for one that has some now.
    pub(crate) fn look_again(&self, since: Since, round: &mut u32) -> bool {
        *round += 1;
        if *round > MOST_ROUNDS {
            return false;
        }
        let g = self.growing();
        let own = OWN_TRANSITS.with(Cell::get) - since.own;
        if g.transits_ended - since.all > own {
            return true;
        }
        let waits = g.is_in_transit(None) && self.backing.may_wait();
        if waits {
            drop(g.wait_for_transit());
        }
        waits
    }

    #[inline(always)]
    pub(crate) fn shared(&self) -> Shared<'_> {
        Shared {
            maps: &self.maps,
            aliases: &self.aliases,
            changed: &self.changed,
            stuck: &self.stuck,
            tied: &self.tied,
        }
    }

    // ---- heaps ---------------------------------------------------------------------------------------

    #[inline(always)]
    pub(crate) fn heap(&self, index: u32) -> Option<&'static Heap> {
        self.heaps.get(index as usize)
    }

    /// All heaps, in the order of their numbers.
    pub(crate) fn all_heaps(&self) -> impl Iterator<Item = &'static Heap> {
        (0..self.heap_count.load(Ordering::Acquire)).filter_map(|i| self.heap(i))
    }

    /// The heaps of a pool, in the order of their numbers. No heap is locked.
    pub(crate) fn heaps_of(&self, pool: u32) -> Vec<&'static Heap> {
        let Some(p) = self.pool(PoolId(pool)) else { return Vec::new() };
        let mut all = lock(&p.streams).all();
        all.sort_unstable();
        all.into_iter().filter_map(|i| self.heap(i)).filter(|x| x.pool() == pool).collect()
    }

    /// All heaps except this one.
    pub(crate) fn heaps_but(&self, heap: &Heap) -> Vec<&'static Heap> {
        self.all_heaps().filter(|x| x.index != heap.index).collect()
    }

    /// The heaps of a pool, or all heaps.
    pub(crate) fn heaps_in(&self, pool: Option<PoolId>) -> Vec<&'static Heap> {
        pool.map_or_else(|| self.all_heaps().collect(), |p| self.heaps_of(p.0))
    }

    /// Takes a heap's lock.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn lock(&self, heap: &'static Heap) -> LockedHeap<'_> {
        heap.lock(self.shared())
    }

    /// Takes a heap's lock only to read; see [`Heap::look`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn look(&self, heap: &'static Heap) -> LockedHeap<'_> {
        heap.look(self.shared())
    }

    /// Takes a heap's lock if the calling thread owns it.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn enter(&self, heap: &'static Heap) -> Option<OwnedHeap<'_>> {
        heap.enter(self.shared())
    }

    // ---- pools ---------------------------------------------------------------------------------------

    /// The pool with that id, if it is live.
    pub(crate) fn pool(&self, id: PoolId) -> Option<&'static Pool> {
        self.pools.get((id.0 % POOL_SLOTS) as usize).filter(|p| p.id.load(Relaxed) == id.0)
    }

    /// The same; an error if there is none.
    pub(crate) fn live_pool(&self, id: PoolId) -> Result<&'static Pool> {
        match self.pool(id) {
            Some(p) => Ok(p),
            None => Err(Error::new(Code::InvalidArgument, "no such pool, or it was destroyed")),
        }
    }

    /// All pools, including slots of pools that have ended.
    pub(crate) fn all_pools(&self) -> impl Iterator<Item = &'static Pool> {
        (0..self.pool_count.load(Ordering::Acquire)).filter_map(|i| self.pools.get(i as usize))
    }

    /// The pools that live, by number.
    pub(crate) fn live_pools(&self) -> Vec<PoolId> {
        let ids = self.all_pools().map(|p| PoolId(p.id.load(Ordering::Relaxed)));
        let mut live: Vec<PoolId> = ids.filter(|&id| self.pool(id).is_some()).collect();
        live.sort_unstable();
        live
    }

    /// Whether the heap's memory must stay where it is.
    pub(crate) fn is_pinned(&self, heap: &Heap) -> bool {
        self.pool(PoolId(heap.pool())).is_some_and(Pool::is_pinned)
    }

    // ---- blocks --------------------------------------------------------------------------------------

    /// [B] where a block starts.
    #[inline(always)]
    pub(crate) fn offset(&self, id: Id) -> u64 {
        let d = self.maps.desc(id);
        u64::from(d.off()) << shift_of(d.tier_bits())
    }

    /// The live block that starts at `offset`, and its heap.
    pub(crate) fn live_block(&self, offset: u64) -> Result<(Found<'_>, &'static Heap)> {
        let found = self.maps.find(offset).filter(|f| f.desc.kind() == kind::LIVE);
        match found.and_then(|f| Some((f, self.heap(f.heap)?))) {
            Some(found) => Ok(found),
            None => fail!(Code::UnknownPointer, "no live block starts at this address"),
        }
    }

    /// Whether a block that was found earlier is still live. The heap is locked.
    pub(crate) fn still_live(&self, id: Id, offset: u64) -> bool {
        self.maps.desc(id).kind() == kind::LIVE && self.offset(id) == offset
    }

    /// The charge of a live or waiting block.
    pub(crate) fn charge(&self, id: Id) -> u64 {
        let d = self.maps.desc(id);
        self.charge_of(d.tier_bits(), d.units(), d.requested())
    }

    /// The charge of a request of `bytes` in a block of so many units: the charge of its size or, if the block is
    /// larger than that size needs, of the units.
    pub(crate) fn charge_of(&self, tier_bits: u32, units: u32, bytes: u64) -> u64 {
        let shape = &self.maps.shape;
        let plain = shape.charged_of(bytes);
        let size = shape.size(plain);
        if size.tier as u32 == tier_bits.min(2) && size.units == units {
            return plain;
        }
        u64::from(units) << shift_of(tier_bits)
    }
}

#[cfg(test)]
impl Ground {
    /// Checks every heap's invariants. Nothing else may run meanwhile.
    pub(crate) fn check(&self) {
        let used = self.growing().occupied(self.real).last().map_or(0, |run| run.end());
        for heap in self.all_heaps() {
            self.look(heap).check(used);
        }
        if self.config.source() == Source::OwnSegments {
            self.check_stuck();
        }
    }

    /// Counts again what is stuck in partly used segments.
    fn check_stuck(&self) {
        let parts: Vec<_> = self.growing().segments().map(|s| s.part).collect();
        let (mut free, mut stuck) = (Vec::new(), 0);
        for heap in self.all_heaps() {
            let h = self.look(heap);
            h.free_list(&mut free);
            let (whole, cut): (Vec<_>, Vec<_>) =
                free.iter().map(|f| f.part).partition(|p| parts.binary_search(p).is_ok());
            let units = |parts: &[Extent]| parts.iter().map(|p| i64::from(p.units)).sum::<i64>();
            let idle = h.idle();
            assert_eq!(idle.whole, units(&whole), "heap {}: free in whole segments", heap.index);
            assert_eq!(idle.free - idle.whole, units(&cut), "heap {}: stuck", heap.index);
            assert_eq!(idle.counted, units(&cut), "heap {}: counted as stuck", heap.index);
            stuck += units(&cut);
        }
        assert_eq!(self.stuck.now(), stuck, "stuck in all heaps");
    }
}
