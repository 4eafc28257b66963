//! Points in the work of streams, made of events. An event of ours is recorded, queried, and used again; an event of the
//! caller is borrowed as long as a freed block waits for it.
//!
//! Giving a point back makes no call on the device, since locks may be held then: an event that must be destroyed waits
//! in `dead` for the next call.

use super::calls::external;
use super::device_backing::DeviceBacking;
use super::points::{Query, Taken};
use crate::base::boxed::try_push;
use crate::base::error::{Code, Result, no_host_memory};
use crate::base::sync::system::lock;
use crate::core::{EVERY, Order, Point, Points as CorePoints, Waits};
use crate::device::{Device, EventId, StreamId, would_wait};
use crate::fail;
use crate::runtime::entry::reentry;
use std::sync::atomic::Ordering::Relaxed;

impl DeviceBacking {
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

    /// Destroys the events that were released since the last call, and gives back what was refused of copies that are over.
    pub(super) fn bury(&self, device: &dyn Device) {
        self.give_back_kept(device, None);
        // One by one: the list keeps its memory.
        while let Some(e) = self.dead_event() {
            let _ = device.streams().event_destroy(e); // for the caller it has long been gone
        }
    }

    fn dead_event(&self) -> Option<EventId> {
        lock(&self.dead).pop()
    }

    /// An event of ours, to be recorded. A new one has room among the spare ones, so that to give it back needs no memory.
    pub(super) fn event(&self, device: &dyn Device) -> Result<EventId> {
        {
            let mut spare = lock(&self.spare);
            if let Some(event) = spare.pop() {
                return Ok(event);
            }
            // Relaxed: changed under the lock, but for one that could not be made.
            let made = self.made.fetch_add(1, Relaxed) + 1;
            if spare.try_reserve(made).is_err() {
                self.made.fetch_sub(1, Relaxed);
                return Err(no_host_memory());
            }
        }
        let create = || device.streams().event_create();
        self.calls.of_events(create).inspect_err(|_| _ = self.made.fetch_sub(1, Relaxed))
    }

    /// A point at an event of ours, which was just recorded.
    pub(super) fn point_at(&self, event: EventId) -> Result<Point> {
        self.points.of_event(event).inspect_err(|_| self.give_spare(event))
    }

    /// The event is not in use any more.
    fn give_spare(&self, event: EventId) {
        try_push(&mut lock(&self.spare), event); // there is room, but where the device has ended, and its events with it
    }

    /// An event of ours, recorded after everything that is queued on `stream`; `None`: all of that is done. `NotPermitted`
    /// if that takes a wait, unless `may_wait`.
    pub(super) fn record(
        &self,
        device: &dyn Device,
        stream: StreamId,
        may_wait: bool,
    ) -> Result<Option<EventId>> {
        let check_wait = || if may_wait { reentry::may_block() } else { Err(would_wait()) };
        if device.streams().recording_waits() {
            check_wait()?;
        }
        let event = match self.event(device) {
            Ok(e) => e,
            Err(e) if e.code() == Code::Unsupported => {
                // Without events the stream is waited for.
                check_wait()?;
                let wait = || match stream {
                    EVERY => device.synchronize(),
                    s => device.streams().synchronize(s),
                };
                return self.calls.waits(wait).map(|()| None);
            }
            Err(e) => return Err(e),
        };
        let recorded = self.calls.of_events(|| match stream {
            EVERY => external(device).and_then(|e| e.record_all(event, may_wait)),
            s => match device.streams().event_record(s, event) {
                // The stream was the device's own before, so its creator has destroyed it without notice (or it does
                // not accept our events). Its work may still run, and nothing else can tell.
                Err(e) if matches!(e.code(), Code::UnknownStream | Code::UnknownEvent) => {
                    device.external_streams().map_or(Err(e), |x| x.record_all(event, may_wait))
                }
                other => other,
            },
        });
        self.recorded(event, recorded).map(Some)
    }

    /// Puts an event that could not be recorded back among the spare ones.
    pub(super) fn recorded(&self, event: EventId, how: Result<()>) -> Result<EventId> {
        how.map(|()| event).inspect_err(|_| self.give_spare(event))
    }

    /// Waits for an event.
    pub(super) fn sync_event(&self, event: EventId) -> Result<()> {
        let c = self.call()?;
        self.calls.waits(|| c.device.streams().event_synchronize(event))
    }
}

impl CorePoints for DeviceBacking {
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
            Taken::Ours(event) => self.give_spare(event),
            Taken::Theirs(event) => _ = try_push(&mut lock(&self.dead), event), // `borrow_event` has made room
        }
    }
}
