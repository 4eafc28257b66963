//! A record from a device's history.

use super::record::{Block, Builder, Kind, Mark, NEVER, Range, Record, Use};
use crate::history::History;
use crate::trace::When;
use crate::units;
use millpond::runtime::{Event, EventKind, HistoryEvent};
use std::collections::HashMap;

/// How the history is read: its number is that of a trace that was replayed.
#[derive(Default)]
pub(super) struct Reading<'a> {
    /// Calls of the program; what comes after them is cleaning up.
    pub(super) most_calls: Option<u64>,
    /// Of each call: the number of its stream, for requests, and the line of the trace.
    pub(super) calls: &'a [(u32, u32)],
    /// Calls at which a step of the program begins.
    pub(super) steps: &'a [u64],
    /// Of each call: when and in which thread the trace has it. Empty where it does not say.
    pub(super) when: &'a [When],
}

/// The events of a history.
pub(super) struct Reader<'a> {
    history: &'a History,
    how: Reading<'a>,
    b: Builder,
    frames: HashMap<u64, Vec<u32>>, // by address: the numbers of what is there
    calls: u64,
}

/// The record of a history's file.
pub(super) fn record(title: &str, history: &History) -> Record {
    let mut r = read(title, history, Reading::default());
    for (key, name) in
        [("device", "device"), ("program", "program"), ("process", "process"), ("millpond", "Millpond")]
    {
        if let Some((_, value)) = history.file.about.iter().find(|a| a.0 == key) {
            r.fact(name, value);
        }
    }
    r
}

pub(super) fn read(title: &str, history: &History, how: Reading<'_>) -> Record {
    let mut r = Reader { history, how, b: Builder::new(title), frames: HashMap::new(), calls: 0 };
    for e in &history.file.events {
        if !r.event(e) {
            break;
        }
    }
    let lacks = r.b.lacks();
    let mut record = r.b.record;
    record.notes = history.notes();
    record.notes.extend(lacks);
    let bare = record.cover_older_blocks();
    if bare > 0 {
        record.notes.push(format!(
            "memory was reserved before the record began: {} of it is known, as blocks lie in it",
            units::bytes(bare)
        ));
    }
    record
}

impl Reader<'_> {
    fn stack(&mut self, frames: &[u64]) -> u32 {
        if frames.is_empty() {
            return 0;
        }
        let (known, record) = (&mut self.frames, &mut self.b.record);
        let mut stack = Vec::with_capacity(frames.len());
        for &f in frames {
            let names = || self.history.frame(f).iter().map(|name| record.texts.frame(name)).collect();
            stack.extend_from_slice(known.entry(f).or_insert_with(names));
        }
        record.stacks.number(stack)
    }

    /// As the trace has it, where that does: of what comes before a call, that of the call.
    fn time(&self, e: &Event) -> u64 {
        let n = self.calls - u64::from(e.kind == EventKind::FreeCompleted && self.calls > 0);
        let told = usize::try_from(n).ok().and_then(|n| self.how.when.get(n)).or(self.how.when.last());
        told.map_or(e.time, |w| w.time)
    }

    fn thread(&mut self, e: &Event) -> u32 {
        let told = usize::try_from(self.calls).ok().and_then(|n| self.how.when.get(n)).map(|w| w.thread);
        match told {
            Some(0) => 0,
            Some(n) => self.b.record.threads.number(n.to_string()),
            None if !self.how.when.is_empty() => 0,
            None => self.b.record.threads.number(e.thread.to_string()),
        }
    }

    /// Of a request, or of the block that it has got.
    fn stream(&mut self, e: &Event) -> u32 {
        let of_trace = usize::try_from(self.calls).ok().and_then(|n| self.how.calls.get(n)).map(|c| c.0);
        let name = match (of_trace, e.stream) {
            (Some(n), _) => format!("stream {n}"),
            (None, None) => "all streams".to_owned(),
            (None, Some(0)) => "default stream".to_owned(),
            (None, Some(s)) => format!("{s:#x}"),
        };
        self.b.record.streams.number(name)
    }

    fn pool(&mut self, e: &Event) -> u32 {
        let name = match (e.host, e.pool.0) {
            (true, _) => "pinned host memory".to_owned(),
            (false, 0) => "default pool".to_owned(),
            (false, n) => self.history.file.pools.get(&n).cloned().unwrap_or_else(|| format!("pool {n}")),
        };
        self.b.record.pools.number(name)
    }

    fn tag(&mut self, number: u16) -> u32 {
        if number == 0 {
            return 0;
        }
        let name = self.history.file.tags.get(&number).cloned().unwrap_or_else(|| format!("tag {number}"));
        self.b.record.tags.number(name)
    }

    fn block(&mut self, e: &Event, born: u32) -> Block {
        let line = usize::try_from(self.calls).ok().and_then(|n| self.how.calls.get(n)).map_or(0, |c| c.1);
        Block {
            address: e.address,
            bytes: e.bytes,
            requested: e.requested,
            host: e.host,
            born,
            asked: NEVER,
            done: NEVER,
            stream: self.stream(e),
            pool: self.pool(e),
            tag: 0,
            thread: 0,
            stack: 0,
            freed_by: 0,
            freed_stack: 0,
            line,
        }
    }

    /// Takes the next event; whether more are wanted.
    fn event(&mut self, h: &HistoryEvent) -> bool {
        let e = &h.event;
        if self.how.most_calls.is_some_and(|most| self.calls >= most)
            && matches!(e.kind, EventKind::Alloc | EventKind::FreeRequested)
        {
            return false;
        }
        let now = self.b.moment(self.time(e));
        if matches!(e.kind, EventKind::Alloc | EventKind::FreeRequested)
            && let Ok(n) = self.how.steps.binary_search(&self.calls)
        {
            let text = format!("step {}", n + 1);
            self.b.record.marks.push(Mark { moment: now, what: "step", text });
        }
        match e.kind {
            EventKind::Alloc => {
                let (thread, stack, tag) = (self.thread(e), self.stack(&h.frames), self.tag(e.tag));
                let block = self.block(e, now);
                self.b.came(Block { thread, stack, tag, ..block });
                self.calls += 1;
            }
            EventKind::FreeRequested => {
                let (thread, stack) = (self.thread(e), self.stack(&h.frames));
                let mut block = self.block(e, 0);
                block.line = 0;
                self.b.asked(now, e.at_once, thread, stack, block);
                self.calls += 1;
            }
            EventKind::FreeCompleted => self.b.completed(now, e.host, e.address),
            EventKind::FreeRefused => {
                self.b.refused(e.host, e.address);
                self.mark(now, "refused", format!("the free of the block at {:#x} has failed", e.address));
            }
            EventKind::SegmentAlloc => self.added(now, e, Kind::Memory),
            EventKind::SegmentMap => self.added(now, e, Kind::Shown),
            EventKind::SegmentFree => self.b.removed(now, e.host, Kind::Memory, e.address, e.bytes),
            EventKind::SegmentUnmap => self.b.removed(now, e.host, Kind::Shown, e.address, e.bytes),
            EventKind::RecordStream => {
                let (stream, thread) = (self.stream(e), self.thread(e));
                if let Some(block) = self.b.latest(e.host, e.address) {
                    self.b.record.uses.push(Use { block, moment: now, stream, thread });
                }
            }
            EventKind::Oom => {
                let (stream, pool, thread) = (self.stream(e), self.pool(e), self.thread(e));
                let name = |t: &super::record::Table<String>, n| t.get(n).cloned().unwrap_or_default();
                let r = &self.b.record;
                let free = e.device_free().map(|n| format!("; the device had {} free", units::bytes(n)));
                let text = format!(
                    "out of memory: no room for {} ({}, {}, thread {}){}",
                    units::bytes(e.bytes),
                    name(&r.streams, stream),
                    name(&r.pools, pool),
                    name(&r.threads, thread),
                    free.unwrap_or_default()
                );
                self.mark(now, "oom", text);
            }
            EventKind::Snapshot => self.mark(now, "snapshot", "a snapshot was taken".to_owned()),
            EventKind::Annotate => self.mark(now, "note", h.text.clone().unwrap_or_default()),
        }
        true
    }

    fn added(&mut self, now: u32, e: &Event, kind: Kind) {
        let range = Range::new(kind, e.address, e.bytes);
        self.b.added(Range { host: e.host, born: now, home: e.home, ..range });
    }

    fn mark(&mut self, moment: u32, what: &'static str, text: String) {
        self.b.record.marks.push(Mark { moment, what, text });
    }
}

#[cfg(test)]
mod tests {
    use super::super::encode;
    use super::*;
    use millpond::core::PoolId;
    use millpond::runtime::HistoryFile;

    fn event(kind: EventKind, address: u64, bytes: u64) -> HistoryEvent {
        let event = Event {
            time: 0,
            kind,
            host: false,
            at_once: false,
            ended: false,
            address,
            bytes,
            requested: bytes,
            stream: Some(7),
            pool: PoolId(3),
            thread: 99,
            tag: 0,
            home: 0,
        };
        HistoryEvent { event, stamp: 0, frames: Vec::new(), text: None }
    }

    fn history(events: Vec<HistoryEvent>) -> History {
        History::of(HistoryFile { events, ..HistoryFile::default() })
    }

    #[test]
    fn a_trace_lends_streams_lines_and_steps() {
        use EventKind::{Alloc, FreeRequested, SegmentAlloc};
        let mut free = event(FreeRequested, 64, 8);
        free.event.at_once = true;
        let events = vec![event(SegmentAlloc, 64, 64), event(Alloc, 64, 8), free, event(Alloc, 64, 16)];
        let h = history(events);
        let how =
            Reading { most_calls: Some(2), calls: &[(5, 11), (5, 12), (6, 13)], steps: &[0, 1], when: &[] };
        let r = read("x", &h, how);
        assert_eq!((r.blocks.len(), r.last()), (1, 3), "what comes after the trace's calls is left out");
        let b = &r.blocks[0];
        assert_eq!((b.born, b.asked, b.done, b.line), (2, 3, 3, 11));
        assert_eq!(r.streams.get(b.stream).unwrap(), "stream 5");
        let steps: Vec<_> = r.marks.iter().map(|m| (m.moment, m.text.as_str())).collect();
        assert_eq!(steps, [(2, "step 1"), (3, "step 2")]);
    }

    #[test]
    fn a_trace_lends_times_and_threads() {
        use EventKind::{Alloc, FreeCompleted, FreeRequested, SegmentAlloc};
        let all = [SegmentAlloc, Alloc, FreeRequested, FreeCompleted, Alloc];
        let events: Vec<_> = all.iter().map(|&k| event(k, 64, 8)).collect();
        let when = [(500, 12), (700, 0), (900, 13)].map(|(time, thread)| When { time, thread });
        let how = Reading { calls: &[(0, 1), (0, 2), (0, 3)], when: &when, ..Reading::default() };
        let r = read("x", &history(events), how);
        assert_eq!(r.times, [0, 0, 0, 200, 200, 400]);
        let thread = |n: u32| r.threads.get(n).unwrap().as_str();
        assert_eq!(
            (thread(r.blocks[0].thread), r.blocks[0].freed_by, thread(r.blocks[1].thread)),
            ("12", 0, "13")
        );
    }

    #[test]
    fn a_block_waits_is_refused_and_is_used() {
        use EventKind::{Alloc, FreeCompleted, FreeRefused, FreeRequested, RecordStream};
        let mut used = event(RecordStream, 64, 0);
        used.event.stream = Some(0);
        let all =
            [Alloc, FreeRequested, FreeRefused, RecordStream, FreeRequested, FreeCompleted, FreeCompleted];
        let mut events: Vec<_> = all.iter().map(|&k| event(k, 64, 8)).collect();
        events[3] = used;
        let r = read("x", &history(events), Reading::default());
        let b = &r.blocks[0];
        assert_eq!((r.blocks.len(), b.born, b.asked, b.done), (1, 1, 5, 6));
        assert_eq!((r.uses[0].block, r.uses[0].moment), (0, 4));
        assert_eq!(r.streams.get(r.uses[0].stream).unwrap(), "default stream");
        assert_eq!(r.marks[0].what, "refused");
    }

    /// Events in any order with numbers of any size: a file may say what it likes.
    #[test]
    fn whatever_a_file_says_is_drawn() {
        let mut seed = 0x2545_f491_4f6c_dd1du64;
        let mut roll = |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below
        };
        for round in 0..300 {
            let mut events = Vec::new();
            for _ in 0..roll(60) {
                let sizes = [0, 1, 512, 1 << 21, 1 << 53, u64::MAX / 2, u64::MAX];
                let places = [0, 64, 1 << 21, 3 << 20, 1 << 46, u64::MAX - 511, u64::MAX];
                let kind = EventKind::ALL[roll(12) as usize];
                let mut e = event(kind, places[roll(7) as usize], sizes[roll(7) as usize]);
                e.event.requested = sizes[roll(7) as usize];
                e.event.home = places[roll(7) as usize];
                e.event.host = roll(4) == 0;
                e.event.at_once = roll(2) == 0;
                e.event.time = if round % 2 == 0 { roll(u64::MAX) } else { roll(100) };
                e.event.tag = roll(3) as u16;
                e.text = (kind == EventKind::Annotate).then(|| "\u{0}</script>".to_owned());
                e.frames = (0..roll(3)).collect();
                events.push(e);
            }
            let r = read("x", &history(events), Reading::default());
            assert!(r.times.is_sorted());
            let last = r.last();
            for b in &r.blocks {
                assert!(b.born <= b.asked && b.asked <= b.done && (b.born <= last), "{b:?}");
            }
            assert!(r.ranges.iter().all(|x| x.born <= x.died && x.bytes > 0));
            let page = encode::encode(&r, "1");
            assert!(page.len() > 4);
            assert!(crate::perfetto::export(&r).len() > 4);
        }
    }
}
