//! Requests for which no block of exactly their size waits: best fit, and whatever is tried before the device is asked.

use super::super::desc::{DIRECT, USES};
use super::super::ground::Ground;
use super::super::heap::LockedHeap;
use super::super::shape::{Class, Tier};
use super::super::units::Extent;
use super::{Request, Step, Trials, ours};
use crate::base::error::{Code, Error, Result};
use crate::base::sync::Ordering::Relaxed;
use crate::fail;

/// The number of best fits after which the remote list is checked again.
const DRAIN_EVERY: u32 = 32;

impl Ground {
    /// Whether a request's size makes it a segment of its own.
    #[inline]
    pub(super) fn is_direct(&self, charged: u64) -> bool {
        charged > self.config.max_chunk && !self.config.mapping
    }

    /// Allocates for a request for which no block of exactly its size was freed, or which the tuning affects; returns
    /// the offset.
    #[inline(never)]
    pub(crate) fn alloc_missed<'a>(&'a self, mut h: LockedHeap<'a>, req: &Request) -> Result<u64> {
        let size = req.size;
        if self.is_direct(req.charged) && !self.is_pinned(req.heap) {
            let _asking = self.asking(&mut h);
            drop(h);
            return self.alloc_direct(req);
        }
        if h.countdown == 0 {
            h.countdown = DRAIN_EVERY;
            self.drain(&mut h);
            h.note_ragged(self.most_ragged.load(Relaxed));
        }
        let mut id = h.place(size);
        let all = self.merges_small_first();
        if id == 0 && h.ragged && size.tier == Tier::Large && h.is_better_scattered(size.units) {
            let _asking = self.asking(&mut h);
            drop(h);
            return self.refill(req);
        }
        if id == 0 {
            id = self.fit_merged(&mut h, size, all, false);
        }
        if id == 0 {
            let _asking = self.asking(&mut h);
            if !h.waiting.is_empty() {
                drop(h);
                self.poll(req.heap);
                h = self.lock(req.heap);
                id = self.fit_merged(&mut h, size, all, false);
            }
            if id != 0 {
                return Ok(self.finish(h, id, size.tier as u32, req));
            }
            drop(h);
            return self.refill(req);
        }
        Ok(self.finish(h, id, size.tier as u32, req))
    }

    /// Allocates for a request beyond the max chunk: a segment of its own, for as long as the block lives.
    #[cold]
    pub(super) fn alloc_direct(&self, req: &Request) -> Result<u64> {
        self.check_reentry()?;
        self.poll(req.heap); // blocks that were freed here go back first
        let mut round = 0;
        let mut trials = Trials::default();
        loop {
            let since = self.now();
            let take = |trials: &mut Trials| {
                let mut got = Err(Error::new(Code::Internal, "nothing was tried"));
                trials.step(Step::Device, || {
                    got = self.take_direct(req);
                    got.is_ok()
                });
                got
            };
            let mut got = take(&mut trials);
            let short = |got: &Result<u64>| got.as_ref().is_err_and(|e| e.code() == Code::OutOfMemory);
            // A waiting block may be a segment that goes back.
            while short(&got) && trials.step(Step::Waiting, || self.wait_for_any()) {
                got = take(&mut trials);
            }
            if short(&got) && trials.step(Step::Trim, || self.trim(None).unwrap_or(false)) {
                got = take(&mut trials);
            }
            match got {
                Err(e) if e.code() != Code::OutOfMemory => return Err(e),
                Err(e) if !self.look_again(since, &mut round) => {
                    return self.out_of_memory(req, Code::OutOfMemory, Some(e), trials);
                }
                Err(_) => {}
                Ok(offset) => return Ok(offset),
            }
        }
    }

    fn take_direct(&self, req: &Request) -> Result<u64> {
        let Some(id) = self.look(req.heap).take_id() else {
            fail!(Code::OutOfMemory, "{}", ours::TOO_MANY_BLOCKS);
        };
        let give = |part: Extent| {
            let mut h = self.lock(req.heap);
            h.enter_direct(id, part);
            h.make_live(id, Tier::Large as u32, req.bytes);
            h.flag(id, USES | DIRECT);
            self.flag_oversize(&h, id, req.charged);
            h.counters.count_in(Class::Large, req.charged, req.bytes)
        };
        let taken = self.take_segment(req.heap, req.charged, req.size.units, give);
        let full = taken.inspect_err(|_| self.look(req.heap).put_id(id))?;
        if full {
            self.settle(req.heap);
        }
        Ok(self.offset(id))
    }

    /// The error of a request that no device could serve.
    #[cold]
    #[inline(never)]
    pub(crate) fn too_large<T>(&self, bytes: u64) -> Result<T> {
        let most = self.config.max_alloc;
        Err(Error::new(
            Code::OutOfMemory,
            format!("{bytes} bytes are more than the device could ever give ({most})"),
        ))
    }
}
