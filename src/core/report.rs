//! The out-of-memory report: the request, the memory that there is and why the request could not have it, who holds the
//! rest, and what was tried. Plain data; `report/text.rs` writes it as text.
//!
//! All sizes are bytes. `live`, `waiting`, the three `free_*` of memory in no block, and `moving` sum up to `reserved`.

use super::types::{PoolId, TagStats};
use crate::base::inline::{Few, Text};
use crate::base::sort;

mod text;

/// The most pools, streams and tags that a report lists of each, and the most entries of `waits`.
pub const OOM_TOP: usize = 8;
/// \[B\] of the name of a pool, a tag or a device at most; longer ones are cut.
pub const OOM_NAME: usize = 63;
/// \[B\] of the device's words at most.
pub const OOM_WORDS: usize = 191;

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum OomStep {
    /// Idle memory of other streams of the pool.
    #[default]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OomHolder {
    /// Its name, if it is known here: the names of pools are kept by the C API.
    pub name: Text<OOM_NAME>,
    /// The name is a finished label.
    pub(crate) said: bool,
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
    pub pool_name: Text<OOM_NAME>,
    /// The name is a finished label.
    pub(crate) pool_said: bool,
    /// The number of the device (`DeviceState::id`), if it has one.
    pub device: Option<u32>,
    /// Its name, as in `host:0`; "" if it is not known.
    pub device_name: Text<OOM_NAME>,
    /// The stream of the request, if it had one.
    pub stream: Option<u64>,
    /// The size of the request.
    pub requested: u64,
    /// The same after rounding.
    pub rounded: u64,
    /// What the device has to give if none of the free memory helps; 0: not known.
    pub(crate) need: u64,
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
    /// Free in whole granules, which a block may be put together from, by whoever may have them.
    pub whole_granules: u64,
    /// Left to other users of the device (`headroom_mb`).
    pub headroom: u64,
    /// The size from which freed blocks stay whole (`max_split_size_mb`); 0: none does.
    pub max_split: u64,
    /// Whether the device maps, so that free granules serve a request wherever they lie.
    pub maps: bool,
    /// Whether the device could map, but an option forbids it.
    pub could_map: bool,
    /// Whether the memory could be pooled, but an option forbids it.
    pub could_pool: bool,
    /// Whether an option forbids that blocks are put together from granules that lie apart.
    pub no_scatter: bool,
    /// Whether the request's pool has each block in one allocation of the device.
    pub contiguous: bool,
    /// Whether its memory is pooled.
    pub pooled: bool,
    /// Whether a history, a recording or a tool watches its blocks.
    pub watched: bool,
    /// Whether the stream is captured, so that no memory was taken that needs a wait.
    pub captured: bool,
    /// The error of the last call that asked the device for memory; "" if there was none or it succeeded.
    pub device_said: Text<OOM_WORDS>,
    /// The pools that hold the most, live and waiting, largest first.
    pub pools: Few<OomHolder, OOM_TOP>,
    /// The streams that hold the most, likewise.
    pub streams: Few<OomHolder, OOM_TOP>,
    /// The tags that hold the most, likewise.
    pub tags: Few<OomHolder, OOM_TOP>,
    /// What freed blocks wait for, the most bytes first.
    pub waits: Few<OomWait, OOM_TOP>,
    /// The steps that were tried.
    pub tried: Few<OomTried, OOM_STEPS>,
}

/// Adds what blocks with this tag hold to the largest.
pub(crate) fn note_tag(into: &mut Few<OomHolder, OOM_TOP>, tag: u16, s: &TagStats) {
    let (live, blocks, waiting) = (s.allocated.current, s.blocks.current, s.waiting);
    note_holder(into, OomHolder { tag, live, blocks, waiting, ..OomHolder::default() });
}

/// Adds a holder to the largest, if it holds anything.
pub(crate) fn note_holder(into: &mut Few<OomHolder, OOM_TOP>, holder: OomHolder) {
    let bytes = |h: &OomHolder| h.live + h.waiting;
    if bytes(&holder) > 0 {
        into.insert_by(holder, bytes);
    }
}

/// What freed blocks wait for, as far as there is room: by what it is, in no order.
#[derive(Default)]
pub(crate) struct WaitSums {
    each: Few<OomWait, MOST_STREAMS>,
    /// There was more than could be told apart.
    pub more: bool,
}

/// What freed blocks wait for is told apart up to so many streams.
const MOST_STREAMS: usize = 64;

impl WaitSums {
    /// A block of so many bytes waits for this.
    pub(crate) fn note(&mut self, on: WaitsFor, bytes: u64) {
        match self.each.iter_mut().find(|w| w.on == on) {
            Some(w) => (w.bytes, w.blocks) = (w.bytes + bytes, w.blocks + 1),
            None => self.more |= !self.each.push(OomWait { on, bytes, blocks: 1 }),
        }
    }

    /// The [`OOM_TOP`] entries with the most bytes, largest first; of equal ones those come first that are first by `on`.
    /// `of_serial` says which stream has a serial number, as which streams were noted; it may have ended.
    pub(crate) fn top(mut self, of_serial: impl Fn(u64) -> Option<u64>) -> Few<OomWait, OOM_TOP> {
        let noted = std::mem::take(&mut self.each);
        for w in noted.iter() {
            let on = match w.on {
                WaitsFor::Stream(serial) => of_serial(serial).map_or(WaitsFor::Ended, WaitsFor::Stream),
                other => other,
            };
            match self.each.iter_mut().find(|e| e.on == on) {
                Some(e) => (e.bytes, e.blocks) = (e.bytes + w.bytes, e.blocks + w.blocks),
                None => _ = self.each.push(OomWait { on, ..*w }),
            }
        }
        sort::by_key(&mut self.each, |w| w.on);
        let mut top = Few::new();
        self.each.iter().for_each(|&w| top.insert_by(w, |w: &OomWait| w.bytes));
        top
    }
}

/// Notes what a block waits for, by the serial numbers of streams, and which streams those are.
pub(crate) fn note_wait(
    sums: &mut WaitSums,
    streams: &mut Numbers,
    serials: impl Iterator<Item = u64>,
    exported: bool,
    bytes: u64,
) {
    let mut on = if exported { Some(WaitsFor::Exported) } else { None };
    for serial in serials {
        sums.more |= !streams.note(serial);
        on.get_or_insert(if serial == 0 { WaitsFor::AllStreams } else { WaitsFor::Stream(serial) });
    }
    sums.note(on.unwrap_or(WaitsFor::Nothing), bytes);
}

/// Some different numbers, as far as there is room.
#[derive(Default)]
pub(crate) struct Numbers(Few<u64, MOST_STREAMS>);

impl Numbers {
    /// Adds a number that may be there; `false`: there is no room.
    pub(crate) fn note(&mut self, n: u64) -> bool {
        self.0.contains(&n) || self.0.push(n)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
}

impl OomReport {
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
