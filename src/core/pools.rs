//! Pools and their heaps: which heap serves a stream, what becomes of it when the stream ends, and how
//! the sums of a pool outlive its heaps.

use super::desc::USES;
use super::heap::{Heap, Inner, Mark, Use};
use super::ledger::{Peaks, Sums};
use super::pond::{Pond, lock};
use super::types::PoolId;
use crate::base::biased::Guard;
use crate::base::error::{Code, Error, Result};
use crate::base::slots::AtomicRef;
use crate::base::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, Ordering::Relaxed};
use crate::fail;
use std::collections::{BTreeMap, HashMap};

/// Stands for all streams of a device together, known or not; see `Backing::streams`.
pub(crate) const EVERY: u64 = u64::MAX - 2;
/// The stream of a heap that serves requests without a stream.
pub(crate) const UNORDERED: u64 = u64::MAX - 1;
/// The stream of a heap whose stream has ended, or that serves nobody yet.
pub(crate) const RETIRED: u64 = u64::MAX;

/// Streams looked up without a lock, by hash.
const CACHE: usize = 64;
/// Pools at one time: the low half of a [`PoolId`]; the high half counts the uses of a slot.
const SLOTS: u32 = 1 << 16;

/// One pool.
pub struct Pool {
    /// The id that it goes by now; `u32::MAX` when destroyed.
    pub(crate) id: AtomicU32,
    pub(crate) limit: AtomicU64, // [B] of reserved; 0: none
    pub(crate) oom_count: AtomicU64,
    /// Captures (graphs) that are alive: while there are any, what the pool has stays where it is.
    pub(crate) kept: AtomicU32,
    /// Its memory is away; it serves nobody.
    pub(crate) asleep: AtomicBool,
    /// Heaps by hash of their stream. A hint: the heap itself says whom it serves.
    cache: [AtomicRef<Heap>; CACHE],
    streams: Mutex<Streams>,
}

#[derive(Default)]
struct Streams {
    heaps: HashMap<u64, u32>,
    /// Heaps whose stream has ended, and the point up to which that stream's work may still run.
    orphans: Vec<(u32, Option<Mark>)>,
}

/// A pool's part of the ledger.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PoolLedger {
    pub peaks: Peaks,
    pub sums: Sums,
    pub below: [i64; 3],
}

/// A heap and the hold of its lock.
pub(crate) type Locked = (&'static Heap, Guard<'static, Inner>);

/// Peaks of the device and of its pools.
#[derive(Default)]
pub(crate) struct Ledger {
    pub device: Peaks,
    pub pools: BTreeMap<u32, PoolLedger>,
    /// Sums of pools that were destroyed.
    pub gone: [u64; 3],
    /// Heaps that serve nobody.
    pub spare_heaps: Vec<u32>,
    /// An empty list, kept so that locking all heaps takes no memory from the host.
    pub scratch: Vec<Locked>,
    /// Slots of destroyed pools, with the id that comes next.
    pub spare_pools: Vec<u32>,
}

#[inline(always)]
fn cache_index(stream: u64) -> usize {
    (stream.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58) as usize
}

impl Pool {
    /// The stream's requests no longer find its heap here without a look at where they belong.
    pub(crate) fn evict(&self, stream: u64) {
        let _streams = lock(&self.streams);
        self.cache[cache_index(stream)].set(None);
    }

    /// `evict` for all streams.
    pub(crate) fn evict_all(&self) {
        let _streams = lock(&self.streams);
        self.cache.iter().for_each(|c| c.set(None));
    }

    /// The heap that serves a stream here, if it was asked for before.
    #[inline(always)]
    pub(crate) fn heap_of(&self, stream: u64) -> Option<&'static Heap> {
        let heap = self.cache[cache_index(stream)].get()?;
        // Only heaps of this pool are ever entered, and they leave with it: the stream tells.
        (heap.stream.load(Relaxed) == stream).then_some(heap)
    }
}

impl Pond {
    /// The pool of that id, if it lives.
    pub fn pool(&self, id: PoolId) -> Option<&'static Pool> {
        self.pools.get((id.0 % SLOTS) as usize).filter(|p| p.id.load(Relaxed) == id.0)
    }

    /// The heap of a stream that the cache does not know: found, adopted or made.
    #[cold]
    pub(crate) fn make_heap(&self, pool: PoolId, stream: u64) -> Result<&'static Heap> {
        // Of a captured stream, the capture's pool serves all requests. The pool that was named does not
        // remember the heap, so that each request comes by here.
        let pool = self.route(stream).unwrap_or(pool);
        let Some(p) = self.pool(pool) else {
            fail!(Code::InvalidArgument, "no such pool, or it was destroyed");
        };
        let mut streams = lock(&p.streams);
        if p.id.load(Relaxed) != pool.0 {
            fail!(Code::InvalidArgument, "the pool was destroyed meanwhile");
        }
        if p.asleep.load(Relaxed) {
            fail!(Code::NotPermitted, "the pool sleeps");
        }
        if self.route(stream).is_some_and(|to| to != pool) {
            // A capture has begun meanwhile. Under the lock that its begin takes to evict the stream: what is
            // remembered below is forgotten there.
            drop(streams);
            return self.make_heap(pool, stream);
        }
        let index = match streams.heaps.get(&stream) {
            Some(&i) => i,
            None => {
                let i = match self.adopt(&mut streams, stream)? {
                    Some(i) => i,
                    None => self.new_heap(pool, stream)?,
                };
                streams.heaps.insert(stream, i);
                i
            }
        };
        let Some(heap) = self.heaps.get(index as usize) else {
            return Err(Error::new(Code::Internal, "a heap is missing"));
        };
        p.cache[cache_index(stream)].set(Some(heap));
        Ok(heap)
    }

    /// Gives a new stream the heap of one that has ended, with all that is free in it; the new stream
    /// waits on the device for the old one's work.
    fn adopt(&self, streams: &mut Streams, stream: u64) -> Result<Option<u32>> {
        if stream == UNORDERED || streams.orphans.is_empty() || self.captured(stream) {
            return Ok(None); // its memory must be idle at once; a captured stream cannot wait
        }
        let Some((index, mark)) = streams.orphans.pop() else { return Ok(None) };
        if let Some(m) = mark {
            let waited = match self.backing.passed(m) {
                Ok(true) => Ok(()),
                _ => self.backing.wait(stream, m),
            };
            if let Err(e) = waited {
                streams.orphans.push((index, mark));
                return Err(e);
            }
            self.backing.forget(m);
        }
        if let Some(heap) = self.heaps.get(index as usize) {
            heap.stream.store(stream, Relaxed);
        }
        Ok(Some(index))
    }

    fn new_heap(&self, pool: PoolId, stream: u64) -> Result<u32> {
        let mut ledger = lock(&self.ledger);
        let index = match ledger.spare_heaps.pop() {
            Some(i) => i,
            None => {
                let i = self.heap_count.load(Relaxed);
                if self.heaps.put(i as usize, Heap::new(i, self.config.mapping)).is_err() {
                    fail!(Code::OutOfMemory, "more than {} streams in use on one device", self.heaps.len());
                }
                // Release: who sees the count sees the heap.
                self.heap_count.store(i + 1, Ordering::Release);
                i
            }
        };
        if let Some(heap) = self.heaps.get(index as usize) {
            heap.inner.lock().live_flags = if stream == UNORDERED { USES } else { 0 };
            heap.pool.store(pool.0, Relaxed);
            heap.stream.store(stream, Relaxed);
        }
        Ok(index)
    }

    /// No request finds a heap the quick way from now on.
    pub(crate) fn forget_heaps(&self) {
        for slot in 0..self.pool_count.load(Ordering::Acquire) as usize {
            if let Some(p) = self.pools.get(slot) {
                p.cache.iter().for_each(|c| c.set(None));
            }
        }
    }

    /// The stream is about to end. Its live blocks stay valid; what is free in its heaps goes to the next
    /// new stream, or to whoever runs short.
    pub fn stream_destroyed(&self, stream: u64) {
        if stream == UNORDERED || stream == RETIRED {
            return;
        }
        self.mark_later();
        self.end_uses(stream);
        for slot in 0..self.pool_count.load(Ordering::Acquire) as usize {
            let Some(p) = self.pools.get(slot) else { continue };
            let mut streams = lock(&p.streams);
            let Some(index) = streams.heaps.remove(&stream) else { continue };
            // No mark (a sick device): whoever adopts the heap cannot wait; the device lost its work anyway.
            let mark = self.backing.mark(stream).ok();
            if let Some(heap) = self.heaps.get(index as usize) {
                heap.stream.store(RETIRED, Relaxed);
            }
            streams.orphans.push((index, mark));
        }
    }

    /// Live blocks that the stream has used could not wait for it any more at their free: it is waited for
    /// here, on the host, if there are any.
    fn end_uses(&self, stream: u64) {
        let heaps =
            || (0..self.heap_count.load(Ordering::Acquire) as usize).filter_map(|i| self.heaps.get(i));
        let open = |u: &Use| u.stream == stream && u.ended.is_none();
        if !heaps().any(|x| x.inner.lock().uses.values().flatten().any(open)) {
            return;
        }
        if let Ok(m) = self.backing.mark(stream) {
            let _ = self.backing.sync(m); // a device that cannot wait any more runs nothing either
            self.backing.forget(m);
        }
        for x in heaps() {
            x.inner.lock().uses.values_mut().for_each(|u| u.retain(|u| !open(u)));
        }
    }

    /// The mark of an orphaned heap, for who takes memory from it. `None`: it is not an orphan, or has none.
    pub(crate) fn orphan_mark(&self, heap: &Heap) -> Option<Mark> {
        let p = self.pool(PoolId(heap.pool.load(Relaxed)))?;
        let streams = lock(&p.streams);
        streams.orphans.iter().find(|o| o.0 == heap.index).and_then(|o| o.1)
    }

    /// The device is idle: nobody needs to wait for streams that have ended.
    pub(crate) fn forget_orphan_marks(&self) {
        for slot in 0..self.pool_count.load(Ordering::Acquire) as usize {
            let Some(p) = self.pools.get(slot) else { continue };
            for o in &mut lock(&p.streams).orphans {
                if let Some(m) = o.1.take() {
                    self.backing.forget(m);
                }
            }
        }
    }

    /// A new pool; `limit` bounds what it reserves, 0 is no limit.
    pub fn pool_create(&self, limit: u64) -> Result<PoolId> {
        let mut ledger = lock(&self.ledger);
        let id = match ledger.spare_pools.pop() {
            Some(id) => id,
            None => {
                let i = self.pool_count.load(Relaxed);
                let fresh = Pool {
                    id: AtomicU32::new(u32::MAX),
                    limit: AtomicU64::new(0),
                    oom_count: AtomicU64::new(0),
                    kept: AtomicU32::new(0),
                    asleep: AtomicBool::new(false),
                    cache: [const { AtomicRef::none() }; CACHE],
                    streams: Mutex::new(Streams::default()),
                };
                if i >= SLOTS - 1 || self.pools.put(i as usize, fresh).is_err() {
                    fail!(Code::OutOfMemory, "more than {} pools on one device", SLOTS - 1);
                }
                self.pool_count.store(i + 1, Ordering::Release);
                i
            }
        };
        if let Some(p) = self.pools.get((id % SLOTS) as usize) {
            p.limit.store(limit, Relaxed);
            p.oom_count.store(0, Relaxed);
            p.id.store(id, Relaxed);
        }
        ledger.pools.insert(id, Default::default());
        Ok(PoolId(id))
    }

    /// Ends a pool and gives its memory back. `Busy` while blocks of it live; the default pool stays.
    pub fn pool_destroy(&self, pool: PoolId) -> Result<()> {
        if pool == PoolId::DEFAULT {
            fail!(Code::InvalidArgument, "the default pool of a device cannot be destroyed");
        }
        let live = self.stats(Some(pool))?.blocks.current;
        if live > 0 {
            fail!(Code::Busy, "{live} blocks of the pool are still live");
        }
        if let Some(n) = self.pool(pool).map(|p| p.kept.load(Relaxed)).filter(|&n| n > 0) {
            fail!(Code::Busy, "{n} captures of the pool are still alive");
        }
        self.check_loans(pool, true)?;
        self.discard_asleep(pool)?;
        self.empty_cache(Some(pool))?;
        let Some(p) = self.pool(pool) else {
            fail!(Code::InvalidArgument, "no such pool, or it was destroyed");
        };
        let mut growth = self.hold_growth()?;
        self.check_loans(pool, true)?;
        let mut streams = lock(&p.streams);
        let mut ledger = lock(&self.ledger);
        if p.kept.load(Relaxed) > 0 {
            fail!(Code::Busy, "a capture of the pool has begun meanwhile");
        }
        p.id.store(u32::MAX, Relaxed);
        p.cache.iter().for_each(|c| c.set(None));
        let mut gone: Vec<u32> = streams.heaps.drain().map(|(_, i)| i).collect();
        for (i, mark) in streams.orphans.drain(..) {
            if let Some(m) = mark {
                self.backing.forget(m);
            }
            gone.push(i);
        }
        for i in gone {
            let Some(heap) = self.heaps.get(i as usize) else { continue };
            heap.stream.store(RETIRED, Relaxed);
            heap.pool.store(u32::MAX, Relaxed);
            let mut h = heap.inner.lock();
            for (gone, total) in ledger.gone.iter_mut().zip(h.take_totals()) {
                *gone += total;
            }
            ledger.spare_heaps.push(i);
        }
        ledger.pools.remove(&pool.0);
        growth.pools.remove(&pool.0);
        ledger.spare_pools.push(pool.0.wrapping_add(SLOTS));
        Ok(())
    }

    /// Sets a pool's limit of reserved bytes; 0: none.
    pub fn pool_set_limit(&self, pool: PoolId, bytes: u64) -> Result<()> {
        match self.pool(pool) {
            Some(p) => {
                p.limit.store(bytes, Relaxed);
                Ok(())
            }
            None => Err(Error::new(Code::InvalidArgument, "no such pool, or it was destroyed")),
        }
    }
}
