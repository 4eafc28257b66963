//! The device's own streams; and whether one has work, asked for those that are shown memory (`tools/`).

use super::device_backing::DeviceBacking;
use crate::base::error::Code;
use crate::base::sync::system::lock;
use crate::core::{EVERY, Order};
use crate::device::StreamId;
use crate::runtime::entry::reentry;
use std::ops::Bound::{Excluded, Unbounded};

impl DeviceBacking {
    /// The stream was created here. Until now its handle may have stood for one that has ended without notice.
    pub(crate) fn add_stream(&self, stream: StreamId) {
        lock(&self.streams).insert(stream);
        if let Some(external) = self.device.external_streams() {
            external.note_created(stream);
        }
    }

    pub(crate) fn drop_stream(&self, stream: StreamId) {
        lock(&self.streams).remove(&stream);
    }

    /// The default stream, and the streams that were created here and have not ended.
    pub(crate) fn made_here(&self) -> Vec<StreamId> {
        lock(&self.streams).iter().collect()
    }

    /// Calls `each` for every one of them, with nothing locked, and without a list of them: the host may have no memory for
    /// it.
    pub(crate) fn each_made_here(&self, each: &mut dyn FnMut(StreamId)) {
        let after = |last| lock(&self.streams).range((last, Unbounded)).next();
        let mut at = after(Unbounded);
        while let Some(stream) = at {
            each(stream);
            at = after(Excluded(stream));
        }
    }

    /// Whether work that is queued on a stream of the device, or on all that have ended (`EVERY`), is all done; `false`
    /// where that cannot be told now.
    pub(crate) fn is_idle(&self, order: &Order, stream: StreamId) -> bool {
        if reentry::is_in_call(self) {
            return false;
        }
        if stream == EVERY {
            return order.has_nothing_left();
        }
        // A stream must not be asked while it is captured, and where others have streams, they may begin that any time.
        if self.device.external_streams().is_some() {
            return order.is_done(stream);
        }
        let asked = self.call().and_then(|c| c.device.streams().query(stream));
        // It may have ended a moment ago.
        asked.unwrap_or_else(|e| e.code() == Code::UnknownStream && order.has_nothing_left())
    }
}
