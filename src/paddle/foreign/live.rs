//! What is done with the live streams and events of a plugin's device, and with streams that have ended while work of
//! theirs still runs.
//!
//! Each handle that a user holds is looked up first, so that one that was destroyed never reaches the plugin. The
//! default stream is ours: plugins differ in what they make of a null stream, so work on it is done before the call
//! returns.

use super::device::{ForeignDevice, call};
use super::handles::{End, Recorded, unknown_event};
use crate::base::error::{Code, Result};
use crate::device::{EventId, StreamId};
use crate::fail;
use crate::paddle::abi::{C_Event, C_Status, C_Stream};
use crate::runtime::{lock, may_block};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use std::time::Duration;

/// Between two looks at a stream or event that a plugin can only be asked about.
const POLL: Duration = Duration::from_micros(20);

/// Ends that are looked at, or else waited for, when one more is kept.
const ENDS: usize = 32;

/// A live stream of the plugin. It is not destroyed while this is there, whatever the user does.
pub(super) struct InUse<'a> {
    device: &'a ForeignDevice,
    native: Option<Arc<u64>>, // `None` only while it is dropped
}

impl InUse<'_> {
    pub(super) fn handle(&self) -> C_Stream {
        self.native.as_ref().map_or(0, |n| **n as usize) as C_Stream
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.native = None;
        let _ = self.device.destroy_ended(); // whoever has ended it was told that it ends
    }
}

impl ForeignDevice {
    fn in_use(&self, native: &Arc<u64>) -> InUse<'_> {
        InUse { device: self, native: Some(native.clone()) }
    }

    /// The plugin's stream; `None` is the default stream.
    pub(super) fn native_stream(&self, stream: StreamId) -> Result<Option<InUse<'_>>> {
        if stream == 0 {
            return Ok(None);
        }
        match lock(&self.handles).streams.get(&stream) {
            Some(native) => Ok(Some(self.in_use(native))),
            None => fail!(Code::UnknownStream, "stream {stream:#x} is unknown or was destroyed"),
        }
    }

    /// Destroys the streams that were ended and that no call uses. One that the plugin would not destroy goes on.
    pub(super) fn destroy_ended(&self) -> Result<()> {
        let mut first = Ok(());
        loop {
            let next = {
                let mut handles = lock(&self.handles);
                let unused = handles.ending.iter().position(|(_, n)| Arc::strong_count(n) == 1);
                unused.map(|i| handles.ending.swap_remove(i))
            };
            let Some((stream, native)) = next else { return first };
            let done = call!(self, destroy_stream(*native as usize as C_Stream)).unwrap_or(Ok(()));
            if done.is_err() {
                lock(&self.handles).streams.insert(stream, native);
            }
            first = first.and(done);
        }
    }

    /// Waits for a stream of the plugin.
    pub(super) fn wait_stream(&self, native: C_Stream) -> Result<()> {
        may_block()?;
        call!(self, synchronize_stream(native))
            .or_else(|| call!(self, synchronize_device()))
            // `Caps::STREAMS` is only set where one of them is there.
            .unwrap_or(Ok(()))
    }

    /// Waits for all work of a plugin that cannot do so itself: for each stream, and for those that have ended.
    pub(super) fn wait_all_streams(&self) -> Result<()> {
        let (streams, ends) = {
            let handles = lock(&self.handles);
            let streams: Vec<InUse<'_>> = handles.streams.values().map(|n| self.in_use(n)).collect();
            // Under one lock: a stream that ends leaves its event first, so it is in one of the two.
            (streams, handles.ends.clone())
        };
        let mut first = streams.iter().try_for_each(|s| self.wait_stream(s.handle()));
        for end in &ends {
            if first.is_err() {
                break;
            }
            first = self.wait_end(end);
        }
        drop(ends);
        self.bury_ends();
        first
    }

    /// A stream is about to be destroyed, and what is queued on it still runs. Where the plugin cannot wait for all of
    /// its work, an event behind that is kept, or else it is waited for now.
    pub(super) fn keep_end(&self, stream: C_Stream) -> Result<()> {
        if self.plugin.table.synchronize_device.is_some() {
            return Ok(());
        }
        match self.record_end(stream) {
            Some(event) => {
                let end = Arc::new(End { event, passed: AtomicBool::new(false) });
                lock(&self.handles).ends.push(end);
                self.look_at_ends();
                Ok(())
            }
            None => self.wait_stream(stream),
        }
    }

    /// An event behind what is queued on a stream; `None` where there can be none.
    fn record_end(&self, stream: C_Stream) -> Option<u64> {
        if !self.has_events() {
            return None;
        }
        let mut event: C_Event = std::ptr::null_mut();
        call!(self, create_event(&mut event))?.ok()?;
        let recorded = call!(self, record_event(stream, event));
        if !matches!(recorded, Some(Ok(()))) {
            let _ = call!(self, destroy_event(event));
            return None;
        }
        Some(event as usize as u64)
    }

    /// Lets go of ends that are passed, so that they do not become more and more; waits for some if need be.
    fn look_at_ends(&self) {
        let ends = lock(&self.handles).ends.clone();
        if ends.len() > ENDS && self.plugin.table.query_event.is_none() {
            for end in &ends[..ends.len() - ENDS] {
                let _ = self.wait_end(end); // one that cannot be waited for stays
            }
        }
        for end in ends.iter().take(ENDS) {
            if let Ok(Some(true)) = self.done(end.event) {
                end.passed.store(true, Release);
            }
        }
        drop(ends);
        self.bury_ends();
    }

    fn wait_end(&self, end: &End) -> Result<()> {
        if !end.passed.load(Acquire) {
            self.wait_native(end.event)?;
            end.passed.store(true, Release);
        }
        Ok(())
    }

    /// Destroys the events of ends that are passed and that nobody looks at.
    fn bury_ends(&self) {
        let mut gone = Vec::new();
        lock(&self.handles).ends.retain(|e| {
            let over = e.passed.load(Acquire) && Arc::strong_count(e) == 1;
            if over {
                gone.push(e.event);
            }
            !over
        });
        for event in gone {
            let _ = call!(self, destroy_event(event as usize as C_Event)); // nobody asks for it any more
        }
    }

    /// Whether the plugin has all that events need.
    pub(super) fn has_events(&self) -> bool {
        let t = &self.plugin.table;
        t.create_event.is_some()
            && t.record_event.is_some()
            && t.destroy_event.is_some()
            && (t.synchronize_event.is_some() || t.query_event.is_some())
    }

    pub(super) fn event(&self, event: EventId) -> Result<(Option<u64>, Recorded)> {
        lock(&self.handles).events.get(&event).copied().ok_or_else(|| unknown_event(event))
    }

    /// The plugin's event that has to be waited for, if any.
    pub(super) fn pending(&self, event: EventId) -> Result<Option<u64>> {
        Ok(match self.event(event)? {
            (native, Recorded::Native) => native,
            (_, Recorded::Done) => None,
        })
    }

    pub(super) fn done(&self, native: u64) -> Result<Option<bool>> {
        let Some(query_event) = self.plugin.table.query_event else { return Ok(None) };
        let mut device = self.enter()?;
        // SAFETY: the plugin's contract; the event is live.
        let call = || unsafe { query_event(&mut device, native as usize as C_Event) };
        Ok(Some(self.plugin.run("query_event", call)? == C_Status::SUCCESS))
    }

    pub(super) fn wait_native(&self, native: u64) -> Result<()> {
        may_block()?;
        if let Some(result) = call!(self, synchronize_event(native as usize as C_Event)) {
            return result;
        }
        while self.done(native)? == Some(false) {
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}
