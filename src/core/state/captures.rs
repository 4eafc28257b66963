//! The live captures of a device: those that are recording, and those whose graphs may still be replayed.

use super::super::types::PoolId;
use crate::base::ordered::Map;

/// Names a capture of one device; never reused.
pub type CaptureId = u64;

/// One capture.
#[derive(Clone, Debug)]
pub(crate) struct Capture {
    pub pool: PoolId,
    /// Its streams; empty once it has ended.
    pub streams: Vec<u64>,
}

/// All captures of a device.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    pub alive: Map<CaptureId, Capture>,
    last: CaptureId,
}

impl Captures {
    /// A new capture for a stream of a pool; without a stream it has ended already.
    pub(crate) fn add(&mut self, pool: PoolId, stream: Option<u64>) -> CaptureId {
        self.last += 1;
        self.alive.insert(self.last, Capture { pool, streams: stream.into_iter().collect() });
        self.last
    }
}
