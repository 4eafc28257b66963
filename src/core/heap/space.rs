//! How much of a heap is free, and in what pieces: for the statistics. Nothing is merged for it. The heap is locked.

use super::super::desc::{ALIAS, Id};
use super::super::units::{Extent, GRANULE, LARGE_UNITS};
use super::counters::SMALL;
use super::{HeapState, LockedHeap};
use std::ops::DerefMut;

/// What is free. Freed blocks that wait unmerged count as free, and adjacent ones as one piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Space {
    /// [B] of chunks for which no block is charged, but for chunks that are wholly free.
    pub small: u64,
    /// Pieces that these are cut into.
    pub small_pieces: u64,
    /// [B] that are free and share a granule, or a segment, with what is not.
    pub large: u64,
    /// Pieces that have some of these.
    pub large_pieces: u64,
    /// [B] that could go back to the device: whole granules, or whole segments.
    pub whole: u64,
    /// [B] the largest piece.
    pub longest: u64,
    /// Whole granules that are free, also within a segment, but not those of a tie that is partly used.
    pub granules: u64,
    /// The most such granules side by side.
    pub run: u64,
}

impl Space {
    /// Adds another heap's.
    pub(crate) fn add(&mut self, other: &Space) {
        self.small += other.small;
        self.small_pieces += other.small_pieces;
        self.large += other.large;
        self.large_pieces += other.large_pieces;
        self.whole += other.whole;
        self.longest = self.longest.max(other.longest);
        self.granules += other.granules;
        self.run = self.run.max(other.run);
    }

    /// [B] that are free.
    pub(crate) fn free(&self) -> u64 {
        self.small + self.large + self.whole
    }
}

impl<G: DerefMut<Target = HeapState>> LockedHeap<'_, G> {
    /// What is free here. `goes` says how many bytes of a free piece could go back to the device, `whole` how many whole
    /// granules it has.
    pub(crate) fn space(&self, goes: impl Fn(Extent) -> u64, whole: impl Fn(Extent) -> u64) -> Space {
        let s = &*self.state;
        let (now, waiting) = (s.counters.current()[SMALL], s.counters.waiting()[SMALL]);
        let empty = s.empty.iter().filter(|&&e| e).count() as u64;
        let active = (now[0] + waiting[0]) as u64;
        let mut space = Space {
            small: ((s.chunks - empty) * GRANULE).saturating_sub(active),
            small_pieces: (s.pieces - empty).saturating_sub((now[2] + waiting[1]) as u64),
            whole: empty * GRANULE,
            granules: empty,
            run: empty.min(1),
            longest: empty.min(1) * GRANULE,
            ..Space::default()
        };
        let mut free = Vec::new();
        let maps = self.maps();
        let mut note = |id: Id| {
            let d = maps.desc(id);
            free.push(Extent::new(d.off(), d.units()));
        };
        self.large().walk(1, |id| {
            note(id);
            true
        });
        s.whole.iter().for_each(|w| note(w.2));
        s.quick.each(maps, |id| {
            // Of a scattered one the pieces.
            let d = maps.desc(id);
            if d.tier_bits() != ALIAS {
                return note(id);
            }
            let mut piece = d.next();
            while piece != 0 {
                note(piece);
                piece = maps.desc(piece).next();
            }
        });
        free.sort_unstable();
        let mut at = 0;
        while let Some(&first) = free.get(at) {
            let mut piece = first;
            at += 1;
            while let Some(next) = free.get(at).filter(|f| f.off == piece.end()) {
                piece.units += next.units;
                at += 1;
            }
            let goes = goes(piece);
            let rest = piece.bytes() - goes;
            space.whole += goes;
            space.large += rest;
            space.large_pieces += u64::from(rest > 0);
            space.longest = space.longest.max(piece.bytes());
            let run = piece.whole().map_or(0, |run| u64::from(run.count));
            space.granules += whole(piece);
            space.run = space.run.max(run);
        }
        debug_assert!(space.granules * u64::from(LARGE_UNITS) <= s.granules * u64::from(LARGE_UNITS));
        space
    }
}
