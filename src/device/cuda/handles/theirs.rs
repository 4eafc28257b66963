//! Streams that were created elsewhere: to whom they belong, and points in the work of those that belong to another context.

use super::{HandleTable, PER_THREAD};
use crate::base::error::{Code, Result};
use crate::base::ordered::Set;
use crate::base::sync::system::lock;
use crate::device::Whose;
use crate::device::cuda::context::Primary;
use crate::device::cuda::driver::Context;
use crate::fail;
use std::sync::atomic::Ordering::Relaxed;

impl HandleTable {
    /// To whom the stream belongs. A stream that was created here for another device is refused. For a stream that was
    /// created elsewhere, the driver is asked. In a callback it cannot be asked, and its last answer counts.
    pub(in crate::device::cuda) fn owner(&self, stream: u64, primary: &Primary) -> Result<Whose> {
        {
            let s = lock(&self.streams);
            if stream <= PER_THREAD || s.live.contains(&stream) {
                return Ok(Whose::Ours);
            }
        }
        if !self.exists(stream) {
            fail!(Code::UnknownStream, "stream {stream:#x} was destroyed, or made for another device");
        }
        let inside = match primary.enter() {
            Ok(inside) => inside,
            Err(_) if lock(&self.ours).contains(&stream) => return Ok(Whose::Ours),
            Err(_) if lock(&self.theirs).contains_key(&stream) => return Ok(Whose::Theirs),
            Err(e) => return Err(e),
        };
        let context = self.driver.stream_context(stream)?;
        drop(inside);
        if context == primary.context {
            lock(&self.ours).insert(stream);
            return Ok(Whose::Ours);
        }
        lock(&self.ours).remove(&stream);
        lock(&self.theirs).entry(stream).or_default().insert(context);
        Ok(Whose::Theirs)
    }

    /// Makes our event stand for everything queued so far on a stream of another context.
    pub(in crate::device::cuda) fn record_theirs(
        &self,
        stream: u64,
        event: u64,
        ours: Context,
        named: bool,
    ) -> Result<()> {
        lock(&self.asked).push(stream);
        let recorded = self.record_there(stream, event, ours, named);
        self.has_asked(stream);
        recorded
    }

    fn record_there(&self, stream: u64, event: u64, ours: Context, named: bool) -> Result<()> {
        let _relaxed = self.driver.relaxed();
        let there = match named.then(|| self.driver.stream_context(stream)) {
            Some(Ok(context)) if context != ours => Some(context),
            // The stream may have ended, or has ended, without notice.
            None | Some(Ok(_)) => None,
            Some(Err(e)) if e.code() == Code::UnknownStream => None,
            Some(Err(e)) => return Err(e),
        };
        if there.is_some() && self.driver.capture_id(stream)?.is_some() {
            fail!(Code::NotPermitted, "stream {stream:#x} is being captured");
        }
        let known = lock(&self.theirs).get(&stream).cloned();
        // If all of its contexts are gone, its work is over.
        if known.is_none() && there.is_none() {
            fail!(Code::UnknownStream, "stream {stream:#x} has ended, and nobody knows whose it was");
        }
        let contexts = known.into_iter().flatten().chain(there).collect::<Set<Context>>();
        let mut theirs = Vec::new();
        let made = contexts.into_iter().try_for_each(|context| {
            let at = if there == Some(context) { Some(stream) } else { None };
            match self.event_there(context, at)? {
                Some(event) => theirs.push(event),
                None => _ = lock(&self.theirs).get_mut(&stream).map(|all| all.remove(&context)),
            }
            Ok(())
        });
        let recorded = made.and_then(|()| self.bridge()).and_then(|bridge| {
            let waits = theirs.iter().try_for_each(|&e| self.driver.stream_wait(bridge, e));
            let recorded = waits.and_then(|()| self.driver.event_record(event, bridge));
            lock(&self.bridges).push_back(bridge);
            recorded
        });
        for e in theirs {
            let _ = self.driver.event_destroy(e); // a queued wait no longer needs it
        }
        recorded
    }

    /// See [`ExternalStreams::lasts_elsewhere`](crate::device::ExternalStreams::lasts_elsewhere). The end of a stream
    /// of another open device is announced to that device.
    pub(in crate::device::cuda) fn lasts_elsewhere(&self, stream: u64) -> bool {
        if !self.driver.records_contexts() {
            return true;
        }
        let known = lock(&self.theirs).get(&stream).cloned().unwrap_or_default();
        let devices: Vec<Context> = lock(&self.makers.contexts).values().copied().collect();
        self.announced.load(Relaxed) && known.iter().all(|c| devices.contains(&c))
    }

    /// A new event of another context, recorded on a stream there or, without a stream, after all work of that context.
    /// `None`: that context is gone, and its work is over.
    fn event_there(&self, context: Context, stream: Option<u64>) -> Result<Option<u64>> {
        if !self.driver.context_push_if_there(context)? {
            return Ok(None);
        }
        let made = self.driver.event_create(false).and_then(|e| {
            let recorded = match stream {
                Some(s) => self.driver.event_record(e, s),
                // Recording would invalidate the capture.
                None if !matches!(self.driver.capture_id(0), Ok(None)) => {
                    fail!(Code::NotPermitted, "a blocking stream of another context is being captured")
                }
                None if self.driver.records_contexts() => self.driver.context_record(context, e),
                // An event that was never recorded counts as completed.
                None => self.driver.context_synchronize(),
            };
            recorded.map(|()| e).inspect_err(|_| {
                let _ = self.driver.event_destroy(e);
            })
        });
        let _ = self.driver.context_pop();
        made.map(Some)
    }

    /// A stream of ours with nothing queued; the caller puts it back.
    fn bridge(&self) -> Result<u64> {
        let oldest = lock(&self.bridges).pop_front();
        match oldest {
            Some(b) if self.driver.stream_query(b).unwrap_or(false) => Ok(b),
            busy => {
                lock(&self.bridges).extend(busy);
                self.driver.stream_create(0, true)
            }
        }
    }
}
