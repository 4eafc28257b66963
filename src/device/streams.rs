//! The facet that every device has, streams and events; and the facet of devices whose streams belong to a driver that
//! the program also uses directly.

use super::{EventId, StreamId};
use crate::base::error::{Code, Error, Result};

/// The error where a point in the work of streams can only be made by a wait on the host, and the caller must not wait.
#[cold]
pub(crate) fn would_wait() -> Error {
    Error::new(Code::NotPermitted, "this takes a wait for the device")
}

/// The error of a call that names a stream which the device does not have. Whoever knows the device's name says more.
#[cold]
pub(crate) fn no_stream(stream: StreamId) -> Error {
    Error::formatted(Code::UnknownStream, format_args!("there is no stream {stream:#x}, or it was destroyed"))
}

/// A function to run when a stream reaches it. It runs on a thread of the device with no lock held, and must not make
/// blocking calls of the library.
pub type StreamCallback = Box<dyn FnOnce(Result<()>) + Send>;

/// What kind of stream to create. The default is what [`Streams::create`] makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamKind {
    /// In the device's own numbers: lower ones come first. A number that the device does not have means the nearest
    /// that it has.
    pub priority: i32,
    /// The default stream does not wait for it, nor it for the default stream.
    pub non_blocking: bool,
}

/// Streams and events. Stream 0 is the default stream, which every device has; `create` is `Unsupported` where
/// they [cannot be created](Self::can_create).
pub trait Streams: Send + Sync {
    /// A new stream.
    fn create(&self) -> Result<StreamId>;
    /// The numbers of the least and of the greatest priority of streams; the greatest is the lower number. Both are 0 on
    /// a device without priorities.
    fn priorities(&self) -> Result<(i32, i32)> {
        Ok((0, 0))
    }
    /// A new stream of this kind. A device that has no such streams makes an ordinary one.
    fn create_with(&self, kind: StreamKind) -> Result<StreamId> {
        let _ = kind;
        self.create()
    }
    /// Ends a stream; work queued on it still completes.
    fn destroy(&self, stream: StreamId) -> Result<()>;
    /// Whether the stream exists. A device that cannot tell answers `true`.
    fn exists(&self, stream: StreamId) -> bool;
    /// Whether all work queued on the stream is done.
    fn query(&self, stream: StreamId) -> Result<bool>;
    /// Waits on the host for the stream.
    fn synchronize(&self, stream: StreamId) -> Result<()>;
    /// Makes work queued on `stream` from now on wait for what `event` has recorded. Waits on the host only if
    /// [`awaiting_waits`](Self::awaiting_waits) says so.
    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<()>;
    /// Runs `callback` when the stream reaches it.
    fn callback(&self, stream: StreamId, callback: StreamCallback) -> Result<()>;

    /// A new event, which counts as completed.
    fn event_create(&self) -> Result<EventId>;
    /// Ends an event; waits for it that are already queued stay in force.
    fn event_destroy(&self, event: EventId) -> Result<()>;
    /// Makes the event stand for everything queued on `stream` so far.
    fn event_record(&self, stream: StreamId, event: EventId) -> Result<()>;
    /// Whether everything that the event recorded is done (`true` if it was never recorded).
    fn event_query(&self, event: EventId) -> Result<bool>;
    /// Waits on the host for the event.
    fn event_synchronize(&self, event: EventId) -> Result<()>;

    /// Events that note the time.
    fn timing(&self) -> Option<&dyn Timing> {
        None
    }
    /// Whether streams can be created; without this there is only the default stream.
    fn can_create(&self) -> bool {
        true
    }

    /// Whether nothing is queued on any stream of the device, ended ones included: all work that was queued before this
    /// call is done, and what it wrote is visible. `false`: something may be queued, or only a call of a driver could
    /// tell. Never waits, takes no lock and calls nobody, because each free of a block without a stream asks.
    fn idle(&self) -> bool {
        false
    }
    /// Whether recording an event waits on the host for the stream, because the device has no events.
    fn recording_waits(&self) -> bool {
        false
    }
    /// Whether making a stream wait for an event waits on the host, because the device cannot do it.
    fn awaiting_waits(&self) -> bool {
        false
    }
}

/// Events that note the time when they are reached.
pub trait Timing: Send + Sync {
    /// A new event that notes the time; it may cost more than an ordinary one. All that can be done with an event can be
    /// done with it.
    fn create_event(&self) -> Result<EventId>;
    /// \[ms\] from the time at which the work that `start` recorded was done to the time at which that of `end` was;
    /// negative if `end` came first. `Busy` while one of them is not done, `InvalidArgument` for an event that notes no
    /// time or has recorded nothing yet.
    fn elapsed(&self, start: EventId, end: EventId) -> Result<f32>;
}

/// To whom a stream belongs, as seen by a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The device's own: it orders memory, and a wait for the device waits for its work.
    Ours,
    /// Belongs to another device, or to another context of this one. Its work may still use memory of this device.
    Theirs,
}

/// Streams that the program creates, captures and destroys with the driver's own functions. A device without this facet
/// knows all its streams, and captures none.
pub trait ExternalStreams: Send + Sync {
    /// To whom a stream belongs. `UnknownStream` if it does not exist or has ended, as far as that can be told; any
    /// other error means that the question could not be answered.
    fn owner(&self, stream: StreamId) -> Result<Whose>;
    /// Whether `stream` denotes the default stream, with which other streams are ordered.
    fn is_default(&self, stream: StreamId) -> bool;
    /// Whether `stream` denotes a different stream on each thread. Memory cannot be ordered by such a stream.
    fn is_per_thread(&self, stream: StreamId) -> bool;
    /// Tells the device that the stream is about to be destroyed by its creator: it must not be queried any more.
    fn forget(&self, stream: StreamId);
    /// From now on an announced capture may record the stream (`captured`), or no longer does. Until the call with
    /// `false`, the stream exists for certain. So the device can ask about it before a wait for the whole device, which
    /// a capture would forbid.
    fn watch(&self, stream: StreamId, captured: bool);
    /// Whether the program promises to announce the end of each stream by [`forget`](Self::forget), or to end none. At
    /// first it promises nothing.
    fn set_announced(&self, announced: bool);
    /// Whether the driver may be asked about the stream in a call of the program that does not name it: the stream
    /// cannot have ended without notice. A driver may crash on a stream that has ended.
    fn lasts(&self, stream: StreamId) -> bool;
    /// The same for a stream that is [`Whose::Theirs`].
    fn lasts_elsewhere(&self, stream: StreamId) -> bool;
    /// The order of memory has learnt that the stream was created here. From now on [`lasts`](Self::lasts) is true of
    /// it.
    fn note_created(&self, stream: StreamId);
    /// Makes the event stand for everything queued so far on a stream that is [`Whose::Theirs`], even if the stream has
    /// ended since. Without `named`, the current call of the program does not name the stream, and the driver is not
    /// asked about it: the event then stands for all work of the stream's context. `NotPermitted` while the stream is
    /// being captured.
    fn record_theirs(&self, stream: StreamId, event: EventId, named: bool) -> Result<()>;
    /// Makes the event stand for everything queued on the device so far, on all streams, known or not. A device that has no
    /// such event waits on the host instead if `may_wait`. `NotPermitted` if not, and while a known stream is being
    /// captured.
    fn record_all(&self, event: EventId, may_wait: bool) -> Result<()>;
    /// The id of the capture that records the stream's work into a graph, if any; ids are not reused. For stream 0 also
    /// the id of a capture that forbids work on stream 0, or `u64::MAX` if that id is not known. Disturbs no capture.
    fn capture_id(&self, stream: StreamId) -> Result<Option<u64>>;
    /// Whether a known capture forbids waiting for the device now. Disturbs no capture.
    fn any_captured(&self) -> Result<bool>;
}
