//! Unused memory back to the device.

use super::*;

impl Pond {
    /// Gives unused memory back to the device: of one pool, or of all. Waits for the device first.
    pub fn empty_cache(&self, pool: Option<PoolId>) -> Result<()> {
        if let Some(p) = pool
            && self.pool(p).is_none()
        {
            fail!(Code::InvalidArgument, "no such pool, or it was destroyed");
        }
        let mut g = lock(&self.growth);
        self.trim(&mut g, pool).map(|_| ())
    }

    pub(super) fn trim(&self, g: &mut Growth, pool: Option<PoolId>) -> Result<bool> {
        self.backing.sync_all()?;
        self.poll_all(true);
        self.forget_orphan_marks();
        self.give_up_whole();
        let shift = GRANULE_SHIFT;
        let mut any = false;
        let heaps =
            || (0..self.heap_count.load(Ordering::Acquire) as usize).filter_map(|i| self.heaps.get(i));
        for heap in heaps() {
            let mut h = heap.inner.lock();
            self.drain(heap, &mut h);
            self.flush(heap, &mut h);
        }
        if !self.config.mapping {
            self.gather(g, |_| pool.is_none());
            let held: Vec<Segment> = g.segments_held.values().copied().collect();
            for s in held {
                let owner = self.heaps.get(self.maps.granule(s.first).heap() as usize);
                let Some(heap) = owner.filter(|x| pool.is_none_or(|p| p.0 == x.pool.load(Relaxed))) else {
                    continue;
                };
                if !heap.inner.lock().take_segment(&self.maps, heap.index, s.first, s.units) {
                    continue;
                }
                g.segment_gone(heap.pool.load(Relaxed), s.first, s.bytes);
                self.backing.segment_release(u64::from(s.first) << shift, s.bytes)?;
                any = true;
            }
            // What the pool still has lies in segments that it shares: the others may have it.
            self.gather(g, |x| pool.is_some_and(|p| p.0 == x));
            return Ok(any);
        }
        // Addresses that show scattered granules hold on to them; idle ones go first.
        self.forget_aliases(true)?;
        for heap in heaps().filter(|x| pool.is_none_or(|p| p.0 == x.pool.load(Relaxed))) {
            let mut taken = Vec::new();
            {
                let mut h = heap.inner.lock();
                g.runs.clear();
                h.free_runs(&self.maps, &mut g.runs);
                for &(count, first, id) in &g.runs {
                    if h.take_run(&self.maps, id, first, count) {
                        taken.push((first, count));
                    }
                }
            }
            for (i, &(first, count)) in taken.iter().enumerate() {
                if let Err(e) = self.backing.release(first, count) {
                    // What the device would not take back stays the heap's.
                    let mut h = heap.inner.lock();
                    for &(first, count) in &taken[i..] {
                        h.give(&self.maps, heap.index, first, count, 0);
                    }
                    return Err(e);
                }
                g.give_room(first, count);
                g.release(heap.pool.load(Relaxed), u64::from(count) << shift, u64::from(count));
                any = true;
            }
        }
        Ok(any)
    }

    /// Segments shared by several heaps become one heap's, where they are free: of a pool's first heap, or,
    /// for pools that may go `across`, of the device's first. The device is idle.
    pub(super) fn gather(&self, g: &mut Growth, across: impl Fn(u32) -> bool) {
        let n = self.heap_count.load(Ordering::Acquire) as usize;
        for i in 1..n {
            let Some(heap) = self.heaps.get(i) else { continue };
            let pool = heap.pool.load(Relaxed);
            let mut others = (0..i).filter_map(|j| self.heaps.get(j));
            let home = others.find(|x| {
                let p = x.pool.load(Relaxed);
                p == pool || across(pool) && p != u32::MAX
            });
            let Some(home) = home else { continue };
            let taken = heap.inner.lock().take_all(&self.maps);
            let unit = GRANULE_SHIFT - LARGE_UNITS_SHIFT;
            let mut h = home.inner.lock();
            for (first, count, short) in taken {
                h.give(&self.maps, home.index, first, count, short);
                let bytes = u64::from((count << LARGE_UNITS_SHIFT) - short) << unit;
                g.moved(pool, home.pool.load(Relaxed), bytes, 0);
            }
        }
    }

    /// Everything goes back to the device, live blocks too. The device is idle, and nobody uses the pond.
    pub fn close(&self) -> Result<()> {
        self.forget_heaps();
        let mut g = lock(&self.growth);
        let _ = self.trim(&mut g, None);
        for s in std::mem::take(&mut g.segments_held).into_values() {
            self.backing.segment_release(u64::from(s.first) << GRANULE_SHIFT, s.bytes)?;
        }
        Ok(())
    }
}
