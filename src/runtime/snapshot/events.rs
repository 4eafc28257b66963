//! What a device's history has kept, as the events of a snapshot.

use super::{Action, Event};
use crate::runtime::history::HistoryEvent;
use crate::runtime::observe::EventKind;
use std::collections::HashSet;

/// The events of the device's own memory, in the form of PyTorch's: a block is freed by `free_requested` and
/// `free_completed`, one of each. `unix_us` is the wall clock's time at `monotonic_ns`.
pub(super) fn of(history: &[HistoryEvent], unix_us: u64, monotonic_ns: u64) -> Vec<Event> {
    let mut all = Vec::with_capacity(history.len());
    let mut waiting = HashSet::new();
    for e in history.iter().map(|e| &e.event).filter(|e| !e.host) {
        let time_us = unix_us.saturating_sub(monotonic_ns.saturating_sub(e.time) / 1000);
        let event = |action| Event {
            action,
            time_us,
            address: e.address,
            bytes: e.bytes,
            stream: e.stream.unwrap_or(0),
        };
        match e.kind {
            EventKind::Alloc => all.push(event(Action::Alloc)),
            EventKind::FreeRequested => {
                all.push(event(Action::FreeRequested));
                if e.at_once {
                    all.push(event(Action::FreeCompleted));
                } else {
                    waiting.insert(e.address);
                }
            }
            // One for a block that is not waiting says nothing.
            EventKind::FreeCompleted if waiting.remove(&e.address) => all.push(event(Action::FreeCompleted)),
            // PyTorch has no such event: the block ends and begins anew.
            EventKind::FreeRefused => {
                if waiting.remove(&e.address) {
                    all.push(event(Action::FreeCompleted));
                }
                all.push(event(Action::Alloc));
            }
            EventKind::SegmentAlloc => all.push(event(Action::SegmentAlloc)),
            EventKind::SegmentFree => all.push(event(Action::SegmentFree)),
            EventKind::SegmentMap => all.push(event(Action::SegmentMap)),
            EventKind::SegmentUnmap => all.push(event(Action::SegmentUnmap)),
            EventKind::Oom => all.push(event(Action::Oom)),
            EventKind::Snapshot => all.push(event(Action::Snapshot)),
            EventKind::FreeCompleted | EventKind::RecordStream | EventKind::Annotate => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::observe;

    #[test]
    fn each_block_is_freed_by_one_pair_of_events() {
        let at =
            |kind, address, time| observe::Event { address, time, bytes: 512, ..observe::Event::new(kind) };
        let history = [
            at(EventKind::Alloc, 1, 1_000_000),
            observe::Event { at_once: true, ..at(EventKind::FreeRequested, 1, 2_000_000) },
            at(EventKind::Alloc, 2, 3_000_000),
            observe::Event { host: true, ..at(EventKind::Alloc, 9, 3_000_000) },
            at(EventKind::FreeRequested, 2, 3_000_000),
            at(EventKind::Annotate, 0, 3_000_000),
            at(EventKind::FreeCompleted, 2, 4_000_000),
            at(EventKind::FreeCompleted, 2, 4_000_000),
            at(EventKind::Alloc, 3, 4_000_000),
            at(EventKind::FreeRequested, 3, 5_000_000),
            at(EventKind::FreeRefused, 3, 5_000_000),
        ];
        let history = history.map(|event| HistoryEvent { event, frames: Vec::new(), text: None });
        let all: Vec<_> =
            of(&history, 100_000, 5_000_000).iter().map(|e| (e.action, e.address, e.time_us)).collect();
        use Action::{Alloc, FreeCompleted, FreeRequested};
        let want = [
            (Alloc, 1, 96_000),
            (FreeRequested, 1, 97_000),
            (FreeCompleted, 1, 97_000),
            (Alloc, 2, 98_000),
            (FreeRequested, 2, 98_000),
            (FreeCompleted, 2, 99_000),
            (Alloc, 3, 99_000),
            (FreeRequested, 3, 100_000),
            (FreeCompleted, 3, 100_000),
            (Alloc, 3, 100_000),
        ];
        assert_eq!(all, want);
    }
}
