//! How much of what is taken from the device lies in chunks, and how much does not: for the account.
//!
//! A granule changes its class when it becomes a chunk, and when all in it is free again, under its heap's lock alone.
//! So these are atomic counters. Each has its exact peak: the highest value that it ever got.

use super::super::shape::Class;
use super::super::types::{COMMONS, Counter, POOL_SLOTS};
use super::super::units::GRANULE;
use crate::base::error::{Result, no_host_memory};
use crate::base::slots::{Slots, Unput};
use crate::base::sync::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// One quantity. While memory changes from one to another, a reader may see it in neither or in both.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    now: AtomicI64,
    peak: AtomicI64,
    total: AtomicU64,
}

impl Tally {
    fn add(&self, bytes: u64) {
        let now = self.now.fetch_add(bytes as i64, Relaxed) + bytes as i64;
        self.peak.fetch_max(now, Relaxed);
        self.total.fetch_add(bytes, Relaxed);
    }

    fn sub(&self, bytes: u64) {
        self.now.fetch_sub(bytes as i64, Relaxed);
    }

    fn counter(&self) -> Counter {
        let read = |n: &AtomicI64| u64::try_from(n.load(Relaxed)).unwrap_or(0);
        Counter { current: read(&self.now), peak: read(&self.peak), total: self.total.load(Relaxed) }
    }

    fn clear(&self) {
        self.now.store(0, Relaxed);
        self.peak.store(0, Relaxed);
        self.total.store(0, Relaxed);
    }

    fn reset_peak(&self) {
        self.peak.store(self.now.load(Relaxed), Relaxed);
    }
}

/// What is counted of one pool, or of the device.
#[derive(Default)]
struct Tallies {
    /// [B] reserved.
    classes: [Tally; 2],
    /// Live blocks that were oversize when they came.
    oversize: Tally,
}

impl Tallies {
    fn all(&self) -> impl Iterator<Item = &Tally> {
        self.classes.iter().chain([&self.oversize])
    }
}

/// Those of a device and its pools.
pub(crate) struct Reserved {
    device: Tallies,
    /// By slot; see [`POOL_SLOTS`].
    pools: Slots<Tallies, { POOL_SLOTS as usize }>,
}

impl Reserved {
    pub(crate) fn new() -> Result<Reserved> {
        let reserved = Reserved { device: Tallies::default(), pools: Slots::new()? };
        match reserved.make(COMMONS) {
            Ok(()) => Ok(reserved),
            Err(_) => Err(no_host_memory()),
        }
    }

    fn of_pool(&self, pool: u32) -> Option<&Tallies> {
        self.pools.get((pool % POOL_SLOTS) as usize)
    }

    /// Makes room for the pools that get the slot of this id.
    pub(crate) fn make(&self, pool: u32) -> std::result::Result<(), Unput> {
        let slot = (pool % POOL_SLOTS) as usize;
        match self.pools.get(slot) {
            Some(_) => Ok(()),
            None => self.pools.put(slot, Tallies::default()).map(drop),
        }
    }

    /// A new pool of this id, of which there may have been another one with the same slot.
    pub(crate) fn begin(&self, pool: u32) {
        self.of_pool(pool).into_iter().flat_map(Tallies::all).for_each(Tally::clear);
    }

    fn both(&self, pool: u32) -> impl Iterator<Item = &Tallies> {
        [Some(&self.device), self.of_pool(pool)].into_iter().flatten()
    }

    fn each(&self, pool: u32, class: Class) -> impl Iterator<Item = &Tally> {
        self.both(pool).map(move |t| &t.classes[class as usize])
    }

    /// A block that is oversize comes to life in a pool.
    pub(crate) fn oversize_begins(&self, pool: u32) {
        self.both(pool).for_each(|t| t.oversize.add(1));
    }

    /// Its life ends.
    pub(crate) fn oversize_ends(&self, pool: u32) {
        self.both(pool).for_each(|t| t.oversize.sub(1));
    }

    /// A pool has got memory from the device.
    pub(crate) fn taken(&self, pool: u32, bytes: u64) {
        self.each(pool, Class::Large).for_each(|t| t.add(bytes));
    }

    /// It has given some back.
    pub(crate) fn given(&self, pool: u32, bytes: u64) {
        self.each(pool, Class::Large).for_each(|t| t.sub(bytes));
    }

    /// Memory that is in no chunk changes its pool.
    pub(crate) fn moved(&self, from: u32, to: u32, bytes: u64) {
        let large = |pool| self.of_pool(pool).map(|t| &t.classes[Class::Large as usize]);
        large(from).inspect(|t| t.sub(bytes));
        large(to).inspect(|t| t.add(bytes));
    }

    /// So many granules of a pool become chunks.
    pub(crate) fn chunks_made(&self, pool: u32, count: u64) {
        self.each(pool, Class::Large).for_each(|t| t.sub(count * GRANULE));
        self.each(pool, Class::Small).for_each(|t| t.add(count * GRANULE));
    }

    /// So many chunks are ordinary granules again.
    pub(crate) fn chunks_gone(&self, pool: u32, count: u64) {
        self.each(pool, Class::Small).for_each(|t| t.sub(count * GRANULE));
        self.each(pool, Class::Large).for_each(|t| t.add(count * GRANULE));
    }

    fn of(&self, pool: Option<u32>) -> Option<&Tallies> {
        pool.map_or(Some(&self.device), |p| self.of_pool(p))
    }

    /// [B] of a pool, or of the device: in chunks, and not.
    pub(crate) fn counters(&self, pool: Option<u32>) -> [Counter; 2] {
        self.of(pool).map_or_else(Default::default, |t| t.classes.each_ref().map(Tally::counter))
    }

    /// Oversize blocks of a pool, or of the device.
    pub(crate) fn oversize(&self, pool: Option<u32>) -> Counter {
        self.of(pool).map_or_else(Default::default, |t| t.oversize.counter())
    }

    /// The peaks of a pool, or of the device, start again.
    pub(crate) fn reset_peaks(&self, pool: Option<u32>) {
        self.of(pool).into_iter().flat_map(Tallies::all).for_each(Tally::reset_peak);
    }
}
