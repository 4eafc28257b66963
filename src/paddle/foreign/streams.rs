//! The facet of streams and events of a plugin's device, with fallbacks for callbacks that are null.

use super::callbacks;
use super::device::{ForeignDevice, call};
use super::handles::{Handles, Recorded, unknown_event};
use crate::base::error::Code;
use crate::base::error::Result;
use crate::base::loaded;
use crate::device::{Device, EventId, StreamCallback, StreamId, Streams};
use crate::fail;
use crate::paddle::abi::{C_Event, C_Status, C_Stream};
use crate::runtime::lock;
use std::ffi::c_void;
use std::sync::Arc;

impl Streams for ForeignDevice {
    /// A stream that nobody can wait for is of no use.
    fn can_create(&self) -> bool {
        let table = &self.plugin.table;
        let waits = table.synchronize_stream.is_some() || table.synchronize_device.is_some();
        table.create_stream.is_some() && waits
    }

    fn create(&self) -> Result<StreamId> {
        if !self.can_create() {
            fail!(Code::Unsupported, "devices of {:?} have no streams", self.plugin.name());
        }
        let mut out: C_Stream = std::ptr::null_mut();
        call!(self, create_stream(&mut out)).unwrap_or(Ok(()))?;
        let native = out as usize as u64;
        let mut handles = lock(&self.handles);
        // A call may still use an ended stream with that handle.
        let taken =
            |h: &Handles, n| h.streams.contains_key(&n) || h.ending.iter().any(|(name, _)| *name == n);
        let stream = handles.name(native, taken);
        handles.streams.insert(stream, Arc::new(native));
        Ok(stream)
    }

    fn destroy(&self, stream: StreamId) -> Result<()> {
        if let Some(native) = self.native_stream(stream)? {
            self.keep_end(native.handle())?;
        }
        {
            let mut handles = lock(&self.handles);
            let Some(native) = handles.streams.remove(&stream) else {
                fail!(Code::UnknownStream, "stream {stream:#x} is unknown or was destroyed");
            };
            handles.ending.push((stream, native));
        }
        self.destroy_ended()
    }

    fn exists(&self, stream: StreamId) -> bool {
        stream == 0 || lock(&self.handles).streams.contains_key(&stream)
    }

    fn query(&self, stream: StreamId) -> Result<bool> {
        let Some(native) = self.native_stream(stream)? else { return Ok(true) };
        if let Some(query_stream) = self.plugin.table.query_stream {
            let mut device = self.enter()?;
            // SAFETY: the plugin's contract; the stream is live.
            let call = || unsafe { query_stream(&mut device, native.handle()) };
            return Ok(self.plugin.run("query_stream", call)? == C_Status::SUCCESS);
        }
        self.wait_stream(native.handle())?;
        Ok(true)
    }

    fn synchronize(&self, stream: StreamId) -> Result<()> {
        match self.native_stream(stream)? {
            None => Device::synchronize(self),
            Some(native) => self.wait_stream(native.handle()),
        }
    }

    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<()> {
        let pending = self.pending(event)?;
        if let (Some(stream), Some(event)) = (self.native_stream(stream)?, pending)
            && let Some(result) = call!(self, stream_wait_event(stream.handle(), event as usize as C_Event))
        {
            return result;
        }
        self.event_synchronize(event)
    }

    fn callback(&self, stream: StreamId, callback: StreamCallback) -> Result<()> {
        let native = self.native_stream(stream)?;
        let (Some(native), Some(stream_add_callback)) = (native, self.plugin.table.stream_add_callback)
        else {
            Streams::synchronize(self, stream)?;
            callback(Ok(()));
            return Ok(());
        };
        let mut device = self.enter()?;
        loaded::keep(); // the plugin calls `run_callback` from a thread of its own
        let number = callbacks::add(callback);
        // SAFETY: the plugin's contract; the stream is live, and `run_callback` may be called with any number.
        let queued = self.plugin.run("stream_add_callback", || unsafe {
            stream_add_callback(&mut device, native.handle(), Some(callbacks::run), number as *mut c_void)
        });
        let queued = queued.and_then(|status| self.plugin.check("stream_add_callback", status));
        queued.inspect_err(|_| {
            // Whatever the plugin does with the number, the callback does not run after a failure.
            callbacks::drop_one(number);
        })
    }

    fn event_create(&self) -> Result<EventId> {
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

    fn event_destroy(&self, event: EventId) -> Result<()> {
        let Some((native, recorded)) = lock(&self.handles).events.remove(&event) else {
            return Err(unknown_event(event));
        };
        let Some(handle) = native else { return Ok(()) };
        let done = call!(self, destroy_event(handle as usize as C_Event)).unwrap_or(Ok(()));
        if done.is_err() {
            // An event that the plugin refused to destroy stays, as a stream does.
            lock(&self.handles).events.insert(event, (native, recorded));
        }
        done
    }

    fn event_record(&self, stream: StreamId, event: EventId) -> Result<()> {
        let (native, _) = self.event(event)?;
        let recorded = match (native, self.native_stream(stream)?) {
            (Some(event), Some(stream)) => {
                call!(self, record_event(stream.handle(), event as usize as C_Event)).unwrap_or(Ok(()))?;
                Recorded::Native
            }
            // Work on the default stream is done.
            (_, None) => Recorded::Done,
            (None, Some(stream)) => {
                self.wait_stream(stream.handle())?;
                Recorded::Done
            }
        };
        if let Some(entry) = lock(&self.handles).events.get_mut(&event) {
            entry.1 = recorded;
        }
        Ok(())
    }

    fn event_query(&self, event: EventId) -> Result<bool> {
        let Some(native) = self.pending(event)? else { return Ok(true) };
        if let Some(done) = self.done(native)? {
            return Ok(done);
        }
        self.event_synchronize(event)?;
        Ok(true)
    }

    fn event_synchronize(&self, event: EventId) -> Result<()> {
        self.pending(event)?.map_or(Ok(()), |native| self.wait_native(native))
    }

    fn recording_waits(&self) -> bool {
        self.plugin.table.create_event.is_none() || self.plugin.table.record_event.is_none()
    }

    fn awaiting_waits(&self) -> bool {
        self.recording_waits() || self.plugin.table.stream_wait_event.is_none()
    }
}
