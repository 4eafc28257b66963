//! The facets of streams: the driver's own streams, which anybody may create, capture and destroy.

use super::callbacks;
use super::card::Card;
use super::handles::{LEGACY, PER_THREAD};
use crate::base::error::{Code, Error, Result};
use crate::device::{
    EventId, ExternalStreams, StreamCallback, StreamId, StreamKind, Streams, Timing, Whose, would_wait,
};

impl Streams for Card {
    fn create(&self) -> Result<StreamId> {
        let _in = self.enter()?;
        self.handles.create(StreamKind::default())
    }

    fn priorities(&self) -> Result<(i32, i32)> {
        let _in = self.enter()?;
        self.driver().stream_priorities()
    }

    fn create_with(&self, kind: StreamKind) -> Result<StreamId> {
        let _in = self.enter()?;
        self.handles.create(kind)
    }

    fn destroy(&self, stream: StreamId) -> Result<()> {
        let _in = self.enter()?;
        self.handles.destroy(stream)
    }

    fn exists(&self, stream: StreamId) -> bool {
        self.handles.exists(stream)
    }

    fn query(&self, stream: StreamId) -> Result<bool> {
        let _in = self.enter()?;
        self.known(stream)?;
        self.driver().stream_query(stream)
    }

    fn synchronize(&self, stream: StreamId) -> Result<()> {
        let _in = self.enter()?;
        self.known(stream)?;
        self.driver().stream_synchronize(stream)
    }

    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<()> {
        let _in = self.enter()?;
        self.known(stream)?;
        self.handles.check_awaited(event)?;
        self.driver().stream_wait(stream, event)
    }

    fn callback(&self, stream: StreamId, callback: StreamCallback) -> Result<()> {
        let _in = self.enter()?;
        self.known(stream)?;
        callbacks::queue(self.driver(), self.number, stream, callback)
    }

    fn event_create(&self) -> Result<EventId> {
        let _in = self.enter()?;
        self.handles.event_create(false)
    }

    fn timing(&self) -> Option<&dyn Timing> {
        Some(self)
    }

    fn event_destroy(&self, event: EventId) -> Result<()> {
        let _in = self.enter()?;
        self.handles.event_destroy(event)
    }

    fn event_record(&self, stream: StreamId, event: EventId) -> Result<()> {
        let _in = self.enter()?;
        self.known(stream)?;
        self.handles.check_event(event)?;
        self.handles.note_record(event);
        self.driver().event_record(event, stream).map_err(|e| {
            // The driver does not say which of the two handles it refuses.
            let alive = || self.driver().stream_context(stream) == Ok(self.primary.context);
            if e.code() == Code::UnknownStream && alive() {
                let what = "is not one of this device's context, or has ended";
                return Error::formatted(Code::UnknownEvent, format_args!("event {event:#x} {what} ({e})"));
            }
            e
        })
    }

    fn event_query(&self, event: EventId) -> Result<bool> {
        let _in = self.enter()?;
        self.handles.check_event(event)?;
        self.driver().event_query(event)
    }

    fn event_synchronize(&self, event: EventId) -> Result<()> {
        let _in = self.enter()?;
        self.handles.check_event(event)?;
        self.driver().event_synchronize(event)
    }
}

impl Timing for Card {
    fn create_event(&self) -> Result<EventId> {
        let _in = self.enter()?;
        self.handles.event_create(true)
    }

    fn elapsed(&self, start: EventId, end: EventId) -> Result<f32> {
        let _in = self.enter()?;
        self.handles.event_elapsed(start, end)
    }
}

impl ExternalStreams for Card {
    fn owner(&self, stream: StreamId) -> Result<Whose> {
        self.handles.owner(stream, &self.primary)
    }

    fn is_default(&self, stream: StreamId) -> bool {
        stream <= LEGACY
    }

    fn is_per_thread(&self, stream: StreamId) -> bool {
        stream == PER_THREAD
    }

    fn forget(&self, stream: StreamId) {
        self.handles.forget(stream);
    }

    fn watch(&self, stream: StreamId, captured: bool) {
        self.handles.watch(stream, captured);
    }

    fn set_announced(&self, announced: bool) {
        self.handles.set_announced(announced);
    }

    fn note_created(&self, stream: StreamId) {
        self.handles.note_created(stream);
    }

    fn lasts(&self, stream: StreamId) -> bool {
        self.handles.lasts(stream)
    }

    fn lasts_elsewhere(&self, stream: StreamId) -> bool {
        self.handles.lasts_elsewhere(stream)
    }

    fn record_theirs(&self, stream: StreamId, event: EventId, named: bool) -> Result<()> {
        let _in = self.enter()?;
        self.handles.record_theirs(stream, event, self.primary.context, named)
    }

    fn record_all(&self, event: EventId, may_wait: bool) -> Result<()> {
        let _in = self.enter()?;
        self.not_captured()?;
        if self.driver().records_contexts() {
            return self.driver().context_record(self.primary.context, event);
        }
        if !may_wait {
            return Err(would_wait());
        }
        // The event may hold an older record; waiting for the context covers that too.
        self.rest()
    }

    fn capture_id(&self, stream: StreamId) -> Result<Option<u64>> {
        let _in = self.enter()?;
        self.known(stream)?;
        self.handles.capture_id(stream)
    }

    fn any_captured(&self) -> Result<bool> {
        let _in = self.enter()?;
        Ok(self.handles.captured()?.is_some())
    }
}
