//! The names of a device's pools, for those who are told of them: errors, reports, histories and snapshots.
//!
//! Most devices have none: then nothing is locked.

use crate::base::ordered::Map;
use crate::base::sync::system::{Mutex, lock};
use crate::core::{OomReport, PoolId};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The names of one device's pools.
#[derive(Default)]
pub(crate) struct PoolNames {
    /// Whether there ever were any. Relaxed: a thread that misses a name is one that came before it.
    any: AtomicBool,
    names: Mutex<Map<PoolId, String>>,
}

impl PoolNames {
    pub(crate) fn set(&self, pool: PoolId, name: &str) {
        lock(&self.names).insert(pool, name.to_owned());
        self.any.store(true, Relaxed);
    }

    /// The name of a pool, if it has one.
    pub(crate) fn get(&self, pool: PoolId) -> Option<String> {
        if self.any.load(Relaxed) { lock(&self.names).get(&pool).cloned() } else { None }
    }

    /// The pools that have this name.
    pub(crate) fn pools(&self, name: &str) -> Vec<PoolId> {
        let names = lock(&self.names);
        names.iter().filter(|(_, n)| *n == name).map(|(&pool, _)| pool).collect()
    }

    pub(crate) fn remove(&self, pool: PoolId) {
        if self.any.load(Relaxed) {
            lock(&self.names).remove(&pool);
        }
    }

    pub(crate) fn clear(&self) {
        lock(&self.names).clear();
    }

    /// Fills in the names of the pools in a report.
    pub(crate) fn complete(&self, r: &mut OomReport) {
        if !self.any.load(Relaxed) {
            return;
        }
        let names = lock(&self.names);
        let pools = r.pools.iter_mut().filter_map(|h| Some((h.pool?, &mut h.name)));
        for (pool, name) in pools.chain([(r.pool, &mut r.pool_name)]) {
            *name = names.get(&pool).map_or("", String::as_str).into();
        }
    }
}
