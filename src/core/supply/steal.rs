//! Free granules of other heaps: who may take them, and what the taker must wait for.

use super::*;

impl Pond {
    /// Takes up to `missing` free granules from other heaps. Without `scattering` they must be in one run.
    pub(super) fn steal(
        &self,
        g: &mut Growth,
        taker: &Heap,
        missing: u64,
        scattering: bool,
        same_pool: bool,
        terms: Terms,
    ) -> bool {
        let mine = taker.pool.load(Relaxed);
        if !same_pool && missing > self.own_room(g, mine) >> GRANULE_SHIFT {
            return false;
        }
        let mut left = missing;
        let mut taken = std::mem::take(&mut g.pieces); // (first, count)
        for i in 0..self.heap_count.load(Ordering::Acquire) as usize {
            let Some(giver) = self.heaps.get(i) else { continue };
            let pool = giver.pool.load(Relaxed);
            if giver.index == taker.index
                || left == 0
                || (pool == mine) != same_pool
                || pool == u32::MAX
                || self.pinned(giver)
            {
                continue;
            }
            taken.clear();
            {
                let mut h = giver.inner.lock();
                if h.granules == 0 {
                    continue;
                }
                self.drain(giver, &mut h);
                self.flush(giver, &mut h);
                g.runs.clear();
                h.free_runs(&self.maps, &mut g.runs);
                if scattering || missing == 1 {
                    g.runs.sort_unstable_by_key(|r| (r.0, r.1));
                } else {
                    g.runs.retain(|r| u64::from(r.0) >= missing);
                    g.runs.sort_unstable_by_key(|r| std::cmp::Reverse((r.0, r.1)));
                    g.runs.truncate(1);
                }
                for &(count, first, id) in &g.runs {
                    // From the end of the run: its owner goes on from the front.
                    let n = u64::from(count).min(left) as u32;
                    if n == 0 || !h.take_run(&self.maps, id, first + count - n, n) {
                        break;
                    }
                    taken.push((first + count - n, n));
                    left -= u64::from(n);
                }
            }
            if taken.is_empty() {
                continue;
            }
            let to = if self.agree(giver, taker, terms) { taker } else { giver };
            let bytes = taken.iter().map(|t| u64::from(t.1)).sum::<u64>() << GRANULE_SHIFT;
            let count = bytes >> GRANULE_SHIFT;
            let mut h = to.inner.lock();
            for &(first, n) in &taken {
                h.give(&self.maps, to.index, first, n, 0);
            }
            drop(h);
            if to.index == giver.index {
                left += count;
            } else {
                g.moved(pool, mine, bytes, if self.config.mapping { count } else { 0 });
            }
        }
        g.pieces = taken;
        left < missing
    }

    /// Whether memory that was just taken from `giver` may go to `taker`; makes the taker wait if need be.
    pub(in crate::core) fn agree(&self, giver: &Heap, taker: &Heap, terms: Terms) -> bool {
        let from = giver.stream.load(Relaxed);
        let to = taker.stream.load(Relaxed);
        if from == UNORDERED {
            return true; // what is free there has waited for everyone already
        }
        let orphan = from == RETIRED;
        let mark = match orphan {
            true => self.orphan_mark(giver),
            false => match self.point(from) {
                Ok(None) => return false, // captured: nobody can tell how far its work is
                made => made.ok().flatten(),
            },
        };
        // An orphan without a mark: its stream's work is over, or the device is gone.
        let Some(m) = mark else { return orphan };
        let ok = match self.backing.passed(m) {
            Ok(true) => true,
            _ if terms == Terms::Idle => false,
            _ if to == UNORDERED => self.backing.sync(m).is_ok(),
            _ if self.captured(to) => false,
            _ => self.backing.wait(to, m).is_ok(),
        };
        if !orphan {
            self.backing.forget(m);
        }
        ok
    }
}
