//! The quanta in which the pond counts memory, and ranges of memory in each of them.
//!
//! A *granule* (2 MiB) is the quantum of ownership and of mapping. A *unit* of the large tier is 1/128 of it
//! (16 KiB). Offsets of units and numbers of granules have 32 bits.

use crate::base::ordered::Key;

/// log2 of the bytes of a granule: 2 MiB, the mapping granularity of all CUDA devices so far.
pub(crate) const GRANULE_SHIFT: u32 = 21;
/// [B] of a granule.
pub(crate) const GRANULE: u64 = 1 << GRANULE_SHIFT;
/// log2 of the units of the large tier in a granule.
pub(crate) const LARGE_UNITS_SHIFT: u32 = 7;
/// Units of the large tier in a granule.
pub(crate) const LARGE_UNITS: u32 = 1 << LARGE_UNITS_SHIFT;
/// log2 of the bytes of a unit of the large tier.
pub(crate) const LARGE_SHIFT: u32 = GRANULE_SHIFT - LARGE_UNITS_SHIFT;

/// [B] of so many granules.
pub(crate) const fn granule_bytes(count: u32) -> u64 {
    (count as u64) << GRANULE_SHIFT
}

/// The granule in which an offset in bytes lies.
pub(crate) const fn granule_at(offset: u64) -> u32 {
    (offset >> GRANULE_SHIFT) as u32
}

/// A range of granules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GranuleRun {
    /// The number of the first one.
    pub first: u32,
    /// How many there are.
    pub count: u32,
}

impl Key for GranuleRun {
    fn number(self) -> u64 {
        (self.first, self.count).number()
    }
    fn of(number: u64) -> Self {
        let (first, count) = Key::of(number);
        GranuleRun { first, count }
    }
}

impl GranuleRun {
    pub(crate) const fn new(first: u32, count: u32) -> Self {
        GranuleRun { first, count }
    }

    /// One past the last granule.
    pub(crate) const fn end(self) -> u32 {
        self.first + self.count
    }

    /// [B] where it starts.
    pub(crate) const fn offset(self) -> u64 {
        granule_bytes(self.first)
    }

    /// [B]
    pub(crate) const fn bytes(self) -> u64 {
        granule_bytes(self.count)
    }

    /// The last `count` granules of it.
    pub(crate) const fn last(self, count: u32) -> GranuleRun {
        GranuleRun { first: self.end() - count, count }
    }

    /// Its granules by number.
    pub(crate) fn granules(self) -> std::ops::Range<u32> {
        self.first..self.end()
    }

    /// All of it in units of the large tier.
    pub(crate) const fn extent(self) -> Extent {
        Extent { off: self.first << LARGE_UNITS_SHIFT, units: self.count << LARGE_UNITS_SHIFT }
    }
}

/// Granules, for questions about many: asking costs the logarithm of the number of runs, not of granules.
#[derive(Debug, Default)]
pub(crate) struct GranuleSet {
    runs: Vec<GranuleRun>, // sorted, with a gap between any two
}

impl FromIterator<GranuleRun> for GranuleSet {
    /// The runs may come in any order, and may overlap.
    fn from_iter<I: IntoIterator<Item = GranuleRun>>(given: I) -> Self {
        let mut given: Vec<GranuleRun> = given.into_iter().collect();
        given.sort_unstable();
        let mut runs: Vec<GranuleRun> = Vec::new();
        for run in given {
            match runs.last_mut() {
                Some(last) if run.first <= last.end() => last.count = last.end().max(run.end()) - last.first,
                _ => runs.push(run),
            }
        }
        GranuleSet { runs }
    }
}

impl GranuleSet {
    /// Whether it has any granule of a run.
    pub(crate) fn overlaps(&self, run: GranuleRun) -> bool {
        let behind = self.runs.partition_point(|r| r.first < run.end());
        behind > 0 && self.runs[behind - 1].end() > run.first
    }
}

/// A range of memory, in units of the large tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Extent {
    pub off: u32,
    pub units: u32,
}

impl Extent {
    pub(crate) const fn new(off: u32, units: u32) -> Self {
        Extent { off, units }
    }

    /// One past its last unit.
    pub(crate) const fn end(self) -> u32 {
        self.off + self.units
    }

    /// [B]
    pub(crate) const fn bytes(self) -> u64 {
        (self.units as u64) << LARGE_SHIFT
    }

    /// Every granule that it overlaps.
    pub(crate) const fn touched(self) -> GranuleRun {
        let first = self.off >> LARGE_UNITS_SHIFT;
        GranuleRun { first, count: self.end().div_ceil(LARGE_UNITS) - first }
    }

    /// The granules that it contains completely, if any.
    pub(crate) fn whole(self) -> Option<GranuleRun> {
        let (first, end) = (self.off.div_ceil(LARGE_UNITS), self.end() >> LARGE_UNITS_SHIFT);
        (first < end).then(|| GranuleRun { first, count: end - first })
    }
}

/// Every granule that any of the pieces overlaps, with repetitions.
pub(crate) fn every_granule(pieces: &[Extent]) -> impl Iterator<Item = u32> {
    pieces.iter().flat_map(|p| p.touched().granules())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_extent_knows_its_granules() {
        let e = Extent::new(100, 300); // to 400: ends in granule 3
        assert_eq!(e.touched(), GranuleRun::new(0, 4));
        assert_eq!(e.whole(), Some(GranuleRun::new(1, 2)));
        assert_eq!(Extent::new(1, 200).whole(), None);
        assert_eq!(Extent::new(10, 20).whole(), None);
        assert_eq!(Extent::new(128, 128).whole(), Some(GranuleRun::new(1, 1)));
        assert_eq!(GranuleRun::new(3, 5).last(2), GranuleRun::new(6, 2));
    }

    #[test]
    fn a_set_of_granules_knows_what_overlaps_it() {
        let runs = [(20, 5), (3, 2), (5, 4), (21, 2), (30, 1)].map(|(first, n)| GranuleRun::new(first, n));
        let set: GranuleSet = runs.into_iter().collect();
        for first in 0..40 {
            for count in 1..8 {
                let run = GranuleRun::new(first, count);
                let has = |g: &u32| runs.iter().any(|r| r.granules().contains(g));
                assert_eq!(set.overlaps(run), run.granules().any(|g| has(&g)), "{run:?}");
            }
        }
        assert!(!GranuleSet::default().overlaps(GranuleRun::new(0, u32::MAX)));
    }
}
