//! One pool: whom it serves by which heap, and what may be done with it.

use super::super::heap::Heap;
use super::super::order::Waits;
use super::super::types::PoolId;
use crate::base::slots::AtomicRef;
use crate::base::sync::{AtomicU32, AtomicU64, Mutex, Ordering::Relaxed, levels, lock};
use std::collections::HashMap;

/// Streams looked up without a lock, by hash.
const CACHE: usize = 64;

/// One pool.
pub struct Pool {
    /// The id that it goes by now; `u32::MAX` when destroyed.
    pub(crate) id: AtomicU32,
    pub(crate) limit: AtomicU64, // [B] of reserved; 0: none
    pub(crate) oom_count: AtomicU64,
    /// Captures (graphs) that are alive. Changed under the growth lock.
    pub(crate) kept: AtomicU32,
    /// Reasons why what the pool has stays where it is: it is kept, or sleeps. Changed under the growth lock.
    pub(crate) pins: AtomicU32,
    /// Whether it sleeps. Changed under the growth lock.
    pub(crate) sleep: Mutex<Sleep>,
    /// What the memory of captures that were released waits for, until the pool is an ordinary one again.
    pub(crate) released: Mutex<Option<Waits>, { levels::POOL_RELEASED }>,
    /// Heaps by hash of their stream. A hint: the heap itself says whom it serves.
    cache: [AtomicRef<Heap>; CACHE],
    pub(crate) streams: Mutex<PoolStreams, { levels::POOL_STREAMS }>,
}

/// Whether the memory of a pool is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sleep {
    #[default]
    Awake,
    /// A thread takes its memory away or brings it back.
    Moving,
    Asleep,
}

/// The heaps of a pool.
#[derive(Default)]
pub(crate) struct PoolStreams {
    pub heaps: HashMap<u64, u32>,
    /// Heaps whose stream has ended, and such whose stream got another one meanwhile.
    pub orphans: Vec<u32>,
    /// Heaps that serve nobody until a graph's replay is over, which may use what is free in them.
    pub detached: Vec<u32>,
    /// Heaps that a thread is about to give to another stream.
    pub moving: Vec<u32>,
}

impl PoolStreams {
    /// The numbers of all heaps of the pool.
    pub(crate) fn all(&self) -> Vec<u32> {
        self.heaps.values().chain(&self.orphans).chain(&self.detached).chain(&self.moving).copied().collect()
    }
}

#[inline(always)]
fn cache_index(stream: u64) -> usize {
    (stream.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58) as usize
}

/// A pool that was looked up, and which it was then: its place may be another pool's by now.
#[derive(Clone, Copy)]
pub(crate) struct PoolRef {
    pub place: &'static Pool,
    pub id: PoolId,
}

impl Pool {
    pub(crate) fn new() -> Pool {
        Pool {
            id: AtomicU32::new(u32::MAX),
            limit: AtomicU64::new(0),
            oom_count: AtomicU64::new(0),
            kept: AtomicU32::new(0),
            pins: AtomicU32::new(0),
            sleep: Mutex::default(),
            released: Mutex::default(),
            cache: [const { AtomicRef::none() }; CACHE],
            streams: Mutex::default(),
        }
    }

    /// The heap that serves a stream here, if it was asked for before.
    #[inline(always)]
    pub(crate) fn heap_of(&self, stream: u64) -> Option<&'static Heap> {
        let heap = self.cache[cache_index(stream)].get()?;
        // Only heaps of this pool are ever entered, and they leave with it: the stream tells.
        (heap.stream() == stream).then_some(heap)
    }

    /// Remembers the heap that serves a stream. The pool's streams are locked.
    pub(crate) fn remember(&self, stream: u64, heap: &'static Heap) {
        self.cache[cache_index(stream)].set(Some(heap));
    }

    /// The stream's requests no longer find its heap here without a look at where they belong.
    pub(crate) fn evict(&self, stream: u64) {
        let _streams = lock(&self.streams);
        self.cache[cache_index(stream)].set(None);
    }

    /// `evict` for all streams.
    pub(crate) fn evict_all(&self) {
        let _streams = lock(&self.streams);
        self.forget_heaps();
    }

    /// No request finds a heap here the quick way. The pool's streams are locked, or the device ends.
    pub(crate) fn forget_heaps(&self) {
        self.cache.iter().for_each(|c| c.set(None));
    }

    /// Whether its memory must stay where it is.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pins.load(Relaxed) > 0
    }

    /// The device has ended: nothing is waited for any more.
    pub(crate) fn forget_released(&self) {
        let waits = lock(&self.released).take();
        drop(waits);
    }

    pub(crate) fn sleep_state(&self) -> Sleep {
        *lock(&self.sleep)
    }
}
