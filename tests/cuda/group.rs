//! Two processes that share a card and a group, over the fake driver: each counts what the other one has of it.

mod meanwhile;

use crate::cuda::Fake;
use crate::on_cuda::*;
use crate::sharing::{fails, ok};
use millpond::capi::*;
use std::ffi::{CString, c_void};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

const PLACE: &str = "MILLPOND_TEST_GROUP";
/// \[ms\] Longer than any of this takes.
const LONG: u64 = 60_000;

fn c(path: &Path) -> CString {
    CString::new(path.to_str().unwrap()).unwrap()
}

/// What the card of all processes is like: `capacity` and others of the fake driver, as in "capacity=256M table_bytes=1".
const CARD: &str = "MILLPOND_TEST_CARD";

/// A card used by all processes that are given this folder; of 256 MiB, unless something else is said of it.
fn card(place: &Path) -> Fake {
    let told = std::env::var(CARD).unwrap_or_default();
    card_of(place, &told)
}

fn card_of(place: &Path, told: &str) -> Fake {
    let file = place.join("card");
    let mut all = vec![("capacity", "256M"), ("card", file.to_str().unwrap())];
    for (key, value) in told.split_whitespace().filter_map(|one| one.split_once('=')) {
        all.retain(|one| one.0 != key);
        all.push((key, value));
    }
    Fake::new(&all, |_| {})
}

fn join(d: *mut millpond_device, place: &Path, wait_ms: u64) -> u64 {
    let (path, mut id) = (c(&place.join("group")), 0);
    ok(unsafe { millpond_device_join_group(d, path.as_ptr(), c"a name".as_ptr(), wait_ms, &mut id) });
    id
}

fn members(place: &Path) -> Vec<millpond_group_member> {
    let (path, mut count) = (c(&place.join("group")), 0);
    let mut all: Vec<millpond_group_member> = (0..4).map(|_| unsafe { std::mem::zeroed() }).collect();
    let size = size_of::<millpond_group_member>();
    ok(unsafe { millpond_group_list(path.as_ptr(), all.as_mut_ptr(), size, all.len(), &mut count) });
    all.truncate(count);
    all
}

/// \[MiB\] reserved, and in blocks.
fn has(d: *mut millpond_device) -> (u64, u64) {
    let mut stats: millpond_stats = unsafe { std::mem::zeroed() };
    stats.struct_size = size_of::<millpond_stats>();
    ok(unsafe { millpond_device_get_stats(d, &mut stats) });
    (stats.reserved_bytes.current >> 20, stats.allocated_bytes.current >> 20)
}

/// No test here: the other process. It obeys lines, and serves its group meanwhile if it is told to.
#[test]
fn neighbour() {
    let Some(place) = std::env::var_os(PLACE).map(PathBuf::from) else { return };
    unsafe { libc::alarm(120) };
    let fake = card(&place);
    let d = device(0);
    join(d, &place, LONG);
    let mut blocks: Vec<*mut c_void> = Vec::new();
    let handle = d as usize;
    let mut server = None;
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let (verb, number) = line.split_once(' ').unwrap_or((&line, "0"));
        let number: usize = number.parse().unwrap();
        match verb {
            "take" => blocks.extend((0..number).map(|_| take(d, MIB))),
            "free" => blocks.drain(..number).for_each(free),
            // One look, as a program that comes by does.
            "look" => ok(unsafe { millpond_device_serve_group(d, 0, null_mut()) }),
            "serve" => {
                server = Some(std::thread::spawn(move || {
                    let d = handle as *mut millpond_device;
                    while unsafe { millpond_device_serve_group(d, LONG, null_mut()) } == C_Status::SUCCESS {}
                    millpond_last_error_code()
                }));
            }
            // The first times, it is quicker than the one that it gives back for, and takes what it gave.
            "snatch" => {
                server = Some(std::thread::spawn(move || {
                    let d = handle as *mut millpond_device;
                    let (mut given, mut snatched) = (0, 0);
                    while unsafe { millpond_device_serve_group(d, LONG, &mut given) } == C_Status::SUCCESS {
                        let mut p = null_mut();
                        if given > 0 && snatched < number {
                            let _ = unsafe { millpond_alloc(d, given as usize, &mut p) };
                            snatched += 1;
                        }
                        std::thread::sleep(Duration::from_millis(20));
                        free(p);
                    }
                    millpond_last_error_code()
                }));
            }
            "leave" => {
                ok(unsafe { millpond_device_leave_group(d) });
                assert_eq!(server.take().unwrap().join().unwrap(), MILLPOND_E_NOT_PERMITTED);
            }
            other => panic!("{other}"),
        }
        let (reserved, used) = has(d);
        println!("\nanswer: {reserved} {used}");
    }
    blocks.into_iter().for_each(free);
    ok(millpond_finalize());
    if let Some(server) = server {
        assert_eq!(server.join().unwrap(), MILLPOND_E_NOT_INITIALIZED);
    }
    fake.end_quietly();
}

struct Neighbour {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Neighbour {
    fn start(place: &Path) -> Neighbour {
        Neighbour::start_on(place, "")
    }

    /// On a card that is like this.
    fn start_on(place: &Path, told: &str) -> Neighbour {
        let mut program = crate::apart::program("group::neighbour");
        program.env(PLACE, place).env(CARD, told).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = program.spawn().unwrap();
        let (to, from) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Neighbour { child, to, from }
    }

    /// \[MiB\] that it has reserved, and in blocks, after the command.
    #[track_caller]
    fn ask(&mut self, command: &str) -> (u64, u64) {
        writeln!(self.to.as_mut().unwrap(), "{command}").unwrap();
        loop {
            let mut line = String::new();
            assert_ne!(self.from.read_line(&mut line).unwrap(), 0, "it ended at {command:?}");
            if let Some(at) = line.find("answer: ") {
                let (reserved, used) = line[at + 8..].trim().split_once(' ').unwrap();
                return (reserved.parse().unwrap(), used.parse().unwrap());
            }
        }
    }

    #[track_caller]
    fn end(mut self) {
        drop(self.to.take());
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder that goes with this.
struct Folder(PathBuf);

impl Folder {
    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn folder() -> Folder {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("millpond-cuda-group-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
    let path = std::env::temp_dir().join(name);
    std::fs::create_dir(&path).unwrap();
    Folder(path)
}

#[test]
fn a_request_gets_what_another_program_does_not_use() {
    let place = folder();
    let fake = card(place.path());
    let d = device(0);
    let mut other = Neighbour::start(place.path());
    assert_eq!(other.ask("take 200"), (200, 200));
    assert_eq!(other.ask("free 150"), (200, 50));
    // Without a group, the memory is out of reach.
    let mut p = null_mut();
    fails(unsafe { millpond_alloc(d, 100 * MIB, &mut p) }, MILLPOND_E_OUT_OF_MEMORY);
    let id = join(d, place.path(), LONG);
    // Nobody who does not look is asked, and so nobody is waited for.
    let from = Instant::now();
    fails(unsafe { millpond_alloc(d, 100 * MIB, &mut p) }, MILLPOND_E_OUT_OF_MEMORY);
    assert!(from.elapsed() < Duration::from_millis(LONG / 2));
    other.ask("serve");
    other.ask("look"); // so that it is seen
    let block = take(d, 100 * MIB);
    let (reserved, used) = other.ask("look");
    assert_eq!(used, 50);
    assert!((100..200).contains(&reserved), "it gave back what was missing, and kept {reserved} MiB");
    // More than is unused anywhere.
    fails(unsafe { millpond_alloc(d, 120 * MIB, &mut p) }, MILLPOND_E_OUT_OF_MEMORY);
    assert_eq!(other.ask("look"), (50, 50));
    let all = members(place.path());
    assert_eq!(all.len(), 2);
    let mine = all.iter().find(|m| m.member_id == id).unwrap();
    let theirs = all.iter().find(|m| m.member_id != id).unwrap();
    assert_eq!((mine.received_bytes >> 20, theirs.given_bytes >> 20), (150, 150));
    assert_eq!((mine.card, mine.process_id), (theirs.card, u64::from(std::process::id())));
    free(block);
    other.end();
    assert_eq!(members(place.path()).len(), 1, "the end of the device ends the membership");
    let path = c(&place.path().join("group"));
    fails(
        unsafe { millpond_device_join_group(d, path.as_ptr(), null_mut(), 1, null_mut()) },
        MILLPOND_E_NOT_PERMITTED,
    );
    ok(unsafe { millpond_device_leave_group(d) });
    fails(unsafe { millpond_device_leave_group(d) }, MILLPOND_E_NOT_PERMITTED);
    fails(unsafe { millpond_device_serve_group(d, 0, null_mut()) }, MILLPOND_E_NOT_PERMITTED);
    assert_eq!(members(place.path()).len(), 0);
    fake.end();
}

/// Whoever is first at the card takes what was given back. As long as there is time, it is asked for again.
#[test]
fn what_somebody_else_takes_first_is_asked_for_again() {
    let place = folder();
    let fake = card(place.path());
    let d = device(0);
    let mut other = Neighbour::start(place.path());
    other.ask("take 200");
    other.ask("free 150");
    join(d, place.path(), LONG);
    other.ask("snatch 3");
    other.ask("look"); // so that it is seen
    for _ in 0..3 {
        let block = take(d, 150 * MIB);
        free(block);
        ok(unsafe { millpond_device_empty_cache(d) });
    }
    // All that anybody has unused is too little: that is so at once.
    let mut p = null_mut();
    let from = Instant::now();
    fails(unsafe { millpond_alloc(d, 250 * MIB, &mut p) }, MILLPOND_E_OUT_OF_MEMORY);
    assert!(from.elapsed() < Duration::from_millis(LONG / 2));
    other.end();
    fake.end();
}

#[test]
fn a_program_that_waits_for_memory_gives_others_what_it_has_itself() {
    let place = folder();
    let fake = card(place.path());
    let d = device(0);
    join(d, place.path(), LONG);
    let kept: Vec<_> = (0..120).map(|_| take(d, MIB)).collect();
    kept.into_iter().for_each(free);
    let mut other = Neighbour::start(place.path());
    assert_eq!(other.ask("take 100"), (100, 100));
    ok(unsafe { millpond_device_serve_group(d, 0, null_mut()) });
    // It asks this process, which serves from here on.
    let server = {
        let d = d as usize;
        std::thread::spawn(move || {
            let d = d as *mut millpond_device;
            let mut given = 0;
            let mut sum = 0;
            while unsafe { millpond_device_serve_group(d, LONG, &mut given) } == C_Status::SUCCESS {
                sum += given;
            }
            sum
        })
    };
    assert_eq!(other.ask("take 100").1, 200);
    let (reserved, used) = has(d);
    assert!(reserved < 60 && used == 0, "{reserved} {used}");
    ok(unsafe { millpond_device_leave_group(d) });
    let given = server.join().unwrap();
    assert_eq!(given >> 20, 120 - reserved);
    other.end();
    fake.end();
}

#[test]
fn a_pool_wakes_with_what_another_program_does_not_use() {
    let place = folder();
    let fake = card(place.path());
    let d = device(0);
    let (mut pool, mut p) = (null_mut(), null_mut());
    ok(unsafe { millpond_pool_create(d, null(), &mut pool) });
    ok(unsafe { millpond_pool_alloc(pool, 100 * MIB, null_mut(), &mut p) });
    ok(unsafe { millpond_memset(d, p, 7, 100 * MIB) });
    ok(unsafe { millpond_pool_sleep(pool, MILLPOND_SLEEP_KEEP) });
    let mut other = Neighbour::start(place.path());
    other.ask("take 200");
    other.ask("free 150");
    fails(unsafe { millpond_pool_wake(pool) }, MILLPOND_E_OUT_OF_MEMORY);
    join(d, place.path(), LONG);
    other.ask("serve");
    other.ask("look");
    // A limit that refuses asks nobody.
    ok(unsafe { millpond_device_set_limit(d, 50 << 20) });
    fails(unsafe { millpond_pool_wake(pool) }, MILLPOND_E_OUT_OF_MEMORY);
    assert_eq!(other.ask("look"), (200, 50));
    ok(unsafe { millpond_device_set_limit(d, 0) });
    ok(unsafe { millpond_pool_wake(pool) });
    assert!(other.ask("look").0 < 160);
    let mut bytes = vec![0u8; 100 * MIB];
    ok(unsafe { millpond_copy(d, MILLPOND_COPY_D2H, bytes.as_mut_ptr().cast(), p, bytes.len()) });
    assert!(bytes.iter().all(|&b| b == 7));
    ok(unsafe { millpond_pool_free(pool, p, null_mut()) });
    ok(unsafe { millpond_pool_destroy(pool) });
    other.end();
    fake.end();
}

/// More than half of the card sleeps: that is not in use, and not even taken.
#[test]
fn what_sleeps_leaves_the_card_to_others_and_to_its_own_program() {
    let place = folder();
    let fake = card(place.path());
    let d = device(0);
    join(d, place.path(), LONG);
    let (mut pool, mut p, mut q) = (null_mut(), null_mut(), null_mut());
    ok(unsafe { millpond_pool_create(d, null(), &mut pool) });
    ok(unsafe { millpond_pool_alloc(pool, 150 * MIB, null_mut(), &mut p) });
    ok(unsafe { millpond_pool_sleep(pool, 0) });
    free(take(d, 10 * MIB));
    ok(unsafe { millpond_device_serve_group(d, 300, null_mut()) });
    let me = members(place.path())[0];
    assert_eq!((me.reserved_bytes >> 20, me.unused_bytes >> 20), (10, 10));
    let mut other = Neighbour::start(place.path());
    other.ask("take 200");
    other.ask("free 150");
    other.ask("serve");
    other.ask("look");
    // The program's other pool asks, and then the one that wakes.
    ok(unsafe { millpond_alloc(d, 140 * MIB, &mut q) });
    free(q);
    ok(unsafe { millpond_device_empty_cache(d) });
    assert!(other.ask("take 150").0 >= 200);
    assert_eq!(other.ask("free 150").1, 50);
    ok(unsafe { millpond_pool_wake(pool) });
    ok(unsafe { millpond_pool_free(pool, p, null_mut()) });
    ok(unsafe { millpond_pool_destroy(pool) });
    other.end();
    fake.end();
}

#[test]
fn a_program_that_is_killed_has_left() {
    let place = folder();
    let fake = card(place.path());
    let d = device(0);
    join(d, place.path(), LONG);
    let mut other = Neighbour::start(place.path());
    other.ask("serve");
    other.ask("take 200");
    assert_eq!(members(place.path()).len(), 2);
    other.child.kill().unwrap();
    other.child.wait().unwrap();
    assert_eq!(members(place.path()).len(), 1);
    // What it had is the card's again, and nobody is waited for.
    let from = Instant::now();
    let block = take(d, 200 * MIB);
    let mut p = null_mut();
    fails(unsafe { millpond_alloc(d, 100 * MIB, &mut p) }, MILLPOND_E_OUT_OF_MEMORY);
    free(block);
    assert!(from.elapsed() < Duration::from_millis(LONG / 2));
    fake.end();
}

#[test]
fn a_budget_comes_from_outside() {
    let place = folder();
    let fake = card(place.path());
    let _ = device(0); // no member
    let mut other = Neighbour::start(place.path());
    other.ask("take 100");
    other.ask("free 60");
    other.ask("serve");
    let path = c(&place.path().join("group"));
    let id = members(place.path())[0].member_id;
    fails(unsafe { millpond_group_set_budget(path.as_ptr(), id + 1, 1) }, MILLPOND_E_INVALID_ARGUMENT);
    ok(unsafe { millpond_group_set_budget(path.as_ptr(), id, 70 << 20) });
    let until = Instant::now() + Duration::from_millis(LONG);
    while members(place.path())[0].budget_bytes != 70 << 20 {
        assert!(Instant::now() < until, "it does not follow");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(other.ask("look"), (70, 40));
    other.ask("leave");
    assert_eq!(members(place.path()).len(), 0);
    other.end();
    fake.end();
}

#[test]
fn nobody_is_asked_for_what_a_limit_refuses_or_while_a_stream_is_captured() {
    let place = folder();
    let fake = card(place.path());
    let d = device(0);
    join(d, place.path(), LONG);
    let mut other = Neighbour::start(place.path());
    other.ask("take 200");
    other.ask("free 200");
    other.ask("serve");
    other.ask("look");
    ok(unsafe { millpond_device_set_limit(d, 40 << 20) });
    let mut p = null_mut();
    fails(unsafe { millpond_alloc(d, 50 * MIB, &mut p) }, MILLPOND_E_OUT_OF_MEMORY);
    let some = take(d, 30 * MIB);
    fails(unsafe { millpond_alloc(d, 30 * MIB, &mut p) }, MILLPOND_E_OUT_OF_MEMORY);
    assert_eq!(other.ask("look"), (200, 0));
    ok(unsafe { millpond_device_set_limit(d, 0) });
    free(some);
    let (mut pool, mut stream, mut capture) = (null_mut(), null_mut(), null_mut());
    ok(unsafe { millpond_pool_create(d, null(), &mut pool) });
    ok(unsafe { millpond_stream_create(d, &mut stream) });
    ok(unsafe { millpond_capture_begin(pool, stream, &mut capture) });
    fails(unsafe { millpond_pool_alloc(pool, 100 * MIB, stream, &mut p) }, MILLPOND_E_OUT_OF_MEMORY);
    assert_eq!(other.ask("look"), (200, 0));
    ok(unsafe { millpond_capture_end(capture) });
    ok(unsafe { millpond_capture_release(capture) });
    ok(unsafe { millpond_pool_alloc(pool, 100 * MIB, stream, &mut p) });
    ok(unsafe { millpond_pool_free(pool, p, stream) });
    ok(unsafe { millpond_pool_destroy(pool) });
    ok(unsafe { millpond_stream_destroy(d, stream) });
    other.end();
    fake.end();
}

#[test]
fn the_end_of_the_device_does_not_wait_for_a_pool_that_asks_to_wake() {
    let place = folder();
    let fake = card(place.path());
    let d = device(0);
    join(d, place.path(), LONG);
    let (mut pool, mut p) = (null_mut(), null_mut());
    ok(unsafe { millpond_pool_create(d, null(), &mut pool) });
    ok(unsafe { millpond_pool_alloc(pool, 100 * MIB, null_mut(), &mut p) });
    ok(unsafe { millpond_pool_sleep(pool, MILLPOND_SLEEP_KEEP) });
    let mut other = Neighbour::start(place.path());
    other.ask("take 200");
    other.ask("free 150");
    other.ask("look"); // and never again
    let from = Instant::now();
    let wakes = {
        let pool = pool as usize;
        std::thread::spawn(move || {
            let done = unsafe { millpond_pool_wake(pool as *mut millpond_pool) };
            (done, millpond_last_error_code())
        })
    };
    std::thread::sleep(Duration::from_millis(200));
    assert!(!wakes.is_finished(), "it waits for the other one");
    ok(millpond_finalize());
    assert!(from.elapsed() < Duration::from_millis(LONG / 2), "the end waited for a wake that waited");
    let (done, code) = wakes.join().unwrap();
    assert_ne!(done, C_Status::SUCCESS);
    assert_eq!(code, MILLPOND_E_NOT_INITIALIZED);
    other.end();
    fake.end_quietly();
}

/// The card has a megabyte free, and a small block needs a granule.
#[test]
fn a_small_request_asks_for_the_granule_that_it_needs() {
    let place = folder();
    let told = "capacity=263168K"; // 257 MiB
    let fake = card_of(place.path(), told);
    let d = device(0);
    join(d, place.path(), LONG);
    let mut other = Neighbour::start_on(place.path(), told);
    assert_eq!(other.ask("take 256"), (256, 256));
    other.ask("free 100");
    other.ask("serve");
    other.ask("look");
    free(take(d, 512));
    let (reserved, _) = other.ask("look");
    assert!((250..256).contains(&reserved), "{reserved}");
    other.end();
    fake.end();
}

#[test]
fn what_a_program_has_free_itself_is_not_asked_for() {
    let place = folder();
    let fake = card(place.path());
    let d = device(0);
    join(d, place.path(), LONG);
    free(take(d, 40 * MIB));
    assert_eq!(has(d), (40, 0));
    let mut other = Neighbour::start(place.path());
    other.ask("take 200");
    other.ask("free 150");
    other.ask("serve");
    other.ask("look");
    // 16 MiB are free on the card, and 40 MiB here.
    let block = take(d, 60 * MIB);
    let (reserved, _) = other.ask("look");
    assert!((190..200).contains(&reserved), "it keeps {reserved} MiB, and 4 MiB were missing");
    free(block);
    other.end();
    fake.end();
}

/// The page tables of a mapping take memory, too, of which nobody knows beforehand.
#[test]
fn a_request_that_the_driver_refuses_though_enough_is_free_asks_for_more() {
    let place = folder();
    let fake = card_of(place.path(), "table_bytes=64K");
    let d = device(0);
    join(d, place.path(), LONG);
    let mut other = Neighbour::start(place.path());
    other.ask("take 180");
    other.ask("free 180");
    other.ask("serve");
    other.ask("look");
    let block = take(d, 100 * MIB);
    free(block);
    assert!(other.ask("look").0 > 140, "it gave little more");
    other.end();
    fake.end();
}
