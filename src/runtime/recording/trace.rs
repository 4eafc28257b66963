//! A recording: what a program asks for, in the text that `millpond replay` takes (`traces/README.md`).

use super::files::program;
use super::output::{LastLine, Output};
use super::tape::Sink;
use crate::base::clock;
use crate::core::BlockRecord;
use crate::runtime::entry::tags;
use crate::runtime::watch::event::{Event, EventKind};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;

/// The format has streams below this; all others are the last one.
const MOST_STREAMS: u32 = 4096;

/// Times are told as exactly as this [ns], so that not each line needs one.
const TICK: u64 = 100_000;

/// See the file's head.
pub(crate) struct TraceSink {
    file: Output,
    text: String,
    last_line: LastLine,
    /// [ns] when the recording began.
    begun: u64,
    /// Time and thread of the event that is told now, and of the last one for which they were written.
    now: Option<(u64, u32)>,
    written: Option<(u64, u32)>,
    /// Live blocks: by address, the number in the trace, and whether the block was there before the recording.
    live: HashMap<u64, (u64, bool)>,
    /// In the order in which they appear; the default one is 0.
    streams: HashMap<u64, u32>,
    /// The tag of the requests that come now.
    tag: u16,
    last: u64,
    lines: u64,
    lost: u64,
}

impl TraceSink {
    /// A recording that begins with those blocks live.
    pub(crate) fn new(file: Output, device: &str, live: &[BlockRecord]) -> TraceSink {
        let name = program().rsplit('/').next().unwrap_or("program").to_owned();
        let mut text =
            format!("# name: {name}\n# source: recorded by Millpond from {name}; device {device}\n");
        let last_line = LastLine::keep(&mut text, 0, "#", "# failed: ");
        let mut sink = TraceSink {
            file,
            text,
            last_line,
            begun: clock::monotonic(),
            now: None,
            written: None,
            live: HashMap::new(),
            streams: HashMap::from([(0, 0)]),
            tag: 0,
            last: 0,
            lines: 0,
            lost: 0,
        };
        for b in live {
            sink.alloc(b.base, (b.requested, b.stream, b.tag), true);
        }
        sink
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        let is_told = |(time, thread): (u64, u32)| {
            self.written.is_some_and(|w| w.1 == thread && time.saturating_sub(w.0) < TICK)
        };
        if let Some((time, thread)) = self.now.filter(|&now| !is_told(now)) {
            self.written = Some((time, thread));
            let _ = writeln!(self.text, "# at: {time} {thread}"); // into a string
        }
        let _ = self.text.write_fmt(text); // into a string
        self.lines += 1;
    }

    /// A line that tells the tag of what follows.
    fn tell_tag(&mut self, tag: u16) {
        self.tag = tag;
        // The name of a tag may have anything in it.
        let name: String = tags::name(tag).unwrap_or_default().chars().filter(|c| !c.is_control()).collect();
        let _ = writeln!(self.text, "# tag: {name}"); // into a string
    }

    /// A block is there: bytes, stream and tag.
    fn alloc(&mut self, addr: u64, (bytes, stream, tag): (u64, Option<u64>, u16), before: bool) {
        match self.live.get_mut(&addr) {
            // It was allocated while the recording began, and is known.
            Some((_, early @ true)) => {
                *early = false;
                return;
            }
            // Its free was lost.
            Some(_) => self.free(addr),
            None => {}
        }
        let next = self.streams.len() as u32;
        let stream = *self.streams.entry(stream.unwrap_or(0)).or_insert(next.min(MOST_STREAMS - 1));
        self.last += 1;
        self.live.insert(addr, (self.last, before));
        if self.tag != tag {
            self.tell_tag(tag);
        }
        let id = self.last;
        self.line(format_args!("a {id} {bytes} {stream}\n"));
    }

    fn tell_lost(&mut self) {
        if self.lost > 0 {
            let lost = self.lost;
            self.text +=
                &format!("# lost: {lost} events; frees of blocks that were never seen are left out\n");
        }
    }

    fn free(&mut self, addr: u64) {
        if let Some((id, _)) = self.live.remove(&addr) {
            self.line(format_args!("f {id}\n"));
        }
    }
}

impl Sink for TraceSink {
    fn event(&mut self, e: &Event, _frames: &[u64]) {
        self.now = Some((e.time.saturating_sub(self.begun), e.thread));
        match e.kind {
            _ if e.host => {}
            EventKind::Alloc | EventKind::FreeRefused => {
                self.alloc(e.address, (e.requested, e.stream, e.tag), false)
            }
            EventKind::FreeRequested => self.free(e.address),
            _ => {}
        }
    }

    fn dropped(&mut self, count: u64) {
        self.lost += count;
    }

    fn waiting(&self) -> usize {
        self.text.len()
    }

    fn flush(&mut self) -> io::Result<()> {
        let text = std::mem::take(&mut self.text);
        let before = self.file.length();
        self.file.write_all(text.as_bytes()).inspect_err(|e| {
            // Half a line may mean something else: "f 12", where "f 123" was meant.
            let written = &text.as_bytes()[..(self.file.length() - before) as usize];
            let lines = written.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
            self.file.end_early(before + lines as u64, &self.last_line, e);
        })
    }

    fn exits(&mut self) {
        self.text += &format!("# exit: {} events\n", self.lines);
        self.tell_lost();
    }

    fn finish(&mut self) -> io::Result<()> {
        self.text += &format!("# events: {}\n", self.lines);
        self.tell_lost();
        let done = self.flush();
        self.file.let_go();
        done
    }
}
