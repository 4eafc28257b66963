//! The events of an open device, with every argument checked before the device sees it.

use crate::base::error::{Code, Error, Result};
use crate::device::{EventId, StreamId, Timing};
use crate::fail;
use crate::runtime::device::state::DeviceState;
use crate::runtime::entry::reentry::may_block;

/// The events of an open device. Get it with [`DeviceState::events`].
#[derive(Clone, Copy)]
pub struct DeviceEvents<'a>(pub(super) &'a DeviceState);

impl DeviceState {
    /// The events of the device.
    pub fn events(&self) -> DeviceEvents<'_> {
        DeviceEvents(self)
    }
}

impl DeviceEvents<'_> {
    /// Creates an event that counts as completed. The caller ends it with [`destroy`](Self::destroy).
    pub fn create(&self) -> Result<EventId> {
        let _pass = self.0.enter()?;
        self.0.device().streams().event_create()
    }

    /// Creates an event that also notes the time, for [`elapsed`](Self::elapsed). `Unsupported` if the device
    /// notes no times.
    pub fn create_timed(&self) -> Result<EventId> {
        let _pass = self.0.enter()?;
        self.timing()?.create_event()
    }

    /// \[ms\] from when the work that `start` recorded was done to when that of `end` was; negative the other way round.
    /// `Busy` while one of them is not done; `InvalidArgument` unless both were created to note the time and have been
    /// recorded.
    pub fn elapsed(&self, start: EventId, end: EventId) -> Result<f32> {
        let _pass = self.0.enter()?;
        self.check(start)?;
        self.check(end)?;
        let elapsed = self.timing()?.elapsed(start, end)?;
        self.0.has_waited();
        Ok(elapsed)
    }

    /// Ends an event. Waits on it that are already queued still take effect.
    pub fn destroy(&self, event: EventId) -> Result<()> {
        let _pass = self.0.enter()?;
        self.check(event)?;
        if self.0.memory().streams().keep_event(event)? {
            return Ok(());
        }
        self.0.device().streams().event_destroy(event)
    }

    /// Makes the event stand for everything queued on `stream` so far. `Busy` while a block still waits for what the
    /// event recorded before (`Memory::record_end`).
    pub fn record(&self, stream: StreamId, event: EventId) -> Result<()> {
        let _pass = self.0.enter()?;
        self.0.streams().check(stream)?;
        self.check(event)?;
        if self.0.memory().streams().holds_event(event)? {
            fail!(Code::Busy, "a block still waits for what event {event:#x} has recorded");
        }
        if self.0.device().streams().recording_waits() {
            may_block()?;
        }
        self.0.device().streams().event_record(stream, event)
    }

    /// `true` when the work that the event recorded is done, or if it has never recorded any.
    pub fn query(&self, event: EventId) -> Result<bool> {
        let _pass = self.0.enter()?;
        self.check(event)?;
        let done = self.0.device().streams().event_query(event)?;
        if done {
            self.0.has_waited();
        }
        Ok(done)
    }

    /// Waits on the host for the event.
    pub fn synchronize(&self, event: EventId) -> Result<()> {
        let _pass = self.0.enter()?;
        may_block()?;
        self.check(event)?;
        self.0.device().streams().event_synchronize(event)?;
        self.0.has_waited();
        Ok(())
    }

    fn timing(&self) -> Result<&dyn Timing> {
        let none = || Error::new(Code::Unsupported, "events of this device note no time");
        self.0.device().streams().timing().ok_or_else(none)
    }

    fn check(&self, event: EventId) -> Result<()> {
        if event == 0 {
            return Err(Error::new(Code::InvalidArgument, "the event is NULL"));
        }
        self.0.memory().streams().check_event(event)
    }

    /// Fails unless a stream may wait for `event`: an event of any device of the type that the caller has not
    /// destroyed.
    pub(super) fn check_awaited(&self, event: EventId) -> Result<()> {
        self.check(event)?;
        self.0.streams().siblings().try_for_each(|d| d.memory().streams().check_event(event))
    }

    /// Whether a block of any device of the type still waits for what the event has recorded
    /// (`Memory::record_end`).
    pub fn is_held(&self, event: EventId) -> Result<bool> {
        if self.0.memory().streams().holds_event(event)? {
            return Ok(true);
        }
        // A device that has ended meanwhile holds nothing.
        Ok(self.0.streams().siblings().any(|d| d.memory().streams().holds_event(event).unwrap_or(false)))
    }
}
