//! The state word of a block: its kind in the low four bits, its tier above them, then its flags; of a live block, also
//! the number of its heap.

use super::super::shape::{TIER_MASK, TIER_SHIFT, Tier};

/// What a block currently is: the low four bits of its state word.
pub(crate) mod kind {
    /// The id is not in use.
    pub(crate) const UNUSED: u32 = 0;
    /// In the bins of its heap.
    pub(crate) const FREE: u32 = 1;
    /// Allocated: the caller owns it.
    pub(crate) const LIVE: u32 = 2;
    /// Freed, not merged yet: on a list of its size in its heap.
    pub(crate) const FREED: u32 = 3;
    /// Freed by another thread, on its way to its heap.
    pub(crate) const REMOTE: u32 = 4;
    /// Freed, waiting for streams.
    pub(crate) const WAITING: u32 = 5;
    /// A granule that holds the blocks of a finer tier.
    pub(crate) const CHUNK: u32 = 6;
    /// A piece of a scattered block.
    pub(crate) const EXTENT: u32 = 7;
    /// The mask of these bits.
    pub(crate) const MASK: u32 = 15;
}

/// The tier bits of a scattered block. Those of any other block are its [`Tier`].
pub(crate) const ALIAS: u32 = 3;
/// The state of a free block of a tier.
pub(crate) const fn free_state(tier: Tier) -> u32 {
    kind::FREE | (tier as u32) << TIER_SHIFT
}

/// A live block that other streams have used, or that is a segment of its own: its free takes the slow path.
pub(crate) const USES: u32 = 1 << 8;
/// A live block that is a whole segment, taken for it and given back when it is freed.
pub(crate) const DIRECT: u32 = 1 << 9;
/// A live block whose charge does not follow from its size alone (`state/tuned.rs`): its free takes the slow path.
pub(crate) const TUNED: u32 = 1 << 10;
/// A live or waiting block that has a tag: its free takes the slow path.
pub(crate) const TAGGED: u32 = 1 << 11;
/// A live block that counts as oversize (`state/tuned.rs`). It is `TUNED` or `DIRECT`, too.
pub(crate) const OVERSIZE: u32 = 1 << 12;

/// Where the number of its heap begins in the state of a live block: so one comparison says that a block is live, has no
/// flag and is the heap's.
pub(crate) const OWNER_SHIFT: u32 = 16;
/// Kind and flags in the state of a live block: all but its tier and its heap.
pub(super) const PLAIN: u32 = ((1 << OWNER_SHIFT) - 1) & !TIER_MASK;
/// What a claim for a remote free changes in the state of a live block.
pub(super) const CLAIM: u32 = kind::LIVE ^ kind::REMOTE;
