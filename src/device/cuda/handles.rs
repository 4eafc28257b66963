//! The streams and events of a device, by their handles.
//!
//! Any `CUstream` of the primary context is accepted as a stream, and 0, 1 and 2 mean what CUDA says: the legacy
//! default stream (NULL, `CU_STREAM_LEGACY`) and the calling thread's own (`CU_STREAM_PER_THREAD`).
//!
//! A stream or event that was created here and destroyed is kept for the next one that is created. So nobody else can
//! get its handle, and use after the end is recognised. A handle that somebody else created cannot be told from a dead
//! one. Drivers were seen to crash on dead handles, and to give such a handle to the next stream at once. So the driver
//! is asked about such a handle only in calls of the program that name it or, if the program has promised to announce
//! the end of its streams, also in others.
//!
//! The driver says to which context a stream belongs. A stream of another context (another device's, or one that a
//! program created) orders nothing here. But a point in its work can be marked: an event of that context is recorded
//! there, and a stream of ours waits for it.

use super::driver::{Context, Driver};
use crate::base::boxed::try_push;
use crate::base::error::{Code, Error, Result, no_host_memory};
use crate::base::ordered::{Map, Set};
use crate::base::room::{CALL_BYTES, check_room};
use crate::base::sync::pause;
use crate::base::sync::system::{Mutex, lock};
use crate::device::{NO_STREAM, StreamKind};
use crate::fail;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

mod events;
mod theirs;

/// `CU_STREAM_LEGACY`, another name of NULL.
pub(super) const LEGACY: u64 = 1;
/// `CU_STREAM_PER_THREAD`.
pub(super) const PER_THREAD: u64 = 2;

/// The maximum number of ended handles that are kept; beyond it the oldest is really destroyed.
const KEPT: usize = 1024;

/// The streams, or the events, that were created here.
#[derive(Default)]
struct Handles {
    live: Set<u64>,
    ended: VecDeque<u64>,
}

/// Which device of the type created a stream or an event, by ordinal. What is not listed was created elsewhere.
#[derive(Default)]
pub(super) struct MadeBy {
    streams: Mutex<Map<u64, usize>>,
    /// Also whether it is live: an event of another device may be waited for.
    events: Mutex<Map<u64, (usize, bool)>>,
    /// The primary contexts of open devices, by the number of the card.
    contexts: Mutex<Map<usize, Context>>,
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
    /// The events that note the time, live and ended, each with whether it was recorded.
    timed: Mutex<Map<u64, bool>>,
    /// Whether there ever was an event that notes the time.
    any_timed: AtomicBool,
    /// The kinds of the streams that were created here, live and ended. A stream that is not listed has the default
    /// kind.
    kinds: Mutex<Map<u64, StreamKind>>,
    /// Whether the program has promised to announce the end of each stream that it creates, or to end none.
    announced: AtomicBool,
    /// With that promise: streams that were created elsewhere and about which the driver has been asked whether they
    /// are captured.
    seen: Mutex<Set<u64>>,
    /// Streams of announced captures. They exist at least until their captures have ended.
    watched: Mutex<Set<u64>>,
    /// Streams that were created elsewhere, and belonged to our context when the driver was last asked.
    ours: Mutex<Set<u64>>,
    /// The contexts of the others. A handle has several if it came again in another context. Streams that have ended
    /// since are still listed: all work of their contexts is waited for instead.
    theirs: Mutex<Map<u64, Set<Context>>>,
    /// Streams that were created here and have been made known to the order of memory, which has given up what it knew
    /// of an earlier stream with the same handle. A stream that was ended here stays listed until the driver gets its
    /// handle back.
    known: Mutex<Set<u64>>,
    /// Streams that were created elsewhere, and about which threads are asking the driver now.
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

    /// Whether the driver may be asked about streams that were created elsewhere in calls that do not name them. True
    /// also for a driver without events for a whole context: the only other way there would be to wait on the host at
    /// each call.
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

    /// See [`ExternalStreams::note_created`](crate::device::ExternalStreams::note_created).
    pub(super) fn note_created(&self, stream: u64) {
        lock(&self.known).insert(stream);
    }

    /// Asks the driver whether a stream that was created elsewhere is captured, unless its end has been announced
    /// meanwhile. The thread that announces the end waits for threads that ask.
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

    /// `false` for a stream that was created here and has ended, for one of another device of the type, and for
    /// `NO_STREAM`, which the driver would dereference. Of other handles nothing is known, and the answer is `true`.
    pub(super) fn exists(&self, stream: u64) -> bool {
        stream <= PER_THREAD
            || stream != NO_STREAM
                && !lock(&self.streams).ended.contains(&stream)
                && lock(&self.makers.streams).get(&stream).is_none_or(|&o| o == self.ordinal)
    }

    /// The id of the capture that records the stream. For the default stream, `u64::MAX` if the capture of another
    /// stream forbids work there.
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

    /// A known stream that is being captured; 0 stands for one whose handle is not known. Of the streams that were
    /// created elsewhere, this finds blocking ones and those of announced captures. It finds others only if the program
    /// has promised to announce their end.
    pub(super) fn captured(&self) -> Result<Option<u64>> {
        if self.capture_id(0)?.is_some() {
            return Ok(Some(0));
        }
        let mut own = Vec::new();
        if !lock(&self.streams).live.iter().all(|s| try_push(&mut own, s)) {
            return Err(no_host_memory());
        }
        for s in own {
            if self.driver.capture_id(s)?.is_some() {
                return Ok(Some(s));
            }
        }
        if lock(&self.watched).is_empty() && lock(&self.seen).is_empty() {
            return Ok(None);
        }
        check_room(CALL_BYTES)?;
        let watched: Vec<u64> = lock(&self.watched).iter().collect();
        let seen = watched.into_iter().chain(lock(&self.seen).iter()).collect::<Set<u64>>();
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

    /// The driver is not asked about the stream any more.
    fn unlist(&self, stream: u64) {
        lock(&self.seen).remove(&stream);
        lock(&self.watched).remove(&stream);
        lock(&self.ours).remove(&stream);
    }

    /// The end of the stream is announced: its creator destroys it as soon as this returns. No call of the driver about
    /// it is under way then, and none will be made. For the work of earlier streams of other contexts with this handle,
    /// their contexts are asked.
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
            // A stream that was created elsewhere may have had this handle, and may have ended without notice.
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

    /// Moves a handle to the ended ones, and destroys the oldest of those if there are too many. With `really`,
    /// destroys the handle itself now.
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
            if really || h.ended.try_reserve(1).is_err() {
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
