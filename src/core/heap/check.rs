//! The invariants of a heap, checked by tests.

use super::super::desc::{GranuleUse, kind, use_of};
use super::super::shape::{Tier, unit_shift};
use super::super::units::{GRANULE_SHIFT, LARGE_UNITS, LARGE_UNITS_SHIFT};
use super::fine::chunk_mask;
use super::{HeapState, LockedHeap};
use std::ops::DerefMut;

impl<G: DerefMut<Target = HeapState>> LockedHeap<'_, G> {
    /// Walks all granules of this heap. All granules with memory have numbers below `granules`.
    pub(crate) fn check(&self, granules: u32) {
        let maps = self.maps();
        let (mut owned, mut chunks, mut pieces) = (0, 0, 0);
        let mut unit = 0u32;
        let end = granules << LARGE_UNITS_SHIFT;
        let mut was_free = false;
        while unit < end {
            let g = maps.granule(unit >> LARGE_UNITS_SHIFT);
            if g.heap() != self.me() || !(use_of::SMALL..=use_of::LARGE).contains(&g.use_()) {
                unit = (unit & !(LARGE_UNITS - 1)) + LARGE_UNITS;
                was_free = false;
                continue;
            }
            let id = maps.large_at(unit);
            let d = maps.desc(id);
            if id == 0 || d.off() != unit || d.kind() == kind::UNUSED {
                assert!(
                    unit & (LARGE_UNITS - 1) != 0,
                    "granule {}: no block starts here",
                    unit >> LARGE_UNITS_SHIFT
                );
                unit = (unit & !(LARGE_UNITS - 1)) + LARGE_UNITS; // a segment that ends inside this granule
                was_free = false;
                continue;
            }
            assert_eq!(maps.large_at(unit + d.units() - 1), id, "last tag of {id}");
            let free = d.kind() == kind::FREE;
            assert!(!(free && was_free), "two free neighbours at unit {unit}");
            if d.kind() == kind::CHUNK {
                chunks += 1;
                pieces += self.check_chunk(g, unit >> LARGE_UNITS_SHIFT);
            }
            was_free = free;
            let first_g = unit.div_ceil(LARGE_UNITS);
            unit += d.units();
            owned += u64::from(unit.div_ceil(LARGE_UNITS) - first_g);
        }
        assert_eq!(owned, self.state.granules, "granules owned");
        self.check_idle();
        assert_eq!((chunks, pieces), (self.state.chunks, self.state.pieces), "chunks, and blocks in them");
    }

    /// Checks the counts of the free memory, on a device whose segments are as large as requests need.
    fn check_idle(&self) {
        if self.state.keeps_whole {
            let (maps, mut free) = (self.maps(), 0);
            self.large().walk(1, |id| {
                free += i64::from(maps.desc(id).units());
                true
            });
            let kept = self.idle();
            assert_eq!(kept.free, free, "units in the bins");
            assert!(0 <= kept.whole && kept.whole <= free, "{kept:?}");
        }
    }

    fn check_chunk(&self, g: GranuleUse, granule: u32) -> u64 {
        let maps = self.maps();
        let tier = if g.use_() == use_of::SMALL { Tier::Small } else { Tier::Medium };
        let mask = chunk_mask(tier);
        let base = granule << (GRANULE_SHIFT - unit_shift(tier));
        let (mut at, mut was_free, mut pieces) = (0, false, 0);
        while at <= mask {
            let id = maps.at(g.entry(base + at));
            let d = maps.desc(id);
            assert!(id != 0 && d.off() == base + at, "chunk {granule} unit {at}");
            assert_eq!(maps.at(g.entry(base + at + d.units() - 1)), id);
            let free = d.kind() == kind::FREE;
            assert!(!(free && was_free), "two free neighbours in chunk {granule} at {at}");
            was_free = free;
            at += d.units();
            pieces += 1;
        }
        assert_eq!(at, mask + 1);
        pieces
    }
}
