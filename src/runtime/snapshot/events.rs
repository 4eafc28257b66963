//! What a device's history has kept, as the events of a snapshot.

use super::event::{Action, Event};
use crate::runtime::recording::format::HistoryEvent;
use crate::runtime::watch::event::EventKind;
use std::collections::{HashMap, HashSet};

/// The stacks of callers, each once. Number 0 is that of nobody.
#[derive(Clone, Debug, Default)]
pub(super) struct Stacks {
    all: Vec<Box<[u64]>>,
}

impl Stacks {
    /// The return addresses of a stack, the innermost first.
    pub(super) fn get(&self, number: u32) -> &[u64] {
        let known = (number as usize).checked_sub(1).and_then(|n| self.all.get(n));
        known.map_or(&[], |s| s)
    }

    /// All of them, from number 0 on.
    pub(super) fn iter(&self) -> impl Iterator<Item = &[u64]> {
        (0..=self.all.len() as u32).map(|n| self.get(n))
    }
}

/// What a history has kept.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept {
    pub events: Vec<Event>,
    pub stacks: Stacks,
    /// What the program has noted, each once. Number 1 is the first.
    pub texts: Vec<String>,
    /// Of each block that lived or waited at the moment of the snapshot: the stack of its request.
    pub requests: HashMap<u64, u32>,
}

/// The stacks of requests by the address of the block.
#[derive(Default)]
struct Requests {
    stacks: HashMap<u64, u32>,
    /// Of blocks that were freed last at their addresses: a free may be refused after it was told.
    freed: HashMap<u64, u32>,
    /// The snapshot's own event has been seen. It comes just before the moment that the snapshot is of, so it is not known
    /// whether what comes now was before or after that.
    told: bool,
}

impl Requests {
    fn given(&mut self, address: u64, stack: u32) {
        self.freed.remove(&address);
        match self.told || stack == 0 {
            true => _ = self.stacks.remove(&address),
            false => _ = self.stacks.insert(address, stack),
        }
    }

    fn refused(&mut self, address: u64) {
        if let Some(stack) = self.freed.remove(&address) {
            self.stacks.insert(address, stack);
        }
    }

    fn gone(&mut self, address: u64) {
        if !self.told {
            let stack = self.stacks.remove(&address);
            stack.map(|stack| self.freed.insert(address, stack));
        } // else it may have been there still, and if another one has come since then, that one takes the stack away
    }
}

impl Kept {
    /// What an event's `text` says.
    pub(super) fn text(&self, number: u32) -> &str {
        let at = (number as usize).checked_sub(1);
        at.and_then(|n| self.texts.get(n)).map_or("", |t| t)
    }
}

/// Numbers for notes, each text once.
#[derive(Default)]
struct Texts<'a> {
    all: Vec<String>,
    numbers: HashMap<&'a str, u32>,
}

impl<'a> Texts<'a> {
    fn number(&mut self, text: &'a str) -> u32 {
        *self.numbers.entry(text).or_insert_with(|| {
            self.all.push(text.to_owned());
            self.all.len() as u32
        })
    }
}

/// The events of the device's own memory, in the form of PyTorch's: a block is freed by `free_requested` and
/// `free_completed`, one of each. `unix_us` is the wall clock's time at `monotonic_ns`; the snapshot is that which the
/// thread `taker` has taken last.
pub(super) fn of(history: &[HistoryEvent], taker: u32, unix_us: u64, monotonic_ns: u64) -> Kept {
    let mut all = Vec::with_capacity(history.len());
    let mut waiting = HashSet::new();
    let mut stacks = Stacks::default();
    let mut numbers: HashMap<&[u64], u32> = HashMap::new();
    let mut texts = Texts::default();
    let mine = |h: &HistoryEvent| h.event.kind == EventKind::Snapshot && h.event.thread == taker;
    let moment = history.iter().rposition(mine);
    let mut requests = Requests { told: moment.is_none(), ..Requests::default() };
    for (n, h) in history.iter().enumerate().filter(|(_, h)| !h.event.host) {
        requests.told |= moment == Some(n);
        let e = &h.event;
        let stack = match &h.frames[..] {
            [] => 0,
            frames => *numbers.entry(frames).or_insert_with(|| {
                stacks.all.push(frames.into());
                stacks.all.len() as u32
            }),
        };
        let time_us = unix_us.saturating_sub(monotonic_ns.saturating_sub(e.time) / 1000);
        let (about_block, failed) =
            (!e.is_segment() && e.kind != EventKind::Annotate, e.kind == EventKind::Oom);
        let pooled = about_block && !matches!(e.kind, EventKind::Snapshot | EventKind::RecordStream);
        let event = |action| Event {
            address: if failed || e.kind == EventKind::Annotate { 0 } else { e.address },
            bytes: e.bytes,
            requested: if about_block { e.requested } else { 0 },
            device_free: e.device_free(),
            stream: e.stream.unwrap_or(0),
            pool: pooled.then_some(e.pool),
            thread: e.thread,
            tag: e.tag,
            stack,
            ..Event::new(action, time_us)
        };
        match e.kind {
            EventKind::Alloc => requests.given(e.address, stack),
            EventKind::FreeRequested if e.at_once => requests.gone(e.address),
            EventKind::FreeCompleted if waiting.contains(&e.address) => requests.gone(e.address),
            EventKind::FreeRefused => requests.refused(e.address),
            _ => {}
        }
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
            EventKind::RecordStream => all.push(event(Action::RecordStream)),
            EventKind::Annotate => {
                let text = h.text.as_deref().map_or(0, |t| texts.number(t));
                all.push(Event { text, ..event(Action::Annotate) });
            }
            EventKind::FreeCompleted => {}
        }
    }
    Kept { events: all, stacks, texts: texts.all, requests: requests.stacks }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::watch::event::Event as Seen;

    #[test]
    fn a_block_whose_free_was_refused_has_its_callers() {
        let at = |kind, frames: &[u64]| HistoryEvent {
            event: Seen { address: 1, at_once: true, ..Seen::new(kind) },
            stamp: 0,
            frames: frames.to_vec(),
            text: None,
        };
        let free = at(EventKind::FreeRequested, &[7]);
        let (given, refused) = (at(EventKind::Alloc, &[5, 6]), at(EventKind::FreeRefused, &[]));
        let taken = at(EventKind::Snapshot, &[]);
        let taker = taken.event.thread;
        let kept = of(&[given.clone(), free.clone(), refused, taken.clone()], taker, 0, 0);
        assert_eq!(
            kept.requests.get(&1).map(|&n| kept.stacks.all[n as usize - 1].to_vec()),
            Some(vec![5, 6])
        );
        assert!(of(&[given, free, taken], taker, 0, 0).requests.is_empty());
    }

    #[test]
    fn each_block_is_freed_by_one_pair_of_events() {
        let at = |kind, address, time| Seen { address, time, bytes: 512, ..Seen::new(kind) };
        let history = [
            at(EventKind::Alloc, 1, 1_000_000),
            Seen { at_once: true, ..at(EventKind::FreeRequested, 1, 2_000_000) },
            at(EventKind::Alloc, 2, 3_000_000),
            Seen { host: true, ..at(EventKind::Alloc, 9, 3_000_000) },
            at(EventKind::FreeRequested, 2, 3_000_000),
            at(EventKind::Annotate, 0, 3_000_000),
            at(EventKind::RecordStream, 2, 3_000_000),
            at(EventKind::FreeCompleted, 2, 4_000_000),
            at(EventKind::FreeCompleted, 2, 4_000_000),
            at(EventKind::Alloc, 3, 4_000_000),
            at(EventKind::FreeRequested, 3, 5_000_000),
            at(EventKind::FreeRefused, 3, 5_000_000),
        ];
        let note = |e: &Seen| (e.kind == EventKind::Annotate).then(|| "epoch 2".to_owned());
        let history =
            history.map(|event| HistoryEvent { event, stamp: 0, frames: Vec::new(), text: note(&event) });
        let kept = of(&history, 0, 100_000, 5_000_000);
        let noted = kept.events.iter().find(|e| e.action == Action::Annotate);
        assert_eq!(noted.map(|e| kept.text(e.text)), Some("epoch 2"));
        let all: Vec<_> = kept.events.iter().map(|e| (e.action, e.address, e.time_us)).collect();
        use Action::{Alloc, Annotate, FreeCompleted, FreeRequested, RecordStream};
        let want = [
            (Alloc, 1, 96_000),
            (FreeRequested, 1, 97_000),
            (FreeCompleted, 1, 97_000),
            (Alloc, 2, 98_000),
            (FreeRequested, 2, 98_000),
            (Annotate, 0, 98_000),
            (RecordStream, 2, 98_000),
            (FreeCompleted, 2, 99_000),
            (Alloc, 3, 99_000),
            (FreeRequested, 3, 100_000),
            (FreeCompleted, 3, 100_000),
            (Alloc, 3, 100_000),
        ];
        assert_eq!(all, want);
    }

    #[test]
    fn blocks_have_the_stacks_of_their_requests_where_these_are_certain() {
        use EventKind::{Alloc, FreeCompleted, FreeRequested, Snapshot};
        let at = |kind, address, frames: &[u64]| {
            let event = Seen { address, thread: 7, ..Seen::new(kind) };
            HistoryEvent { event, stamp: 0, frames: frames.to_vec(), text: None }
        };
        let at_once = |mut e: HistoryEvent| {
            e.event.at_once = true;
            e
        };
        let history = [
            at(Alloc, 1, &[10, 20]),
            at(Alloc, 2, &[10, 20]),
            at(Alloc, 3, &[30]),
            at(Snapshot, 0, &[]), // an earlier one
            at_once(at(FreeRequested, 2, &[40])),
            at(FreeRequested, 3, &[40]), // it waits, and is there
            at(Alloc, 4, &[50]),
            at(Alloc, 5, &[50]),
            at(Alloc, 6, &[]),
            at(Snapshot, 0, &[]), // from here on: before or after the moment, nobody knows
            at_once(at(FreeRequested, 4, &[40])),
            at_once(at(FreeRequested, 5, &[40])),
            at(Alloc, 5, &[60]),
            at(Alloc, 8, &[60]),
            at(FreeCompleted, 3, &[]),
        ];
        let kept = of(&history, 7, 0, 0);
        let of_block =
            |n: u64| -> Vec<u64> { kept.requests.get(&n).map_or(vec![], |&s| kept.stacks.get(s).to_vec()) };
        assert_eq!([1, 3, 4].map(of_block), [vec![10u64, 20], vec![30], vec![50]]);
        assert!([2, 5, 6, 8].map(of_block).iter().all(Vec::is_empty));
        assert_eq!(kept.stacks.iter().count(), 6, "each once, and that of nobody");
        assert_eq!(kept.stacks.get(kept.events[0].stack).to_vec(), vec![10u64, 20]);
        assert!(of(&history, 8, 0, 0).requests.is_empty(), "of another thread's snapshots");
    }
}
