//! A record from a snapshot in Millpond's JSON. Its events, if it has any, tell how the memory came to be as it is; the
//! blocks and segments of the snapshot itself say how it is at the end, and know more.

use super::record::{Block, Builder, Kind, Mark, NEVER, Range, Record, Use};
use crate::{symbols, units};
use anyhow::{Result, bail, ensure};
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

/// The version of the form that is read.
const VERSION: u64 = 1;

#[derive(Deserialize)]
struct Head {
    schema: Option<String>,
    version: Option<u64>,
}

#[derive(Deserialize)]
struct Snapshot {
    library: Option<String>,
    #[serde(default)]
    device: Device,
    account: Option<Account>,
    segments: Vec<Segment>,
    #[serde(default)]
    frames: Vec<Frame>,
    #[serde(default)]
    stacks: Vec<Vec<usize>>,
    #[serde(default)]
    events: Vec<Event>,
}

/// A caller.
#[derive(Deserialize)]
struct Frame {
    #[serde(default)]
    module: String,
    offset: u64,
    function: Option<String>,
}

#[derive(Default, Deserialize)]
struct Device {
    r#type: Option<String>,
    ordinal: Option<u64>,
    total_bytes: Option<u64>,
}

#[derive(Deserialize)]
struct Account {
    #[serde(default)]
    pools: Vec<Pool>,
}

#[derive(Deserialize)]
struct Pool {
    id: u64,
    name: Option<String>,
}

#[derive(Deserialize)]
struct Segment {
    address: u64,
    size_bytes: u64,
    kind: String,
    stream: Option<u64>,
    pool: Option<u64>,
    #[serde(default)]
    sleeps: bool,
    blocks: Vec<Placed>,
    #[serde(default)]
    pieces: Vec<Piece>,
}

/// A piece of a scattered block.
#[derive(Deserialize)]
struct Piece {
    address: u64,
    size_bytes: u64,
    home: u64,
}

#[derive(Deserialize)]
struct Placed {
    address: u64,
    size_bytes: u64,
    requested_bytes: u64,
    state: String,
    tag: Option<String>,
    #[serde(default)]
    stack: usize,
}

#[derive(Deserialize)]
struct Event {
    action: String,
    time_us: u64,
    #[serde(default)]
    address: u64,
    size_bytes: u64,
    requested_bytes: Option<u64>,
    device_free_bytes: Option<u64>,
    stream: u64,
    pool: Option<u64>,
    thread: Option<u32>,
    tag: Option<String>,
    text: Option<String>,
    #[serde(default)]
    stack: usize,
}

/// The most callers that all stacks of a snapshot have together.
const MOST_CALLERS: usize = 1 << 26;

/// The numbers of each caller's names, the innermost of what is inlined there first: by `addr2line`, if that is wanted and
/// knows it.
fn names(b: &mut Builder, frames: &[Frame], symbols: bool) -> Result<Vec<Vec<u32>>> {
    let mut by_module: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for f in frames.iter().filter(|f| symbols && !f.module.is_empty()) {
        by_module.entry(&f.module).or_default().push(f.offset);
    }
    let mut found = HashMap::new();
    for (module, offsets) in
        by_module.iter().filter(|(path, _)| symbols::Module::read(Path::new(path)).is_some())
    {
        found.insert(*module, symbols::names(module, offsets)?);
    }
    let name = |f: &Frame| match (found.get(&f.module[..]).and_then(|m| m.get(&f.offset)), &f.function) {
        (Some(names), _) => names.iter().map(|name| b.record.texts.frame(name)).collect(),
        (None, Some(name)) => vec![b.record.texts.frame(name)],
        (None, None) if f.module.is_empty() => vec![b.record.texts.frame(&format!("{:#x}", f.offset))],
        (None, None) => vec![b.record.texts.frame(&format!("{}+{:#x}", f.module, f.offset))],
    };
    Ok(frames.iter().map(name).collect())
}

/// The numbers in the record of the snapshot's stacks.
fn stacks(b: &mut Builder, s: &Snapshot, symbols: bool) -> Result<Vec<u32>> {
    let names = names(b, &s.frames, symbols)?;
    let mut callers = 0;
    let mut numbers = Vec::with_capacity(s.stacks.len());
    for (n, stack) in s.stacks.iter().enumerate() {
        callers += stack.len();
        ensure!(callers <= MOST_CALLERS, "stack {n}: there are more than {MOST_CALLERS} callers in all");
        if let Some(wrong) = stack.iter().find(|&&f| f >= names.len()) {
            bail!("stack {n}: there is no frame {wrong}");
        }
        let all = stack.iter().flat_map(|&f| names[f].iter().copied()).collect();
        numbers.push(b.record.stacks.number(all));
    }
    Ok(numbers)
}

/// Whether the text may be a snapshot: it is an object of JSON.
pub(super) fn is_json(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().starts_with(b"{")
}

fn stream_name(stream: Option<u64>) -> String {
    match stream {
        None => "all streams".to_owned(),
        Some(0) => "default stream".to_owned(),
        Some(s) => format!("{s:#x}"),
    }
}

/// The record of a snapshot's text. `symbols`: `addr2line` names the callers.
pub(super) fn record(title: &str, bytes: &[u8], symbols: bool) -> Result<Record> {
    // First what it is: what else has these fields is no business of this function.
    let head: Head = match serde_json::from_slice(bytes) {
        Ok(head) => head,
        Err(e) => bail!("this JSON cannot be read: {e}"),
    };
    ensure!(
        head.schema.as_deref() == Some("millpond.snapshot"),
        "this JSON is no snapshot of Millpond: its `schema` is not `millpond.snapshot`"
    );
    match head.version {
        Some(VERSION) => {}
        Some(n) => bail!("the snapshot has version {n}; this reads version {VERSION}"),
        None => bail!("the snapshot has no `version`"),
    }
    let s: Snapshot = match serde_json::from_slice(bytes) {
        Ok(s) => s,
        Err(e) => bail!("the snapshot cannot be read: {e}"),
    };
    let mut b = Builder::new(title);
    let mut pools = HashMap::new();
    for p in s.account.iter().flat_map(|a| &a.pools) {
        let name = match (&p.name, p.id) {
            (Some(name), _) => name.clone(),
            (None, 0) => "default pool".to_owned(),
            (None, n) => format!("pool {n}"),
        };
        pools.insert(p.id, b.record.pools.number(name));
    }
    let stacks = stacks(&mut b, &s, symbols)?;
    let stack = |n: usize| stacks.get(n).copied().unwrap_or(0);
    events(&mut b, &s.events, &mut pools, stack);
    let unseen = layout(&mut b, &s.segments, &pools, stack)?;
    let mut r = b.record;
    if s.events.is_empty() {
        r.timed = false;
    } else if unseen > 0 {
        r.notes.push(format!("{} older than the events in the snapshot", units::are(unseen, "block")));
    }
    if let (Some(name), Some(n)) = (&s.device.r#type, s.device.ordinal) {
        r.fact("device", format!("{name}:{n}"));
    }
    if let Some(n) = s.device.total_bytes {
        r.fact("memory of the device", units::bytes(n));
    }
    if let Some(version) = s.library {
        r.fact("Millpond", version);
    }
    Ok(r)
}

fn events(b: &mut Builder, all: &[Event], pools: &mut HashMap<u64, u32>, stack: impl Fn(usize) -> u32) {
    // The first versions of the library told neither threads nor tags.
    let told = all.iter().any(|e| e.thread.is_some());
    let untold = if told || all.is_empty() { 0 } else { b.record.tags.number("tag not recorded".to_owned()) };
    for e in all {
        let now = b.moment(e.time_us.saturating_mul(1000));
        let stream = b.record.streams.number(stream_name(Some(e.stream)));
        let tag = e.tag.as_ref().map_or(untold, |t| b.record.tags.number(t.clone()));
        let thread = e.thread.map_or(0, |t| b.record.threads.number(t.to_string()));
        let of_pool =
            |id: u64| *pools.entry(id).or_insert_with(|| b.record.pools.number(format!("pool {id}")));
        let pool = e.pool.map_or(0, of_pool);
        let block = || {
            let bytes = e.size_bytes;
            let requested = e.requested_bytes.unwrap_or(bytes);
            Block { bytes, requested, born: now, stream, pool, tag, ..Block::at(e.address) }
        };
        let range = |kind| Range { born: now, ..Range::new(kind, e.address, e.size_bytes) };
        let mut mark = |what, text| b.record.marks.push(Mark { moment: now, what, text });
        match e.action.as_str() {
            "alloc" => _ = b.came(Block { stack: stack(e.stack), thread, ..block() }),
            // The tag is that of the thread which frees.
            "free_requested" => b.asked(now, false, thread, stack(e.stack), Block { tag: untold, ..block() }),
            "free_completed" => b.completed(now, false, e.address),
            "segment_alloc" => b.added(range(Kind::Memory)),
            "segment_map" => b.added(range(Kind::Shown)),
            "segment_free" => b.removed(now, false, Kind::Memory, e.address, e.size_bytes),
            "segment_unmap" => b.removed(now, false, Kind::Shown, e.address, e.size_bytes),
            "oom" => {
                let free = e.device_free_bytes.map(|n| format!("; the device had {} free", units::bytes(n)));
                let text = format!(
                    "out of memory: no room for {}{}",
                    units::bytes(e.size_bytes),
                    free.unwrap_or_default()
                );
                mark("oom", text);
            }
            "snapshot" => mark("snapshot", "a snapshot was taken".to_owned()),
            "annotate" => mark("note", e.text.clone().unwrap_or_default()),
            "record_stream" => {
                if let Some(block) = b.latest(false, e.address) {
                    b.record.uses.push(Use { block, moment: now, stream, thread });
                }
            }
            _ => {}
        }
    }
}

/// Puts what the snapshot says of its own moment over what the events have led to. How many live blocks these did not
/// tell of.
fn layout(
    b: &mut Builder,
    segments: &[Segment],
    pools: &HashMap<u64, u32>,
    stack: impl Fn(usize) -> u32,
) -> Result<u64> {
    let end = b.record.last();
    let told = !b.record.ranges.is_empty();
    let mut there = HashSet::new();
    let mut unseen = 0;
    for (n, s) in segments.iter().enumerate() {
        let kind = match (s.sleeps, s.kind.as_str()) {
            (true, _) => Kind::Asleep,
            (_, "scattered") => Kind::Scattered,
            (_, "segment" | "large" | "small") => Kind::Memory,
            (_, other) => {
                bail!("segment {n}: there is no kind `{}`", other.chars().take(40).collect::<String>())
            }
        };
        let stream = b.record.streams.number(stream_name(s.stream));
        let pool = match s.pool {
            None => b.record.pools.number("no pool".to_owned()),
            Some(id) => match pools.get(&id) {
                Some(&known) => known,
                None => b.record.pools.number(format!("pool {id}")),
            },
        };
        let range = |kind, at, bytes| Range { stream, pool, ..Range::new(kind, at, bytes) };
        if !told && s.pieces.is_empty() {
            b.record.ranges.push(range(kind, s.address, s.size_bytes));
        }
        for p in s.pieces.iter().filter(|_| !told) {
            b.record.ranges.push(range(Kind::Memory, p.home, p.size_bytes));
            b.record.ranges.push(Range { home: p.home, ..range(Kind::Shown, p.address, p.size_bytes) });
        }
        for p in &s.blocks {
            let waits = match p.state.as_str() {
                "live" => false,
                "waiting" => true,
                "free" => continue,
                other => bail!(
                    "segment {n}: a block is `{}`, not live, waiting or free",
                    other.chars().take(40).collect::<String>()
                ),
            };
            let tag = p.tag.as_ref().map_or(0, |t| b.record.tags.number(t.clone()));
            there.insert(p.address);
            let known = b.latest(false, p.address).filter(|&n| b.record.blocks[n as usize].done == NEVER);
            let number = known.unwrap_or_else(|| {
                unseen += 1;
                let number = b.unseen(end, Block { bytes: p.size_bytes, ..Block::at(p.address) });
                if let Some(block) = b.record.blocks.get_mut(number as usize).filter(|_| waits) {
                    block.asked = block.born;
                }
                number
            });
            if let Some(block) = b.record.blocks.get_mut(number as usize) {
                (block.bytes, block.requested) = (p.size_bytes, p.requested_bytes);
                (block.stream, block.pool, block.tag) = (stream, pool, tag);
                block.stack = if block.stack == 0 { stack(p.stack) } else { block.stack };
            }
        }
    }
    // What has ended without an event.
    for block in b.record.blocks.iter_mut().filter(|x| x.done == NEVER && !there.contains(&x.address)) {
        block.asked = block.asked.min(end);
        block.done = end;
    }
    if told {
        b.record.cover_older_blocks();
    }
    Ok(unseen)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"schema":"millpond.snapshot","version":1,"library":"0.1.0","time_us":5,
      "device":{"type":"host","ordinal":0,"total_bytes":1024,"free_bytes":null},"new":{"field":[1]},
      "account":{"device":{},"pools":[{"id":0,"name":null},{"id":4,"name":"kv \"cache\""}]},
      "segments":[
       {"address":4096,"size_bytes":300,"kind":"large","stream":7,"pool":4,"blocks":[
        {"address":4096,"size_bytes":100,"requested_bytes":90,"state":"live","tag":"w"},
        {"address":4196,"size_bytes":100,"requested_bytes":80,"state":"waiting"},
        {"address":4296,"size_bytes":100,"requested_bytes":0,"state":"free"}]},
       {"address":9000,"size_bytes":64,"kind":"scattered","stream":null,"pool":null,"blocks":[
        {"address":9000,"size_bytes":64,"requested_bytes":64,"state":"live"}]}],
      "events":[EVENTS]}"#;

    #[test]
    fn a_snapshot_without_events_is_one_moment() {
        let r = record("x", GOOD.replace("EVENTS", "").as_bytes(), false).unwrap();
        assert_eq!((r.last(), r.timed, r.blocks.len(), r.ranges.len()), (0, false, 3, 2));
        let b = &r.blocks[0];
        assert_eq!((b.bytes, b.requested, r.tags.get(b.tag).unwrap().as_str()), (100, 90, "w"));
        assert_eq!(r.pools.get(b.pool).unwrap(), "kv \"cache\"");
        assert_eq!(r.streams.get(b.stream).unwrap(), "0x7");
        assert_eq!((r.blocks[1].asked, r.blocks[1].done), (0, NEVER));
        assert_eq!(r.ranges[1].kind, Kind::Scattered);
    }

    #[test]
    fn events_lead_to_the_layout() {
        let e = |action: &str, at: u64, bytes: u64, time: u64| {
            format!(
                r#"{{"action":"{action}","time_us":{time},"address":{at},"size_bytes":{bytes},"stream":7}}"#
            )
        };
        let events = [
            e("segment_alloc", 4096, 300, 1),
            e("alloc", 4096, 100, 2),
            e("alloc", 4296, 50, 3),
            e("free_requested", 4296, 50, 4),
            e("free_completed", 4296, 50, 4),
            e("alloc", 4350, 8, 4),
            r#"{"action":"oom","time_us":5,"device_free_bytes":3,"size_bytes":512,"stream":7}"#.to_owned(),
        ];
        let r = record("x", GOOD.replace("EVENTS", &events.join(",")).as_bytes(), false).unwrap();
        assert_eq!(r.last(), 7);
        let told: Vec<_> = r.blocks.iter().map(|b| (b.address, b.born, b.asked, b.done, b.tag)).collect();
        let (never, end) = (NEVER, 7);
        assert_eq!(
            told,
            [
                (4096, 2, never, never, 2),
                (4296, 3, 4, 5, 1),
                (4350, 6, end, end, 1), // not in the snapshot, so it has ended
                (4196, 0, 0, never, 0),
                (9000, 0, never, never, 0)
            ]
        );
        assert!(r.marks[0].text.ends_with("no room for 512 B; the device had 3 B free"), "{:?}", r.marks);
    }

    #[test]
    fn a_scattered_block_lies_where_its_pieces_do() {
        let pieces = r#""requested_bytes":64,"state":"live"}],"pieces":[
          {"address":9000,"size_bytes":40,"home":500},{"address":9040,"size_bytes":24,"home":700}]}]"#;
        let text = GOOD.replace("EVENTS", "").replace(r#""requested_bytes":64,"state":"live"}]}]"#, pieces);
        let r = record("x", text.as_bytes(), false).unwrap();
        let told: Vec<_> = r.ranges.iter().map(|r| (r.kind, r.address, r.bytes, r.home)).collect();
        let want = [
            (Kind::Memory, 4096, 300, 0),
            (Kind::Memory, 500, 40, 0),
            (Kind::Shown, 9000, 40, 500),
            (Kind::Memory, 700, 24, 0),
            (Kind::Shown, 9040, 24, 700),
        ];
        assert_eq!(told, want);
        assert_eq!(r.blocks[2].address, 9000);
    }

    #[test]
    fn an_event_tells_its_thread_pool_tag_and_size() {
        let events = [
            r#"{"action":"alloc","time_us":2,"address":4096,"size_bytes":100,"requested_bytes":90,"stream":7,"pool":4,
              "thread":31,"tag":"w"}"#,
            r#"{"action":"record_stream","time_us":3,"address":4096,"size_bytes":0,"stream":8,"thread":32}"#,
            r#"{"action":"annotate","time_us":3,"text":"epoch 2","size_bytes":0,"stream":0,"thread":31}"#,
            r#"{"action":"alloc","time_us":4,"address":7000,"size_bytes":8,"stream":7,"pool":9,"thread":31}"#,
        ];
        let r = record("x", GOOD.replace("EVENTS", &events.join(",")).as_bytes(), false).unwrap();
        let b = &r.blocks[0];
        let name = |t: &super::super::record::Table<String>, n| t.get(n).unwrap().clone();
        assert_eq!((b.bytes, b.requested, name(&r.tags, b.tag)), (100, 90, "w".to_owned()));
        assert_eq!(
            (name(&r.pools, b.pool), name(&r.threads, b.thread)),
            ("kv \"cache\"".into(), "31".into())
        );
        assert_eq!(
            (name(&r.tags, r.blocks[1].tag), name(&r.pools, r.blocks[1].pool)),
            ("".into(), "pool 9".into())
        );
        let used = r.uses[0];
        assert_eq!(
            (used.block, name(&r.streams, used.stream), name(&r.threads, used.thread)),
            (0, "0x8".into(), "32".into())
        );
        assert_eq!((r.marks[0].what, r.marks[0].text.as_str()), ("note", "epoch 2"));
    }

    #[test]
    fn what_is_no_snapshot_is_refused_with_the_place() {
        let good = GOOD.replace("EVENTS", "");
        for (text, wants) in [
            ("{}".to_owned(), "no snapshot of Millpond"),
            (good.replace("\"version\":1", "\"version\":2"), "has version 2"),
            (good.replace("\"version\":1,", ""), "no `version`"),
            (good[..good.len() / 2].to_owned(), "line 6 column"),
            (good.replace("\"large\"", "\"huge\""), "segment 0: there is no kind `huge`"),
            (good.replace("\"free\"", "\"fled\""), "segment 0: a block is `fled`"),
            (good.replace("300", "-300"), "line 5 column"),
            (good.replace("\"size_bytes\":300,", ""), "missing field `size_bytes`"),
        ] {
            let e = format!("{:#}", record("x", text.as_bytes(), false).unwrap_err());
            assert!(e.contains(wants), "`{e}` does not contain `{wants}`");
        }
    }

    #[test]
    fn callers_are_told_and_named() {
        let event = r#"{"action":"alloc","time_us":1,"address":4096,"size_bytes":100,"stream":7,"stack":1},
          {"action":"free_requested","time_us":2,"address":4096,"size_bytes":100,"stream":7,"stack":2},
          {"action":"free_completed","time_us":2,"address":4096,"size_bytes":100,"stream":7,"stack":2}"#;
        let callers = r#""frames":[{"module":"/x/train","offset":16,"function":"f(int)"},{"module":"/x/train","offset":32},
          {"offset":48}],"stacks":[[],[0,1],[2]],"events""#;
        let text = GOOD.replace("EVENTS", event).replace("\"events\"", callers);
        let text = text.replace("\"state\":\"live\",\"tag\"", "\"state\":\"live\",\"stack\":1,\"tag\"");
        for symbols in [false, true] {
            let r = record("x", text.as_bytes(), symbols).unwrap();
            let name = |&n: &u32| r.texts.frames.get(n).unwrap().as_str();
            let stack = |n: u32| r.stacks.get(n).unwrap().iter().map(name).collect::<Vec<_>>().join(" ");
            assert_eq!(stack(r.blocks[0].stack), "f(int) /x/train+0x20");
            assert_eq!(stack(r.blocks[0].freed_stack), "0x30");
            let live = r.blocks.iter().rfind(|b| b.address == 4096).unwrap();
            assert_eq!((live.asked, stack(live.stack)), (NEVER, "f(int) /x/train+0x20".to_owned()));
        }
        let wrong = text.replace("[2]]", "[3]]");
        let e = format!("{:#}", record("x", wrong.as_bytes(), false).unwrap_err());
        assert_eq!(e, "stack 2: there is no frame 3");
    }
}
