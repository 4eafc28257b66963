//! Histories of programs whose threads go on allocating: while the process forks, while the ring wraps under a reader, and
//! while histories come and go.

use crate::apart::*;
use crate::api::*;
use crate::history::{in_child, path, start, take};
use crate::observers::state;
use millpond::runtime::{EventKind, HistoryEvent, HistoryFile, annotate};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

const THREADS: usize = 3;

/// Threads allocate and free, each blocks of sizes that no other one asks for, while `body` runs. How many pairs they made.
fn beside(d: Device, body: impl FnOnce()) -> u64 {
    let (over, pairs) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        for t in 0..THREADS {
            let (over, pairs) = (&over, &pairs);
            s.spawn(move || {
                let (pool, stream) = (d.default_pool(), d.stream());
                let mut n = 0;
                while !over.load(SeqCst) {
                    let p = pool.alloc(size_of_thread(t, n), stream).unwrap();
                    pool.free(p, stream).unwrap();
                    n += 1;
                }
                pairs.fetch_add(n as u64, SeqCst);
            });
        }
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        over.store(true, SeqCst);
        done.unwrap_or_else(|e| std::panic::resume_unwind(e));
    });
    pairs.into_inner()
}

fn size_of_thread(thread: usize, n: usize) -> usize {
    1000 * (thread + 1) + n % 7
}

/// Each event is one that a thread has made, and those of a thread stand in order.
fn check(events: &[HistoryEvent]) {
    let mut threads: HashMap<u32, (u64, u64)> = HashMap::new(); // the thousands, and the last stamp
    for e in events {
        let x = &e.event;
        if !matches!(x.kind, EventKind::Alloc | EventKind::FreeRequested) {
            continue;
        }
        let (which, rest) = (x.requested / 1000, x.requested % 1000);
        assert!((1..=THREADS as u64).contains(&which) && rest < 7 && x.address != 0, "{x:?}");
        assert!((x.requested..x.requested + 512).contains(&x.bytes), "{x:?}");
        let (its, last) = threads.entry(x.thread).or_insert((which, 0));
        assert_eq!(*its, which, "{x:?}");
        assert!(*last <= e.stamp, "{x:?}");
        *last = e.stamp;
    }
}

#[test]
fn a_program_that_forks_while_its_threads_are_recorded_keeps_its_history() {
    apart_for(60, || {
        let d = host(64 * MIB, true);
        let file = path("forks.history");
        start(d, 1 << 20, 0, Some(&file));
        let pool = d.default_pool();
        let pairs = beside(d, || {
            for _ in 0..rounds(40) {
                let status = in_child(|| {
                    let refused = pool.alloc(77, NULL).is_err()
                        && state(d).history().is_err()
                        && state(d).history_stop().is_err()
                        && annotate("child").is_err();
                    if !refused {
                        unsafe { libc::_exit(1) };
                    }
                });
                assert_eq!(status, 0);
            }
        });
        let dropped = state(d).history_stop().unwrap();
        let read = HistoryFile::parse(&take(&file)).unwrap();
        let count = |kind| read.events.iter().filter(|e| e.event.kind == kind).count() as u64;
        let (made, freed) = (count(EventKind::Alloc), count(EventKind::FreeRequested));
        assert!(!read.cut_off && read.dropped == dropped);
        assert!(
            made <= pairs && freed <= pairs && 2 * pairs - made - freed <= dropped,
            "{made} {freed} {pairs}"
        );
        check(&read.events);
    });
}

/// A process that has used no device yet, and whose children do.
#[test]
fn children_of_a_program_without_a_device_have_histories_of_their_own() {
    apart_for(60, || {
        let file = path("children-%p.history");
        let run = move |file: &std::path::Path| {
            let d = host(64 * MIB, true);
            start(d, 1 << 16, 0, Some(file));
            let pairs = beside(d, || std::thread::sleep(LATE));
            let dropped = state(d).history_stop().unwrap();
            let mine = file.to_str().unwrap().replace("%p", &std::process::id().to_string());
            let read = HistoryFile::parse(&take(mine.as_ref())).unwrap();
            let made = read.events.iter().filter(|e| e.event.kind == EventKind::Alloc).count() as u64;
            assert!(!read.cut_off && made + dropped >= pairs && made <= pairs);
            check(&read.events);
        };
        for _ in 0..3 {
            assert_eq!(in_child(|| run(&file)), 0);
        }
        run(&file);
    });
}

#[test]
fn a_ring_that_wraps_while_it_is_read_tells_what_it_lacks() {
    apart_for(60, || {
        let d = host(64 * MIB, true);
        for (events, frames) in [(2, 0), (16, 0), (64, 5), (4096, 0)] {
            start(d, events, frames, None);
            beside(d, || {
                let mut before = 0;
                for _ in 0..rounds(400) {
                    let told = state(d).history().unwrap();
                    assert!(told.events.len() <= events);
                    let all = told.events.len() as u64 + told.dropped;
                    assert!(all >= before, "{all} after {before}");
                    before = all;
                    check(&told.events);
                }
            });
            state(d).history_stop().unwrap();
        }
    });
}

#[test]
fn histories_come_and_go_while_threads_are_recorded() {
    apart_for(60, || {
        let d = host(64 * MIB, true);
        let file = path("comes.history");
        beside(d, || {
            for n in 0..rounds(200) {
                let (events, frames) = [(16, 0), (1024, 0), (16, 9), (2048, 0)][n % 4];
                start(d, events, frames, (n % 3 == 0).then_some(&*file));
                if n % 5 == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                let told = state(d).history().unwrap();
                check(&told.events);
                state(d).history_stop().unwrap();
                let after = state(d).history().unwrap();
                check(&after.events);
                let all = |h: &millpond::runtime::History| h.events.len() as u64 + h.dropped;
                assert!(all(&after) >= all(&told));
                if n % 3 == 0 {
                    let read = HistoryFile::parse(&take(&file)).unwrap();
                    assert!(!read.cut_off);
                    check(&read.events);
                }
            }
        });
    });
}
