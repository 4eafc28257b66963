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
        if self.sync_and_settle(g).is_err() {
            return any;
        }
        any |= self.poll_all(true);
        self.merge_all();
        // The device may refuse: then what went before is what there is.
        let mut went = false;
        let _ = if self.config.mapping {
            let wanted = |x: &Heap| x.index != taker.index && !self.pinned(x);
            let taken = self.take_free(g, wanted, over(g).div_ceil(1 << GRANULE_SHIFT));
            self.give_back(g, &taken, &mut went)
        } else {
            let mut held: Vec<Segment> = g.segments_held.values().copied().collect();
            held.sort_unstable_by_key(|s| std::cmp::Reverse(s.bytes));
            let mut left = over(g);
            let taken = self.take_segments(
                held,
                |x| !self.pinned(x),
                |s| {
                    left = left.saturating_sub(s.map_or(0, |s| s.bytes));
                    left > 0
                },
            );
            self.give_back_segments(g, &taken, &mut went)
        };
        any || went
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
}
