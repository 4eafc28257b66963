//! What is remembered of a pool besides its settings: whether its memory is present, and which heap serves which stream.

use std::collections::HashMap;

/// Whether the memory of a pool is present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sleep {
    #[default]
    Awake,
    /// A thread is taking its memory away or bringing it back.
    Moving,
    Sleeping,
}

/// The heaps of a pool, by number.
#[derive(Default)]
pub(crate) struct PoolStreams {
    /// Heaps that serve a stream, by its id.
    pub heaps: HashMap<u64, u32>,
    /// Heaps whose stream has ended, and heaps whose stream has got another one meanwhile.
    pub orphans: Vec<u32>,
    /// Heaps that serve no stream until a graph's replay is done, since it may use what is free in them.
    pub detached: Vec<u32>,
    /// Heaps that a thread is about to assign to another stream.
    pub moving: Vec<u32>,
}

impl PoolStreams {
    /// The numbers of all heaps of the pool.
    pub(crate) fn all(&self) -> Vec<u32> {
        self.heaps.values().chain(&self.orphans).chain(&self.detached).chain(&self.moving).copied().collect()
    }

    /// Forgets all heaps: the pool has ended.
    pub(crate) fn clear(&mut self) {
        *self = PoolStreams::default();
    }
}
