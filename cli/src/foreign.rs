//! Makes traces from the records of other programs: PyTorch's memory history (the pickle of
//! `torch.cuda.memory._dump_snapshot`, after `_record_memory_history`) and the CSV log of RMM's logging adaptor.
//!
//! Both name blocks by address. A block that is freed but was never allocated is older than the record: the trace
//! allocates it at its start. In a pickle the same holds for blocks that are live in the snapshot but not in the
//! history.

use crate::pickle::{Pickle, Value};
use crate::trace::{Builder, Trace, When, shortened};
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::collections::HashMap;

/// The most keys of an entry of a history; PyTorch has about ten.
const MOST_KEYS: usize = 64;

/// [B] What an entry of a history, a segment or a block takes at least: four keys and their values, each of two bytes.
pub(crate) const LEAST_ENTRY: usize = 16;

/// Whether the bytes are a pickle of protocol 2 or later.
pub(crate) fn is_pickle(bytes: &[u8]) -> bool {
    // Unknown later protocols count too: the reader refuses them as such.
    matches!(bytes, [0x80, 0..=31, ..])
}

/// Whether the text begins with the head of RMM's log.
pub(crate) fn is_csv(text: &str) -> bool {
    columns(text.lines().next().unwrap_or("")).is_some()
}

/// One action of a program.
#[derive(Clone, Copy)]
enum Act {
    Alloc,
    Free,
}

/// The same, with where it stands in the file.
struct Entry {
    act: Act,
    address: u64,
    bytes: u64,
    stream: u64,
    line: usize,
    when: Option<When>,
}

/// Streams by number, in the order in which they appear; the default one is 0.
struct Streams(HashMap<u64, u64>);

impl Streams {
    fn number(&mut self, stream: u64) -> u64 {
        let next = self.0.len() as u64;
        *self.0.entry(stream).or_insert(next)
    }
}

/// A trace of the entries; `older` blocks come first.
fn build(name: &str, older: Vec<Entry>, entries: &[Entry], what: &str) -> Result<Trace> {
    let (mut b, mut streams) = (Builder::new(name), Streams(HashMap::from([(0, 0)])));
    let mut at_start = HashMap::new(); // what is freed before it is allocated
    let mut live = HashMap::new();
    for e in entries {
        match e.act {
            Act::Alloc => _ = live.insert(e.address, ()),
            Act::Free if live.remove(&e.address).is_some() => {}
            Act::Free => _ = at_start.entry(e.address).or_insert(e),
        }
    }
    let mut first: Vec<&Entry> = at_start.into_values().collect();
    let freed = first.len();
    // What is live at the end, and was never spoken of.
    let known: HashMap<u64, ()> = entries.iter().map(|e| (e.address, ())).collect();
    first.extend(older.iter().filter(|e| !known.contains_key(&e.address)));
    first.sort_unstable_by_key(|e| e.address);
    first.dedup_by_key(|e| e.address);
    let before = first.len();
    // All of them, or none: what lacks some would stand at wrong places.
    let timed = entries.iter().all(|e| e.when.is_some());
    b.at = entries.first().and_then(|e| e.when).filter(|_| timed);
    for e in first {
        b.alloc(e.address, e.bytes, streams.number(e.stream), e.line)?;
    }
    for e in entries {
        let place = || format!("{what} {}", e.line);
        b.at = e.when.filter(|_| timed);
        match e.act {
            Act::Alloc => {
                b.alloc(e.address, e.bytes, streams.number(e.stream), e.line).with_context(place)?
            }
            // Freed twice in a row: the record is of a program that did that, or has lost what was between.
            Act::Free if !b.is_live(e.address) => {
                bail!("{}: the block at {:#x} is freed, but it is not live", place(), e.address)
            }
            Act::Free => b.free(e.address, e.line).with_context(place)?,
        }
    }
    let mut t = b.end();
    if before > 0 {
        t.source = format!("blocks older than the record: {before}, {freed} of them freed in it");
    }
    Ok(t)
}

/// A trace of the device that has the longest history. The line of an event is the number of its entry, from 1.
pub(crate) fn from_pickle(name: &str, bytes: &[u8]) -> Result<Trace> {
    let p = Pickle::read(bytes).context("the pickle cannot be read")?;
    let traces = p.field(p.top(), "device_traces").and_then(|t| p.items(t));
    let Some(traces) = traces else {
        bail!("this pickle is no snapshot of PyTorch's memory: there is no list `device_traces` in it")
    };
    let lengths = traces.map(|t| p.items(t).map_or(0, |all| all.len()));
    let (device, count) =
        lengths.enumerate().max_by_key(|&(n, count)| (count, usize::MAX - n)).unwrap_or((0, 0));
    ensure!(
        count > 0,
        "the snapshot has no history: `device_traces` is empty. Call torch.cuda.memory._record_memory_history() \
         before what is to be recorded, and torch.cuda.memory._dump_snapshot(file) after it"
    );
    // Unless the same one is named again and again.
    ensure!(
        count <= bytes.len() / LEAST_ENTRY,
        "there are more entries than the file has room for: it is damaged"
    );
    let mut entries = Vec::new();
    let history = p.field(p.top(), "device_traces").and_then(|t| p.items(t)?.nth(device));
    for (n, value) in history.and_then(|h| p.items(h)).into_iter().flatten().enumerate() {
        let line = n + 1;
        let entry = entry_of(&p, value, line).with_context(|| format!("device {device}, entry {line}"))?;
        entries.extend(entry);
    }
    ensure!(!entries.is_empty(), "the history of device {device} has not one `alloc` or `free_completed`");
    let older = live_blocks(&p, device as i64, bytes.len() / LEAST_ENTRY)?;
    let mut t = build(name, older, &entries, "entry")?;
    let note = std::mem::take(&mut t.source);
    t.source = format!(
        "PyTorch's memory history of device {device}{}{note}",
        if note.is_empty() { "" } else { "; " }
    );
    Ok(t)
}

pub(crate) fn int(p: &Pickle<'_>, dict: &Value<'_>, key: &str) -> Result<u64> {
    match p.field(dict, key) {
        // As PyTorch writes addresses: in 64 bits, the highest of which is the sign.
        Some(Value::Int(n)) => Ok(*n as u64),
        Some(_) => Err(anyhow!("`{key}` is no number of 64 bits")),
        None => Err(anyhow!("`{key}` is missing")),
    }
}

pub(crate) fn keys(dict: &Value<'_>) -> Result<()> {
    match dict {
        Value::Dict(pairs) => ensure!(pairs.len() <= MOST_KEYS, "it has {} keys", pairs.len()),
        _ => bail!("it is no dict"),
    }
    Ok(())
}

/// The action of an entry of a history; none if the program did not cause the entry.
fn entry_of(p: &Pickle<'_>, value: &Value<'_>, line: usize) -> Result<Option<Entry>> {
    keys(value)?;
    let act = match p.field(value, "action") {
        Some(Value::Text("alloc")) => Act::Alloc,
        // Not `free_requested`: a stream could use the memory again only now.
        Some(Value::Text("free_completed" | "free")) => Act::Free,
        Some(Value::Text(_)) => return Ok(None),
        _ => bail!("`action` is missing, or no text"),
    };
    let size = int(p, value, "size")?;
    ensure!(size <= i64::MAX as u64, "`size` is negative");
    let (address, stream) = (int(p, value, "addr")?, int(p, value, "stream")?);
    let time = int(p, value, "time_us").ok().and_then(|us| us.checked_mul(1000));
    Ok(Some(Entry {
        act,
        address,
        bytes: size,
        stream,
        line,
        when: time.map(|time| When { time, thread: 0 }),
    }))
}

/// The blocks of a device that are live in the snapshot.
fn live_blocks(p: &Pickle<'_>, device: i64, most: usize) -> Result<Vec<Entry>> {
    let mut out = Vec::new();
    let mut seen = 0;
    for segment in p.field(p.top(), "segments").and_then(|s| p.items(s)).into_iter().flatten() {
        let of = (|| {
            keys(segment)?;
            Ok::<_, anyhow::Error>((
                int(p, segment, "device")?,
                int(p, segment, "address")?,
                int(p, segment, "stream")?,
            ))
        })();
        let (of, mut at, stream) = of.context("a segment of the snapshot")?;
        if of as i64 != device {
            continue;
        }
        for block in p.field(segment, "blocks").and_then(|b| p.items(b)).into_iter().flatten() {
            seen += 1;
            ensure!(seen <= most, "there are more blocks than the file has room for: it is damaged");
            keys(block).context("a block of the snapshot")?;
            let size = int(p, block, "size").context("a block of the snapshot")?;
            if matches!(p.field(block, "state"), Some(Value::Text("active_allocated"))) {
                let bytes = int(p, block, "requested_size").unwrap_or(size).min(size);
                out.push(Entry { act: Act::Alloc, address: at, bytes, stream, line: 0, when: None });
            }
            at = at.wrapping_add(size);
        }
    }
    Ok(out)
}

/// Where the columns are that matter.
#[derive(Clone, Copy)]
struct Columns {
    /// Action, address, size, stream.
    needed: [usize; 4],
    /// Time, thread.
    more: [Option<usize>; 2],
}

fn columns(head: &str) -> Option<Columns> {
    let names: Vec<&str> = head.trim_start_matches('\u{feff}').split(',').map(str::trim).collect();
    let at = |name: &str| names.iter().position(|n| n.eq_ignore_ascii_case(name));
    let needed = [at("action")?, at("pointer")?, at("size")?, at("stream")?];
    Some(Columns { needed, more: [at("time"), at("thread")] })
}

/// [ns] of a day, as in `10:00:00.000001`; older releases have a third colon in place of the dot.
fn time_of_day(text: &str) -> Option<u64> {
    let mut parts = text.split([':', '.']);
    let number = |t: &str| t.parse::<u64>().ok().filter(|_| t.bytes().all(|b| b.is_ascii_digit()));
    let mut next = |most: u64| parts.next().and_then(number).filter(|&n| n < most);
    let seconds = (next(24)? * 60 + next(60)?) * 60 + next(61)?;
    let fraction = match parts.next() {
        None => 0,
        Some(digits) if digits.len() <= 9 => number(digits)? * 10u64.pow(9 - digits.len() as u32),
        Some(_) => return None,
    };
    parts.next().is_none().then_some(seconds * 1_000_000_000 + fraction)
}

/// A log has times of day only: where they fall by more than half a day, the next one has begun.
fn count_days(entries: &mut [Entry]) {
    const DAY: u64 = 86_400 * 1_000_000_000;
    let (mut days, mut last) = (0u64, 0);
    for when in entries.iter_mut().filter_map(|e| e.when.as_mut()) {
        days += u64::from(when.time + DAY / 2 < last);
        last = when.time;
        when.time = when.time.saturating_add(days.saturating_mul(DAY));
    }
}

/// A trace of RMM's log: `Thread,Time,Action,Pointer,Size,Stream`.
pub(crate) fn from_csv(name: &str, text: &str) -> Result<Trace> {
    let columns = columns(text.lines().next().unwrap_or("")).context("the columns are not named")?;
    let mut entries = Vec::new();
    for (n, line) in text.lines().enumerate().skip(1) {
        let line_number = n + 1;
        if line.trim().is_empty() {
            continue;
        }
        let entry = row(columns, line, line_number)
            .with_context(|| format!("line {line_number}: `{}`", shortened(line, 60)))?;
        entries.extend(entry);
    }
    ensure!(!entries.is_empty(), "there is not one `allocate` or `free` in it");
    count_days(&mut entries);
    let mut t = build(name, Vec::new(), &entries, "line")?;
    let note = std::mem::take(&mut t.source);
    t.source = format!("a log of RMM{}{note}", if note.is_empty() { "" } else { "; " });
    Ok(t)
}

fn row(columns: Columns, line: &str, line_number: usize) -> Result<Option<Entry>> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let field = |n: usize, what: &str| match fields.get(columns.needed[n]) {
        Some(f) => Ok(*f),
        None => Err(anyhow!("the {what} is missing")),
    };
    let act = match field(0, "action")? {
        "allocate" => Act::Alloc,
        "free" | "deallocate" => Act::Free,
        "allocate failure" => return Ok(None),
        other => bail!("`{}` is no action of RMM", shortened(other, 40)),
    };
    let address = number(field(1, "pointer")?, "pointer", 16)?;
    let bytes = number(field(2, "size")?, "size", 10)?;
    let stream = number(field(3, "stream")?, "stream", 10)?;
    let [time, thread] = columns.more.map(|n| n.and_then(|n| fields.get(n)).copied());
    let thread = thread.and_then(|t| t.parse().ok()).unwrap_or(0);
    let when = time.and_then(time_of_day).map(|time| When { time, thread });
    // A request of 0 bytes has no block.
    Ok(Some(Entry { act, address, bytes, stream, line: line_number, when }).filter(|e| e.address != 0))
}

/// A number, in hexadecimal digits where it begins with `0x` or they are usual.
fn number(text: &str, what: &str, usual: u32) -> Result<u64> {
    if text == "(nil)" {
        return Ok(0);
    }
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(rest) => (rest, 16),
        None => (text, usual),
    };
    u64::from_str_radix(digits, radix)
        .map_err(|_| anyhow!("the {what} `{}` is no number", shortened(text, 40)))
}

#[cfg(test)]
mod tests;
