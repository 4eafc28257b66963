//! The statistics in full: of a device, its pools and its streams.

use super::state::{How, Memory};
use crate::base::error::{Code, Error, Result};
use crate::base::histogram::Durations;
use crate::base::room::{CALL_BYTES, check_room};
use crate::core::{
    BlockRecord, BlockState, BlockStates, Flow, Layout, MemoryStats, PoolId, SegmentRecord, Split, Stats,
    StreamStats, TagStats,
};
use crate::runtime::entry::tags::{self, Tag};
use crate::runtime::watch::latency::Latency;
use std::collections::BTreeMap;

/// Of memory without pooling: each block is a segment of its own, and nothing is free.
fn unpooled(s: &Stats) -> MemoryStats {
    let split =
        |c: crate::core::Counter| Split { all: c.into(), large_pool: c.into(), small_pool: Flow::default() };
    MemoryStats {
        allocation: split(s.blocks),
        segment: split(s.segments),
        // Each has a segment until the device has it back.
        active: split(s.segments),
        allocated_bytes: split(s.allocated),
        reserved_bytes: split(s.reserved),
        active_bytes: split(s.active),
        requested_bytes: split(s.active_requested),
        num_ooms: s.out_of_memory_count,
        num_device_alloc: s.segments.total,
        num_device_free: s.segments.total.saturating_sub(s.segments.current),
        max_split_size: u64::MAX,
        limit_bytes: s.limit,
        free_bytes: s.reserved.current.saturating_sub(s.active.current),
        ..MemoryStats::default()
    }
}

/// The statistics of a device's memory, beyond its account. Get it with [`Memory::statistics`].
#[derive(Clone, Copy)]
pub struct MemoryStatistics<'a>(&'a Memory);

impl Memory {
    /// The statistics, beyond the account.
    pub fn statistics(&self) -> MemoryStatistics<'_> {
        MemoryStatistics(self)
    }
}

impl MemoryStatistics<'_> {
    /// The statistics in full, of the device or of one of its pools. The device is asked how much it has.
    pub fn full(&self, pool: Option<PoolId>) -> Result<MemoryStats> {
        self.0.readings.enter(pool, self.read(pool)?)
    }

    fn read(&self, pool: Option<PoolId>) -> Result<MemoryStats> {
        let how = self.0.open()?;
        self.0.free_deferred();
        // A device that cannot tell has what the limits say.
        let free = || self.0.backing().memory_free().ok().flatten().unwrap_or(u64::MAX);
        match how {
            How::Pooled(p) => {
                let mut m = p.pond.statistics().full(pool, free())?;
                [m.num_device_alloc, m.num_device_free] = p.supply.calls().counts_done();
                m.num_oom_rejections = p.supply.calls().rejections();
                Ok(m.fragmented())
            }
            How::Unpooled(u) => {
                let s = pool.map_or_else(|| Ok(u.stats()), |p| u.pool_stats(p))?;
                let mut m = unpooled(&s);
                let room =
                    |limit: u64, taken: u64| if limit == 0 { u64::MAX } else { limit.saturating_sub(taken) };
                let device = u.stats();
                let most = room(device.limit, device.reserved.current).min(room(s.limit, s.reserved.current));
                m.largest_free_bytes = most.min(free());
                Ok(m.fragmented())
            }
        }
    }

    /// All that was ever allocated, freed or counted so far is not told any more by
    /// [`full`](Self::full): `allocated`, `freed` and the `num_` counters start again from 0. The
    /// totals of [`Memory::stats`] stay.
    pub fn reset_accumulated(&self, pool: Option<PoolId>) -> Result<()> {
        let now = self.read(pool)?;
        self.0.readings.reset_accumulated(pool, now)
    }

    /// Every block and the account, as they are at one moment: see [`DeviceState::snapshot`].
    ///
    /// [`DeviceState::snapshot`]: crate::runtime::DeviceState::snapshot
    pub(crate) fn layout(&self) -> Result<Layout> {
        self.0.free_deferred();
        match self.0.open()? {
            How::Pooled(p) => p.layout(),
            How::Unpooled(u) => u.layout(),
        }
    }

    /// All memory that is reserved, of one pool or of all, sorted by address, all of one moment; see [`Layout::segments`](crate::core::Layout::segments).
    /// Nobody allocates or frees on the device while it is collected, as for a snapshot.
    pub fn segments(&self, pool: Option<PoolId>) -> Result<Vec<SegmentRecord>> {
        let layout = self.layout()?;
        if pool.is_some_and(|p| layout.pools.iter().all(|known| known.0 != p)) {
            return Err(Error::new(Code::InvalidArgument, "no such pool, or it was destroyed"));
        }
        let mut all = Vec::new();
        let wanted = |s: &SegmentRecord| pool.is_none_or(|p| s.pool == Some(p));
        for s in layout.segments().filter(wanted) {
            let none = |_| Error::new(Code::OutOfMemory, "no host memory for the list of segments");
            all.try_reserve(1).map_err(none)?;
            all.push(s);
        }
        Ok(all)
    }

    /// The peaks of the device's account start again from the current values.
    pub fn reset_peaks(&self) {
        self.0.readings.reset_peaks(None);
        match &self.0.how {
            How::Pooled(p) => {
                let _ = p.pond.reset_peaks(None); // cannot fail without a pool
            }
            How::Unpooled(u) => u.reset_peaks(),
        }
    }

    /// What the blocks of each tag have that was ever used here, by its number.
    pub fn by_tag(&self) -> Result<Vec<(Tag, TagStats)>> {
        // For the lists that are made of it, too.
        check_room(CALL_BYTES + tags::count() * 4 * size_of::<(Tag, TagStats)>())?;
        let all = match self.0.open()? {
            How::Pooled(p) => p.pond.tags().stats(),
            How::Unpooled(u) => u.tag_stats(),
        };
        Ok(all.into_iter().filter_map(|(n, s)| Some((Tag::of_number(n)?, s))).collect())
    }

    /// Whether calls are timed.
    pub(crate) fn is_timed(&self) -> bool {
        self.0.observers.latencies.on()
    }

    /// How long calls have taken since the option `latency_histograms` was first on, or since the last
    /// [`reset_latencies`](Self::reset_latencies); nothing, if it never was. Other threads go on meanwhile.
    pub fn latency(&self, what: Latency) -> Result<Durations> {
        self.0.open()?;
        Ok(self.0.observers.latencies.read(what))
    }

    /// All of them; none if calls were never timed.
    pub(crate) fn latencies(&self) -> Vec<(Latency, Durations)> {
        let all = &self.0.observers.latencies;
        if !all.any() {
            return Vec::new();
        }
        Latency::ALL.into_iter().map(|l| (l, all.read(l))).collect()
    }

    /// The histograms start again from nothing. What other threads add meanwhile may be lost.
    pub fn reset_latencies(&self) -> Result<()> {
        self.0.open()?;
        self.0.observers.latencies.clear();
        Ok(())
    }

    /// What each stream has of the device, or of one of its pools, by stream.
    pub fn by_stream(&self, pool: Option<PoolId>) -> Result<Vec<StreamStats>> {
        let how = self.0.open()?;
        self.0.free_deferred();
        match how {
            How::Pooled(p) => p.pond.statistics().streams(pool),
            How::Unpooled(u) => Ok(by_stream(&u.blocks(pool, BlockStates::all())?)),
        }
    }
}

/// What each stream has, by a list of all blocks.
fn by_stream(blocks: &[BlockRecord]) -> Vec<StreamStats> {
    let mut all: BTreeMap<Option<u64>, StreamStats> = BTreeMap::new();
    for b in blocks {
        let s = all.entry(b.stream).or_insert(StreamStats { stream: b.stream, ..StreamStats::default() });
        let (count, bytes) = match b.state {
            BlockState::Live => {
                s.requested_bytes += b.requested;
                (&mut s.blocks, &mut s.allocated_bytes)
            }
            BlockState::Waiting => (&mut s.waiting_blocks, &mut s.waiting_bytes),
            BlockState::Free => (&mut s.free_blocks, &mut s.free_bytes),
        };
        *count += 1;
        *bytes += b.size;
    }
    all.into_values().collect()
}
