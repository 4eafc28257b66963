//! Segment callbacks: called for each range of addresses that gets memory, and, before the memory goes away, for each
//! that loses it. Communication libraries register memory with their devices there.
//!
//! Callbacks run one at a time, on the thread that needs the change, and hold no lock that anybody else needs, except
//! that other threads with a change to report wait for their turn. A range is changed by one thread at a time, so the
//! callbacks for it come in order. The ranges are recorded whether or not there are callbacks, which costs little
//! compared with the call to the device.

use crate::base::error::{Code, Error, Result};
use crate::base::ordered::Map;
use crate::base::sync::system::{Mutex, lock};
use crate::fail;
use crate::locks;
use crate::runtime::entry::reentry;
use crate::runtime::watch::numbers;
use std::sync::Arc;

/// What happens to a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// It has memory from now on.
    Added,
    /// It is about to lose its memory.
    Removed,
}

/// Called with what happens, the first address and the bytes.
pub(crate) type SegmentCallback = dyn Fn(Segment, u64, u64) + Send + Sync;

fn call(callback: &SegmentCallback, what: Segment, addr: u64, bytes: u64) {
    reentry::in_segment_callback(|| callback(what, addr, bytes));
}

#[derive(Default)]
struct State {
    live: Map<u64, u64>, // address -> bytes, as they were added
    listeners: Listeners,
    closed: bool,
}

/// The ranges of one device that have memory, and the callbacks.
#[derive(Default)]
pub(crate) struct Segments {
    state: Mutex<State>,
    /// The turn to call back. Taken before `state`, or without it.
    turn: Mutex<(), locks::SegmentsTurn>,
}

type Listeners = Vec<(u64, Arc<SegmentCallback>)>;

impl Segments {
    /// Adds a callback, calls it for every existing range, and returns its number, never 0 and never reused.
    pub(crate) fn listen(&self, callback: Arc<SegmentCallback>) -> Result<u64> {
        // Until this one has been called for every existing range, nobody calls it for a change.
        let _turn = lock(&self.turn);
        let (id, live) = {
            let mut s = lock(&self.state);
            if s.closed {
                return Err(Error::new(Code::NotInitialized, "the device was finalised"));
            }
            let id = numbers::next();
            s.listeners.push((id, callback.clone()));
            (id, s.live.clone())
        };
        for (addr, bytes) in live {
            call(&*callback, Segment::Added, addr, bytes);
        }
        Ok(id)
    }

    /// Removes a callback. When this returns, no thread is in it.
    pub(crate) fn leave(&self, id: u64) -> Result<()> {
        let gone = {
            let mut s = lock(&self.state);
            let Some(at) = s.listeners.iter().position(|l| l.0 == id) else {
                fail!(Code::InvalidArgument, "there is no segment callback {id}, or it was removed");
            };
            s.listeners.remove(at)
        };
        drop(lock(&self.turn)); // whichever thread has called it has left it
        drop(gone); // foreign code may run in its destructor
        Ok(())
    }

    /// Calls those callbacks that were registered when the change was made and still are.
    fn tell(&self, listeners: &Listeners, what: Segment, addr: u64, bytes: u64) {
        if listeners.is_empty() {
            return;
        }
        let _turn = lock(&self.turn);
        for (id, callback) in listeners {
            if lock(&self.state).listeners.iter().any(|l| l.0 == *id) {
                call(&**callback, what, addr, bytes);
            }
        }
    }

    /// The range has memory now.
    pub(crate) fn added(&self, addr: u64, bytes: u64) {
        let listeners = {
            let mut s = lock(&self.state);
            s.live.insert(addr, bytes);
            s.listeners.clone()
        };
        self.tell(&listeners, Segment::Added, addr, bytes);
    }

    /// The range is about to lose its memory. It may be a part of what was added, or several of those ranges: each call
    /// reports a part of one added range. Returns the parts, for [`back`](Self::back).
    pub(crate) fn going(&self, addr: u64, bytes: u64) -> Vec<(u64, u64)> {
        let mut parts = Vec::new();
        let listeners = {
            let mut s = lock(&self.state);
            let end = addr + bytes;
            while let Some((&from, &size)) = s.live.range(..end).next_back() {
                if from + size <= addr {
                    break;
                }
                s.live.remove(&from);
                let (start, stop) = (from.max(addr), (from + size).min(end));
                if from < start {
                    s.live.insert(from, start - from);
                }
                if stop < from + size {
                    s.live.insert(stop, from + size - stop);
                }
                parts.push((start, stop - start));
                if from < start {
                    break;
                }
            }
            s.listeners.clone()
        };
        parts.reverse(); // in the order of addresses
        parts.iter().for_each(|&(at, size)| self.tell(&listeners, Segment::Removed, at, size));
        parts
    }

    /// The device has refused to take the parts back: they have memory again.
    pub(crate) fn back(&self, parts: &[(u64, u64)]) {
        parts.iter().for_each(|&(at, size)| self.added(at, size));
    }

    /// All memory is about to go, and the callbacks with it.
    pub(crate) fn close(&self) {
        // One after the other: the host may have no memory for a list.
        let next = || lock(&self.state).live.first_key_value().map(|(&addr, &bytes)| (addr, bytes));
        while let Some((addr, bytes)) = next() {
            self.going(addr, bytes);
        }
        let gone = {
            let mut s = lock(&self.state);
            s.closed = true;
            std::mem::take(&mut s.listeners)
        };
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn parts_of_ranges_and_several_at_once() {
        let s = Segments::default();
        let log: Arc<Mutex<Vec<(Segment, u64, u64)>>> = Arc::default();
        let to = log.clone();
        s.added(100, 50);
        let id = s.listen(Arc::new(move |what, at, n| lock(&to).push((what, at, n)))).unwrap();
        s.added(150, 50);
        s.added(300, 10);
        let said = || std::mem::take(&mut *lock(&log));
        let (add, gone) = (Segment::Added, Segment::Removed);
        assert_eq!(said(), [(add, 100, 50), (add, 150, 50), (add, 300, 10)]);
        assert_eq!(s.going(120, 50), [(120, 30), (150, 20)]);
        assert_eq!(said(), [(gone, 120, 30), (gone, 150, 20)]);
        s.back(&[(120, 30)]);
        assert_eq!(said(), [(add, 120, 30)]);
        assert_eq!(s.going(110, 5), [(110, 5)]);
        assert_eq!(s.going(400, 5), []);
        assert_eq!(said(), [(gone, 110, 5)]);
        s.close();
        let last = [(gone, 100, 10), (gone, 115, 5), (gone, 120, 30), (gone, 170, 30), (gone, 300, 10)];
        assert_eq!(said(), last);
        assert_eq!(s.leave(id).unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(s.listen(Arc::new(|_, _, _| ())).unwrap_err().code(), Code::NotInitialized);
    }
}
