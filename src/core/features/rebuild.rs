//! The last part of a restore: changes the blocks of a pool into those of a layout. Everything is acquired before, so
//! nothing here can fail. All heaps of the pool are locked.

use super::super::blocks::Blocks;
use super::super::desc::{Id, kind};
use super::super::ground::Ground;
use super::super::heap::{Heap, HeapState, LockedHeap, Use};
use super::super::order::Waits;
use super::super::shape::{Class, Tier, unit_shift};
use super::super::state::checkpoints::Block;
use super::super::supply::Ranges;
use super::super::units::Extent;
use super::pool_heaps::PoolHeaps;
use crate::base::sort;
use std::collections::{BTreeMap, HashMap};
use std::ops::DerefMut;

/// A granule of the layout, or the end of a segment in it, that another heap of the pool owns now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Move {
    pub part: Extent,
    pub from: u32,
    pub to: u32,
}

/// Table slots for the chunks that must be made, by granule.
pub(super) type Slots = BTreeMap<u32, (Tier, u32)>;

/// See the head of this file.
pub(super) struct Rebuild<'a, 'h> {
    ground: &'a Ground,
    blocks: Blocks<'a>,
    heaps: &'h mut PoolHeaps<'a>,
}

impl<'a, 'h> Rebuild<'a, 'h> {
    pub(super) fn of(ground: &'a Ground, heaps: &'h mut PoolHeaps<'a>) -> Rebuild<'a, 'h> {
        Rebuild { ground, blocks: Blocks::of(ground), heaps }
    }

    /// Frees claimed blocks; segments of their own wait to go back to the device. The result must be dropped when no
    /// lock is held.
    pub(super) fn free_all(&mut self, gone: &[Block]) -> Vec<Use> {
        let (ground, blocks) = (self.ground, self.blocks);
        let mut dropped = Vec::new();
        for b in gone {
            let (Some(f), Some(h)) = (ground.maps.find(b.offset), self.heaps.get_mut(&b.heap)) else {
                continue;
            };
            dropped.extend(h.uses.remove(&f.id).unwrap_or_default());
            h.exports.remove(&f.id); // nobody uses it any more
            let was = f.desc.state();
            blocks.end_oversize(h, was);
            if b.direct {
                // The work of its own stream must still be waited for; for a block without a stream, all streams were.
                f.desc.set_kind(kind::WAITING);
                blocks.untag(h, f.id, was, true);
                h.counters.count_out_to_wait(Class::of(b.tier_bits), b.charged, b.requested);
                let ticket = h.waiting.begin(f.id, Vec::new(), true);
                let mut waits = Waits::default();
                if let Some(own) = &h.stream {
                    ground.order.owe(own, &mut waits);
                }
                h.waiting.known(ticket, waits);
                ground.waiting_heaps().insert(b.heap);
                continue;
            }
            h.counters.count_out(Class::of(b.tier_bits), b.charged, b.requested);
            blocks.untag(h, f.id, was, false);
            h.merge(f.id);
        }
        self.heaps.values_mut().for_each(LockedHeap::flush); // turns empty chunks into granules
        dropped
    }

    /// Moves granules of the layout to the heaps that had them, from the highest down.
    pub(super) fn move_all(&mut self, moves: &[Move]) {
        for m in moves.iter().rev() {
            let taken = self.heaps.get_mut(&m.from).and_then(|h| {
                let mut free = Vec::new();
                h.free_list(&mut free);
                h.take_at(&free, m.part)
            });
            debug_assert!(taken.is_some(), "what is not kept is free");
            if let (Some(block), Some(h)) = (taken, self.heaps.get_mut(&m.to)) {
                h.give(block);
            }
        }
    }

    /// Makes the blocks live, each at its place. `entries` are the address ranges of the scattered ones, by offset.
    pub(super) fn place_all(&mut self, new: &[&Block], slots: &mut Slots, entries: &HashMap<u64, u32>) {
        let (ground, blocks) = (self.ground, self.blocks);
        for (&index, h) in self.heaps.iter_mut() {
            let mine = || new.iter().copied().filter(|b| b.heap == index);
            // What lies in the granules themselves, from the highest down: blocks (`false`) and chunks (`true`).
            let mut coarse: Vec<(Extent, bool)> = Vec::new();
            let mut fine: BTreeMap<u32, Vec<&Block>> = BTreeMap::new();
            for b in mine() {
                if !b.is_fine() {
                    coarse.extend(b.parts().into_iter().map(|p| (p, false)));
                    continue;
                }
                let chunk = fine.entry(b.granule()).or_default();
                if chunk.is_empty() && slots.contains_key(&b.granule()) {
                    coarse.extend(b.parts().into_iter().map(|p| (p, true)));
                }
                chunk.push(b);
            }
            sort::by_key(&mut coarse, |c| std::cmp::Reverse(c.0.off));
            let mut free = Vec::new();
            h.free_list(&mut free);
            let mut taken: HashMap<u32, Id> = HashMap::new(); // by offset
            for &(part, is_chunk) in &coarse {
                let Some(piece) = h.carve_at(&free, part) else { continue };
                let slot = if is_chunk { slots.remove(&part.touched().first) } else { None };
                match slot {
                    Some((tier, slot)) => h.chunk_from(piece, tier, slot),
                    None => _ = taken.insert(part.off, piece),
                }
            }
            for b in mine().filter(|b| !b.is_fine()) {
                let ids: Vec<Id> = b.parts().iter().filter_map(|p| taken.get(&p.off).copied()).collect();
                let id = match entries.get(&b.offset) {
                    None => ids.first().copied(),
                    Some(&entry) => scattered_again(ground, h.heap, b, entry, &ids),
                };
                if let Some(id) = id {
                    make_live_again(blocks, h, id, b);
                }
            }
            for (granule, mut in_chunk) in fine {
                sort::by_key(&mut in_chunk, |b| b.offset);
                let Some(tier) = in_chunk.first().map(|b| b.tier()) else { continue };
                let shift = unit_shift(tier);
                let parts: Vec<Extent> =
                    in_chunk.iter().map(|b| Extent::new((b.offset >> shift) as u32, b.units)).collect();
                let mut ids = Vec::new();
                h.fill_chunk(tier, granule, &parts, |n, id| ids.push((n, id)));
                for (n, id) in ids {
                    make_live_again(blocks, h, id, in_chunk[n]);
                }
            }
            h.count_stuck();
        }
    }
}

/// Makes a scattered block over pieces that were cut out, in a range where they are mapped already.
fn scattered_again(ground: &Ground, heap: &Heap, b: &Block, entry: u32, pieces: &[Id]) -> Option<Id> {
    let mut next = 0;
    for &piece in pieces.iter().rev() {
        let d = ground.maps.desc(piece);
        d.become_(kind::EXTENT, Tier::Large as u32);
        d.set_next(next);
        next = piece;
    }
    let ends = b.pieces.first().zip(b.pieces.last()).map(|(&first, &last)| [first, last]);
    let range = ground.aliases().take_index(entry, ends)?;
    Ranges::of(ground).make_block(heap, range, b.units, next);
    Some(range.id)
}

/// Makes a block live as it was.
fn make_live_again<G: DerefMut<Target = HeapState>>(
    blocks: Blocks<'_>,
    h: &mut LockedHeap<'_, G>,
    id: Id,
    b: &Block,
) {
    h.make_live(id, b.tier_bits, b.requested);
    blocks.flag_tuned(h, id, b.charged);
    if b.tag != 0 {
        blocks.tag(h, id, b.tag);
    }
    h.counters.count_in(Class::of(b.tier_bits), b.charged, b.requested);
}
