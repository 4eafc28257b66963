//! The captures of a device that are alive: those that record, and those whose graphs may still be replayed.

use super::super::types::PoolId;
use std::collections::BTreeMap;

/// Names a capture of one device; never used again.
pub type CaptureId = u64;

/// One capture.
#[derive(Clone, Debug)]
pub(crate) struct Capture {
    pub pool: PoolId,
    /// Its streams; none: it has ended.
    pub streams: Vec<u64>,
}

/// See the file's head.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    pub alive: BTreeMap<CaptureId, Capture>,
    last: CaptureId,
}

impl Captures {
    /// A new capture for a stream of a pool.
    pub(crate) fn add(&mut self, pool: PoolId, stream: u64) -> CaptureId {
        self.last += 1;
        self.alive.insert(self.last, Capture { pool, streams: vec![stream] });
        self.last
    }
}
