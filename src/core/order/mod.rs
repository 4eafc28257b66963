//! The stream order of one device: the streams that matter for its memory, fences (points in the work of streams), and
//! which streams are being captured.
//!
//! A fence counts as passed once the device has said so, or once a wait for the whole device has returned that began
//! after the fence was made. A fence that could not be made is *owed*: it is made later, unless such a wait makes it
//! unnecessary. A stream that has ended leaves a fence behind. Until that fence is passed, it is part of whatever "all
//! streams" means.
//!
//! None of the locks here is held while the device is called. The caller holds no other lock either, except for what
//! never calls the device: `now`, `owe`, `route`, `capture` and what a [`Stream`] or [`Fence`] knows already.

use super::backing::{Backing, Point};
use super::types::{EVERY, PoolId, RETIRED, UNORDERED};
use crate::base::boxed::{try_arc, try_push};
use crate::base::error::{Code, Error, Result, no_host_memory};
use crate::base::ordered::Map;
use crate::base::room::{keep_half, let_go};
use crate::base::sync::{
    AtomicU32, AtomicU64, AtomicUsize, Mutex, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, lock,
};
use crate::fail;
use crate::locks;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

mod captured;
mod ends;
mod fence;
mod stream;
#[cfg(all(test, not(loom)))]
mod tests;
mod waits;

pub use fence::Fence;
use fence::Source;
pub use stream::Ending;
pub(crate) use stream::Stream;
pub(crate) use waits::Waits;

/// The stream order of a device; see the head of this file. Any thread may call anything.
pub struct Order {
    source: Arc<Source>,
    streams: Mutex<Streams, locks::Streams>,
    recording: Mutex<Recording, locks::Recording>,
    /// How many streams are being captured.
    captured: AtomicU32,
    /// The length of `Streams::ended`; changed under its lock.
    left: AtomicUsize,
    last_stream: AtomicU64,
    /// How often everything on the device was waited for.
    device_waits: AtomicU64,
    /// Stands for all streams together.
    every: Arc<Stream>,
}

#[derive(Default)]
struct Streams {
    /// Streams that have been used here and have not ended.
    known: HashMap<u64, Arc<Stream>>,
    /// Streams of other devices or contexts that use memory of this one, as long as something waits for them.
    /// With their serial numbers.
    elsewhere: HashMap<u64, (u64, Weak<Stream>)>,
    /// Fences that ended streams left behind, and fences of work that streams of other devices do here, unless they
    /// were passed when last checked.
    ended: Vec<Fence>,
    /// How many of them were open at the last check. The list is checked again once it is twice that long, plus
    /// `ends::ENDED`.
    looked: usize,
}

/// \[B\] What a fence needs of the host's memory, and some more.
const FENCE_BYTES: usize = 4096;

/// So many threads may make points, or wait, without memory of the host for their notes.
const MARKS: usize = 64;

#[derive(Default)]
struct Recording {
    /// Captured streams, and the pool that serves each.
    routes: Map<u64, PoolId>,
    /// Streams on which a thread is making a point, or for which it waits; `EVERY` for the device.
    marking: Vec<u64>,
}

/// Whether the error means that the device cannot be queried now, but may be later.
pub(crate) fn not_now(e: &Error) -> bool {
    matches!(e.code(), Code::Busy | Code::NotPermitted)
}

impl Order {
    /// The order of the device behind `backing`.
    pub fn new(backing: Arc<dyn Backing>) -> Order {
        Order {
            source: Arc::new(Source::new(backing)),
            streams: Mutex::default(),
            recording: Mutex::new(Recording { marking: Vec::with_capacity(MARKS), ..Recording::default() }),
            captured: AtomicU32::new(0),
            left: AtomicUsize::new(0),
            last_stream: AtomicU64::new(1),
            device_waits: AtomicU64::new(0),
            every: Arc::new(Stream::new(EVERY, 0)),
        }
    }

    fn backing(&self) -> &dyn Backing {
        &*self.source.backing
    }

    /// The stream that has this id now; the same object until the stream ends. `OutOfMemory` if it was not known, and the
    /// host has no memory for it.
    pub(crate) fn stream(&self, id: u64) -> Result<Arc<Stream>> {
        if id == EVERY {
            return Ok(self.every.clone());
        }
        let mut s = lock(&self.streams);
        if let Some(known) = s.known.get(&id) {
            return Ok(known.clone());
        }
        let has_room = s.known.try_reserve(1).is_ok();
        let made = || try_arc(Stream::new(id, self.last_stream.fetch_add(1, Relaxed)));
        let stream = has_room.then(made).flatten().ok_or_else(no_host_memory)?;
        s.known.insert(id, stream.clone());
        Ok(stream)
    }

    /// The same; if the host has no memory for that, what stands for all streams together.
    pub(crate) fn stream_or_all(&self, id: u64) -> Arc<Stream> {
        self.stream(id).unwrap_or_else(|_| self.every.clone())
    }

    /// The id of the stream that orders memory for `id`. Mostly that is `id` itself. An id that denotes a different
    /// stream on each thread cannot order memory, because another thread may free the block. The default stream stands
    /// for it: each of those streams waits for the default stream, and the default stream for them.
    pub(crate) fn ordered(&self, id: u64) -> u64 {
        if self.backing().ordered_by(id) { id } else { 0 }
    }

    /// Makes a fence for what is queued on `stream` now. `None`: all of it is done. `Err`: no fence can be made now.
    ///
    /// This one is for streams that the current call of the program does not name. If such a stream may have ended
    /// without notice, the device must not be asked about it, and the fence covers all streams instead.
    pub(crate) fn fence(&self, stream: &Arc<Stream>) -> Result<Option<Fence>> {
        self.fence_of(stream, false, true)
    }

    /// The same for a stream that the current call of the program names: the program answers for it that the stream has
    /// not ended.
    pub(crate) fn fence_of_named(&self, stream: &Arc<Stream>) -> Result<Option<Fence>> {
        self.fence_of(stream, true, true)
    }

    fn fence_of(&self, stream: &Arc<Stream>, named: bool, may_wait: bool) -> Result<Option<Fence>> {
        if let Some(end) = stream.end() {
            return Ok(Some(end).filter(|f| !f.ask()));
        }
        let lasts = || match stream.elsewhere {
            true => self.backing().lasts_elsewhere(stream.id),
            false => self.backing().lasts(stream.id),
        };
        // For the point, its event, the fence, and the tables of all these. While nothing is queued there will be none, and a
        // warm program is to leave the heap alone.
        let keeps = !self.backing().idle();
        if keeps {
            keep_half(FENCE_BYTES)?;
        }
        let alive = named || lasts();
        let all = !alive && !stream.elsewhere;
        let made = self.mark(stream, alive, may_wait);
        if keeps {
            let_go();
        }
        // A thread that ends the stream leaves the stream's fence first. If that fence is there by now, our point may
        // have come too late, or may be on a new stream with the same id. So it is not used.
        if let Some(end) = stream.end() {
            made.ok().flatten().into_iter().for_each(|p| self.backing().forget(p));
            return Ok(Some(end).filter(|f| !f.ask()));
        }
        // Fences with the same stream number pass in order. A point of all streams is in order with other such points,
        // not with those of this stream.
        let serial = if all { self.every.serial } else { stream.serial };
        Ok(made?.map(|point| self.source.fence(serial, Some(point))))
    }

    /// Makes a point on the stream, and holds announced captures off meanwhile. `None`: everything queued there is
    /// done. Unless the stream is `alive` for certain, the device is not asked about it, and the point covers all
    /// streams. `may_wait` is that of [`Backing::mark`].
    fn mark(&self, stream: &Stream, alive: bool, may_wait: bool) -> Result<Option<Point>> {
        let point = if stream.elsewhere {
            // A thread that ends the stream sets `ends` first, and then waits for notes such as this one.
            let _asking = self.note_asking(stream.id)?;
            self.backing().mark_elsewhere(stream.id, alive && !stream.ends.load(Acquire))?
        } else {
            let id = if alive { stream.id } else { EVERY };
            let _marking = self.note(id)?;
            // A thread that ends the stream leaves its fence first, and then waits for notes such as this one.
            if stream.end().is_some() || !self.backing().lists(stream.id) {
                fail!(Code::UnknownStream, "stream {:#x} has ended", stream.id);
            }
            if self.backing().capturing(id) {
                fail!(Code::Busy, "stream {:#x}, or one that may be it, is being captured", stream.id);
            }
            let point = self.backing().mark(id, may_wait)?;
            // The note does not hold off captures that nobody announces. If one has begun since, the point is part of
            // it, and must not be queried.
            if id != EVERY && self.is_recorded(id) {
                point.into_iter().for_each(|p| self.backing().forget(p));
                fail!(Code::Busy, "a capture of stream {id:#x} has begun");
            }
            point
        };
        match point.map(|p| self.backing().passed(p)) {
            Some(Ok(true)) => {
                point.into_iter().for_each(|p| self.backing().forget(p));
                Ok(None)
            }
            _ => Ok(point),
        }
    }

    /// Whether the device may be asked about the stream in a call of the program that does not name it. Another thread
    /// may end the stream right after this, unless a note ([`asking`](Self::asking)) makes that thread wait.
    pub(crate) fn is_there(&self, id: u64) -> bool {
        if !self.backing().lasts(id) {
            return false;
        }
        // A stream whose end was announced is no longer known, or has left its fence.
        let known = lock(&self.streams).known.get(&id).cloned();
        self.backing().is_default(id) || known.is_some_and(|s| s.end().is_none())
    }

    /// A number higher than all earlier ones.
    pub(crate) fn now(&self) -> u64 {
        self.source.next()
    }

    /// Adds a fence for what is queued on the stream now to `waits`.
    pub(crate) fn add(&self, stream: &Arc<Stream>, waits: &mut Waits) {
        self.add_fence(stream, false, waits);
    }

    /// The same for a stream that the program's call names.
    pub(crate) fn add_named(&self, stream: &Arc<Stream>, waits: &mut Waits) {
        self.add_fence(stream, true, waits);
    }

    fn add_fence(&self, stream: &Arc<Stream>, named: bool, waits: &mut Waits) {
        let since = self.source.next();
        match self.fence_of(stream, named, true) {
            Ok(None) => {}
            Ok(Some(fence)) => waits.push(fence),
            Err(_) => waits.owe(stream.clone(), since),
        }
    }

    /// Adds an owed fence instead, without calling the device. When it is made later, it covers what is queued now.
    pub(crate) fn owe(&self, stream: &Arc<Stream>, waits: &mut Waits) {
        waits.owe(stream.clone(), self.source.next());
    }

    /// Adds fences for everything that is queued on the device now, also by streams that have ended. What the host has no
    /// memory for is owed, for which `waits` has room.
    pub(crate) fn add_all(&self, waits: &mut Waits) {
        let since = self.source.next();
        if !self.try_add_all(waits, true) {
            waits.owe_all(self.every.clone(), since);
        }
    }

    /// The same; `false`: the host has no memory for all of it.
    fn try_add_all(&self, waits: &mut Waits, may_wait: bool) -> bool {
        let (mut ids, mut all) = (Vec::new(), true);
        self.backing().streams(&mut |id| all &= try_push(&mut ids, id));
        for id in ids {
            let stream = self.stream_or_all(id);
            let since = self.source.next();
            all &= match self.fence_of(&stream, false, may_wait) {
                Ok(None) => true,
                Ok(Some(fence)) => waits.try_push(fence),
                // It has ended since it was listed. Its fence is among those below.
                Err(e) if e.code() == Code::UnknownStream => {
                    self.forget_unknown(&stream);
                    true
                }
                Err(_) => waits.try_owe(stream, since),
            };
        }
        // Checked last: a stream that ends leaves its fence here before it disappears from the list.
        match self.left_behind() {
            Some(left) => left.into_iter().fold(all, |all, fence| waits.try_push(fence) && all),
            None => false,
        }
    }

    /// Fences for everything that is queued on the device now; `None` if one would be owed.
    fn all_fences(&self, may_wait: bool) -> Option<Waits> {
        let mut all = Waits::default();
        (self.try_add_all(&mut all, may_wait) && !all.owes()).then_some(all)
    }

    /// Whether nothing is queued on the device for which [`add_all`](Self::add_all) would make a fence. `false` also if
    /// finding out would cost a call of the device.
    pub(crate) fn is_idle(&self) -> bool {
        // Relaxed: as in `route`. Acquire, with the Release in `count_left`: of work that left a fence which is passed, the
        // thread sees what it did. A thread that knows of such work sees its fence counted. Work that streams of other
        // devices do here leaves fences, too.
        self.captured.load(Relaxed) == 0 && self.left.load(Acquire) == 0 && self.backing().idle()
    }

    /// Whether everything that is queued on a stream now is done. `false` if that is unknown, for example because the
    /// stream may have ended.
    ///
    /// A capture of the stream may begin at any time and is not disturbed, because an event is queried, not the stream.
    /// The default stream is the exception: an event there, like all work there, disturbs a capture that begins just
    /// then and waits for that stream.
    pub(crate) fn is_done(&self, id: u64) -> bool {
        // A stream that the device does not know has ended without notice. It is not forgotten, since its work and its
        // memory are still there.
        let fence = || self.fence(&self.stream(id)?);
        self.backing().lasts(id) && fence().is_ok_and(|fence| fence.is_none())
    }

    /// Whether all work of streams that have ended is done.
    pub(crate) fn has_nothing_left(&self) -> bool {
        self.left_behind().is_some_and(|left| left.is_empty())
    }

    /// Makes owed fences if possible now, and queries the fences. Waits for nothing. Returns whether `waits` is over.
    pub(crate) fn settle(&self, waits: &mut Waits) -> bool {
        self.settle_all([&mut *waits].into_iter(), false);
        waits.drop_passed(Fence::ask)
    }

    /// The same, but makes owed fences by waits on the host too.
    pub(crate) fn settle_by_waits(&self, waits: &mut Waits) -> bool {
        self.settle_all([&mut *waits].into_iter(), true);
        waits.drop_passed(Fence::ask)
    }

    /// Makes the owed fences of all of `several` if that is possible now, and without a wait unless `may_wait`: one fence for
    /// each stream.
    pub(crate) fn settle_all<'w>(&self, several: impl Iterator<Item = &'w mut Waits>, may_wait: bool) {
        let mut made: Vec<(u64, Option<Option<Fence>>)> = Vec::new(); // by serial number of the stream; the inner `None`: nothing is queued
        let mut all: Option<Option<Waits>> = None; // what all streams together have now; the inner `None`: it cannot be listed
        for waits in several {
            let mut owed = waits.take_owed();
            owed.retain(|owed| {
                // A wait for the device says nothing about other devices' streams.
                let synced = owed.since < self.source.synced() && !owed.stream.elsewhere;
                if synced && !(owed.left && self.has_foreign_left(owed.since)) {
                    return false;
                }
                if owed.left {
                    let all = all.get_or_insert_with(|| self.all_fences(may_wait));
                    return !all.as_ref().is_some_and(|all| waits.try_append(all));
                }
                let serial = owed.stream.serial;
                let at = match made.iter().position(|m| m.0 == serial) {
                    Some(at) => at,
                    None if made.try_reserve(1).is_err() => return true,
                    None => {
                        made.push((serial, self.fence_of(&owed.stream, false, may_wait).ok()));
                        made.len() - 1
                    }
                };
                match &made[at].1 {
                    Some(None) => false,
                    Some(Some(fence)) => !waits.try_push(fence.clone()),
                    None => true,
                }
            });
            waits.still_owe(owed);
        }
    }

    /// Whether work of other devices' streams that was noted before is not known to be over.
    fn has_foreign_left(&self, before: u64) -> bool {
        lock(&self.streams).ended.iter().any(|f| f.is_foreign() && f.serial() < before && !f.is_passed())
    }

    /// As [`hold_back`](Self::hold_back), for a stream that the current call of the program does not name. If the
    /// stream may have ended without notice, nothing is queued on it; the result then only says whether the fence is
    /// passed.
    pub(crate) fn hold_back_later(&self, stream: u64, fence: &Fence) -> Result<bool> {
        match self.asking(stream) {
            Some(_asking) => self.hold_back(stream, fence),
            None => Ok(fence.is_passed()),
        }
    }

    /// Makes work that is queued on `stream` from now on wait for the fence, on the device. The current call of the
    /// program names the stream. `Ok(false)`: the device cannot do that. `Busy`: the stream is captured.
    pub(crate) fn hold_back(&self, stream: u64, fence: &Fence) -> Result<bool> {
        if fence.is_passed() {
            return Ok(true);
        }
        let _waiting = self.note(stream)?;
        if self.backing().capturing(stream) {
            fail!(Code::Busy, "stream {stream:#x} is being captured");
        }
        fence.hold_back(stream)
    }

    /// Waits on the host until the fence is passed. If it cannot be waited for by itself, waits for the device.
    pub(crate) fn sync(&self, fence: &Fence) -> Result<()> {
        if fence.is_passed() {
            return Ok(());
        }
        self.check_wait()?;
        let done = fence.sync();
        match done {
            Ok(true) => return Ok(()),
            Err(e) if not_now(&e) => return Err(e),
            _ => self.sync_device()?,
        }
        match done {
            Err(e) if !fence.is_passed() => Err(e), // work of other devices, which no wait for this device covers
            _ => Ok(()),
        }
    }

    /// Waits on the host for all of `waits`.
    pub(crate) fn sync_waits(&self, waits: &mut Waits) -> Result<()> {
        if self.settle(waits) {
            return Ok(());
        }
        if waits.owes() {
            self.sync_device()?;
            if self.settle(waits) {
                return Ok(());
            }
            if waits.owes() {
                fail!(Code::Busy, "a stream of another device that has used the memory cannot be marked now");
            }
        }
        for fence in waits.fences() {
            self.sync(fence)?;
        }
        waits.clear();
        Ok(())
    }

    /// How often everything on the device was waited for.
    pub(crate) fn device_waits(&self) -> u64 {
        self.device_waits.load(Relaxed)
    }

    /// Waits on the host for everything on the device. `Busy` while a stream is captured.
    pub(crate) fn sync_device(&self) -> Result<()> {
        self.check_wait()?;
        let waiting = self.no_capture()?;
        let now = self.source.next();
        self.device_waits.fetch_add(1, Relaxed);
        self.backing().sync_all()?;
        self.source.note_synced(now);
        drop(waiting);
        self.left_behind(); // drops the fences that this wait has passed
        Ok(())
    }

    /// `NotPermitted` inside a stream callback, where a wait could wait for itself.
    pub(crate) fn check_wait(&self) -> Result<()> {
        if !self.backing().may_wait() {
            fail!(Code::NotPermitted, "a stream callback must not make a call that waits");
        }
        Ok(())
    }

    /// A fence that is passed when the caller's event is; `None`: it has been passed.
    pub(crate) fn borrow(&self, event: u64) -> Result<Option<Fence>> {
        keep_half(FENCE_BYTES)?;
        let point = self.backing().borrow_event(event);
        let_go();
        let point = point?;
        Ok(point.map(|p| self.adopt(p)))
    }

    /// A fence over a point that may not be on a stream of this device. The fence owns the point from then on.
    pub fn adopt(&self, point: Point) -> Fence {
        self.source.foreign_fence(self.last_stream.fetch_add(1, Relaxed), point)
    }

    /// Notes that a stream of another device uses memory of this one until the point is passed, which counts wherever
    /// all streams are meant. The order owns the point from then on.
    pub(crate) fn note_foreign_work(&self, point: Point) {
        let fence = self.adopt(point);
        {
            let mut s = lock(&self.streams);
            s.ended.push(fence);
            self.count_left(&s);
        }
        self.check_left_if_many();
    }

    /// The device has ended, and all its work with it.
    pub(crate) fn close(&self) {
        self.source.note_synced(u64::MAX - 1);
        let gone = {
            let mut s = lock(&self.streams);
            let gone = std::mem::take(&mut *s);
            self.count_left(&s);
            gone
        };
        drop(gone);
        self.forget_captured();
    }

    fn count_left(&self, s: &Streams) {
        self.left.store(s.ended.len(), Release);
    }

    /// Whether `stream` is one of the special values that stand for no stream.
    fn is_word(stream: u64) -> bool {
        stream == UNORDERED || stream == RETIRED
    }
}
