//! The facet that every device has: streams and events. And the one of devices whose streams belong to a driver that the
//! program uses too.

use super::{EventId, StreamId};
use crate::base::error::Result;

/// A function to run when a stream reaches it. Boxed by the caller of [`Streams::callback`]; runs on a thread of the
/// device with no lock held, and must not call back into the library's blocking calls.
pub type StreamCallback = Box<dyn FnOnce(Result<()>) + Send>;

/// Streams and events. Stream 0 is the default stream, which every device has; `create` is `Unsupported` where
/// [`Caps::STREAMS`](super::Caps::STREAMS) is not set.
pub trait Streams: Send + Sync {
    /// A new stream.
    fn create(&self) -> Result<StreamId>;
    /// Ends a stream; work queued on it still completes.
    fn destroy(&self, stream: StreamId) -> Result<()>;
    /// Whether the stream exists. A device that cannot tell answers `true`.
    fn exists(&self, stream: StreamId) -> bool;
    /// `true` when nothing queued on it is unfinished.
    fn query(&self, stream: StreamId) -> Result<bool>;
    /// Waits on the host for the stream.
    fn synchronize(&self, stream: StreamId) -> Result<()>;
    /// Work queued on `stream` from now on waits for what `event` has recorded. Waits on the host only where
    /// [`awaiting_waits`](Self::awaiting_waits) says so.
    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<()>;
    /// Runs `callback` when the stream gets there.
    fn callback(&self, stream: StreamId, callback: StreamCallback) -> Result<()>;

    /// A new event, as if completed.
    fn event_create(&self) -> Result<EventId>;
    /// Ends an event; waits on it that are queued still hold.
    fn event_destroy(&self, event: EventId) -> Result<()>;
    /// The event stands for everything queued on `stream` so far.
    fn event_record(&self, stream: StreamId, event: EventId) -> Result<()>;
    /// `true` when what it recorded is done (or it never recorded).
    fn event_query(&self, event: EventId) -> Result<bool>;
    /// Waits on the host for it.
    fn event_synchronize(&self, event: EventId) -> Result<()>;

    /// Whether recording an event waits on the host for the stream: there are no events underneath.
    fn recording_waits(&self) -> bool {
        false
    }
    /// Whether making a stream wait for an event waits on the host: the device cannot do it.
    fn awaiting_waits(&self) -> bool {
        false
    }
}

/// Whose a stream is, as a device sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The device's own: it orders memory, and a wait for the device waits for its work.
    Ours,
    /// Of another device, or of another context of this one. Work on it may use memory of this device all the same.
    Theirs,
}

/// Streams that the program makes, captures and ends with the driver's own functions. A device without this facet knows
/// all its streams, and captures none.
pub trait ExternalStreams: Send + Sync {
    /// Whose a stream is. `UnknownStream` for one that is none, or has ended, where that can be told; any other error
    /// says that it could not be asked.
    fn owner(&self, stream: StreamId) -> Result<Whose>;
    /// Whether `stream` is a name of the default stream, which other streams are ordered with.
    fn is_default(&self, stream: StreamId) -> bool;
    /// Whether `stream` stands for another stream on each thread. Memory cannot be ordered by it.
    fn is_per_thread(&self, stream: StreamId) -> bool;
    /// The maker of the stream is about to end it: it must not be asked about any more.
    fn forget(&self, stream: StreamId);
    /// The event stands for everything queued so far on a stream that is theirs ([`Whose`]), also where that has ended
    /// since. `NotPermitted` while it is captured.
    fn record_theirs(&self, stream: StreamId, event: EventId) -> Result<()>;
    /// The event stands for everything queued on the device so far, on all streams, known or not. May wait on the host
    /// instead. `NotPermitted` while a stream that is known here is captured.
    fn record_all(&self, event: EventId) -> Result<()>;
    /// The number of the capture that records the stream's work for later (a graph), if one does; numbers are not used
    /// again. Of stream 0: also that of a capture that forbids work there, or `u64::MAX` where that one's number is not
    /// known. Disturbs no capture.
    fn capture_id(&self, stream: StreamId) -> Result<Option<u64>>;
    /// Whether a capture is known that forbids to wait for the device now. Disturbs none.
    fn any_captured(&self) -> Result<bool>;
}
