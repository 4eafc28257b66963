//! The invariants of a pond, checked by tests.

use super::super::heap::Source;
use super::super::units::Extent;
use super::Ground;

impl Ground {
    /// Checks every heap's invariants. Nothing else may run meanwhile.
    pub(crate) fn check(&self) {
        let used = self.growing().room.occupied(self.memory_granules).last().map_or(0, |run| run.end());
        for heap in self.heaps.all() {
            self.look(heap).check(used);
        }
        if self.config.source() == Source::OwnSegments {
            self.check_stuck();
        }
    }

    /// Counts again what is stuck in partly used segments.
    fn check_stuck(&self) {
        let parts: Vec<_> = self.growing().segments.iter().map(|s| s.part).collect();
        let (mut free, mut stuck) = (Vec::new(), 0);
        for heap in self.heaps.all() {
            let h = self.look(heap);
            h.free_list(&mut free);
            let (whole, cut): (Vec<_>, Vec<_>) =
                free.iter().map(|f| f.part).partition(|p| parts.binary_search(p).is_ok());
            let units = |parts: &[Extent]| parts.iter().map(|p| i64::from(p.units)).sum::<i64>();
            let idle = h.idle();
            assert_eq!(idle.whole, units(&whole), "heap {}: free in whole segments", heap.index);
            assert_eq!(idle.free - idle.whole, units(&cut), "heap {}: stuck", heap.index);
            assert_eq!(idle.counted, units(&cut), "heap {}: counted as stuck", heap.index);
            stuck += units(&cut);
        }
        assert_eq!(self.stuck.now(), stuck, "stuck in all heaps");
    }
}
