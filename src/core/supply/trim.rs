//! Unused memory back to the device.
//!
//! Other threads go on meanwhile. So what goes back is first taken out of its heap, where nobody finds it any more,
//! and only then is the device waited for: work that was queued before the free may be on it until then.

use super::*;

/// Granules that were taken out of a heap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    heap: u32,
    first: u32,
    count: u32,
}

impl Pond {
    /// Gives unused memory back to the device: of one pool, or of all. Waits for the device first.
    pub fn empty_cache(&self, pool: Option<PoolId>) -> Result<()> {
        if let Some(p) = pool
            && self.pool(p).is_none()
        {
            fail!(Code::InvalidArgument, "no such pool, or it was destroyed");
        }
        let mut g = self.hold_growth()?;
        self.trim(&mut g, pool).map(|_| ())
    }

    pub(in crate::core) fn trim(&self, g: &mut Growth, pool: Option<PoolId>) -> Result<bool> {
        self.sync_and_settle(g)?;
        self.mark_later();
        self.poll_all(true);
        self.forget_orphan_marks();
        self.give_up_whole();
        self.merge_all();
        let wanted = |x: &Heap| pool.is_none_or(|p| p.0 == x.pool.load(Relaxed)) && !self.pinned(x);
        let mut any = false;
        if self.config.mapping {
            let taken = self.take_free(g, wanted, u64::MAX);
            self.give_back(g, &taken, &mut any)?;
        } else {
            self.gather(g, |_| pool.is_none())?;
            let held: Vec<Segment> = g.segments_held.values().copied().collect();
            let taken = self.take_segments(held, wanted, |_| true);
            self.give_back_segments(g, &taken, &mut any)?;
            // What the pool still has lies in segments that it shares: the others may have it.
            self.gather(g, |x| pool.is_some_and(|p| p.0 == x))?;
        }
        Ok(any)
    }

    /// Merges everything that was freed so far.
    pub(super) fn merge_all(&self) {
        for i in 0..self.heap_count.load(Ordering::Acquire) as usize {
            let Some(heap) = self.heaps.get(i) else { continue };
            let mut h = heap.inner.lock();
            self.drain(heap, &mut h);
            self.flush(heap, &mut h);
        }
    }

    /// Takes up to `most` free granules out of the wanted heaps: (heap, first, count). Nobody can use them then, but
    /// work that was queued before they were freed still may.
    pub(super) fn take_free(&self, g: &mut Growth, wanted: impl Fn(&Heap) -> bool, most: u64) -> Vec<Run> {
        let mut taken = Vec::new();
        let mut left = most;
        for i in 0..self.heap_count.load(Ordering::Acquire) as usize {
            let Some(heap) = self.heaps.get(i).filter(|x| left > 0 && wanted(x)) else { continue };
            let mut h = heap.inner.lock();
            g.runs.clear();
            h.free_runs(&self.maps, &mut g.runs);
            for &(count, first, id) in &g.runs {
                // From the end of the run: its owner goes on from the front.
                let n = u64::from(count).min(left) as u32;
                let first = first + count - n;
                if n > 0 && h.take_run(&self.maps, id, first, n) {
                    taken.push(Run { heap: heap.index, first, count: n });
                    left -= u64::from(n);
                }
            }
        }
        taken
    }

    /// Gives what `take_free` took back to the device, and unmaps all idle ranges of addresses, which may show it.
    /// Waits for the device. What the device would not take back stays the heaps'. `any`: something went.
    pub(super) fn give_back(&self, g: &mut Growth, taken: &[Run], any: &mut bool) -> Result<()> {
        let ranges = self.idle_ranges(true);
        let mut done = self.sync_device().and_then(|()| self.unmap_ranges(&ranges));
        for r in taken {
            let Some(heap) = self.heaps.get(r.heap as usize) else { continue };
            if done.is_ok() {
                done = self.backing.release(r.first, r.count);
            }
            if done.is_ok() {
                g.give_room(r.first, r.count);
                let bytes = u64::from(r.count) << GRANULE_SHIFT;
                g.release(heap.pool.load(Relaxed), bytes, u64::from(r.count));
                *any = true;
            } else {
                heap.inner.lock().give(&self.maps, heap.index, r.first, r.count, 0);
            }
        }
        done
    }

    /// Takes those segments that are free as a whole out of the wanted heaps, as long as `more` says so.
    pub(super) fn take_segments(
        &self,
        held: Vec<Segment>,
        wanted: impl Fn(&Heap) -> bool,
        mut more: impl FnMut(Option<&Segment>) -> bool,
    ) -> Vec<(u32, Segment)> {
        let mut taken = Vec::new();
        for s in held {
            if !more(None) {
                break;
            }
            let owner = self.heaps.get(self.maps.granule(s.first).heap() as usize);
            let Some(heap) = owner.filter(|x| wanted(x)) else { continue };
            if heap.inner.lock().take_segment(&self.maps, heap.index, s.first, s.units) {
                more(Some(&s));
                taken.push((heap.index, s));
            }
        }
        taken
    }

    /// `give_back` for segments.
    pub(super) fn give_back_segments(
        &self,
        g: &mut Growth,
        taken: &[(u32, Segment)],
        any: &mut bool,
    ) -> Result<()> {
        if taken.is_empty() {
            return Ok(());
        }
        let mut done = self.sync_device();
        for &(index, s) in taken {
            let Some(heap) = self.heaps.get(index as usize) else { continue };
            if done.is_ok() {
                done = self.backing.segment_release(u64::from(s.first) << GRANULE_SHIFT, s.bytes);
            }
            if done.is_ok() {
                g.segment_gone(heap.pool.load(Relaxed), s.first, s.bytes);
                *any = true;
            } else {
                let count = s.units.div_ceil(LARGE_UNITS);
                let short = (count << LARGE_UNITS_SHIFT) - s.units;
                heap.inner.lock().give(&self.maps, heap.index, s.first, count, short);
            }
        }
        done
    }

    /// Segments shared by several heaps become one heap's, where they are free: of a pool's first heap, or,
    /// for pools that may go `across`, of the device's first. Waits for the device if there are any.
    fn gather(&self, g: &mut Growth, across: impl Fn(u32) -> bool) -> Result<()> {
        let n = self.heap_count.load(Ordering::Acquire) as usize;
        let mut moves = Vec::new();
        for i in 1..n {
            let Some(heap) = self.heaps.get(i).filter(|x| !self.pinned(x)) else { continue };
            let pool = heap.pool.load(Relaxed);
            let mut others = (0..i).filter_map(|j| self.heaps.get(j));
            let home = others.find(|x| {
                let p = x.pool.load(Relaxed);
                p == pool || across(pool) && p != u32::MAX && !self.pinned(x)
            });
            let Some(home) = home else { continue };
            let taken = heap.inner.lock().take_all(&self.maps);
            if !taken.is_empty() {
                moves.push((heap, home, taken));
            }
        }
        if moves.is_empty() {
            return Ok(());
        }
        // The new owners' streams know nothing of the old ones' work.
        let done = self.sync_device();
        for (from, home, taken) in moves {
            let to = if done.is_ok() { home } else { from };
            let mut h = to.inner.lock();
            for (first, count, short) in taken {
                h.give(&self.maps, to.index, first, count, short);
                let bytes =
                    u64::from((count << LARGE_UNITS_SHIFT) - short) << (GRANULE_SHIFT - LARGE_UNITS_SHIFT);
                g.moved(from.pool.load(Relaxed), to.pool.load(Relaxed), bytes, 0);
            }
        }
        done
    }

    /// Everything goes back to the device, live blocks too. The device is idle, and nobody uses the pond.
    pub fn close(&self) -> Result<()> {
        self.forget_heaps();
        let mut g = self.hold_growth()?;
        self.forget_captures();
        let _ = self.trim(&mut g, None);
        self.forget_uses();
        for s in std::mem::take(&mut g.segments_held).into_values() {
            self.backing.segment_release(u64::from(s.first) << GRANULE_SHIFT, s.bytes)?;
        }
        Ok(())
    }

    /// After `close`, and so long after it that hardly a thread is still in a call that had begun before: the tables of
    /// the pond, nearly all of its host memory, go back to the system. A call that is under way all the same finds no
    /// block: no heap has one, and no address leads to one. So both go together, with every heap locked.
    pub fn discard(&self) {
        let Ok(_growth) = self.hold_growth() else { return };
        let count = self.heap_count.load(Ordering::Acquire) as usize;
        let heaps: Vec<&Heap> = (0..count).filter_map(|i| self.heaps.get(i)).collect();
        let mut locked: Vec<_> = heaps.iter().map(|h| h.inner.lock()).collect();
        for (heap, inner) in heaps.iter().zip(&mut locked) {
            let empty = Heap::new(heap.index, self.config.mapping);
            std::mem::swap(&mut **inner, &mut *empty.inner.lock());
            heap.remote.take();
        }
        self.maps.discard();
    }
}
