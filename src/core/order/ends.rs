//! The end of streams: what of their work outlives them, and how their ids are kept apart from those of new streams.
//!
//! A stream that ends leaves a fence behind before the device stops listing it, so no thread misses both. Nothing here
//! holds a lock while it calls the device.

use super::super::backing::Point;
use super::super::types::EVERY;
use super::fence::Fence;
use super::stream::{Ending, Stream};
use super::{FENCE_BYTES, Order};
use crate::base::boxed::try_arc;
use crate::base::error::{Code, Result, no_host_memory};
use crate::base::room::{keep_half, let_go};
use crate::base::sync::{
    Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, lock, pause,
};
use crate::fail;
use std::sync::Arc;

/// How many fences may be left behind before they are checked again, beside twice as many as were open then.
const ENDED: usize = 32;

#[cold]
fn no_stream<T>(id: u64) -> Result<T> {
    if id == EVERY {
        fail!(
            Code::UnknownStream,
            "the stream is an empty one: never made, moved from, or it could not be made"
        );
    }
    fail!(Code::UnknownStream, "there is no stream {id:#x}")
}

impl Order {
    /// Fails if `id` is no stream, or does not order memory here.
    pub(crate) fn check_own(&self, id: u64) -> Result<()> {
        if Self::is_word(id) || id == EVERY {
            return no_stream(id);
        }
        if !self.backing().owns(id)? {
            fail!(
                Code::UnknownStream,
                "stream {id:#x} is of another device or context: its use of memory can be recorded here, nothing else"
            );
        }
        Ok(())
    }

    /// A stream that uses memory of this device, whether its own or not.
    pub(crate) fn user(&self, id: u64) -> Result<Arc<Stream>> {
        if Self::is_word(id) || id == EVERY {
            return no_stream(id);
        }
        if self.backing().owns(id)? {
            return self.stream(self.ordered(id));
        }
        let mut s = lock(&self.streams);
        if let Some(known) = s.elsewhere.get(&id).and_then(|s| s.1.upgrade()) {
            return Ok(known);
        }
        s.elsewhere.retain(|_, known| known.1.strong_count() > 0);
        let has_room = s.elsewhere.try_reserve(1).is_ok();
        let made = || try_arc(Stream::elsewhere(id, self.last_stream.fetch_add(1, Relaxed)));
        let stream = has_room.then(made).flatten().ok_or_else(no_host_memory)?;
        s.elsewhere.insert(id, (stream.serial, Arc::downgrade(&stream)));
        Ok(stream)
    }

    /// The id of the stream with this serial number, which was named here and has not ended.
    pub(crate) fn id_of_serial(&self, serial: u64) -> Option<u64> {
        let s = lock(&self.streams);
        let known = s.known.values().find(|s| s.serial == serial).map(|s| s.id);
        let elsewhere =
            || s.elsewhere.iter().find(|(_, s)| s.0 == serial && s.1.strong_count() > 0).map(|s| *s.0);
        known.or_else(elsewhere)
    }

    /// A stream of another device or context is about to end. Blocks here that wait for its work must not mistake a new
    /// stream with the same id for it.
    pub fn ending_elsewhere(&self, id: u64) {
        let known = lock(&self.streams).elsewhere.get(&id).and_then(|s| s.1.upgrade());
        let Some(stream) = known else { return };
        // If no point can be made now, one is made later: the backing knows how to make one for a stream that has
        // ended.
        let made = self.mark(&stream, true, true);
        // Release, with the Acquire in `mark`: a thread that makes a point there from now on sees this. A thread that
        // has begun already has left a note, for which the next line waits.
        stream.ends.store(true, Release);
        self.wait_for_askers(id);
        if let Ok(made) = made {
            let fence = self.source.fence(stream.serial, made);
            if made.is_none() {
                fence.set_passed();
            }
            *lock(&stream.end) = Some(fence);
        }
        lock(&self.streams).elsewhere.remove(&id);
    }

    /// `Busy` for a stream that is being captured and so must not end.
    pub fn check_end(&self, id: u64) -> Result<()> {
        if !self.backing().is_default(id) && self.records(id) {
            fail!(Code::Busy, "stream {id:#x} is being captured");
        }
        Ok(())
    }

    /// A stream is about to end: a fence for what is queued on it is left behind, which counts among those of ended
    /// streams from now on. If no fence can be made, the stream is waited for. Nobody queues more on it. Must be
    /// followed by [`ended`](Self::ended) or [`not_ended`](Self::not_ended). `UnknownStream` if another thread is
    /// ending it; `OutOfMemory` if the host has no memory for the fence.
    pub fn ending(&self, id: u64) -> Result<Ending> {
        let stream = self.stream(id)?;
        keep_half(FENCE_BYTES)?;
        // AcqRel: after an end that was given up, its undoing is visible.
        if stream.ends.swap(true, AcqRel) {
            let_go();
            fail!(Code::UnknownStream, "stream {id:#x} is being ended by another thread");
        }
        let made: Result<_> = self.mark(&stream, true, true);
        let waited = made.is_err() && self.check_wait().and_then(|()| self.backing().sync_stream(id)).is_ok();
        let over = waited || matches!(made, Ok(None));
        let_go();
        let ending = self.leave(stream, made, over);
        self.wait_for_askers(id);
        Ok(ending)
    }

    /// The device has made a stream with that id. If an earlier one with that id is still known, it has ended without notice,
    /// and leaves a fence behind that covers everything on the device. Must be followed by [`ended`](Self::ended).
    pub(crate) fn ended_unnoticed(&self, id: u64) -> Option<Ending> {
        let stream = lock(&self.streams).known.get(&id).cloned()?;
        if stream.ends.swap(true, AcqRel) {
            return None;
        }
        let made = self.mark(&stream, false, true);
        let over = matches!(made, Ok(None));
        Some(self.leave(stream, made, over))
    }

    /// The stream leaves a fence behind: at the point, if one could be made; `over`: its work is done.
    fn leave(&self, stream: Arc<Stream>, made: Result<Option<Point>>, over: bool) -> Ending {
        // If none could, and it could not be waited for either, only a wait for the device passes the fence.
        let fence = self.source.fence(stream.serial, made.ok().flatten());
        if over {
            fence.set_passed();
        }
        // The fence counts before the device stops listing the stream, so that no thread misses both.
        {
            let mut s = lock(&self.streams);
            s.ended.push(fence.clone());
            self.count_left(&s);
        }
        *lock(&stream.end) = Some(fence);
        Ending { stream }
    }

    /// The stream has ended: only its fence stands for it here, and its id may be reused.
    pub fn ended(&self, ending: Ending) {
        let stream = ending.stream;
        {
            let mut s = lock(&self.streams);
            if s.known.get(&stream.id).is_some_and(|known| Arc::ptr_eq(known, &stream)) {
                s.known.remove(&stream.id);
            }
        }
        self.check_left_if_many();
    }

    /// Queries the fences that were left behind, and drops those that are passed, if there are more than twice as many as
    /// were open at the last check. If the program never waits for the device, nobody else does. Each fence is queried a
    /// few times on average.
    pub(super) fn check_left_if_many(&self) {
        let many = {
            let mut s = lock(&self.streams);
            let many = s.ended.len() > 2 * s.looked + ENDED;
            if many {
                s.looked = s.ended.len(); // other threads need not look, too
            }
            many
        };
        if many && let Some(left) = self.left_behind() {
            lock(&self.streams).looked = left.len();
        }
    }

    /// The device refused to end it: it continues.
    pub fn not_ended(&self, ending: Ending) {
        let gone = lock(&ending.stream.end).take();
        if let Some(fence) = &gone {
            let mut s = lock(&self.streams);
            s.ended.retain(|f| !f.is(fence));
            self.count_left(&s);
        }
        drop(gone);
        ending.stream.ends.store(false, Release);
    }

    /// The device has made a stream with that id. If an earlier stream with that id has just ended and another thread
    /// is about to report this, waits for that thread, since the memory of the old stream is not the new one's.
    pub fn made(&self, id: u64) {
        let mut round = 0;
        // Acquire: what the other thread has changed by then is visible.
        while lock(&self.streams).known.get(&id).is_some_and(|s| s.ends.load(Acquire)) {
            pause(round);
            round = round.saturating_add(1);
        }
    }

    /// Forgets a stream that the device does not know, though nobody said that it ended.
    pub(super) fn forget_unknown(&self, stream: &Arc<Stream>) {
        let mut s = lock(&self.streams);
        if s.known.get(&stream.id).is_some_and(|known| Arc::ptr_eq(known, stream)) {
            s.known.remove(&stream.id);
        }
    }

    /// The fences that ended streams left behind and that are not passed yet. `None`: the host has no memory to list them.
    pub(super) fn left_behind(&self) -> Option<Vec<Fence>> {
        let (mut all, mut open) = (Vec::new(), Vec::new());
        {
            let s = lock(&self.streams);
            all.try_reserve_exact(s.ended.len()).ok()?;
            all.extend_from_slice(&s.ended);
        }
        open.try_reserve_exact(all.len()).ok()?;
        open.extend(all.iter().filter(|f| !f.ask()).cloned());
        if open.len() < all.len() {
            let mut s = lock(&self.streams);
            s.ended.retain(|f| !f.is_passed());
            self.count_left(&s);
        }
        Some(open)
    }
}
