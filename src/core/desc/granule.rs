//! The record of a granule: how it is used and which heap owns it, in one word that is read and written as a whole.
//!
//! The layout of the word lets the first step of a free get by with few instructions: the record and an offset yield the
//! block's table entry, and the state that a plainly live block has there.

use super::OWNER_SHIFT;

/// How a granule is used: bits 56.. of its record. If blocks can start in it, these are the kind and the tier bits of a
/// live block there, with `BLOCKS` set: so one comparison says that a block is live, has no flag, and is of the tier that
/// the granule serves. No state has that bit, and so none fits a granule in which no block starts.
pub(crate) mod use_of {
    use super::super::state::kind;
    use crate::core::shape::TIER_SHIFT;

    /// The mark of a granule in which blocks can start.
    pub(super) const BLOCKS: u64 = 1 << 6;
    /// Nothing: it has no memory, or an operation holds it.
    pub(crate) const NONE: u64 = 0;
    /// It belongs to no heap, but to a segment of which heaps may have other parts: an operation holds it. Only on devices
    /// whose segments are as large as requests need (`heap/idle.rs`).
    pub(crate) const HELD: u64 = 1;
    /// A chunk of the small tier.
    pub(crate) const SMALL: u64 = of_blocks(0);
    /// A chunk of the medium tier.
    pub(crate) const MEDIUM: u64 = of_blocks(1);
    /// Blocks of the large tier.
    pub(crate) const LARGE: u64 = of_blocks(2);
    /// The first granule of addresses at which scattered granules are mapped.
    pub(crate) const ALIAS: u64 = of_blocks(3);
    /// A later granule of such addresses; the low word is the block's id.
    pub(crate) const ALIAS_REST: u64 = 2;

    /// The use of a granule whose blocks have these tier bits.
    #[inline(always)]
    pub(crate) const fn of_blocks(tier_bits: u32) -> u64 {
        BLOCKS | (kind::LIVE | tier_bits << TIER_SHIFT) as u64
    }
}

/// The bits of a record, from the low ones up: the table entry that the first unit of the device would have if all granules
/// were like this one (32 bits, may wrap), its heap (16), log2 of its unit in bytes (8), its use (8).
mod at {
    pub(super) const HEAP: u32 = 32;
    pub(super) const UNIT_SHIFT: u32 = 48;
    pub(super) const USE: u32 = 56;
}
/// The bits of a heap's number.
const HEAP_MASK: u32 = (1 << (at::UNIT_SHIFT - at::HEAP)) - 1;
/// The bits of a unit's shift.
const SHIFT_MASK: u32 = (1 << (at::USE - at::UNIT_SHIFT)) - 1;

/// A granule's record: with it, a block in the granule is found without a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GranuleUse(pub u64);

impl GranuleUse {
    /// The granule belongs to nobody.
    pub(crate) const NONE: GranuleUse = GranuleUse(use_of::NONE << at::USE);
    /// The same, and it is part of a segment.
    pub(crate) const HELD: GranuleUse = GranuleUse(use_of::HELD << at::USE);

    #[inline(always)]
    pub(crate) fn new(use_: u64, shift: u32, heap: u32, low: u32) -> Self {
        let heap = u64::from(heap & HEAP_MASK) << at::HEAP;
        GranuleUse(use_ << at::USE | u64::from(shift) << at::UNIT_SHIFT | heap | u64::from(low))
    }
    #[inline(always)]
    pub(crate) fn use_(self) -> u64 {
        self.0 >> at::USE
    }
    /// log2 of a unit in bytes.
    #[inline(always)]
    pub(crate) fn shift(self) -> u32 {
        (self.0 >> at::UNIT_SHIFT) as u32 & SHIFT_MASK
    }
    #[inline(always)]
    pub(crate) fn heap(self) -> u32 {
        (self.0 >> at::HEAP) as u32 & HEAP_MASK
    }
    /// The state of a plainly live block (no flag) in the granule; that of no block where none can start.
    #[inline(always)]
    pub(crate) fn live_state(self) -> u32 {
        (self.use_() ^ use_of::BLOCKS) as u32 | self.heap() << OWNER_SHIFT
    }
    /// What marks the heap of this number for [`has_live`](Self::has_live).
    pub(crate) fn mark(heap: u32) -> u32 {
        use_of::BLOCKS as u32 | heap << OWNER_SHIFT
    }
    /// Whether a block in this state is plainly live, belongs to the heap of this mark, and has the tier that the granule
    /// serves.
    #[inline(always)]
    pub(crate) fn has_live(self, mark: u32, state: u32) -> bool {
        self.use_() as u32 ^ state == mark
    }
    #[inline(always)]
    pub(crate) fn low(self) -> u32 {
        self.0 as u32
    }
    /// The table entry of a unit that lies in the granule.
    #[inline(always)]
    pub(crate) fn entry(self, unit: u32) -> u32 {
        self.low().wrapping_add(unit)
    }
    /// The number of the unit that starts at `offset`; of one inside a unit no number that a unit has, and the low 32
    /// bits are those of that unit.
    #[inline(always)]
    pub(crate) fn unit(self, offset: u64) -> u64 {
        // What the shift drops comes back at the top.
        offset.rotate_right(self.shift())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::state::kind;
    use super::*;
    use crate::core::shape::TIER_SHIFT;

    #[test]
    fn a_record_says_which_state_is_plainly_live() {
        let blocks = [use_of::SMALL, use_of::MEDIUM, use_of::LARGE, use_of::ALIAS];
        for use_ in [use_of::NONE, use_of::HELD, use_of::ALIAS_REST].into_iter().chain(blocks) {
            for heap in [0, 1, 7, 0xffff] {
                let g = GranuleUse::new(use_, 9, heap, 5);
                let tier = blocks.iter().position(|&b| b == use_);
                let live = tier.map(|t| kind::LIVE | (t as u32) << TIER_SHIFT | heap << OWNER_SHIFT);
                for state in (0..1u32 << 14).filter(|s| s & 0xC0 == 0) {
                    for owner in [0, 1, 7, 0xffff] {
                        let state = state | owner << OWNER_SHIFT;
                        assert_eq!(g.live_state() == state, live == Some(state));
                        assert_eq!(g.has_live(GranuleUse::mark(heap), state), live == Some(state));
                    }
                }
            }
        }
    }

    #[test]
    fn only_the_start_of_a_unit_has_its_number() {
        for shift in [9, 12, 14] {
            let g = GranuleUse::new(use_of::LARGE, shift, 7, u32::MAX - 4);
            assert_eq!((g.heap(), g.shift(), g.use_()), (7, shift, use_of::LARGE));
            for unit in [0, 1, 5, 1000, u64::from(u32::MAX) >> 3] {
                let start = unit << shift;
                assert_eq!(g.unit(start), unit);
                assert_eq!(g.entry(unit as u32), (unit as u32).wrapping_sub(5));
                for inside in [1, 2, 1 << (shift - 1), (1 << shift) - 1] {
                    assert!(g.unit(start + inside) > u64::from(u32::MAX), "{inside} bytes into {unit}");
                }
            }
        }
    }
}
