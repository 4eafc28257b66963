//! The history of a device, and recordings: what they hold, what they lack, and what becomes of their files.

use crate::apart::*;
use crate::api::*;
use crate::observers::{account, state, sums};
use millpond::capi::*;
use millpond::runtime::{Event, EventKind, HistoryEvent, HistoryFile, HistoryOptions, annotate};
use millpond::{Code, runtime};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// A name for a file of this process's own, which is not there.
pub fn path(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

pub fn take(path: &Path) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap();
    std::fs::remove_file(path).unwrap();
    bytes
}

pub fn start(d: Device, events: usize, frames: usize, file: Option<&Path>) {
    let file = file.map(Path::to_owned);
    state(d).history_start(&HistoryOptions { events, frames, file }).unwrap();
}

fn plain(events: &[HistoryEvent]) -> Vec<Event> {
    events.iter().map(|e| e.event).collect()
}

unsafe extern "C-unwind" fn note(to: *mut c_void, e: *const millpond_history_event) -> bool {
    let (to, e) = unsafe { (&mut *to.cast::<Vec<String>>(), &*e) };
    let text = if e.text.is_null() { "" } else { unsafe { CStr::from_ptr(e.text) }.to_str().unwrap() };
    to.push(format!("{} {} {} {text}", e.kind, e.flags, e.requested_bytes));
    to.len() < 5
}

#[test]
fn c_reads_what_happened() {
    apart(|| {
        let d = host(64 * MIB, true);
        let (device, pool, s) = (ptr::<millpond_device>(d.0), d.default_pool(), d.stream());
        let mut said: Vec<String> = Vec::new();
        let mut dropped = 7;
        let read = |said: &mut Vec<String>, dropped: &mut u64| {
            let to: *mut Vec<String> = said;
            outcome(unsafe { millpond_device_history_read(device, Some(note), to.cast(), dropped) })
        };
        assert_eq!(code(read(&mut said, &mut dropped)), MILLPOND_E_NOT_PERMITTED);
        assert_eq!(
            code(outcome(unsafe { millpond_device_history_stop(device, null_mut()) })),
            MILLPOND_E_NOT_PERMITTED
        );
        let size = size_of::<millpond_history_options>();
        let wish = millpond_history_options {
            struct_size: size,
            event_count: 16,
            frame_count: 0,
            path: std::ptr::null(),
        };
        outcome(unsafe { millpond_device_history_start(device, &wish) }).unwrap();
        assert_eq!(code(outcome(unsafe { millpond_device_history_start(device, &wish) })), MILLPOND_E_BUSY);
        let word = CString::new("step 1").unwrap();
        outcome(unsafe { millpond_history_annotate(word.as_ptr()) }).unwrap();
        let p = pool.alloc(1000, s).unwrap();
        record_stream(p, NULL).unwrap();
        pool.free(p, s).unwrap();
        read(&mut said, &mut dropped).unwrap();
        // The granule comes before the block. A block that another stream has used is free when that is asked.
        let seg = (2 * MIB).to_string();
        assert_eq!(said, ["12 0 0 step 1", &format!("5 0 {seg} "), "1 4 1000 ", "10 4 0 ", "2 4 1000 "]);
        assert_eq!(dropped, 0);
        for _ in 0..100 {
            pool.free(pool.alloc(512, s).unwrap(), s).unwrap();
        }
        said.clear();
        outcome(unsafe { millpond_device_history_stop(device, &mut dropped) }).unwrap();
        pool.free(pool.alloc(512, s).unwrap(), s).unwrap();
        read(&mut said, &mut dropped).unwrap();
        assert_eq!(said[0], "1 4 512 ");
        assert_eq!(said[1], "2 6 512 ");
        // What there was before: the note, the granule, the block and its end, and all but 16 of 200.
        let told = state(d).history().unwrap();
        assert_eq!(told.events.len(), 16);
        assert!(dropped >= 189 && told.dropped == dropped, "{dropped}");
    });
}

/// Threads allocate and free; the file, the ring and the account agree.
#[test]
fn under_load_the_file_has_every_event() {
    apart_for(60, || {
        let d = host(1024 * MIB, true);
        let file = path("load.history");
        start(d, 1 << 20, 0, Some(&file));
        let pool = d.default_pool();
        std::thread::scope(|s| {
            for t in 0..8 {
                s.spawn(move || {
                    let stream = d.stream();
                    let mut kept = Vec::new();
                    for i in 0..2000 {
                        kept.push(pool.alloc([700, 9000, 200 * KIB][(i + t) % 3], stream).unwrap());
                        if i % 5 != 0 {
                            free(kept.swap_remove(i % kept.len())).unwrap();
                        }
                    }
                    kept.drain(10..).for_each(|p| pool.free(p, NULL).unwrap());
                });
            }
        });
        d.synchronize().unwrap();
        let now = account(d);
        assert_eq!(state(d).history_stop().unwrap(), 0);
        let ring = state(d).history().unwrap();
        assert_eq!(ring.dropped, 0);
        let read = HistoryFile::parse(&take(&file)).unwrap();
        assert!(!read.cut_off && read.dropped == 0 && read.modules.contains("r-xp"));
        assert!(read.about.iter().any(|a| *a == ("device".into(), "host:0".into())), "{:?}", read.about);
        // Times are made of the processor's counter when they are read.
        let apart = |(a, b): (&HistoryEvent, &HistoryEvent)| a.event.time.abs_diff(b.event.time);
        assert!(read.events.iter().zip(&ring.events).map(apart).max().unwrap() < 100_000);
        let timeless = |events: &[HistoryEvent]| -> Vec<Event> {
            plain(events).into_iter().map(|e| Event { time: 0, ..e }).collect()
        };
        assert_eq!(timeless(&read.events), timeless(&ring.events));
        assert_eq!(sums(&plain(&read.events)), now);
    });
}

/// The file has the names of tags, and where the memory of a scattered block has been from the start.
#[test]
fn the_file_names_tags_and_the_homes_of_scattered_memory() {
    apart(|| {
        let d = host(16 * MIB, true);
        let file = path("names.history");
        start(d, 1 << 12, 0, Some(&file));
        let pool = d.default_pool();
        let blocks: Vec<usize> = (0..8).map(|_| pool.alloc(2 * MIB, NULL).unwrap()).collect();
        let odd: Vec<usize> = blocks.iter().skip(1).step_by(2).copied().collect();
        odd.iter().for_each(|&p| pool.free(p, NULL).unwrap());
        let name = CString::new("a \"name\" </script>").unwrap();
        outcome(unsafe { millpond_tag_push(name.as_ptr()) }).unwrap();
        let scattered = pool.alloc(8 * MIB, NULL).unwrap();
        outcome(millpond_tag_pop()).unwrap();
        let options = millpond_pool_options {
            struct_size: size_of::<millpond_pool_options>(),
            limit_bytes: 0,
            name: name.as_ptr(),
            flags: 0,
        };
        let mut named = null_mut();
        outcome(unsafe { millpond_pool_create(ptr(d.0), &options, &mut named) }).unwrap();
        pool.free(scattered, NULL).unwrap();
        let mut inside = null_mut();
        outcome(unsafe { millpond_pool_alloc(named, 1000, null_mut(), &mut inside) }).unwrap();
        assert_eq!(state(d).history_stop().unwrap(), 0);
        let read = HistoryFile::parse(&take(&file)).unwrap();
        let given = |e: &Event| e.kind == EventKind::Alloc && e.address == scattered as u64;
        let tagged = read.events.iter().map(|e| e.event).find(given).map(|e| read.tags[&e.tag].as_str());
        assert_eq!(tagged, Some(name.to_str().unwrap()));
        let from = |e: &&HistoryEvent| e.event.address == inside as u64 && e.event.kind == EventKind::Alloc;
        let pools: Vec<u32> = read.events.iter().filter(from).map(|e| e.event.pool.0).collect();
        assert_eq!(pools.last().map(|p| read.pools[p].as_str()), Some(name.to_str().unwrap()));
        let shown = read.events.iter().map(|e| e.event).filter(|e| e.kind == EventKind::SegmentMap);
        let mut homes = Vec::new();
        for e in shown {
            assert!(e.address >= scattered as u64 && e.address + e.bytes <= (scattered + 8 * MIB) as u64);
            homes.extend((0..e.bytes / (2 * MIB) as u64).map(|i| e.home + i * (2 * MIB) as u64));
        }
        homes.sort_unstable();
        assert_eq!(homes, odd.iter().map(|&p| p as u64).collect::<Vec<_>>());
        assert!(read.events.iter().all(|e| e.event.kind == EventKind::SegmentMap || e.event.home == 0));
    });
}

/// A ring that is far too small for its writer: what is in the file and what is counted as dropped is everything.
#[test]
fn what_the_writer_cannot_keep_up_with_is_counted() {
    apart_for(60, || {
        let d = host(64 * MIB, true);
        let file = path("dropped.history");
        start(d, 64, 0, Some(&file));
        let pool = d.default_pool();
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(move || {
                    let stream = d.stream();
                    (0..50_000).for_each(|_| pool.free(pool.alloc(512, stream).unwrap(), stream).unwrap());
                });
            }
        });
        let dropped = state(d).history_stop().unwrap();
        let ring = state(d).history().unwrap();
        let read = HistoryFile::parse(&take(&file)).unwrap();
        let all = ring.dropped + ring.events.len() as u64;
        assert!(dropped > 0 && read.dropped == dropped, "{dropped} {}", read.dropped);
        assert_eq!(read.events.len() as u64 + dropped, all);
        assert!(all >= 400_000, "{all}");
    });
}

#[test]
fn callers_are_told() {
    apart(|| {
        let d = host(64 * MIB, true);
        start(d, 0, 32, None);
        let pool = d.default_pool();
        let p = pool.alloc(512, NULL).unwrap();
        pool.free(p, NULL).unwrap();
        annotate("here").unwrap();
        let told = state(d).history().unwrap().events;
        let here = c_reads_what_happened as fn() as usize as u64;
        for e in told.iter().filter(|e| !e.event.is_segment()) {
            assert!(e.frames.len() > 3, "{e:?}");
            assert!(e.frames.iter().any(|f| f.abs_diff(here) < 64 << 20), "none is in this program: {e:?}");
        }
        assert!(told.iter().filter(|e| e.event.is_segment()).all(|e| e.frames.is_empty()));
        assert_eq!(told.last().unwrap().text.as_deref(), Some("here"));
        assert_eq!(told.last().unwrap().event.kind, EventKind::Annotate);
    });
}

/// Requests with what was freed and what was not, on streams; the peak of the account.
fn work(d: Device) -> u64 {
    let pool = d.default_pool();
    let streams = [NULL, d.stream(), d.stream()];
    let mut kept = Vec::new();
    for i in 0..500 {
        let s = streams[i % 3];
        kept.push((pool.alloc(1 + i * 977 % (300 * KIB), s).unwrap(), s));
        if i % 4 != 0 {
            let (p, s) = kept.swap_remove(i * 7 % kept.len());
            pool.free(p, s).unwrap();
        }
    }
    let q = d.alloc(MIB).unwrap();
    kept.drain(20..).for_each(|(p, s)| pool.free(p, s).unwrap());
    free(q).unwrap();
    d.stats().allocated_bytes.peak
}

/// Plays a trace on another device: the peak of the account. Also checks what the reader of the command checks.
fn replay(trace: &str) -> u64 {
    let d = Device::get("host", 1).unwrap();
    let pool = d.default_pool();
    let (mut live, mut streams) = (HashMap::new(), HashMap::from([(0, NULL)]));
    let (mut events, mut promised) = (0, 0);
    for line in trace.lines() {
        if let Some(n) = line.strip_prefix("# events: ") {
            promised = n.parse().unwrap();
        }
        let words: Vec<_> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<usize>().unwrap();
        match words[0] {
            "a" => {
                let s = *streams.entry(number(3)).or_insert_with(|| d.stream());
                assert!(live.insert(number(1), (pool.alloc(number(2), s).unwrap(), s)).is_none());
                events += 1;
            }
            "f" => {
                let (p, s) = live.remove(&number(1)).unwrap();
                pool.free(p, s).unwrap();
                events += 1;
            }
            _ => assert!(line.starts_with('#'), "{line}"),
        }
    }
    assert!(promised == 0 || promised == events);
    d.stats().allocated_bytes.peak
}

fn two_hosts() -> Device {
    let _ = runtime::finalize();
    runtime::configure_host(millpond::HostOptions { device_count: 2, capacity: 1 << 30, mapping: true })
        .unwrap();
    Device::get("host", 0).unwrap()
}

#[test]
fn a_recording_replays_to_the_same_peak() {
    apart(|| {
        let d = two_hosts();
        let early = d.default_pool().alloc(3 * MIB, NULL).unwrap(); // before there is a recording
        let file = path("peak.trace");
        let name = CString::new(file.to_str().unwrap()).unwrap();
        let device = ptr::<millpond_device>(d.0);
        outcome(unsafe { millpond_device_record_start(device, name.as_ptr()) }).unwrap();
        assert_eq!(
            code(outcome(unsafe { millpond_device_record_start(device, name.as_ptr()) })),
            MILLPOND_E_BUSY
        );
        let peak = work(d);
        free(early).unwrap();
        let mut dropped = 1;
        outcome(unsafe { millpond_device_record_stop(device, &mut dropped) }).unwrap();
        assert_eq!(dropped, 0);
        let text = String::from_utf8(take(&file)).unwrap();
        assert!(text.starts_with("# name: contract") && text.contains("# events: "), "{text:.200}");
        assert_eq!(replay(&text), peak);
    });
}

/// What is allocated with a tag stands below a line that names it; the names cannot break a line.
#[test]
fn a_recording_tells_tags() {
    apart(|| {
        let d = two_hosts();
        let pool = d.default_pool();
        let early = crate::tags::tagged("before", || pool.alloc(100, NULL).unwrap());
        let file = path("tags.trace");
        state(d).record_start(&file).unwrap();
        let none = pool.alloc(200, NULL).unwrap();
        let two = crate::tags::tagged("kv\ncache", || {
            [pool.alloc(300, NULL).unwrap(), pool.alloc(400, NULL).unwrap()]
        });
        let last = pool.alloc(500, NULL).unwrap();
        [early, none, two[0], two[1], last].into_iter().for_each(|p| pool.free(p, NULL).unwrap());
        state(d).record_stop().unwrap();
        let text = String::from_utf8(take(&file)).unwrap();
        let told = |l: &&str| l.starts_with("a ") || l.starts_with("# tag:");
        let lines: Vec<_> = text.lines().filter(told).collect();
        let want = [
            "# tag: before",
            "a 1 100 0",
            "# tag: ",
            "a 2 200 0",
            "# tag: kvcache",
            "a 3 300 0",
            "a 4 400 0",
            "# tag: ",
            "a 5 500 0",
        ];
        assert_eq!(lines, want);
        assert!(replay(&text) >= 1500);
    });
}

/// Threads that are faster than the file wait for it: nothing is lost.
#[test]
fn a_recording_loses_nothing_under_load() {
    apart_for(60, || {
        let d = two_hosts();
        let file = path("fast.trace");
        state(d).record_start(&file).unwrap();
        let pool = d.default_pool();
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(move || {
                    let stream = d.stream();
                    (0..30_000).for_each(|_| pool.free(pool.alloc(512, stream).unwrap(), stream).unwrap());
                });
            }
        });
        assert_eq!(state(d).record_stop().unwrap(), 0);
        let text = String::from_utf8(take(&file)).unwrap();
        assert_eq!(text.lines().filter(|l| l.starts_with("a ")).count(), 240_000);
        assert_eq!(text.lines().filter(|l| l.starts_with("f ")).count(), 240_000);
    });
}

/// Runs `body` in a forked child of this process, which has not used the library yet; how the child ended.
pub fn in_child(body: impl FnOnce()) -> i32 {
    let child = unsafe { libc::fork() };
    if child == 0 {
        body();
        unsafe { libc::exit(0) };
    }
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

#[test]
fn a_program_that_ends_without_a_word_has_its_files() {
    let (history, trace) = (path("exit.history"), path("exit.trace"));
    let peak = path("exit.peak");
    let files =
        [("MILLPOND_HISTORY", history.to_str().unwrap()), ("MILLPOND_RECORD", trace.to_str().unwrap())];
    let files = files.map(|(k, v)| (k, v.to_owned()));
    apart(|| {
        let files = files.clone();
        let told = peak.clone();
        let status = in_child(move || {
            files.iter().for_each(|(k, v)| unsafe { std::env::set_var(k, v) });
            let d = two_hosts();
            std::fs::write(told, work(d).to_string()).unwrap();
        });
        assert_eq!(status, 0);
        let read = HistoryFile::parse(&take(&history)).unwrap();
        assert!(read.events.len() > 800 && read.dropped == 0 && !read.cut_off, "{}", read.events.len());
        assert!(read.modules.contains("r-xp"), "callers are only addresses without what was loaded where");
        let text = String::from_utf8(take(&trace)).unwrap();
        assert!(!text.contains("# events: "), "nobody has ended it");
        let events = text.lines().filter(|l| !l.starts_with('#')).count();
        assert!(text.ends_with(&format!("# exit: {events} events\n")), "{:?}", text.lines().last());
        assert_eq!(String::from_utf8(take(&peak)).unwrap(), {
            let _ = two_hosts();
            replay(&text).to_string()
        });
    });
}

#[test]
fn a_program_that_is_killed_has_its_files_up_to_the_last_flush() {
    apart(|| {
        let (history, trace) = (path("kill.history"), path("kill.trace"));
        let (h, t) = (history.clone(), trace.clone());
        let status = in_child(move || {
            let d = two_hosts();
            start(d, 0, 0, Some(&h));
            state(d).record_start(&t).unwrap();
            work(d);
            std::thread::sleep(std::time::Duration::from_millis(500));
            d.default_pool().alloc(MIB, NULL).unwrap();
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        });
        assert_eq!(status, libc::SIGKILL);
        assert!(HistoryFile::parse(&take(&history)).unwrap().events.len() > 800);
        let text = String::from_utf8(take(&trace)).unwrap();
        assert!(!text.contains("# exit: "), "it had no exit");
        let _ = two_hosts();
        assert!(replay(&text) > 0);
    });
}

#[test]
fn a_forked_child_leaves_its_parents_files_alone() {
    apart(|| {
        let d = two_hosts();
        let (history, trace) = (path("fork.history"), path("fork.trace"));
        start(d, 0, 0, Some(&history));
        state(d).record_start(&trace).unwrap();
        let pool = d.default_pool();
        let p = pool.alloc(1000, NULL).unwrap();
        let status = in_child(move || {
            assert!(pool.alloc(77, NULL).is_err());
            assert!(state(d).history_stop().is_err() && state(d).record_stop().is_err());
            assert!(annotate("child").is_err());
        });
        assert_eq!(status, 0);
        pool.free(p, NULL).unwrap();
        state(d).history_stop().unwrap();
        state(d).record_stop().unwrap();
        let text = String::from_utf8(take(&trace)).unwrap();
        let lines: Vec<_> = text.lines().filter(|l| !l.starts_with('#')).collect();
        assert_eq!(lines, ["a 1 1000 0", "f 1"]);
        let read = HistoryFile::parse(&take(&history)).unwrap();
        assert_eq!(read.events.iter().filter(|e| !e.event.is_segment()).count(), 2);
    });
}

#[test]
fn a_full_disk_is_told_and_harms_nobody() {
    apart(|| {
        let d = host(64 * MIB, true);
        start(d, 0, 0, Some(Path::new("/dev/full")));
        state(d).record_start(Path::new("/dev/full")).unwrap();
        let pool = d.default_pool();
        for i in 0..200_000 {
            let p = pool.alloc(512, NULL).unwrap();
            pool.free(p, NULL).unwrap();
            if i == 1000 {
                std::thread::sleep(std::time::Duration::from_millis(200));
            }
        }
        for e in [state(d).history_stop().unwrap_err(), state(d).record_stop().unwrap_err()] {
            assert!(e.code() == Code::System && e.message().contains("No space left"), "{e}");
        }
        assert_eq!(state(d).history().unwrap().events.len(), 1 << 16);
        start(d, 0, 0, None); // another one can begin
    });
}

#[test]
fn a_path_that_cannot_be_written_is_told() {
    apart(|| {
        let d = host(64 * MIB, true);
        let nowhere = PathBuf::from("/nonexistent/x");
        let e = state(d).record_start(&nowhere).unwrap_err();
        assert!(e.code() == Code::System && e.message().contains("/nonexistent/x"), "{e}");
        let wish = HistoryOptions { file: Some(nowhere), ..HistoryOptions::default() };
        assert_eq!(state(d).history_start(&wish).unwrap_err().code(), Code::System);
        state(d).record_start(&path("again.trace")).unwrap();
        state(d).record_stop().unwrap();
        std::fs::remove_file(path("again.trace")).unwrap_or(());
    });
}

/// A pipe that nobody reads is an error, and not a wait without end.
#[test]
fn a_pipe_without_a_reader_is_told() {
    apart(|| {
        let d = host(64 * MIB, true);
        let pipe = path("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let e = state(d).record_start(&pipe).unwrap_err();
        assert!(e.code() == Code::System && e.message().contains("pipe"), "{e}");
        std::fs::remove_file(pipe).unwrap();
    });
}

/// A forked child that lives on has the file open, too.
#[test]
fn a_history_that_ended_lets_its_file_go_also_in_forked_children() {
    apart(|| {
        let d = host(64 * MIB, true);
        let file = path("again.history");
        start(d, 0, 0, Some(&file));
        let child = unsafe { libc::fork() };
        if child == 0 {
            std::thread::sleep(Duration::from_secs(20));
            unsafe { libc::_exit(0) };
        }
        state(d).history_stop().unwrap();
        let first = take(&file);
        start(d, 0, 0, Some(&file));
        free(d.alloc(1000).unwrap()).unwrap();
        state(d).history_stop().unwrap();
        let second = take(&file);
        assert!(!first.is_empty() && HistoryFile::parse(&second).unwrap().events.len() >= 2);
        unsafe { libc::kill(child, libc::SIGKILL) };
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    });
}

/// Another observer that comes and goes takes no event from a history.
#[test]
fn histories_that_come_and_go_take_nothing_from_a_recording() {
    apart(|| {
        let d = host(64 * MIB, true);
        let file = path("whole.trace");
        state(d).record_start(&file).unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        let pairs: usize = std::thread::scope(|s| {
            let work = |stream: Stream| {
                let (pool, over) = (d.default_pool(), &over);
                move || {
                    let mut n = 0;
                    while !over.load(Relaxed) {
                        pool.free(pool.alloc(4096, stream).unwrap(), stream).unwrap();
                        n += 1;
                    }
                    n
                }
            };
            let threads = [s.spawn(work(d.stream())), s.spawn(work(d.stream()))];
            for _ in 0..100 {
                start(d, 1000, 0, None);
                std::thread::sleep(Duration::from_millis(1));
                state(d).history_stop().unwrap();
            }
            over.store(true, Relaxed);
            threads.map(|t| t.join().unwrap()).iter().sum()
        });
        assert_eq!(state(d).record_stop().unwrap(), 0);
        let text = String::from_utf8(take(&file)).unwrap();
        let lines = |start: &str| text.lines().filter(|l| l.starts_with(start)).count();
        assert_eq!((lines("a "), lines("f ")), (pairs, pairs));
    });
}

#[test]
fn a_wrong_path_in_the_environment_fails_the_opening_and_names_the_variable() {
    apart_with(&[("MILLPOND_RECORD", "/nonexistent/x")], || {
        let e = runtime::device("host", 0).err().unwrap();
        assert!(e.message().starts_with("MILLPOND_RECORD: /nonexistent/x cannot be written"), "{e}");
    });
}

/// Two devices of one process, and the same name: each has its own file.
#[test]
fn two_devices_do_not_write_into_one_file() {
    apart(|| {
        let d = two_hosts();
        let other = Device::get("host", 1).unwrap();
        let file = path("two.trace");
        state(d).record_start(&file).unwrap();
        state(other).record_start(&file).unwrap();
        free(d.alloc(100).unwrap()).unwrap();
        free(other.alloc(200).unwrap()).unwrap();
        runtime::finalize().unwrap(); // which ends both
        let second = PathBuf::from(format!("{}.host-1.{}", file.display(), std::process::id()));
        let (a, b) = (take(&file), take(&second));
        let lines = |t: Vec<u8>| {
            String::from_utf8(t).unwrap().lines().find(|l| !l.starts_with('#')).unwrap().to_owned()
        };
        assert_eq!((lines(a), lines(b)), ("a 1 100 0".to_owned(), "a 1 200 0".to_owned()));
    });
}
