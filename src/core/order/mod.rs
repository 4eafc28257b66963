//! The stream order of one device: its streams, as far as they matter for memory, fences (points in their work), and
//! which of them are being captured.
//!
//! Invariants: a fence counts as passed only when the device has said so, or when a wait for the whole device has
//! returned that began after the fence was made. A fence that could not be made is *owed*: it is made later, or such a
//! wait covers it. A stream that has ended leaves a fence behind, which counts wherever "all streams" are meant, until
//! it is passed.
//!
//! Everything here calls the device with none of its own locks held, and must be called without any other lock.

use super::backing::{Backing, Point};
use super::types::{EVERY, PoolId, RETIRED, UNORDERED};
use crate::base::error::{Code, Error, Result};
use crate::base::sync::{
    AtomicU32, AtomicU64, AtomicUsize, Mutex, Ordering::Acquire, Ordering::Relaxed, lock,
};
use crate::fail;
use crate::locks;
use std::collections::{BTreeMap, HashMap};
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

#[derive(Default)]
struct Recording {
    /// Captured streams, and the pool that serves each.
    routes: BTreeMap<u64, PoolId>,
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
            recording: Mutex::default(),
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

    /// The stream that has this id now; the same object until the stream ends.
    pub(crate) fn stream(&self, id: u64) -> Arc<Stream> {
        if id == EVERY {
            return self.every.clone();
        }
        let mut s = lock(&self.streams);
        let made = || Arc::new(Stream::new(id, self.last_stream.fetch_add(1, Relaxed)));
        s.known.entry(id).or_insert_with(made).clone()
    }

    /// The stream that orders memory for `id`. A stream that differs on each thread waits for the default stream and is
    /// waited for by it; so the default stream stands for it, since another thread may free the block.
    pub(crate) fn ordered(&self, id: u64) -> u64 {
        if self.backing().ordered_by(id) { id } else { 0 }
    }

    /// A fence for what is queued on `stream` now; `None`: all of it is done. `Err`: no fence can be made now. The call of
    /// the program need not name the stream, which may have ended without notice: where that cannot be ruled out, the fence
    /// is one of all streams.
    pub(crate) fn fence(&self, stream: &Arc<Stream>) -> Result<Option<Fence>> {
        self.fence_of(stream, false)
    }

    /// The same for a stream that the program's call names, and which has not ended then.
    pub(crate) fn fence_of_named(&self, stream: &Arc<Stream>) -> Result<Option<Fence>> {
        self.fence_of(stream, true)
    }

    fn fence_of(&self, stream: &Arc<Stream>, named: bool) -> Result<Option<Fence>> {
        if let Some(end) = stream.end() {
            return Ok(Some(end).filter(|f| !f.ask()));
        }
        let lasts = || match stream.elsewhere {
            true => self.backing().lasts_elsewhere(stream.id),
            false => self.backing().lasts(stream.id),
        };
        let alive = named || lasts();
        let all = !alive && !stream.elsewhere;
        let made = self.mark(stream, alive);
        // A thread that ends a stream leaves its fence first: a point that came too late, or was made on a new stream
        // with that id, is not trusted.
        if let Some(end) = stream.end() {
            made.ok().flatten().into_iter().for_each(|p| self.backing().forget(p));
            return Ok(Some(end).filter(|f| !f.ask()));
        }
        // A point of all streams passes in the order of such points, not of those of this stream.
        let serial = if all { self.every.serial } else { stream.serial };
        Ok(made?.map(|point| self.source.fence(serial, Some(point))))
    }

    /// Makes a point on the stream while no capture can begin; `None`: everything queued there is done. Without `alive`, the
    /// stream is not given to the device, and the point is one of all streams.
    fn mark(&self, stream: &Stream, alive: bool) -> Result<Option<Point>> {
        let point = if stream.elsewhere {
            // Who ends it says so first, and then waits for such notes.
            let _asking = self.note_asking(stream.id);
            self.backing().mark_elsewhere(stream.id, alive && !stream.ends.load(Acquire))?
        } else {
            let id = if alive { stream.id } else { EVERY };
            let _marking = self.note(id)?;
            // A thread that ends a stream says so first, and then waits for such notes.
            if stream.end().is_some() || !self.backing().lists(stream.id) {
                fail!(Code::UnknownStream, "stream {:#x} has ended", stream.id);
            }
            if self.backing().capturing(id) {
                fail!(Code::Busy, "stream {:#x}, or one that may be it, is being captured", stream.id);
            }
            let point = self.backing().mark(id)?;
            // Nobody announces the captures of others. One that has begun since has the point, which must not be asked.
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

    /// Whether the stream may be given to the device in calls of the program that do not name it, unless its end is told
    /// just then ([`asking`](Self::asking)).
    pub(crate) fn is_there(&self, id: u64) -> bool {
        if !self.backing().lasts(id) {
            return false;
        }
        // One whose end was told is not among them, or has left its fence.
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
        match self.fence_of(stream, named) {
            Ok(None) => {}
            Ok(Some(fence)) => waits.push(fence),
            Err(_) => waits.owe(stream.clone(), since),
        }
    }

    /// The same without calling the device: the fence is owed, and covers what is queued now when it is made later.
    pub(crate) fn owe(&self, stream: &Arc<Stream>, waits: &mut Waits) {
        waits.owe(stream.clone(), self.source.next());
    }

    /// Adds fences for everything that is queued on the device now, also by streams that have ended.
    pub(crate) fn add_all(&self, waits: &mut Waits) {
        let mut ids = Vec::new();
        self.backing().streams(&mut |id| ids.push(id));
        for id in ids {
            let stream = self.stream(id);
            let since = self.source.next();
            match self.fence(&stream) {
                Ok(None) => {}
                Ok(Some(fence)) => waits.push(fence),
                // It ended since it was listed; its fence is found below.
                Err(e) if e.code() == Code::UnknownStream => self.forget_unknown(&stream),
                Err(_) => waits.owe(stream, since),
            }
        }
        // Checked last: a stream that ends leaves its fence here before it disappears from the list.
        for fence in self.left_behind() {
            waits.push(fence);
        }
    }

    /// Whether nothing is queued on the device that [`add_all`](Self::add_all) would make a fence for, as far as that is
    /// known at no cost.
    pub(crate) fn is_idle(&self) -> bool {
        // Relaxed: as in `route`; a thread that has learnt of work that left a fence sees it counted. There are also
        // fences of other devices' work.
        self.captured.load(Relaxed) == 0 && self.left.load(Relaxed) == 0 && self.backing().idle()
    }

    /// Whether everything that is queued on a stream now is done; `false` if that is unknown. Does not disturb a capture of
    /// the stream, whenever that begins: it queries an event, not the stream. On the default stream it disturbs captures
    /// that begin just then and wait for that stream, as all work there does. A stream that may have ended is not asked.
    pub(crate) fn is_done(&self, id: u64) -> bool {
        // One that the device does not know is not forgotten: it has ended without notice, and left work and memory.
        self.backing().lasts(id) && self.fence(&self.stream(id)).is_ok_and(|fence| fence.is_none())
    }

    /// Whether all work of streams that have ended is done.
    pub(crate) fn has_nothing_left(&self) -> bool {
        self.left_behind().is_empty()
    }

    /// Makes owed fences if possible now, and queries the fences. Waits for nothing. Returns whether `waits` is over.
    pub(crate) fn settle(&self, waits: &mut Waits) -> bool {
        self.settle_all([&mut *waits].into_iter());
        waits.drop_passed(Fence::ask)
    }

    /// Makes the owed fences of all of `several` if possible now: one fence for each stream.
    pub(crate) fn settle_all<'w>(&self, several: impl Iterator<Item = &'w mut Waits>) {
        let mut made: Vec<(u64, Option<Option<Fence>>)> = Vec::new(); // by serial number of the stream; the inner `None`: nothing is queued
        for waits in several {
            for owed in waits.take_owed() {
                // A wait for the device says nothing about other devices' streams.
                if owed.since < self.source.synced() && !owed.stream.elsewhere {
                    continue;
                }
                let serial = owed.stream.serial;
                let at = made.iter().position(|m| m.0 == serial).unwrap_or_else(|| {
                    made.push((serial, self.fence(&owed.stream).ok()));
                    made.len() - 1
                });
                match &made[at].1 {
                    Some(None) => {}
                    Some(Some(fence)) => waits.push(fence.clone()),
                    None => waits.owe_again(owed),
                }
            }
        }
    }

    /// As [`hold_back`](Self::hold_back), but the program's call does not name the stream, which may have ended without notice:
    /// nothing is queued on it where that cannot be ruled out.
    pub(crate) fn hold_back_later(&self, stream: u64, fence: &Fence) -> Result<bool> {
        match self.asking(stream) {
            Some(_asking) => self.hold_back(stream, fence),
            None => Ok(fence.is_passed()),
        }
    }

    /// Makes work queued on `stream`, which the program's call names, wait for the fence from now on, on the device.
    /// `Ok(false)`: that is not possible; `Busy` while the stream is captured.
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
            self.sync(&fence)?;
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
        let point = self.backing().borrow_event(event)?;
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
        let count = {
            let mut s = lock(&self.streams);
            s.ended.push(fence);
            self.count_left(&s);
            s.ended.len()
        };
        // At powers of two: even if nobody else checks the list, it has at most twice the open fences, at constant
        // cost.
        if count.is_power_of_two() {
            self.left_behind();
        }
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
        self.left.store(s.ended.len(), Relaxed);
    }

    /// Whether `stream` is one of the special values that stand for no stream.
    fn is_word(stream: u64) -> bool {
        stream == UNORDERED || stream == RETIRED
    }
}
