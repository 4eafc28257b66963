//! The streams and events of an open device, with every argument checked before the device sees it.

use crate::base::error::{Code, Error, Result};
use crate::base::room::while_kept;
use crate::device::{EventId, StreamCallback, StreamId, StreamKind, Whose};
use crate::fail;
use crate::runtime::device::state::DeviceState;
use crate::runtime::device::table;
use crate::runtime::entry::reentry::{self, may_block};
use crate::runtime::oom::explain;
use std::sync::Arc;

/// The streams of an open device, with every argument checked before the device sees it. Get it with [`DeviceState::streams`].
#[derive(Clone, Copy)]
pub struct DeviceStreams<'a>(pub(super) &'a DeviceState);

impl DeviceState {
    /// The streams of the device.
    pub fn streams(&self) -> DeviceStreams<'_> {
        DeviceStreams(self)
    }
}

impl DeviceStreams<'_> {
    /// Whether `stream` is the default stream or a live one of this device, as far as the device can tell.
    pub(crate) fn contains(&self, stream: StreamId) -> bool {
        self.check(stream).is_ok()
    }

    /// Fails unless `stream` is the default stream or a live one of this device.
    pub(crate) fn check(&self, stream: StreamId) -> Result<()> {
        if stream == 0 {
            return Ok(());
        }
        let backing = self.0.memory().backing();
        match self.0.device().stream_owner(stream) {
            Ok(Whose::Ours) => Ok(()),
            Ok(Whose::Theirs) => {
                fail!(
                    Code::UnknownStream,
                    "stream {stream:#x} is of another device or context than {}",
                    backing.name()
                )
            }
            Err(e) if e.code() == Code::UnknownStream => Err(backing.no_stream(stream)),
            Err(e) => Err(e),
        }
    }

    /// Tells the other devices of the type that the stream ends, so that they stop querying it for memory it has used.
    fn tell_of_end(&self, stream: StreamId) {
        self.siblings().for_each(|d| d.memory().order().ending_elsewhere(stream));
    }

    /// The other devices of the type that are open.
    pub(super) fn siblings(&self) -> impl Iterator<Item = &'static Arc<DeviceState>> {
        table::open_devices().filter(|d| d.id() != self.0.id() && d.type_name() == self.0.type_name())
    }

    /// Creates a stream. The caller ends it with [`destroy`](Self::destroy).
    pub fn create(&self) -> Result<StreamId> {
        let _pass = self.0.enter()?;
        explain::prepare(); // for a thread more that may fail for the first time
        let stream = while_kept(|| self.0.device().streams().create())?;
        self.0.memory().streams().created(stream);
        Ok(stream)
    }

    /// The same for a stream of that kind. A device that has no such streams makes an ordinary one.
    pub fn create_with(&self, kind: StreamKind) -> Result<StreamId> {
        let _pass = self.0.enter()?;
        let stream = while_kept(|| self.0.device().streams().create_with(kind))?;
        self.0.memory().streams().created(stream);
        Ok(stream)
    }

    /// The numbers of the least and the greatest priority of the device's streams; the greatest is the lower number.
    /// Both are 0 on a device without priorities.
    pub fn priorities(&self) -> Result<(i32, i32)> {
        let _pass = self.0.enter()?;
        self.0.device().streams().priorities()
    }

    /// Ends a stream. Queued work still completes, and blocks of the stream stay valid. The default
    /// stream cannot be ended.
    pub fn destroy(&self, stream: StreamId) -> Result<()> {
        let _pass = self.0.enter()?;
        may_block()?;
        if stream == 0 {
            return Err(Error::new(Code::InvalidArgument, "the default stream cannot be destroyed"));
        }
        self.check(stream)?;
        self.0.memory().streams().check_end(stream)?;
        let ending = self.0.memory().streams().ending(stream)?;
        match while_kept(|| self.0.device().streams().destroy(stream)) {
            Ok(()) => {
                self.0.memory().streams().ended(ending);
                Ok(())
            }
            Err(e) => {
                self.0.memory().streams().not_ended(ending);
                Err(e)
            }
        }
    }

    /// Makes the memory forget a stream that was not created here, so that it does not query that stream any more. Call
    /// it before the stream's creator destroys it, if it was ever passed to this device. Its queued work still runs.
    /// May wait for the stream on the host, as [`destroy`](Self::destroy) may; `Busy` while it is
    /// captured.
    pub fn forget(&self, stream: StreamId) -> Result<()> {
        let _pass = self.0.enter()?;
        may_block()?;
        match self.check(stream) {
            // Called too late: the driver does not know the stream any more, but the memory may.
            Err(e)
                if self.0.device().stream_owner(stream).is_err()
                    && self.0.device().streams().exists(stream) =>
            {
                drop(e)
            }
            other => other?,
        }
        // The default stream never ends. A thread's own stream is not ended by other threads, and its uses are recorded
        // as uses of the default stream.
        if !self.0.device().is_default(stream) && !self.0.device().is_per_thread(stream) {
            self.tell_of_end(stream);
            self.0.memory().streams().check_end(stream)?;
            // One of another context may have had the handle, and ended: its handle is not given to the driver later.
            self.0.memory().order().ending_elsewhere(stream);
            let ending = self.0.memory().streams().ending(stream)?;
            if let Some(external) = self.0.device().external_streams() {
                external.forget(stream);
            }
            self.0.memory().streams().ended(ending);
        }
        Ok(())
    }

    /// `true` when everything queued on the stream has finished.
    pub fn query(&self, stream: StreamId) -> Result<bool> {
        let _pass = self.0.enter()?;
        self.check(stream)?;
        let done = self.0.device().streams().query(stream)?;
        if done {
            self.0.has_waited();
        }
        Ok(done)
    }

    /// Waits on the host for the stream.
    pub fn synchronize(&self, stream: StreamId) -> Result<()> {
        let _pass = self.0.enter()?;
        may_block()?;
        self.check(stream)?;
        self.0.memory().free_deferred();
        self.0.device().streams().synchronize(stream)?;
        self.0.has_waited();
        Ok(())
    }

    /// Makes work queued on `stream` from now on wait for what `event` has recorded. Does not wait on the host.
    pub fn wait_event(&self, stream: StreamId, event: EventId) -> Result<()> {
        let _pass = self.0.enter()?;
        self.check(stream)?;
        self.0.events().check_awaited(event)?;
        if self.0.device().streams().awaiting_waits() {
            may_block()?;
        }
        self.0.device().streams().wait_event(stream, event)
    }

    /// Runs `callback` on a thread of the device once the work queued so far is done. The callback must not make calls
    /// that wait: they fail with `NotPermitted`. A panic in it is swallowed.
    pub fn callback(&self, stream: StreamId, callback: StreamCallback) -> Result<()> {
        let _pass = self.0.enter()?;
        self.check(stream)?;
        self.0
            .device()
            .streams()
            .callback(stream, Box::new(move |status| reentry::in_stream_callback(move || callback(status))))
    }
}
