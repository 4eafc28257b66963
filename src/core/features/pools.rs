//! Pools and their heaps: which heap serves a stream, and how a pool's sums outlive its heaps.

use super::super::desc::USES;
use super::super::ground::{Ground, Growing};
use super::super::heap::counters::ALL;
use super::super::heap::{Heap, LockedHeap};
use super::super::order::not_now;
use super::super::state::pools::{Pool, PoolStreams, Sleep};
use super::super::types::{NO_POOL, POOL_SLOTS, PoolId, RETIRED, UNORDERED};
use crate::base::error::{Code, Error, Result};
use crate::base::sort;
use crate::base::sync::{Ordering, Ordering::Relaxed, lock};
use crate::fail;

/// How often the end of a pool is tried again because other threads still use the pool.
const TRIES: usize = 8;

/// How many other pools must end before a pool's slot is reused: a thread that looked the pool up just before its end
/// and is still on its way then hardly ever finds another pool there, which it would have to be told.
const RESTING: usize = 64;

impl Ground {
    /// Finds, adopts or makes the heap for a stream that is not in the pool's cache; also returns the pool that it is
    /// of.
    #[cold]
    pub(crate) fn make_heap(&self, pool: PoolId, stream: u64) -> Result<(&'static Heap, PoolId)> {
        let mut tried = false;
        self.poll_released(); // after this, a heap may serve its stream again
        loop {
            // The capture's pool serves all requests of a captured stream. The named pool does not cache the heap, so
            // that each request comes here.
            let served = self.order.route(stream).unwrap_or(pool);
            let p = self.live_pool(served)?;
            let may_adopt = !tried && self.may_adopt(p, stream);
            let mut streams = lock(&p.streams);
            if p.id.load(Relaxed) != served.0 {
                fail!(Code::InvalidArgument, "the pool was destroyed meanwhile");
            }
            if p.sleep_state() != Sleep::Awake {
                fail!(Code::NotPermitted, "the pool sleeps");
            }
            if self.order.route(stream).is_some_and(|to| to != served) {
                // A capture has begun meanwhile. Its begin takes this lock to evict the stream, so whatever is cached
                // below before that is removed again.
                continue;
            }
            let index = match streams.heaps.get(&stream) {
                Some(&i) => i,
                None => {
                    let orphan = if may_adopt && !p.is_pinned() {
                        self.take_orphan(&mut streams, stream == UNORDERED)
                    } else {
                        None
                    };
                    match orphan {
                        Some(orphan) if stream == UNORDERED => {
                            streams.heaps.insert(stream, orphan.index);
                            orphan.index
                        }
                        Some(orphan) => {
                            streams.moving.push(orphan.index);
                            drop(streams);
                            self.adopt(p, served, orphan, stream);
                            tried = true;
                            continue;
                        }
                        None => {
                            let i = self.new_heap(served.0, stream)?.index;
                            streams.heaps.insert(stream, i);
                            i
                        }
                    }
                }
            };
            let Some(heap) = self.heap(index) else {
                return Err(Error::new(Code::Internal, "a heap is missing"));
            };
            p.remember(stream, heap);
            return Ok((heap, served));
        }
    }

    /// Whether a stream may adopt a heap that serves no stream.
    fn may_adopt(&self, p: &Pool, stream: u64) -> bool {
        // A captured stream cannot wait. Memory kept for a graph may be in use whenever the graph is replayed, on any
        // stream.
        let any = || !lock(&p.streams).orphans.is_empty();
        !p.is_pinned() && any() && !self.order.is_captured(stream)
    }

    /// Takes a heap that serves no stream: with `unordered` one of blocks without a stream, whose memory is idle at
    /// once, otherwise one whose stream has ended. (A heap that was detached for a graph may belong to a live stream,
    /// which goes on using the blocks that live in it.)
    fn take_orphan(&self, streams: &mut PoolStreams, unordered: bool) -> Option<&'static Heap> {
        let has_ended = |x| self.look(x).stream.as_ref().is_none_or(|s| s.end().is_some());
        let fits =
            |&i: &u32| self.heap(i).is_some_and(|x| (x.stream() == UNORDERED) == unordered && has_ended(x));
        let at = streams.orphans.iter().rposition(fits)?;
        self.heap(streams.orphans.swap_remove(at))
    }

    /// Gives a new stream the heap of one that has ended, with all its free memory; the new stream waits on the device
    /// for the old one's work. If that is impossible, the heap goes on serving no stream.
    fn adopt(&self, p: &Pool, pool: PoolId, heap: &'static Heap, stream: u64) {
        let before = self.look(heap).stream.clone();
        let is_over = match before.map(|s| self.order.fence(&s)) {
            Some(Ok(Some(fence))) => match self.order.hold_back(stream, &fence) {
                Ok(true) => true,
                Err(e) if not_now(&e) => false,
                _ => self.order.sync(&fence).is_ok(),
            },
            Some(Err(_)) => false,
            _ => true,
        };
        let of = self.order.stream(stream);
        let mut streams = lock(&p.streams);
        let at = streams.moving.iter().position(|&i| i == heap.index);
        let Some(at) = at.filter(|_| p.id.load(Relaxed) == pool.0) else {
            return; // the pool has ended meanwhile
        };
        streams.moving.swap_remove(at);
        if !is_over || streams.heaps.contains_key(&stream) || p.is_pinned() {
            streams.orphans.push(heap.index);
            return;
        }
        let mut h = self.lock(heap);
        h.inherited |= !h.counters.is_empty();
        h.serve(pool.0, stream, Some(of), 0);
        drop(h);
        streams.heaps.insert(stream, heap.index);
    }

    /// A heap that serves a stream of a pool from now on.
    pub(in crate::core) fn new_heap(&self, pool: u32, stream: u64) -> Result<&'static Heap> {
        let spare = lock(&self.ledger).spare_heaps.pop();
        let heap = match spare.and_then(|i| self.heap(i)) {
            Some(heap) => heap,
            None => {
                let _ledger = lock(&self.ledger);
                let i = self.heap_count.load(Relaxed);
                let Ok(heap) = self.heaps.put(i as usize, Heap::new(i, self.config.source())) else {
                    fail!(Code::OutOfMemory, "more than {} streams in use on one device", self.heaps.count());
                };
                // Release: a thread that sees the count sees the heap.
                self.heap_count.store(i + 1, Ordering::Release);
                heap
            }
        };
        let unordered = stream == UNORDERED;
        let of = (!unordered).then(|| self.order.stream(stream));
        let mut h = self.lock(heap);
        h.inherited = false;
        h.contiguous = self.is_contiguous(pool);
        h.serve(pool, stream, of, if unordered { USES } else { 0 });
        drop(h);
        Ok(heap)
    }

    /// Clears all caches of heaps, and closes the fast paths into them.
    pub(crate) fn forget_heaps(&self) {
        self.all_pools().for_each(Pool::forget_heaps);
        self.all_heaps().for_each(Heap::close_fast_path);
    }

    /// From here on requests of the stream to the pool look their heap up under the lock of the pool's streams again.
    pub(crate) fn evict(&self, pool: &Pool, stream: u64) {
        pool.evict(stream).and_then(|i| self.heap(i)).into_iter().for_each(Heap::close_fast_path);
    }

    /// The same for all streams.
    pub(crate) fn evict_all(&self, pool: &Pool) {
        pool.evict_all().into_iter().filter_map(|i| self.heap(i)).for_each(Heap::close_fast_path);
    }

    /// Closes the fast paths into the heaps of a pool, whose numbers nobody finds any more.
    pub(crate) fn close_fast_paths(&self, pool: &Pool) {
        let heaps = lock(&pool.streams).all();
        heaps.into_iter().filter_map(|i| self.heap(i)).for_each(Heap::close_fast_path);
    }

    /// Whether each block of the pool lies in one physical allocation.
    pub(in crate::core) fn is_contiguous(&self, pool: u32) -> bool {
        self.pool(PoolId(pool)).is_some_and(|p| p.contiguous.load(Relaxed))
    }

    /// A new pool; `limit` bounds its reserved bytes, 0 means no limit. `contiguous`: each of its blocks lies in one
    /// physical allocation.
    pub(crate) fn pool_create(&self, limit: u64, contiguous: bool) -> Result<PoolId> {
        let mut ledger = lock(&self.ledger);
        let i = self.pool_count.load(Relaxed);
        let spare = match ledger.spare_pools.len() > RESTING || i >= POOL_SLOTS - 1 {
            true => ledger.spare_pools.pop_front(),
            false => None,
        };
        let id = match spare {
            Some(id) => id,
            None => {
                if i >= POOL_SLOTS - 1 || self.pools.put(i as usize, Pool::new()).is_err() {
                    fail!(Code::OutOfMemory, "more than {} pools on one device", POOL_SLOTS - 1);
                }
                self.pool_count.store(i + 1, Ordering::Release);
                i
            }
        };
        if let Some(p) = self.pools.get((id % POOL_SLOTS) as usize) {
            p.limit.store(limit, Relaxed);
            p.contiguous.store(contiguous && self.config.mapping, Relaxed); // else segments do it
            for count in [&p.oom_count, &p.retries] {
                count.store(0, Relaxed);
            }
            p.id.store(id, Relaxed);
        }
        self.maps.reserved.begin(id);
        ledger.pools.insert(id, Default::default());
        Ok(PoolId(id))
    }

    /// Ends a pool and gives its memory back. `Busy` while it has live blocks; the default pool cannot be destroyed.
    pub(crate) fn pool_destroy(&self, id: PoolId) -> Result<()> {
        if id == PoolId::DEFAULT {
            fail!(Code::InvalidArgument, "the default pool of a device cannot be destroyed");
        }
        self.check_reentry()?;
        let p = self.live_pool(id)?;
        self.check_unused(p, id)?;
        let slept = self.discard_asleep(p, id)?;
        let done = self.end_pool(p, id);
        if slept && done.is_err() {
            self.sleep_on(p, id);
        }
        done
    }

    fn end_pool(&self, p: &Pool, id: PoolId) -> Result<()> {
        for _ in 0..TRIES {
            let before = self.ever_made(id);
            self.check_unused(p, id)?;
            self.wait_for_blocks(id)?;
            self.trim(Some(id.0))?;
            let mut g = self.growing();
            while g.is_in_transit(Some(id.0)) {
                g = g.wait_for_transit();
            }
            let mut streams = lock(&p.streams);
            if p.id.load(Relaxed) != id.0 {
                fail!(Code::InvalidArgument, "the pool was destroyed meanwhile");
            }
            if p.is_pinned() {
                fail!(Code::Busy, "a capture of the pool has begun meanwhile");
            }
            if self.retire_pool(&mut g, p, id, &mut streams, before)? {
                return Ok(());
            }
            drop((streams, g));
            std::thread::yield_now();
        }
        fail!(Code::Busy, "blocks of the pool come and go while it is to end")
    }

    /// The number of blocks that were ever allocated in the heaps of a pool.
    fn ever_made(&self, id: PoolId) -> u128 {
        self.heaps_of(id.0).into_iter().map(|x| self.lock(x).counters.totals()[ALL][2]).sum()
    }

    /// `Busy` while anybody uses the pool.
    fn check_unused(&self, p: &Pool, id: PoolId) -> Result<()> {
        let live = self.stats(Some(id))?.blocks.current;
        if live > 0 {
            fail!(Code::Busy, "{live} blocks of the pool are still live");
        }
        match p.kept.load(Relaxed) {
            0 => self.check_exports(id, true),
            n => fail!(Code::Busy, "{n} captures of the pool are still alive"),
        }
    }

    /// Waits on the host until the pool has no waiting blocks.
    fn wait_for_blocks(&self, id: PoolId) -> Result<()> {
        loop {
            self.heaps_of(id.0).into_iter().for_each(|x| _ = self.poll(x));
            self.poll_released();
            let p = self.live_pool(id)?;
            if !self.has_waiting(id.0) && !p.is_pinned() {
                return Ok(());
            }
            self.check_exports(id, true)?;
            if p.is_pinned() {
                self.wait_for_release(p)?;
            } else if !self.wait_for_one(Some(id.0)) {
                // Other threads are just freeing the rest, or it cannot be waited for; then the error says why.
                self.order.sync_device()?;
                self.bring_back(id)?;
                std::thread::yield_now();
            }
        }
    }

    /// Ends the pool. Memory that its heaps still own (parts of segments that others use too, and what the device
    /// refused to take back) belongs to no pool from now on. `false`: nothing was done, because a request is in
    /// progress, or because the device was not waited for since the last allocation: more blocks than `before` were
    /// made.
    fn retire_pool(
        &self,
        g: &mut Growing<'_>,
        p: &Pool,
        id: PoolId,
        streams: &mut PoolStreams,
        before: u128,
    ) -> Result<bool> {
        let mut heaps: Vec<_> = streams.all().iter().filter_map(|&i| self.heap(i)).collect();
        sort::by_key(&mut heaps, |x| x.index);
        let needs_commons = heaps.iter().any(|x| self.look(x).granules > 0);
        let commons = if needs_commons { Some(self.commons()?) } else { None };
        let mut ledger = lock(&self.ledger);
        // All of them at once: a thread that has found one of them may lock it at any moment.
        let mut locked: Vec<LockedHeap<'_>> = heaps.iter().map(|x| self.lock(x)).collect();
        locked.iter_mut().for_each(|h| self.drain(h));
        if locked.iter().any(|h| !h.waiting.is_empty() || !h.counters.is_empty()) {
            fail!(Code::Busy, "blocks of the pool are still live");
        }
        let made: u128 = locked.iter_mut().map(|h| h.counters.totals()[ALL][2]).sum();
        let has_more = (made != before || commons.is_none()) && locked.iter().any(|h| h.granules > 0);
        if has_more || locked.iter().any(|h| h.requests > 0) {
            return Ok(false);
        }
        p.id.store(NO_POOL, Relaxed);
        p.forget_heaps();
        let mut left = Vec::new();
        for h in &mut locked {
            h.give_up_whole();
            h.flush();
            if h.granules > 0 {
                left.extend(h.take_all(|granule| g.segment_end(granule)));
            }
            h.give_ids_up();
            self.leave_ledger(&mut ledger, h);
            h.serve(NO_POOL, RETIRED, None, 0);
            ledger.spare_heaps.push(h.heap.index);
        }
        drop(locked);
        for (block, commons) in left.into_iter().zip(commons.into_iter().cycle()) {
            self.give_to_nobody(g, id.0, commons, block);
        }
        streams.heaps.clear();
        streams.orphans.clear();
        streams.detached.clear();
        streams.moving.clear();
        ledger.pools.remove(&id.0);
        g.forget_pool(id.0);
        Ok(true)
    }

    /// A pool has ended, and nothing leads to its slot any more: another may have it, under an id that no pool had. Without
    /// this it stays unused.
    pub(crate) fn pool_forgotten(&self, id: PoolId) {
        if let Some(next) = id.0.checked_add(POOL_SLOTS) {
            lock(&self.ledger).spare_pools.push_back(next);
        }
    }

    /// Sets a pool's limit of reserved bytes; 0: none.
    pub(crate) fn pool_set_limit(&self, pool: PoolId, bytes: u64) -> Result<()> {
        self.live_pool(pool)?.limit.store(bytes, Relaxed);
        Ok(())
    }
}
