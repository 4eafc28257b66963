//! Events of the caller that freed blocks wait for. They stay the caller's: they never get among our own spare
//! ones, and we let go of each as soon as it is seen to have completed, or nothing waits for it any more.
//!
//! Until then it must stay as it was recorded. Through this library the caller cannot break that: recording it
//! anew is refused, and destroying it is put off, although for the caller it is gone. No lock is held while the
//! device is called.

use crate::base::error::{Code, Error, Result};
use crate::core::Mark;
use crate::device::{Device, EventId};
use crate::fail;
use crate::runtime::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The high bits of a mark that stands for a borrowed event; no event or pointer has them.
const TAG: u64 = 0xCA11 << 48;
const TAG_MASK: u64 = 0xFFFF << 48;

struct Held {
    event: Option<EventId>, // `None`: it has completed, and is the caller's alone again
    marks: u32,             // marks that stand for it
    destroyed: bool,        // by the caller; to be done when we let go
}

#[derive(Default)]
struct State {
    by_mark: BTreeMap<u64, Held>,
    by_event: BTreeMap<EventId, u64>,
    last: u64,
}

impl State {
    fn of(&self, event: EventId) -> Option<(u64, &Held)> {
        let &mark = self.by_event.get(&event)?;
        Some((mark, self.by_mark.get(&mark)?))
    }
}

/// The borrowed events of one device.
#[derive(Default)]
pub(crate) struct Borrowed {
    count: AtomicUsize, // of `by_event`
    state: Mutex<State>,
}

fn destroyed<T>(event: EventId) -> Result<T> {
    fail!(Code::UnknownEvent, "event {event:#x} was destroyed")
}

impl Borrowed {
    /// Whether the mark stands for a borrowed event.
    pub(crate) fn is_mark(mark: Mark) -> bool {
        mark & TAG_MASK == TAG
    }

    /// A mark that is passed when the event is; `None` when that is already so.
    pub(crate) fn borrow(&self, device: &dyn Device, event: EventId) -> Result<Option<Mark>> {
        if event == 0 {
            return Err(Error::new(Code::InvalidArgument, "the event is NULL"));
        }
        self.check(event)?;
        if device.event_query(event)? {
            return Ok(None);
        }
        let mut s = lock(&self.state);
        let known = s.by_event.get(&event).copied();
        let mark = known.unwrap_or_else(|| {
            s.last += 1;
            TAG | s.last
        });
        s.by_event.insert(event, mark);
        s.by_mark.entry(mark).or_insert(Held { event: Some(event), marks: 0, destroyed: false }).marks += 1;
        self.count.store(s.by_event.len(), Relaxed);
        Ok(Some(mark))
    }

    /// The event of a mark; `None` when it has completed.
    pub(crate) fn event(&self, mark: Mark) -> Option<EventId> {
        lock(&self.state).by_mark.get(&mark)?.event
    }

    /// Whether the event of the mark has completed; if so, we let go of it.
    pub(crate) fn passed(&self, device: &dyn Device, mark: Mark) -> Result<bool> {
        let Some(event) = self.event(mark) else { return Ok(true) };
        let done = device.event_query(event)?;
        if done {
            self.let_go(device, mark, false);
        }
        Ok(done)
    }

    /// The mark is not needed any more.
    pub(crate) fn forget(&self, device: &dyn Device, mark: Mark) {
        self.let_go(device, mark, true);
    }

    fn let_go(&self, device: &dyn Device, mark: Mark, forget: bool) {
        let gone = {
            let mut s = lock(&self.state);
            let Some(held) = s.by_mark.get_mut(&mark) else { return };
            if forget {
                held.marks -= 1;
            }
            let last = held.marks == 0;
            let event = if last || !forget { held.event.take() } else { None };
            let destroy = held.destroyed;
            if last {
                s.by_mark.remove(&mark);
            }
            if let Some(e) = event {
                s.by_event.remove(&e);
                self.count.store(s.by_event.len(), Relaxed);
            }
            event.filter(|_| destroy)
        };
        if let Some(e) = gone {
            let _ = device.event_destroy(e); // for the caller it is gone since long
        }
    }

    /// Whether we still need the event as it is.
    pub(crate) fn holds(&self, device: &dyn Device, event: EventId) -> Result<bool> {
        if self.count.load(Relaxed) == 0 {
            return Ok(false);
        }
        let Some(mark) = lock(&self.state).of(event).map(|(mark, _)| mark) else { return Ok(false) };
        Ok(!self.passed(device, mark)?)
    }

    /// Fails for an event that the caller has destroyed, though we still have it.
    pub(crate) fn check(&self, event: EventId) -> Result<()> {
        if self.count.load(Relaxed) != 0 && lock(&self.state).of(event).is_some_and(|(_, h)| h.destroyed) {
            return destroyed(event);
        }
        Ok(())
    }

    /// The caller destroys the event. `true`: we need it, and destroy it ourselves later.
    pub(crate) fn keep(&self, device: &dyn Device, event: EventId) -> Result<bool> {
        self.check(event)?;
        if !self.holds(device, event)? {
            return Ok(false);
        }
        let mut s = lock(&self.state);
        let mark = s.of(event).map(|(mark, _)| mark);
        match mark.and_then(|m| s.by_mark.get_mut(&m)) {
            Some(held) => {
                held.destroyed = true;
                Ok(true)
            }
            None => Ok(false), // nothing waits for it since a moment ago
        }
    }

    /// The device ends: events that the caller has destroyed go.
    pub(crate) fn close(&self, device: &dyn Device) {
        let s = std::mem::take(&mut *lock(&self.state));
        self.count.store(0, Relaxed);
        for e in s.by_mark.into_values().filter(|h| h.destroyed).filter_map(|h| h.event) {
            let _ = device.event_destroy(e); // a device that is ending may have lost it already
        }
    }
}
