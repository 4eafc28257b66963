//! The events of a device.

use super::{HandleTable, take};
use crate::base::error::{Code, Result};
use crate::base::sync::system::lock;
use crate::fail;
use std::sync::atomic::Ordering::Relaxed;

fn destroyed(event: u64) -> Result<()> {
    fail!(Code::UnknownEvent, "event {event:#x} was destroyed")
}

impl HandleTable {
    pub(in crate::device::cuda) fn event_create(&self, timed: bool) -> Result<u64> {
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
    pub(in crate::device::cuda) fn note_record(&self, event: u64) {
        // Relaxed: a thread that has the handle sees what its creation stored.
        if self.any_timed.load(Relaxed)
            && let Some(recorded) = lock(&self.timed).get_mut(&event)
        {
            *recorded = true;
        }
    }

    /// [ms] between two events that note the time and have been recorded.
    pub(in crate::device::cuda) fn event_elapsed(&self, start: u64, end: u64) -> Result<f32> {
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

    pub(in crate::device::cuda) fn event_destroy(&self, event: u64) -> Result<()> {
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
    pub(in crate::device::cuda) fn check_event(&self, event: u64) -> Result<()> {
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
    pub(in crate::device::cuda) fn check_awaited(&self, event: u64) -> Result<()> {
        match lock(&self.makers.events).get(&event) {
            Some((_, false)) => destroyed(event),
            _ => Ok(()),
        }
    }
}
