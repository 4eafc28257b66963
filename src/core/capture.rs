//! Graph capture: streams whose work is recorded now and run later, perhaps many times.
//!
//! From its begin to its end, a capture's streams are served by the capture's own pool, whatever pool a
//! request names. Nothing is asked of a captured stream: no mark is made there (what needs one waits until the
//! capture has ended), it is not made to wait, no heap gives to it or takes from it; it only grows. While any
//! stream is captured, the device as a whole is not waited for. A capture then lives on, as the graph does that
//! came of it: its pool is *kept*, which means that nothing leaves it and nothing of it is shown elsewhere,
//! so that a replay finds all addresses as they were, freed blocks included.

use super::desc::Id;
use super::heap::{Heap, Mark};
use super::pond::{Pond, lock};
use super::pools::{EVERY, RETIRED, UNORDERED};
use super::supply::Growth;
use super::types::PoolId;
use crate::base::error::{Code, Result};
use crate::base::sync::{Ordering, Ordering::Relaxed, pause};
use crate::base::told;
use crate::fail;
use std::collections::{BTreeMap, HashMap};

/// Names a capture of one device; never used again.
pub type CaptureId = u64;

#[derive(Debug)]
struct Capture {
    pool: PoolId,
    streams: Vec<u64>, // empty: it has ended
}

/// All captures of a device that are alive.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    alive: BTreeMap<CaptureId, Capture>,
    routes: HashMap<u64, PoolId>, // captured stream -> the pool that serves it
    marking: Vec<u64>,            // streams on which threads are making marks now
    direct: Vec<(u32, Id, u64)>,  // freed segments that wait for the end of captures: heap, block, bytes
    last: CaptureId,
}

/// A thread makes a mark on a stream, until dropped.
struct Marking<'a>(&'a Pond, u64);

impl Drop for Marking<'_> {
    fn drop(&mut self) {
        let mut c = lock(&self.0.captures);
        if let Some(at) = c.marking.iter().position(|&s| s == self.1) {
            c.marking.swap_remove(at);
        }
    }
}

impl Pond {
    /// Whether a mark on this stream waits for all others, which the capture of any of them forbids.
    fn concerns_all(&self, stream: u64) -> bool {
        stream == EVERY || self.backing.is_default(stream)
    }

    /// The pool that serves a captured stream.
    pub(crate) fn route(&self, stream: u64) -> Option<PoolId> {
        // Relaxed: who begins a capture orders its own requests after that.
        if self.captured.load(Relaxed) == 0 {
            return None;
        }
        lock(&self.captures).routes.get(&stream).copied()
    }

    /// Whether the stream's work is recorded, also where nobody has told us but the device.
    pub(crate) fn recording(&self, stream: u64) -> bool {
        if stream == UNORDERED || stream == RETIRED {
            return false;
        }
        self.route(stream).is_some() || self.backing.capturing(stream)
    }

    /// Whether the stream can neither be marked nor wait now. Work on stream 0 would wait for all streams,
    /// which a capture of any of them forbids.
    pub(crate) fn captured(&self, stream: u64) -> bool {
        self.recording(stream) || self.captured.load(Relaxed) > 0 && self.concerns_all(stream)
    }

    /// Whether the heap's memory must stay where it is.
    pub(crate) fn pinned(&self, heap: &Heap) -> bool {
        self.pool(PoolId(heap.pool.load(Relaxed)))
            .is_some_and(|p| p.kept.load(Relaxed) > 0 || p.asleep.load(Relaxed))
    }

    /// A mark behind everything that is queued on `stream` now; `None`: it is captured, try later.
    pub(crate) fn point(&self, stream: u64) -> Result<Option<Mark>> {
        {
            let mut c = lock(&self.captures);
            if c.routes.contains_key(&stream) || !c.routes.is_empty() && self.concerns_all(stream) {
                return Ok(None);
            }
            // A capture that begins now waits for this mark to be made.
            c.marking.push(stream);
        }
        let _marking = Marking(self, stream);
        if self.backing.capturing(stream) {
            return Ok(None);
        }
        self.backing.mark(stream).map(Some)
    }

    /// Whether any stream of the device is captured.
    pub(crate) fn any_captured(&self) -> bool {
        let mut any = self.captured.load(Relaxed) > 0;
        if !any {
            self.backing.streams(&mut |s| any |= self.backing.capturing(s));
        }
        any
    }

    /// Waits on the host for everything on the device. `Busy` while a stream is captured. No capture must begin
    /// meanwhile: the caller holds the growth lock.
    pub(crate) fn sync_device(&self) -> Result<()> {
        if self.any_captured() {
            fail!(Code::Busy, "a stream of the device is being captured: the device cannot be waited for");
        }
        self.backing.sync_all()
    }

    /// A capture of `stream`, served by `pool` from now on. To be called before the device starts to record.
    pub fn capture_begin(&self, pool: PoolId, stream: u64) -> Result<CaptureId> {
        if pool == PoolId::DEFAULT {
            fail!(Code::InvalidArgument, "a capture needs a pool of its own, not the default pool");
        }
        self.check_capture(pool, stream)?;
        // With this lock nobody who looked before is still taking memory from the pool.
        let growth = self.hold_growth()?;
        let Some(p) = self.pool(pool) else {
            fail!(Code::InvalidArgument, "no such pool, or it was destroyed");
        };
        if p.asleep.load(Relaxed) {
            fail!(Code::NotPermitted, "the pool sleeps");
        }
        let id = {
            let mut c = lock(&self.captures);
            if c.routes.contains_key(&stream) {
                fail!(Code::Busy, "stream {stream:#x} is captured already");
            }
            c.last += 1;
            let id = c.last;
            c.alive.insert(id, Capture { pool, streams: Vec::new() });
            p.kept.fetch_add(1, Relaxed);
            id
        };
        self.capture_stream(id, pool, stream);
        drop(growth);
        self.settle_stream(stream);
        Ok(id)
    }

    /// Another stream belongs to a capture that has not ended.
    pub fn capture_add(&self, capture: CaptureId, stream: u64) -> Result<()> {
        let pool = self.capture(capture)?.0;
        self.check_capture(pool, stream)?;
        let growth = self.hold_growth()?;
        let (_, ended) = self.capture(capture)?;
        if ended {
            fail!(Code::NotPermitted, "the capture has ended");
        }
        if self.route(stream).is_some() {
            fail!(Code::Busy, "stream {stream:#x} is captured already");
        }
        self.capture_stream(capture, pool, stream);
        drop(growth);
        self.settle_stream(stream);
        Ok(())
    }

    fn check_capture(&self, pool: PoolId, stream: u64) -> Result<()> {
        if self.backing.is_default(stream) {
            fail!(Code::InvalidArgument, "the default stream cannot be captured");
        }
        self.check_names(pool, Some(stream))?;
        if !self.backing.ordered_by(stream) {
            fail!(
                Code::Unsupported,
                "stream {stream:#x} is another one on each thread: it has no pool of its own"
            );
        }
        Ok(())
    }

    /// The pool of a capture, and whether it has ended.
    fn capture(&self, capture: CaptureId) -> Result<(PoolId, bool)> {
        match lock(&self.captures).alive.get(&capture) {
            Some(c) => Ok((c.pool, c.streams.is_empty())),
            None => fail!(Code::InvalidArgument, "no such capture, or it was released"),
        }
    }

    /// Routes the stream. The growth lock is held: nobody takes memory from the stream's heaps now.
    fn capture_stream(&self, capture: CaptureId, pool: PoolId, stream: u64) {
        {
            let mut c = lock(&self.captures);
            c.routes.insert(stream, pool);
            if let Some(x) = c.alive.get_mut(&capture) {
                x.streams.push(stream);
            }
            self.captured.fetch_add(1, Relaxed);
        }
    }

    /// Waits, with no lock held, until nobody makes a mark any more who looked before the stream was routed:
    /// marks must be there before the device starts to record. Then its requests go where it is routed.
    fn settle_stream(&self, stream: u64) {
        let mut round = 0;
        while lock(&self.captures).marking.iter().any(|&s| s == stream || self.concerns_all(s)) {
            pause(round);
            round += 1;
        }
        self.evict(stream);
    }

    fn evict(&self, stream: u64) {
        for slot in 0..self.pool_count.load(Ordering::Acquire) as usize {
            if let Some(p) = self.pools.get(slot) {
                p.evict(stream);
            }
        }
    }

    /// The streams of the capture are ordinary ones again; the capture goes on keeping its pool. To be called
    /// when the device records no more, whether that went well or not.
    pub fn capture_end(&self, capture: CaptureId) -> Result<()> {
        let streams = {
            let mut c = lock(&self.captures);
            let Some(x) = c.alive.get_mut(&capture) else {
                fail!(Code::InvalidArgument, "no such capture, or it was released");
            };
            let streams = std::mem::take(&mut x.streams);
            if streams.is_empty() {
                fail!(Code::NotPermitted, "the capture has ended already");
            }
            for s in &streams {
                c.routes.remove(s);
            }
            self.captured.fetch_sub(streams.len() as u32, Relaxed);
            streams
        };
        streams.iter().for_each(|&s| self.evict(s));
        // What waited for this.
        self.free_direct_now();
        self.mark_later();
        self.poll_all(false);
        Ok(())
    }

    /// The graph of the capture is gone, or was never made: ends the capture if it has not ended. With the
    /// last capture of a pool, what the pool has free goes back to the device, if nothing is captured now.
    pub fn capture_release(&self, capture: CaptureId) -> Result<()> {
        let (pool, ended) = self.capture(capture)?;
        if !ended {
            self.capture_end(capture)?;
        }
        let mut g = self.hold_growth()?;
        if lock(&self.captures).alive.remove(&capture).is_none() {
            fail!(Code::InvalidArgument, "the capture was released meanwhile");
        }
        let Some(p) = self.pool(pool) else { return Ok(()) };
        if p.kept.fetch_sub(1, Relaxed) == 1 {
            // Else it is ordinary free memory, and goes when anybody needs it.
            let _ = self.trim(&mut g, Some(pool));
        }
        Ok(())
    }

    /// `Busy` for a stream that is captured and so must not end.
    pub fn check_stream_end(&self, stream: u64) -> Result<()> {
        if !self.backing.is_default(stream) && self.recording(stream) {
            fail!(Code::Busy, "stream {stream:#x} is being captured");
        }
        Ok(())
    }

    /// The segment of a freed block, which is counted out, goes back when the device can be waited for.
    pub(crate) fn free_direct_after(&self, heap: &Heap, id: Id, contract: u64) {
        lock(&self.captures).direct.push((heap.index, id, contract));
    }

    /// `sync_device` without the growth lock, which callbacks of streams may need.
    pub(crate) fn sync_alone(&self) -> Result<()> {
        told::check()?;
        {
            let mut c = lock(&self.captures);
            if !c.routes.is_empty() {
                fail!(Code::Busy, "a stream of the device is being captured");
            }
            c.marking.push(0); // no capture begins before this is over
        }
        let _marking = Marking(self, 0);
        self.sync_device()
    }

    /// Gives back the segments of blocks that were freed when the device could not be waited for, if it can be now.
    pub(crate) fn free_direct_now(&self) {
        if told::check().is_err() {
            return; // who holds the lock that this needs has called here
        }
        let later = std::mem::take(&mut lock(&self.captures).direct);
        if !later.is_empty() {
            let idle = self.sync_alone().is_ok();
            self.end_direct(&mut lock(&self.growth), later, idle);
        }
    }

    /// `sync_device`, and what `free_direct_now` does.
    pub(crate) fn sync_and_settle(&self, g: &mut Growth) -> Result<()> {
        let later = std::mem::take(&mut lock(&self.captures).direct);
        let done = self.sync_device();
        self.end_direct(g, later, done.is_ok());
        done
    }

    /// Blocks of `direct` that were taken out before the device was waited for. What it refuses is offered again
    /// the next time.
    fn end_direct(&self, g: &mut Growth, later: Vec<(u32, Id, u64)>, idle: bool) {
        for (index, id, contract) in later {
            let Some(heap) = self.heaps.get(index as usize) else { continue };
            if idle && self.backing.segment_release(self.offset(id), contract).is_ok() {
                self.drop_direct(g, heap, id, contract);
            } else {
                self.free_direct_after(heap, id, contract);
            }
        }
    }

    /// Nothing is captured or kept any more: the device ends.
    pub(crate) fn forget_captures(&self) {
        let alive = {
            let mut c = lock(&self.captures);
            self.captured.store(0, Relaxed);
            c.routes.clear();
            std::mem::take(&mut c.alive)
        };
        for c in alive.into_values() {
            if let Some(p) = self.pool(c.pool) {
                p.kept.store(0, Relaxed);
            }
        }
    }
}
