//! What a freed block of host memory waits for: points in the work of streams, perhaps of other devices than the
//! one it was taken from.

use super::cache::Use;
use crate::base::error::Code;
use crate::device::EventId;
use crate::runtime::device::DeviceState;
use crate::runtime::{by_id, lock};
use std::sync::atomic::Ordering::Relaxed;

/// A point in a device's work.
#[derive(Debug)]
pub(super) enum Mark {
    /// Where the event was recorded.
    Event(u32, EventId),
    /// The device would not record one: all its work so far.
    Everything(u32),
}

impl Mark {
    fn device(&self) -> u32 {
        match self {
            Mark::Event(d, _) | Mark::Everything(d) => *d,
        }
    }
}

impl DeviceState {
    /// Runs `f` with another open device, or with this one, on which the caller holds a pass. `Err(true)`: that
    /// device has ended, and all its work with it; `Err(false)`: it is about to.
    fn with_device<R>(&self, id: u32, f: impl FnOnce(&DeviceState) -> R) -> Result<R, bool> {
        if id == self.id() {
            return Ok(f(self));
        }
        let Some(other) = by_id(id) else { return Err(true) };
        match other.enter() {
            Ok(_pass) => Ok(f(other)),
            Err(_) => Err(other.host.ended.load(Relaxed)),
        }
    }

    /// A mark behind everything that is queued on a stream now; `None` when nothing is.
    pub(super) fn mark_use(&self, by: Use) -> Option<Mark> {
        let made = self.with_device(by.device, |d| {
            if !matches!(d.device().capture_id(by.stream), Ok(None)) {
                return Some(Mark::Everything(by.device)); // an event would be a part of the graph
            }
            let spare = lock(&d.host.events).pop();
            let event = match spare.map_or_else(|| d.device().event_create(), Ok) {
                Ok(e) => e,
                // Without events the stream is waited for.
                Err(e) if e.code() == Code::Unsupported => {
                    let waited = d.device().stream_synchronize(by.stream).is_ok();
                    return (!waited).then_some(Mark::Everything(by.device));
                }
                Err(_) => return Some(Mark::Everything(by.device)),
            };
            let recorded = d.device().event_record(by.stream, event);
            if recorded.is_err() || d.device().event_query(event).unwrap_or(false) {
                lock(&d.host.events).push(event);
                return recorded.err().map(|_| Mark::Everything(by.device));
            }
            Some(Mark::Event(by.device, event))
        });
        match made {
            Ok(mark) => mark,
            Err(true) => None,
            Err(false) => Some(Mark::Everything(by.device)),
        }
    }

    /// Whether the work before a mark is done. The mark is used up then.
    pub(super) fn mark_passed(&self, mark: &Mark, wait: bool) -> bool {
        let passed = self.with_device(mark.device(), |d| match *mark {
            Mark::Event(_, e) => {
                // A device that cannot tell any more is asked to come to rest.
                let over = d.device().event_query(e).unwrap_or(false)
                    || wait && d.device().event_synchronize(e).or_else(|_| d.device().synchronize()).is_ok();
                if over {
                    lock(&d.host.events).push(e);
                }
                over
            }
            Mark::Everything(_) => wait && d.device().synchronize().is_ok(),
        });
        passed.unwrap_or_else(|ended| ended)
    }
}
