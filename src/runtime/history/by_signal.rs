//! Histories that a signal starts and stops, chosen by the program or by its environment.
//!
//! The signal handler only wakes a thread (`base/signals.rs`), which starts and stops the histories as any thread of the
//! program could.

use super::options::HistoryOptions;
use crate::base::error::{Code, Error, Result};
use crate::base::signals::{self, Bell};
use crate::base::sync::system::{Mutex, lock};
use crate::base::{fork, loaded};
use crate::locks;
use crate::runtime::device::table;
use crate::runtime::entry::fork::enter as enter_unless_forked;
use crate::runtime::recording::tape::Tape;
use std::path::PathBuf;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What the signal does.
struct Plan {
    /// 0: none does anything, but what an earlier one has begun may run still.
    signal: i32,
    options: HistoryOptions,
    /// How many times it has started histories.
    count: u64,
    /// The histories that it has started, each with its device.
    begun: Vec<(u32, Weak<Tape>)>,
}

static PLAN: Mutex<Option<Plan>> = Mutex::new(None);
/// Held while the signal changes. The value says in which process the thread runs, counted in forks from 1; 0: in none.
static TURN: Mutex<u64, locks::SignalTurn> = Mutex::new(0);

/// In which process the program has chosen a signal, or that there is none; counted in forks from 1. The environment's
/// choice applies once, and never overrides the program's.
static CHOSEN: AtomicU64 = AtomicU64::new(0);

/// Applies the environment's choice, when the first device is opened.
pub(super) fn wished(signal: i32, options: &HistoryOptions) -> Result<()> {
    match CHOSEN.load(Relaxed) == fork::count() + 1 {
        true => Ok(()),
        false => history_on_signal(signal, options),
    }
}

/// From now on `signal` begins a history of each open device that has none, as `options` say, and the next one ends these.
/// `%n` in the path is how many times it has begun some. 0: no signal does; what one has begun goes on. There is one such
/// signal in a process; another one takes its place, and ends what an earlier one has begun. `Busy` where the program handles
/// the signal itself; `InvalidArgument` for one that cannot be handled, or must not be; `System` without a thread for it.
pub fn history_on_signal(signal: i32, options: &HistoryOptions) -> Result<()> {
    let _busy = enter_unless_forked()?;
    fork::watch()?;
    let mut listens = lock(&TURN);
    let before = lock(&PLAN).as_ref().map(|p| p.signal);
    if signal != 0 {
        if *listens != fork::count() + 1 {
            listen()?;
            *listens = fork::count() + 1;
        }
        signals::ring_on(signal)?;
    }
    if let Some(other) = before.filter(|&s| s != signal && s != 0) {
        signals::ring_no_more(other);
    }
    let mut plan = lock(&PLAN);
    *plan = match (signal, plan.take()) {
        (_, Some(p)) => Some(Plan { signal, options: options.clone(), ..p }),
        (0, None) => None,
        (_, None) => Some(Plan { signal, options: options.clone(), count: 0, begun: Vec::new() }),
    };
    drop(plan);
    CHOSEN.store(fork::count() + 1, Relaxed);
    drop(listens);
    Ok(())
}

/// The number of a signal: `USR2`, `SIGUSR2` or `12`.
pub(super) fn signal_of(text: &str) -> Option<i32> {
    let known =
        [("HUP", libc::SIGHUP), ("USR1", libc::SIGUSR1), ("USR2", libc::SIGUSR2), ("WINCH", libc::SIGWINCH)];
    let name = text.strip_prefix("SIG").unwrap_or(text);
    known.iter().find(|k| k.0 == name).map(|k| k.1).or_else(|| text.parse().ok().filter(|&n| n > 0))
}

/// Starts the thread that the signal wakes.
fn listen() -> Result<()> {
    let bell = Bell::hang()?;
    loaded::keep();
    let builder = std::thread::Builder::new().name("millpond-signal".to_owned());
    signals::without_signals(|| {
        builder.spawn(move || {
            while bell.wait() {
                turn_over();
            }
        })
    })
    .map_err(|e| Error::formatted(Code::System, format_args!("no thread to hear a signal: {e}")))?;
    Ok(())
}

/// Stops the histories that an earlier signal has started; if there are none, starts one on each device. Errors are
/// dropped, since there is no caller.
fn turn_over() {
    let Some((options, begun)) = lock(&PLAN).as_mut().filter(|p| p.signal != 0).map(|p| {
        let begun = std::mem::take(&mut p.begun);
        p.count += u64::from(begun.is_empty());
        let file = p.options.file.as_ref().map(|f| match f.to_str() {
            Some(text) => PathBuf::from(text.replace("%n", &p.count.to_string())),
            None => f.clone(),
        });
        (HistoryOptions { file, ..p.options.clone() }, begun)
    }) else {
        return;
    };
    let mut now = Vec::new();
    for d in table::open_devices() {
        if begun.is_empty() {
            now.extend(d.history_start_one(&options).map(|one| (d.id(), one)));
        } else if let Some((_, one)) = begun.iter().find(|b| b.0 == d.id()) {
            let _ = d.history_stop_one(one); // the program may have ended it, and have one of its own
        }
    }
    if let Some(p) = lock(&PLAN).as_mut() {
        p.begun = now;
    }
}
