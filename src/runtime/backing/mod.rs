//! A device as the backing of a pond: which device calls bring memory, and how points in streams are made of events.
//!
//! Each call keeps the device from ending (`usage.rs`), is noted on the thread (`reentry.rs`), and is made without a lock.

use crate::base::error::{Code, Error, Result};
use crate::base::sync::levels::{Called, check_unlocked};
use crate::base::sync::system::Mutex;
use crate::base::sync::thread_token;
use crate::core::{
    Backing, BlockInfo, Completed, EVERY, GRANULE, GranuleRun, Order, Point, Points as CorePoints, PoolId,
    Waits, alias_one_by_one,
};
use crate::device::{CopyKind, Device, EventId, Mapping, StreamId, Whose};
use crate::fail;
use crate::runtime::lock;
use crate::runtime::observe::{Event, EventKind, Observers};
use crate::runtime::reentry::{self, InCall};
use crate::runtime::tools::nvtx;
use crate::runtime::usage::{Pass, Usage};
use calls::{Calls, external, mapping_of};
use points::{Points, Query, Taken};
use refused::{Refused, Run};
use segments::Segments;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

mod borrowed;
mod calls;
mod places;
mod points;
mod refused;
mod ring;
mod room;
pub(crate) mod segments;
mod streams;
mod told;

pub(crate) use calls::check_free;
pub(crate) use places::Places;

/// The backing of one device's memory.
pub(crate) struct Supply {
    device: Arc<dyn Device>,
    usage: Arc<Usage>,
    pub(crate) observers: Arc<Observers>,
    /// The thread that ends the device, whose calls are still allowed after that; 0: none.
    closer: AtomicU64,
    places: Arc<Places>,
    maps: bool,
    /// Whether the device's free memory is checked before a request is passed on.
    careful: AtomicBool,
    headroom: AtomicU64, // [B] of the device that are left to others
    calls: Calls,
    spare: Mutex<Vec<EventId>>, // events of ours that are not in use
    dead: Mutex<Vec<EventId>>,  // events that the caller has destroyed, to be destroyed with the next call
    pub(crate) points: Points,
    pub(crate) segments: Segments,
    saved: Mutex<BTreeMap<u32, Vec<u8>>>, // contents of sleeping granules, by the first granule
    refused: Refused,                     // granules that the device did not take back
    views: Refused,                       // addresses that are still mapped, though nobody uses them
    streams: Mutex<BTreeSet<StreamId>>,
    owner: OnceLock<(u32, String)>, // the number and the name of the device
}

/// A call on the device. The device does not end before this is dropped, and the thread is known to be inside.
pub(crate) struct Call<'a> {
    device: &'a dyn Device,
    _pass: Option<Pass<'a>>,
    _in: InCall,
}

impl Supply {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        usage: Arc<Usage>,
        observers: Arc<Observers>,
        places: Arc<Places>,
        maps: bool,
    ) -> Supply {
        Supply {
            device,
            usage,
            calls: Calls::new(observers.clone()),
            observers,
            closer: AtomicU64::new(0),
            places,
            maps,
            careful: AtomicBool::new(false),
            headroom: AtomicU64::new(0),
            spare: Mutex::default(),
            dead: Mutex::default(),
            points: Points::default(),
            segments: Segments::default(),
            saved: Mutex::default(),
            refused: Refused::default(),
            views: Refused::default(),
            streams: Mutex::new(BTreeSet::from([0])),
            owner: OnceLock::new(),
        }
    }

    /// The number of the device that it is of, and its name, as in `host:0`.
    pub(crate) fn set_owner(&self, device: u32, name: String) {
        let _ = self.owner.set((device, name)); // once
    }

    /// The number and the name of the device, if it has any.
    pub(crate) fn owner(&self) -> Option<&(u32, String)> {
        self.owner.get()
    }

    /// `NotInitialized` once the device ends, except for the thread that ends it.
    pub(crate) fn call(&self) -> Result<Call<'_>> {
        check_unlocked(Called::Device);
        let ends = self.closer.load(Relaxed) == thread_token();
        let pass = if ends { None } else { Some(self.usage.enter()?) };
        Ok(Call { device: &*self.device, _pass: pass, _in: InCall::new(self) })
    }

    /// Makes a call that creates or maps memory.
    fn taking<T>(&self, call: impl FnOnce(&dyn Mapping) -> Result<T>) -> Result<T> {
        let c = self.call()?;
        self.calls.takes(|| call(mapping_of(c.device)?))
    }

    /// Makes a call that releases or unmaps it.
    fn giving<T>(&self, call: impl FnOnce(&dyn Mapping) -> Result<T>) -> Result<T> {
        let c = self.call()?;
        self.calls.gives(|| call(mapping_of(c.device)?))
    }

    /// The calls to the device so far.
    pub(crate) fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Creates granules and maps them at their places; `each` in ties of so many, 0: each for itself.
    fn make(&self, first: u32, count: u32, each: u32) -> Result<()> {
        let (f, n) = (u64::from(first), u64::from(count));
        self.ask_again();
        self.refused.check(f, n)?;
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
    fn give_up(&self, first: u32, count: u32, must: bool) -> Result<()> {
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
    fn ask_again(&self) {
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

    fn granule_at(&self, index: u32) -> u64 {
        u64::from(index) * GRANULE
    }

    /// [address] of an offset in the window, on a device that maps.
    fn window_at(&self, offset: u64) -> u64 {
        self.places.window() + offset
    }

    /// A point that is passed when `waits`, of a device with that order of streams, is over.
    pub(crate) fn visit(&self, order: &'static Order, waits: Waits) -> Point {
        self.points.visit(order, waits)
    }

    /// Whether a freed block still waits for this event of the caller.
    pub(crate) fn holds_event(&self, event: EventId) -> Result<bool> {
        self.points.borrowed.holds(self.device.streams(), event)
    }

    /// Fails for an event that the caller has destroyed.
    pub(crate) fn check_event(&self, event: EventId) -> Result<()> {
        self.points.borrowed.check(event)
    }

    /// The caller destroys an event. `true`: it is destroyed later, when no freed block waits for it.
    pub(crate) fn keep_event(&self, event: EventId) -> Result<bool> {
        self.points.borrowed.keep(self.device.streams(), event)
    }

    /// Destroys the events that were released since the last call.
    fn bury(&self, device: &dyn Device) {
        let dead = std::mem::take(&mut *lock(&self.dead));
        for e in dead {
            let _ = device.streams().event_destroy(e); // for the caller it has long been gone
        }
    }

    /// An event of ours, to be recorded.
    fn event(&self, device: &dyn Device) -> Result<EventId> {
        let spare = lock(&self.spare).pop();
        spare.map_or_else(|| self.calls.of_events(|| device.streams().event_create()), Ok)
    }

    /// An event of ours, recorded after everything that is queued on `stream`; `None`: all of that is done.
    fn record(&self, device: &dyn Device, stream: StreamId) -> Result<Option<EventId>> {
        if device.streams().recording_waits() {
            reentry::may_block()?;
        }
        let event = match self.event(device) {
            Ok(e) => e,
            Err(e) if e.code() == Code::Unsupported => {
                // Without events the stream is waited for.
                reentry::may_block()?;
                let wait = || match stream {
                    EVERY => device.synchronize(),
                    s => device.streams().synchronize(s),
                };
                return self.calls.waits(wait).map(|()| None);
            }
            Err(e) => return Err(e),
        };
        let recorded = self.calls.of_events(|| match stream {
            EVERY => external(device).and_then(|e| e.record_all(event)),
            s => match device.streams().event_record(s, event) {
                // The stream was the device's own before, so its creator has destroyed it without notice (or it does
                // not accept our events). Its work may still run, and nothing else can tell.
                Err(e) if matches!(e.code(), Code::UnknownStream | Code::UnknownEvent) => {
                    device.external_streams().map_or(Err(e), |x| x.record_all(event))
                }
                other => other,
            },
        });
        self.recorded(event, recorded).map(Some)
    }

    /// Puts an event that could not be recorded back among the spare ones.
    fn recorded(&self, event: EventId, how: Result<()>) -> Result<EventId> {
        how.map(|()| event).inspect_err(|_| lock(&self.spare).push(event))
    }

    /// Waits for an event.
    fn sync_event(&self, event: EventId) -> Result<()> {
        let c = self.call()?;
        self.calls.waits(|| c.device.streams().event_synchronize(event))
    }

    /// From now on only this thread may call the device, which has ended for all others.
    pub(crate) fn begin_close(&self) {
        self.closer.store(thread_token(), Relaxed);
    }

    /// Gives everything back: spare events, and the window.
    pub(crate) fn close(&self) -> Result<()> {
        self.bury(&*self.device);
        self.points.borrowed.close(self.device.streams());
        lock(&self.saved).clear();
        let spare = std::mem::take(&mut *lock(&self.spare));
        for e in spare {
            let _ = self.device.streams().event_destroy(e); // a device that is ending may have lost it already
        }
        if self.maps && self.places.close_window() {
            return self.device.mapping().map_or(Ok(()), Mapping::close_window);
        }
        Ok(())
    }
}

impl CorePoints for Supply {
    fn passed(&self, point: Point) -> Result<bool> {
        match self.points.get(point)? {
            Query::Event(e) => {
                let c = self.call()?;
                self.calls.of_events(|| c.device.streams().event_query(e))
            }
            Query::Borrowed(n) => {
                let c = self.call()?;
                self.calls.of_events(|| self.points.borrowed.passed(c.device.streams(), n))
            }
            Query::Visit(v) => v.passed(),
            Query::Answer(answer) => Ok(answer),
        }
    }

    fn wait(&self, stream: u64, point: Point) -> Result<()> {
        let c = self.call()?;
        if c.device.streams().awaiting_waits() {
            reentry::may_block()?;
        }
        match self.points.get(point)? {
            Query::Event(e) => self.calls.of_events(|| c.device.streams().wait_event(stream, e)),
            Query::Borrowed(n) => match self.points.borrowed.event(n) {
                Some(e) => self.calls.of_events(|| c.device.streams().wait_event(stream, e)),
                None => Ok(()), // it has completed
            },
            Query::Answer(true) => Ok(()),
            Query::Visit(_) => fail!(Code::Unsupported, "no stream waits for work of another device"),
            Query::Answer(false) => fail!(Code::Unsupported, "no stream waits for other processes"),
        }
    }

    fn sync(&self, point: Point) -> Result<()> {
        match self.points.get(point)? {
            Query::Visit(v) => v.sync(),
            Query::Event(e) => self.sync_event(e),
            Query::Borrowed(n) => match self.points.borrowed.event(n) {
                Some(e) => self.sync_event(e),
                None => Ok(()), // it has completed
            },
            Query::Answer(true) => Ok(()),
            Query::Answer(false) => fail!(Code::Unsupported, "nobody waits for other processes"),
        }
    }

    fn forget(&self, point: Point) {
        match self.points.take(point) {
            Taken::Nothing => {}
            Taken::Ours(event) => lock(&self.spare).push(event),
            Taken::Theirs(event) => lock(&self.dead).push(event),
        }
    }
}

impl Backing for Supply {
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
        if runs.len() < 2 || !self.device.mapping().is_some_and(Mapping::maps_together) {
            return alias_one_by_one(self, offset, runs);
        }
        self.ask_again();
        let wide: Vec<(u64, u64)> = runs.iter().map(|r| (r.first.into(), r.count.into())).collect();
        self.views.check(offset / GRANULE, wide.iter().map(|r| r.1).sum())?;
        self.taking(|m| m.map_runs(offset, &wide))?;
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
        let (addr, bytes) = (self.places.address(self.granule_at(first))?, self.granule_at(count));
        let mut to = Vec::<u8>::new();
        if to.try_reserve_exact(bytes as usize).is_err() {
            fail!(Code::OutOfMemory, "no {bytes} bytes of host memory to keep what sleeps");
        }
        to.resize(bytes as usize, 0);
        let at = to.as_mut_ptr().expose_provenance() as u64;
        let call = self.call()?;
        self.observers.reaches(addr, bytes, false);
        let done = ring::copy(call.device, CopyKind::DeviceToHost, at, addr, bytes);
        self.observers.reaches(addr, bytes, true);
        done?;
        drop(call);
        lock(&self.saved).insert(first, to);
        Ok(())
    }

    fn load(&self, first: u32, count: u32) -> Result<()> {
        let (addr, bytes) = (self.places.address(self.granule_at(first))?, self.granule_at(count));
        // Removed for the duration of the copy: no lock is held while the device copies.
        let Some(from) = lock(&self.saved).remove(&first) else {
            return Err(Error::new(Code::Internal, "what slept was not kept"));
        };
        let at = from.as_ptr().expose_provenance() as u64;
        self.observers.reaches(addr, bytes, false);
        let done = self.call().and_then(|c| ring::copy(c.device, CopyKind::HostToDevice, addr, at, bytes));
        self.observers.reaches(addr, bytes, true);
        lock(&self.saved).insert(first, from);
        done
    }

    fn drop_saved(&self, first: u32, _: u32) {
        lock(&self.saved).remove(&first);
    }

    fn segment(&self, offset: u64, bytes: u64) -> Result<()> {
        self.check_free(bytes)?;
        let _range = nvtx::range(c"segment alloc", bytes);
        let c = self.call()?;
        let addr = self.calls.takes(|| c.device.alloc(bytes))?;
        if addr == 0 {
            fail!(Code::OutOfMemory, "the device has no {bytes} bytes in one piece");
        }
        self.places.add(offset, addr, bytes);
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

    fn mark(&self, stream: u64) -> Result<Option<Point>> {
        let c = self.call()?;
        self.bury(c.device);
        Ok(self.record(c.device, stream)?.map(|e| self.points.of_event(e)))
    }

    fn mark_elsewhere(&self, stream: u64) -> Result<Option<Point>> {
        let c = self.call()?;
        self.bury(c.device);
        let event = self.event(c.device)?;
        let recorded =
            self.calls.of_events(|| external(c.device).and_then(|e| e.record_theirs(stream, event)));
        let event = self.recorded(event, recorded)?;
        Ok(Some(self.points.of_event(event)))
    }

    fn borrow_event(&self, event: u64) -> Result<Option<Point>> {
        self.points.borrow(self.call()?.device.streams(), event)
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

    fn owns(&self, stream: u64) -> Result<bool> {
        Ok(stream == 0 || self.device.stream_owner(stream)? == Whose::Ours)
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
        let all = if self.device.external_streams().is_some() { vec![EVERY] } else { self.made_here() };
        all.into_iter().for_each(each);
    }
}
