//! How pools begin, and how the slots of ended ones are used again. `pool_table.rs` finds pools.

use super::super::types::{POOL_SLOTS, PoolId};
use super::Ground;
use super::pool_table::PoolTable;
use crate::base::error::{Code, Result, no_host_memory};
use crate::base::slots::Unput;
use crate::fail;

/// How many other pools must end before a pool's slot is used again. A thread that looked the pool up just before its end
/// and is still on its way then hardly ever finds another pool there, so it hardly ever has to be refused.
const RESTING: usize = 64;

impl Ground {
    /// The pools.
    #[inline(always)]
    pub(crate) fn pools(&self) -> &PoolTable {
        &self.pools
    }

    /// Makes a pool; `limit` bounds its reserved bytes, 0 means no limit. `contiguous`: each of its blocks lies in one
    /// physical allocation.
    pub(crate) fn new_pool(&self, limit: u64, contiguous: bool) -> Result<PoolId> {
        let mut ledger = self.ledger();
        let spare = match ledger.spare_pools.len() > RESTING || self.pools.is_full() {
            true => ledger.spare_pools.front().copied(),
            false => None,
        };
        let id = spare.unwrap_or_else(|| self.pools.next(&ledger));
        // As much must be there when the pool ends.
        let spare_pools = self.pools.next(&ledger) as usize + 1;
        let spare_pools = spare_pools.saturating_sub(ledger.spare_pools.len());
        if !ledger.pools.make_room() || ledger.spare_pools.try_reserve(spare_pools).is_err() {
            return Err(no_host_memory());
        }
        if spare.is_none() {
            match self.maps.reserved.make(id).and_then(|()| self.pools.add(&ledger)) {
                Ok(()) => {}
                Err(Unput::NoMemory) => return Err(no_host_memory()),
                Err(Unput::NoSlot) => {
                    fail!(Code::OutOfMemory, "more than {} pools on one device", POOL_SLOTS - 1)
                }
            }
        }
        // Nothing fails from here on.
        if spare.is_some() {
            ledger.spare_pools.pop_front();
        }
        if let Some(p) = self.pools.slot(id) {
            p.begin(id, limit, contiguous && self.config.mapping); // else each block lies in one segment anyway
        }
        self.maps.reserved.begin(id);
        ledger.pools.insert(id, Default::default());
        Ok(PoolId(id))
    }

    /// Releases the slot of a pool that has ended, to which nothing leads any more: another pool may have it, under an id
    /// that no pool had. Without this call the slot stays unused.
    pub(crate) fn release_slot(&self, id: PoolId) {
        if let Some(next) = id.0.checked_add(POOL_SLOTS) {
            self.ledger().spare_pools.push_back(next);
        }
    }
}
