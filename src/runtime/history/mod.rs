//! The history of a device: the newest events of its memory in a ring, and, where it was asked for, all of them in a
//! file; and recordings, which are traces for `millpond replay`.
//!
//! Both watch the device's memory (`watch/observe.rs`) through a tape (`recording/tape.rs`). No thread is started and no file opened
//! unless the program, or who set its environment, asked for it.

use crate::base::clock;
use crate::base::error::{Code, Error, Result};
use crate::base::sync::system::{MutexGuard, lock};
use crate::core::BlockStates;
use crate::fail;
use crate::locks;
use crate::runtime::device::state::DeviceState;
use crate::runtime::device::table;
use crate::runtime::entry::usage::Pass;
use crate::runtime::entry::{fork, reentry};
use crate::runtime::recording::files::{self, HistorySink};
use crate::runtime::recording::format::HistoryEvent;
use crate::runtime::recording::output::Output;
use crate::runtime::recording::tape::{MOST_FRAMES, Sink, Tape};
use crate::runtime::recording::tapes::Running;
use crate::runtime::recording::texts::{number_of, text_of};
use crate::runtime::recording::trace::TraceSink;
use crate::runtime::watch::event::{Event, EventKind};
use crate::runtime::watch::observe::Observer;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Weak};

mod by_signal;
mod options;

pub use by_signal::history_on_signal;
pub use options::HistoryOptions;

/// Events of a history whose options do not say how many.
const EVENTS: usize = 1 << 16;
/// Events that may be under way to the file of a recording.
const RECORDED: usize = 1 << 16;

/// What is known of a device's history at one moment.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The newest events, the oldest of them first.
    pub events: Vec<HistoryEvent>,
    /// Events before and among these that are not here any more.
    pub dropped: u64,
}

/// A note in the history of every open device that has one. Texts are kept for as long as the process lives, 65 536
/// different ones.
pub fn annotate(text: &str) -> Result<()> {
    fork::check()?;
    let mut number = None;
    for d in table::open_devices().filter(|d| d.memory().watchers().any()) {
        let address = *number.get_or_insert_with(|| number_of(text));
        d.memory().watchers().list().tell(Event { address, ..Event::new(EventKind::Annotate) });
    }
    Ok(())
}

/// The clock that events are stamped with ([`HistoryEvent::stamp`]), in ticks of no known length: of a call that took two
/// readings before and after it, the events are those of its thread in between. Unlike the times in nanoseconds, which are
/// computed when a history is read, stamps are exact.
pub fn history_stamp() -> u64 {
    clock::start();
    clock::ticks()
}

/// What the environment asks of devices that are opened. The files are open, so nothing can fail any more.
#[derive(Default)]
pub(crate) struct Wishes {
    history: Option<(File, usize)>,
    /// The histories come and go by that signal.
    by_signal: Option<(i32, HistoryOptions)>,
    record: Option<File>,
}

impl Wishes {
    /// `System` for a file that cannot be written, `InvalidArgument` for a number that is none; the variable is named.
    pub(crate) fn from_environment(device: &str) -> Result<Wishes> {
        let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
        let file = |name: &str| -> Result<Option<File>> {
            let Some(path) = variable(name) else { return Ok(None) };
            let named = |e: Error| Error::formatted(e.code(), format_args!("{name}: {}", e.message()));
            files::open(Path::new(&path), device).map(Some).map_err(named)
        };
        let frames = match variable("MILLPOND_HISTORY_FRAMES") {
            None => 0,
            Some(text) => match text.to_str().and_then(|t| t.parse().ok()) {
                Some(n) if n <= MOST_FRAMES => n,
                _ => fail!(
                    Code::InvalidArgument,
                    "MILLPOND_HISTORY_FRAMES is {text:?}: want a number from 0 to {MOST_FRAMES}"
                ),
            },
        };
        let Some(signal) = variable("MILLPOND_HISTORY_SIGNAL") else {
            let history = file("MILLPOND_HISTORY")?.map(|f| (f, frames));
            return Ok(Wishes { history, by_signal: None, record: file("MILLPOND_RECORD")? });
        };
        let Some(signal) = signal.to_str().and_then(by_signal::signal_of) else {
            fail!(
                Code::InvalidArgument,
                "MILLPOND_HISTORY_SIGNAL is {signal:?}: want a signal, such as USR2, or its number"
            );
        };
        let Some(path) = variable("MILLPOND_HISTORY") else {
            fail!(
                Code::InvalidArgument,
                "MILLPOND_HISTORY_SIGNAL wants MILLPOND_HISTORY, too, which names the file"
            );
        };
        let options = HistoryOptions { events: 0, frames, file: Some(path.into()) };
        Ok(Wishes { history: None, by_signal: Some((signal, options)), record: file("MILLPOND_RECORD")? })
    }

    /// Does what the environment asks.
    pub(crate) fn grant(self, device: &DeviceState) -> Result<()> {
        if let Some((file, frames)) = self.history {
            device.history_begin(EVENTS, frames, Some(file))?;
        }
        if let Some((signal, options)) = self.by_signal {
            by_signal::wished(signal, &options).map_err(|e| {
                Error::formatted(e.code(), format_args!("MILLPOND_HISTORY_SIGNAL: {}", e.message()))
            })?;
        }
        self.record.map_or(Ok(()), |file| device.record_begin(file))
    }
}

impl DeviceState {
    fn device_name(&self) -> String {
        format!("{}:{}", self.type_name(), self.ordinal())
    }

    /// From now on what happens to the device's memory, and to its pinned memory, is kept. What an earlier history has
    /// kept is given up. Calls of other threads that are under way may be left out. `Busy` while there is one already;
    /// `System` for a file that cannot be written; `OutOfMemory` for the ring.
    pub fn history_start(&self, options: &HistoryOptions) -> Result<()> {
        self.history_start_one(options).map(drop)
    }

    /// The same; which history has begun.
    fn history_start_one(&self, options: &HistoryOptions) -> Result<Weak<Tape>> {
        let (_pass, turn) = self.tapes_turn()?;
        if lock(&self.tapes.history).as_ref().is_some_and(|r| r.told) {
            return Err(Error::new(Code::Busy, "the device has a history already; stop it first"));
        }
        let file = options.file.as_deref().map(|p| files::open(p, &self.device_name())).transpose()?;
        let events = if options.events == 0 { EVENTS } else { options.events };
        let done = self.history_begin(events, options.frames, file);
        drop(turn);
        done
    }

    /// The turn to begin or end a history or a recording. `NotPermitted` in an observer: whoever has the turn may wait for it.
    fn tapes_turn(&self) -> Result<(Pass<'_>, MutexGuard<'_, (), locks::TapeTurn>)> {
        let pass = self.enter()?;
        reentry::check_segment_callback()?;
        Ok((pass, lock(&self.tapes.turn)))
    }

    fn history_begin(&self, events: usize, frames: usize, file: Option<File>) -> Result<Weak<Tape>> {
        let frames = frames.min(MOST_FRAMES);
        let tape = Tape::new(events, frames, false)?;
        let begun = Arc::downgrade(&tape);
        let sink = file.map(|f| {
            let names = self.memory().pools().names().clone();
            HistorySink::new(Output::new(f, tape.pace()), &self.device_name(), names, frames)
        });
        let observer: Arc<dyn Observer> = tape.clone();
        self.memory().watchers().add(&observer)?;
        if let Some(sink) = sink {
            tape.stream_to(Box::new(sink)).inspect_err(|_| self.memory().watchers().take_out(&observer))?;
        }
        let old = lock(&self.tapes.history).replace(Running { tape, observer, told: true });
        drop(old); // with the lock released: its ring goes back
        Ok(begun)
    }

    /// Ends the history; its file, if it has one, is whole then. What it has kept can be read until another one begins.
    /// How many events the file lacks, as its writer could not keep up. `NotPermitted` where there is none; `System`,
    /// where the file could not be written wholly, also since it took nothing for 5 s (a pipe whose reader stands
    /// still), or was not done after 60 s.
    pub fn history_stop(&self) -> Result<u64> {
        self.history_stop_if(|_| true)
    }

    /// The same for one history only: any other one goes on.
    fn history_stop_one(&self, one: &Weak<Tape>) -> Result<u64> {
        self.history_stop_if(|tape| std::ptr::eq(Arc::as_ptr(tape), one.as_ptr()))
    }

    fn history_stop_if(&self, is_meant: impl Fn(&Arc<Tape>) -> bool) -> Result<u64> {
        let (_pass, turn) = self.tapes_turn()?;
        let running = {
            let mut place = lock(&self.tapes.history);
            let Some(r) = place.as_mut().filter(|r| r.told && is_meant(&r.tape)) else {
                return Err(Error::new(Code::NotPermitted, "the device has no history"));
            };
            r.told = false;
            r.clone()
        };
        self.memory().watchers().take_out(&running.observer);
        let done = running.tape.stop();
        drop(turn);
        done
    }

    /// What the history has kept, up to one moment; other threads go on meanwhile. Also after its end. `NotPermitted`
    /// where there was none.
    pub fn history(&self) -> Result<History> {
        let _pass = self.enter()?;
        let Some(running) = lock(&self.tapes.history).clone() else {
            return Err(Error::new(Code::NotPermitted, "the device has no history"));
        };
        let (events, dropped) = running.tape.read(text_of)?;
        Ok(History { events, dropped })
    }

    /// From now on the program's requests are written to `path` in the form that `millpond replay` takes, the blocks
    /// that live now first. A program that is faster than the file waits for it. `Busy` while there is a recording;
    /// `System` for a file that cannot be written.
    pub fn record_start(&self, path: &Path) -> Result<()> {
        let (_pass, turn) = self.tapes_turn()?;
        if lock(&self.tapes.record).is_some() {
            return Err(Error::new(Code::Busy, "the device is recorded already"));
        }
        let done = files::open(path, &self.device_name()).and_then(|file| self.record_begin(file));
        drop(turn);
        done
    }

    fn record_begin(&self, file: File) -> Result<()> {
        let tape = Tape::new(RECORDED, 0, true)?;
        let observer: Arc<dyn Observer> = tape.clone();
        self.memory().watchers().add(&observer)?;
        // What is told meanwhile waits in the ring.
        let begun = self.memory().blocks(None, BlockStates::LIVE).and_then(|live| {
            let file = Output::new(file, tape.pace());
            let sink: Box<dyn Sink> = Box::new(TraceSink::new(file, &self.device_name(), &live));
            tape.stream_to(sink)
        });
        begun.inspect_err(|_| self.memory().watchers().take_out(&observer))?;
        let old = lock(&self.tapes.record).replace(Running { tape, observer, told: true });
        drop(old); // with the lock released: its ring goes back
        Ok(())
    }

    /// Ends the recording; the file is whole then. How many events it lacks: 0, unless the file was so slow that a
    /// request would have had to wait for seconds. `NotPermitted` where there is none; `System` where the file could
    /// not be written wholly, as for a history.
    pub fn record_stop(&self) -> Result<u64> {
        let (_pass, turn) = self.tapes_turn()?;
        let running = lock(&self.tapes.record).take();
        let Some(running) = running else {
            return Err(Error::new(Code::NotPermitted, "the device is not recorded"));
        };
        self.memory().watchers().take_out(&running.observer);
        let done = running.tape.stop();
        drop(turn);
        done
    }
}

/// The device ends: so do its history and its recording.
pub(crate) fn end(device: &DeviceState) {
    let history = lock(&device.tapes.history).take();
    let record = lock(&device.tapes.record).take();
    for running in history.into_iter().chain(record) {
        device.memory().watchers().take_out(&running.observer);
        let _ = running.tape.stop(); // nobody is left to be told
    }
}
