//! Streams and events of a plugin's device, with what stands in for callbacks that are null.
//!
//! Each handle that a user holds is looked up first, so that one that was destroyed never reaches the
//! plugin. Mostly the handle is the plugin's own; a plugin may answer null for all of its streams or
//! events (it runs all work at once), and then each gets a number of ours. The default stream is
//! ours too: plugins differ in what they make of a null stream, so work on it is done before the
//! call returns.

use super::device::{ForeignDevice, call};
use crate::base::error::{Code, Error, Result};
use crate::device::{Caps, Device, EventId, StreamCallback, StreamId};
use crate::fail;
use crate::paddle::abi::{C_Device, C_Event, C_Status, C_Stream};
use crate::runtime::lock;
use std::collections::HashMap;
use std::ffi::c_void;
use std::time::Duration;

/// Where the numbers of handles that are ours start; no address of a process has the top bit set.
const OURS: u64 = 1 << 63;
/// Between two looks at a stream or event that a plugin can only be asked about.
const POLL: Duration = Duration::from_micros(20);

/// What an event stands for.
#[derive(Clone, Copy)]
pub(super) enum Recorded {
    /// Nothing, or work that was done when it was recorded.
    Done,
    /// What the plugin's event has.
    Native,
}

/// The live streams and events of a device.
#[derive(Default)]
pub(super) struct Handles {
    /// What the user holds -> what the plugin gets.
    pub(super) streams: HashMap<u64, u64>,
    /// What the user holds -> what the plugin gets (`None` where the plugin has no events).
    events: HashMap<u64, (Option<u64>, Recorded)>,
    made: u64,
}

impl Handles {
    /// The plugin's handle where it is of use as a name, else a number of ours.
    fn name(&mut self, native: u64, taken: impl Fn(&Handles, u64) -> bool) -> u64 {
        if native != 0 && native < OURS && !taken(self, native) {
            return native;
        }
        self.made += 1;
        OURS + self.made
    }
}

impl ForeignDevice {
    /// The plugin's handle; `None` is the default stream.
    pub(super) fn native_stream(&self, stream: StreamId) -> Result<Option<u64>> {
        if stream == 0 {
            return Ok(None);
        }
        match lock(&self.handles).streams.get(&stream) {
            Some(&native) => Ok(Some(native)),
            None => fail!(Code::UnknownStream, "stream {stream:#x} is unknown or was destroyed"),
        }
    }

    pub(super) fn make_stream(&self) -> Result<StreamId> {
        if !self.caps().contains(Caps::STREAMS) {
            fail!(Code::Unsupported, "devices of {:?} have no streams", self.plugin.name());
        }
        let mut out: C_Stream = std::ptr::null_mut();
        call!(self, create_stream(&mut out)).unwrap_or(Ok(()))?;
        let native = out as usize as u64;
        let mut handles = lock(&self.handles);
        let stream = handles.name(native, |h, n| h.streams.contains_key(&n));
        handles.streams.insert(stream, native);
        Ok(stream)
    }

    pub(super) fn end_stream(&self, stream: StreamId) -> Result<()> {
        let Some(native) = lock(&self.handles).streams.remove(&stream) else {
            fail!(Code::UnknownStream, "stream {stream:#x} is unknown or was destroyed");
        };
        call!(self, destroy_stream(native as usize as C_Stream)).unwrap_or(Ok(()))
    }

    /// Waits for a stream of the plugin.
    pub(super) fn wait_stream(&self, native: u64) -> Result<()> {
        call!(self, synchronize_stream(native as usize as C_Stream))
            .or_else(|| call!(self, synchronize_device()))
            // `Caps::STREAMS` is only set where one of them is there.
            .unwrap_or(Ok(()))
    }

    pub(super) fn query_stream(&self, stream: StreamId) -> Result<bool> {
        let Some(native) = self.native_stream(stream)? else { return Ok(true) };
        if let Some(query_stream) = self.plugin.table.query_stream {
            let mut device = self.enter()?;
            // SAFETY: the plugin's contract; the stream is live.
            let call = || unsafe { query_stream(&mut device, native as usize as C_Stream) };
            return Ok(self.plugin.run("query_stream", call)? == C_Status::SUCCESS);
        }
        self.wait_stream(native)?;
        Ok(true)
    }

    pub(super) fn queue_callback(&self, stream: StreamId, callback: StreamCallback) -> Result<()> {
        let native = self.native_stream(stream)?;
        let (Some(native), Some(stream_add_callback)) = (native, self.plugin.table.stream_add_callback)
        else {
            self.stream_synchronize(stream)?;
            callback(Ok(()));
            return Ok(());
        };
        let mut device = self.enter()?;
        let user_data = Box::into_raw(Box::new(callback)).cast::<c_void>();
        // SAFETY: the plugin's contract: `run_callback` is called once with `user_data`, unless the
        // status is a failure. A plugin that throws may have kept it: it stays.
        let status = self.plugin.run("stream_add_callback", || unsafe {
            stream_add_callback(&mut device, native as usize as C_Stream, Some(run_callback), user_data)
        })?;
        if status != C_Status::SUCCESS {
            // SAFETY: from `into_raw` above; the plugin does not call back after a failure.
            drop(unsafe { Box::from_raw(user_data.cast::<StreamCallback>()) });
        }
        self.plugin.check("stream_add_callback", status)
    }

    /// Whether the plugin has all that events need.
    fn has_events(&self) -> bool {
        let t = &self.plugin.table;
        t.create_event.is_some()
            && t.record_event.is_some()
            && t.destroy_event.is_some()
            && (t.synchronize_event.is_some() || t.query_event.is_some())
    }

    pub(super) fn make_event(&self) -> Result<EventId> {
        let mut native = None;
        if self.has_events() {
            let mut out: C_Event = std::ptr::null_mut();
            call!(self, create_event(&mut out)).unwrap_or(Ok(()))?;
            native = Some(out as usize as u64);
        }
        let mut handles = lock(&self.handles);
        let event = handles.name(native.unwrap_or(0), |h, n| h.events.contains_key(&n));
        handles.events.insert(event, (native, Recorded::Done));
        Ok(event)
    }

    fn event(&self, event: EventId) -> Result<(Option<u64>, Recorded)> {
        lock(&self.handles).events.get(&event).copied().ok_or_else(|| unknown_event(event))
    }

    pub(super) fn end_event(&self, event: EventId) -> Result<()> {
        let Some((native, _)) = lock(&self.handles).events.remove(&event) else {
            return Err(unknown_event(event));
        };
        match native {
            Some(native) => call!(self, destroy_event(native as usize as C_Event)).unwrap_or(Ok(())),
            None => Ok(()),
        }
    }

    pub(super) fn record(&self, stream: StreamId, event: EventId) -> Result<()> {
        let (native, _) = self.event(event)?;
        let recorded = match (native, self.native_stream(stream)?) {
            (Some(event), Some(stream)) => {
                call!(self, record_event(stream as usize as C_Stream, event as usize as C_Event))
                    .unwrap_or(Ok(()))?;
                Recorded::Native
            }
            // Work on the default stream is done.
            (_, None) => Recorded::Done,
            (None, Some(stream)) => {
                self.wait_stream(stream)?;
                Recorded::Done
            }
        };
        if let Some(entry) = lock(&self.handles).events.get_mut(&event) {
            entry.1 = recorded;
        }
        Ok(())
    }

    /// The plugin's event that has to be waited for, if any.
    fn pending(&self, event: EventId) -> Result<Option<u64>> {
        Ok(match self.event(event)? {
            (native, Recorded::Native) => native,
            (_, Recorded::Done) => None,
        })
    }

    fn done(&self, native: u64) -> Result<Option<bool>> {
        let Some(query_event) = self.plugin.table.query_event else { return Ok(None) };
        let mut device = self.enter()?;
        // SAFETY: the plugin's contract; the event is live.
        let call = || unsafe { query_event(&mut device, native as usize as C_Event) };
        Ok(Some(self.plugin.run("query_event", call)? == C_Status::SUCCESS))
    }

    pub(super) fn query_event(&self, event: EventId) -> Result<bool> {
        let Some(native) = self.pending(event)? else { return Ok(true) };
        if let Some(done) = self.done(native)? {
            return Ok(done);
        }
        self.wait_event(event)?;
        Ok(true)
    }

    pub(super) fn wait_event(&self, event: EventId) -> Result<()> {
        let Some(native) = self.pending(event)? else { return Ok(()) };
        if let Some(result) = call!(self, synchronize_event(native as usize as C_Event)) {
            return result;
        }
        while self.done(native)? == Some(false) {
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    pub(super) fn wait_event_on(&self, stream: StreamId, event: EventId) -> Result<()> {
        let pending = self.pending(event)?;
        if let (Some(stream), Some(event)) = (self.native_stream(stream)?, pending)
            && let Some(result) =
                call!(self, stream_wait_event(stream as usize as C_Stream, event as usize as C_Event))
        {
            return result;
        }
        self.wait_event(event)
    }
}

fn unknown_event(event: EventId) -> Error {
    Error::new(Code::UnknownEvent, format!("event {event:#x} is unknown or was destroyed"))
}

/// What the plugin calls when the stream gets there.
unsafe extern "C-unwind" fn run_callback(
    _device: C_Device,
    _stream: C_Stream,
    user_data: *mut c_void,
    status: *mut C_Status,
) {
    if user_data.is_null() {
        return;
    }
    // SAFETY: from `queue_callback`; a plugin calls back once.
    let callback = unsafe { Box::from_raw(user_data.cast::<StreamCallback>()) };
    // SAFETY: null, or a status of the plugin's that lives for this call.
    let status = unsafe { status.as_ref() }.copied().unwrap_or(C_Status::SUCCESS);
    let result = match status {
        C_Status::SUCCESS => Ok(()),
        other => Err(Error::new(Code::Device, format!("work on the stream ended with {}", other.name()))),
    };
    // A panic must not reach the plugin's thread.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || callback(result)));
}
