//! Whole granules of a heap: giving them to it, and taking them out. All methods work on a locked heap.
//!
//! What is taken keeps an id, so giving it to a heap, this one or another, needs no new id and cannot fail.

use super::super::desc::{ALIAS, GranuleUse, Id, kind};
use super::super::shape::Tier;
use super::super::units::{Extent, GranuleRun, LARGE_UNITS, LARGE_UNITS_SHIFT};
use super::{HeapState, LockedHeap};
use crate::base::boxed::try_push;
use crate::base::sort;
use std::ops::DerefMut;

/// A free block. It is either in a heap's bins or, if it begins at a granule and no heap owns it, held by the operation
/// that took it out of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FreeBlock {
    pub part: Extent,
    pub id: Id,
}

/// What is free in the large tier of a heap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeRoom {
    /// [units] of the largest block.
    pub largest: u32,
    /// Granules that are not in partly used ties.
    pub granules: u64,
    /// Whether all free blocks were visited.
    pub complete: bool,
}

/// The block in a list of all free ones, sorted by offset, that contains a part.
pub(super) fn holder(free: &[FreeBlock], part: Extent) -> Option<Id> {
    let i = free.partition_point(|f| f.part.off <= part.off).checked_sub(1)?;
    (part.end() <= free[i].part.end()).then_some(free[i].id)
}

/// The block of `free` (a `free_list`) that has this unit.
pub(super) fn block_at(free: &[FreeBlock], unit: u32) -> Option<Extent> {
    let i = free.partition_point(|f| f.part.off <= unit).checked_sub(1)?;
    Some(free[i].part).filter(|part| unit < part.end())
}

/// Whether `free` (a `free_list`) covers all these pieces.
pub(super) fn are_free(free: &[FreeBlock], pieces: &[Extent]) -> bool {
    pieces.iter().all(|&p| holder(free, p).is_some())
}

impl<G: DerefMut<Target = HeapState>> LockedHeap<'_, G> {
    fn own(&mut self, run: GranuleRun) {
        for g in run.granules() {
            self.maps().set_granule(g, self.maps().large_use(self.me()));
        }
        self.state.granules += u64::from(run.count);
    }

    fn disown(&mut self, run: GranuleRun) {
        for g in run.granules() {
            self.maps()
                .set_granule(g, if self.state.keeps_whole { GranuleUse::HELD } else { GranuleUse::NONE });
        }
        self.state.granules -= u64::from(run.count);
    }

    /// Takes ownership of unowned memory that begins at a granule, and puts it into the bins.
    pub(crate) fn give(&mut self, block: FreeBlock) {
        let FreeBlock { part, id } = block;
        self.own(part.touched());
        let d = self.maps().desc(id);
        d.set_off(part.off);
        d.set_units(part.units);
        self.maps().large_tags().enter(part.off, part.units, id);
        self.free_large(id);
        self.count_stuck();
    }

    /// Stores the runs of free whole granules, with the blocks that contain them, in `into`; returns the number of
    /// granules, and whether the host has had memory to list all.
    pub(crate) fn free_runs(&self, into: &mut Vec<(GranuleRun, Id)>) -> (u64, bool) {
        let (mut sum, mut all) = (0, true);
        let maps = self.maps();
        self.large().walk(LARGE_UNITS, |id| {
            let d = maps.desc(id);
            if let Some(run) = Extent::new(d.off(), d.units()).whole() {
                all = try_push(into, (run, id));
                sum += u64::from(run.count);
            }
            all
        });
        (sum, all)
    }

    /// What is free here in the large tier; at most `most` blocks of each kind are visited. Blocks in quick slots are
    /// counted unmerged.
    pub(crate) fn free_room(&self, most: usize) -> FreeRoom {
        let (maps, mut granules, mut left) = (self.maps(), 0, most);
        let free_in = |part: Extent| part.whole().map_or(0, |run| self.shared.tied.free_in(run));
        self.large().walk(LARGE_UNITS, |id| {
            let d = maps.desc(id);
            granules += free_in(Extent::new(d.off(), d.units()));
            left -= 1;
            left > 0
        });
        let mut largest = self.large().largest(most);
        for id in self.state.quick.all(maps, most) {
            let d = maps.desc(id);
            largest = largest.max(d.units());
            granules += match d.tier_bits() {
                ALIAS => u64::from(d.units() >> LARGE_UNITS_SHIFT),
                _ => free_in(Extent::new(d.off(), d.units())),
            };
        }
        FreeRoom { largest, granules, complete: left > 0 }
    }

    /// The granule after the last one whose end is free.
    pub(crate) fn last_free_granule(&self) -> Option<u32> {
        let mut last = None;
        let maps = self.maps();
        self.large().walk(1, |id| {
            let d = maps.desc(id);
            last = last.max(Some((d.off() + d.units()) >> LARGE_UNITS_SHIFT));
            true
        });
        last
    }

    /// Takes whole granules, or a part that ends where their segment does, out of the free block `id`; no heap owns
    /// them afterwards. `None`: out of ids, as for `carve`, nothing changed.
    pub(crate) fn take_part(&mut self, id: Id, part: Extent) -> Option<FreeBlock> {
        let piece = self.carve(id, part)?;
        self.maps().desc(piece).set_state(kind::UNUSED);
        self.disown(part.touched());
        self.count_stuck();
        Some(FreeBlock { part, id: piece })
    }

    /// Takes all free granules, including a short last one of a segment if it is free, but for parts of free blocks that there
    /// are no ids to cut; `segment_end` returns where the segment of a granule ends.
    pub(crate) fn take_all(&mut self, segment_end: impl Fn(u32) -> Option<u32>) -> Vec<FreeBlock> {
        let mut found = Vec::new();
        self.free_list(&mut found);
        let mut taken = Vec::with_capacity(found.len());
        for FreeBlock { part, id } in found {
            let first = part.off.next_multiple_of(LARGE_UNITS);
            let end = part.end();
            let at_end = segment_end((end - 1) >> LARGE_UNITS_SHIFT) == Some(end);
            let last = if at_end { end } else { end & !(LARGE_UNITS - 1) };
            if first < last {
                taken.extend(self.take_part(id, Extent::new(first, last - first)));
            }
        }
        taken
    }

    /// All free large blocks, by offset; as many as the host has memory to list.
    pub(crate) fn free_list(&self, into: &mut Vec<FreeBlock>) {
        into.clear();
        let maps = self.maps();
        self.large().walk(1, |id| {
            let d = maps.desc(id);
            try_push(into, FreeBlock { part: Extent::new(d.off(), d.units()), id })
        });
        into.sort_unstable(); // each search of a scattered block sorts it
    }

    /// Takes exactly these pieces, if `free` (a `free_list`) covers them all; returns the first one, to which the others are
    /// linked as by `scatter`. The list is invalid afterwards. `order` is scratch space.
    pub(crate) fn take_pieces(
        &mut self,
        free: &[FreeBlock],
        pieces: &[Extent],
        order: &mut Vec<Extent>,
    ) -> Option<Id> {
        if !are_free(free, pieces) {
            return None;
        }
        // From the highest down: the remainder in front of a piece keeps the block's id.
        order.clear();
        order.try_reserve(pieces.len()).ok()?;
        order.extend_from_slice(pieces);
        sort::by_key(order, |p| std::cmp::Reverse(p.off));
        let mut first = 0;
        for &part in order.iter() {
            let piece = holder(free, part).and_then(|id| self.carve(id, part));
            let Some(piece) = piece else {
                self.unscatter(first);
                return None;
            };
            let d = self.maps().desc(piece);
            d.become_(kind::EXTENT, Tier::Large as u32);
            d.set_next(first);
            first = piece;
        }
        Some(first)
    }

    /// Frees the pieces that `scatter` took.
    pub(crate) fn unscatter(&mut self, first: Id) {
        let mut piece = first;
        while piece != 0 {
            let next = self.maps().desc(piece).next();
            self.free_large(piece);
            piece = next;
        }
    }

    /// Enters a block that is a whole segment.
    pub(crate) fn enter_direct(&mut self, id: Id, segment: Extent) {
        self.own(segment.touched());
        let d = self.maps().desc(id);
        d.set_off(segment.off);
        d.set_units(segment.units);
        self.maps().large_tags().enter(segment.off, segment.units, id);
    }

    /// Removes a block that is a whole segment; no heap owns the segment, nor the block's id, afterwards.
    pub(crate) fn take_direct(&mut self, id: Id) -> FreeBlock {
        let d = self.maps().desc(id);
        let part = Extent::new(d.off(), d.units());
        d.set_state(kind::UNUSED);
        self.disown(part.touched());
        FreeBlock { part, id }
    }
}
