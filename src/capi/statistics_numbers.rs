//! The statistics in full, from the library's own form to that of C.

use crate::capi::guard::Versioned;
use crate::capi::pool::to_ptr;
use crate::capi::statistics::{
    millpond_flow, millpond_host_memory_stats, millpond_memory_stats, millpond_split, millpond_stream_stats,
    millpond_times,
};
use crate::runtime::{Flow, HostMemoryStats, MemoryStats, Split, StreamStats, Times};

// SAFETY: repr(C), `struct_size` first, integers only.
unsafe impl Versioned for millpond_memory_stats {}
// SAFETY: as above.
unsafe impl Versioned for millpond_host_memory_stats {}
// SAFETY: as above.
unsafe impl Versioned for millpond_stream_stats {}

impl From<Flow> for millpond_flow {
    fn from(f: Flow) -> Self {
        millpond_flow { current: f.current, peak: f.peak, allocated: f.allocated, freed: f.freed }
    }
}

impl From<Split> for millpond_split {
    fn from(s: Split) -> Self {
        millpond_split { all: s.all.into(), large_pool: s.large_pool.into(), small_pool: s.small_pool.into() }
    }
}

impl From<Times> for millpond_times {
    fn from(t: Times) -> Self {
        millpond_times { total: t.total, max: t.max, min: t.min, count: t.count, avg: t.avg }
    }
}

impl From<MemoryStats> for millpond_memory_stats {
    fn from(m: MemoryStats) -> Self {
        millpond_memory_stats {
            struct_size: size_of::<millpond_memory_stats>(),
            allocation: m.allocation.into(),
            segment: m.segment.into(),
            active: m.active.into(),
            inactive_split: m.inactive_split.into(),
            allocated_bytes: m.allocated_bytes.into(),
            reserved_bytes: m.reserved_bytes.into(),
            active_bytes: m.active_bytes.into(),
            inactive_split_bytes: m.inactive_split_bytes.into(),
            requested_bytes: m.requested_bytes.into(),
            oversize_allocations: m.oversize_allocations.into(),
            oversize_segments: m.oversize_segments.into(),
            sleeping_bytes: m.sleeping_bytes.into(),
            num_alloc_retries: m.num_alloc_retries,
            num_ooms: m.num_ooms,
            num_oom_rejections: m.num_oom_rejections,
            num_sync_all_streams: m.num_sync_all_streams,
            num_device_alloc: m.num_device_alloc,
            num_device_free: m.num_device_free,
            max_split_size: m.max_split_size,
            limit_bytes: m.limit_bytes,
            free_bytes: m.free_bytes,
            releasable_bytes: m.releasable_bytes,
            largest_cached_bytes: m.largest_cached_bytes,
            largest_free_bytes: m.largest_free_bytes,
            fragmentation_ppm: m.fragmentation_ppm,
        }
    }
}

impl From<HostMemoryStats> for millpond_host_memory_stats {
    fn from(m: HostMemoryStats) -> Self {
        millpond_host_memory_stats {
            struct_size: size_of::<millpond_host_memory_stats>(),
            allocations: m.allocations.into(),
            allocated_bytes: m.allocated_bytes.into(),
            active_requests: m.active_requests.into(),
            active_bytes: m.active_bytes.into(),
            host_alloc_time: m.host_alloc_time.into(),
            host_free_time: m.host_free_time.into(),
            num_host_alloc: m.num_host_alloc,
            num_host_free: m.num_host_free,
            cached_bytes: m.cached_bytes,
            pending_bytes: m.pending_bytes,
        }
    }
}

impl From<&StreamStats> for millpond_stream_stats {
    fn from(s: &StreamStats) -> Self {
        millpond_stream_stats {
            struct_size: size_of::<millpond_stream_stats>(),
            stream: to_ptr(s.stream.unwrap_or(0)).cast(),
            has_stream: s.stream.is_some().into(),
            block_count: s.blocks,
            requested_bytes: s.requested_bytes,
            allocated_bytes: s.allocated_bytes,
            waiting_count: s.waiting_blocks,
            waiting_bytes: s.waiting_bytes,
            free_count: s.free_blocks,
            free_bytes: s.free_bytes,
            total_count: s.total_blocks,
            total_bytes: s.total_bytes,
            peak_count: s.peak_blocks,
            peak_requested_bytes: s.peak_requested_bytes,
            peak_allocated_bytes: s.peak_allocated_bytes,
        }
    }
}
