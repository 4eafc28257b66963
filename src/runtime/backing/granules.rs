//! Granules of physical memory: created and mapped at their places, unmapped and given back.
//!
//! What the device refuses to take back is noted in `refused` and `views` and offered again before the device is asked
//! for memory. Mapped granules cannot be released, so addresses come before granules.

use super::device_backing::DeviceBacking;
use super::refused::Run;
use crate::base::error::{Error, Result};
use crate::base::room::{CALL_BYTES, check_room};
use crate::core::GRANULE;
use crate::runtime::entry::reentry::InCall;
use crate::runtime::nvtx;
use crate::runtime::watch::event::EventKind;

impl DeviceBacking {
    /// Creates granules and maps them at their places; `each` in ties of so many, 0: each for itself.
    pub(super) fn make(&self, first: u32, count: u32, each: u32) -> Result<()> {
        let (f, n) = (u64::from(first), u64::from(count));
        self.ask_again();
        self.refused.check(f, n)?;
        check_room(CALL_BYTES)?; // so that what the device gives can be entered
        let _range = nvtx::range(c"segment alloc", self.granule_at(count));
        self.taking(|m| match each {
            0 => m.create(f, n),
            each => m.create_tied(f, n, u64::from(each)),
        })?;
        self.taking(|m| m.map(self.granule_at(first), f, n)).inspect_err(|_| {
            // As if they had never been created.
            if let Err(e) = self.giving(|m| m.release(f, n)) {
                self.refused.add(f, Run { count: n, shown: false }, e);
            }
        })?;
        let _in = InCall::new(self);
        let (at, bytes) = (self.window_at(self.granule_at(first)), self.granule_at(count));
        self.tell(EventKind::SegmentAlloc, at, bytes);
        self.segments.added(at, bytes);
        Ok(())
    }

    /// Gives granules back to the device. On failure they are as they were, and still the pond's. If the device has
    /// taken a part and does not give it back, or the pond `must` give them up, nobody owns them afterwards, and that
    /// is no failure.
    pub(super) fn give_up(&self, first: u32, count: u32, must: bool) -> Result<()> {
        let _c = self.call()?;
        let (f, n) = (u64::from(first), u64::from(count));
        let (at, bytes) = (self.granule_at(first), self.granule_at(count));
        let _range = nvtx::range(c"segment free", bytes);
        // Mapped granules cannot be released, and addresses that the device refused to unmap may map these.
        let may_be_shown = self.views.check(0, u64::MAX);
        if !must {
            may_be_shown.clone()?;
        }
        let gone = self.segments.going(self.window_at(at), bytes);
        self.tell(EventKind::SegmentFree, self.window_at(at), bytes);
        let keep = |e: Error| {
            self.tell(EventKind::SegmentAlloc, self.window_at(at), bytes);
            self.segments.back(&gone);
            Err(e)
        };
        if let Err(e) = self.giving(|m| m.unmap(at, bytes)) {
            if !must {
                return keep(e);
            }
            self.refused.add(f, Run { count: n, shown: true }, e);
        } else if let Err(e) = may_be_shown.and_then(|()| self.giving(|m| m.release(f, n))) {
            if !must && self.taking(|m| m.map(at, f, n)).is_ok() {
                return keep(e);
            }
            self.refused.add(f, Run { count: n, shown: false }, e);
        }
        Ok(())
    }

    /// Asks the device again to take back what it has refused.
    pub(super) fn ask_again(&self) {
        let mut asking = self.views.to_ask();
        while let Some((at, run)) = asking.next() {
            let answer = self.giving(|m| m.unmap(at * GRANULE, run.count * GRANULE));
            asking.answered(answer, true);
        }
        if !self.views.is_empty() {
            return; // mapped granules cannot be released
        }
        let mut asking = self.refused.to_ask();
        while let Some((first, run)) = asking.next() {
            let (at, bytes) = (first * GRANULE, run.count * GRANULE);
            let hidden = if run.shown { self.giving(|m| m.unmap(at, bytes)) } else { Ok(()) };
            let shown = hidden.is_err();
            let answer = hidden.and_then(|()| self.giving(|m| m.release(first, run.count)));
            asking.answered(answer, shown);
        }
    }
}
