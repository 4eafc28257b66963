//! The handle cache: pools that were looked up recently. It maps a number that the caller has for a pool (the C API
//! uses the bits of its handle) to the memory and the pool, in a few loads and with no lock.
//!
//! What a number maps to must not change while a thread is using it. So the memory and the slot of an entry never
//! change. The entry of a pool that has ended is reused only for the next pool in the same slot of the core, which
//! comes long after. When a pool is destroyed or released, its numbers are removed before that call returns.
//!
//! Pools whose requests need more than the first step are left out: the default pool of a device while the device has
//! scopes, the pools of a device that has hooks, and all pools while a thread has a tag in force. Pools of a device
//! that is being watched are in a second table, which is looked at only after a miss in the first. Pools of a device
//! whose calls are timed are in a third.
//!
//! A thread that has a fast path into a heap (`fast_paths.rs`) open under a number does not look that number up here.
//! So each function that hides a number then closes the fast paths that may be open under it. It does so with no lock
//! held.

use crate::base::boxed::has_room;
use crate::base::clock;
use crate::base::fork;
use crate::base::ordered::Map;
use crate::base::slots::{ByNumber, Numbered};
use crate::base::sync::system::{Mutex, lock};
use crate::core::{Heap, HeapPath, Notes, Pool, PoolId, PoolRef};
use crate::locks;
use crate::runtime::entry::tags;
use crate::runtime::memory::fast_paths;
use crate::runtime::memory::pooled::Pooled;
use crate::runtime::memory::state::Memory;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A pool that was looked up.
#[repr(C)]
pub(crate) struct Entry {
    number: AtomicU64, // never 0; or RETIRED
    pooled: &'static Pooled,
    memory: &'static Memory, // of which `pooled` is part
    pool: &'static Pool,     // its slot in the core
    id: AtomicU32,
}

// SAFETY: `repr(C)`, the number first.
unsafe impl Numbered for Entry {}

type Table = ByNumber<Entry, 64>;
/// The cache.
static CACHE: Table = Table::new();
/// The same for devices that are being watched.
static WATCHED: Table = Table::new();
/// The same for devices whose calls are timed, watched or not.
static TIMED: Table = Table::new();

/// The number of an entry whose pool has ended. No pool has it: the numbers of pools have a mark in their high bits.
const RETIRED: u64 = 1;

/// All entries.
struct Entries {
    by_number: Map<u64, &'static Entry>,
    /// The numbers of each pool, by the address of its slot.
    by_pool: Map<usize, Vec<u64>>,
    /// Retired entries, by the address of their pool's slot.
    retired: Map<usize, Vec<&'static Entry>>,
}

static ENTRIES: Mutex<Entries, locks::HandleCache> =
    Mutex::new(Entries { by_number: Map::new(), by_pool: Map::new(), retired: Map::new() });

fn key(pool: &'static Pool) -> usize {
    std::ptr::from_ref(pool).addr()
}

/// Hides the number in all tables.
fn hide(number: u64) {
    for table in [&CACHE, &WATCHED, &TIMED] {
        if table.find(number).is_some() {
            table.set(number, None);
        }
    }
}

impl Entry {
    /// The pooled memory of the pool's device; stays valid after the end of the pool.
    #[inline(always)]
    pub(crate) fn pooled(&self) -> &'static Pooled {
        self.pooled
    }

    /// The slot that the pool has, or had.
    #[inline(always)]
    pub(crate) fn place(&self) -> &'static Pool {
        self.pool
    }

    /// The pool's slot and id, as long as the entry has this number.
    pub(crate) fn pool(&self, number: u64) -> Option<PoolRef> {
        // Acquire, with the Release in `enter`: a thread that reads the id of the entry's next pool no longer finds the
        // old number below.
        let (place, id) = (self.pool, self.id.load(Ordering::Acquire));
        let still = self.number.load(Ordering::Relaxed) == number;
        still.then_some(PoolRef { place, id: PoolId(id) })
    }

    /// Opens the calling thread's fast path into the heap of a stream of the pool, under the entry's number and the stream.
    /// If the thread does not own that heap, returns the heap instead.
    #[inline]
    pub(crate) fn open_fast_path(
        &'static self,
        number: u64,
        stream: u64,
    ) -> Result<HeapPath, Option<&'static Heap>> {
        let near = self.pooled.near_range();
        // These are read again under the heap's lock. A thread that changes one of them closes the fast path
        // afterwards, so either this sees the change or that closes the path.
        let may = || find(number).is_some_and(|e| std::ptr::eq(e, self)) && self.pooled.near_range() == near;
        self.pooled.pond.fast_paths().open(
            self.pool,
            [number, stream],
            near,
            Notes::default(),
            self.pooled,
            may,
        )
    }

    /// The same for a device that only a history watches. The path is open under another name, and a call that enters
    /// by it writes its event into the history's ring itself. `None`: nobody watches or others do, too; or the thread
    /// does not own the heap.
    #[inline]
    pub(crate) fn open_noted_path(&'static self, number: u64, stream: u64) -> Option<HeapPath> {
        let ring = self.pooled.observers.quick().filter(|_| clock::counts())?;
        let near = self.pooled.near_range();
        // As above.
        let may = || {
            find_watched(number).is_some_and(|e| std::ptr::eq(e, self))
                && self.pooled.near_range() == near
                && self.pooled.observers.quick().is_some_and(|r| std::ptr::eq(r, ring))
        };
        let name = fast_paths::noted([number, stream]);
        let notes = Notes { ring: Some(ring), pool: self.pool(number)?.id.0.into() };
        self.pooled.pond.fast_paths().open(self.pool, name, near, notes, self.pooled, may).ok()
    }

    /// The memory of the pool's device; stays valid after the end of the pool.
    pub(crate) fn memory(&self) -> &'static Memory {
        self.memory
    }
}

/// The entry of a number, if it was entered recently; none in a forked child.
#[inline(always)]
pub(crate) fn find(number: u64) -> Option<&'static Entry> {
    CACHE.find(number)
}

/// \[B\] What an entry takes in the lists, which double when they get longer, and some more.
const ENTRY_BYTES: usize = 64;

/// The same for a device that is being watched.
#[inline(always)]
pub(crate) fn find_watched(number: u64) -> Option<&'static Entry> {
    WATCHED.find(number)
}

/// The same for a device whose calls are timed.
#[inline(always)]
pub(crate) fn find_timed(number: u64) -> Option<&'static Entry> {
    TIMED.find(number)
}

/// Enters a pool under `number`, which no other pool may ever have. Does nothing for number 0.
#[cold]
pub(crate) fn enter(number: u64, memory: &'static Memory, id: PoolId) {
    if number == 0 {
        return;
    }
    fork::in_children(forget_all);
    let seen = memory.watchers().any() || memory.statistics().is_timed();
    if seen && (find_watched(number).is_some() || find_timed(number).is_some()) {
        return; // it is there: the request was not one that the first step serves
    }
    let mut entries = lock(&ENTRIES);
    // All of this is checked under the lock, as is below whether the device is watched or timed. A thread that changes
    // it calls `bypass`, `bypass_all` or `remove` afterwards, and so hides what was entered before.
    let hooked = memory.hooks().any();
    if id == PoolId::DEFAULT && memory.pools().has_scopes()
        || memory.pools().is_released(id)
        || tags::any()
        || hooked
    {
        return;
    }
    let Some((pooled, pool)) = memory.pooled_pool(id) else { return };
    let _ = pooled.whole.set(memory); // always the same
    let known = entries.by_number.get(&number).copied();
    // It is a cache: where the host has no memory for an entry, the pool is looked up each time.
    if known.is_none() && !has_room(ENTRY_BYTES * (entries.by_number.len() + 64)) {
        return;
    }
    let entry = known.unwrap_or_else(|| {
        let retired = entries.retired.get_mut(&key(pool)).and_then(Vec::pop);
        let entry: &'static Entry = retired.unwrap_or_else(|| {
            // Nobody finds it before it is in a table.
            let (number, id) = (AtomicU64::new(RETIRED), AtomicU32::new(id.0));
            Box::leak(Box::new(Entry { number, pooled, memory, pool, id }))
        });
        // Release: see `Entry::pool`.
        entry.id.store(id.0, Ordering::Release);
        entry.number.store(number, Ordering::Release);
        entries.by_number.insert(number, entry);
        let numbers = entries.by_pool.entry(key(pool)).or_default();
        numbers.push(number);
        let count = numbers.len();
        // For the end of the pool, which finds room for all of them.
        entries.retired.entry(key(pool)).or_default().reserve(count);
        entry
    });
    let table = match &pooled.observers {
        seen if seen.latencies.on() => &TIMED,
        seen if seen.any() => &WATCHED,
        _ => &CACHE,
    };
    table.set(number, Some(entry));
}

/// Hides the pool until it is entered again.
#[cold]
pub(crate) fn bypass(memory: &Pooled, pool: &'static Pool) {
    {
        let entries = lock(&ENTRIES);
        entries.by_pool.get(&key(pool)).into_iter().flatten().for_each(|&n| hide(n));
    }
    memory.pond.fast_paths().close(Some(pool));
}

/// Hides all pools of that memory, each until it is entered again.
#[cold]
pub(crate) fn bypass_all(memory: &Pooled) {
    {
        let entries = lock(&ENTRIES);
        let of_it = |e: &&'static Entry| std::ptr::eq(e.pooled, memory);
        entries.by_number.iter().filter(|(_, e)| of_it(e)).for_each(|(&n, _)| hide(n));
    }
    memory.pond.fast_paths().close(None);
}

/// Hides all pools, each until it is entered again.
#[cold]
pub(crate) fn bypass_everything() {
    // One device after the other, by address: the host may have no memory for a list.
    let at = |p: &&'static Pooled| std::ptr::from_ref(*p).addr();
    let next = |last: usize| {
        let entries = lock(&ENTRIES);
        if last == 0 {
            forget_all();
        }
        entries.by_number.values().map(|e| e.pooled).filter(|p| at(p) > last).min_by_key(at)
    };
    let mut last = 0;
    while let Some(pooled) = next(last) {
        last = at(&pooled);
        pooled.pond.fast_paths().close(None);
    }
}

/// Removes all numbers of the pool.
#[cold]
pub(crate) fn remove(memory: &Pooled, pool: &'static Pool) {
    {
        let mut entries = lock(&ENTRIES);
        for number in entries.by_pool.remove(&key(pool)).into_iter().flatten() {
            if let Some(entry) = entries.by_number.remove(&number) {
                hide(number);
                entry.number.store(RETIRED, Ordering::Release);
                entries.retired.entry(key(pool)).or_default().push(entry);
            }
        }
    }
    memory.pond.fast_paths().close(Some(pool));
}

/// Removes the numbers of all pools of a device that has ended.
#[cold]
pub(crate) fn remove_all(memory: &Pooled) {
    // One after the other: the host may have no memory for a list.
    let next = || {
        let entries = lock(&ENTRIES);
        entries.by_number.values().find(|e| std::ptr::eq(e.pooled, memory)).map(|e| e.pool)
    };
    while let Some(pool) = next() {
        remove(memory, pool);
    }
}

/// Empties the cache in a forked child, so that every call takes the slow path, which refuses it.
fn forget_all() {
    fast_paths::forget_all();
    [&CACHE, &WATCHED, &TIMED].into_iter().for_each(Table::clear);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::runtime;
    use crate::runtime::memory::Given;

    /// A number as the C API makes them; its low bits differ from the pool's id.
    fn number_for(id: PoolId) -> u64 {
        (0xB00C << 48) | (u64::from(id.0) + 7)
    }

    /// Between the moment when the core ends a pool and the moment when its number is removed, a request by that number
    /// still finds the slot. Other pools that come and go meanwhile must not get this slot; once the number is removed,
    /// one of them does.
    #[test]
    fn a_pools_slot_is_not_reused_while_a_number_leads_to_it() {
        let d = runtime::by_id(runtime::device("host", 0).unwrap().id()).unwrap();
        let (memory, s) = (d.memory(), d.streams().create().unwrap());
        let old = memory.pools().create(0).unwrap();
        let number = number_for(old);
        enter(number, memory, old);
        let (pooled, place) = memory.pooled_pool(old).unwrap();
        let come_and_go = || {
            (0..300).find_map(|_| {
                let pool = memory.pools().create(0).unwrap();
                if std::ptr::eq(memory.pooled_pool(pool).unwrap().1, place) {
                    return Some(pool);
                }
                memory.pools().destroy(pool).unwrap();
                None
            })
        };
        pooled.pond.pool_destroy(old).unwrap();
        for forgotten in [false, true] {
            let other = come_and_go();
            for _ in 0..other.map_or(0, |_| 100) {
                let p = memory.alloc(other.unwrap(), s, 1000).unwrap();
                memory.free(p, Some(s), None).unwrap();
            }
            let got = find(number).map(|e| e.pooled().alloc_quick(e.place(), s, 1000));
            assert!(matches!(got, None | Some(Given::Missed)), "a block of another pool");
            assert_eq!(other.is_some(), forgotten);
            if let Some(other) = other {
                memory.pools().destroy(other).unwrap();
            }
            remove(pooled, place);
            pooled.pond.pool_forgotten(old);
        }
    }

    /// A thread may still use an entry that it found after the pool has ended and the entry was reused for another
    /// pool.
    #[test]
    fn an_entry_that_was_found_never_leads_to_another_pool() {
        let d = runtime::by_id(runtime::device("host", 0).unwrap().id()).unwrap();
        let memory = d.memory();
        let old = memory.pools().create(0).unwrap();
        enter(number_for(old), memory, old);
        // Under AddressSanitizer the device is watched.
        let found = find(number_for(old)).or_else(|| find_watched(number_for(old))).unwrap();
        assert_eq!(found.pool(number_for(old)).unwrap().id, old);
        let place = found.place();
        memory.pools().destroy(old).unwrap();
        // More than the number of pools that must end before a slot is reused.
        for _ in 0..300 {
            let next = memory.pools().create(0).unwrap();
            enter(number_for(next), memory, next);
            assert!(found.pool(number_for(old)).is_none());
            assert!(std::ptr::eq(found.place(), place), "a thread on its way comes to another place");
            memory.pools().destroy(next).unwrap();
        }
    }
}
