//! Streams as memory knows them: from the first time that one is named until it ends.
//!
//! The number of a stream may become another's after its end. So who has to do with a stream keeps the stream
//! itself, which knows whether it has ended, and what it left behind.

use super::fence::Fence;
use super::{EVERY, Order, Relaxed, lock};
use crate::base::error::{Code, Result};
use crate::base::sync::{
    AtomicBool, Mutex, Ordering::AcqRel, Ordering::Acquire, Ordering::Release, levels, pause,
};
use crate::fail;
use std::sync::{Arc, Weak};

/// See the file's head.
pub(crate) struct Stream {
    pub id: u64,
    /// Its number among all that were ever named here.
    pub lane: u64,
    /// It is another device's, or another context's: only its points are known here.
    pub elsewhere: bool,
    /// A thread ends it, or has ended it.
    ends: AtomicBool,
    /// All its work; set when it is about to end.
    end: Mutex<Option<Fence>, { levels::STREAM_END }>,
}

impl Stream {
    pub(super) fn new(id: u64, lane: u64) -> Stream {
        Stream { id, lane, elsewhere: false, ends: AtomicBool::new(false), end: Mutex::new(None) }
    }

    pub(super) fn elsewhere(id: u64, lane: u64) -> Stream {
        Stream { elsewhere: true, ..Stream::new(id, lane) }
    }

    /// What it left behind, if it has ended or is about to.
    pub(crate) fn end(&self) -> Option<Fence> {
        lock(&self.end).clone()
    }
}

/// A stream that is about to end. Nobody queues more on it.
pub struct Ending {
    pub(crate) stream: Arc<Stream>,
}

impl Ending {
    /// The caller's number of the stream.
    pub fn id(&self) -> u64 {
        self.stream.id
    }
}

/// So many streams may end until somebody looks whether what they left behind is passed.
const ENDED: usize = 32;

impl Order {
    /// Fails for a stream that is none, or that does not order memory here.
    pub(crate) fn check_own(&self, id: u64) -> Result<()> {
        if Self::is_word(id) || id == EVERY {
            fail!(Code::UnknownStream, "stream {id:#x} is not a stream of this device");
        }
        if !self.backing().owns(id)? {
            fail!(
                Code::UnknownStream,
                "stream {id:#x} is of another device or context: its use of memory can be recorded here, nothing else"
            );
        }
        Ok(())
    }

    /// A stream that uses memory of this device, its own or not.
    pub(crate) fn user(&self, id: u64) -> Result<Arc<Stream>> {
        if Self::is_word(id) || id == EVERY {
            fail!(Code::UnknownStream, "stream {id:#x} is not a stream of this device");
        }
        if self.backing().owns(id)? {
            return Ok(self.stream(self.ordered(id)));
        }
        let mut s = lock(&self.streams);
        if let Some(known) = s.elsewhere.get(&id).and_then(Weak::upgrade) {
            return Ok(known);
        }
        s.elsewhere.retain(|_, known| known.strong_count() > 0);
        let stream = Arc::new(Stream::elsewhere(id, self.last_stream.fetch_add(1, Relaxed)));
        s.elsewhere.insert(id, Arc::downgrade(&stream));
        Ok(stream)
    }

    /// A stream that is another device's is about to end, as that one was told: what waits for its work here must not
    /// take a new stream of that number for it.
    pub fn ending_elsewhere(&self, id: u64) {
        let known = lock(&self.streams).elsewhere.get(&id).and_then(Weak::upgrade);
        let Some(stream) = known else { return };
        // Where no mark can be made now, it is left to later: the device knows what to do for a stream that has ended.
        if let Ok(made) = self.mark(&stream) {
            let fence = self.source.fence(stream.lane, made);
            if made.is_none() {
                fence.set_passed();
            }
            *lock(&stream.end) = Some(fence);
        }
        lock(&self.streams).elsewhere.remove(&id);
    }

    /// `Busy` for a stream that is captured and so must not end.
    pub fn check_end(&self, id: u64) -> Result<()> {
        if !self.backing().is_default(id) && self.records(id) {
            fail!(Code::Busy, "stream {id:#x} is being captured");
        }
        Ok(())
    }

    /// A stream is about to end: what is queued on it becomes the fence that it leaves behind, which counts among those of
    /// ended streams from here on. Where none can be made, the stream is waited for. Nobody queues more on it. To be
    /// followed by [`ended`](Self::ended), or by [`not_ended`](Self::not_ended). `UnknownStream` where another thread
    /// is ending it.
    pub fn ending(&self, id: u64) -> Result<Ending> {
        let stream = self.stream(id);
        // AcqRel: after an end that was given up, what that has undone is seen.
        if stream.ends.swap(true, AcqRel) {
            fail!(Code::UnknownStream, "stream {id:#x} is being ended by another thread");
        }
        let made: Result<_> = self.mark(&stream);
        let waited = made.is_err() && self.check_wait().and_then(|()| self.backing().sync_stream(id)).is_ok();
        let over = waited || matches!(made, Ok(None));
        // Where it could not be waited for either, only a wait for the device tells.
        let fence = self.source.fence(stream.lane, made.ok().flatten());
        if over {
            fence.set_passed();
        }
        // It counts before the device lists the stream no more, so that nobody finds neither.
        lock(&self.streams).ended.push(fence.clone());
        *lock(&stream.end) = Some(fence);
        self.wait_for_askers(id);
        Ok(Ending { stream })
    }

    /// The stream has ended, and nothing here but its fence stands for it any more: its number may be another's.
    pub fn ended(&self, ending: Ending) {
        let stream = ending.stream;
        let many = {
            let mut s = lock(&self.streams);
            if s.known.get(&stream.id).is_some_and(|known| Arc::ptr_eq(known, &stream)) {
                s.known.remove(&stream.id);
            }
            s.ended.len() > 2 * s.looked + ENDED
        };
        if many {
            // Where nobody ever waits for the device, nobody else looks.
            let left = self.left_behind().len();
            lock(&self.streams).looked = left;
        }
    }

    /// The device would not end it: it goes on.
    pub fn not_ended(&self, ending: Ending) {
        let gone = lock(&ending.stream.end).take();
        if let Some(fence) = &gone {
            lock(&self.streams).ended.retain(|f| !f.is(fence));
        }
        drop(gone);
        ending.stream.ends.store(false, Release);
    }

    /// The device has made a stream of that number. One that had it before may have ended just now, and another thread is
    /// about to say so: that is waited for, since memory of the one is not the other's.
    pub fn made(&self, id: u64) {
        let mut round = 0;
        // Acquire: what the other thread has changed until then is seen.
        while lock(&self.streams).known.get(&id).is_some_and(|s| s.ends.load(Acquire)) {
            pause(round);
            round = round.saturating_add(1);
        }
    }

    /// A stream that the device does not know, though nobody said that it ended, is not kept.
    pub(super) fn forget_unknown(&self, stream: &Arc<Stream>) {
        let mut s = lock(&self.streams);
        if s.known.get(&stream.id).is_some_and(|known| Arc::ptr_eq(known, stream)) {
            s.known.remove(&stream.id);
        }
    }

    /// What streams that have ended left behind and is not passed yet.
    pub(super) fn left_behind(&self) -> Vec<Fence> {
        let all = lock(&self.streams).ended.clone();
        let open: Vec<Fence> = all.iter().filter(|f| !f.ask()).cloned().collect();
        if open.len() < all.len() {
            lock(&self.streams).ended.retain(|f| !f.is_passed());
        }
        open
    }
}
