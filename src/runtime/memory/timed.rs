//! Memory whose calls are timed (`watch/latency.rs`): the way of a request, and the first step of both a request and a free.

use super::pooled::{Given, Pooled};
use super::state::{How, Marks, Memory};
use crate::base::error::Result;
use crate::base::histogram::Durations;
use crate::core::{Freed, Pool, PoolId};
use crate::device::StreamId;
use crate::runtime::memory::handle_cache;
use crate::runtime::watch::latency::Latency;
use std::sync::atomic::Ordering::Relaxed;

impl Memory {
    /// Whether calls are timed.
    pub(crate) fn is_timed(&self) -> bool {
        self.observers.latencies.on()
    }

    /// Calls are timed from now on, or no more; those that are under way may be left out.
    pub(super) fn time_calls(&self, on: bool) {
        if !self.observers.latencies.switch(on) {
            return;
        }
        if on {
            self.marks.fetch_or(Marks::TIMED.bits(), Relaxed);
        } else {
            self.marks.fetch_and(!Marks::TIMED.bits(), Relaxed);
        }
        // From here on calls come by this file, or the quickest way is open again.
        if let How::Pooled(p) = &self.how {
            handle_cache::bypass_all(p);
        }
    }

    /// How long calls have taken since the option `latency_histograms` was first on, or since the last
    /// [`reset_latencies`](Self::reset_latencies); nothing, if it never was. Other threads go on meanwhile.
    pub fn latency(&self, what: Latency) -> Result<Durations> {
        self.open()?;
        Ok(self.observers.latencies.read(what))
    }

    /// All of them; none if calls were never timed.
    pub(crate) fn latencies(&self) -> Vec<(Latency, Durations)> {
        let all = &self.observers.latencies;
        if !all.any() {
            return Vec::new();
        }
        Latency::ALL.into_iter().map(|l| (l, all.read(l))).collect()
    }

    /// The histograms start again from nothing. What other threads add meanwhile may be lost.
    pub fn reset_latencies(&self) -> Result<()> {
        self.open()?;
        self.observers.latencies.clear();
        Ok(())
    }

    /// A request that is timed.
    #[cold]
    #[inline(never)]
    pub(super) fn alloc_timed(
        &self,
        pool: PoolId,
        stream: Option<StreamId>,
        bytes: u64,
        align: u64,
    ) -> Result<u64> {
        let call = || self.alloc_untimed(pool, stream, bytes, align);
        // Nothing that asks for nothing takes its time.
        if bytes == 0 { call() } else { self.observers.latencies.timed_wholly(Latency::Alloc, call) }
    }
}

impl Pooled {
    /// The first step of a request that the caller times; with somebody watching, too, it misses. Never panics.
    #[inline(always)]
    pub(crate) fn alloc_quick_timed(&self, pool: &Pool, stream: StreamId, bytes: u64) -> Given {
        if self.observers.any() { Given::Missed } else { self.alloc_quick(pool, stream, bytes) }
    }

    /// The first step of a free, the same; whether the block is freed, else nothing is done. Never panics.
    #[inline(always)]
    pub(crate) fn free_quick_timed(&self, addr: u64, stream: StreamId) -> bool {
        if self.observers.any() {
            return false;
        }
        let begun = self.observers.latencies.begin();
        let offset = self.near(addr);
        let done = offset.is_some_and(|offset| matches!(self.free_quick(offset, stream), Freed::Done));
        if let (true, Some(begun)) = (done, begun) {
            begun.end(Latency::Free);
        }
        done
    }
}
