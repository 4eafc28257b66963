//! The complete state of one pond, with its locks. The code that acts on it is on the floors above, in types of their
//! own: each borrows the ground, or the part of it that it needs.
//!
//! None of its locks (`docs/architecture.md`, "Locks") is held while the device is called or a thread waits for
//! another: what an operation needs meanwhile it takes out of the heaps and holds as memory in transit
//! ([`Transit`]). What a lock guards is reached only through its guard: [`Growing`] for the growth lock, `LockedHeap`
//! for a heap.

use super::aliases::Aliases;
use super::backing::Backing;
use super::desc::Maps;
use super::heap::{Changed, Scratch, Shared, Stuck};
use super::ledger::Ledger;
use super::order::Order;
use super::spare::Spare;
use super::state::captures::Captures;
use super::state::checkpoints::Checkpoints;
use super::state::explaining::Explaining;
use super::state::growth::Growth;
use super::state::sleeping::SleepingPools;
use super::state::tags::Tags;
use super::state::tuned::Tuned;
use super::tied::Tied;
use super::units::{GRANULE, GranuleRun};
use crate::base::error::{Code, Result};
use crate::base::ordered::Set;
use crate::base::room::{CALL_BYTES, check_room};
use crate::base::sync::{AtomicU64, Condvar, Lock, LockGuard, Mutex, MutexGuard, Ordering::Relaxed, lock};
use crate::fail;
use crate::locks;
use config::Numbers;
use counts::Hints;
use heap_table::HeapTable;
use pool_table::PoolTable;
use std::sync::Arc;

#[cfg(test)]
mod check;
mod config;
mod counts;
pub(crate) mod gaps;
mod growing;
mod heap_table;
mod heaps;
mod pool;
mod pool_table;
mod pools;

pub use config::{AddressSpan, Config};
pub(crate) use counts::Refusals;
pub(crate) use growing::{Growing, Transit};
pub use pool::Pool;
pub(crate) use pool::PoolRef;

/// \[B\] the most that one heap, one block, or one granule takes of all lists that a call makes of them at one time.
const HEAP_BYTES: u64 = 1024;
const BLOCK_BYTES: u64 = 256;
const GRANULE_BYTES: u64 = 512;

/// `OutOfMemory` if the host has no memory for a call with lists of so many bytes. It asks for whole multiples, since the C library
/// writes behind what it gives: with each size a page more of it becomes the process's.
fn check_room_for_lists(bytes: u64) -> Result<()> {
    check_room((CALL_BYTES + bytes as usize).next_multiple_of(CALL_BYTES))
}

/// The state of a pond; see the head of this file.
///
/// The fields of the first group are open to all of `core`. They are constant, or guard themselves with atomics and with
/// locks of their own, so a shared reference cannot break them, and a method that only returns the field would protect
/// nothing. Nobody can replace or borrow one mutably: the pond owns its ground and hands out shared references only
/// (checked in `tests/sources/ground.rs`).
pub(crate) struct Ground {
    /// Descriptors, and the maps from granules and units to them; all are atomics. Who may change which entry is told in
    /// `desc.rs`.
    pub(super) maps: Maps,
    /// The sizes of the device. Constant.
    pub(super) config: Config,
    /// The device. Its methods say which of them may be called while one of the locks below is held.
    pub(super) backing: Arc<dyn Backing>,
    /// Streams, fences and captures, with locks of their own. Most of its methods call the device; see its head.
    pub(super) order: Order,
    /// The tuning; each number is an atomic.
    pub(super) tuned: Tuned,
    /// What earlier searches have found out; atomics.
    pub(super) hints: Hints,
    /// Requests to the device that were refused; atomics.
    pub(super) refusals: Refusals,
    /// Room below the peaks of the device that no heap was dealt; atomics.
    pub(super) spare: Spare,

    // The rest is reached by the methods below, and what a lock guards only through that lock.
    limit: AtomicU64, // [B] of reserved; 0: none
    /// Granules of memory; granule numbers from here on are addresses for scattered blocks.
    memory_granules: u32,
    heaps: HeapTable,
    pools: PoolTable,
    growth: Mutex<Growth, locks::Growth>,
    transit_ended: Condvar,
    ledger: Mutex<Ledger, locks::Ledger>,
    captures: Mutex<Captures, locks::Captures>,
    checkpoints: Mutex<Checkpoints, locks::Checkpoints>,
    sleeping: Mutex<SleepingPools, locks::Sleeping>,
    tags: Lock<Tags>,
    /// The heaps in which freed blocks wait, by number. A hint: one that is just being entered may be missing.
    waiting: Lock<Set<u32>, locks::Waiting>,
    /// Lists of the last search for memory, kept for reuse.
    scratch: Lock<Scratch>,
    /// Lists of the report of a request that found no memory. Taken while growth is locked.
    explaining: Mutex<Explaining>,
    // What heaps share; see `shared`.
    aliases: Lock<Aliases, locks::Aliases>,
    changed: Changed,
    tied: Arc<Tied>,
    stuck: Stuck,
}

impl Ground {
    /// The state of an empty pond over `backing`, from which nothing is taken yet.
    pub(crate) fn new(config: Config, backing: Arc<dyn Backing>) -> Result<Ground> {
        let Numbers { memory, window } = config.granule_numbers()?;
        let maps = Maps::new(config.shape()?, memory, window, config.most_blocks)?;
        let tied = Arc::new(if config.mapping { Tied::new(memory)? } else { Tied::default() });
        Ok(Ground {
            config,
            order: Order::new(backing.clone()),
            backing,
            tuned: Tuned::default(),
            hints: Hints::default(),
            refusals: Refusals::default(),
            spare: Spare::default(),
            limit: AtomicU64::new(0),
            memory_granules: memory,
            heaps: HeapTable::new()?,
            pools: PoolTable::new()?,
            growth: Mutex::new(Growth::new(memory, Some(maps.reserved.clone()), tied.clone())),
            transit_ended: Condvar::new(),
            ledger: Mutex::default(),
            captures: Mutex::default(),
            checkpoints: Mutex::default(),
            sleeping: Mutex::default(),
            tags: Lock::new(Tags::default()),
            waiting: Lock::new(Set::new()),
            scratch: Lock::new(Scratch::default()),
            explaining: Mutex::default(),
            aliases: Lock::new(Aliases::new(GranuleRun::new(memory, window), config.most_pieces)),
            changed: Changed::default(),
            tied,
            stuck: Stuck::default(),
            maps,
        })
    }

    /// What all heaps share.
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

    /// [B] the maximum that the device's user lets it reserve; 0: no limit.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Sets that limit.
    pub(crate) fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Relaxed);
    }

    /// The number of granules of memory.
    pub(crate) fn memory_granules(&self) -> u32 {
        self.memory_granules
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

    /// `OutOfMemory` if the host has no memory for lists of all heaps, blocks and granules: for what could not say so later,
    /// before it changes anything.
    pub(crate) fn check_host_room(&self) -> Result<()> {
        let asleep: u64 = self.sleeping().iter().map(|(_, s)| s.granules()).sum();
        let lists = u64::from(self.heaps.count()) * HEAP_BYTES
            + u64::from(self.maps.ids_made()) * BLOCK_BYTES
            + (self.granules_taken() + asleep) * GRANULE_BYTES;
        check_room_for_lists(lists)
    }

    /// The same for lists of what was taken from the device.
    pub(crate) fn check_room_to_take(&self) -> Result<()> {
        check_room_for_lists(self.granules_taken() * GRANULE_BYTES)
    }

    #[inline(never)]
    fn granules_taken(&self) -> u64 {
        let reserved: u64 = self.maps.reserved.counters(None).iter().map(|c| c.current).sum();
        reserved / GRANULE
    }

    // ---- locks -----------------------------------------------------------------------------------------

    /// The sums and peaks.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger, locks::Ledger> {
        lock(&self.ledger)
    }

    /// The live captures.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn captures(&self) -> MutexGuard<'_, Captures, locks::Captures> {
        lock(&self.captures)
    }

    /// The checkpoints.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn checkpoints(&self) -> MutexGuard<'_, Checkpoints, locks::Checkpoints> {
        lock(&self.checkpoints)
    }

    /// The sleeping memory of the pools.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn sleeping(&self) -> MutexGuard<'_, SleepingPools, locks::Sleeping> {
        lock(&self.sleeping)
    }

    /// The addresses of scattered blocks.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn aliases(&self) -> LockGuard<'_, Aliases, locks::Aliases> {
        self.aliases.lock()
    }

    /// The sums of the tags.
    pub(crate) fn tags(&self) -> &Lock<Tags> {
        &self.tags
    }

    /// The heaps in which freed blocks wait.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn waiting_heaps(&self) -> LockGuard<'_, Set<u32>, locks::Waiting> {
        self.waiting.lock()
    }

    /// The lists of the last search for memory.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn scratch(&self) -> LockGuard<'_, Scratch> {
        self.scratch.lock()
    }

    /// The lists of the report of a request that found no memory.
    pub(crate) fn explaining(&self) -> MutexGuard<'_, Explaining> {
        lock(&self.explaining)
    }
}
