//! One pool: which heap serves which stream, and what may be done with the pool.

use super::super::heap::Heap;
use super::super::order::Waits;
use super::super::types::PoolId;
use crate::base::slots::AtomicRef;
use crate::base::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering::Relaxed, lock};
use crate::locks;
use std::collections::HashMap;

/// Entries of the lock-free cache of heaps, indexed by a hash of the stream.
const CACHE: usize = 64;

/// One pool.
pub struct Pool {
    /// Its current id; `u32::MAX` once destroyed.
    pub(crate) id: AtomicU32,
    pub(crate) limit: AtomicU64, // [B] of reserved; 0: none
    /// Each of its blocks lies in one physical allocation.
    pub(crate) contiguous: AtomicBool,
    pub(crate) oom_count: AtomicU64,
    /// Requests that the device, or a limit, refused, and that went on elsewhere.
    pub(crate) retries: AtomicU64,
    /// The number of live captures (graphs). Changed under the growth lock.
    pub(crate) kept: AtomicU32,
    /// The number of reasons why its memory must stay in place: captures, sleep. Changed under the growth lock.
    pub(crate) pins: AtomicU32,
    /// Whether it sleeps. Changed under the growth lock.
    pub(crate) sleep: Mutex<Sleep>,
    /// What the memory of released captures waits for, until the pool is an ordinary one again.
    pub(crate) released: Mutex<Option<Waits>, locks::PoolReleased>,
    /// Heaps by hash of their stream. A hint: the heap itself says which stream it serves.
    cache: [AtomicRef<Heap>; CACHE],
    pub(crate) streams: Mutex<PoolStreams, locks::PoolStreams>,
}

/// Whether the memory of a pool is present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sleep {
    #[default]
    Awake,
    /// A thread is taking its memory away or bringing it back.
    Moving,
    Asleep,
}

/// The heaps of a pool.
#[derive(Default)]
pub(crate) struct PoolStreams {
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
}

#[inline(always)]
fn cache_index(stream: u64) -> usize {
    // Streams differ in their low 32 bits, and a shorter multiplication is fewer instructions.
    ((stream as u32).wrapping_mul(0x9E37_79B9) >> (u32::BITS - CACHE.trailing_zeros())) as usize
}

/// A pool that was looked up, with its id at that moment: its slot may belong to another pool by now.
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
            contiguous: AtomicBool::new(false),
            oom_count: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            kept: AtomicU32::new(0),
            pins: AtomicU32::new(0),
            sleep: Mutex::default(),
            released: Mutex::default(),
            cache: [const { AtomicRef::none() }; CACHE],
            streams: Mutex::default(),
        }
    }

    /// The heap that serves a stream here, if the stream has been used before.
    #[inline(always)]
    pub(crate) fn heap_of(&self, stream: u64) -> Option<&'static Heap> {
        let heap = self.cache[cache_index(stream)].get()?;
        // Only heaps of this pool are ever entered, and they leave with it, so comparing the stream is enough.
        (heap.stream() == stream).then_some(heap)
    }

    /// Caches the heap that serves a stream. The pool's streams are locked.
    pub(crate) fn remember(&self, stream: u64, heap: &'static Heap) {
        self.cache[cache_index(stream)].set(Some(heap));
    }

    /// Removes a stream from the cache; returns the number of its heap, if it has one.
    pub(crate) fn evict(&self, stream: u64) -> Option<u32> {
        let streams = lock(&self.streams);
        self.cache[cache_index(stream)].set(None);
        streams.heaps.get(&stream).copied()
    }

    /// Removes all streams from the cache; returns the numbers of the pool's heaps.
    pub(crate) fn evict_all(&self) -> Vec<u32> {
        let streams = lock(&self.streams);
        self.forget_heaps();
        streams.all()
    }

    /// Clears the cache. The pool's streams are locked, or the device is ending.
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
