//! What holds for the process as a whole: the environment, forks, threads that end late, the exit.
//!
//! Each case runs in a process of its own, with `CASE` set; the exit status is part of what is tested.

use crate::apart;
use millpond::capi::*;
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const CASE: &str = "MILLPOND_TEST_CASE";

fn message() -> String {
    unsafe { CStr::from_ptr(millpond_last_error_message()) }.to_str().unwrap().to_owned()
}

#[track_caller]
fn ok(status: C_Status) {
    assert_eq!(status, C_Status::SUCCESS, "{}: {}", millpond_last_error_code(), message());
}

fn host(ordinal: i32) -> *mut millpond_device {
    let mut d = null_mut();
    ok(unsafe { millpond_device_get(c"host".as_ptr(), ordinal, &mut d) });
    d
}

fn info(device: *mut millpond_device) -> millpond_device_info {
    let mut i: millpond_device_info = unsafe { std::mem::zeroed() };
    i.struct_size = size_of::<millpond_device_info>();
    ok(unsafe { millpond_device_get_info(device, &mut i) });
    i
}

/// Runs `case` in a child with these variables; its exit status must be `want`.
#[track_caller]
fn child(test: &str, case: &str, vars: &[(&str, &str)], want: i32) {
    let mut c = apart::program(&format!("process::{test}"));
    let out = c.env(CASE, case).envs(vars.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(want), "case {case} {vars:?}:\n{text}");
}

fn case() -> Option<String> {
    std::env::var(CASE).ok()
}

#[test]
fn environment() {
    match case().as_deref() {
        None => {
            let three = [
                ("MILLPOND_HOST_DEVICES", "3"),
                ("MILLPOND_HOST_CAPACITY", "64m"),
                ("MILLPOND_HOST_MAPPING", "0"),
            ];
            child("environment", "good", &three, 0);
            child("environment", "override", &three, 0);
            child("environment", "default", &[("MILLPOND_HOST_DEVICES", "")], 0);
            for bad in [
                ("MILLPOND_HOST_DEVICES", "0"),
                ("MILLPOND_HOST_DEVICES", "many"),
                ("MILLPOND_HOST_CAPACITY", "12X"),
                ("MILLPOND_HOST_CAPACITY", "1K"),
                ("MILLPOND_HOST_MAPPING", "2"),
            ] {
                child("environment", "bad", &[bad], 0);
            }
        }
        Some("good") => {
            let mut n = 0;
            ok(unsafe { millpond_device_get_count(c"host".as_ptr(), &mut n) });
            let i = info(host(2));
            assert_eq!((n, i.total_bytes, i.caps & MILLPOND_CAP_MAPPING), (3, 64 << 20, 0));
        }
        Some("override") => {
            let mut o: millpond_host_options = unsafe { std::mem::zeroed() };
            (o.struct_size, o.device_count) = (size_of::<millpond_host_options>(), 5);
            ok(unsafe { millpond_host_configure(&o) });
            assert_eq!(info(host(4)).total_bytes, 64 << 20);
            assert_ne!(unsafe { millpond_host_configure(&o) }, C_Status::SUCCESS);
            assert_eq!(millpond_last_error_code(), MILLPOND_E_BUSY);
        }
        Some("default") => {
            let mut n = 0;
            ok(unsafe { millpond_device_get_count(c"host".as_ptr(), &mut n) });
            assert_eq!(n, 2);
        }
        Some("bad") => {
            let mut d = null_mut();
            // Twice: the failure must not leave the library half started.
            for _ in 0..2 {
                let status = unsafe { millpond_device_get(c"host".as_ptr(), 0, &mut d) };
                assert_eq!(
                    (status, millpond_last_error_code()),
                    (C_Status::ERROR, MILLPOND_E_INVALID_ARGUMENT)
                );
                let set = std::env::vars().find(|(k, _)| k.starts_with("MILLPOND_HOST_")).unwrap();
                assert!(message().contains(&set.0), "{}", message());
            }
            // What the program sets itself does not need the variables.
            let o = millpond_host_options {
                struct_size: size_of::<millpond_host_options>(),
                device_count: 1,
                capacity_bytes: 64 << 20,
                disable_mapping: 1,
            };
            ok(unsafe { millpond_host_configure(&o) });
            host(0);
        }
        _ => {}
    }
}

#[test]
fn options_of_the_host_device() {
    if case().is_none() {
        return child("options_of_the_host_device", "options", &[], 0);
    }
    let good = millpond_host_options {
        struct_size: size_of::<millpond_host_options>(),
        device_count: 1,
        capacity_bytes: 64 << 20,
        disable_mapping: 0,
    };
    for bad in [
        millpond_host_options { struct_size: 0, ..good },
        millpond_host_options { device_count: 65, ..good },
        millpond_host_options { capacity_bytes: 1, ..good },
        millpond_host_options { capacity_bytes: u64::MAX, ..good },
        millpond_host_options { disable_mapping: 2, ..good },
    ] {
        assert_eq!(unsafe { millpond_host_configure(&bad) }, C_Status::ERROR);
        assert_eq!(millpond_last_error_code(), MILLPOND_E_INVALID_ARGUMENT);
    }
    ok(unsafe { millpond_host_configure(null()) });
    ok(unsafe { millpond_host_configure(&good) });
    assert_eq!(info(host(0)).total_bytes, 64 << 20);
}

/// Forks, runs `body` in the child and returns the child's exit status.
fn fork(body: impl FnOnce() -> bool) -> i32 {
    match unsafe { libc::fork() } {
        0 => {
            let good = body();
            unsafe { libc::_exit(if good { 0 } else { 1 }) }
        }
        pid => {
            let mut status = -1;
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            status
        }
    }
}

#[test]
fn a_forked_child_gets_a_status() {
    if case().is_none() {
        return child("a_forked_child_gets_a_status", "fork", &[], 0);
    }
    // Before the first use a child starts for itself.
    assert_eq!(
        fork(|| {
            let mut n = 0;
            unsafe { millpond_device_type_get_count(&mut n) == C_Status::SUCCESS }
        }),
        0
    );
    let d = host(0);
    let (mut stream, mut pool, mut p) = (null_mut(), null_mut(), null_mut());
    ok(unsafe { millpond_stream_create(d, &mut stream) });
    ok(unsafe { millpond_device_get_default_pool(d, &mut pool) });
    ok(unsafe { millpond_pool_alloc(pool, 4096, stream, &mut p) });
    ok(unsafe { millpond_memset_async(d, stream, p, 1, 4096) });
    let refused =
        |s: C_Status| s == C_Status::ERROR && millpond_last_error_code() == MILLPOND_E_NOT_PERMITTED;
    let status = fork(|| unsafe {
        let mut q = null_mut();
        libc::alarm(20);
        refused(millpond_pool_alloc(pool, 64, stream, &mut q))
            && refused(millpond_pool_free(pool, p, stream))
            && refused(millpond_free(p))
            && refused(millpond_device_synchronize(d))
            && refused(millpond_stream_destroy(d, stream))
            && refused(millpond_device_get(c"host".as_ptr(), 1, &mut null_mut()))
            && refused(millpond_tag_get_number(c"one".as_ptr(), &mut 0))
            && refused(millpond_tag_push(c"one".as_ptr()))
            && refused(millpond_set_default_options(null(), -1, c"roundup_power2_divisions:4".as_ptr()))
            && refused(millpond_set_pytorch_options(c"host".as_ptr()))
            && refused(millpond_history_on_signal(0, null()))
            && refused(millpond_finalize())
            && millpond::runtime::Tag::new("two").is_err_and(|e| e.code() == millpond::Code::NotPermitted)
    });
    assert_eq!(status, 0);
    // The parent goes on as before.
    ok(unsafe { millpond_stream_synchronize(d, stream) });
    ok(unsafe { millpond_pool_free(pool, p, stream) });
    ok(unsafe { millpond_stream_destroy(d, stream) });
}

/// Calls that need no device take locks all the same. Each is made by two threads while a third one forks; the child makes it,
/// too.
#[test]
fn a_child_that_is_forked_while_others_make_settings_gets_an_answer() {
    if case().is_none() {
        return child("a_child_that_is_forked_while_others_make_settings_gets_an_answer", "set", &[], 0);
    }
    type Set = fn() -> C_Status;
    static CALLS: [(&str, Set); 6] = [
        ("a name of a tag", || unsafe { millpond_tag_get_number(c"one".as_ptr(), &mut 0) }),
        ("a tag's number", || {
            // Without one it is "".
            assert!(!millpond_tag_get_name(1).is_null());
            C_Status::SUCCESS
        }),
        ("a tag in force", || unsafe {
            let done = millpond_tag_push(c"one".as_ptr());
            if done == C_Status::SUCCESS { millpond_tag_pop() } else { done }
        }),
        ("options", || unsafe {
            millpond_set_default_options(null(), -1, c"roundup_power2_divisions:4".as_ptr())
        }),
        ("options of PyTorch", || unsafe { millpond_set_pytorch_options(c"host".as_ptr()) }),
        ("a signal", || unsafe { millpond_history_on_signal(0, null()) }),
    ];
    for (what, set) in &CALLS {
        let over = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    while over.load(SeqCst) == 0 {
                        ok(set());
                    }
                });
            }
            for _ in 0..60 {
                let status = fork(|| {
                    unsafe { libc::alarm(5) };
                    let got = set();
                    got == C_Status::SUCCESS || millpond_last_error_code() == MILLPOND_E_NOT_PERMITTED
                });
                if status != 0 {
                    over.store(1, SeqCst);
                    panic!("{what}: the child hung or crashed: {status}");
                }
            }
            over.store(1, SeqCst);
        });
    }
}

/// Other threads ask for the first time while the process forks: a child of that moment may not wait for them.
#[test]
fn a_child_that_is_forked_while_others_ask_gets_an_answer() {
    if case().is_none() {
        return child("a_child_that_is_forked_while_others_ask_gets_an_answer", "ask", &[], 0);
    }
    fn ask() -> C_Status {
        let mut n = 0;
        unsafe { millpond_device_get_count(c"host".as_ptr(), &mut n) }
    }
    static DONE: AtomicUsize = AtomicUsize::new(0);
    let asking = [(); 2].map(|()| {
        std::thread::spawn(|| {
            while DONE.load(SeqCst) == 0 {
                ok(ask());
            }
        })
    });
    let mut served = 0;
    for _ in 0..60 {
        let status = fork(|| unsafe {
            libc::alarm(5);
            let got = ask();
            if got == C_Status::SUCCESS {
                libc::_exit(42); // such a child can use a device
            }
            got == C_Status::ERROR && millpond_last_error_code() == MILLPOND_E_NOT_PERMITTED
        });
        served += usize::from(status == 42 << 8);
        assert!(status == 0 || status == 42 << 8, "the child hung or crashed: {status}");
    }
    DONE.store(1, SeqCst);
    asking.into_iter().for_each(|t| t.join().unwrap());
    // One of a moment when nobody asks.
    assert!(served > 0 || fork(|| ask() == C_Status::SUCCESS) == 0);
}

static LATE: AtomicUsize = AtomicUsize::new(0);
static LATE_STREAM: AtomicUsize = AtomicUsize::new(0);

/// Frees after `main` has returned, as a static destructor does, and leaves 42 when all went well.
extern "C" fn free_late() {
    let p: *mut c_void = without_provenance_mut(LATE.load(SeqCst));
    let stream: C_Stream = without_provenance_mut(LATE_STREAM.load(SeqCst));
    let freed = unsafe { millpond_free(p) };
    let good = match case().as_deref() {
        Some("finalized") => {
            freed == C_Status::ERROR && millpond_last_error_code() == MILLPOND_E_NOT_INITIALIZED
        }
        _ => {
            let mut d = null_mut();
            freed == C_Status::SUCCESS
                && unsafe { millpond_free(p) } == C_Status::ERROR
                && unsafe { millpond_device_get(c"host".as_ptr(), 0, &mut d) } == C_Status::SUCCESS
                && unsafe { millpond_stream_synchronize(d, stream) } == C_Status::SUCCESS
        }
    };
    unsafe { libc::_exit(if good { 42 } else { 43 }) }
}

#[test]
fn a_static_destructor_may_come_late() {
    let Some(case) = case() else {
        child("a_static_destructor_may_come_late", "open", &[], 42);
        return child("a_static_destructor_may_come_late", "finalized", &[], 42);
    };
    // Registered before the library is used, so that it runs after whatever the library registers.
    assert_eq!(unsafe { libc::atexit(free_late) }, 0);
    let d = host(0);
    let (mut stream, mut p) = (null_mut(), null_mut());
    ok(unsafe { millpond_stream_create(d, &mut stream) });
    ok(unsafe { millpond_alloc(d, 4096, &mut p) });
    ok(unsafe { millpond_memset_async(d, stream, p, 1, 4096) });
    LATE.store(p.addr(), SeqCst);
    LATE_STREAM.store(stream.addr(), SeqCst);
    if case == "finalized" {
        ok(millpond_finalize());
    }
}

#[test]
fn an_exit_with_work_left_is_clean() {
    if case().is_none() {
        return child("an_exit_with_work_left_is_clean", "exit", &[], 7);
    }
    let d = host(0);
    let mut p = null_mut();
    ok(unsafe { millpond_alloc(d, 32 << 20, &mut p) });
    for _ in 0..4 {
        let mut stream = null_mut();
        ok(unsafe { millpond_stream_create(d, &mut stream) });
        for _ in 0..16 {
            ok(unsafe { millpond_memset_async(d, stream, p, 1, 32 << 20) });
        }
    }
    std::process::exit(7);
}

/// One worker of the test below: whatever it gets must be a status.
fn use_everything(stop: &std::sync::atomic::AtomicBool, done: &std::sync::atomic::AtomicU64, seed: u8) {
    let mut buffer = vec![seed; 1 << 16];
    while !stop.load(SeqCst) {
        let (mut d, mut pool, mut stream, mut p) = (null_mut(), null_mut(), null_mut(), null_mut());
        unsafe {
            if millpond_device_get(c"host".as_ptr(), i32::from(seed & 1), &mut d) != C_Status::SUCCESS {
                continue;
            }
            let _ = millpond_pool_create(d, null(), &mut pool);
            let _ = millpond_stream_create(d, &mut stream);
            if millpond_pool_alloc(pool, 1 << 16, stream, &mut p) == C_Status::SUCCESS {
                let at: *mut c_void = buffer.as_mut_ptr().cast();
                let _ = millpond_memset_async(d, stream, p, seed, 1 << 16);
                let sent = millpond_copy(d, MILLPOND_COPY_H2D, p, at, 1 << 16);
                let back = millpond_copy(d, MILLPOND_COPY_D2H, at, p, 1 << 16);
                done.fetch_add(u64::from(sent == C_Status::SUCCESS && back == C_Status::SUCCESS), SeqCst);
                let _ = millpond_pool_free(pool, p, stream);
            }
            // An end in the middle of a request is no defect of the library.
            for i in 0..400 {
                let bytes = [100, 5_000, 70_000, 3 << 20][i % 4];
                let got = millpond_pool_alloc(pool, bytes, stream, &mut p);
                let gone = if got == C_Status::SUCCESS { millpond_free(p) } else { got };
                for status in [got, gone] {
                    assert_ne!(status, C_Status::INTERNAL_ERROR, "{}", message());
                }
            }
            let _ = millpond_stream_destroy(d, stream);
            let _ = millpond_pool_destroy(pool);
        }
    }
}

#[test]
fn an_end_in_the_middle_of_work_gives_statuses() {
    if case().is_none() {
        let capacity = [("MILLPOND_HOST_CAPACITY", "64M")];
        return child("an_end_in_the_middle_of_work_gives_statuses", "end", &capacity, 0);
    }
    unsafe { libc::alarm(60) };
    let stop = std::sync::atomic::AtomicBool::new(false);
    let done = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|s| {
        for n in 0..6 {
            let (stop, done) = (&stop, &done);
            s.spawn(move || use_everything(stop, done, n));
        }
        // Two seconds make some hundred ends; on a machine that is busy otherwise a few may take longer.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(2);
        let mut ends = 0;
        while std::time::Instant::now() < until || ends <= 5 || done.load(SeqCst) <= 5 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            ends += u32::from(millpond_finalize() == C_Status::SUCCESS);
        }
        stop.store(true, SeqCst);
    });
    let _ = millpond_finalize();
}

#[cfg(target_os = "linux")]
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// 0.042 % of the device, also where each block has a segment of its own; with what is there before the first block, 0.05 %. In the C
/// library's first arena, as in programs of one thread: what is asked for and not used grows that one, too.
#[cfg(target_os = "linux")]
#[test]
fn a_full_device_takes_little_of_the_host() {
    let Some(case) = case() else {
        for how in ["mapping", "segments"] {
            child("a_full_device_takes_little_of_the_host", how, &[("MALLOC_ARENA_MAX", "1")], 0);
        }
        return;
    };
    const BLOCK: usize = 2 << 20;
    let host = millpond_host_options {
        struct_size: size_of::<millpond_host_options>(),
        device_count: 1,
        capacity_bytes: 80 << 30,
        disable_mapping: (case == "segments").into(),
    };
    ok(unsafe { millpond_host_configure(&host) });
    let (mut d, mut stream, mut pool, mut p) = (null_mut(), null_mut(), null_mut(), null_mut());
    ok(unsafe { millpond_device_get(c"host".as_ptr(), 0, &mut d) });
    ok(unsafe { millpond_stream_create(d, &mut stream) });
    ok(unsafe { millpond_device_get_default_pool(d, &mut pool) });
    let mut take = |blocks: u64| {
        (0..blocks).for_each(|_| ok(unsafe { millpond_pool_alloc(pool, BLOCK, stream, &mut p) }));
    };
    take(100); // what the program itself takes is there then
    let (before, all) = (resident_kib(), host.capacity_bytes / BLOCK as u64);
    take(all - 100);
    let taken = resident_kib() - before;
    assert!(taken * 2400 < (host.capacity_bytes >> 10), "{taken} KiB");
}

#[cfg(target_os = "linux")]
#[test]
fn starting_and_ending_again_and_again_costs_nothing() {
    if case().is_none() {
        // Tables of this size are what a device of many GiB has: each would keep MiB, were they kept.
        let large = [("MILLPOND_HOST_CAPACITY", "32G"), ("MILLPOND_HOST_DEVICES", "2")];
        child("starting_and_ending_again_and_again_costs_nothing", "run", &large, 0);
        return;
    }
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let round = || {
        for name in [c"host", c"cpu"] {
            let (mut d, mut stream, mut p) = (null_mut(), null_mut(), null_mut());
            ok(unsafe { millpond_device_get(name.as_ptr(), 0, &mut d) });
            ok(unsafe { millpond_stream_create(d, &mut stream) });
            let mut pool = null_mut();
            ok(unsafe { millpond_device_get_default_pool(d, &mut pool) });
            for bytes in [100, 10_000, 100_000, 3 << 20] {
                ok(unsafe { millpond_pool_alloc(pool, bytes, stream, &mut p) });
                ok(unsafe { millpond_memset_async(d, stream, p, 1, bytes) });
                ok(unsafe { millpond_pool_alloc(pool, bytes, null_mut(), &mut p) }); // and left
            }
        }
        ok(millpond_finalize());
    };
    (0..8).for_each(|_| round());
    let (fds, kib) = (descriptors(), resident_kib());
    (0..24).for_each(|_| round());
    assert_eq!(descriptors(), fds);
    let grown = resident_kib().saturating_sub(kib) / 24;
    assert!(grown < 512, "{grown} KiB for each time");
}
