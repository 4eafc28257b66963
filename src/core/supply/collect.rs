//! What the tuning changes about growth.
//!
//! The collector: before more is taken from the device, memory that nobody uses goes back, so that no
//! more than a part of the device is reserved. It waits for the device, as freeing to a driver does.

use super::*;

impl Pond {
    /// Gives unused memory back, until `missing` granules (or a segment of `contract` bytes) could be taken
    /// without passing the threshold, as far as there is any. `true` when something was freed, here or on the
    /// device: what was free in the taker's own heap stays there.
    pub(super) fn collect(&self, g: &mut Growth, taker: &Heap, missing: u64, contract: u64) -> bool {
        let most = self.tuned.collect_above.load(Relaxed);
        let wanted = if self.config.mapping { missing << GRANULE_SHIFT } else { contract };
        let over = |g: &Growth| (g.reserved.current + wanted).saturating_sub(most);
        if most == 0 || over(g) == 0 {
            return false;
        }
        let mut any = self.give_up_whole();
        if self.backing.sync_all().is_err() {
            return any;
        }
        any |= self.poll_all(true);
        for i in 0..self.heap_count.load(Ordering::Acquire) as usize {
            let Some(heap) = self.heaps.get(i) else { continue };
            let mut h = heap.inner.lock();
            self.drain(heap, &mut h);
            self.flush(heap, &mut h);
        }
        if !self.config.mapping {
            return self.collect_segments(g, over) || any;
        }
        // Addresses that show scattered granules hold on to them, and what was merged just now may have left such.
        if self.forget_aliases(true).is_err() {
            return any;
        }
        for i in 0..self.heap_count.load(Ordering::Acquire) as usize {
            let Some(heap) = self.heaps.get(i).filter(|x| x.index != taker.index) else { continue };
            let left = over(g).div_ceil(1 << GRANULE_SHIFT);
            if left == 0 {
                break;
            }
            any |= self.release_runs(g, heap, left);
        }
        any
    }

    /// Takes memory from the device for a heap: as much at a time as the tuning says, or else what is missing.
    pub(super) fn grow_tuned(
        &self,
        g: &mut Growth,
        heap: &Heap,
        missing: u64,
        tier: Tier,
        contract: u64,
    ) -> Result<()> {
        let granules = self.tuned.segment.load(Relaxed).div_ceil(1 << GRANULE_SHIFT);
        if self.config.mapping && tier == Tier::Large && granules > 1 {
            let more = missing.next_multiple_of(granules.min(1 << 24));
            if more > missing && self.grow(g, heap, more, tier, contract).is_ok() {
                return Ok(());
            }
        }
        self.grow(g, heap, missing, tier, contract)
    }

    /// Gives up to `most` free granules of a heap back to the device, which is idle.
    fn release_runs(&self, g: &mut Growth, heap: &Heap, most: u64) -> bool {
        let mut taken = Vec::new();
        let mut left = most;
        {
            let mut h = heap.inner.lock();
            g.runs.clear();
            h.free_runs(&self.maps, &mut g.runs);
            for &(count, first, id) in &g.runs {
                let n = u64::from(count).min(left) as u32;
                if n == 0 || !h.take_run(&self.maps, id, first + count - n, n) {
                    continue;
                }
                taken.push((first + count - n, n));
                left -= u64::from(n);
            }
        }
        let mut any = false;
        for (i, &(first, n)) in taken.iter().enumerate() {
            if self.backing.release(first, n).is_err() {
                // What the device would not take back stays the heap's.
                let mut h = heap.inner.lock();
                for &(first, n) in &taken[i..] {
                    h.give(&self.maps, heap.index, first, n, 0);
                }
                break;
            }
            g.give_room(first, n);
            g.release(heap.pool.load(Relaxed), u64::from(n) << GRANULE_SHIFT, u64::from(n));
            any = true;
        }
        any
    }

    /// Gives segments that nobody uses back to the device, which is idle, the largest first.
    fn collect_segments(&self, g: &mut Growth, over: impl Fn(&Growth) -> u64) -> bool {
        let mut held: Vec<Segment> = g.segments_held.values().copied().collect();
        held.sort_unstable_by_key(|s| std::cmp::Reverse(s.bytes));
        let mut any = false;
        for s in held {
            if over(g) == 0 {
                break;
            }
            let Some(heap) = self.heaps.get(self.maps.granule(s.first).heap() as usize) else { continue };
            if !heap.inner.lock().take_segment(&self.maps, heap.index, s.first, s.units) {
                continue;
            }
            g.segment_gone(heap.pool.load(Relaxed), s.first, s.bytes);
            // The device may refuse; the segment is lost to the pond then, as in `trim`.
            if self.backing.segment_release(u64::from(s.first) << GRANULE_SHIFT, s.bytes).is_err() {
                break;
            }
            any = true;
        }
        any
    }
}
