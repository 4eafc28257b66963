//! Notifies observers and segment callbacks when ranges are mapped or unmapped.

use super::device_backing::DeviceBacking;
use crate::core::GranuleRun;
use crate::runtime::entry::reentry::InCall;
use crate::runtime::watch::event::{Event, EventKind};

impl DeviceBacking {
    /// Tells everyone that runs of granules are mapped side by side from `offset` on, too.
    pub(super) fn shown(&self, offset: u64, runs: &[GranuleRun]) {
        let _in = InCall::new(self);
        let mut at = self.window_at(offset);
        for &GranuleRun { first, count } in runs {
            let home = self.window_at(self.granule_at(first));
            let shown = Event::range(EventKind::SegmentMap, at, self.granule_at(count));
            self.observers.tell(Event { home, ..shown });
            self.segments.added(at, self.granule_at(count));
            at += self.granule_at(count);
        }
    }

    /// Tells who watches of a range of memory.
    pub(super) fn tell(&self, kind: EventKind, address: u64, bytes: u64) {
        self.observers.tell(Event::range(kind, address, bytes));
    }
}
