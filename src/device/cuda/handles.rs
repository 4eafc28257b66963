//! The streams and events of a device, by their handles.
//!
//! Any `CUstream` of the primary context is accepted as a stream, and 0, 1 and 2 mean what CUDA says: the legacy
//! default stream (NULL, `CU_STREAM_LEGACY`) and the calling thread's own (`CU_STREAM_PER_THREAD`).
//!
//! A stream or event that was created here and destroyed is kept for the next one that is created: so nobody else can
//! get its handle, and use after the end is recognised. A handle that somebody else created cannot be told from a dead one:
//! drivers were seen to crash on those, and to give the handle to the next stream at once. So such a handle is given to the
//! driver in calls that name it, and in others only if the program has promised to tell of its end.
//!
//! The driver says in which context a stream is. A stream of another context (another device's, or one that a program
//! created) orders nothing here, but a point in its work can be marked: by an event of that context, and a stream of
//! ours that waits for it.

use super::context::Primary;
use super::driver::{Context, Driver};
use crate::base::error::{Code, Error, Result};
use crate::base::sync::pause;
use crate::base::sync::system::{Mutex, lock};
use crate::device::{NO_STREAM, StreamKind, Whose};
use crate::fail;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// `CU_STREAM_LEGACY`, another name of NULL.
pub(super) const LEGACY: u64 = 1;
/// `CU_STREAM_PER_THREAD`.
pub(super) const PER_THREAD: u64 = 2;

/// The maximum number of ended handles that are kept; beyond it the oldest is really destroyed.
const KEPT: usize = 1024;

/// The streams, or the events, that were created here.
#[derive(Default)]
struct Handles {
    live: BTreeSet<u64>,
    ended: VecDeque<u64>,
}

/// Which device of the type created a stream or an event, by ordinal. What is not listed was created elsewhere.
#[derive(Default)]
pub(super) struct MadeBy {
    streams: Mutex<BTreeMap<u64, usize>>,
    /// Also whether it is live: an event of another device may be waited for.
    events: Mutex<BTreeMap<u64, (usize, bool)>>,
    /// The primary contexts of open devices, by the number of the card.
    contexts: Mutex<BTreeMap<usize, Context>>,
}

impl MadeBy {
    pub(super) fn opened(&self, card: usize, context: Context) {
        lock(&self.contexts).insert(card, context);
    }

    pub(super) fn closed(&self, card: usize) {
        lock(&self.contexts).remove(&card);
    }
}

/// Shared by all devices of the type.
pub(super) type Makers = Arc<MadeBy>;

/// The streams and events of a device.
pub(super) struct HandleTable {
    driver: Driver,
    ordinal: usize,
    makers: Makers,
    streams: Mutex<Handles>,
    events: Mutex<Handles>,
    /// Of the events, live and ended, those that note the time; whether each was recorded.
    timed: Mutex<BTreeMap<u64, bool>>,
    /// Whether there ever was one.
    any_timed: AtomicBool,
    /// What the streams that were created here are like, also those that have ended; default where none is listed.
    kinds: Mutex<BTreeMap<u64, StreamKind>>,
    /// Whether the program has promised that.
    announced: AtomicBool,
    /// Then, streams that were created elsewhere and have been asked about captures.
    seen: Mutex<BTreeSet<u64>>,
    /// Streams of announced captures, which live until those have ended.
    watched: Mutex<BTreeSet<u64>>,
    /// Streams that were created elsewhere and were of our context when last asked about.
    ours: Mutex<BTreeSet<u64>>,
    /// The contexts of the others: of one handle several, if it has come again in another context. Includes streams that
    /// have ended since; all work of those contexts is waited for instead.
    theirs: Mutex<BTreeMap<u64, BTreeSet<Context>>>,
    /// Streams that were created here, and that the order of memory has been told of: what it believes of an earlier stream
    /// with the same handle is over. Those that were ended here stay, as long as the driver has not got the handle back.
    known: Mutex<BTreeSet<u64>>,
    /// Streams that were created elsewhere and that threads are asking the driver about now.
    asked: Mutex<Vec<u64>>,
    /// Streams of ours that wait for streams of other contexts.
    bridges: Mutex<VecDeque<u64>>,
}

impl HandleTable {
    pub(super) fn new(driver: Driver, ordinal: usize, makers: Makers) -> HandleTable {
        HandleTable {
            driver,
            ordinal,
            makers,
            streams: Mutex::default(),
            events: Mutex::default(),
            timed: Mutex::default(),
            any_timed: AtomicBool::new(false),
            kinds: Mutex::default(),
            announced: AtomicBool::new(false),
            seen: Mutex::default(),
            watched: Mutex::default(),
            ours: Mutex::default(),
            theirs: Mutex::default(),
            known: Mutex::default(),
            asked: Mutex::default(),
            bridges: Mutex::default(),
        }
    }

    /// To whom the stream belongs. A stream that was created here for another device is refused. For one that was
    /// created elsewhere the driver is asked; in a callback, where it cannot be, its last answer counts.
    pub(super) fn owner(&self, stream: u64, primary: &Primary) -> Result<Whose> {
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
    pub(super) fn record_theirs(&self, stream: u64, event: u64, ours: Context, named: bool) -> Result<()> {
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
        // Where all of its contexts are gone, its work is over.
        if known.is_none() && there.is_none() {
            fail!(Code::UnknownStream, "stream {stream:#x} has ended, and nobody knows whose it was");
        }
        let contexts = known.into_iter().flatten().chain(there).collect::<BTreeSet<Context>>();
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

    /// See [`ExternalStreams::watch`](crate::device::ExternalStreams::watch).
    pub(super) fn watch(&self, stream: u64, captured: bool) {
        let mut watched = lock(&self.watched);
        if captured {
            watched.insert(stream)
        } else {
            watched.remove(&stream)
        };
    }

    /// See [`ExternalStreams::set_announced`](crate::device::ExternalStreams::set_announced).
    pub(super) fn set_announced(&self, announced: bool) {
        // Relaxed: the promise is about streams that are named later.
        self.announced.store(announced, Relaxed);
        if !announced {
            lock(&self.seen).clear();
        }
    }

    /// Whether streams that were created elsewhere may be given to the driver later. Without events for a whole context there is
    /// no other way but to wait on the host at each of the calls.
    fn is_announced(&self) -> bool {
        self.announced.load(Relaxed) || !self.driver.records_contexts()
    }

    /// See [`ExternalStreams::lasts`](crate::device::ExternalStreams::lasts).
    pub(super) fn lasts(&self, stream: u64) -> bool {
        if stream <= PER_THREAD || self.is_announced() {
            return true;
        }
        lock(&self.known).contains(&stream)
    }

    /// See [`ExternalStreams::lasts_elsewhere`](crate::device::ExternalStreams::lasts_elsewhere). The end of a stream of another
    /// open device is told there.
    pub(super) fn lasts_elsewhere(&self, stream: u64) -> bool {
        if !self.driver.records_contexts() {
            return true;
        }
        let known = lock(&self.theirs).get(&stream).cloned().unwrap_or_default();
        let devices: Vec<Context> = lock(&self.makers.contexts).values().copied().collect();
        self.announced.load(Relaxed) && known.iter().all(|c| devices.contains(c))
    }

    /// See [`ExternalStreams::note_created`](crate::device::ExternalStreams::note_created).
    pub(super) fn note_created(&self, stream: u64) {
        lock(&self.known).insert(stream);
    }

    /// Asks the driver whether a stream that was created elsewhere is captured, unless its creator has told of its end
    /// meanwhile: who tells waits for those who ask.
    fn ask_elsewhere(&self, stream: u64) -> Result<Option<u64>> {
        lock(&self.asked).push(stream);
        let listed = lock(&self.watched).contains(&stream) || lock(&self.seen).contains(&stream);
        let id = if listed { self.driver.capture_id(stream) } else { Ok(None) };
        self.has_asked(stream);
        id
    }

    fn has_asked(&self, stream: u64) {
        let mut asked = lock(&self.asked);
        if let Some(at) = asked.iter().position(|&s| s == stream) {
            asked.swap_remove(at);
        }
    }

    /// A new event of another context, recorded on a stream there, or after all of that context's streams. `None`: that context
    /// is gone, and its work is over.
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

    /// False for a stream that was created here and has ended, for one of another device of the type, and for
    /// `NO_STREAM` (the driver would dereference it). Nothing else is known of what handles are.
    pub(super) fn exists(&self, stream: u64) -> bool {
        stream <= PER_THREAD
            || stream != NO_STREAM
                && !lock(&self.streams).ended.contains(&stream)
                && lock(&self.makers.streams).get(&stream).is_none_or(|&o| o == self.ordinal)
    }

    /// The id of the capture that the stream is in. For the default stream `u64::MAX` if the capture of another stream
    /// forbids work there.
    pub(super) fn capture_id(&self, stream: u64) -> Result<Option<u64>> {
        let id = match self.driver.capture_id(stream) {
            // The legacy default stream cannot be captured, but the capture of a blocking stream forbids work on it.
            // The driver says so, without harm to that capture and without its id.
            Err(e) if stream <= LEGACY && e.code() == Code::NotPermitted => Some(u64::MAX),
            other => other?,
        };
        if self.is_announced() && stream > PER_THREAD && !lock(&self.streams).live.contains(&stream) {
            lock(&self.seen).insert(stream);
        }
        Ok(id)
    }

    /// A known stream that is being captured; 0 stands for one that is not known by its handle. Of streams that were created
    /// elsewhere only blocking ones and those of announced captures are found, unless the program tells of their end.
    pub(super) fn captured(&self) -> Result<Option<u64>> {
        if self.capture_id(0)?.is_some() {
            return Ok(Some(0));
        }
        let own: Vec<u64> = lock(&self.streams).live.iter().copied().collect();
        for s in own {
            if self.driver.capture_id(s)?.is_some() {
                return Ok(Some(s));
            }
        }
        let watched: Vec<u64> = lock(&self.watched).iter().copied().collect();
        let seen = watched.into_iter().chain(lock(&self.seen).iter().copied()).collect::<BTreeSet<u64>>();
        for s in seen {
            match self.ask_elsewhere(s) {
                Ok(None) => {}
                Ok(Some(_)) => return Ok(Some(s)),
                Err(e) if e.code() == Code::UnknownStream => self.unlist(s), // its creator has destroyed it
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    /// The stream is not asked about any more.
    fn unlist(&self, stream: u64) {
        lock(&self.seen).remove(&stream);
        lock(&self.watched).remove(&stream);
        lock(&self.ours).remove(&stream);
    }

    /// The creator of the stream destroys it as soon as this returns: no call of the driver about it is under way then, and none
    /// will be made. What streams of other contexts with that handle have done before is asked of their contexts.
    pub(super) fn forget(&self, stream: u64) {
        self.unlist(stream);
        let mut round = 0_u32;
        while lock(&self.asked).contains(&stream) {
            pause(round);
            round = round.saturating_add(1);
        }
    }

    pub(super) fn create(&self, kind: StreamKind) -> Result<u64> {
        let make = || {
            let made = self.driver.stream_create(kind.priority, kind.non_blocking)?;
            // One that was created elsewhere may have had the handle, and ended without notice.
            self.unlist(made);
            lock(&self.makers.streams).insert(made, self.ordinal);
            if kind != StreamKind::default() {
                lock(&self.kinds).insert(made, kind);
            }
            Ok(made)
        };
        let alike = |s: &u64| lock(&self.kinds).get(s).copied().unwrap_or_default() == kind;
        take(&self.streams, alike, |s| self.driver.stream_query(s).unwrap_or(false), make)
    }

    /// What is queued still runs.
    pub(super) fn destroy(&self, stream: u64) -> Result<()> {
        if stream <= PER_THREAD {
            return Err(Error::new(Code::InvalidArgument, "the default stream cannot be destroyed"));
        }
        if !lock(&self.streams).live.contains(&stream) {
            if self.exists(stream) {
                fail!(Code::InvalidArgument, "stream {stream:#x} was made elsewhere; its maker destroys it");
            }
            fail!(Code::UnknownStream, "stream {stream:#x} was destroyed before");
        }
        // In the middle of a capture it must really be destroyed, or its next user would be captured too.
        let captured = !matches!(self.driver.capture_id(stream), Ok(None));
        self.end(&self.streams, stream, captured, |s| {
            // Unlisted first: as soon as the driver has the handle back, another thread may be given it.
            lock(&self.known).remove(&s);
            let made = lock(&self.makers.streams).remove(&s);
            let kind = lock(&self.kinds).remove(&s);
            self.driver.stream_destroy(s).inspect_err(|_| {
                lock(&self.known).insert(s);
                made.map(|m| lock(&self.makers.streams).insert(s, m));
                kind.map(|k| lock(&self.kinds).insert(s, k));
            })
        })
    }

    pub(super) fn event_create(&self, timed: bool) -> Result<u64> {
        let make = || self.driver.event_create(timed);
        let alike = |e: &u64| lock(&self.timed).contains_key(e) == timed;
        let event = take(&self.events, alike, |e| self.driver.event_query(e).unwrap_or(false), make)?;
        if timed {
            lock(&self.timed).insert(event, false);
            self.any_timed.store(true, Relaxed);
        }
        lock(&self.makers.events).insert(event, (self.ordinal, true));
        Ok(event)
    }

    /// The event is about to be recorded.
    pub(super) fn note_record(&self, event: u64) {
        // Relaxed: whoever has a handle sees what its creation stored.
        if self.any_timed.load(Relaxed)
            && let Some(recorded) = lock(&self.timed).get_mut(&event)
        {
            *recorded = true;
        }
    }

    /// [ms] between two events that note the time and have been recorded.
    pub(super) fn event_elapsed(&self, start: u64, end: u64) -> Result<f32> {
        for event in [start, end] {
            self.check_event(event)?;
            match lock(&self.timed).get(&event) {
                Some(true) => {}
                Some(false) => fail!(Code::InvalidArgument, "event {event:#x} was never recorded"),
                None => fail!(Code::InvalidArgument, "event {event:#x} was created without a time"),
            }
        }
        self.driver.event_elapsed(start, end)
    }

    pub(super) fn event_destroy(&self, event: u64) -> Result<()> {
        if !lock(&self.events).live.contains(&event) {
            self.check_event(event)?;
            fail!(Code::UnknownEvent, "event {event:#x} was made elsewhere; its maker destroys it");
        }
        // Marked as ended before the handle can be issued again.
        lock(&self.makers.events).insert(event, (self.ordinal, false));
        let ended = self.end(&self.events, event, false, |e| {
            // As for streams.
            let made = lock(&self.makers.events).remove(&e);
            let timed = lock(&self.timed).remove(&e);
            self.driver.event_destroy(e).inspect_err(|_| {
                made.map(|m| lock(&self.makers.events).insert(e, m));
                timed.map(|t| lock(&self.timed).insert(e, t));
            })
        });
        if ended.is_err() && lock(&self.events).live.contains(&event) {
            lock(&self.makers.events).insert(event, (self.ordinal, true));
        }
        ended
    }

    /// `UnknownEvent` if another device of the type has created it, or if it has ended.
    pub(super) fn check_event(&self, event: u64) -> Result<()> {
        match lock(&self.makers.events).get(&event) {
            Some(&(other, _)) if other != self.ordinal => {
                let own = self.ordinal;
                fail!(Code::UnknownEvent, "event {event:#x} is one of device {other}, not of device {own}")
            }
            Some((_, false)) => destroyed(event),
            _ => Ok(()),
        }
    }

    /// `UnknownEvent` if it has ended, on whichever device: a stream may wait for events of all.
    pub(super) fn check_awaited(&self, event: u64) -> Result<()> {
        match lock(&self.makers.events).get(&event) {
            Some((_, false)) => destroyed(event),
            _ => Ok(()),
        }
    }

    /// Moves a handle to the ended ones or, with `really`, destroys it now.
    fn end(
        &self,
        of: &Mutex<Handles>,
        it: u64,
        really: bool,
        destroy: impl Fn(u64) -> Result<()>,
    ) -> Result<()> {
        let gone = {
            let mut h = lock(of);
            if !h.live.remove(&it) {
                fail!(Code::InvalidArgument, "{it:#x} was destroyed meanwhile");
            }
            if really {
                Some(it)
            } else {
                h.ended.push_back(it);
                if h.ended.len() > KEPT { h.ended.pop_front() } else { None }
            }
        };
        let Some(gone) = gone else { return Ok(()) };
        destroy(gone).inspect_err(|_| {
            let mut h = lock(of);
            if gone == it {
                h.live.insert(it);
            } else {
                // The driver refused a handle other than the caller's: that one stays ended, and the caller's stays
                // live.
                h.ended.push_front(gone);
                h.ended.retain(|&e| e != it);
                h.live.insert(it);
            }
        })
    }

    /// Destroys everything, whatever the driver says. Returns the first failure.
    pub(super) fn clear(&self) -> Result<()> {
        let mut first = Ok(());
        let mut note = |r: Result<()>| {
            if first.is_ok() {
                first = r;
            }
        };
        for s in drain(&self.streams) {
            lock(&self.makers.streams).remove(&s);
            lock(&self.kinds).remove(&s);
            note(self.driver.stream_destroy(s));
        }
        let bridges = std::mem::take(&mut *lock(&self.bridges));
        for s in bridges {
            note(self.driver.stream_destroy(s));
        }
        for e in drain(&self.events) {
            lock(&self.makers.events).remove(&e);
            note(self.driver.event_destroy(e));
        }
        first
    }
}

fn destroyed(event: u64) -> Result<()> {
    fail!(Code::UnknownEvent, "event {event:#x} was destroyed")
}

fn drain(of: &Mutex<Handles>) -> Vec<u64> {
    let mut h = lock(of);
    let all = std::mem::take(&mut *h);
    all.live.into_iter().chain(all.ended).collect()
}

/// An ended handle that is `alike` and has no work left, or a new one.
fn take(
    of: &Mutex<Handles>,
    alike: impl Fn(&u64) -> bool,
    idle: impl Fn(u64) -> bool,
    make: impl Fn() -> Result<u64>,
) -> Result<u64> {
    let oldest = {
        let ended: Vec<u64> = lock(of).ended.iter().copied().collect();
        let found = ended.into_iter().find(alike);
        let mut h = lock(of);
        // Another thread may have taken it meanwhile.
        let at = found.and_then(|it| h.ended.iter().position(|e| *e == it));
        at.and_then(|i| h.ended.remove(i))
    };
    if let Some(it) = oldest {
        if idle(it) {
            lock(of).live.insert(it);
            return Ok(it);
        }
        lock(of).ended.push_back(it);
    }
    let it = make()?;
    lock(of).live.insert(it);
    Ok(it)
}
