//! The facet of streams and events. Each stream has a thread; work on stream 0 runs on the calling thread.

use super::device::HostDevice;
use super::event::Event;
use super::stream::Work;
use crate::base::boxed::try_arc;
use crate::base::error::{Code, Error, Result, no_host_memory};
use crate::base::sync::system::lock;
use crate::device::{EventId, StreamCallback, StreamId, Streams, Timing};
use crate::fail;
use std::sync::Arc;

impl HostDevice {
    /// An event of any device of the type: a stream may wait for all of them.
    fn any_event(&self, event: EventId) -> Result<Arc<Event>> {
        let found = lock(&self.shared.events).get(event).map(Arc::clone);
        found.ok_or_else(|| {
            Error::formatted(Code::UnknownEvent, format_args!("event {event:#x} is not a live event"))
        })
    }

    /// An event of this device.
    fn event(&self, event: EventId) -> Result<Arc<Event>> {
        let found = self.any_event(event)?;
        if found.ordinal() != self.ordinal {
            let (own, other) = (self.ordinal, found.ordinal());
            fail!(Code::UnknownEvent, "event {event:#x} is one of device {other}, not of device {own}");
        }
        Ok(found)
    }
}

impl Streams for HostDevice {
    fn create(&self) -> Result<StreamId> {
        let _pass = self.shared.enter()?;
        self.state().add_stream(Arc::clone(&self.shared.panics))
    }

    /// Returns at once; queued work still completes, and then the stream's thread ends.
    fn destroy(&self, stream: StreamId) -> Result<()> {
        let _pass = self.shared.enter()?;
        self.state().remove_stream(stream)
    }

    fn exists(&self, stream: StreamId) -> bool {
        self.shared.enter().is_ok_and(|_pass| self.check_stream(stream).is_ok())
    }

    fn idle(&self) -> bool {
        self.state().is_idle()
    }

    fn query(&self, stream: StreamId) -> Result<bool> {
        let _pass = self.shared.enter()?;
        if stream == 0 {
            return Ok(self.state().first_pending().is_none());
        }
        Ok(self.state().stream(stream)?.point().done())
    }

    fn synchronize(&self, stream: StreamId) -> Result<()> {
        let _pass = self.shared.enter_blocking()?;
        if stream == 0 {
            self.state().drain();
        } else {
            self.state().stream(stream)?.point().wait();
        }
        Ok(())
    }

    /// On stream 0 the wait applies to the next work on stream 0; the call itself never blocks.
    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<()> {
        let _pass = self.shared.enter()?;
        let points = self.any_event(event)?.pending().ok_or_else(no_host_memory)?;
        if points.is_empty() {
            return self.check_stream(stream);
        }
        if stream == 0 {
            return self.state().default_wait(points);
        }
        self.queue(stream, Work::Wait(points)).map(drop)
    }

    fn callback(&self, stream: StreamId, callback: StreamCallback) -> Result<()> {
        let _pass = self.shared.enter()?;
        self.queue(stream, Work::Call(callback)).map(drop)
    }

    fn event_create(&self) -> Result<EventId> {
        let _pass = self.shared.enter()?;
        let event = Event::new(self.ordinal).and_then(try_arc).ok_or_else(no_host_memory)?;
        lock(&self.shared.events).insert(event)
    }

    fn event_destroy(&self, event: EventId) -> Result<()> {
        let _pass = self.shared.enter()?;
        self.event(event)?;
        let gone = lock(&self.shared.events).remove(event);
        match gone {
            Some(_) => Ok(()),
            None => fail!(Code::UnknownEvent, "event {event:#x} is not a live event"),
        }
    }

    /// On stream 0 the event completes at once, unless stream 0 waits for an event: work on stream 0 is complete
    /// whenever a call returns.
    fn event_record(&self, stream: StreamId, event: EventId) -> Result<()> {
        let _pass = self.shared.enter()?;
        let event = self.event(event)?;
        if let Some(times) = event.times() {
            let record = times.begin();
            // On stream 0 this waits for its turn, as work there does.
            let point = self.queue(stream, Work::Reach(times.clone(), record));
            match point.inspect_err(|_| times.forget(record))? {
                Some(point) => event.record(point),
                None => event.record_all(Vec::new()),
            }
            return Ok(());
        }
        match stream {
            0 => event.record_all(self.state().default_pending().ok_or_else(no_host_memory)?),
            _ => {
                let point = self.state().stream(stream)?.point();
                event.record(point);
            }
        }
        Ok(())
    }

    fn timing(&self) -> Option<&dyn Timing> {
        Some(self)
    }

    fn event_query(&self, event: EventId) -> Result<bool> {
        let _pass = self.shared.enter()?;
        Ok(self.event(event)?.is_done())
    }

    fn event_synchronize(&self, event: EventId) -> Result<()> {
        let _pass = self.shared.enter_blocking()?;
        self.event(event)?.wait();
        Ok(())
    }
}

impl Timing for HostDevice {
    fn create_event(&self) -> Result<EventId> {
        let _pass = self.shared.enter()?;
        let event = Event::timed(self.ordinal).and_then(try_arc).ok_or_else(no_host_memory)?;
        lock(&self.shared.events).insert(event)
    }

    fn elapsed(&self, start: EventId, end: EventId) -> Result<f32> {
        let _pass = self.shared.enter()?;
        let (start, end) = (self.event(start)?, self.event(end)?);
        let (start, end) = (start.time()?, end.time()?);
        let ahead = end.saturating_duration_since(start).as_secs_f64();
        let back = start.saturating_duration_since(end).as_secs_f64();
        Ok(((ahead - back) * 1e3) as f32)
    }
}
