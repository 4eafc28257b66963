//! The thread that uses a heap most locks it cheaply, at the price of a system call (`membarrier`) by the next thread
//! that locks it. A sandbox that starts after the library may forbid that call, and the first thread may never come
//! back. Neither stops another thread, or slows it down for ever.

use crate::apart::*;
use crate::api::*;
use millpond::capi::*;
use std::hint::black_box;
use std::ptr::null_mut;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// From now on `membarrier` fails with this error: on all threads of the process, or on the calling one.
fn refuse_membarrier(errno: i32, everywhere: bool) {
    const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const JUMP_IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    const ALLOW: u32 = 0x7fff_0000; // SECCOMP_RET_ALLOW
    const ERRNO: u32 = 0x0005_0000; // SECCOMP_RET_ERRNO
    const SET_MODE_FILTER: i64 = 1;
    const TSYNC: i64 = 1;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        step(LOAD, 0, 0, 0), // the number of the call
        step(JUMP_IF_EQUAL, 0, 1, libc::SYS_membarrier as u32),
        step(RETURN, 0, 0, ERRNO | errno as u32),
        step(RETURN, 0, 0, ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    let flags = if everywhere { TSYNC } else { 0 };
    let done = unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, flags, &filter) };
    assert_eq!(done, 0, "seccomp: {}", std::io::Error::last_os_error());
    let refused = unsafe { libc::syscall(libc::SYS_membarrier, 0, 0, 0) };
    assert_eq!(refused, -1, "the filter works");
}

/// So many requests of 512 bytes and their frees.
fn pairs(pool: Pool, s: Stream, count: usize) {
    let mut p = null_mut();
    for _ in 0..count {
        let got = unsafe { millpond_pool_alloc(ptr(pool.0), 512, ptr(s.0), &mut p) };
        let gone = unsafe { millpond_pool_free(ptr(pool.0), black_box(p), ptr(s.0)) };
        assert_eq!((got, gone), (C_Status::SUCCESS, C_Status::SUCCESS));
    }
}

/// Two threads use one stream in turns and together: nobody waits for ever, and no block is two threads' at a time.
fn go_on_together(d: Device, pool: Pool, s: Stream) {
    let work = move |stamp: u8| {
        for _ in 0..20_000 {
            let p = pool.alloc(512, s).unwrap();
            poke(p, stamp, 512);
            assert_eq!(filled(p, 512), Some(stamp), "two threads have the block");
            pool.free(p, s).unwrap();
        }
    };
    let (tell, told) = channel();
    for stamp in 1..=2 {
        let tell = tell.clone();
        std::thread::spawn(move || {
            work(stamp);
            tell.send(stamp).unwrap();
        });
    }
    for _ in 0..2 {
        told.recv_timeout(Duration::from_secs(20)).expect("a thread waits for ever, or has failed");
    }
    let stats = d.stats();
    assert_eq!((stats.blocks.current, stats.allocated_bytes.current), (0, 0));
}

/// The filter is there for all threads, after this one has made the heap its own.
fn refused_everywhere(errno: i32) {
    let d = host(64 * MIB, true);
    let (pool, s) = (d.default_pool(), d.stream());
    pairs(pool, s, 10_000);
    refuse_membarrier(errno, true);
    pairs(pool, s, 10_000);
    within(5, "a request of another thread", move || pairs(pool, s, 1));
    within(5, "requests of another thread", move || pairs(pool, s, 10_000));
    within(5, "statistics", move || _ = d.stats());
    go_on_together(d, pool, s);
}

/// A sandbox that starts after the library and forbids the call.
#[test]
fn a_sandbox_that_forbids_the_call_later_stops_nobody() {
    apart(|| refused_everywhere(libc::EPERM));
}

/// One in which the call seems not to exist.
#[test]
fn a_sandbox_that_hides_the_call_later_stops_nobody() {
    apart(|| refused_everywhere(libc::ENOSYS));
}

/// Only the second thread is in the sandbox.
#[test]
fn a_thread_in_a_sandbox_of_its_own_goes_on() {
    apart(|| {
        let d = host(64 * MIB, true);
        let (pool, s) = (d.default_pool(), d.stream());
        pairs(pool, s, 10_000);
        within(5, "requests of a thread in a sandbox", move || {
            refuse_membarrier(libc::EPERM, false);
            pairs(pool, s, 10_000);
        });
        go_on_together(d, pool, s);
    });
}

/// A sandbox from before the first use is no different.
#[test]
fn a_sandbox_from_the_start_stops_nobody() {
    apart(|| {
        refuse_membarrier(libc::EPERM, true);
        let d = host(64 * MIB, true);
        let (pool, s) = (d.default_pool(), d.stream());
        pairs(pool, s, 10_000);
        within(5, "requests of another thread", move || pairs(pool, s, 10_000));
        go_on_together(d, pool, s);
    });
}

/// Pairs on a stream whose heap another thread has had, and on one of this thread's own: the best of several tries each, in
/// turns.
#[track_caller]
fn as_cheap_as_its_own(pool: Pool, s: Stream, own: Stream) {
    let cost = |s: Stream| Cost::of(|| pairs(pool, s, 300_000)).0;
    let tries: Vec<[Cost; 2]> = (0..5).map(|_| [cost(s), cost(own)]).collect();
    let [left, mine] = [0, 1].map(|n| tries.iter().map(|t| t[n]).reduce(Cost::least).unwrap());
    assert!(left.is_within(1.5, mine), "{left:?}, and {mine:?} in a heap of its own: {tries:?}");
}

/// The first thread of a heap has done its work and sleeps; the one that goes on has the heap as cheaply as one that
/// was its own from the start.
#[test]
fn a_heap_whose_first_thread_is_parked_becomes_fast_again() {
    alone(60, || {
        let d = host(64 * MIB, true);
        let (pool, s, own) = (d.default_pool(), d.stream(), d.stream());
        let (ready, is_ready) = channel();
        let (end, ended) = channel::<()>();
        let parked = std::thread::spawn(move || {
            pairs(pool, s, 100_000);
            ready.send(()).unwrap();
            let _ = ended.recv(); // for as long as the test lasts
        });
        is_ready.recv().unwrap();
        pairs(pool, s, 500_000);
        pairs(pool, own, 500_000);
        as_cheap_as_its_own(pool, s, own);
        drop(end);
        parked.join().unwrap();
    });
}

/// Threads that come, work and stay, one after the other: the last one has the heap as cheaply.
#[test]
fn a_heap_that_goes_from_thread_to_thread_becomes_fast_again() {
    alone(60, || {
        let d = host(64 * MIB, true);
        let (pool, s, own) = (d.default_pool(), d.stream(), d.stream());
        let (end, ended) = channel::<()>();
        let ended = Arc::new(Mutex::new(ended));
        for _ in 0..8 {
            let (ready, is_ready) = channel();
            let ended = ended.clone();
            std::thread::spawn(move || {
                pairs(pool, s, 100_000);
                ready.send(()).unwrap();
                let _ = ended.lock().unwrap().recv();
            });
            is_ready.recv().unwrap();
        }
        pairs(pool, s, 2_000_000);
        pairs(pool, own, 500_000);
        as_cheap_as_its_own(pool, s, own);
        drop(end);
    });
}
