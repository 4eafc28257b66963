//! What a program leaves behind that ends as a request has found no memory, which is how most of them end: an exception
//! that nobody catches, `abort`, a signal.

use crate::apart::*;
use crate::api::*;
use crate::history::{in_child, path, start, take};
use crate::observers::state;
use millpond::runtime::{EventKind, HistoryFile};
use std::path::Path;
use std::time::{Duration, Instant};

/// Takes all memory of the device, then ends with no word.
fn runs_out(history: &Path, trace: &Path) -> ! {
    let d = host(64 * MIB, true);
    start(d, 0, 16, Some(history));
    state(d).record_start(trace).unwrap();
    let pool = d.default_pool();
    while pool.alloc(2 * MIB, NULL).is_ok() {}
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    unreachable!()
}

#[test]
fn a_program_that_ends_as_it_runs_out_of_memory_has_its_files() {
    apart(|| {
        let (history, trace) = (path("oom.history"), path("oom.trace"));
        let (h, t) = (history.clone(), trace.clone());
        assert_eq!(in_child(move || runs_out(&h, &t)), libc::SIGKILL);
        let read = HistoryFile::parse(&take(&history)).unwrap();
        let count = |kind| read.events.iter().filter(|e| e.event.kind == kind).count();
        assert_eq!((count(EventKind::Alloc), count(EventKind::Oom), read.dropped), (32, 1, 0));
        assert!(read.modules.contains("r-xp"), "its callers would be addresses of nothing");
        let text = String::from_utf8(take(&trace)).unwrap();
        assert_eq!(text.lines().filter(|l| l.starts_with('a')).count(), 32, "{text}");
        assert!(!text.contains("# exit"), "it had no exit");
    });
}

/// A program that goes on after that writes what is loaded once, and does not wait for a file that takes nothing.
#[test]
fn a_program_that_goes_on_pays_little_for_it() {
    apart(|| {
        let d = host(8 * MIB, true);
        let file = path("again.history");
        start(d, 0, 0, Some(&file));
        for _ in 0..200 {
            d.default_pool().alloc(16 * MIB, NULL).unwrap_err();
        }
        let bytes = take(&file);
        let maps = b"r-xp";
        let code = bytes.windows(4).filter(|w| w == maps).count();
        let now = std::fs::read_to_string("/proc/self/maps").unwrap().matches("r-xp").count();
        assert!(code <= 3 * now, "{code} lines of what is loaded, {now} each time");
        state(d).history_stop().unwrap();

        let pipe = path("again.pipe");
        let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let reader = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
        start(d, 1 << 20, 0, Some(&pipe));
        let pool = d.default_pool();
        for _ in 0..100_000 {
            pool.free(pool.alloc(512, NULL).unwrap(), NULL).unwrap();
        }
        let began = Instant::now();
        for _ in 0..50 {
            pool.alloc(16 * MIB, NULL).unwrap_err();
        }
        assert!(began.elapsed() < Duration::from_secs(3), "each waits: {:?}", began.elapsed());
        drop(reader);
    });
}
