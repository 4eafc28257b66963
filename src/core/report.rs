//! Why a request found no memory: what was asked, what there is and why it could not be had, who holds the rest, and
//! what was tried. Plain data; `report/text.rs` puts it into words.
//!
//! All sizes are bytes. The parts of `reserved` sum up to it: `live`, `waiting`, the three that begin with `free`, and
//! `moving`.

use super::types::{PoolId, TagStats};
use std::collections::BTreeMap;

mod text;

/// Holders of a kind, and streams that are waited for, that a report names at most.
pub const OOM_TOP: usize = 8;

/// What a request failed for, in one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum OomReason {
    /// The library itself cannot keep track of more blocks, streams or segments.
    #[default]
    Bookkeeping = 1,
    /// The request alone is larger than the device.
    LargerThanDevice = 2,
    /// The request alone is above the limit of its pool.
    AbovePoolLimit = 3,
    /// The request alone is above the limit of the device.
    AboveDeviceLimit = 4,
    /// With it the pool would pass its limit.
    PoolLimit = 5,
    /// With it the device would pass its limit.
    DeviceLimit = 6,
    /// What is missing was freed and waits: for streams, or since others use it.
    Waiting = 7,
    /// Enough is free, but not in one piece, or not where the request may have it.
    Fragmented = 8,
    /// The device refused although the library has less than it may have.
    DeviceRefused = 9,
    /// Nearly all that the device has is in use.
    Exhausted = 10,
}

impl OomReason {
    /// The reason of that number.
    pub fn from_number(n: u32) -> Option<OomReason> {
        use OomReason::*;
        let all = [
            Bookkeeping,
            LargerThanDevice,
            AbovePoolLimit,
            AboveDeviceLimit,
            PoolLimit,
            DeviceLimit,
            Waiting,
            Fragmented,
            DeviceRefused,
            Exhausted,
        ];
        all.into_iter().find(|&r| r as u32 == n)
    }

    /// Whether nothing that a callback could free helps.
    pub fn is_hopeless(self) -> bool {
        matches!(self, OomReason::LargerThanDevice | OomReason::AbovePoolLimit)
    }
}

/// What was tried for a request that found nothing, in the order in which it is tried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum OomStep {
    /// Idle memory of other streams of the pool.
    PoolIdle = 0,
    /// Unused memory back to the device (`garbage_collection_threshold`).
    Collect = 1,
    /// More from the device.
    Device = 2,
    /// Freed blocks that were kept whole (`max_split_size_mb`).
    Whole = 3,
    /// Memory of busy streams of the pool.
    PoolBusy = 4,
    /// Idle memory of other pools.
    OthersIdle = 5,
    /// Freed blocks that wait for nothing any more.
    Ready = 6,
    /// A wait for freed blocks.
    Waiting = 7,
    /// Memory of busy streams of other pools.
    OthersBusy = 8,
    /// Idle segments back to the device, for one that is large enough.
    Trim = 9,
    /// The program's own callbacks.
    Callbacks = 10,
}

/// The number of [`OomStep`]s.
pub const OOM_STEPS: usize = 11;

impl OomStep {
    /// All of them.
    pub const ALL: [OomStep; OOM_STEPS] = {
        use OomStep::*;
        [PoolIdle, Collect, Device, Whole, PoolBusy, OthersIdle, Ready, Waiting, OthersBusy, Trim, Callbacks]
    };
}

/// What became of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OomTried {
    /// Which.
    pub step: OomStep,
    /// How often it was tried.
    pub tries: u32,
    /// How often it brought anything.
    pub helped: u32,
    /// What it brought to the request's pool and stream, or, of blocks that waited, to theirs; of callbacks, what they
    /// freed. A step that gives memory back to the device brings nothing by itself.
    pub bytes: u64,
}

/// A pool, a stream or a tag, and what it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OomHolder {
    /// Its name, where it has one that is known here: pools have theirs in the C API.
    pub name: String,
    /// What it is in words, where that was told: it stands for the name.
    pub(crate) said: String,
    /// The pool, of a pool.
    pub pool: Option<PoolId>,
    /// The stream, of a stream; `None` there: blocks without one.
    pub stream: Option<u64>,
    /// The number of the tag, of a tag; else 0.
    pub tag: u16,
    /// In live blocks.
    pub live: u64,
    /// Live blocks.
    pub blocks: u64,
    /// In freed blocks that wait.
    pub waiting: u64,
    /// Reserved, and in no block.
    pub free: u64,
}

/// What freed blocks wait for. A block counts for the first thing only that it waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OomWait {
    /// What for.
    pub on: WaitsFor,
    /// In so many bytes,
    pub bytes: u64,
    /// and blocks.
    pub blocks: u64,
}

/// What a freed block waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitsFor {
    /// The work of this stream.
    Stream(u64),
    /// The work of all streams.
    AllStreams,
    /// A stream that has ended.
    Ended,
    /// Others, beside this process, which use its memory.
    Exported,
    /// Nothing any more, or not known yet.
    #[default]
    Nothing,
}

bitflags::bitflags! {
    /// What a report could not tell, or not wholly.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OomMissing: u32 {
        /// Everything but what was asked.
        const ALL = 1;
        /// What the device says that it has free.
        const DEVICE_FREE = 2;
        /// What many freed blocks wait for.
        const WAITS = 4;
        /// The largest free range, among very many.
        const LARGEST = 8;
        /// Which streams hold many of the blocks, where memory is not pooled.
        const STREAMS = 16;
    }
}

/// See the file's head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OomReport {
    /// Why.
    pub reason: OomReason,
    /// What could not be told.
    pub missing: OomMissing,
    /// The pool that was to serve the request.
    pub pool: PoolId,
    /// Its name, where it is known.
    pub pool_name: String,
    /// What it is in words, where that was told.
    pub(crate) pool_said: String,
    /// The number of the device (`DeviceState::id`), if it has one.
    pub device: Option<u32>,
    /// The stream of the request; `None`: it had none.
    pub stream: Option<u64>,
    /// What was asked for,
    pub requested: u64,
    /// and after rounding.
    pub rounded: u64,
    /// The limit of the pool; 0: none.
    pub pool_limit: u64,
    /// The limit of the device; 0: none.
    pub device_limit: u64,
    /// The most that is ever taken from the device.
    pub device_most: u64,
    /// Taken from the device by the pool.
    pub pool_reserved: u64,
    /// Taken from the device.
    pub reserved: u64,
    /// In live blocks.
    pub live: u64,
    /// In freed blocks that wait.
    pub waiting: u64,
    /// Of that, in blocks that others use beside this process.
    pub exported: u64,
    /// For how many streams freed blocks wait.
    pub waiting_streams: u32,
    /// Reserved and in no block: for the request's own stream in its pool.
    pub free_here: u64,
    /// For other streams of the pool.
    pub free_other_streams: u64,
    /// In other pools, and in none.
    pub free_other_pools: u64,
    /// In the hands of other threads at that moment.
    pub moving: u64,
    /// Not reserved any more: of pools that sleep.
    pub sleeping: u64,
    /// Not reserved, and within the limits of the device.
    pub unreserved: u64,
    /// What the device says that it has free: other users of it count, too.
    pub device_free: u64,
    /// The largest block that the request's own stream and pool could have given.
    pub largest_here: u64,
    /// The same of any other stream or pool.
    pub largest_elsewhere: u64,
    /// Whether the device maps: then free granules serve a request wherever they lie.
    pub maps: bool,
    /// Whether it could, but an option forbids it.
    pub could_map: bool,
    /// Whether its memory is pooled at all.
    pub pooled: bool,
    /// Whether the stream is captured: then nothing is taken that would need a wait.
    pub captured: bool,
    /// What the device said when it was asked last; "" where it was not, or has given.
    pub device_said: String,
    /// The pools that hold the most, live and waiting.
    pub pools: Vec<OomHolder>,
    /// The streams, likewise.
    pub streams: Vec<OomHolder>,
    /// The tags, likewise.
    pub tags: Vec<OomHolder>,
    /// What most of what waits, waits for.
    pub waits: Vec<OomWait>,
    /// What was tried.
    pub tried: Vec<OomTried>,
}

impl OomWait {
    /// Those for which the most bytes wait, first: from bytes and blocks.
    pub(crate) fn top(all: BTreeMap<WaitsFor, (u64, u64)>) -> Vec<OomWait> {
        let wait = |(on, (bytes, blocks))| OomWait { on, bytes, blocks };
        let mut all: Vec<_> = all.into_iter().map(wait).collect();
        all.sort_by_key(|w| std::cmp::Reverse(w.bytes));
        all.truncate(OOM_TOP);
        all
    }
}

impl OomReport {
    /// The tags that hold the most, first.
    pub(crate) fn tagged(all: Vec<(u16, TagStats)>) -> Vec<OomHolder> {
        OomReport::top(all.into_iter().map(|(tag, s)| OomHolder {
            tag,
            live: s.allocated.current,
            blocks: s.blocks.current,
            waiting: s.waiting,
            ..OomHolder::default()
        }))
    }

    /// Those that hold the most, first.
    pub(crate) fn top(all: impl Iterator<Item = OomHolder>) -> Vec<OomHolder> {
        let mut all: Vec<_> = all.filter(|h| h.live + h.waiting > 0).collect();
        all.sort_by_key(|h| std::cmp::Reverse(h.live + h.waiting));
        all.truncate(OOM_TOP);
        all
    }

    /// Why the request failed, which needs `need` bytes if nothing of what its stream has helps. `searched`: everything
    /// was tried for it.
    pub(crate) fn reason_for(&self, need: u64, searched: bool) -> OomReason {
        let above = |limit: u64| limit != 0 && need > limit;
        if self.requested > self.device_most || self.rounded > self.device_most {
            return OomReason::LargerThanDevice;
        }
        if above(self.pool_limit) {
            return OomReason::AbovePoolLimit;
        }
        if above(self.device_limit) {
            return OomReason::AboveDeviceLimit;
        }
        if !searched {
            return OomReason::Bookkeeping;
        }
        let in_pool = self.free_here + self.free_other_streams;
        let pool_room = match self.pool_limit {
            0 => u64::MAX,
            limit => limit.saturating_sub(self.pool_reserved),
        };
        let (free, room, limit) = match pool_room < need {
            true => (in_pool, pool_room, OomReason::PoolLimit),
            false if self.unreserved >= need => return OomReason::DeviceRefused,
            false => {
                let limited = self.device_limit != 0 && self.device_limit < self.device_most;
                let why = if limited { OomReason::DeviceLimit } else { OomReason::Exhausted };
                (in_pool + self.free_other_pools, self.unreserved, why)
            }
        };
        let to_be_had = free.saturating_add(room);
        if to_be_had >= need {
            OomReason::Fragmented
        } else if to_be_had.saturating_add(self.waiting) >= need {
            OomReason::Waiting
        } else {
            limit
        }
    }
}

impl crate::base::error::Error {
    /// Of a request that found no memory: the report.
    pub fn oom_report(&self) -> Option<std::sync::Arc<OomReport>> {
        self.detail()
    }
}
