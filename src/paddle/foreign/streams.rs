//! Streams and events of a plugin's device, with what stands in for callbacks that are null.
//!
//! Each handle that a user holds is looked up first, so that one that was destroyed never reaches the
//! plugin. Mostly the handle is the plugin's own; a plugin may answer null for all of its streams or
//! events (it runs all work at once), and then each gets a number of ours. The default stream is
//! ours too: plugins differ in what they make of a null stream, so work on it is done before the
//! call returns.

use super::device::{ForeignDevice, call};
use crate::base::error::{Code, Error, Result};
use crate::base::loaded;
use crate::base::sync::system::Mutex;
use crate::device::{Caps, Device, EventId, StreamCallback, StreamId};
use crate::fail;
use crate::paddle::abi::{C_Device, C_Event, C_Status, C_Stream};
use crate::runtime::{lock, may_block};
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
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
    streams: HashMap<u64, Arc<u64>>,
    /// Streams that the user has ended, until no call uses them any more: by what the user held.
    ending: Vec<(u64, Arc<u64>)>,
    /// Where streams have ended of a plugin that cannot wait for all of its work.
    ends: Vec<Arc<End>>,
    /// What the user holds -> what the plugin gets (`None` where the plugin has no events).
    events: HashMap<u64, (Option<u64>, Recorded)>,
    made: u64,
}

/// An event behind the last work of a stream that has ended.
struct End {
    event: u64,
    passed: AtomicBool,
}

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

    pub(super) fn has_stream(&self, stream: StreamId) -> bool {
        lock(&self.handles).streams.contains_key(&stream)
    }

    pub(super) fn make_stream(&self) -> Result<StreamId> {
        if !self.caps().contains(Caps::STREAMS) {
            fail!(Code::Unsupported, "devices of {:?} have no streams", self.plugin.name());
        }
        let mut out: C_Stream = std::ptr::null_mut();
        call!(self, create_stream(&mut out)).unwrap_or(Ok(()))?;
        let native = out as usize as u64;
        let mut handles = lock(&self.handles);
        // A call may still use one of that name.
        let taken =
            |h: &Handles, n| h.streams.contains_key(&n) || h.ending.iter().any(|(name, _)| *name == n);
        let stream = handles.name(native, taken);
        handles.streams.insert(stream, Arc::new(native));
        Ok(stream)
    }

    pub(super) fn end_stream(&self, stream: StreamId) -> Result<()> {
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

    /// Destroys the streams that were ended and that no call uses. One that the plugin would not destroy goes on.
    fn destroy_ended(&self) -> Result<()> {
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
    fn keep_end(&self, stream: C_Stream) -> Result<()> {
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
                end.passed.store(true, Relaxed);
            }
        }
        drop(ends);
        self.bury_ends();
    }

    fn wait_end(&self, end: &End) -> Result<()> {
        if !end.passed.load(Relaxed) {
            self.wait_native(end.event)?;
            end.passed.store(true, Relaxed);
        }
        Ok(())
    }

    /// Destroys the events of ends that are passed and that nobody looks at.
    fn bury_ends(&self) {
        let mut gone = Vec::new();
        lock(&self.handles).ends.retain(|e| {
            let over = e.passed.load(Relaxed) && Arc::strong_count(e) == 1;
            if over {
                gone.push(e.event);
            }
            !over
        });
        for event in gone {
            let _ = call!(self, destroy_event(event as usize as C_Event)); // nobody asks for it any more
        }
    }

    pub(super) fn query_stream(&self, stream: StreamId) -> Result<bool> {
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

    pub(super) fn queue_callback(&self, stream: StreamId, callback: StreamCallback) -> Result<()> {
        let native = self.native_stream(stream)?;
        let (Some(native), Some(stream_add_callback)) = (native, self.plugin.table.stream_add_callback)
        else {
            self.stream_synchronize(stream)?;
            callback(Ok(()));
            return Ok(());
        };
        let mut device = self.enter()?;
        loaded::keep(); // the plugin calls `run_callback` from a thread of its own
        let number = lock(&CALLBACKS).add(callback);
        // SAFETY: the plugin's contract; the stream is live, and `run_callback` may be called with any number.
        let queued = self.plugin.run("stream_add_callback", || unsafe {
            stream_add_callback(&mut device, native.handle(), Some(run_callback), number as *mut c_void)
        });
        let queued = queued.and_then(|status| self.plugin.check("stream_add_callback", status));
        queued.inspect_err(|_| {
            // Whatever the plugin does with the number, it is not called after a failure.
            let refused = lock(&CALLBACKS).waiting.remove(&number);
            drop(refused); // not under the lock: the caller's own code may run in it
        })
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
        let Some((native, recorded)) = lock(&self.handles).events.remove(&event) else {
            return Err(unknown_event(event));
        };
        let Some(handle) = native else { return Ok(()) };
        let done = call!(self, destroy_event(handle as usize as C_Event)).unwrap_or(Ok(()));
        if done.is_err() {
            // One that the plugin would not destroy goes on, as a stream does.
            lock(&self.handles).events.insert(event, (native, recorded));
        }
        done
    }

    pub(super) fn record(&self, stream: StreamId, event: EventId) -> Result<()> {
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
        self.pending(event)?.map_or(Ok(()), |native| self.wait_native(native))
    }

    fn wait_native(&self, native: u64) -> Result<()> {
        may_block()?;
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
            && let Some(result) = call!(self, stream_wait_event(stream.handle(), event as usize as C_Event))
        {
            return result;
        }
        self.wait_event(event)
    }
}

fn unknown_event(event: EventId) -> Error {
    Error::new(Code::UnknownEvent, format!("event {event:#x} is unknown or was destroyed"))
}

/// Callbacks that plugins have not called yet.
#[derive(Default)]
struct Callbacks {
    last: usize,
    waiting: BTreeMap<usize, StreamCallback>,
}

impl Callbacks {
    fn add(&mut self, callback: StreamCallback) -> usize {
        self.last += 1;
        self.waiting.insert(self.last, callback);
        self.last
    }
}

/// By number, which is what a plugin gets instead of a pointer: one that calls twice, or after a failure, finds nothing.
static CALLBACKS: Mutex<Callbacks> = Mutex::new(Callbacks { last: 0, waiting: BTreeMap::new() });

/// What the plugin calls when the stream gets there.
unsafe extern "C-unwind" fn run_callback(
    _device: C_Device,
    _stream: C_Stream,
    user_data: *mut c_void,
    status: *mut C_Status,
) {
    let found = lock(&CALLBACKS).waiting.remove(&user_data.addr());
    let Some(callback) = found else { return };
    // SAFETY: null, or a status of the plugin's that lives for this call.
    let status = unsafe { status.as_ref() }.copied().unwrap_or(C_Status::SUCCESS);
    let result = match status {
        C_Status::SUCCESS => Ok(()),
        other => Err(Error::new(Code::Device, format!("work on the stream ended with {}", other.name()))),
    };
    // A panic must not reach the plugin's thread.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || callback(result)));
}
