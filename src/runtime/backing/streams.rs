//! The device's own streams; and whether one has work, asked for those that are shown memory (`tools/`).

use super::Supply;
use crate::base::error::Code;
use crate::core::{Backing, EVERY};
use crate::device::StreamId;
use crate::runtime::{lock, reentry};

impl Supply {
    pub(crate) fn add_stream(&self, stream: StreamId) {
        lock(&self.streams).insert(stream);
    }

    pub(crate) fn drop_stream(&self, stream: StreamId) {
        lock(&self.streams).remove(&stream);
    }

    /// The default stream, and the streams that were created here and have not ended.
    pub(crate) fn made_here(&self) -> Vec<StreamId> {
        lock(&self.streams).iter().copied().collect()
    }

    /// Whether work that is queued on a stream of the device, or on all that have ended (`EVERY`), is all done; `false`
    /// where that cannot be told now.
    pub(crate) fn is_idle(&self, stream: StreamId) -> bool {
        if reentry::is_in_call(self) || self.capturing(stream) || self.capturing(EVERY) {
            return false;
        }
        let Ok(c) = self.call() else { return false };
        let streams = c.device.streams();
        // The NULL stream waits for what ended streams have left, too.
        let ended = || c.device.is_processor() && streams.query(0).unwrap_or(false);
        match stream {
            EVERY => ended(),
            s => streams.query(s).unwrap_or_else(|e| e.code() == Code::UnknownStream && ended()),
        }
    }
}
