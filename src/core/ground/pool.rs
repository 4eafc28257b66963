//! One pool: its settings, what keeps its memory in place, and the heap of each stream.
//!
//! The heap of a stream is found in a cache without a lock; a miss takes the lock of the pool's streams. Methods that
//! change what keeps the memory in place take the state behind the growth lock as witness (`&Growth`): an operation that
//! holds this lock may rely on them.

use super::super::heap::Heap;
use super::super::order::Waits;
use super::super::spare::Spare;
use super::super::state::growth::Growth;
use super::super::state::pools::{PoolStreams, Sleep};
use super::super::types::{NO_POOL, PoolId};
use super::counts::Refusals;
use crate::base::error::{Code, Result};
use crate::base::slots::AtomicRef;
use crate::base::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering::Relaxed, lock};
use crate::fail;
use crate::locks;

/// Entries of the lock-free cache of heaps, indexed by a hash of the stream.
const CACHE: usize = 64;
/// The multiplier of that hash: 2^32 divided by the golden ratio.
const HASH: u32 = 0x9E37_79B9;

/// One pool. Its slot is used again by other pools after its end.
pub struct Pool {
    /// Its id; [`NO_POOL`] once it has ended.
    id: AtomicU32,
    limit: AtomicU64, // [B] of reserved; 0: none
    /// Each of its blocks lies in one physical allocation.
    contiguous: AtomicBool,
    /// Requests to it that were refused.
    pub(crate) refusals: Refusals,
    /// Room below its peaks that no heap was dealt.
    pub(crate) spare: Spare,
    /// The number of live captures (graphs).
    kept: AtomicU32,
    /// The number of reasons why its memory must stay in place: captures, sleep.
    pins: AtomicU32,
    sleep: Mutex<Sleep>,
    /// What the memory of released captures waits for, until the pool is an ordinary one again.
    released: Mutex<Option<Waits>, locks::PoolReleased>,
    /// Heaps by hash of their stream. A hint: the heap itself says which stream it serves.
    cache: [AtomicRef<Heap>; CACHE],
    streams: Mutex<PoolStreams, locks::PoolStreams>,
}

#[inline(always)]
fn cache_index(stream: u64) -> usize {
    // Streams differ in their low 32 bits, and a shorter multiplication is fewer instructions.
    ((stream as u32).wrapping_mul(HASH) >> (u32::BITS - CACHE.trailing_zeros())) as usize
}

/// A pool that was looked up, with its id at that moment: its slot may belong to another pool by now.
#[derive(Clone, Copy)]
pub(crate) struct PoolRef {
    pub place: &'static Pool,
    pub id: PoolId,
}

impl Pool {
    /// An unused slot.
    pub(super) fn new() -> Pool {
        Pool {
            id: AtomicU32::new(NO_POOL),
            limit: AtomicU64::new(0),
            contiguous: AtomicBool::new(false),
            refusals: Refusals::default(),
            spare: Spare::default(),
            kept: AtomicU32::new(0),
            pins: AtomicU32::new(0),
            sleep: Mutex::default(),
            released: Mutex::default(),
            cache: [const { AtomicRef::none() }; CACHE],
            streams: Mutex::default(),
        }
    }

    /// Begins the life of a pool in this slot.
    pub(crate) fn begin(&self, id: u32, limit: u64, contiguous: bool) {
        self.limit.store(limit, Relaxed);
        self.contiguous.store(contiguous, Relaxed);
        self.refusals.clear();
        self.id.store(id, Relaxed);
    }

    /// Ends its life: no lookup by id finds it any more. The growth lock and the lock of its streams are held.
    pub(crate) fn end(&self, _: &Growth, streams: &PoolStreams) {
        self.id.store(NO_POOL, Relaxed);
        self.forget_heaps(streams);
    }

    /// The id of the pool in this slot; [`NO_POOL`] if it has ended.
    pub(crate) fn id(&self) -> u32 {
        self.id.load(Relaxed)
    }

    /// [B] the maximum that it may reserve; 0: no limit.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Sets that limit.
    pub(crate) fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Relaxed);
    }

    /// Whether each of its blocks lies in one physical allocation.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.contiguous.load(Relaxed)
    }

    // ---- heaps ---------------------------------------------------------------------------------------

    /// The heap that serves a stream here, if the cache has it.
    #[inline(always)]
    pub(crate) fn heap_of(&self, stream: u64) -> Option<&'static Heap> {
        let heap = self.cache[cache_index(stream)].get()?;
        // Only heaps of this pool are ever entered, and they leave with it, so comparing the stream is enough.
        (heap.stream() == stream).then_some(heap)
    }

    /// The lock of its streams.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn streams(&self) -> MutexGuard<'_, PoolStreams, locks::PoolStreams> {
        lock(&self.streams)
    }

    /// Caches the heap that serves a stream.
    pub(crate) fn remember(&self, _: &PoolStreams, stream: u64, heap: &'static Heap) {
        self.cache[cache_index(stream)].set(Some(heap));
    }

    /// Removes a stream from the cache; returns the number of its heap, if it has one.
    pub(super) fn evict(&self, stream: u64) -> Option<u32> {
        let streams = self.streams();
        self.cache[cache_index(stream)].set(None);
        streams.heaps.get(&stream).copied()
    }

    /// Removes all streams from the cache; returns the numbers of the pool's heaps.
    pub(super) fn evict_all(&self) -> Vec<u32> {
        let streams = self.streams();
        self.forget_heaps(&streams);
        streams.all()
    }

    /// Clears the cache. The caller closes the fast paths into the heaps.
    pub(crate) fn forget_heaps(&self, _: &PoolStreams) {
        self.cache.iter().for_each(|c| c.set(None));
    }

    // ---- what keeps its memory in place ----------------------------------------------------------------

    /// Whether its memory must stay where it is.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pins.load(Relaxed) > 0
    }

    /// Removes one reason why its memory must stay. The end of the device, which forgets all reasons, may have come
    /// before.
    pub(crate) fn unpin(&self, _: &Growth) {
        let _ = self.pins.fetch_update(Relaxed, Relaxed, |pins| pins.checked_sub(1));
    }

    /// The number of live captures.
    pub(crate) fn captures(&self) -> u32 {
        self.kept.load(Relaxed)
    }

    /// Adds a capture, which also pins the memory.
    pub(crate) fn keep(&self, _: &Growth) {
        self.kept.fetch_add(1, Relaxed);
        self.pins.fetch_add(1, Relaxed);
    }

    /// Removes a capture and its pin. `true`: it was the last one, and the caller has its pin now.
    pub(crate) fn end_keep(&self, g: &Growth) -> bool {
        let last = self.kept.fetch_sub(1, Relaxed) == 1;
        if !last {
            self.unpin(g);
        }
        last
    }

    /// The device has ended: no capture lives any more.
    pub(crate) fn forget_captures(&self) {
        self.kept.store(0, Relaxed);
    }

    /// The device has ended: nothing keeps the memory in place any more.
    pub(crate) fn forget_pins(&self) {
        self.pins.store(0, Relaxed);
        self.forget_released();
    }

    /// What the memory of released captures waits for.
    pub(crate) fn released(&self) -> MutexGuard<'_, Option<Waits>, locks::PoolReleased> {
        lock(&self.released)
    }

    /// The device has ended: nothing is waited for any more.
    pub(crate) fn forget_released(&self) {
        let waits = self.released().take();
        drop(waits); // with nothing locked
    }

    /// Whether its memory is present.
    fn sleep(&self) -> Sleep {
        *lock(&self.sleep)
    }

    /// Whether it sleeps, or is falling asleep or waking up.
    pub(crate) fn sleeps(&self) -> bool {
        self.sleep() != Sleep::Awake
    }

    /// `NotPermitted` while it sleeps.
    pub(crate) fn check_awake(&self) -> Result<()> {
        if self.sleeps() {
            fail!(Code::NotPermitted, "the pool sleeps");
        }
        Ok(())
    }

    /// Changes the state from `from` (`Awake` or `Sleeping`) to moving; `NotPermitted` if it is another.
    pub(crate) fn start_to_move(&self, _: &Growth, from: Sleep) -> Result<()> {
        let mut sleep = lock(&self.sleep);
        match (*sleep, from) {
            (Sleep::Awake, Sleep::Awake) => {
                self.pins.fetch_add(1, Relaxed);
            }
            (Sleep::Sleeping, Sleep::Sleeping) => {}
            (Sleep::Moving, _) => fail!(Code::Busy, "another thread puts the pool to sleep, or wakes it"),
            (Sleep::Sleeping, _) => fail!(Code::NotPermitted, "the pool sleeps already"),
            (Sleep::Awake, _) => fail!(Code::NotPermitted, "the pool does not sleep"),
        }
        *sleep = Sleep::Moving;
        Ok(())
    }

    /// Ends the moving state.
    pub(crate) fn stop_moving(&self, g: &Growth, to: Sleep) {
        if to == Sleep::Awake {
            self.unpin(g);
        }
        *lock(&self.sleep) = to;
    }
}
