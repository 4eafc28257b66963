//! An event: the work that its stream had been given when the event was last recorded.

use super::stream::Point;
use super::times::Times;
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
    /// A new event of device `ordinal`, which counts as completed.
    pub(super) fn new(ordinal: usize) -> Self {
        Event { ordinal, recorded: Mutex::new(Vec::new()), times: None }
    }

    /// One that notes the time.
    pub(super) fn timed(ordinal: usize) -> Self {
        Event { times: Some(Arc::default()), ..Event::new(ordinal) }
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

    /// Makes the event stand for this point. Recording it again allocates no host memory.
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
        let old = std::mem::replace(&mut *lock(&self.recorded), points);
        drop(old);
    }

    /// Whether everything recorded is done.
    pub(super) fn is_done(&self) -> bool {
        lock(&self.recorded).iter().all(Point::done)
    }

    /// The recorded points that are not done yet.
    pub(super) fn pending(&self) -> Vec<Point> {
        let mut recorded = lock(&self.recorded);
        recorded.retain(|point| !point.done());
        recorded.clone()
    }
}
