//! An event: what a stream had been given when the event was last recorded.

use super::stream::Point;
use crate::base::sync::system::{Mutex, lock};

/// An event of one device. Waits copy what it has recorded, so that recording it anew or destroying
/// it changes no wait that is queued already.
pub(super) struct Event {
    ordinal: usize,
    recorded: Mutex<Vec<Point>>, // done when all of these are; empty: completed
}

impl Event {
    /// A new event of device `ordinal`, as if completed.
    pub(super) fn new(ordinal: usize) -> Self {
        Event { ordinal, recorded: Mutex::new(Vec::new()) }
    }

    /// The device it was created on.
    pub(super) fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// Stands for this point from now on. Recording again takes no memory from the host.
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
        // May hold the last reference of a stream: dropped without the lock.
        drop(old);
    }

    /// Stands for all these points from now on.
    pub(super) fn record_all(&self, points: Vec<Point>) {
        let old = std::mem::replace(&mut *lock(&self.recorded), points);
        drop(old);
    }

    /// Whether everything recorded is done.
    pub(super) fn is_done(&self) -> bool {
        lock(&self.recorded).iter().all(Point::done)
    }

    /// The points that are not done yet.
    pub(super) fn pending(&self) -> Vec<Point> {
        let mut recorded = lock(&self.recorded);
        recorded.retain(|point| !point.done());
        recorded.clone()
    }
}
