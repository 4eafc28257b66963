//! The handle cache: pools that were looked up recently. It leads from a number that the caller gives a pool (the C API
//! uses the bits of its handle) to the memory and the pool, in a few loads and with no lock.
//!
//! What a number leads to must not change while a thread follows it. So an entry is never changed once it can be found,
//! and that of a pool that has ended is used again only long after, as is the pool's slot in the core. A pool that ends,
//! or takes no more requests, is removed before whoever wanted that is told so; the default pool of a device cannot be
//! found while the device has scopes, and none while a thread has a tag in force. Pools of a device that somebody
//! watches are found in a table of their own, which is looked at only after a miss.

use crate::base::fork;
use crate::base::slots::AtomicRef;
use crate::base::sync::levels;
use crate::base::sync::system::Mutex;
use crate::core::{Pool, PoolId, PoolRef};
use crate::runtime::lock;
use crate::runtime::memory::{Memory, Pooled};
use crate::runtime::tags;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A pool that was looked up.
pub(crate) struct Entry {
    number: AtomicU64, // or 0, or RETIRED
    pooled: AtomicRef<Pooled>,
    memory: AtomicRef<Memory>, // that it is part of
    pool: AtomicRef<Pool>,
    id: AtomicU32,
}

impl Entry {
    const fn empty() -> Entry {
        Entry {
            number: AtomicU64::new(0),
            pooled: AtomicRef::none(),
            memory: AtomicRef::none(),
            pool: AtomicRef::none(),
            id: AtomicU32::new(0),
        }
    }
}

static NONE: Entry = Entry::empty();

const SLOTS: usize = 64;
/// By the low bits of the number.
static CACHE: [AtomicRef<Entry>; SLOTS] = [const { AtomicRef::to(&NONE) }; SLOTS];
/// The same, of devices that somebody watches.
static WATCHED: [AtomicRef<Entry>; SLOTS] = [const { AtomicRef::to(&NONE) }; SLOTS];

/// The number of an entry whose pool has ended. It is nobody's: the numbers of pools have a mark in their high bits.
const RETIRED: u64 = 1;

/// All entries.
struct Entries {
    by_number: BTreeMap<u64, &'static Entry>,
    /// By the address of the pool.
    by_pool: BTreeMap<usize, Vec<u64>>,
    /// Retired ones, by the address of their place.
    retired: BTreeMap<usize, Vec<&'static Entry>>,
}

static ENTRIES: Mutex<Entries, { levels::HANDLE_CACHE }> =
    Mutex::new(Entries { by_number: BTreeMap::new(), by_pool: BTreeMap::new(), retired: BTreeMap::new() });

fn key(pool: &'static Pool) -> usize {
    std::ptr::from_ref(pool).addr()
}

/// The number is not found any more, in neither table.
fn hide(number: u64) {
    for table in [&CACHE, &WATCHED] {
        let slot = &table[number as usize % SLOTS];
        if slot.get().is_some_and(|e| e.number.load(Ordering::Relaxed) == number) {
            slot.set(Some(&NONE));
        }
    }
}

impl Entry {
    /// The pooled part of the memory of the pool's device, also after the end of the pool.
    #[inline(always)]
    pub(crate) fn pooled(&self) -> Option<&'static Pooled> {
        self.pooled.get()
    }

    /// Where the pool is, or was.
    #[inline(always)]
    pub(crate) fn place(&self) -> Option<&'static Pool> {
        self.pool.get()
    }

    /// The pool, and which it is, while the entry is of this number.
    pub(crate) fn pool(&self, number: u64) -> Option<PoolRef> {
        // Acquire: who reads what is the next pool's does not find the number below.
        let (place, id) = (self.pool.get()?, self.id.load(Ordering::Acquire));
        let still = self.number.load(Ordering::Relaxed) == number;
        still.then_some(PoolRef { place, id: PoolId(id) })
    }

    /// The memory of the pool's device, also after the end of the pool.
    pub(crate) fn memory(&self) -> Option<&'static Memory> {
        self.memory.get()
    }
}

/// What a number leads to, if it was entered recently; nothing in a forked child.
#[inline(always)]
pub(crate) fn find(number: u64) -> Option<&'static Entry> {
    find_in(&CACHE, number)
}

/// The same where somebody watches the device.
#[inline(always)]
pub(crate) fn find_watched(number: u64) -> Option<&'static Entry> {
    find_in(&WATCHED, number)
}

#[inline(always)]
fn find_in(table: &[AtomicRef<Entry>; SLOTS], number: u64) -> Option<&'static Entry> {
    let slot = &table[number as usize % SLOTS];
    slot.get().filter(|entry| entry.number.load(Ordering::Relaxed) == number)
}

/// Enters a pool, which may be found from now on by this number, unless that is 0. No other pool ever has it.
#[cold]
pub(crate) fn enter(number: u64, memory: &'static Memory, id: PoolId) {
    if number == 0 {
        return;
    }
    fork::in_children(forget_all);
    if memory.is_watched() && find_watched(number).is_some() {
        return; // a request that was not served the quickest way
    }
    let mut entries = lock(&ENTRIES);
    // Checked under the lock, as is whether anybody watches: a thread that changes one of these calls `bypass`,
    // `bypass_all` or `remove` afterwards.
    if id == PoolId::DEFAULT && memory.has_scopes() || memory.is_released(id) || tags::any() {
        return;
    }
    let Some((pooled, pool)) = memory.pooled_pool(id) else { return };
    let known = entries.by_number.get(&number).copied();
    let entry = known.unwrap_or_else(|| {
        let retired = entries.retired.get_mut(&key(pool)).and_then(Vec::pop);
        let entry: &'static Entry = retired.unwrap_or_else(|| {
            let entry = Entry::empty();
            entry.pooled.set(Some(pooled));
            entry.memory.set(Some(memory));
            entry.pool.set(Some(pool));
            Box::leak(Box::new(entry))
        });
        // Release: see `Entry::pool`.
        entry.id.store(id.0, Ordering::Release);
        entry.number.store(number, Ordering::Release);
        entries.by_number.insert(number, entry);
        entries.by_pool.entry(key(pool)).or_default().push(number);
        entry
    });
    let table = if pooled.observers.any() { &WATCHED } else { &CACHE };
    table[number as usize % SLOTS].set(Some(entry));
}

/// The pool is not found until it is entered again.
#[cold]
pub(crate) fn bypass(pool: &'static Pool) {
    let entries = lock(&ENTRIES);
    entries.by_pool.get(&key(pool)).into_iter().flatten().for_each(|&n| hide(n));
}

/// No pool of that memory is found until it is entered again.
#[cold]
pub(crate) fn bypass_all(memory: &Pooled) {
    let entries = lock(&ENTRIES);
    let of_it = |e: &&'static Entry| e.pooled.get().is_some_and(|m| std::ptr::eq(m, memory));
    entries.by_number.iter().filter(|(_, e)| of_it(e)).for_each(|(&n, _)| hide(n));
}

/// No pool is found until it is entered again.
#[cold]
pub(crate) fn bypass_everything() {
    let _entries = lock(&ENTRIES);
    forget_all();
}

/// Removes all numbers of the pool.
#[cold]
pub(crate) fn remove(pool: &'static Pool) {
    let mut entries = lock(&ENTRIES);
    for number in entries.by_pool.remove(&key(pool)).into_iter().flatten() {
        if let Some(entry) = entries.by_number.remove(&number) {
            hide(number);
            entry.number.store(RETIRED, Ordering::Release);
            entries.retired.entry(key(pool)).or_default().push(entry);
        }
    }
}

/// The device has ended: removes all numbers of its pools.
#[cold]
pub(crate) fn remove_all(memory: &Pooled) {
    let pools: Vec<&'static Pool> = {
        let entries = lock(&ENTRIES);
        let of_it = |e: &&&'static Entry| e.pooled.get().is_some_and(|m| std::ptr::eq(m, memory));
        entries.by_number.values().filter(of_it).filter_map(|e| e.pool.get()).collect()
    };
    pools.into_iter().for_each(remove);
}

/// In a forked child no number leads anywhere: the slow path refuses the call.
fn forget_all() {
    CACHE.iter().chain(&WATCHED).for_each(|slot| slot.set(Some(&NONE)));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::core::Got;
    use crate::runtime;

    /// A number as the C API gives them; its low bits have nothing to do with the pool's id.
    fn number_for(id: PoolId) -> u64 {
        (0xB00C << 48) | (u64::from(id.0) + 7)
    }

    /// The thread that ends a pool stands where the core has ended it and its number leads to it yet. Meanwhile other pools
    /// come and go, until one would have the place; and whoever asks by the old number is at home there.
    #[test]
    fn a_place_is_its_pools_for_as_long_as_numbers_lead_there() {
        let d = runtime::by_id(runtime::device("host", 0).unwrap().id()).unwrap();
        let (memory, s) = (d.memory(), d.stream_create().unwrap());
        let old = memory.pool_create(0).unwrap();
        let number = number_for(old);
        enter(number, memory, old);
        let (pooled, place) = memory.pooled_pool(old).unwrap();
        let come_and_go = || {
            (0..300).find_map(|_| {
                let pool = memory.pool_create(0).unwrap();
                if std::ptr::eq(memory.pooled_pool(pool).unwrap().1, place) {
                    return Some(pool);
                }
                memory.pool_destroy(pool).unwrap();
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
            let got = find(number).and_then(|e| Some(e.pooled()?.alloc_quick(e.place()?, s, 1000)));
            assert!(!matches!(got, Some(Got::Block(..))), "a block of another pool");
            assert_eq!(other.is_some(), forgotten);
            if let Some(other) = other {
                memory.pool_destroy(other).unwrap();
            }
            remove(place);
            pooled.pond.pool_forgotten(old);
        }
    }

    /// Who has found a pool goes on when it has ended and its entry serves another.
    #[test]
    fn what_was_found_is_never_told_as_another_pool() {
        let d = runtime::by_id(runtime::device("host", 0).unwrap().id()).unwrap();
        let memory = d.memory();
        let old = memory.pool_create(0).unwrap();
        enter(number_for(old), memory, old);
        let found = find(number_for(old)).unwrap();
        assert_eq!(found.pool(number_for(old)).unwrap().id, old);
        let place = found.place().unwrap();
        memory.pool_destroy(old).unwrap();
        // More than the pools that must end before a place is used again.
        for _ in 0..300 {
            let next = memory.pool_create(0).unwrap();
            enter(number_for(next), memory, next);
            assert!(found.pool(number_for(old)).is_none());
            assert!(
                found.place().is_some_and(|p| std::ptr::eq(p, place)),
                "a thread on its way comes to another place"
            );
            memory.pool_destroy(next).unwrap();
        }
    }
}
