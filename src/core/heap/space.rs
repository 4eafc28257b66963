//! How much of a heap is free, and in what pieces: for the statistics. The heap is locked.

use super::super::units::GRANULE;
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
    /// All free pieces of the large tier.
    pub pieces: u64,
    /// [B] that could go back to the device: whole granules, or whole segments.
    pub whole: u64,
    /// Those of `whole` that lie in ties or segments of which other pools have parts too.
    pub beyond: u64,
    /// Pieces that have some of these.
    pub beyond_pieces: u64,
    /// [B] the largest piece.
    pub longest: u64,
    /// Whole granules that are free, also within a segment, but not those of a tie that is partly used.
    pub granules: u64,
    /// The most such granules side by side.
    pub run: u64,
    /// Those of `granules` that lie in ties.
    pub tied: u64,
    /// Those that lie in ties of which other heaps have parts too.
    pub shared: u64,
    /// The most granules of one of these ties.
    pub longest_tie: u64,
}

impl Space {
    /// Adds another heap's.
    pub(crate) fn add(&mut self, other: &Space) {
        self.small += other.small;
        self.small_pieces += other.small_pieces;
        self.large += other.large;
        self.large_pieces += other.large_pieces;
        self.pieces += other.pieces;
        self.whole += other.whole;
        self.beyond += other.beyond;
        self.beyond_pieces += other.beyond_pieces;
        self.longest = self.longest.max(other.longest);
        self.granules += other.granules;
        self.run = self.run.max(other.run);
        self.tied += other.tied;
        self.shared += other.shared;
        self.longest_tie = self.longest_tie.max(other.longest_tie);
    }

    /// How many of these granules, in ties or not, can be had where only `most` may be taken: ties go as wholes, so the next
    /// one may be too large for what is left.
    pub(crate) fn below_limit(&self, granules: u64, most: u64) -> u64 {
        match granules <= most {
            true => granules,
            false => most.saturating_sub(self.longest_tie.saturating_sub(1)),
        }
    }

    /// [B] that are free.
    pub(crate) fn free(&self) -> u64 {
        self.small + self.large + self.whole
    }
}

impl<G: DerefMut<Target = HeapState>> LockedHeap<'_, G> {
    /// What is free here in chunks: the numbers of the heap say it. `go`: chunks whose blocks are all freed go back, or serve
    /// large requests, once these are merged. Where some block is not freed, chunks of freed ones alone are told to be cut, since
    /// nothing says which they are.
    pub(crate) fn fine_space(&self, go: bool) -> Space {
        let s = &*self.state;
        let (now, waiting) = (s.counters.current()[SMALL], s.counters.waiting()[SMALL]);
        let (active, blocks) = ((now[0] + waiting[0]) as u64, (now[2] + waiting[2]) as u64);
        let merged = go && blocks == 0;
        let kept = s.empty.iter().filter(|&&e| e).count() as u64;
        let (empty, pieces) = if merged { (s.chunks, 0) } else { (kept, s.pieces - kept) };
        Space {
            small: ((s.chunks - empty) * GRANULE).saturating_sub(active),
            small_pieces: pieces.saturating_sub(blocks),
            whole: empty * GRANULE,
            granules: empty,
            run: empty.min(1),
            longest: empty.min(1) * GRANULE,
            ..Space::default()
        }
    }
}
