//! Forks in one thread while others allocate and free in later segments, and give segments, pools and streams back: in the child each
//! call is refused at once, whatever its parent's threads were in the middle of, it ends by itself, and the parent goes on.

use crate::apart::*;
use crate::api::*;
use crate::counted::Counted;
use crate::random::Random;
use millpond::capi::*;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// What the child calls, one after the other; each is refused. The number of the first that is not, or 0.
fn child(d: Device, pool: Pool, stream: Stream, known: &[usize]) -> i32 {
    let refused = |done: Outcome<()>| done.is_err_and(|e| e.code == MILLPOND_E_NOT_PERMITTED);
    let calls: [&dyn Fn() -> bool; 14] = [
        &|| known.iter().all(|&at| refused(free(at))),
        &|| known.iter().all(|&at| refused(pool.free(at, stream))),
        &|| known.iter().all(|&at| refused(block(at).map(drop))),
        &|| refused(pool.alloc(700, stream).map(drop)),
        &|| refused(pool.alloc(MIB, stream).map(drop)),
        &|| refused(d.alloc(3 * MIB).map(drop)),
        &|| refused(d.empty_cache()),
        &|| refused(d.trim_to(MIB)),
        &|| refused(d.synchronize()),
        &|| refused(d.end_stream(stream)),
        &|| refused(d.try_stream().map(drop)),
        &|| refused(pool.release()),
        &|| refused(outcome(unsafe { millpond_device_history_start(ptr(d.0), std::ptr::null()) })),
        &|| refused(outcome(millpond_finalize())),
    ];
    calls.iter().position(|call| !call()).map_or(0, |n| n as i32 + 1)
}

fn hunt(seed: u64, lasts: Duration) -> usize {
    let d = match seed % 3 {
        0 => host(256 * MIB, true),
        1 => host(256 * MIB, false),
        _ => Counted { lowest: true, ..Counted::in_segments(192 * MIB, 3 * MIB) }.open(),
    };
    let pool = d.default_pool();
    let (stop, forks) = (&AtomicBool::new(false), &AtomicUsize::new(0));
    // Blocks that live for ever, or go and come.
    let known = &Mutex::new(Vec::from_iter((0..40).map(|n| pool.alloc(1 + n * 100_000, NULL).unwrap())));
    let until = Instant::now() + lasts;
    std::thread::scope(|s| {
        for n in 0..2 {
            s.spawn(move || {
                let mut r = Random(seed * 97 + n + 1);
                while !stop.load(SeqCst) {
                    let (own, stream) = (d.pool(0), d.stream());
                    let mut mine = Vec::new();
                    for _ in 0..60 {
                        let bytes =
                            if r.below(3) == 0 { MIB + r.below(5 * MIB) } else { 1 + r.below(100_000) };
                        if r.below(5) < 3 {
                            mine.extend([pool, own][r.below(2)].alloc(bytes, stream));
                        } else if !mine.is_empty() {
                            let at = mine.swap_remove(r.below(mine.len()));
                            if r.below(2) == 0 { free(at) } else { pool.free(at, stream) }.unwrap();
                        }
                    }
                    mine.into_iter().for_each(|at| free(at).unwrap());
                    if r.below(2) == 0 {
                        own.empty_cache().unwrap();
                    }
                    own.release().unwrap();
                    d.end_stream(stream).unwrap();
                }
            });
        }
        s.spawn(move || {
            let mut r = Random(seed * 131 + 7);
            while !stop.load(SeqCst) {
                match r.below(3) {
                    0 => d.empty_cache().unwrap(),
                    1 => d.trim_to(16 * MIB).unwrap(),
                    _ => {
                        let mut known = known.lock().unwrap();
                        let n = r.below(known.len());
                        free(known[n]).unwrap();
                        known[n] = loop {
                            if let Ok(at) = pool.alloc(1 + r.below(4 * MIB), NULL) {
                                break at;
                            }
                        };
                    }
                }
            }
        });
        let stream = d.stream();
        while Instant::now() < until {
            let all = known.lock().unwrap().clone();
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                unsafe { libc::alarm(20) };
                let done = child(d, pool, stream, &all);
                // Half of the children run what is registered for the end of a process.
                match forks.load(SeqCst) % 2 {
                    0 => unsafe { libc::_exit(done) },
                    _ => unsafe { libc::exit(done) },
                }
            }
            assert!(pid > 0);
            forks.fetch_add(1, SeqCst);
            let mut status = 0;
            unsafe { libc::waitpid(pid, &mut status, 0) };
            assert_eq!(status, 0, "seed {seed}: the child's status, after {} forks", forks.load(SeqCst));
        }
        stop.store(true, SeqCst);
    });
    known.lock().unwrap().iter().for_each(|&at| free(at).unwrap());
    d.synchronize().unwrap();
    d.empty_cache().unwrap();
    let stats = d.stats();
    assert_eq!(
        (stats.blocks.current, stats.allocated_bytes.current, stats.reserved_bytes.current),
        (0, 0, 0)
    );
    forks.load(SeqCst)
}

#[test]
fn a_child_is_refused_whatever_its_parents_threads_do() {
    let seconds = std::env::var("FORKS_SECONDS").ok().and_then(|n| n.parse().ok()).unwrap_or(3);
    apart_for(60 + 2 * seconds, || {
        let until = Instant::now() + lasting(Duration::from_secs(seconds));
        let mut forks = 0;
        for seed in 1.. {
            forks += hunt(seed, Duration::from_millis(300));
            if Instant::now() > until && forks > 9 {
                break;
            }
        }
    });
}
