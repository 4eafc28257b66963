//! A record from a snapshot of PyTorch's (`torch.cuda.memory._dump_snapshot`), with or without a history, or from the
//! pickle in that form that Millpond writes. It is shown as it was: nothing is replayed.
//!
//! One device is shown: the one that is asked for, else the one with the longest history. Sizes in PyTorch's history are
//! those that were asked for; where every address is a multiple of 512, a block takes up its last 512 bytes wholly, so its
//! size is rounded up to that. Whatever the file says, nothing here is larger than the file.

use super::record::{Block, Builder, Kind, Mark, NEVER, Range, Record};
use crate::foreign::{LEAST_ENTRY, int, keys};
use crate::pickle::{Id, Pickle, Value};
use crate::units;
use anyhow::{Context, Result, bail, ensure};
use std::collections::{HashMap, HashSet};

/// The most frames of a stack that are shown.
const MOST_FRAMES: usize = 256;
/// PyTorch's sizes are multiples of this, and so are its addresses.
const ROUND: u64 = 512;
/// The most marks that annotations become.
const MOST_MARKS: usize = 100_000;

/// What an entry of a history says happened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Act {
    Alloc,
    FreeRequested,
    FreeCompleted,
    SegmentAlloc,
    SegmentFree,
    SegmentMap,
    SegmentUnmap,
    Oom,
    Snapshot,
    Other,
}

impl Act {
    fn of(text: &str) -> Act {
        match text {
            "alloc" => Act::Alloc,
            "free_requested" => Act::FreeRequested,
            "free_completed" | "free" => Act::FreeCompleted,
            "segment_alloc" => Act::SegmentAlloc,
            "segment_free" => Act::SegmentFree,
            "segment_map" => Act::SegmentMap,
            "segment_unmap" => Act::SegmentUnmap,
            "oom" => Act::Oom,
            "snapshot" => Act::Snapshot,
            _ => Act::Other,
        }
    }
}

/// What a frame says.
#[derive(Clone, Copy)]
enum Caller {
    Frame(u32),
    Tag(u32),
}

struct Reader<'p, 'a> {
    p: &'p Pickle<'a>,
    b: Builder,
    /// Millpond has written it: sizes are those of its account, and `segment_map` shows memory that is there already.
    ours: bool,
    round: u64,
    stacks: HashMap<Id, (u32, u32)>, // of the lists of frames: stack and tag
    told_of: HashMap<u64, String>,   // the names of streams
    /// Of the names, files and lines of frames: the number of the frame, or of the tag that it is.
    frames: HashMap<(Option<Id>, Option<Id>, u64), Caller>,
    tags: HashMap<Id, u32>, // of the texts that are tags
}

/// The record of a pickle. `device` is its number in the file.
pub(super) fn record(title: &str, bytes: &[u8], device: Option<usize>) -> Result<Record> {
    let p = Pickle::read(bytes).context("the pickle cannot be read")?;
    let traces = p.field(p.top(), "device_traces").and_then(|t| p.items(t));
    let (Some(traces), Some(_)) = (traces, p.field(p.top(), "segments").and_then(|s| p.items(s))) else {
        bail!(
            "this pickle is no snapshot of PyTorch's memory: it has no lists `device_traces` and `segments` (want the file \
             of torch.cuda.memory._dump_snapshot)"
        )
    };
    let lengths: Vec<usize> = traces.map(|t| p.items(t).map_or(0, |all| all.len())).collect();
    let segments = segments(&p, bytes.len() / LEAST_ENTRY)?;
    let of = |d: usize| segments.iter().filter(move |s| s.device == d as u64);
    let held = |d: usize| of(d).fold(0u64, |sum, s| sum.saturating_add(s.bytes));
    let count = lengths.len().max(segments.iter().map(|s| s.device as usize + 1).max().unwrap_or(0));
    let most = |d: &usize| (lengths.get(*d).copied().unwrap_or(0), held(*d), usize::MAX - d);
    let chosen = match device {
        Some(d) => {
            ensure!(d < count, "the pickle has no device {d}; it has {}", units::count(count as u64));
            d
        }
        None => (0..count).max_by_key(most).unwrap_or(0),
    };
    let events = lengths.get(chosen).copied().unwrap_or(0);
    // An entry takes a dozen bytes at least, unless the same one is named again and again.
    ensure!(
        events <= bytes.len() / LEAST_ENTRY,
        "there are more entries than the file has room for: it is damaged"
    );
    let options = settings(&p);
    let mut r = Reader {
        p: &p,
        b: Builder::new(title),
        ours: options.is_some_and(|o| o.contains("latency_histograms:")),
        round: 1,
        stacks: HashMap::new(),
        told_of: HashMap::new(),
        frames: HashMap::new(),
        tags: HashMap::new(),
    };
    r.history(chosen, events)?;
    r.layout(&segments, chosen as u64, events > 0)?;
    let lacks = if events > 0 { r.b.lacks() } else { Vec::new() };
    let ours = r.ours;
    let mut record = r.b.record;
    record.timed &= events > 0;
    record.notes = lacks;
    let who = if ours { "Millpond" } else { "PyTorch" };
    record.fact("snapshot", format!("of {who}, device {chosen}"));
    if let Some(options) = options.filter(|o| !o.is_empty()) {
        record.fact("options", options);
    }
    let rest: Vec<String> = (0..count)
        .filter(|&d| d != chosen && (held(d) > 0 || lengths.get(d).is_some_and(|&n| n > 0)))
        .map(|d| format!("{d} ({} reserved)", units::bytes(held(d))))
        .collect();
    if !rest.is_empty() {
        record.notes.push(format!(
            "this is device {chosen}; the snapshot has more, which --ordinal shows: {}",
            rest.join(", ")
        ));
    }
    Ok(record)
}

/// The allocator's options, as PyTorch's variable has them.
fn settings<'a>(p: &Pickle<'a>) -> Option<&'a str> {
    let all = p.field(p.top(), "allocator_settings")?;
    keys(all).ok()?;
    match p.field(all, "PYTORCH_CUDA_ALLOC_CONF")? {
        Value::Text(t) => Some(t),
        _ => None,
    }
}

/// A segment as the snapshot has it.
struct Segment<'p, 'a> {
    device: u64,
    address: u64,
    bytes: u64,
    stream: u64,
    value: &'p Value<'a>,
}

fn segments<'p, 'a>(p: &'p Pickle<'a>, most: usize) -> Result<Vec<Segment<'p, 'a>>> {
    let mut out = Vec::new();
    let mut blocks = 0;
    for (n, value) in p.field(p.top(), "segments").and_then(|s| p.items(s)).into_iter().flatten().enumerate()
    {
        let s = (|| {
            keys(value)?;
            let (device, bytes) = (int(p, value, "device")?, int(p, value, "total_size")?);
            ensure!(device < 4096, "there is no device {device}");
            let (address, stream) = (int(p, value, "address")?, int(p, value, "stream")?);
            blocks += p.field(value, "blocks").and_then(|b| p.items(b)).map_or(0, |b| b.len());
            Ok(Segment { device, address, bytes, stream, value })
        })();
        out.push(s.with_context(|| format!("segment {n} of the snapshot"))?);
        ensure!(
            n < most && blocks <= most,
            "there are more blocks than the file has room for: it is damaged"
        );
    }
    Ok(out)
}

impl<'p, 'a> Reader<'p, 'a> {
    fn text(&self, dict: &Value<'a>, key: &str) -> Option<&'a str> {
        match self.p.field(dict, key) {
            Some(Value::Text(t)) => Some(t),
            _ => None,
        }
    }

    fn stream(&mut self, stream: u64) -> u32 {
        let name = self.told_of.entry(stream).or_insert_with(|| match stream {
            0 => "default stream".to_owned(),
            s => format!("{s:#x}"),
        });
        self.b.record.streams.number(name.clone())
    }

    /// The stack and the tag of what has frames: a tag is the first frame in Millpond's pickle, and a text that the program
    /// has set in PyTorch's.
    fn origin(&mut self, dict: &Value<'a>) -> (u32, u32) {
        let (stack, tag) = match self.p.field_id(dict, "frames") {
            None => (0, 0),
            Some(id) => match self.stacks.get(&id) {
                Some(&known) => known,
                None => {
                    let found = self.frames(id);
                    self.stacks.insert(id, found);
                    found
                }
            },
        };
        match self.p.field_id(dict, "user_metadata").map(|id| (id, self.p.get(id))) {
            Some((id, Value::Text(text))) if !text.is_empty() => (stack, self.tag(id, text)),
            _ => (stack, tag),
        }
    }

    /// The number of a tag, whose text has that number in the pickle.
    fn tag(&mut self, id: Id, text: &str) -> u32 {
        let tags = &mut self.b.record.tags;
        *self.tags.entry(id).or_insert_with(|| tags.number(text.to_owned()))
    }

    fn frames(&mut self, id: Id) -> (u32, u32) {
        let p = self.p;
        let (mut all, mut tag) = (Vec::new(), 0);
        for f in p.items(p.get(id)).into_iter().flatten().take(MOST_FRAMES) {
            if keys(f).is_err() {
                continue;
            }
            let line = int(p, f, "line").unwrap_or(0);
            let key = (p.field_id(f, "name"), p.field_id(f, "filename"), line);
            let caller = match self.frames.get(&key) {
                Some(&known) => known,
                None => {
                    let found = self.caller(f, line);
                    self.frames.insert(key, found);
                    found
                }
            };
            match caller {
                Caller::Frame(n) => all.push(n),
                Caller::Tag(n) => tag = n,
            }
        }
        if all.is_empty() { (0, tag) } else { (self.b.record.stacks.number(all), tag) }
    }

    fn caller(&mut self, frame: &Value<'a>, line: u64) -> Caller {
        let name = self.text(frame, "name").unwrap_or("?");
        let file = self.text(frame, "filename").unwrap_or("");
        let record = &mut self.b.record;
        if file == "tag" && line == 0 {
            return Caller::Tag(record.tags.number(name.to_owned()));
        }
        Caller::Frame(match (file, line) {
            ("" | "??", _) => record.texts.frame(name),
            // Millpond's own: the name is that of the module, and the place in it.
            (_, 0) if name.contains("+0x") => record.texts.frame(name),
            // What has no room is not put together, either.
            _ if !record.texts.has_room(name.len() + file.len()) => 0,
            (_, 0) => record.texts.frame(&format!("{name} ({file})")),
            _ => record.texts.frame(&format!("{name} ({file}:{line})")),
        })
    }

    fn history(&mut self, device: usize, count: usize) -> Result<()> {
        let p = self.p;
        let list = p.field(p.top(), "device_traces").and_then(|t| p.items(t)?.nth(device));
        let all: Vec<&Value<'a>> = list.and_then(|l| p.items(l)).into_iter().flatten().collect();
        let mut entries = Vec::with_capacity(count);
        for (n, &value) in all.iter().enumerate() {
            let e = self.entry(value).with_context(|| format!("device {device}, entry {}", n + 1))?;
            entries.push((e, value));
        }
        let blocks = |a: Act| matches!(a, Act::Alloc | Act::FreeRequested | Act::FreeCompleted);
        if !self.ours && entries.iter().all(|(e, _)| !blocks(e.act) || e.address.is_multiple_of(ROUND)) {
            self.round = ROUND;
        }
        self.b.record.timed = entries.iter().all(|(e, _)| e.time.is_some());
        let mut notes = self.annotations(device as u64);
        notes.reverse(); // the next one is the last
        let mut skip = false;
        for (n, &(ref e, value)) in entries.iter().enumerate() {
            let (time, next) = (e.time.unwrap_or(n as u64), entries.get(n + 1).map(|(e, _)| e));
            while let Some((_, text)) = notes.pop_if(|note| e.time.is_some_and(|t| note.0 <= t)) {
                let moment = self.b.record.last();
                let text = self.b.record.texts.of_mark(text);
                self.b.record.marks.push(Mark { moment, what: "note", text });
            }
            if std::mem::take(&mut skip) {
                continue;
            }
            // PyTorch takes two readings of its clock, also where nothing had to be waited for.
            let soon = |x: &Entry| x.time.unwrap_or(0).saturating_sub(e.time.unwrap_or(0)) <= 1;
            let at_once = e.act == Act::FreeRequested
                && next.is_some_and(|x| x.act == Act::FreeCompleted && x.address == e.address && soon(x));
            skip = at_once;
            let now = self.b.moment(time.saturating_mul(1000));
            self.event(e, value, now, at_once);
        }
        Ok(())
    }

    fn event(&mut self, e: &Entry, value: &Value<'a>, now: u32, at_once: bool) {
        let range = |kind| Range { born: now, ..Range::new(kind, e.address, e.bytes) };
        let map = if self.ours { Kind::Shown } else { Kind::Memory };
        match e.act {
            Act::Alloc => {
                let (stream, (stack, tag)) = (self.stream(e.stream), self.origin(value));
                let block = self.block(e.address, e.bytes);
                self.b.came(Block { born: now, asked: NEVER, done: NEVER, stream, stack, tag, ..block });
            }
            Act::FreeRequested => self.freed(e, value, now, at_once),
            // Also the only word of a free, in pickles of old.
            Act::FreeCompleted => {
                let known =
                    self.b.latest(false, e.address).and_then(|n| self.b.record.blocks.get(n as usize));
                match known {
                    Some(b) if b.asked != NEVER && b.done == NEVER => self.b.completed(now, false, e.address),
                    _ => self.freed(e, value, now, true),
                }
            }
            Act::SegmentAlloc => self.b.added(range(Kind::Memory)),
            Act::SegmentMap => self.b.added(range(map)),
            Act::SegmentFree => self.b.removed(now, false, Kind::Memory, e.address, e.bytes),
            Act::SegmentUnmap => self.b.removed(now, false, map, e.address, e.bytes),
            Act::Oom => {
                // The device's free memory stands where other events have an address.
                let free = units::bytes(e.address);
                let text = format!(
                    "out of memory: no room for {}; the device had {free} free",
                    units::bytes(e.bytes)
                );
                self.b.record.marks.push(Mark { moment: now, what: "oom", text });
            }
            Act::Snapshot => {
                let text = "a snapshot was taken".to_owned();
                self.b.record.marks.push(Mark { moment: now, what: "snapshot", text });
            }
            Act::Other => {
                let what = self.text(value, "action").unwrap_or("?");
                let text = self.text(value, "user_metadata").filter(|t| !t.is_empty()).unwrap_or(what);
                let text = self.b.record.texts.of_mark(text);
                self.b.record.marks.push(Mark { moment: now, what: "note", text });
            }
        }
    }

    fn block(&self, address: u64, bytes: u64) -> Block {
        let charged = bytes.checked_next_multiple_of(self.round).unwrap_or(bytes);
        Block { bytes: charged, requested: bytes, ..Block::at(address) }
    }

    fn freed(&mut self, e: &Entry, value: &Value<'a>, now: u32, at_once: bool) {
        let (stream, (stack, _)) = (self.stream(e.stream), self.origin(value));
        let block = Block { stream, ..self.block(e.address, e.bytes) };
        self.b.asked(now, at_once, 0, stack, block);
    }

    fn entry(&self, value: &Value<'a>) -> Result<Entry> {
        let p = self.p;
        keys(value)?;
        let act = self.text(value, "action").map(Act::of).context("`action` is missing, or no text")?;
        let number = |key| match act {
            Act::Other | Act::Snapshot => Ok(int(p, value, key).unwrap_or(0)),
            _ => int(p, value, key),
        };
        let address = number(if act == Act::Oom { "device_free" } else { "addr" })?;
        let (bytes, stream) = (number("size")?, number("stream")?);
        ensure!(bytes <= i64::MAX as u64, "`size` is negative");
        let time = int(p, value, "time_us").ok().filter(|&t| t <= i64::MAX as u64);
        Ok(Entry { act, address, bytes, stream, time })
    }

    /// What the program has annotated: when it began [us], and its name.
    fn annotations(&self, device: u64) -> Vec<(u64, &'a str)> {
        let p = self.p;
        let list = p.field(p.top(), "external_annotations").and_then(|l| p.items(l));
        let mut all: Vec<(u64, &'a str)> = list
            .into_iter()
            .flatten()
            .take(MOST_MARKS)
            .filter(|a| keys(a).is_ok() && self.text(a, "stage") == Some("START"))
            .filter(|a| int(p, a, "device").is_ok_and(|d| d == device))
            .filter_map(|a| Some((int(p, a, "time_us").ok()?, self.text(a, "name")?)))
            .collect();
        all.sort();
        all
    }

    /// Puts what the snapshot says of its own moment over what the history has led to.
    fn layout(&mut self, segments: &[Segment<'p, 'a>], device: u64, told: bool) -> Result<()> {
        let p = self.p;
        let end = self.b.record.last();
        let mut there = HashSet::new();
        for s in segments.iter().filter(|s| s.device == device) {
            let stream = self.stream(s.stream);
            let pool = self.pool(s.value);
            let range = Range { stream, pool, ..Range::new(Kind::Memory, s.address, s.bytes) };
            // Millpond's scattered blocks are segments here, whose memory its history tells of elsewhere.
            match told && self.ours {
                true => {}
                false => self.b.was_there(&range),
            }
            let mut at = s.address;
            for block in p.field(s.value, "blocks").and_then(|b| p.items(b)).into_iter().flatten() {
                let place = || format!("a block of the segment at {:#x}", s.address);
                keys(block).with_context(place)?;
                let size = int(p, block, "size").with_context(place)?;
                let address = int(p, block, "address").unwrap_or(at);
                at = address.saturating_add(size);
                let waits = match self.text(block, "state") {
                    Some("active_allocated") => false,
                    Some("active_pending_free" | "active_awaiting_free") => true,
                    Some(_) => continue,
                    None => bail!("{}: `state` is missing, or no text", place()),
                };
                let requested = int(p, block, "requested_size").unwrap_or(size).min(size);
                let (stack, tag) = self.origin(block);
                there.insert(address);
                let known = self.b.latest(false, address);
                let known =
                    known.filter(|&n| self.b.record.blocks.get(n as usize).is_some_and(|b| b.done == NEVER));
                let number =
                    known.unwrap_or_else(|| self.b.unseen(end, Block { bytes: size, ..Block::at(address) }));
                if let Some(b) = self.b.record.blocks.get_mut(number as usize) {
                    if waits && b.asked == NEVER {
                        b.asked = end;
                    }
                    (b.bytes, b.requested, b.stream, b.pool) = (size, requested, stream, pool);
                    b.stack = if b.stack == 0 { stack } else { b.stack };
                    b.tag = if b.tag == 0 { tag } else { b.tag };
                }
            }
        }
        // What has ended without an entry.
        for b in self.b.record.blocks.iter_mut().filter(|b| b.done == NEVER && !there.contains(&b.address)) {
            b.asked = b.asked.min(end);
            b.done = end;
        }
        if told {
            self.b.record.cover_older_blocks();
        }
        Ok(())
    }

    fn pool(&mut self, segment: &Value<'a>) -> u32 {
        let p = self.p;
        let id = p.field(segment, "segment_pool_id").and_then(|id| p.items(id));
        let ids: Vec<i64> = id
            .into_iter()
            .flatten()
            .take(2)
            .filter_map(|v| if let Value::Int(n) = v { Some(*n) } else { None })
            .collect();
        let name = match ids[..] {
            [0, 0] => "default pool".to_owned(),
            [-1, -1] => "no pool".to_owned(),
            [0, n] => format!("pool {n}"),
            [a, b] => format!("pool ({a}, {b})"),
            _ => return 0,
        };
        self.b.record.pools.number(name)
    }
}

/// An entry of a history.
struct Entry {
    act: Act,
    address: u64,
    bytes: u64,
    stream: u64,
    time: Option<u64>, // [us]
}

#[cfg(test)]
mod tests;
