//! The out-of-memory report: the request, the memory that there is and why the request could not have it, who holds the
//! rest, and what was tried. Plain data; `report/text.rs` writes it as text.
//!
//! All sizes are bytes. `live`, `waiting`, the three `free_*` of memory in no block, and `moving` sum up to `reserved`.

use super::types::{PoolId, TagStats};
use std::collections::BTreeMap;

mod text;

/// The most pools, streams and tags that a report lists of each, and the most entries of `waits`.
pub const OOM_TOP: usize = 8;

/// Why a request failed, in one word.
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
    /// The request would take the pool over its limit.
    PoolLimit = 5,
    /// The request would take the device over its limit.
    DeviceLimit = 6,
    /// The missing memory was freed, but still waits: for streams, or because others use it.
    Waiting = 7,
    /// Enough is free, but not in one piece, or not where the request may take it.
    Fragmented = 8,
    /// The device refused, although the library has taken less than it may.
    DeviceRefused = 9,
    /// Nearly all memory of the device is in use.
    Exhausted = 10,
}

impl OomReason {
    /// The reason with that number.
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

    /// Whether no callback can help, whatever it frees.
    pub fn is_hopeless(self) -> bool {
        matches!(self, OomReason::LargerThanDevice | OomReason::AbovePoolLimit)
    }
}

/// The steps tried for a request that found nothing, in the order in which they are first tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum OomStep {
    /// Idle memory of other streams of the pool.
    PoolIdle = 0,
    /// Giving unused memory back to the device (`garbage_collection_threshold`).
    Collect = 1,
    /// More memory from the device.
    Device = 2,
    /// Freed blocks that were kept whole (`max_split_size_mb`).
    Whole = 3,
    /// Memory of busy streams of the pool.
    PoolBusy = 4,
    /// Idle memory of other pools.
    OthersIdle = 5,
    /// Freed blocks whose waits are over.
    Ready = 6,
    /// Waiting for freed blocks.
    Waiting = 7,
    /// Memory of busy streams of other pools.
    OthersBusy = 8,
    /// Giving idle segments back to the device to get one that is large enough.
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

/// The result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OomTried {
    /// The step.
    pub step: OomStep,
    /// How often it was tried.
    pub tries: u32,
    /// How often it freed or found memory.
    pub helped: u32,
    /// Bytes that it brought to the request's pool and stream; for waiting blocks, to theirs; for callbacks, what they
    /// freed. A step that gives memory back to the device brings nothing by itself.
    pub bytes: u64,
}

/// A pool, a stream or a tag, and what it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OomHolder {
    /// Its name, if it is known here: the names of pools are kept by the C API.
    pub name: String,
    /// A finished label that replaces the name; "" if there is none.
    pub(crate) said: String,
    /// The pool, if the holder is one.
    pub pool: Option<PoolId>,
    /// The stream, if the holder is one; in the list of streams, `None` stands for blocks without a stream.
    pub stream: Option<u64>,
    /// The number of the tag, if the holder is one; else 0.
    pub tag: u16,
    /// Bytes in live blocks.
    pub live: u64,
    /// The number of live blocks.
    pub blocks: u64,
    /// Bytes in freed blocks that still wait.
    pub waiting: u64,
    /// Bytes that are reserved and in no block.
    pub free: u64,
}

/// What freed blocks wait for. A block that waits for several things is counted for the first one only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OomWait {
    /// What the blocks wait for.
    pub on: WaitsFor,
    /// Their bytes.
    pub bytes: u64,
    /// Their number.
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
    /// Users outside this process.
    Exported,
    /// Nothing any more, or it is not known yet.
    #[default]
    Nothing,
}

bitflags::bitflags! {
    /// The parts of a report that are unknown or incomplete.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OomMissing: u32 {
        /// Everything except the request itself.
        const ALL = 1;
        /// How much the device has free.
        const DEVICE_FREE = 2;
        /// What some of the freed blocks wait for: there are too many.
        const WAITS = 4;
        /// The largest free range: there are too many ranges.
        const LARGEST = 8;
        /// Which streams hold many of the blocks, on a device that is not pooled.
        const STREAMS = 16;
    }
}

/// See the file's head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OomReport {
    /// Why the request failed.
    pub reason: OomReason,
    /// The parts that are unknown.
    pub missing: OomMissing,
    /// The pool that should have served the request.
    pub pool: PoolId,
    /// Its name, if known.
    pub pool_name: String,
    /// A finished label that replaces the name; "" if there is none.
    pub(crate) pool_said: String,
    /// The number of the device (`DeviceState::id`), if it has one.
    pub device: Option<u32>,
    /// Its name, as in `host:0`; "" if it is not known.
    pub device_name: String,
    /// The stream of the request, if it had one.
    pub stream: Option<u64>,
    /// The size of the request.
    pub requested: u64,
    /// The same after rounding.
    pub rounded: u64,
    /// The limit of the pool; 0: none.
    pub pool_limit: u64,
    /// The limit of the device; 0: none.
    pub device_limit: u64,
    /// The most that is ever taken from the device.
    pub device_most: u64,
    /// Reserved by the pool.
    pub pool_reserved: u64,
    /// Reserved: taken from the device.
    pub reserved: u64,
    /// In live blocks.
    pub live: u64,
    /// In freed blocks that still wait.
    pub waiting: u64,
    /// The part of `waiting` that users outside this process still use.
    pub exported: u64,
    /// The number of streams that freed blocks wait for.
    pub waiting_streams: u32,
    /// Reserved and in no block: for the request's own stream in its pool.
    pub free_here: u64,
    /// Reserved and in no block: for other streams of the pool.
    pub free_other_streams: u64,
    /// Reserved and in no block: in other pools.
    pub free_other_pools: u64,
    /// In transit: in the hands of other threads at that moment.
    pub moving: u64,
    /// Size of the sleeping pools; not part of `reserved`.
    pub sleeping: u64,
    /// Not reserved, and within the limits of the device.
    pub unreserved: u64,
    /// Free memory as the device reports it, which other users of the device share.
    pub device_free: u64,
    /// The largest block that the request's own stream and pool could have given.
    pub largest_here: u64,
    /// The largest block that any other stream or pool could have given.
    pub largest_elsewhere: u64,
    /// Whether the device maps, so that free granules serve a request wherever they lie.
    pub maps: bool,
    /// Whether the device could map, but an option forbids it.
    pub could_map: bool,
    /// Whether its memory is pooled.
    pub pooled: bool,
    /// Whether a history, a recording or a tool watches its blocks.
    pub watched: bool,
    /// Whether the stream is captured, so that no memory was taken that needs a wait.
    pub captured: bool,
    /// The error of the last call that asked the device for memory; "" if there was none or it succeeded.
    pub device_said: String,
    /// The pools that hold the most, live and waiting, largest first.
    pub pools: Vec<OomHolder>,
    /// The streams that hold the most, likewise.
    pub streams: Vec<OomHolder>,
    /// The tags that hold the most, likewise.
    pub tags: Vec<OomHolder>,
    /// What freed blocks wait for, the most bytes first.
    pub waits: Vec<OomWait>,
    /// The steps that were tried.
    pub tried: Vec<OomTried>,
}

impl OomWait {
    /// The [`OOM_TOP`] entries with the most bytes, largest first; the values of `all` are bytes and blocks.
    pub(crate) fn top(all: BTreeMap<WaitsFor, (u64, u64)>) -> Vec<OomWait> {
        largest(all.into_iter().map(|(on, (bytes, blocks))| OomWait { on, bytes, blocks }), |w| w.bytes)
    }
}

/// The [`OOM_TOP`] entries with the most bytes, largest first; of equal ones the first.
fn largest<T>(all: impl Iterator<Item = T>, bytes: impl Fn(&T) -> u64) -> Vec<T> {
    let mut top: Vec<T> = Vec::new();
    for one in all {
        let at = top.iter().position(|t| bytes(t) < bytes(&one)).unwrap_or(top.len());
        if at < OOM_TOP {
            top.truncate(OOM_TOP - 1);
            top.insert(at, one);
        }
    }
    top
}

impl OomReport {
    /// The [`OOM_TOP`] tags that hold the most, largest first.
    pub(crate) fn tagged(all: Vec<(u16, TagStats)>) -> Vec<OomHolder> {
        OomReport::top(all.into_iter().map(|(tag, s)| OomHolder {
            tag,
            live: s.allocated.current,
            blocks: s.blocks.current,
            waiting: s.waiting,
            ..OomHolder::default()
        }))
    }

    /// The [`OOM_TOP`] holders that hold the most, largest first.
    pub(crate) fn top(all: impl Iterator<Item = OomHolder>) -> Vec<OomHolder> {
        let bytes = |h: &OomHolder| h.live + h.waiting;
        largest(all.filter(|h| bytes(h) > 0), bytes)
    }

    /// Why the request failed. `need`: the bytes that it needs if none of its stream's free memory helps. `searched`:
    /// every step was tried.
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
    /// The report, if this is the error of a request that found no memory.
    pub fn oom_report(&self) -> Option<std::sync::Arc<OomReport>> {
        self.detail()
    }
}
