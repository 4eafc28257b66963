//! A record from a trace: the trace is replayed, and the device's history of that is the record. Streams and lines are those
//! of the trace, and so are times and threads where it has them; else moments are counted.

use super::history::{Reading, read};
use super::record::Record;
use crate::api::Device;
use crate::commands::device::open_device;
use crate::history::History;
use crate::probe::Setup;
use crate::progress::Progress;
use crate::replay::{self, Plan};
use crate::touch::{Check, Touch};
use crate::trace::{Event, Trace, When};
use crate::units;
use anyhow::{Result, bail};
use millpond::runtime::{self, HistoryEvent, HistoryFile, HistoryOptions};

/// The most events that the history's ring has room for: 2 GiB of it.
const MOST_EVENTS: u64 = 1 << 25;

/// Replays a trace on a device, and tells what has happened there.
pub(super) fn record(trace: &Trace, setup: &Setup, capacity: Option<u64>) -> Result<Record> {
    let name = &setup.device;
    let (device, info) = open_device(setup, capacity, std::slice::from_ref(trace))?;
    if let Err(message) = replay::check_room(trace, &info, &name.to_string(), Touch::None) {
        bail!(message);
    }
    // Calls, what they take from the device, and room to spare. There is no file, whose writer could not keep up.
    let events = (trace.events.len() as u64).saturating_mul(4).saturating_add(1 << 16).min(MOST_EVENTS);
    let state = runtime::device(&name.type_name, name.ordinal as usize)?;
    state.history_start(&HistoryOptions { events: events as usize, frames: 0, file: None })?;
    let outcome = replay_quietly(trace, device, info.streams());
    state.history_stop()?;
    let outcome = outcome?;
    let kept = state.history()?;
    drop(state);
    crate::api::finalize()?;
    let number = |e: &HistoryEvent| e.event.tag;
    let tags = kept.events.iter().filter_map(|e| runtime::Tag::of_number(number(e)));
    let tags = tags.map(|t| (t.number(), t.name().to_owned())).collect();
    let history = History::of(HistoryFile {
        events: kept.events,
        dropped: kept.dropped,
        tags,
        ..HistoryFile::default()
    });
    let whole = history.file.dropped == 0;
    let calls = Calls::of(trace, outcome.operations);
    let how = match whole {
        true => Reading {
            most_calls: Some(calls.done),
            calls: &calls.all,
            steps: &calls.steps,
            when: &calls.when,
        },
        false => Reading::default(),
    };
    let mut r = read(&trace.name, &history, how);
    r.timed = whole && !calls.when.is_empty();
    if trace.lost > 0 {
        r.notes.push(format!("{} missing from the recording", units::are(trace.lost, "event")));
    }
    if let Some(why) = &trace.failed {
        let end = units::counted(trace.events.len() as u64, "event");
        r.notes.push(format!("the recording could not be written to its end: {why}; it ends after {end}"));
    }
    if !trace.source.is_empty() {
        r.fact("trace", trace.source.clone());
    }
    r.fact("replayed on", format!("{setup} with {}", units::bytes(info.total)));
    if trace.streams > 1 && !info.streams() {
        r.notes.push(format!("{name} has no streams: everything was replayed on the default one"));
    }
    if let Some(s) = &outcome.shortage {
        let place = format!("operation {}, line {}", units::count(s.event), units::count(u64::from(s.line)));
        r.notes.push(format!("the replay ran out of memory at {place}: {}", s.message));
    }
    Ok(r)
}

fn replay_quietly(trace: &Trace, device: Device, streams: bool) -> Result<replay::Outcome> {
    let plan = Plan { touch: Touch::None, check: Check::None, passes: 1, picture: false, tags: true };
    let mut progress = Progress::new(&trace.name, trace.events.len() as u64, true);
    replay::replay(trace, device, streams, plan, &mut progress)
}

/// What a history tells of a trace: requests of 0 bytes have no block and no event.
struct Calls {
    /// The stream and the line of each.
    all: Vec<(u32, u32)>,
    /// When and where each was, if the trace says so.
    when: Vec<When>,
    /// Those at which a step begins.
    steps: Vec<u64>,
    /// How many of them are among the first `done` operations of the trace.
    done: u64,
}

impl Calls {
    fn of(trace: &Trace, done: u64) -> Calls {
        let mut blocks = Vec::with_capacity(trace.allocs as usize);
        let mut c = Calls {
            all: Vec::with_capacity(trace.events.len()),
            when: Vec::new(),
            steps: Vec::new(),
            done: 0,
        };
        let mut steps = trace.step_starts.iter().peekable();
        for (n, (event, &line)) in trace.events.iter().zip(&trace.lines).enumerate() {
            while steps.next_if(|&&s| s <= n as u64).is_some() {
                c.steps.push(c.all.len() as u64);
            }
            let (stream, bytes) = match *event {
                Event::Alloc { stream, bytes, .. } => {
                    blocks.push((stream, bytes));
                    (stream, bytes)
                }
                Event::Free { block } => blocks.get(block as usize).copied().unwrap_or_default(),
            };
            if bytes > 0 {
                c.all.push((stream, line));
                c.when.extend(trace.when.get(n));
                c.done += u64::from((n as u64) < done);
            }
        }
        c
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_no_bytes_are_no_calls() {
        let text = "# step_starts: 0,2,5\na 1 8 0\na 2 0 1\na 3 4 2\nf 2\nf 1\na 4 1 0\n";
        let t = Trace::parse("x", text).unwrap();
        let c = Calls::of(&t, 5);
        assert_eq!(c.all, [(0, 2), (2, 4), (0, 6), (0, 7)]);
        assert_eq!((c.steps, c.done), (vec![0, 1, 3], 3));
    }
}
