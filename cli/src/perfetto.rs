//! A record as a trace for Perfetto: its protobuf, of which this writes the few messages that it takes.
//!
//! There are counters (allocated, active, reserved; allocated by tag and by stream), an instant event for each event of the
//! record on the track of its thread, and slices for waits and for the lives of large blocks. Slices of one track must
//! nest, and these do not, so that each kind has as many tracks as overlap. They have one name, by which Perfetto puts them
//! together. A record without times of its own gets a microsecond for each event.
//!
//! All tracks are below one that is nothing else: below one that is a process, Perfetto's page sorts them by name, and what was
//! reserved would come behind the hundreds of tracks of large blocks. Here they stand as they were made.

use crate::view::{Block, Kind, NEVER, Record};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Tags or streams that have counters of their own: those that hold most, ever.
const MOST_COUNTERS: usize = 32;
/// Only blocks of at least 1/1000 of the peak get slices, so at most 1000 live at once.
const LARGE: u64 = 1000;

/// Fields of the messages, by the names that perfetto_trace.proto has for them.
mod field {
    pub(super) const PACKET: u32 = 1; // Trace

    pub(super) const TIMESTAMP: u32 = 8; // TracePacket
    pub(super) const TRUSTED_PACKET_SEQUENCE_ID: u32 = 10;
    pub(super) const TRACK_EVENT: u32 = 11;
    pub(super) const INTERNED_DATA: u32 = 12;
    pub(super) const SEQUENCE_FLAGS: u32 = 13;
    pub(super) const TRACK_DESCRIPTOR: u32 = 60;

    pub(super) const EVENT_NAMES: u32 = 2; // InternedData
    pub(super) const DEBUG_ANNOTATION_NAMES: u32 = 3;
    pub(super) const DEBUG_ANNOTATION_STRING_VALUES: u32 = 29;
    pub(super) const IID: u32 = 1; // EventName, DebugAnnotationName, InternedString
    pub(super) const IID_NAME: u32 = 2;

    pub(super) const DEBUG_ANNOTATIONS: u32 = 4; // TrackEvent
    pub(super) const TYPE: u32 = 9;
    pub(super) const EVENT_NAME_IID: u32 = 10;
    pub(super) const TRACK_UUID: u32 = 11;
    pub(super) const NAME: u32 = 23;
    pub(super) const COUNTER_VALUE: u32 = 30;

    pub(super) const NAME_IID: u32 = 1; // DebugAnnotation
    pub(super) const UINT_VALUE: u32 = 3;
    pub(super) const POINTER_VALUE: u32 = 7;
    pub(super) const STRING_VALUE_IID: u32 = 17;

    pub(super) const UUID: u32 = 1; // TrackDescriptor
    pub(super) const TRACK_NAME: u32 = 2;
    pub(super) const PARENT_UUID: u32 = 5;
    pub(super) const COUNTER: u32 = 8;
    pub(super) const CHILD_ORDERING: u32 = 11;
    pub(super) const SIBLING_ORDER_RANK: u32 = 12;

    pub(super) const UNIT: u32 = 3; // CounterDescriptor
    pub(super) const Y_AXIS_SHARE_KEY: u32 = 7;
}

const SIZE_BYTES: u64 = 3; // CounterDescriptor.Unit
const EXPLICIT: u64 = 3; // TrackDescriptor.ChildTracksOrdering
const SLICE_BEGIN: u64 = 1; // TrackEvent.Type
const SLICE_END: u64 = 2;
const INSTANT: u64 = 3;
const COUNTER_EVENT: u64 = 4;
const INCREMENTAL_STATE_CLEARED: u64 = 1; // TracePacket.SequenceFlags
const NEEDS_INCREMENTAL_STATE: u64 = 2;

/// The one sequence of packets.
const SEQUENCE: u64 = 1;
/// The track that has all others.
const ALL: u64 = 1;

/// What an instant event tells, besides its name.
const NOTES: [&str; 6] = ["address", "bytes", "requested", "stream", "pool", "tag"];

/// The names of instant events.
const EVENTS: [&str; 5] = ["alloc", "free", "free_requested", "free_completed", "record_stream"];

/// A message that is being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    fn number(mut self, field: u32, n: u64) -> Self {
        self.varint(u64::from(field) << 3);
        self.varint(n);
        self
    }

    fn bytes(mut self, field: u32, bytes: &[u8]) -> Self {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    fn text(self, field: u32, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    fn message(self, field: u32, m: &Message) -> Self {
        self.bytes(field, &m.0)
    }
}

/// The trace that is being written.
struct Export<'r> {
    record: &'r Record,
    out: Message,
    tracks: u64, // the last number that was given
}

impl Export<'_> {
    fn time(&self, moment: u32) -> u64 {
        match self.record.timed {
            true => self.record.times.get(moment as usize).copied().unwrap_or(0),
            false => u64::from(moment) * 1000,
        }
    }

    fn packet(&mut self, packet: Message) {
        let packet = packet.number(field::TRUSTED_PACKET_SEQUENCE_ID, SEQUENCE);
        self.out = std::mem::take(&mut self.out).message(field::PACKET, &packet);
    }

    fn track(&mut self, descriptor: Message) -> u64 {
        self.tracks += 1;
        let descriptor = descriptor.number(field::UUID, self.tracks);
        self.packet(Message::default().message(field::TRACK_DESCRIPTOR, &descriptor));
        self.tracks
    }

    /// The next track.
    fn child(&mut self, name: &str, counter: bool) -> u64 {
        let mut d = Message::default()
            .text(field::TRACK_NAME, name)
            .number(field::PARENT_UUID, ALL)
            .number(field::SIBLING_ORDER_RANK, self.tracks);
        if counter {
            // All with one scale, so that their heights can be compared.
            let c = Message::default().number(field::UNIT, SIZE_BYTES).text(field::Y_AXIS_SHARE_KEY, "bytes");
            d = d.message(field::COUNTER, &c);
        }
        self.track(d)
    }

    fn event(&mut self, moment: u32, kind: u64, track: u64, rest: Message) {
        let e = Message::default().number(field::TYPE, kind).number(field::TRACK_UUID, track);
        let e = Message([e.0, rest.0].concat());
        let p = Message::default()
            .number(field::TIMESTAMP, self.time(moment))
            .number(field::SEQUENCE_FLAGS, NEEDS_INCREMENTAL_STATE)
            .message(field::TRACK_EVENT, &e);
        self.packet(p);
    }

    /// A counter, from what is added and taken away at each moment.
    fn counter(&mut self, name: &str, mut changes: Vec<(u32, i64)>) {
        let track = self.child(name, true);
        changes.sort_by_key(|c| c.0);
        let mut sum = 0i64;
        if changes.first().is_none_or(|c| c.0 > 0) {
            changes.insert(0, (0, 0));
        }
        for at in changes.chunk_by(|a, b| a.0 == b.0) {
            let before = sum;
            sum = at.iter().fold(sum, |sum, c| sum.saturating_add(c.1));
            if sum != before || at[0].0 == 0 {
                let value = Message::default().number(field::COUNTER_VALUE, sum as u64);
                self.event(at[0].0, COUNTER_EVENT, track, value);
            }
        }
    }

    /// Slices, in the order in which they begin: on each track, one after the other.
    fn slices(&mut self, name: &str, slices: impl Iterator<Item = (u32, u32, Message)>) {
        let mut free: BinaryHeap<Reverse<(u32, u64)>> = BinaryHeap::new();
        for (from, to, what) in slices {
            let track = match free.peek() {
                Some(&Reverse((end, track))) if end <= from => {
                    free.pop();
                    track
                }
                _ => self.child(name, false),
            };
            self.event(from, SLICE_BEGIN, track, what);
            self.event(to, SLICE_END, track, Message::default());
            free.push(Reverse((to, track)));
        }
    }

    /// What is told of a block: all, or where it is and how large.
    fn notes(&self, n: usize, all: bool) -> Message {
        let (r, b) = (self.record, &self.record.blocks[n]);
        let note = |n: u64| Message::default().number(field::NAME_IID, n + 1);
        // Streams, pools and tags have their numbers in this order.
        let pools = r.streams.all().len() as u64 + 1;
        let tags = pools + r.pools.all().len() as u64;
        let told = [
            note(0).number(field::POINTER_VALUE, b.address),
            note(1).number(field::UINT_VALUE, b.bytes),
            note(2).number(field::UINT_VALUE, b.requested),
            note(3).number(field::STRING_VALUE_IID, u64::from(b.stream) + 1),
            note(4).number(field::STRING_VALUE_IID, u64::from(b.pool) + pools),
            note(5).number(field::STRING_VALUE_IID, u64::from(b.tag) + tags),
        ];
        let told = told.iter().take(if all { NOTES.len() } else { 2 });
        told.fold(Message::default(), |m, a| m.message(field::DEBUG_ANNOTATIONS, a))
    }

    fn head(&mut self) {
        let all = Message::default().text(field::TRACK_NAME, &self.record.title);
        self.track(all.number(field::CHILD_ORDERING, EXPLICIT));
        let mut names = Message::default();
        let r = self.record;
        let values = r.streams.all().iter().chain(r.pools.all()).chain(r.tags.all());
        let values: Vec<&str> = values.map(String::as_str).collect();
        for (field, all) in [
            (field::EVENT_NAMES, &EVENTS[..]),
            (field::DEBUG_ANNOTATION_NAMES, &NOTES[..]),
            (field::DEBUG_ANNOTATION_STRING_VALUES, &values[..]),
        ] {
            // The number of each is its place plus one.
            for (n, name) in all.iter().enumerate() {
                let one = Message::default().number(field::IID, n as u64 + 1).text(field::IID_NAME, name);
                names = names.message(field, &one);
            }
        }
        let p = Message::default()
            .number(field::SEQUENCE_FLAGS, INCREMENTAL_STATE_CLEARED)
            .message(field::INTERNED_DATA, &names);
        self.packet(p);
    }

    fn counters(&mut self) {
        let r = self.record;
        let moments = |from: u32, to: u32, bytes: u64| {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            let end = (to != NEVER).then_some((to, -bytes));
            [Some((from, bytes)), end].into_iter().flatten()
        };
        for (host, prefix) in [(false, ""), (true, "pinned: ")] {
            let blocks = || r.blocks.iter().filter(move |b| b.host == host);
            let ranges = || r.ranges.iter().filter(move |x| x.host == host && x.kind.counts());
            if host && blocks().next().is_none() && ranges().next().is_none() {
                continue;
            }
            let of_ranges = ranges().flat_map(|x| moments(x.born, x.died, x.bytes)).collect();
            self.counter(&format!("{prefix}reserved"), of_ranges);
            // Where nothing waits, it is what `allocated` is.
            if blocks().any(|b| b.done != b.asked) {
                let active = blocks().flat_map(|b| moments(b.born, b.done, b.bytes)).collect();
                self.counter(&format!("{prefix}active"), active);
            }
            let allocated = blocks().flat_map(|b| moments(b.born, b.asked, b.bytes)).collect();
            self.counter(&format!("{prefix}allocated"), allocated);
        }
        let device = || r.blocks.iter().filter(|b| !b.host);
        for (what, names) in [("tag", &r.tags), ("stream", &r.streams)] {
            let of = |b: &Block| (if what == "tag" { b.tag } else { b.stream }) as usize;
            let mut sums: Vec<(u64, usize)> = (0..names.all().len()).map(|n| (0, n)).collect();
            device().for_each(|b| sums[of(b)].0 = sums[of(b)].0.saturating_add(b.bytes));
            sums.retain(|s| s.0 > 0);
            sums.sort_unstable_by_key(|&(bytes, n)| (Reverse(bytes), n));
            // Where there is only one, it is what `allocated` is.
            if sums.len() < 2 {
                continue;
            }
            for &(_, n) in sums.iter().take(MOST_COUNTERS) {
                let name = if what == "tag" && n == 0 { "no tag" } else { &names.all()[n] };
                let blocks = device().filter(|b| of(b) == n);
                let changes = blocks.flat_map(|b| moments(b.born, b.asked, b.bytes)).collect();
                self.counter(&format!("allocated, {what} {name}"), changes);
            }
        }
    }

    fn marks(&mut self) {
        let r = self.record;
        let track = self.child("marks", false);
        for m in &r.marks {
            self.event(m.moment, INSTANT, track, Message::default().text(field::NAME, &m.text));
        }
    }

    fn instants(&mut self) {
        let r = self.record;
        let threads = r.threads.all().iter().map(|t| format!("thread {t}")).collect::<Vec<_>>();
        let mut tracks = vec![0; threads.len()];
        // The moment, the thread, the number of its name, the block.
        let mut all: Vec<(u32, u32, u64, usize)> = Vec::new();
        for (n, b) in r.blocks.iter().enumerate() {
            if b.born > 0 {
                all.push((b.born, b.thread, 1, n));
            }
            if b.asked != NEVER && b.asked > 0 {
                all.push((b.asked, b.freed_by, if b.done == b.asked { 2 } else { 3 }, n));
            }
            if b.done != NEVER && b.done > b.asked {
                all.push((b.done, 0, 4, n));
            }
        }
        all.extend(r.uses.iter().map(|u| (u.moment, u.thread, 5, u.block as usize)));
        all.sort_by_key(|e| e.0);
        for (moment, thread, name, block) in all {
            let t = thread as usize;
            if tracks[t] == 0 {
                tracks[t] = self.child(if t == 0 { "Millpond" } else { &threads[t] }, false);
            }
            let what = Message::default().number(field::EVENT_NAME_IID, name);
            let what = Message([what.0, self.notes(block, name == 1).0].concat());
            self.event(moment, INSTANT, tracks[t], what);
        }
        for (kind, what) in [(Kind::Memory, "segment"), (Kind::Shown, "segment_map")] {
            let ranges = r.ranges.iter().filter(|x| x.kind == kind && (x.born > 0 || x.died != NEVER));
            let mut all: Vec<(u32, String)> = ranges
                .flat_map(|x| {
                    let told = |moment, done: &str| {
                        (moment, format!("{what} {done}: {} B at {:#x}", x.bytes, x.address))
                    };
                    [
                        (x.born > 0).then(|| told(x.born, "here")),
                        (x.died != NEVER).then(|| told(x.died, "gone")),
                    ]
                })
                .flatten()
                .collect();
            all.sort_by_key(|e| e.0);
            if all.is_empty() {
                continue;
            }
            let track = self.child(&format!("{what}s"), false);
            for (moment, text) in all {
                self.event(moment, INSTANT, track, Message::default().text(field::NAME, &text));
            }
        }
    }

    /// Slices of those blocks, in the order in which they begin: from when to when, and what is told first.
    fn slices_of(
        &mut self,
        name: &str,
        wanted: impl Fn(&Block) -> bool,
        of: impl Fn(&Record, &Block) -> (u32, u32, String),
    ) {
        let r = self.record;
        let mut all: Vec<_> =
            (0..r.blocks.len()).filter(|&n| wanted(&r.blocks[n])).map(|n| (n, of(r, &r.blocks[n]))).collect();
        all.sort_by_key(|a| a.1.0);
        let slices: Vec<_> = all
            .into_iter()
            .map(|(n, (from, to, told))| {
                let what =
                    Message([Message::default().text(field::NAME, &told).0, self.notes(n, true).0].concat());
                (from, if to == NEVER { r.last() } else { to }, what)
            })
            .collect();
        self.slices(name, slices.into_iter());
    }

    fn waits(&mut self) {
        let waits = |b: &Block| b.asked != NEVER && b.done != b.asked;
        self.slices_of("waiting blocks", waits, |_, b| {
            (b.asked, b.done, format!("waits, {}", crate::units::bytes(b.bytes)))
        });
    }

    fn large_blocks(&mut self) {
        let r = self.record;
        let mut sums = vec![0i64; r.times.len() + 1];
        for b in r.blocks.iter().filter(|b| !b.host) {
            let bytes = i64::try_from(b.bytes).unwrap_or(i64::MAX);
            sums[b.born as usize] = sums[b.born as usize].saturating_add(bytes);
            if b.asked != NEVER {
                sums[b.asked as usize] = sums[b.asked as usize].saturating_sub(bytes);
            }
        }
        let mut sum = 0i64;
        let peak = sums.iter().map(|s| {
            sum = sum.saturating_add(*s);
            sum
        });
        let least = (peak.max().unwrap_or(0) as u64).div_ceil(LARGE);
        let large = |b: &Block| b.bytes >= least && b.bytes > 0;
        self.slices_of("large blocks", large, |r, b| {
            let tag = r.tags.get(b.tag).filter(|t| !t.is_empty()).map_or("block", |t| t);
            (b.born, b.asked, format!("{tag}, {}", crate::units::bytes(b.bytes)))
        });
    }
}

/// The bytes of the trace.
pub(crate) fn export(record: &Record) -> Vec<u8> {
    let mut e = Export { record, out: Message::default(), tracks: 0 };
    e.head();
    e.counters();
    e.marks();
    e.waits();
    e.instants();
    e.large_blocks();
    e.out.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_protobuf() {
        let inner = Message::default().number(field::TIMESTAMP, 300);
        let m = Message::default().message(field::TRACK_DESCRIPTOR, &inner).text(field::TRACK_NAME, "ü");
        assert_eq!(m.0, [0xe2, 3, 3, 0x40, 0xac, 2, 0x12, 2, 0xc3, 0xbc]);
    }
}
