//! The account of what is reserved: by the device and by each pool, with what is being requested right now.

use super::super::super::desc::Reserved;
use super::super::super::types::{COMMONS, Counter};
use super::super::super::units::granule_bytes;
use crate::base::ordered::Map;
use std::sync::Arc;

/// The memory that a pool or the device has reserved.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Holdings {
    pub reserved: Counter,
    pub segments: Counter,
    pub sleeping: Counter,
    /// Segments that were oversize when they came.
    pub oversize: Counter,
}

/// \[B\] reserved or being requested, against which limits are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// By the device.
    pub device: u64,
    /// By one of its pools.
    pub pool: u64,
}

/// The holdings of a device and its pools.
#[derive(Default)]
pub(crate) struct Account {
    device: Holdings,
    pools: Map<u32, Holdings>,
    /// The same bytes by class, for those who do not hold the growth lock; none in tests.
    by_class: Option<Arc<Reserved>>,
    /// [B] being requested from the device now, by pool, and in total.
    claims: Map<u32, u64>,
    claimed: u64,
}

impl Account {
    pub(super) fn new(by_class: Option<Arc<Reserved>>) -> Account {
        Account { by_class, ..Account::default() }
    }

    /// What the device holds.
    pub(crate) fn device(&self) -> Holdings {
        self.device
    }

    /// [B] reserved by the device.
    pub(crate) fn reserved(&self) -> u64 {
        self.device.reserved.current
    }

    /// What a pool holds.
    pub(crate) fn of(&self, pool: u32) -> Holdings {
        self.pools.get(&pool).copied().unwrap_or_default()
    }

    fn both(&mut self, pool: u32) -> [&mut Holdings; 2] {
        [&mut self.device, self.pools.entry(pool).or_default()]
    }

    /// Counts memory that the device has given to a pool.
    pub(crate) fn hold(&mut self, pool: u32, bytes: u64, segments: u64) {
        for h in self.both(pool) {
            h.reserved.add(bytes);
            h.segments.add(segments);
        }
        self.by_class.as_ref().inspect(|r| r.taken(pool, bytes));
    }

    /// Counts memory of a pool that has gone back to the device.
    pub(crate) fn release(&mut self, pool: u32, bytes: u64, segments: u64) {
        for h in self.both(pool) {
            h.reserved.sub(bytes);
            h.segments.sub(segments);
        }
        self.by_class.as_ref().inspect(|r| r.given(pool, bytes));
    }

    /// Counts memory that moves from one pool to another.
    pub(crate) fn move_between(&mut self, from: u32, to: u32, bytes: u64, segments: u64) {
        if from == to {
            return;
        }
        let h = self.pools.entry(from).or_default();
        h.reserved.sub(bytes);
        h.segments.sub(segments);
        let h = self.pools.entry(to).or_default();
        h.reserved.add(bytes);
        h.segments.add(segments);
        self.by_class.as_ref().inspect(|r| r.moved(from, to, bytes));
    }

    /// Counts an oversize segment that came to a pool.
    pub(super) fn add_oversize(&mut self, pool: u32) {
        self.both(pool).into_iter().for_each(|h| h.oversize.add(1));
    }

    /// Counts an oversize segment that has gone back to the device.
    pub(super) fn remove_oversize(&mut self, pool: u32) {
        self.both(pool).into_iter().for_each(|h| h.oversize.sub(1));
    }

    /// Counts granules of a pool, some of them chunks, that have fallen asleep: they are no longer reserved, but their
    /// numbers stay taken.
    pub(crate) fn fall_asleep(&mut self, pool: u32, granules: u64, chunks: u64) {
        let bytes = granules * granule_bytes(1);
        self.release(pool, bytes, granules);
        self.by_class.as_ref().inspect(|r| r.chunks_gone(pool, chunks));
        self.both(pool).into_iter().for_each(|h| h.sleeping.add(bytes));
    }

    /// Counts sleeping granules that are back.
    pub(crate) fn wake_up(&mut self, pool: u32, granules: u64, chunks: u64) {
        self.end_sleep(pool, granules, chunks);
        self.hold(pool, granules * granule_bytes(1), granules);
    }

    /// Counts sleeping granules that are gone for good.
    pub(crate) fn end_sleep(&mut self, pool: u32, granules: u64, chunks: u64) {
        let bytes = granules * granule_bytes(1);
        self.by_class.as_ref().inspect(|r| r.chunks_made(pool, chunks));
        self.both(pool).into_iter().for_each(|h| h.sleeping.sub(bytes));
    }

    /// Counts bytes towards the limits of a pool and of the device while the device is asked for them.
    pub(crate) fn claim(&mut self, pool: u32, bytes: u64) {
        self.claim_own(pool, bytes);
        self.claimed += bytes;
    }

    /// Ends a [`claim`](Self::claim): the device has answered.
    pub(crate) fn unclaim(&mut self, pool: u32, bytes: u64) {
        self.unclaim_own(pool, bytes);
        self.claimed -= bytes;
    }

    /// Counts bytes towards the limit of a pool while they are on their way to it from another pool.
    pub(crate) fn claim_own(&mut self, pool: u32, bytes: u64) {
        *self.claims.entry(pool).or_default() += bytes;
    }

    /// Ends a [`claim_own`](Self::claim_own): the memory has arrived, or stays where it was.
    pub(crate) fn unclaim_own(&mut self, pool: u32, bytes: u64) {
        if let Some(c) = self.claims.get_mut(&pool) {
            *c -= bytes;
            if *c == 0 {
                self.claims.remove(&pool);
            }
        }
    }

    /// What is reserved or being requested: by the device, and by a pool.
    pub(crate) fn taken(&self, pool: u32) -> Taken {
        let claims = self.claims.get(&pool).copied().unwrap_or(0);
        Taken { device: self.reserved() + self.claimed, pool: self.of(pool).reserved.current + claims }
    }

    /// Resets the peaks of a pool, or of the device, to the current values.
    pub(crate) fn reset_peaks(&mut self, pool: Option<u32>) {
        let held = match pool {
            None => Some(&mut self.device),
            Some(p) => self.pools.get_mut(&p),
        };
        if let Some(h) = held {
            let all = [&mut h.reserved, &mut h.segments, &mut h.sleeping, &mut h.oversize];
            all.into_iter().for_each(Counter::reset_peak);
        }
        self.by_class.as_ref().inspect(|r| r.reset_peaks(pool));
    }

    /// Forgets a pool that has ended. The segments that were given to it, of which others have parts, count for the
    /// commons from now on: so many, and so many of them oversize.
    pub(super) fn forget_pool(&mut self, pool: u32, segments: u64, oversize: u64) {
        if segments > 0 {
            let commons = self.pools.entry(COMMONS).or_default();
            commons.segments.add(segments);
            commons.oversize.add(oversize);
        }
        self.pools.remove(&pool);
    }
}
