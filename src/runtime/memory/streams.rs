//! What a device's memory knows of the device's streams, and of events of the caller that freed blocks wait for.

use super::state::{How, Memory};
use crate::base::error::Result;
use crate::core::{Ending, Order, Waits};
use crate::device::{EventId, StreamId};

/// The streams of one device, as its memory knows them. Get it with [`Memory::streams`].
#[derive(Clone, Copy)]
pub struct KnownStreams<'a>(&'a Memory);

impl Memory {
    /// What the memory knows of the device's streams: whoever calls the device itself must tell it.
    pub fn streams(&self) -> KnownStreams<'_> {
        KnownStreams(self)
    }
}

impl KnownStreams<'_> {
    /// Must be called when the device has created `stream`.
    pub fn created(&self, stream: StreamId) {
        self.0.order().made(stream);
        if let Some(ending) = self.0.order().ended_unnoticed(stream) {
            self.ended(ending);
        }
        self.0.backing().add_stream(stream);
    }

    /// The default stream, and the streams that the device has created and that have not ended.
    pub(crate) fn live(&self) -> Vec<StreamId> {
        self.0.backing().made_here()
    }

    /// Fails while the stream is being captured: it must not end then.
    pub fn check_end(&self, stream: StreamId) -> Result<()> {
        self.0.order().check_end(stream)
    }

    /// Must be called before the device ends `stream`. What is queued on it still counts for the memory that it uses.
    /// Must be followed by [`ended`](Self::ended) or [`not_ended`](Self::not_ended). `UnknownStream` if another thread is
    /// ending it.
    pub(crate) fn ending(&self, stream: StreamId) -> Result<Ending> {
        self.0.order().ending(stream)
    }

    /// Must be called when the device has ended the stream.
    pub(crate) fn ended(&self, ending: Ending) {
        self.0.backing().drop_stream(ending.id());
        self.0.observers.ended(ending.id());
        match &self.0.how {
            How::Pooled(p) => p.pond.stream_ended(ending),
            How::Unpooled(u) => u.order().ended(ending),
        }
    }

    /// Must be called when the device refused to end the stream.
    pub(crate) fn not_ended(&self, ending: Ending) {
        self.0.order().not_ended(ending);
    }

    /// A stream of the device with that order of streams uses memory of this one until `waits` is over: blocks without a
    /// stream that are freed from now on wait for that, too.
    pub(crate) fn visited(&self, of: &'static Order, waits: Waits) {
        if !waits.is_over() {
            self.0.order().note_foreign_work(self.0.backing().visit(of, waits));
        }
    }

    /// Whether a freed block, or one whose use has ended at the event, still waits for this event of the caller.
    pub fn holds_event(&self, event: EventId) -> Result<bool> {
        self.0.open()?;
        self.0.backing().holds_event(event)
    }

    /// Fails for an event that [`keep_event`](Self::keep_event) has kept: the caller has destroyed it.
    pub(crate) fn check_event(&self, event: EventId) -> Result<()> {
        self.0.backing().check_event(event)
    }

    /// Must be called before the device destroys an event; `true`: it must not, the event is destroyed here later.
    pub(crate) fn keep_event(&self, event: EventId) -> Result<bool> {
        self.0.open()?;
        self.0.backing().keep_event(event)
    }
}
