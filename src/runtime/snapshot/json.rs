//! A snapshot as JSON. `docs/snapshots.md` describes it. Readers ignore unknown fields, so a new field does not change the
//! version.
//!
//! Written by hand: the text is streamed and needs a handful of tokens, and a JSON crate would add more code than this
//! file to every program that links the library.

use super::callers::Callers;
use super::contents::Snapshot;
use super::event::{Action, Event};
use super::sink::Sink;
use crate::base::error::Result;
use crate::core::{BlockState, Counter, Place, Placed, Span, Stats};
use crate::runtime::entry::tags::Tag;
use std::collections::HashMap;

/// The version of the format; raised when a field changes its meaning or is removed.
const VERSION: u64 = 1;

/// Writes tokens, with the commas between them.
pub(super) struct Json<'a, 's> {
    out: &'a mut Sink<'s>,
    comma: bool, // whether the next token needs one before it
}

impl<'a, 's> Json<'a, 's> {
    pub(super) fn new(out: &'a mut Sink<'s>) -> Self {
        Json { out, comma: false }
    }

    fn value(&mut self) {
        if std::mem::replace(&mut self.comma, true) {
            self.out.byte(b',');
        }
    }

    /// Begins an object or a list: `{` or `[`.
    fn open(&mut self, bracket: u8) {
        self.value();
        self.out.byte(bracket);
        self.comma = false;
    }

    /// Ends it.
    fn close(&mut self, bracket: u8) {
        self.out.byte(bracket);
        self.comma = true;
    }

    /// Begins an object on a line of its own, for lists with many elements.
    fn open_line(&mut self) {
        self.value();
        self.out.put(b"\n{");
        self.comma = false;
    }

    fn key(&mut self, name: &str) {
        self.text(name);
        self.out.byte(b':');
        self.comma = false;
    }

    fn number(&mut self, n: u64) {
        self.value();
        self.out.decimal(n);
    }

    fn number_or_null(&mut self, n: Option<u64>) {
        match n {
            Some(n) => self.number(n),
            None => self.word("null"),
        }
    }

    /// `true`, `false` or `null`.
    fn word(&mut self, word: &str) {
        self.value();
        self.out.put(word.as_bytes());
    }

    /// A string. Quotes, backslashes and control characters are escaped; all else is written as it is.
    pub(super) fn text(&mut self, text: &str) {
        self.value();
        self.out.byte(b'"');
        for c in text.chars() {
            match c {
                '"' | '\\' => self.out.put(&[b'\\', c as u8]),
                '\n' => self.out.put(b"\\n"),
                '\r' => self.out.put(b"\\r"),
                '\t' => self.out.put(b"\\t"),
                // U+2028 and U+2029 end a line in JavaScript.
                '\0'..='\x1f' | '\x7f' | '\u{2028}' | '\u{2029}' => {
                    self.out.put(format!("\\u{:04x}", c as u32).as_bytes());
                }
                _ => self.out.put(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        self.out.byte(b'"');
    }

    fn pair(&mut self, name: &str, n: u64) {
        self.key(name);
        self.number(n);
    }

    fn counter(&mut self, name: &str, c: &Counter) {
        self.key(name);
        self.open(b'{');
        self.pair("current", c.current);
        self.pair("peak", c.peak);
        self.pair("total", c.total);
        self.close(b'}');
    }

    /// The fields of an account.
    fn stats(&mut self, s: &Stats) {
        self.counter("requested_bytes", &s.requested);
        self.counter("allocated_bytes", &s.allocated);
        self.counter("active_bytes", &s.active);
        self.counter("reserved_bytes", &s.reserved);
        self.counter("sleeping_bytes", &s.sleeping);
        self.counter("blocks", &s.blocks);
        self.counter("segments", &s.segments);
        self.pair("out_of_memory_count", s.out_of_memory_count);
        self.key("limit_bytes");
        self.number_or_null(Some(s.limit).filter(|&n| n != 0));
    }
}

/// Writes the snapshot.
pub(super) fn write(
    snapshot: &Snapshot,
    events: impl Iterator<Item = Event>,
    out: &mut Sink<'_>,
) -> Result<()> {
    let mut j = Json::new(out);
    j.open(b'{');
    j.key("schema");
    j.text("millpond.snapshot");
    j.pair("version", VERSION);
    j.key("library");
    j.text(env!("CARGO_PKG_VERSION"));
    j.pair("time_us", snapshot.time_us);
    device(&mut j, snapshot);
    j.key("options");
    j.open(b'{');
    for (name, value) in &snapshot.options {
        j.key(name);
        j.text(value);
    }
    j.close(b'}');
    account(&mut j, snapshot);
    j.key("segments");
    j.open(b'[');
    for span in snapshot.layout.spans() {
        segment(&mut j, &span, snapshot)?;
    }
    j.close(b']');
    stacks(&mut j, snapshot)?;
    j.key("events");
    j.open(b'[');
    for e in events {
        event(&mut j, &e, snapshot);
        j.out.rest()?;
    }
    j.close(b']');
    j.close(b'}');
    j.out.byte(b'\n');
    Ok(())
}

fn device(j: &mut Json<'_, '_>, snapshot: &Snapshot) {
    j.key("device");
    j.open(b'{');
    j.key("type");
    j.text(&snapshot.type_name);
    j.pair("ordinal", snapshot.ordinal as u64);
    j.key("total_bytes");
    j.number_or_null(snapshot.memory.map(|m| m.total));
    j.key("free_bytes");
    j.number_or_null(snapshot.memory.map(|m| m.free));
    j.close(b'}');
}

fn account(j: &mut Json<'_, '_>, snapshot: &Snapshot) {
    let (layout, pinned) = (&snapshot.layout, &snapshot.pinned);
    j.key("account");
    j.open(b'{');
    j.key("device");
    j.open(b'{');
    j.stats(&layout.device);
    j.pair("driver_calls", layout.device.driver_calls);
    j.pair("in_transit_bytes", layout.in_transit());
    j.close(b'}');
    j.key("pools");
    j.open(b'[');
    for (pool, stats) in &layout.pools {
        j.open_line();
        j.pair("id", u64::from(pool.0));
        j.key("name");
        match snapshot.names.get(pool) {
            Some(name) => j.text(name),
            None => j.word("null"),
        }
        j.stats(stats);
        j.close(b'}');
    }
    j.close(b']');
    j.key("pinned");
    j.open(b'{');
    j.counter("requested_bytes", &pinned.requested);
    j.counter("allocated_bytes", &pinned.allocated);
    j.counter("reserved_bytes", &pinned.reserved);
    j.counter("blocks", &pinned.blocks);
    j.pair("cached_bytes", pinned.cached);
    j.pair("pending_bytes", pinned.pending);
    j.close(b'}');
    j.close(b'}');
}

fn segment(j: &mut Json<'_, '_>, span: &Span<'_>, snapshot: &Snapshot) -> Result<()> {
    j.open_line();
    j.pair("address", span.address);
    j.pair("size_bytes", span.bytes);
    j.key("kind");
    j.text(match span.place {
        Place::Segment => "segment",
        Place::Large => "large",
        Place::Small => "small",
        Place::Scattered => "scattered",
    });
    j.key("stream");
    j.number_or_null(span.owner.stream);
    j.key("pool");
    j.number_or_null(span.owner.pool.map(|p| u64::from(p.0)));
    if span.owner.sleeps {
        j.key("sleeps");
        j.word("true");
    }
    j.key("blocks");
    j.open(b'[');
    for b in span.blocks {
        let stack = snapshot.kept.requests.get(&b.address).filter(|_| b.state != BlockState::Free);
        block(j, b, stack.copied().unwrap_or(0));
        j.out.rest()?;
    }
    j.close(b']');
    if !span.pieces.is_empty() {
        j.key("pieces");
        j.open(b'[');
        for p in span.pieces {
            j.open(b'{');
            j.pair("address", p.address);
            j.pair("size_bytes", p.bytes);
            j.pair("home", p.home);
            j.close(b'}');
            j.out.rest()?;
        }
        j.close(b']');
    }
    j.close(b'}');
    Ok(())
}

/// The callers, each once, and the stacks that consist of them.
fn stacks(j: &mut Json<'_, '_>, snapshot: &Snapshot) -> Result<()> {
    let (loaded, mut numbers, mut all) = (Callers::now(), HashMap::new(), Vec::new());
    for &frame in snapshot.kept.stacks.iter().flatten() {
        numbers.entry(frame).or_insert_with(|| {
            all.push(frame);
            all.len() as u64 - 1
        });
    }
    j.key("frames");
    j.open(b'[');
    for frame in all {
        let caller = loaded.of(frame);
        j.open_line();
        j.key("module");
        j.text(&caller.module);
        j.pair("offset", caller.offset);
        if let Some(name) = &caller.function {
            j.key("function");
            j.text(name);
        }
        j.close(b'}');
        j.out.rest()?;
    }
    j.close(b']');
    j.key("stacks");
    j.open(b'[');
    for stack in snapshot.kept.stacks.iter() {
        j.open(b'[');
        stack.iter().filter_map(|f| numbers.get(f)).for_each(|&n| j.number(n));
        j.close(b']');
        j.out.rest()?;
    }
    j.close(b']');
    Ok(())
}

fn block(j: &mut Json<'_, '_>, b: &Placed, stack: u32) {
    j.open_line();
    j.pair("address", b.address);
    j.pair("size_bytes", b.size());
    if b.slack > 0 {
        j.pair("span_bytes", b.span);
    }
    j.pair("requested_bytes", b.requested);
    j.key("state");
    j.text(match b.state {
        BlockState::Live => "live",
        BlockState::Waiting => "waiting",
        BlockState::Free => "free",
    });
    if let Some(tag) = Tag::of_number(b.tag) {
        j.key("tag");
        j.text(tag.name());
    }
    number_of_stack(j, stack);
    j.close(b'}');
}

fn number_of_stack(j: &mut Json<'_, '_>, stack: u32) {
    if stack != 0 {
        j.pair("stack", stack.into());
    }
}

fn event(j: &mut Json<'_, '_>, e: &Event, snapshot: &Snapshot) {
    j.open_line();
    j.key("action");
    j.text(e.action.name());
    j.pair("time_us", e.time_us);
    match e.action {
        Action::Annotate => {
            j.key("text");
            j.text(snapshot.kept.text(e.text));
        }
        Action::Oom => e.device_free.into_iter().for_each(|n| j.pair("device_free_bytes", n)),
        _ => j.pair("address", e.address),
    }
    j.pair("size_bytes", e.bytes);
    if e.requested != 0 && (e.action.is_of_a_block() || e.action == Action::Oom) {
        j.pair("requested_bytes", e.requested);
    }
    j.pair("stream", e.stream);
    e.pool.into_iter().for_each(|p| j.pair("pool", p.0.into()));
    if e.thread != 0 {
        j.pair("thread", e.thread.into());
    }
    if let Some(tag) = Tag::of_number(e.tag) {
        j.key("tag");
        j.text(tag.name());
    }
    number_of_stack(j, e.stack);
    j.close(b'}');
}
