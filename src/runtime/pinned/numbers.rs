//! The statistics of pinned memory in full, by the names that users of PyTorch know.

use crate::core::Flow;
use std::time::Duration;

/// How long calls took, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// All together.
    pub total: u64,
    /// The longest.
    pub max: u64,
    /// The shortest.
    pub min: u64,
    /// How many there were.
    pub count: u64,
    /// The mean.
    pub avg: u64,
}

impl Times {
    /// One more call.
    pub(crate) fn add(&mut self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.min = if self.count == 0 { us } else { self.min.min(us) };
        self.max = self.max.max(us);
        self.total = self.total.saturating_add(us);
        self.count += 1;
        self.avg = self.total / self.count;
    }

    /// The five values with their names, in order.
    pub fn values(&self) -> [(&'static str, u64); 5] {
        [
            ("total", self.total),
            ("max", self.max),
            ("min", self.min),
            ("count", self.count),
            ("avg", self.avg),
        ]
    }
}

/// The statistics of a device's pinned host memory, all of one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostMemoryStats {
    /// Pieces of memory held from the device: blocks of their own, and slabs in which small blocks lie.
    pub allocations: Flow,
    /// Bytes of these.
    pub allocated_bytes: Flow,
    /// Blocks in use: live, or freed and still waiting for streams.
    pub active_requests: Flow,
    /// Bytes of these after rounding.
    pub active_bytes: Flow,
    /// Calls to the device for memory that gave some.
    pub host_alloc_time: Times,
    /// Calls that gave memory back.
    pub host_free_time: Times,
    /// How many such calls gave memory.
    pub num_host_alloc: u64,
    /// How many gave it back.
    pub num_host_free: u64,
    /// Bytes that are freed and can be used again.
    pub cached_bytes: u64,
    /// Bytes that are freed and still wait for a stream.
    pub pending_bytes: u64,
}

impl HostMemoryStats {
    /// All values with their names, in order.
    pub fn values(&self) -> Vec<(String, u64)> {
        let flows = [
            ("allocations", self.allocations),
            ("allocated_bytes", self.allocated_bytes),
            ("active_requests", self.active_requests),
            ("active_bytes", self.active_bytes),
        ];
        let times = [("host_alloc_time", self.host_alloc_time), ("host_free_time", self.host_free_time)];
        let words = [
            ("num_host_alloc", self.num_host_alloc),
            ("num_host_free", self.num_host_free),
            ("cached_bytes", self.cached_bytes),
            ("pending_bytes", self.pending_bytes),
        ];
        let flows = flows.iter().flat_map(|(n, f)| f.values().map(|(what, v)| (format!("{n}.{what}"), v)));
        let times = times.iter().flat_map(|(n, t)| t.values().map(|(what, v)| (format!("{n}.{what}"), v)));
        flows.chain(times).chain(words.map(|(n, v)| (n.to_owned(), v))).collect()
    }
}
