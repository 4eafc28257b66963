//! The streams and events of an open device, with every argument checked before the device sees it.

use crate::base::error::{Code, Error, Result};
use crate::device::{EventId, StreamCallback, StreamId, StreamKind, Whose};
use crate::fail;
use crate::runtime::device::state::DeviceState;
use crate::runtime::device::table;
use crate::runtime::entry::reentry::{self, may_block};
use std::sync::Arc;

impl DeviceState {
    /// Whether `stream` is the default stream or a live one of this device, as far as the device can tell.
    pub(crate) fn has_stream(&self, stream: StreamId) -> bool {
        self.check_stream(stream).is_ok()
    }

    /// Fails unless `stream` is the default stream or a live one of this device.
    pub(crate) fn check_stream(&self, stream: StreamId) -> Result<()> {
        if stream == 0 {
            return Ok(());
        }
        let (name, ordinal) = (self.type_name(), self.ordinal());
        match self.device().stream_owner(stream) {
            Ok(Whose::Ours) => Ok(()),
            Ok(Whose::Theirs) => {
                fail!(
                    Code::UnknownStream,
                    "stream {stream:#x} is of another device or context than {name}:{ordinal}"
                )
            }
            Err(e) if e.code() == Code::UnknownStream => {
                fail!(
                    Code::UnknownStream,
                    "stream {stream:#x} is not a stream of {name}:{ordinal}, or was destroyed"
                )
            }
            Err(e) => Err(e),
        }
    }

    /// Tells the other devices of the type that the stream ends, so that they stop querying it for memory it has used.
    fn tell_of_end(&self, stream: StreamId) {
        let others =
            table::open_devices().filter(|d| d.id() != self.id() && d.type_name() == self.type_name());
        others.for_each(|d| d.memory().order().ending_elsewhere(stream));
    }

    fn check_event(&self, event: EventId) -> Result<()> {
        if event == 0 {
            return Err(Error::new(Code::InvalidArgument, "the event is NULL"));
        }
        self.memory().check_event(event)
    }

    /// Fails unless a stream may wait for `event`: an event of any device of the type that the caller has not
    /// destroyed.
    fn check_awaited(&self, event: EventId) -> Result<()> {
        self.check_event(event)?;
        self.siblings().try_for_each(|d| d.memory().check_event(event))
    }

    /// Whether a block of any device of the type still waits for what the event has recorded
    /// (`Memory::record_end`).
    pub fn event_is_held(&self, event: EventId) -> Result<bool> {
        if self.memory().holds_event(event)? {
            return Ok(true);
        }
        // A device that has ended meanwhile holds nothing.
        Ok(self.siblings().any(|d| d.memory().holds_event(event).unwrap_or(false)))
    }

    /// The other devices of the type that are open.
    fn siblings(&self) -> impl Iterator<Item = &'static Arc<DeviceState>> {
        table::open_devices().filter(|d| d.id() != self.id() && d.type_name() == self.type_name())
    }

    /// Creates a stream. The caller ends it with [`stream_destroy`](Self::stream_destroy).
    pub fn stream_create(&self) -> Result<StreamId> {
        let _pass = self.enter()?;
        let stream = self.device().streams().create()?;
        self.memory().stream_created(stream);
        Ok(stream)
    }

    /// The same for a stream of that kind. A device that has no such streams makes an ordinary one.
    pub fn stream_create_with(&self, kind: StreamKind) -> Result<StreamId> {
        let _pass = self.enter()?;
        let stream = self.device().streams().create_with(kind)?;
        self.memory().stream_created(stream);
        Ok(stream)
    }

    /// The numbers of the least and the greatest priority of the device's streams; the greatest is the lower number.
    /// Both are 0 on a device without priorities.
    pub fn stream_priorities(&self) -> Result<(i32, i32)> {
        let _pass = self.enter()?;
        self.device().streams().priorities()
    }

    /// Ends a stream. Queued work still completes, and blocks of the stream stay valid. The default
    /// stream cannot be ended.
    pub fn stream_destroy(&self, stream: StreamId) -> Result<()> {
        let _pass = self.enter()?;
        may_block()?;
        if stream == 0 {
            return Err(Error::new(Code::InvalidArgument, "the default stream cannot be destroyed"));
        }
        self.check_stream(stream)?;
        self.memory().check_stream_end(stream)?;
        let ending = self.memory().stream_ending(stream)?;
        match self.device().streams().destroy(stream) {
            Ok(()) => {
                self.memory().stream_ended(ending);
                Ok(())
            }
            Err(e) => {
                self.memory().stream_not_ended(ending);
                Err(e)
            }
        }
    }

    /// Makes the memory forget a stream that was not created here, so that it does not query that stream any more. Call
    /// it before the stream's creator destroys it, if it was ever passed to this device. Its queued work still runs.
    /// May wait for the stream on the host, as [`stream_destroy`](Self::stream_destroy) may; `Busy` while it is
    /// captured.
    pub fn stream_forget(&self, stream: StreamId) -> Result<()> {
        let _pass = self.enter()?;
        may_block()?;
        match self.check_stream(stream) {
            // Called too late: the driver does not know the stream any more, but the memory may.
            Err(e)
                if self.device().stream_owner(stream).is_err() && self.device().streams().exists(stream) =>
            {
                drop(e)
            }
            other => other?,
        }
        // The default stream never ends. A thread's own stream is not ended by other threads, and its uses are recorded
        // as uses of the default stream.
        if !self.device().is_default(stream) && !self.device().is_per_thread(stream) {
            self.tell_of_end(stream);
            self.memory().check_stream_end(stream)?;
            let ending = self.memory().stream_ending(stream)?;
            if let Some(external) = self.device().external_streams() {
                external.forget(stream);
            }
            self.memory().stream_ended(ending);
        }
        Ok(())
    }

    /// `true` when everything queued on the stream has finished.
    pub fn stream_query(&self, stream: StreamId) -> Result<bool> {
        let _pass = self.enter()?;
        self.check_stream(stream)?;
        let done = self.device().streams().query(stream)?;
        if done {
            self.has_waited();
        }
        Ok(done)
    }

    /// Waits on the host for the stream.
    pub fn stream_synchronize(&self, stream: StreamId) -> Result<()> {
        let _pass = self.enter()?;
        may_block()?;
        self.check_stream(stream)?;
        self.memory().free_deferred();
        self.device().streams().synchronize(stream)?;
        self.has_waited();
        Ok(())
    }

    /// Makes work queued on `stream` from now on wait for what `event` has recorded. Does not wait on the host.
    pub fn stream_wait_event(&self, stream: StreamId, event: EventId) -> Result<()> {
        let _pass = self.enter()?;
        self.check_stream(stream)?;
        self.check_awaited(event)?;
        if self.device().streams().awaiting_waits() {
            may_block()?;
        }
        self.device().streams().wait_event(stream, event)
    }

    /// Runs `callback` on a thread of the device once the work queued so far is done. The callback must not make calls
    /// that wait: they fail with `NotPermitted`. A panic in it is swallowed.
    pub fn stream_callback(&self, stream: StreamId, callback: StreamCallback) -> Result<()> {
        let _pass = self.enter()?;
        self.check_stream(stream)?;
        self.device()
            .streams()
            .callback(stream, Box::new(move |status| reentry::in_stream_callback(move || callback(status))))
    }

    /// Creates an event that counts as completed. The caller ends it with [`event_destroy`](Self::event_destroy).
    pub fn event_create(&self) -> Result<EventId> {
        let _pass = self.enter()?;
        self.device().streams().event_create()
    }

    /// Creates an event that also notes the time, for [`event_elapsed`](Self::event_elapsed). `Unsupported` if the device
    /// notes no times.
    pub fn event_create_timed(&self) -> Result<EventId> {
        let _pass = self.enter()?;
        self.device().streams().event_create_timed()
    }

    /// \[ms\] from when the work that `start` recorded was done to when that of `end` was; negative the other way round.
    /// `Busy` while one of them is not done; `InvalidArgument` unless both were created to note the time and have been
    /// recorded.
    pub fn event_elapsed(&self, start: EventId, end: EventId) -> Result<f32> {
        let _pass = self.enter()?;
        self.check_event(start)?;
        self.check_event(end)?;
        let elapsed = self.device().streams().event_elapsed(start, end)?;
        self.has_waited();
        Ok(elapsed)
    }

    /// Ends an event. Waits on it that are already queued still take effect.
    pub fn event_destroy(&self, event: EventId) -> Result<()> {
        let _pass = self.enter()?;
        self.check_event(event)?;
        if self.memory().keep_event(event)? {
            return Ok(());
        }
        self.device().streams().event_destroy(event)
    }

    /// Makes the event stand for everything queued on `stream` so far. `Busy` while a block still waits for what the
    /// event recorded before (`Memory::record_end`).
    pub fn event_record(&self, stream: StreamId, event: EventId) -> Result<()> {
        let _pass = self.enter()?;
        self.check_stream(stream)?;
        self.check_event(event)?;
        if self.memory().holds_event(event)? {
            fail!(Code::Busy, "a block still waits for what event {event:#x} has recorded");
        }
        if self.device().streams().recording_waits() {
            may_block()?;
        }
        self.device().streams().event_record(stream, event)
    }

    /// `true` when the work that the event recorded is done, or if it has never recorded any.
    pub fn event_query(&self, event: EventId) -> Result<bool> {
        let _pass = self.enter()?;
        self.check_event(event)?;
        let done = self.device().streams().event_query(event)?;
        if done {
            self.has_waited();
        }
        Ok(done)
    }

    /// Waits on the host for the event.
    pub fn event_synchronize(&self, event: EventId) -> Result<()> {
        let _pass = self.enter()?;
        may_block()?;
        self.check_event(event)?;
        self.device().streams().event_synchronize(event)?;
        self.has_waited();
        Ok(())
    }
}
