//! Allocation traces: the text format (see `traces/README.md`), read whole into memory and checked
//! before anything is replayed, so that reading costs nothing while calls are timed. `trace_file.rs` reads
//! files of it, and those of other programs.
//!
//! Every complaint names the line. Nothing here knows the allocator.

use crate::units::counted;
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::collections::HashMap;

/// More streams than this are taken for a damaged file.
const MAX_STREAMS: u32 = 4096;

/// One line of a trace that does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Block number `block` (0, 1, 2 … in order of allocation) is allocated on `stream`.
    Alloc { block: u32, stream: u32, bytes: u64 },
    /// It is freed, on the stream that it was allocated on.
    Free { block: u32 },
}

/// When an event happened, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct When {
    /// [ns] since some moment.
    pub(crate) time: u64,
    /// 0: not known.
    pub(crate) thread: u64,
}

impl When {
    /// What a line `# at: <ns> [<thread>]` says, if it says that.
    fn parse(text: &str) -> Option<When> {
        let mut words = text.split_ascii_whitespace().map(|w| w.parse().ok());
        let time = words.next()??;
        Some(When { time, thread: words.next().unwrap_or(Some(0))? })
    }
}

/// A program's allocations and frees in program order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    pub(crate) name: String,             // from the header, else the file's name
    pub(crate) source: String,           // what was recorded; may be empty
    pub(crate) events: Vec<Event>,       // all of them
    pub(crate) allocs: u64,              // how many of them allocate
    pub(crate) streams: u32,             // streams are 0..streams; at least 1
    pub(crate) peak_live_bytes: u64,     // highest sum of the bytes of live blocks
    pub(crate) peak_live_event: u64,     // index of the event that reaches it first
    pub(crate) max_live_blocks: u64,     // most blocks alive at once
    pub(crate) left_live: u64,           // blocks that are never freed
    pub(crate) total_bytes: u64,         // sum of all requests
    pub(crate) step_starts: Vec<u64>,    // event indices at which a step of the program begins
    pub(crate) lost: u64,                // events that the recording lacks, as it says
    pub(crate) failed: Option<String>,   // why the recording could not be written to its end
    pub(crate) is_ended: bool, // whether it says how many events there are, or were when the process exited
    pub(crate) lines: Vec<u32>, // the line of the file of each event, from 1
    pub(crate) when: Vec<When>, // of each event; empty where nothing is known of that
    pub(crate) tags: Vec<(u32, String)>, // from which event on requests have which tag ("": none)
}

impl Trace {
    /// Parses the text of a trace.
    pub(crate) fn parse(name: &str, text: &str) -> Result<Trace> {
        let mut b = Builder::new(name);
        let mut declared_events = None;
        for (i, raw) in text.lines().enumerate() {
            let line_number = i + 1;
            let line = raw.trim_end();
            if let Some(header) = line.strip_prefix('#') {
                if let Some((key, value)) = header.split_once(':') {
                    let value = value.trim();
                    match key.trim() {
                        "name" if !value.is_empty() => b.trace.name = value.to_string(),
                        "source" => b.trace.source = value.to_string(),
                        "events" => {
                            declared_events = value.parse::<u64>().ok();
                            b.trace.is_ended = true;
                        }
                        "exit" => b.trace.is_ended = true,
                        "failed" => b.trace.failed = Some(value.to_owned()),
                        // "# lost: 3 events; ..."
                        "lost" => {
                            let count = value.split(' ').next().and_then(|n| n.parse().ok());
                            b.trace.lost = count.unwrap_or(0);
                        }
                        "at" => b.at = When::parse(value).or(b.at),
                        "tag" => b.tag(value),
                        "step_starts" => {
                            b.trace.step_starts =
                                value.split(',').filter_map(|s| s.trim().parse().ok()).collect();
                        }
                        _ => {}
                    }
                }
                continue;
            }
            if line.is_empty() {
                continue;
            }
            (|| -> Result<()> {
                let mut words = line.split_ascii_whitespace();
                match words.next() {
                    Some("a") => {
                        let id = number(words.next(), "id")?;
                        let bytes = number(words.next(), "bytes")?;
                        let stream = number(words.next(), "stream")?;
                        b.alloc(id, bytes, stream, line_number)?;
                    }
                    Some("f") => b.free(number(words.next(), "id")?, line_number)?,
                    Some(other) => {
                        bail!("a line starts with `a`, `f` or `#`, not with `{}`", shortened(other, 40))
                    }
                    None => bail!("the line is empty"),
                };
                ensure!(words.next().is_none(), "there is more on the line than belongs there");
                Ok(())
            })()
            .with_context(|| format!("line {line_number}: `{}`", shortened(line, 60)))?;
        }
        let count = b.trace.events.len();
        ensure!(count > 0, "there is not one `a` or `f` line in it");
        if let Some(n) = declared_events {
            ensure!(
                n == count as u64,
                "the header promises {}, and {count} can be read: the file is damaged or cut off",
                counted(n, "event")
            );
        }
        Ok(b.end())
    }
}

/// A trace on its way, event by event, each checked against those before.
pub(crate) struct Builder {
    pub(crate) trace: Trace,
    /// Of the events that come now.
    pub(crate) at: Option<When>,
    live: HashMap<u64, (u32, u64)>, // id -> block number, bytes
    live_bytes: u64,
}

impl Builder {
    pub(crate) fn new(name: &str) -> Builder {
        let trace = Trace { name: name.to_string(), streams: 1, ..Trace::default() };
        Builder { trace, at: None, live: HashMap::new(), live_bytes: 0 }
    }

    /// Whether a block of that id is live.
    pub(crate) fn is_live(&self, id: u64) -> bool {
        self.live.contains_key(&id)
    }

    fn enter(&mut self, event: Event, line: usize) {
        self.trace.events.push(event);
        self.trace.lines.push(u32::try_from(line).unwrap_or(u32::MAX));
        if let Some(at) = self.at {
            self.trace.when.resize(self.trace.events.len(), at); // what came before is not later
        }
    }

    /// What is allocated from now on has this tag.
    fn tag(&mut self, name: &str) {
        let from = self.trace.events.len() as u32;
        self.trace.tags.push((from, name.to_owned()));
    }

    /// A block is allocated, as `line` tells.
    pub(crate) fn alloc(&mut self, id: u64, bytes: u64, stream: u64, line: usize) -> Result<()> {
        ensure!(stream < u64::from(MAX_STREAMS), "stream {stream} is not below {MAX_STREAMS}");
        let t = &mut self.trace;
        let block = u32::try_from(t.allocs).context("too many allocations")?;
        ensure!(self.live.insert(id, (block, bytes)).is_none(), "block {id} is allocated twice");
        self.live_bytes = self.live_bytes.checked_add(bytes).context("the live bytes pass 2^64")?;
        t.allocs += 1;
        t.total_bytes = t.total_bytes.saturating_add(bytes);
        t.streams = t.streams.max(stream as u32 + 1);
        if self.live_bytes > t.peak_live_bytes {
            t.peak_live_bytes = self.live_bytes;
            t.peak_live_event = t.events.len() as u64;
        }
        t.max_live_blocks = t.max_live_blocks.max(self.live.len() as u64);
        self.enter(Event::Alloc { block, stream: stream as u32, bytes }, line);
        Ok(())
    }

    /// A block is freed.
    pub(crate) fn free(&mut self, id: u64, line: usize) -> Result<()> {
        let Some((block, bytes)) = self.live.remove(&id) else {
            bail!("block {id} is freed, but it is not live");
        };
        self.live_bytes -= bytes;
        self.enter(Event::Free { block }, line);
        Ok(())
    }

    /// All of it.
    pub(crate) fn end(self) -> Trace {
        let mut trace = self.trace;
        trace.left_live = self.live.len() as u64;
        trace.step_starts.retain(|&s| s < trace.events.len() as u64);
        trace
    }
}

/// The next word of a line as a number.
fn number(word: Option<&str>, what: &str) -> Result<u64> {
    let word = word.with_context(|| format!("the {what} is missing"))?;
    word.parse().map_err(|_| match word.bytes().all(|b| b.is_ascii_digit()) {
        true => anyhow!("the {what} `{}` is 2^64 or more", shortened(word, 40)),
        false => anyhow!("the {what} `{}` is not a whole number", shortened(word, 40)),
    })
}

/// A text for a message, with its end marked where it is not all of it.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# name: tiny\n# source: by hand: ours\n# events: 5\n# step_starts: 0,3,99\n\
                        a 1 100 0\na 2 50 3\nf 1\na 3 20 0\nf 3\n";

    fn error_of(text: &str) -> String {
        format!("{:#}", Trace::parse("x", text).unwrap_err())
    }

    #[test]
    fn tags_are_told_from_the_event_on_before_which_they_stand() {
        let t = Trace::parse("x", "a 1 8 0\n# tag: kv cache\na 2 8 0\nf 1\n# tag:\na 3 8 0\n").unwrap();
        assert_eq!(t.tags, [(1, "kv cache".to_owned()), (3, String::new())]);
    }

    #[test]
    fn reads_events_and_totals() {
        let t = Trace::parse("file", GOOD).unwrap();
        assert_eq!(t.name, "tiny");
        assert_eq!(t.source, "by hand: ours");
        assert_eq!(
            t.events,
            [
                Event::Alloc { block: 0, stream: 0, bytes: 100 },
                Event::Alloc { block: 1, stream: 3, bytes: 50 },
                Event::Free { block: 0 },
                Event::Alloc { block: 2, stream: 0, bytes: 20 },
                Event::Free { block: 2 },
            ]
        );
        assert_eq!((t.allocs, t.streams, t.left_live), (3, 4, 1));
        assert_eq!((t.peak_live_bytes, t.peak_live_event, t.max_live_blocks), (150, 1, 2));
        assert_eq!(t.total_bytes, 170);
        assert_eq!(t.step_starts, [0, 3]);
        assert_eq!(t.lines, [5, 6, 7, 8, 9]);
    }

    #[test]
    fn takes_the_files_name_without_a_header() {
        let t = Trace::parse("mine", "a 7 8 0\r\nf 7\r\n").unwrap();
        assert_eq!((t.name.as_str(), t.left_live, t.streams), ("mine", 0, 1));
    }

    #[test]
    fn times_and_threads_are_of_what_follows() {
        let text = "a 1 8 0\n# at: 500 12\na 2 8 0\nf 1\n# at: nonsense\n# at: 700\nf 2\n";
        let t = Trace::parse("x", text).unwrap();
        let told: Vec<_> = t.when.iter().map(|w| (w.time, w.thread)).collect();
        assert_eq!(told, [(500, 12), (500, 12), (500, 12), (700, 0)]);
        assert!(Trace::parse("x", GOOD).unwrap().when.is_empty());
    }

    #[test]
    fn complaints_name_line_and_cause() {
        for (text, wants) in [
            ("# x\na 1 8 0\nq 1\n", "line 3: `q 1`: a line starts with"),
            ("a 1 8\n", "line 1: `a 1 8`: the stream is missing"),
            ("a 1 -8 0\n", "the bytes `-8` is not a whole number"),
            ("a 1 18446744073709551616 0\n", "the bytes `18446744073709551616` is 2^64 or more"),
            ("a 1 8 0 9\n", "more on the line"),
            ("a 1 8 0\na 1 8 0\n", "line 2: `a 1 8 0`: block 1 is allocated twice"),
            ("a 1 8 0\nf 2\n", "line 2: `f 2`: block 2 is freed, but it is not live"),
            ("a 1 8 0\nf 1\nf 1\n", "line 3"),
            ("a 1 18446744073709551615 0\na 2 1 0\n", "pass 2^64"),
            ("a 1 8 70000\n", "stream 70000 is not below"),
            ("# events: 3\na 1 8 0\n", "promises 3 events, and 1 can be read"),
            ("# only a header\n", "not one"),
            ("", "not one"),
        ] {
            let e = error_of(text);
            assert!(e.contains(wants), "{text:?}: `{e}` does not contain `{wants}`");
        }
    }

    #[test]
    fn an_id_may_come_back_after_its_free() {
        let t = Trace::parse("x", "a 1 8 0\nf 1\na 1 9 0\nf 1\n").unwrap();
        assert_eq!(t.events[3], Event::Free { block: 1 });
    }
}
