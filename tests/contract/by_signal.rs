//! Histories that begin and end by a signal: of the program's choice, or of who set its environment.

use crate::apart::*;
use crate::api::*;
use crate::history::{in_child, path, start, take};
use crate::observers::state;
use millpond::Code;
use millpond::capi::*;
use millpond::runtime::{EventKind, HistoryFile};
use std::ffi::CString;
use std::path::{Path, PathBuf};

fn on_signal(signal: i32, file: &Path) -> Outcome<()> {
    let path = CString::new(file.to_str().unwrap()).unwrap();
    let mut o: millpond_history_options = unsafe { std::mem::zeroed() };
    (o.struct_size, o.frame_count, o.path) = (size_of_val(&o), 8, path.as_ptr());
    outcome(unsafe { millpond_history_on_signal(signal, &o) })
}

fn send(signal: i32) {
    assert_eq!(unsafe { libc::kill(libc::getpid(), signal) }, 0);
}

fn pairs(d: Device, count: usize) {
    let pool = d.default_pool();
    for _ in 0..count {
        pool.free(pool.alloc(512, NULL).unwrap(), NULL).unwrap();
    }
}

fn is_watched(d: Device) -> bool {
    state(d).memory().watchers().any()
}

/// Requests in a history's file.
fn requests(file: &Path) -> usize {
    let read = HistoryFile::parse(&take(file)).unwrap();
    assert!(!read.cut_off && read.dropped == 0);
    read.events.iter().filter(|e| e.event.kind == EventKind::Alloc).count()
}

fn numbered(file: &Path, n: u32) -> PathBuf {
    PathBuf::from(file.to_str().unwrap().replace("%n", &n.to_string()))
}

#[test]
fn a_signal_begins_and_ends_histories() {
    apart(|| {
        let file = path("signal-%n.history");
        on_signal(libc::SIGUSR2, &file).unwrap();
        let d = host(64 * MIB, true); // also a device that is opened later
        for n in 1..=2 {
            pairs(d, 100);
            send(libc::SIGUSR2);
            until("the history begins", || is_watched(d));
            pairs(d, 10 * n as usize);
            // A forked child's signal is its own.
            assert_eq!(in_child(|| send(libc::SIGUSR2)), 0);
            send(libc::SIGUSR2);
            until("the history ends", || !is_watched(d));
            until("its file is whole", || {
                std::fs::read(numbered(&file, n))
                    .is_ok_and(|b| HistoryFile::parse(&b).is_ok_and(|f| f.modules.contains("r-xp")))
            });
            assert_eq!(requests(&numbered(&file, n)), 10 * n as usize);
        }
        // Another signal takes its place, and 0 ends it; what the first one does by itself is nothing to wait for here.
        on_signal(libc::SIGWINCH, &file).unwrap();
        on_signal(0, &file).unwrap();
        send(libc::SIGWINCH);
        let status = in_child(|| send(libc::SIGUSR2));
        assert_eq!(status, libc::SIGUSR2, "it ends a process again");
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!is_watched(d));
    });
}

/// The program has stopped the history that a signal has begun, and has one of its own now.
#[test]
fn a_signal_ends_no_history_that_it_has_not_begun() {
    apart(|| {
        let file = path("begun-%n.history");
        on_signal(libc::SIGUSR2, &file).unwrap();
        let (d, e) = (host(64 * MIB, true), Device::get("cpu", 0).unwrap());
        send(libc::SIGUSR2);
        until("both histories begin", || is_watched(d) && is_watched(e));
        state(d).history_stop().unwrap();
        start(d, 16, 0, None);
        send(libc::SIGUSR2);
        until("the other one ends", || !is_watched(e));
        pairs(d, 1);
        assert_eq!(state(d).history().unwrap().events.len(), 3, "it goes on"); // one for the granule
        state(d).history_stop().unwrap();
    });
}

/// No signal is chosen any more while one runs that a signal has begun.
#[test]
fn the_next_signal_that_is_chosen_ends_what_the_last_one_has_begun() {
    apart(|| {
        let file = path("again-%n.history");
        on_signal(libc::SIGUSR2, &file).unwrap();
        let d = host(64 * MIB, true);
        send(libc::SIGUSR2);
        until("the history begins", || is_watched(d));
        on_signal(0, &file).unwrap();
        pairs(d, 5);
        assert!(is_watched(d));
        on_signal(libc::SIGUSR1, &file).unwrap();
        send(libc::SIGUSR1);
        until("the history ends", || !is_watched(d));
        send(libc::SIGUSR1);
        until("the next one begins", || is_watched(d));
        until("it has a file of its own", || numbered(&file, 2).exists());
        assert_eq!(requests(&numbered(&file, 1)), 5);
    });
}

extern "C" fn own(_: i32) {}

#[test]
fn a_signal_that_is_the_programs_is_left_to_it() {
    apart(|| {
        let file = path("own.history");
        unsafe { libc::signal(libc::SIGUSR1, own as *const () as usize) };
        let said = |signal| on_signal(signal, &file).unwrap_err();
        let (busy, bad) = (Code::Busy as u32, Code::InvalidArgument as u32);
        for (signal, code) in [(libc::SIGUSR1, busy), (libc::SIGSEGV, bad), (libc::SIGKILL, bad), (4000, bad)]
        {
            assert_eq!(said(signal).code, code, "{signal}");
        }
        send(libc::SIGUSR1);
        assert!(!file.exists());
    });
}

#[test]
fn the_environment_chooses_the_signal() {
    let file = path("from-outside.history");
    let name = file.to_str().unwrap();
    apart_with(&[("MILLPOND_HISTORY", name), ("MILLPOND_HISTORY_SIGNAL", "USR2")], || {
        let file = PathBuf::from(std::env::var("MILLPOND_HISTORY").unwrap());
        let d = host(64 * MIB, true);
        assert!(!is_watched(d) && !file.exists(), "nobody has asked yet");
        send(libc::SIGUSR2);
        until("the history begins", || is_watched(d));
        pairs(d, 7);
        send(libc::SIGUSR2);
        until("the history ends", || !is_watched(d));
        until("its file is whole", || {
            std::fs::read(&file).is_ok_and(|b| HistoryFile::parse(&b).is_ok_and(|f| !f.modules.is_empty()))
        });
        assert_eq!(requests(&file), 7);
    });
}

/// What the program chooses later holds, whatever devices are opened after that.
#[test]
fn the_programs_choice_comes_before_the_environments() {
    let file = path("chosen-%n.history");
    let name = file.to_str().unwrap();
    apart_with(&[("MILLPOND_HISTORY", name), ("MILLPOND_HISTORY_SIGNAL", "USR2")], || {
        let file = PathBuf::from(std::env::var("MILLPOND_HISTORY").unwrap());
        let d = host(64 * MIB, true);
        on_signal(libc::SIGUSR1, &file).unwrap();
        Device::get("cpu", 0).unwrap();
        send(libc::SIGUSR1);
        until("the history begins", || is_watched(d));
        assert_eq!(in_child(|| send(libc::SIGUSR2)), libc::SIGUSR2, "it does what it does by itself");
    });
}

/// What was ignored before, as under nohup, is ignored again; and the library has no descriptor for it that the program
/// could close, and get the number for a file of its own.
#[test]
fn a_signal_that_was_ignored_is_ignored_again() {
    apart(|| {
        let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let file = path("ignored-%n.history");
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
        let d = host(64 * MIB, true);
        let open = descriptors();
        on_signal(libc::SIGHUP, &file).unwrap();
        assert_eq!(descriptors(), open);
        send(libc::SIGHUP);
        until("the history begins", || is_watched(d));
        send(libc::SIGHUP);
        until("the history ends", || !is_watched(d));
        on_signal(0, &file).unwrap();
        send(libc::SIGHUP);
        assert_eq!(in_child(|| send(libc::SIGHUP)), 0, "nothing happens");
    });
}

/// The environment asks for a signal that cannot be had, so no device opens.
fn fails_the_opening(wants: &str) {
    let e = millpond::runtime::device("host", 0).map(drop).unwrap_err();
    assert!(e.message().contains(wants), "{}", e.message());
}

#[test]
fn an_unknown_signal_in_the_environment_fails_the_opening() {
    let set = [("MILLPOND_HISTORY", "x"), ("MILLPOND_HISTORY_SIGNAL", "USR9")];
    apart_with(&set, || fails_the_opening("MILLPOND_HISTORY_SIGNAL is \"USR9\": want a signal"));
}

#[test]
fn a_signal_without_a_history_in_the_environment_fails_the_opening() {
    let set = [("MILLPOND_HISTORY", ""), ("MILLPOND_HISTORY_SIGNAL", "USR2")];
    apart_with(&set, || fails_the_opening("MILLPOND_HISTORY_SIGNAL wants MILLPOND_HISTORY"));
}

#[test]
fn a_signal_of_a_failure_in_the_environment_fails_the_opening() {
    let set = [("MILLPOND_HISTORY", "x"), ("MILLPOND_HISTORY_SIGNAL", "11")];
    apart_with(&set, || {
        fails_the_opening("MILLPOND_HISTORY_SIGNAL: signal 11 says that something has failed")
    });
}
