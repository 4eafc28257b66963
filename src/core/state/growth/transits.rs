//! The operations that have memory in transit: out of the heaps or the device, and not placed yet.

use crate::base::ordered::Map;

/// Whose memory an operation has in transit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parts {
    /// That of one pool or two.
    Of(u32, u32),
    /// That of any pool.
    Any,
}

/// All transits, by number.
#[derive(Default)]
pub(crate) struct Transits {
    all: Map<u64, Parts>,
    last: u64,
    ended: u64,
}

impl Transits {
    /// Begins a transit. Returns its number.
    pub(crate) fn begin(&mut self, parts: Parts) -> u64 {
        self.last += 1;
        self.all.insert(self.last, parts);
        self.last
    }

    /// Ends a transit: the operation has placed all its memory.
    pub(crate) fn end(&mut self, number: u64) {
        self.all.remove(&number);
        self.ended += 1;
    }

    /// How many have ended so far.
    pub(crate) fn ended(&self) -> u64 {
        self.ended
    }

    /// Whether memory of the pool, or of any pool, is in transit.
    pub(crate) fn has(&self, pool: Option<u32>) -> bool {
        self.all.values().any(|parts| match (pool, parts) {
            (Some(p), &Parts::Of(a, b)) => p == a || p == b,
            _ => true,
        })
    }
}
