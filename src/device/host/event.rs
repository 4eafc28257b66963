//! An event: the work that its stream had been given when the event was last recorded.

use super::stream::{Point, copied};
use super::times::Times;
use crate::base::boxed::try_arc;
use crate::base::error::{Code, Error, Result};
use crate::base::sync::system::{Mutex, lock};
use std::sync::Arc;
use std::time::Instant;

/// An event of one device. A wait copies what the event has recorded, so recording the event again or destroying it
/// does not affect waits that are already queued.
pub(super) struct Event {
    ordinal: usize,
    recorded: Mutex<Vec<Point>>, // done when all of these are; empty: completed
    times: Option<Arc<Times>>,   // of one that notes the time
}

impl Event {
    /// A new event of device `ordinal`, which counts as completed. `None`: the host has no memory for it.
    pub(super) fn new(ordinal: usize) -> Option<Self> {
        let mut recorded = Vec::new();
        recorded.try_reserve_exact(1).ok()?; // so that a record on a stream needs none
        Some(Event { ordinal, recorded: Mutex::new(recorded), times: None })
    }

    /// One that notes the time.
    pub(super) fn timed(ordinal: usize) -> Option<Self> {
        Some(Event { times: Some(try_arc(Times::default())?), ..Event::new(ordinal)? })
    }

    /// The times at which it was reached, if it notes them.
    pub(super) fn times(&self) -> Option<&Arc<Times>> {
        self.times.as_ref()
    }

    /// When its last record was reached.
    pub(super) fn time(&self) -> Result<Instant> {
        match &self.times {
            Some(times) => times.last(),
            None => Err(Error::new(Code::InvalidArgument, "the event was created without a time")),
        }
    }

    /// The device it was created on.
    pub(super) fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// Makes the event stand for this point. That allocates no host memory.
    pub(super) fn record(&self, point: Point) {
        let mut recorded = lock(&self.recorded);
        recorded.truncate(1);
        let old = match recorded.first_mut() {
            Some(first) => Some(std::mem::replace(first, point)),
            None => {
                recorded.push(point);
                None
            }
        };
        drop(recorded);
        // This may be the last reference to a stream: dropped after the lock is released.
        drop(old);
    }

    /// Makes the event stand for all these points.
    pub(super) fn record_all(&self, points: Vec<Point>) {
        let mut recorded = lock(&self.recorded);
        if points.is_empty() {
            // The list keeps its room.
            recorded.truncate(1);
            let old = recorded.pop();
            drop(recorded);
            return drop(old);
        }
        let old = std::mem::replace(&mut *recorded, points);
        drop(recorded);
        drop(old);
    }

    /// Whether everything recorded is done.
    pub(super) fn is_done(&self) -> bool {
        lock(&self.recorded).iter().all(Point::done)
    }

    /// The recorded points that are not done yet. `None`: the host has no memory to list them.
    pub(super) fn pending(&self) -> Option<Vec<Point>> {
        let mut recorded = lock(&self.recorded);
        recorded.retain(|point| !point.done());
        copied(&recorded)
    }

    /// Waits for all that is recorded now; if the host has no memory to list that, also for what is recorded meanwhile.
    pub(super) fn wait(&self) {
        let first = || lock(&self.recorded).iter().find(|point| !point.done()).cloned();
        match self.pending() {
            Some(points) => points.iter().for_each(Point::wait),
            None => std::iter::from_fn(first).for_each(|point| point.wait()),
        }
    }
}
