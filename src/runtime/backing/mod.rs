//! A device as the backing of a pond: the calls that the core makes ([`Backing`]), by noun in the files of this folder.
//!
//! Each call keeps the device from ending (`entry/usage.rs`), is noted on the thread (`entry/reentry.rs`), and is made
//! without a lock.

use crate::base::error::{Code, Error, Result, no_host_memory};
use crate::base::sync::system::lock;
use crate::core::{
    Backing, BlockInfo, Completed, EVERY, GRANULE, GranuleRun, Point, Points as CorePoints, PoolId,
    alias_one_by_one,
};
use crate::device::{self, Whose};
use crate::fail;
use crate::runtime::entry::reentry::{self, InCall};
use crate::runtime::nvtx;
use crate::runtime::watch::event::{Event, EventKind};
use calls::external;
use refused::Run;

mod borrowed;
mod calls;
mod device_backing;
mod events;
mod granules;
mod kept;
mod notify;
mod places;
mod points;
mod refused;
mod room;
mod saved;
pub(crate) mod segments;
mod streams;

pub(crate) use calls::check_free;
pub(crate) use device_backing::DeviceBacking;
pub(crate) use places::Places;

impl Backing for DeviceBacking {
    fn create(&self, first: u32, count: u32) -> Result<()> {
        self.check_free(self.granule_at(count))?;
        self.make(first, count, 0)
    }

    fn create_tied(&self, first: u32, count: u32, each: u32) -> Result<()> {
        self.check_free(self.granule_at(count))?;
        self.make(first, count, each)
    }

    /// What others are to have does not count: it is no growth.
    fn create_again(&self, first: u32, count: u32, tied: bool) -> Result<()> {
        self.make(first, count, if tied { count } else { 0 })
    }

    fn release(&self, first: u32, count: u32) -> Result<()> {
        self.ask_again();
        self.give_up(first, count, false)
    }

    fn discard(&self, first: u32, count: u32) {
        let _ = self.give_up(first, count, true); // what fails is tried again later
    }

    fn alias(&self, offset: u64, first: u32, count: u32) -> Result<()> {
        self.ask_again();
        self.views.check(offset / GRANULE, u64::from(count))?;
        self.taking(|m| m.map(offset, u64::from(first), u64::from(count)))?;
        self.shown(offset, &[GranuleRun { first, count }]);
        Ok(())
    }

    fn alias_runs(&self, offset: u64, runs: &[GranuleRun]) -> Result<()> {
        let together = self.device.mapping().is_some_and(|m| m.together().is_some());
        if runs.len() < 2 || !together {
            return alias_one_by_one(self, offset, runs);
        }
        self.ask_again();
        let numbered = |r: &GranuleRun| device::Run { first: r.first.into(), count: r.count.into() };
        let wide: Vec<_> = runs.iter().map(numbered).collect();
        self.views.check(offset / GRANULE, wide.iter().map(|r| r.count).sum())?;
        self.taking(|m| match m.together() {
            Some(together) => together.map_runs(offset, &wide),
            None => Err(Error::new(Code::Internal, "the device maps one run at a time after all")),
        })?;
        self.shown(offset, runs);
        Ok(())
    }

    fn unalias(&self, offset: u64, bytes: u64) -> Result<()> {
        let _c = self.call()?;
        let gone = self.segments.going(self.window_at(offset), bytes);
        self.tell(EventKind::SegmentUnmap, self.window_at(offset), bytes);
        self.giving(|m| m.unmap(offset, bytes)).inspect_err(|_| {
            self.tell(EventKind::SegmentMap, self.window_at(offset), bytes);
            self.segments.back(&gone);
        })
    }

    fn discard_view(&self, offset: u64, bytes: u64) {
        let Ok(_c) = self.call() else { return };
        self.segments.going(self.window_at(offset), bytes);
        self.tell(EventKind::SegmentUnmap, self.window_at(offset), bytes);
        if let Err(e) = self.giving(|m| m.unmap(offset, bytes)) {
            self.views.add(offset / GRANULE, Run { count: bytes / GRANULE, shown: true }, e);
        }
    }

    fn save(&self, first: u32, count: u32) -> Result<()> {
        self.save_granules(first, count)
    }

    fn load(&self, first: u32, count: u32) -> Result<()> {
        self.load_granules(first, count)
    }

    fn drop_saved(&self, first: u32, _: u32) {
        self.drop_granules(first);
    }

    fn segment(&self, offset: u64, bytes: u64) -> Result<()> {
        self.check_free(bytes)?;
        let _range = nvtx::range(c"segment alloc", bytes);
        let c = self.call()?;
        let addr = self.calls.takes(|| c.device.alloc(bytes))?;
        if addr == 0 {
            fail!(Code::OutOfMemory, "the device has no {bytes} bytes in one piece");
        }
        if !self.places.add(offset, addr, bytes) {
            self.calls.gives(|| c.device.free(addr, bytes))?;
            fail!(Code::OutOfMemory, "the device's memory lies in as many pieces as there may be");
        }
        let _in = InCall::new(self);
        self.tell(EventKind::SegmentAlloc, addr, bytes);
        self.segments.added(addr, bytes);
        Ok(())
    }

    fn segment_release(&self, offset: u64, bytes: u64) -> Result<()> {
        let c = self.call()?;
        let Some(addr) = self.places.remove(offset) else {
            return Err(Error::new(Code::Internal, "a segment without an address"));
        };
        let _range = nvtx::range(c"segment free", bytes);
        let gone = self.segments.going(addr, bytes);
        self.tell(EventKind::SegmentFree, addr, bytes);
        // They stay the pond's if the device refuses.
        self.calls.gives(|| c.device.free(addr, bytes)).inspect_err(|_| {
            self.places.add(offset, addr, bytes);
            self.tell(EventKind::SegmentAlloc, addr, bytes);
            self.segments.back(&gone);
        })
    }

    fn mark(&self, stream: u64, may_wait: bool) -> Result<Option<Point>> {
        let c = self.call()?;
        self.bury(c.device);
        self.record(c.device, stream, may_wait)?.map(|e| self.point_at(e)).transpose()
    }

    fn mark_elsewhere(&self, stream: u64, named: bool) -> Result<Option<Point>> {
        let c = self.call()?;
        self.bury(c.device);
        let event = self.event(c.device)?;
        let recorded =
            self.calls.of_events(|| external(c.device).and_then(|e| e.record_theirs(stream, event, named)));
        let event = self.recorded(event, recorded)?;
        self.point_at(event).map(Some)
    }

    fn borrow_event(&self, event: u64) -> Result<Option<Point>> {
        let borrowed = self.points.borrow(self.call()?.device.streams(), event)?;
        // For those that the caller destroys.
        if borrowed.is_some() && lock(&self.dead).try_reserve(self.points.borrowed.count()).is_err() {
            borrowed.into_iter().for_each(|p| CorePoints::forget(self, p));
            return Err(no_host_memory());
        }
        Ok(borrowed)
    }

    fn capturing(&self, stream: u64) -> bool {
        // A device that fails here also fails at the call that follows.
        let Ok(c) = self.call() else { return false };
        let Some(external) = c.device.external_streams() else { return false };
        match stream {
            EVERY => external.any_captured().unwrap_or(false),
            s => matches!(external.capture_id(s), Ok(Some(_))),
        }
    }

    fn watch(&self, stream: u64, captured: bool) {
        // A device that has ended is not waited for.
        let Ok(c) = self.call() else { return };
        if let Some(external) = c.device.external_streams() {
            external.watch(stream, captured);
        }
    }

    fn sync_all(&self) -> Result<()> {
        let c = self.call()?;
        self.bury(c.device);
        self.ask_again();
        self.calls.waits(|| c.device.synchronize())
    }

    fn sync_stream(&self, stream: u64) -> Result<()> {
        let c = self.call()?;
        self.calls.waits(|| c.device.streams().synchronize(stream))
    }

    fn may_wait(&self) -> bool {
        reentry::may_block().is_ok() && !reentry::is_in_call(self)
    }

    fn may_change(&self) -> bool {
        !reentry::is_in_call(self)
    }

    fn idle(&self) -> bool {
        self.device.streams().idle()
    }

    fn knows(&self, stream: u64) -> bool {
        stream == 0 || stream != EVERY && self.device.streams().exists(stream)
    }

    fn lists(&self, stream: u64) -> bool {
        stream == EVERY || self.device.external_streams().is_some() || lock(&self.streams).contains(&stream)
    }

    fn lasts(&self, stream: u64) -> bool {
        self.device.external_streams().is_none_or(|e| e.lasts(stream))
    }

    fn lasts_elsewhere(&self, stream: u64) -> bool {
        self.device.external_streams().is_none_or(|e| e.lasts_elsewhere(stream))
    }

    fn owns(&self, stream: u64) -> Result<bool> {
        if stream == 0 {
            return Ok(true);
        }
        match self.device.stream_owner(stream) {
            Ok(whose) => Ok(whose == Whose::Ours),
            Err(e) if e.code() == Code::UnknownStream => Err(self.no_stream(stream)),
            Err(e) => Err(e),
        }
    }

    fn is_default(&self, stream: u64) -> bool {
        self.device.is_default(stream)
    }

    fn ordered_by(&self, stream: u64) -> bool {
        !self.device.is_per_thread(stream)
    }

    fn free_completed(&self, freed: Completed) {
        if !self.observers.any() {
            return;
        }
        let base = self.places.address(freed.offset).unwrap_or(0); // every block that was live has one
        let (size, requested, pool) = (freed.charged, freed.requested, PoolId(freed.pool));
        let block = BlockInfo { base, size, requested, stream: freed.stream, pool };
        self.observers.tell(Event { ended: freed.ended, ..Event::of(EventKind::FreeCompleted, &block) });
    }

    fn address(&self, offset: u64) -> u64 {
        self.places.address(offset).unwrap_or(0) // the device has just ended
    }

    fn streams(&self, each: &mut dyn FnMut(u64)) {
        if self.device.external_streams().is_some() { each(EVERY) } else { self.each_made_here(each) }
    }
}
