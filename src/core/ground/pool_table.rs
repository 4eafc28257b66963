//! The pools of a pond by id. A pool's slot is used again after its end, under an id that no pool had. Any thread may look a
//! pool up without a lock.

use super::super::heap::Heap;
use super::super::ledger::Ledger;
use super::super::types::{POOL_SLOTS, PoolId};
use super::pool::Pool;
use crate::base::error::{Code, Error, Result};
use crate::base::slots::{Slots, Unput};
use crate::base::sort;
use crate::base::sync::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// The pools of a pond; see the head of this file.
pub(crate) struct PoolTable {
    slots: Slots<Pool, { POOL_SLOTS as usize }>,
    count: AtomicU32,
    /// How many pools have released captures whose graphs may still run; see `Pool::released`.
    released: AtomicU32,
}

impl PoolTable {
    pub(super) fn new() -> Result<PoolTable> {
        Ok(PoolTable { slots: Slots::new()?, count: AtomicU32::new(0), released: AtomicU32::new(0) })
    }

    /// The pool with that id, if it is live.
    pub(crate) fn get(&self, id: PoolId) -> Option<&'static Pool> {
        self.slot(id.0).filter(|p| p.id() == id.0)
    }

    /// The pool with that id; an error if it is not live.
    pub(crate) fn live(&self, id: PoolId) -> Result<&'static Pool> {
        match self.get(id) {
            Some(p) => Ok(p),
            None => Err(Error::new(Code::InvalidArgument, "no such pool, or it was destroyed")),
        }
    }

    /// All pools, including slots of pools that have ended.
    pub(crate) fn all(&self) -> impl Iterator<Item = &'static Pool> {
        (0..self.count.load(Acquire)).filter_map(|i| self.slots.get(i as usize))
    }

    /// The ids of the live pools, in ascending order.
    pub(crate) fn ids(&self) -> Vec<PoolId> {
        let ids = self.all().map(|p| PoolId(p.id()));
        let mut live: Vec<PoolId> = ids.filter(|&id| self.get(id).is_some()).collect();
        sort::by_key(&mut live, |&id| id);
        live
    }

    /// Whether the heap's memory must stay where it is.
    pub(crate) fn is_pinned(&self, heap: &Heap) -> bool {
        self.get(PoolId(heap.pool())).is_some_and(Pool::is_pinned)
    }

    /// Whether each block of the pool lies in one physical allocation.
    pub(crate) fn is_contiguous(&self, pool: u32) -> bool {
        self.get(PoolId(pool)).is_some_and(Pool::is_contiguous)
    }

    /// `NotPermitted` if the pool sleeps, falls asleep or wakes.
    pub(crate) fn check_awake(&self, pool: PoolId) -> Result<()> {
        self.get(pool).map_or(Ok(()), Pool::check_awake)
    }

    /// Whether the pool sleeps.
    pub(crate) fn sleeps(&self, pool: PoolId) -> bool {
        self.get(pool).is_some_and(Pool::sleeps)
    }

    /// How many pools have released captures whose graphs may still run.
    pub(crate) fn released(&self) -> &AtomicU32 {
        &self.released
    }

    /// The slot of that id, whoever has it.
    pub(super) fn slot(&self, id: u32) -> Option<&'static Pool> {
        self.slots.get((id % POOL_SLOTS) as usize)
    }

    /// Whether every slot has been used.
    pub(super) fn is_full(&self) -> bool {
        self.count.load(Relaxed) >= POOL_SLOTS - 1
    }

    /// The number of the slot that is added next, which is its first id.
    pub(super) fn next(&self, _witness: &Ledger) -> u32 {
        self.count.load(Relaxed)
    }

    /// Adds that slot. The caller holds the ledger (`_witness`), so that no other thread adds one.
    pub(super) fn add(&self, witness: &Ledger) -> std::result::Result<(), Unput> {
        let id = self.next(witness);
        if self.is_full() {
            return Err(Unput::NoSlot);
        }
        self.slots.put(id as usize, Pool::new())?;
        self.count.store(id + 1, Release);
        Ok(())
    }
}
