//! Capture of streams into graphs.

use crate::code::*;
use crate::exec::Work;
use crate::gate::Entry;
use crate::world::{Answer, World};

/// All captures that go on.
#[derive(Default)]
pub(crate) struct Captures {}

pub(crate) const TABLE: &[Entry] = &[];

impl World {
    /// Refuses what waits for a whole context while one of its streams is captured.
    pub(crate) fn refuse_in_capture(&mut self, _context: u64) -> Answer {
        OK
    }

    /// Refuses to wait for or ask a stream that is captured.
    pub(crate) fn refuse_stream_in_capture(&mut self, _stream: u64) -> Answer {
        OK
    }

    /// Refuses calls that are unsafe while something is captured, by the thread's capture mode.
    pub(crate) fn refuse_unsafe_in_capture(&mut self) -> Answer {
        OK
    }

    pub(crate) fn has_capture_in(&self, _context: u64) -> bool {
        false
    }

    /// True: the work became a node.
    pub(crate) fn capture_node(&mut self, _stream: u64, _work: &Work) -> Result<bool, u32> {
        Ok(false)
    }

    pub(crate) fn capture_wait(&mut self, _stream: u64, _event: u64) -> Result<bool, u32> {
        Ok(false)
    }

    pub(crate) fn capture_record(&mut self, _stream: u64, _event: u64) -> Result<bool, u32> {
        Ok(false)
    }

    pub(crate) fn capture_stream_destroyed(&mut self, _stream: u64) {}
}
