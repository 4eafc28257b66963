//! Quick slots: freed large blocks that wait unmerged, by size, in slots that are found by a hash of the size.
//!
//! Most requests ask for a size that was freed shortly before. But the place of a large block should depend on little
//! but the live blocks: then a program that repeats itself finds the same places again, including the same scattered
//! granules, and makes no driver calls. So only a small part of the heap's memory may wait. If there is more, and a
//! request finds no block of its size, all of it is merged; so it is before the heap asks for more memory.

use super::super::desc::{Desc, Id, Maps};
use super::super::units::LARGE_UNITS_SHIFT;

/// The maximum number of sizes that can wait.
const QUICK: usize = 64;
/// The same for a device that only gives segments. A block that is kept for its size splits the free space of a
/// segment, and nothing can be scattered there: more sizes cost memory (a twentieth, on one trace).
const QUICK_IN_SEGMENTS: usize = 4;
/// So many slots are looked at together.
const GROUP: usize = 8;
/// The part of the heap's memory that may wait, as a shift: 1/64. More would serve more requests; but with 1/16,
/// recorded programs scatter blocks at new places in each step (docs/decisions/mapping.md).
const PART_SHIFT: u32 = 6;

/// Freed blocks of one size. An empty slot may keep its size.
#[derive(Clone, Copy, Default, Debug)]
struct Slot {
    units: u32,
    id: Id, // the first; the others are linked by `prev`
}

/// The large blocks of a heap that wait.
pub(super) struct Quick {
    slots: [Slot; QUICK],
    /// Slots that were filled since the last flush: 1. A byte each, as that is one store.
    used: [u8; QUICK],
    /// [units] of everything that waits.
    waiting: u32,
    /// The bits of the hash of a size that say its slot, among the six highest.
    bits: u32,
    /// A slot and the one beside it differ in this bit.
    beside: usize,
    /// Blocks for which there was no slot, linked by `prev`.
    spill: Id,
    /// When a request finds no block of its size, everything that waits is merged.
    strict: bool,
}

impl Quick {
    pub(super) fn new(mapping: bool) -> Quick {
        let sizes = if mapping { QUICK } else { QUICK_IN_SEGMENTS };
        Quick {
            slots: [Slot::default(); QUICK],
            used: [0; QUICK],
            waiting: 0,
            bits: !0 << (u32::BITS - sizes.trailing_zeros()),
            beside: QUICK / sizes,
            spill: 0,
            strict: !mapping,
        }
    }

    /// The slot that the hash of a size selects. The one beside it is its second choice.
    #[inline(always)]
    fn slot(&self, units: u32) -> usize {
        let hash = units.wrapping_mul(0x78DD_E6C4).wrapping_add(0x3C6E_F362);
        ((hash & self.bits) >> (u32::BITS - QUICK.trailing_zeros())) as usize
    }

    /// Whether nothing waits.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Whether more waits than may in a heap of so many granules.
    #[inline(always)]
    pub(super) fn is_too_much(&self, granules: u64) -> bool {
        self.strict || u64::from(self.waiting) > granules << LARGE_UNITS_SHIFT >> PART_SHIFT
    }

    /// Takes out the blocks that wait, list by list; each list follows through `prev`. 0: nothing waits any more.
    pub(super) fn take_list(&mut self) -> Id {
        for group in 0..QUICK / GROUP {
            let at = group * GROUP;
            let mut bytes = [0; GROUP];
            bytes.copy_from_slice(&self.used[at..at + GROUP]);
            let mut used = u64::from_le_bytes(bytes);
            while used != 0 {
                let slot = at + used.trailing_zeros() as usize / 8;
                used &= used - 1;
                self.used[slot] = 0;
                let first = std::mem::take(&mut self.slots[slot].id);
                if first != 0 {
                    return first;
                }
            }
        }
        self.waiting = 0;
        std::mem::take(&mut self.spill)
    }

    /// The slot of exactly this size, if it has a block.
    #[inline(always)]
    pub(super) fn find(&self, units: u32) -> Option<usize> {
        let mut slot = self.slot(units);
        if self.slots[slot].units != units {
            slot = (slot ^ self.beside) % QUICK;
            if self.slots[slot].units != units {
                return None;
            }
        }
        (self.slots[slot].id != 0).then_some(slot)
    }

    /// The first block of a slot that [`find`](Self::find) returned.
    #[inline(always)]
    pub(super) fn first(&self, slot: usize) -> Id {
        self.slots[slot % QUICK].id
    }

    /// Takes it out; `d` is its descriptor.
    #[inline(always)]
    pub(super) fn take_first(&mut self, slot: usize, units: u32, d: Desc<'_>) {
        self.waiting -= units;
        self.slots[slot % QUICK].id = d.prev();
    }

    /// A block of exactly this size.
    #[inline]
    pub(super) fn pop(&mut self, maps: &Maps, units: u32) -> Option<Id> {
        let slot = self.find(units)?;
        let id = self.first(slot);
        self.take_first(slot, units, maps.desc(id));
        Some(id)
    }

    /// Makes a freed block wait.
    #[inline(always)]
    pub(super) fn push(&mut self, units: u32, id: Id, d: Desc<'_>) {
        self.waiting += units;
        let slot = self.slot(units);
        let s = &mut self.slots[slot];
        if s.units != units {
            return self.push_elsewhere(slot, units, id, d);
        }
        d.set_prev(s.id);
        s.id = id;
        self.used[slot] = 1;
    }

    /// The same for a size that is not in its first slot: the one beside it, if the size is there already; else whichever
    /// of the two is empty, the first before the second; else no slot.
    #[inline(always)]
    fn push_elsewhere(&mut self, first: usize, units: u32, id: Id, d: Desc<'_>) {
        let mut slot = first % QUICK;
        let other = (slot ^ self.beside) % QUICK;
        if self.slots[other].units == units {
            slot = other;
        }
        let taken = |s: Slot| s.units != units && s.id != 0;
        if taken(self.slots[slot]) {
            slot = (slot ^ self.beside) % QUICK;
            if taken(self.slots[slot]) {
                d.set_prev(self.spill);
                self.spill = id;
                return;
            }
        }
        let s = &mut self.slots[slot];
        d.set_prev(if s.units == units { s.id } else { 0 });
        *s = Slot { units, id };
        self.used[slot] = 1;
    }
}

impl Quick {
    /// The blocks that wait, `most` of them.
    pub(super) fn all<'a>(&'a self, maps: &'a Maps, most: usize) -> impl Iterator<Item = Id> + 'a {
        let chain = |first| std::iter::successors(Some(first), |&id| Some(maps.desc(id).prev()));
        let firsts = self.slots.iter().map(|s| s.id).chain([self.spill]);
        firsts.flat_map(move |first| chain(first).take_while(|&id| id != 0)).take(most)
    }
}
#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]
mod tests {
    use super::super::super::shape::{Fine, Shape};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_waits_is_counted_and_comes_back_by_size(
            steps in prop::collection::vec((any::<bool>(), 4u32..200), 1..400), mapping: bool
        ) {
            let m = Maps::new(Shape::new(512, 0, 1 << 40, Fine { small: true, medium: true }).unwrap(), 16, 0, u64::MAX).unwrap();
            let mut q = Quick::new(mapping);
            let mut waiting: Vec<(u32, Id)> = Vec::new();
            for (i, &(push, units)) in steps.iter().enumerate() {
                if push {
                    let id = i as u32 + 1;
                    q.push(units, id, m.desc(id));
                    waiting.push((units, id));
                } else if let Some(id) = q.pop(&m, units) {
                    let at = waiting.iter().position(|w| *w == (units, id));
                    prop_assert!(at.is_some(), "{id} does not wait, or not with that size");
                    waiting.swap_remove(at.unwrap());
                } else if q.spill == 0 {
                    prop_assert!(waiting.iter().all(|w| w.0 != units), "a block of {units} was not found");
                }
                prop_assert_eq!(q.waiting, waiting.iter().map(|w| w.0).sum::<u32>());
            }
            // Nothing is lost: it is in a slot that is marked, or on the spill list.
            let mut found = Vec::new();
            let slots = (0..QUICK).filter(|&s| q.used[s] != 0).map(|s| q.slots[s].id);
            for mut id in slots.chain([q.spill]) {
                while id != 0 {
                    found.push(id);
                    id = m.desc(id).prev();
                }
            }
            found.sort_unstable();
            let mut all: Vec<Id> = waiting.iter().map(|w| w.1).collect();
            all.sort_unstable();
            prop_assert_eq!(found, all);
        }
    }
}
