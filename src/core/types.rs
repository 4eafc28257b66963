//! The terms that the allocator and its users share: pools, counters, and what is known of one block.
//!
//! Plain data. All sizes are in bytes; streams are the bits of the caller's stream, 0 the default one.

use crate::base::error::{Code, Error, Result};
use crate::base::ordered::Key;

mod counter;
mod memory_stats;

pub use counter::Counter;
pub use memory_stats::{Flow, MemoryStats, Split};

/// A pool of one device. The number is never reused within the device's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub u32);

impl Key for PoolId {
    fn number(self) -> u64 {
        self.0.into()
    }
    fn of(number: u64) -> Self {
        PoolId(number as u32)
    }
}

impl PoolId {
    /// The pool that each device has from the start and that is never destroyed.
    pub const DEFAULT: PoolId = PoolId(0);
}

// Words that stand where a stream does. They are no address of a process, no small number and no pattern of fill bytes, so that
// no caller has them for a stream; -1, for one, is what programs often have where there is none.

/// Stands for all streams of a device together, known or not; see `Backing::streams`.
pub(crate) const EVERY: u64 = 0xFFFF_FFFF_A96E_4B00;
/// The stream of a heap that serves requests without a stream.
pub const UNORDERED: u64 = EVERY + 1;
/// The stream of a heap whose stream has ended, or that serves nobody yet.
pub(crate) const RETIRED: u64 = EVERY + 2;

/// The maximum number of pools at one time: the low half of a [`PoolId`]; the high half counts the uses of a slot.
pub(crate) const POOL_SLOTS: u32 = 1 << 16;
/// The pool of a heap that has none.
pub(crate) const NO_POOL: u32 = u32::MAX;
/// The pool of memory that belongs to no pool and counts for the device alone: free parts of segments whose pool has
/// ended. No pool has this id, since none has the last slot.
pub(crate) const COMMONS: u32 = u32::MAX - POOL_SLOTS;

/// The exact account of a pool or a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes in live blocks, as requested.
    pub requested: Counter,
    /// Bytes in live blocks after rounding.
    pub allocated: Counter,
    /// `allocated`, plus bytes that are freed but still wait for a stream.
    pub active: Counter,
    /// `requested`, plus bytes, as requested, of blocks that are freed but still wait.
    pub active_requested: Counter,
    /// Bytes taken from the device.
    pub reserved: Counter,
    /// Live blocks.
    pub blocks: Counter,
    /// Pieces of memory taken from the device.
    pub segments: Counter,
    /// Calls into the memory management of the device so far.
    pub driver_calls: u64,
    /// Requests that failed for lack of memory, including those that hit a limit.
    pub out_of_memory_count: u64,
    /// The limit of `reserved`, in bytes; 0 means none.
    pub limit: u64,
    /// Bytes of live blocks whose memory was given back to the device until their pool wakes.
    pub sleeping: Counter,
}

impl Stats {
    /// Resets all peaks to the current values.
    pub fn reset_peaks(&mut self) {
        for c in [
            &mut self.requested,
            &mut self.allocated,
            &mut self.active,
            &mut self.active_requested,
            &mut self.reserved,
            &mut self.blocks,
            &mut self.segments,
            &mut self.sleeping,
        ] {
            c.reset_peak();
        }
    }
}

/// How much is live, and how much was ever freed: two of these tell whether something was freed in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveAndFreed {
    /// Bytes in live blocks after rounding.
    pub live_bytes: u64,
    /// How many blocks were ever freed.
    pub freed_blocks: u64,
}

/// What the blocks of one tag have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagStats {
    /// Bytes in live blocks as they were asked for.
    pub requested: Counter,
    /// Bytes in live blocks after rounding.
    pub allocated: Counter,
    /// Live blocks.
    pub blocks: Counter,
    /// Bytes after rounding of live blocks, and of freed ones that wait.
    pub active: Counter,
    /// Live blocks, and freed ones that wait.
    pub active_blocks: Counter,
    /// What of `allocated` lies in chunks; the rest is large.
    pub small_allocated: Counter,
    /// What of `blocks` does.
    pub small_blocks: Counter,
    /// Bytes, after rounding, in freed blocks that still wait.
    pub waiting: u64,
}

/// What a stream has of a device, or of one of its pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStats {
    /// The stream; `None` for blocks that every stream may use, and for what a stream left that has ended.
    pub stream: Option<u64>,
    /// Live blocks, and their bytes as they were asked for and after rounding.
    pub blocks: u64,
    /// See `blocks`.
    pub requested_bytes: u64,
    /// See `blocks`.
    pub allocated_bytes: u64,
    /// Freed blocks that wait, and their bytes.
    pub waiting_blocks: u64,
    /// See `waiting_blocks`.
    pub waiting_bytes: u64,
    /// Free pieces that serve its requests first, and their bytes.
    pub free_blocks: u64,
    /// See `free_blocks`.
    pub free_bytes: u64,
    /// All blocks that were ever allocated from what it has, and their bytes after rounding; 0 without pooling.
    pub total_blocks: u64,
    /// See `total_blocks`.
    pub total_bytes: u64,
    /// The peaks of `blocks` and their bytes since the peaks were reset, each for itself: exact for a stream in one pool,
    /// and the sum of that over pools. 0 without pooling.
    pub peak_blocks: u64,
    /// See `peak_blocks`.
    pub peak_requested_bytes: u64,
    /// See `peak_blocks`.
    pub peak_allocated_bytes: u64,
}

/// What is known of one live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// Its first address.
    pub base: u64,
    /// Its size after rounding, in bytes.
    pub size: u64,
    /// The requested size, in bytes.
    pub requested: u64,
    /// The stream that orders its reuse; `None` for a block that every stream may use at once.
    pub stream: Option<u64>,
    /// The pool from which it was allocated.
    pub pool: PoolId,
}

/// The error of a use of `bytes` from `addr` on, where only `room` are there.
#[cold]
pub(crate) fn past_end(addr: u64, bytes: u64, room: u64) -> Error {
    Error::formatted(
        Code::OutOfRange,
        format_args!("{bytes} B at {addr:#x} pass the end of the block by {}", bytes.saturating_sub(room)),
    )
}

impl BlockInfo {
    /// Fails if `bytes` from `addr` on, which lies in the block, exceed its requested size.
    pub(crate) fn check_room(&self, addr: u64, bytes: u64) -> Result<()> {
        let room = self.requested.saturating_sub(addr - self.base);
        if bytes > room {
            return Err(past_end(addr, bytes, room));
        }
        Ok(())
    }
}

/// What is reported of a block that is about to be freed.
#[derive(Clone, Copy, Debug)]
pub struct Freeing {
    /// The block, with the stream that ordered its use, if one did: also one that has ended.
    pub block: BlockInfo,
    /// That stream orders its use no more, mostly since it has ended; its work may still run.
    pub ended: bool,
    /// It can be used again at once, in the order of that stream. Otherwise that is reported once it is possible
    /// ([`Backing::free_completed`](super::Backing::free_completed)).
    pub at_once: bool,
}

/// What a block currently is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum BlockState {
    /// Allocated: the caller owns it.
    Live = 1,
    /// Freed, but not reusable before some streams, or other processes, have passed what was queued there.
    Waiting = 2,
    /// Free: the next request may get it. Pools that sleep have none.
    Free = 4,
}

bitflags::bitflags! {
    /// Several [`BlockState`]s.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct BlockStates: u32 {
        /// See [`BlockState::Live`].
        const LIVE = BlockState::Live as u32;
        /// See [`BlockState::Waiting`].
        const WAITING = BlockState::Waiting as u32;
        /// See [`BlockState::Free`].
        const FREE = BlockState::Free as u32;
    }
}

impl From<BlockState> for BlockStates {
    fn from(state: BlockState) -> BlockStates {
        BlockStates::from_bits_retain(state as u32)
    }
}

/// One block of a walk: live, waiting or free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRecord {
    /// Its first address.
    pub base: u64,
    /// Its size after rounding, in bytes, as the account counts it; for a free block its length.
    pub size: u64,
    /// The requested size, in bytes; 0 for a free block.
    pub requested: u64,
    /// The stream that orders its reuse or, for a free block, the stream whose requests it serves. `None`: every
    /// stream; or that stream has ended.
    pub stream: Option<u64>,
    /// The pool to which it belongs; `None` for free memory that belongs to no pool.
    pub pool: Option<PoolId>,
    /// What it is.
    pub state: BlockState,
    /// Where its segment begins; `None` if the device maps, and thus takes memory by the granule.
    pub segment: Option<u64>,
    /// The number of its tag; 0 for none, and for a free one.
    pub tag: u16,
}

impl BlockRecord {
    /// Sorts by address. There may be millions.
    pub(crate) fn sort(all: &mut [BlockRecord]) {
        all.sort_unstable_by_key(|r| r.base);
    }
}
