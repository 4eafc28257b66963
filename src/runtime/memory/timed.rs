//! Memory whose calls are timed (`watch/latency.rs`): the path of a request, and the first step of a request and of a
//! free.

use super::marks::Mark;
use super::pooled::{Given, Pooled};
use super::requests::Request;
use super::settings::MemorySettings;
use super::state::{How, Memory};
use crate::base::error::Result;
use crate::core::{Freed, Pool};
use crate::device::StreamId;
use crate::runtime::memory::handle_cache;
use crate::runtime::watch::latency::Latency;

impl MemorySettings<'_> {
    /// Calls are timed from now on, or no more; those that are under way may be left out.
    pub(super) fn time_calls(&self, on: bool) {
        if !self.0.observers.latencies.switch(on) {
            return;
        }
        if on {
            self.0.marks.set(Mark::Timed);
        } else {
            self.0.marks.clear(Mark::Timed);
        }
        // From here on calls come by this file, or the quickest way is open again.
        if let How::Pooled(p) = &self.0.how {
            handle_cache::bypass_all(p);
        }
    }
}

impl Request {
    #[cold]
    #[inline(never)]
    pub(super) fn serve_timed(self, memory: &Memory) -> Result<u64> {
        let call = || self.serve_untimed(memory);
        // A request for nothing takes no time.
        match self.asked.bytes {
            0 => call(),
            _ => memory.observers.latencies.timed_wholly(Latency::Alloc, call),
        }
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
        let offset = self.offset(addr);
        let done = offset.is_some_and(|offset| matches!(self.free_quick(offset, stream), Freed::Done));
        if let (true, Some(begun)) = (done, begun) {
            begun.end(Latency::Free);
        }
        done
    }
}
