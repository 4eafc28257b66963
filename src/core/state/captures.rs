//! The live captures of a device: those that are recording, and those whose graphs may still be replayed.

use super::super::types::PoolId;
use crate::base::error::{Result, no_host_memory};
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
    /// Makes room for one more capture; returns the list of its streams, with room for one. `OutOfMemory` if the host has no
    /// memory for that.
    pub(crate) fn make_room(&mut self) -> Result<Vec<u64>> {
        let mut streams = Vec::new();
        match streams.try_reserve_exact(1).is_ok() && self.alive.make_room() {
            true => Ok(streams),
            false => Err(no_host_memory()),
        }
    }

    /// A new capture of a pool for streams; without a stream it has ended already. There is [room](Self::make_room).
    pub(crate) fn add(&mut self, pool: PoolId, streams: Vec<u64>) -> CaptureId {
        self.last += 1;
        self.alive.insert(self.last, Capture { pool, streams });
        self.last
    }
}
