//! Graph capture: streams whose work is recorded now and run later, perhaps many times.
//!
//! From its begin to its end, a capture's streams are served by the capture's own pool, whatever pool a request names.
//! A captured stream is left alone: no point is made on it (a block that needs one waits until the capture has ended),
//! it is not made to wait, and its heaps neither give memory to others nor take any; they only grow. While any stream
//! is captured, the device as a whole is not waited for (`order/captured.rs`).
//!
//! A capture lives on with the graph that it made: its pool is *kept*, which means that no memory leaves the pool or is
//! mapped elsewhere, so that a replay finds all addresses as they were, freed blocks included. When the last capture of
//! the pool is released, a replay may still be running, so the pool stays as it is for a while (`blocks/released.rs`).

use super::super::blocks::{ReleasedPools, WaitingBlocks};
use super::super::ground::Ground;
use super::super::order::Waits;
use super::super::state::captures::CaptureId;
use super::super::supply::Trim;
use super::super::types::PoolId;
use crate::base::error::{Code, Result, no_host_memory};
use crate::base::room::{CALL_BYTES, check_room};
use crate::fail;

fn no_capture<T>() -> Result<T> {
    fail!(Code::InvalidArgument, "no such capture, or it was released")
}

/// Stream capture; from [`Pond::captures`](crate::core::Pond::captures). Any thread may call anything.
#[derive(Clone, Copy)]
pub struct CaptureCalls<'a> {
    ground: &'a Ground,
}

impl<'a> CaptureCalls<'a> {
    pub(crate) fn of(ground: &'a Ground) -> CaptureCalls<'a> {
        CaptureCalls { ground }
    }

    /// Begins a capture of `stream`, whose requests `pool` serves from now on. Call it before the device starts to
    /// record.
    pub fn begin(self, pool: PoolId, stream: u64) -> Result<CaptureId> {
        if pool == PoolId::DEFAULT {
            fail!(Code::InvalidArgument, "a capture needs a pool of its own, not the default pool");
        }
        self.check(pool, stream)?;
        let id = {
            // Under this lock: no other thread takes memory out of the pool having found it unpinned before.
            let g = self.ground.growing();
            let p = self.ground.pools().live(pool)?;
            p.check_awake()?;
            let mut captures = self.ground.captures();
            let mut streams = captures.make_room()?;
            self.ground.order.capture(stream, pool)?;
            streams.push(stream);
            p.keep(&g);
            captures.add(pool, streams)
        };
        self.route_requests(stream);
        Ok(id)
    }

    /// Keeps a pool as it is, as a capture does after its end, until the release.
    pub fn keep(self, pool: PoolId) -> Result<CaptureId> {
        if pool == PoolId::DEFAULT {
            fail!(Code::InvalidArgument, "the default pool cannot be kept");
        }
        let g = self.ground.growing();
        let p = self.ground.pools().live(pool)?;
        p.check_awake()?;
        let mut captures = self.ground.captures();
        let none = captures.make_room()?;
        p.keep(&g);
        Ok(captures.add(pool, none))
    }

    /// Adds a stream to a capture that has not ended.
    pub fn add(self, capture: CaptureId, stream: u64) -> Result<()> {
        let (pool, _) = self.capture(capture)?;
        self.check(pool, stream)?;
        {
            let _g = self.ground.growing();
            let mut captures = self.ground.captures();
            let Some(c) = captures.alive.get_mut(&capture) else { return no_capture() };
            if c.streams.is_empty() {
                fail!(Code::NotPermitted, "the capture has ended");
            }
            c.streams.try_reserve(1).map_err(|_| no_host_memory())?;
            self.ground.order.capture(stream, pool)?;
            c.streams.push(stream);
        }
        self.route_requests(stream);
        Ok(())
    }

    /// Fails unless the stream can be captured now.
    fn check(self, pool: PoolId, stream: u64) -> Result<()> {
        let ground = self.ground;
        ground.order.check_wait()?;
        if ground.backing.is_default(stream) {
            fail!(Code::InvalidArgument, "the default stream cannot be captured");
        }
        ground.pools().live(pool)?;
        ground.order.check_own(stream)?;
        if !ground.backing.ordered_by(stream) {
            fail!(
                Code::Unsupported,
                "stream {stream:#x} is another one on each thread: it has no pool of its own"
            );
        }
        Ok(())
    }

    /// The pool of a capture, and whether it has ended.
    fn capture(self, capture: CaptureId) -> Result<(PoolId, bool)> {
        match self.ground.captures().alive.get(&capture) {
            Some(c) => Ok((c.pool, c.streams.is_empty())),
            None => no_capture(),
        }
    }

    /// Waits for all threads that make a point on the stream and began before it was captured: their points must exist
    /// before the device starts to record. Then routes the stream's requests to the capture's pool.
    fn route_requests(self, stream: u64) {
        let ground = self.ground;
        ground.order.wait_for_marks(stream);
        ground.pools().all().for_each(|p| ground.evict(p, stream));
        // A device that cannot be waited for during captures asks these streams before it is.
        ground.backing.watch(stream, true);
    }

    /// Ends the recording: the streams are ordinary ones again, but the capture still keeps its pool. Call it when the
    /// device has stopped recording, successfully or not.
    pub fn end(self, capture: CaptureId) -> Result<()> {
        let streams = match self.ground.captures().alive.get_mut(&capture) {
            Some(c) => std::mem::take(&mut c.streams),
            None => return no_capture(),
        };
        if streams.is_empty() {
            fail!(Code::NotPermitted, "the capture has ended already");
        }
        streams.iter().for_each(|&s| self.ground.order.end_capture(s));
        streams.iter().for_each(|&s| self.ground.backing.watch(s, false));
        for &s in &streams {
            self.ground.pools().all().for_each(|p| self.ground.evict(p, s));
        }
        // Blocks may have waited for this.
        WaitingBlocks::of(self.ground).poll_all();
        Ok(())
    }

    /// Releases the capture. Call it once its graph is destroyed, or if it was never made. With the last capture of a
    /// pool, the pool's free memory goes back to the device, which is waited for.
    pub fn release(self, capture: CaptureId) -> Result<()> {
        self.release_and(capture, true)
    }

    /// The same without waiting for the device: the pool's memory serves nobody until what is queued now is done.
    pub fn release_async(self, capture: CaptureId) -> Result<()> {
        self.release_and(capture, false)
    }

    /// Ends the capture if it has not ended, and removes it. If the device cannot be waited for (another stream is
    /// captured), or is not to be (without `wait`), the pool's memory serves nobody until what is queued now is done.
    fn release_and(self, capture: CaptureId, wait: bool) -> Result<()> {
        let ground = self.ground;
        check_room(CALL_BYTES)?;
        let mut waits = Waits::default();
        if !waits.make_room(1) {
            return Err(no_host_memory());
        }
        let (pool, ended) = self.capture(capture)?;
        if !ended {
            self.end(capture)?;
        }
        let p = {
            let g = ground.growing();
            if ground.captures().alive.remove(&capture).is_none() {
                fail!(Code::InvalidArgument, "the capture was released meanwhile");
            }
            let Some(p) = ground.pools().get(pool) else { return Ok(()) };
            if !p.end_keep(&g) {
                return Ok(());
            }
            p
        };
        ground.order.add_all(&mut waits);
        if wait && !waits.is_over() && !ground.order.any_captured() {
            let _ = ground.order.sync_waits(&mut waits); // if that is impossible, the memory waits
        }
        let over = waits.is_over();
        ReleasedPools::of(ground).enter(p, waits);
        if wait && over && !p.is_pinned() && ground.check_host_room().is_ok() {
            let _ = Trim::of(ground).all(Some(pool.0)); // if that fails, it is ordinary free memory and goes when needed
        }
        Ok(())
    }

    /// Forgets all captures and whatever keeps pools in place: the device ends.
    pub(super) fn forget_all(self) {
        let alive = std::mem::take(&mut self.ground.captures().alive);
        for c in alive.into_values() {
            if let Some(p) = self.ground.pools().get(c.pool) {
                p.forget_captures();
            }
        }
        for p in self.ground.pools().all() {
            p.forget_pins();
        }
    }
}
