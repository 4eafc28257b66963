//! Events of the caller for which freed blocks wait. They stay the caller's: they never join our own spare events, and
//! each is released as soon as it is seen to have completed, or nothing waits for it any more.
//!
//! Until then it must stay as it was recorded. Through this library the caller cannot break that: recording it again is
//! refused, and destroying it is deferred, although for the caller it is gone. No lock is held while the device is
//! called.

use crate::base::error::{Code, Error, Result, no_host_memory};
use crate::base::ordered::Map;
use crate::base::sync::system::{Mutex, lock};
use crate::device::{EventId, Streams};
use crate::fail;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

struct BorrowedEvent {
    event: Option<EventId>, // `None`: it has completed, and belongs to the caller alone again
    points: u32,            // how many points stand for it
    destroyed: bool,        // by the caller; the event is destroyed when we release it
}

#[derive(Default)]
struct State {
    by_number: Map<u64, BorrowedEvent>,
    by_event: Map<EventId, u64>,
    last: u64,
}

impl State {
    fn of(&self, event: EventId) -> Option<(u64, &BorrowedEvent)> {
        let &number = self.by_event.get(&event)?;
        Some((number, self.by_number.get(&number)?))
    }
}

/// The borrowed events of one device.
#[derive(Default)]
pub(super) struct Borrowed {
    count: AtomicUsize, // the length of `by_event`
    state: Mutex<State>,
}

fn destroyed<T>(event: EventId) -> Result<T> {
    fail!(Code::UnknownEvent, "event {event:#x} was destroyed")
}

impl Borrowed {
    /// Returns a number that stands for the event until [`forget`](Self::forget), which must follow each call; `None`
    /// if the event has completed.
    pub(super) fn borrow(&self, streams: &dyn Streams, event: EventId) -> Result<Option<u64>> {
        if event == 0 {
            return Err(Error::new(Code::InvalidArgument, "the event is NULL"));
        }
        self.check(event)?;
        if streams.event_query(event)? {
            return Ok(None);
        }
        let mut s = lock(&self.state);
        if !(s.by_event.make_room() && s.by_number.make_room()) {
            return Err(no_host_memory());
        }
        let known = s.by_event.get(&event).copied();
        let number = known.unwrap_or_else(|| {
            s.last += 1;
            s.last
        });
        s.by_event.insert(event, number);
        let fresh = BorrowedEvent { event: Some(event), points: 0, destroyed: false };
        s.by_number.entry(number).or_insert(fresh).points += 1;
        self.count.store(s.by_event.len(), Relaxed);
        Ok(Some(number))
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// The event of a number; `None` if it has completed.
    pub(super) fn event(&self, number: u64) -> Option<EventId> {
        lock(&self.state).by_number.get(&number)?.event
    }

    /// Whether the event of the number has completed; if so, it is released.
    pub(super) fn passed(&self, streams: &dyn Streams, number: u64) -> Result<bool> {
        let Some(event) = self.event(number) else { return Ok(true) };
        let done = streams.event_query(event)?;
        if done && let Some(e) = self.let_go(number, false) {
            let _ = streams.event_destroy(e); // for the caller it has long been gone
        }
        Ok(done)
    }

    /// The number is not needed any more. Returns the event if it must be destroyed, because the caller has destroyed
    /// it.
    pub(super) fn forget(&self, number: u64) -> Option<EventId> {
        self.let_go(number, true)
    }

    fn let_go(&self, number: u64, forget: bool) -> Option<EventId> {
        let mut s = lock(&self.state);
        let held = s.by_number.get_mut(&number)?;
        if forget {
            held.points -= 1;
        }
        let last = held.points == 0;
        let event = if last || !forget { held.event.take() } else { None };
        let destroy = held.destroyed;
        if last {
            s.by_number.remove(&number);
        }
        if let Some(e) = event {
            s.by_event.remove(&e);
            self.count.store(s.by_event.len(), Relaxed);
        }
        event.filter(|_| destroy)
    }

    /// Whether we still need the event as it is.
    pub(super) fn holds(&self, streams: &dyn Streams, event: EventId) -> Result<bool> {
        if self.count.load(Relaxed) == 0 {
            return Ok(false);
        }
        let Some(number) = lock(&self.state).of(event).map(|(number, _)| number) else { return Ok(false) };
        Ok(!self.passed(streams, number)?)
    }

    /// Fails for an event that the caller has destroyed, but that is still needed here.
    pub(super) fn check(&self, event: EventId) -> Result<()> {
        if self.count.load(Relaxed) != 0 && lock(&self.state).of(event).is_some_and(|(_, h)| h.destroyed) {
            return destroyed(event);
        }
        Ok(())
    }

    /// The caller destroys the event. `true`: it is still needed, and destroyed here later.
    pub(super) fn keep(&self, streams: &dyn Streams, event: EventId) -> Result<bool> {
        self.check(event)?;
        if !self.holds(streams, event)? {
            return Ok(false);
        }
        let mut s = lock(&self.state);
        let number = s.of(event).map(|(number, _)| number);
        match number.and_then(|n| s.by_number.get_mut(&n)) {
            Some(held) => {
                held.destroyed = true;
                Ok(true)
            }
            None => Ok(false), // the last wait for it has just ended
        }
    }

    /// The device ends: destroys the events that the caller has destroyed.
    pub(super) fn close(&self, streams: &dyn Streams) {
        let s = std::mem::take(&mut *lock(&self.state));
        self.count.store(0, Relaxed);
        for e in s.by_number.into_values().filter(|h| h.destroyed).filter_map(|h| h.event) {
            let _ = streams.event_destroy(e); // a device that is ending may have lost it already
        }
    }
}
