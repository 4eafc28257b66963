//! When an event was reached, for events that note the time.

use crate::base::error::{Code, Error, Result};
use crate::base::sync::system::{Mutex, lock};
use std::time::Instant;

/// The records of one event. Each is numbered when it is queued, and noted when its stream comes to it.
#[derive(Default)]
pub(super) struct Times(Mutex<State>);

#[derive(Default)]
struct State {
    /// How often the event was recorded.
    records: u64,
    /// Which record was reached last, and when.
    reached: Option<(u64, Instant)>,
}

impl Times {
    /// The number of a new record.
    pub(super) fn begin(&self) -> u64 {
        let mut s = lock(&self.0);
        s.records += 1;
        s.records
    }

    /// That record, the newest, was not queued.
    pub(super) fn forget(&self, record: u64) {
        let mut s = lock(&self.0);
        s.records -= u64::from(s.records == record);
    }

    /// The stream has come to that record.
    pub(super) fn reach(&self, record: u64) {
        let mut s = lock(&self.0);
        if s.reached.is_none_or(|(last, _)| last < record) {
            s.reached = Some((record, Instant::now()));
        }
    }

    /// When the last record was reached.
    pub(super) fn last(&self) -> Result<Instant> {
        let s = lock(&self.0);
        match s.reached {
            _ if s.records == 0 => Err(Error::new(Code::InvalidArgument, "the event was never recorded")),
            Some((last, at)) if last == s.records => Ok(at),
            _ => Err(Error::new(Code::Busy, "the work that the event recorded is not done")),
        }
    }
}
