//! Snapshots are of one moment, whatever other threads do, and their blocks add up to their account. A snapshot file is
//! there whole or not at all.

use crate::apart::*;
use crate::api::*;
use millpond::capi::*;
use serde_json::Value;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut, slice_from_raw_parts};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// What a callback does with a piece.
type Take<'a> = &'a mut dyn FnMut(&[u8]) -> bool;

unsafe extern "C-unwind" fn take_piece(user_data: *mut c_void, data: *const c_void, size: usize) -> bool {
    let (take, piece) =
        unsafe { (&mut *user_data.cast::<Take<'_>>(), &*slice_from_raw_parts(data.cast::<u8>(), size)) };
    take(piece)
}

fn send(d: Device, format: u32, mut take: impl FnMut(&[u8]) -> bool) -> Outcome<()> {
    let mut take: Take<'_> = &mut take;
    let user_data = (&raw mut take).cast();
    outcome(unsafe { millpond_device_send_snapshot(ptr(d.0), format, Some(take_piece), user_data) })
}

fn save(d: Device, format: u32, path: &Path) -> Outcome<()> {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    outcome(unsafe { millpond_device_write_snapshot(ptr(d.0), format, path.as_ptr()) })
}

fn json(d: Device) -> Value {
    let mut all = Vec::new();
    send(d, MILLPOND_SNAPSHOT_JSON, |piece| {
        all.extend_from_slice(piece);
        true
    })
    .unwrap();
    serde_json::from_slice(&all).unwrap()
}

fn n(v: &Value) -> u64 {
    v.as_u64().unwrap_or_else(|| panic!("{v} is no number"))
}

/// Live blocks, their requested bytes, their bytes, and those with what waits; and reserved bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums([u64; 4]);

/// Checks what must hold in any snapshot; gives the sums of the device.
#[track_caller]
fn check(s: &Value) -> Sums {
    assert_eq!((s["schema"].as_str(), n(&s["version"])), (Some("millpond.snapshot"), 1));
    let (mut device, mut pools) = (Sums::default(), HashMap::<u64, Sums>::new());
    let (mut there, mut last) = (0, 0);
    for segment in s["segments"].as_array().unwrap() {
        let mut at = n(&segment["address"]);
        assert!(at >= last, "segments overlap: {segment}");
        for b in segment["blocks"].as_array().unwrap() {
            assert_eq!(n(&b["address"]), at, "blocks stand side by side");
            let size = n(&b["size_bytes"]);
            at += b.get("span_bytes").map_or(size, n);
            let pool = segment["pool"].as_u64().map(|p| pools.entry(p).or_default());
            for sums in [Some(&mut device), pool].into_iter().flatten() {
                match b["state"].as_str().unwrap() {
                    "live" => {
                        let more = [1, n(&b["requested_bytes"]), size, size];
                        (0..4).for_each(|i| sums.0[i] += more[i]);
                    }
                    "waiting" => sums.0[3] += size,
                    "free" => assert_eq!(n(&b["requested_bytes"]), 0),
                    other => panic!("{other}"),
                }
            }
        }
        last = n(&segment["address"]) + n(&segment["size_bytes"]);
        assert_eq!(at, last, "and fill the segment");
        if segment.get("sleeps").is_none() {
            there += n(&segment["size_bytes"]);
        }
    }
    let account = &s["account"];
    let counted = |a: &Value| {
        let names = ["blocks", "requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes"];
        names.iter().for_each(|c| assert!(n(&a[c]["peak"]) >= n(&a[c]["current"]), "{c} in {a}"));
        Sums([0, 1, 2, 3].map(|i| n(&a[names[i]]["current"])))
    };
    assert_eq!(counted(&account["device"]), device, "the device");
    assert_eq!(
        n(&account["device"]["reserved_bytes"]["current"]),
        there + n(&account["device"]["in_transit_bytes"])
    );
    for pool in account["pools"].as_array().unwrap() {
        assert_eq!(counted(pool), pools.remove(&n(&pool["id"])).unwrap_or_default(), "{pool}");
    }
    assert!(pools.is_empty(), "{pools:?} have no account");
    device
}

/// Eight threads that allocate, free, and free what another stream uses, in three pools.
fn under_load(d: Device) {
    const THREADS: usize = 8;
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let pools = [d.default_pool(), d.pool(0), d.pool(0)];
    let mut most = 0;
    std::thread::scope(|s| {
        for t in 0..THREADS {
            let (stop, rounds, pool) = (&stop, &rounds, pools[t % pools.len()]);
            s.spawn(move || {
                let (own, other) = (d.stream(), d.stream());
                let sizes = [1000 + t, 40 * KIB + t, MIB + 4096 + t, 5 * MIB + t];
                let mut kept: Vec<usize> = Vec::new();
                let mut round = t;
                while !stop.load(Relaxed) {
                    round += 1;
                    kept.push(pool.alloc(sizes[round % sizes.len()], own).unwrap());
                    if round % 3 == 0 {
                        record_stream(kept[0], other).unwrap();
                    }
                    if kept.len() > 5 {
                        let p = kept.swap_remove(round % 5);
                        // Now and then from a thread that never allocates there.
                        match round % 7 {
                            0 => std::thread::scope(|s| _ = s.spawn(move || free(p).unwrap())),
                            _ => pool.free(p, own).unwrap(),
                        }
                    }
                    rounds.fetch_add(1, Relaxed);
                }
                kept.into_iter().for_each(|p| pool.free(p, own).unwrap());
            });
        }
        let mut snapshots = 0;
        while snapshots < 150 || rounds.load(Relaxed) < 4000 {
            snapshots += 1;
            let s = std::panic::catch_unwind(|| check(&json(d)));
            if s.is_err() {
                stop.store(true, Relaxed); // else nobody ends
            }
            most = most.max(s.unwrap().0[0]);
        }
        stop.store(true, Relaxed);
    });
    assert!(most >= 8, "{most} blocks at most: the test has lost its eyes");
    d.synchronize().unwrap();
    assert_eq!(check(&json(d)), Sums::default());
}

#[test]
fn a_snapshot_under_load_adds_up() {
    apart_for(120, || under_load(host(GIB, true)));
}

#[test]
fn a_snapshot_under_load_adds_up_in_segments() {
    apart_for(120, || under_load(host(GIB, false)));
}

#[test]
fn a_snapshot_tells_whose_each_block_is() {
    apart(|| {
        let d = host(256 * MIB, true);
        let name = CString::new("weights \"é\"\n").unwrap();
        let options = millpond_pool_options {
            struct_size: size_of::<millpond_pool_options>(),
            limit_bytes: 64 << 20,
            name: name.as_ptr(),
            flags: 0,
        };
        let mut own = null_mut();
        outcome(unsafe { millpond_pool_create(ptr(d.0), &options, &mut own) }).unwrap();
        let (own, s, t) = (Pool(own.expose_provenance()), d.stream(), d.stream());
        let a = own.alloc(1000, s).unwrap();
        let b = d.alloc(3 * MIB).unwrap();
        let gate = d.gate(t);
        let c = own.alloc(70_000, s).unwrap();
        record_stream(c, t).unwrap();
        own.free(c, s).unwrap();
        let all = json(d);
        check(&all);
        let pools = all["account"]["pools"].as_array().unwrap();
        let named = pools.iter().find(|p| p["name"] == "weights \"é\"\n").unwrap();
        assert_eq!((pools.len(), n(&named["limit_bytes"])), (2, 64 << 20));
        let find = |p: usize| {
            let of = |s: &Value| s["blocks"].as_array().unwrap().clone();
            let all = all["segments"].as_array().unwrap();
            let (segment, block) = all
                .iter()
                .find_map(|s| Some((s, of(s).into_iter().find(|b| n(&b["address"]) == p as u64)?)))
                .unwrap();
            let state = block["state"].as_str().unwrap().to_owned();
            (n(&block["requested_bytes"]), segment["stream"].as_u64(), segment["pool"].clone(), state)
        };
        assert_eq!(find(a), (1000, Some(s.0 as u64), named["id"].clone(), "live".into()));
        assert_eq!(find(b), (3 * MIB as u64, None, Value::from(0), "live".into()));
        assert_eq!(find(c), (70_000, Some(s.0 as u64), named["id"].clone(), "waiting".into()));
        assert_eq!(all["device"]["type"], "host");
        assert_eq!(all["options"]["expandable_segments"], "True");
        assert_eq!(all["events"], Value::Array(vec![]));
        gate.open();
        d.synchronize().unwrap();
        // Blocks of a pool that sleeps have addresses, and no memory.
        own.sleep(true).unwrap();
        let all = json(d);
        check(&all);
        let asleep = all["segments"].as_array().unwrap().iter().filter(|s| s["sleeps"] == true);
        assert_eq!(asleep.count(), 1);
        own.wake().unwrap();
        check(&json(d));
        free(a).unwrap();
        free(b).unwrap();
    });
}

/// A request that failed is told with what the device had free then, as its report has it.
#[test]
fn a_request_that_failed_is_told_with_what_the_device_had() {
    apart(|| {
        let (d, control) = crate::held::host(64 * MIB, true);
        let options = millpond_history_options {
            struct_size: size_of::<millpond_history_options>(),
            event_count: 64,
            frame_count: 0,
            path: null(),
        };
        outcome(unsafe { millpond_device_history_start(ptr(d.0), &options) }).unwrap();
        let (pool, s) = (d.default_pool(), d.stream());
        let held = pool.alloc(24 * MIB, s).unwrap();
        assert_eq!(code(pool.alloc(GIB, s)), MILLPOND_E_OUT_OF_MEMORY);
        control.fail_all("memory_info", millpond::Code::Device);
        assert_eq!(code(pool.alloc(2 * GIB, s)), MILLPOND_E_OUT_OF_MEMORY);
        control.mend();
        let told = json(d);
        let oom: Vec<&Value> =
            told["events"].as_array().unwrap().iter().filter(|e| e["action"] == "oom").collect();
        let free = |n: usize| oom[n].get("device_free_bytes").map(|v| v.as_u64().unwrap());
        assert_eq!((oom.len(), n(&oom[0]["size_bytes"])), (2, GIB as u64), "{oom:?}");
        assert_eq!((free(0), free(1)), (Some(40 << 20), None), "the second time it could not be asked");
        let pickled = {
            let mut all = Vec::new();
            send(d, MILLPOND_SNAPSHOT_TORCH_PICKLE, |piece| {
                all.extend_from_slice(piece);
                true
            })
            .unwrap();
            all
        };
        // BININT or LONG1 of 40 MiB behind the key.
        let at = pickled.windows(11).position(|w| w == b"device_free").expect("the key");
        let number = (40u32 << 20).to_le_bytes();
        assert!(pickled[at..at + 20].windows(4).any(|w| w == number), "{:?}", &pickled[at..at + 20]);
        // The history tells it, too.
        let mut seen: Vec<(usize, u64)> = Vec::new();
        unsafe extern "C-unwind" fn each(data: *mut c_void, e: *const millpond_history_event) -> bool {
            let (seen, e) = unsafe { (&mut *data.cast::<Vec<(usize, u64)>>(), &*e) };
            if e.kind == MILLPOND_HISTORY_OOM {
                seen.push((e.ptr.addr(), e.device_free_bytes));
            }
            true
        }
        let data = (&raw mut seen).cast();
        outcome(unsafe { millpond_device_history_read(ptr(d.0), Some(each), data, null_mut()) }).unwrap();
        assert_eq!(seen, [(0, 40 << 20), (0, u64::MAX)]);
        pool.free(held, s).unwrap();
    });
}

/// A block that lies across granules from several places: at its own addresses, and its granules nowhere else.
#[test]
fn a_scattered_block_is_told_once() {
    apart(|| {
        let d = host(64 * MIB, true);
        let (pool, s) = (d.default_pool(), d.stream());
        let all: Vec<usize> = (0..32).map(|_| pool.alloc(2 * MIB, s).unwrap()).collect();
        all.iter().step_by(2).for_each(|&p| pool.free(p, s).unwrap());
        let wide = pool.alloc(20 * MIB, s).unwrap();
        let told = json(d);
        check(&told);
        let scattered = |s: &&Value| s["kind"] == "scattered";
        let found: Vec<&Value> = told["segments"].as_array().unwrap().iter().filter(scattered).collect();
        assert_eq!(found.len(), 1);
        assert_eq!((n(&found[0]["address"]), n(&found[0]["size_bytes"])), (wide as u64, 20 << 20));
        let pieces = found[0]["pieces"].as_array().unwrap();
        let of = |key: &str| pieces.iter().map(|p| n(&p[key])).collect::<Vec<_>>();
        assert_eq!(of("size_bytes"), [2 << 20; 10]);
        assert_eq!(of("address"), (0..10).map(|n| wide as u64 + (n << 21)).collect::<Vec<_>>());
        assert!(of("home").iter().all(|h| all.iter().step_by(2).any(|&p| p as u64 == *h)), "{pieces:?}");
        assert_eq!(n(&told["account"]["device"]["reserved_bytes"]["current"]), 64 << 20);
        assert_eq!(n(&told["account"]["device"]["in_transit_bytes"]), 0);
        pool.free(wide, s).unwrap();
        check(&json(d));
        all.iter().skip(1).step_by(2).for_each(|&p| pool.free(p, s).unwrap());
    });
}

/// Blocks that are a segment each, whose size is no multiple of the library's units.
#[test]
fn a_segment_ends_where_the_device_says() {
    apart(|| {
        let d = host(4 * GIB, false);
        let s = d.stream();
        let sizes = [GIB + 12_345, 700 * MIB + 1, 65 * MIB + 513, 5000];
        let blocks = sizes.map(|bytes| d.default_pool().alloc(bytes, s).unwrap());
        let all = json(d);
        assert_eq!(check(&all).0[..2], [4, sizes.iter().sum::<usize>() as u64]);
        assert_eq!(n(&all["account"]["device"]["in_transit_bytes"]), 0);
        blocks.into_iter().for_each(|p| d.default_pool().free(p, s).unwrap());
        check(&json(d));
    });
}

#[test]
fn a_snapshot_of_a_device_without_pooling() {
    apart(|| {
        let d = unpooled_host();
        let s = d.stream();
        let (a, b) = (d.default_pool().alloc(1000, s).unwrap(), d.alloc(5000).unwrap());
        let all = json(d);
        assert_eq!(check(&all).0[..2], [2, 6000]);
        assert_eq!(all["segments"].as_array().unwrap().len(), 2);
        assert_eq!(all["options"]["backend"], "none");
        free(a).unwrap();
        free(b).unwrap();
        assert_eq!(check(&json(d)), Sums::default());
    });
}

#[test]
fn bad_requests_for_snapshots_are_refused() {
    apart(|| {
        let d = host(256 * MIB, true);
        let null = std::ptr::null();
        let bad = [
            send(Device(0), MILLPOND_SNAPSHOT_JSON, |_| true),
            send(d, 0, |_| true),
            send(d, 3, |_| true),
            save(d, 99, Path::new("never")),
            save(d, MILLPOND_SNAPSHOT_JSON, Path::new("")),
            outcome(unsafe { millpond_device_write_snapshot(ptr(d.0), MILLPOND_SNAPSHOT_JSON, null) }),
            outcome(unsafe {
                millpond_device_send_snapshot(ptr(d.0), MILLPOND_SNAPSHOT_JSON, None, null_mut())
            }),
        ];
        for (n, b) in bad.into_iter().enumerate() {
            assert_eq!(code(b), MILLPOND_E_INVALID_ARGUMENT, "{n}");
        }
        assert!(!Path::new("never").exists());
        outcome(millpond_finalize()).unwrap();
        assert_eq!(code(send(d, MILLPOND_SNAPSHOT_JSON, |_| true)), MILLPOND_E_NOT_INITIALIZED);
    });
}

#[test]
fn a_callback_may_call_the_library_and_ends_the_snapshot() {
    apart(|| {
        let d = host(256 * MIB, true);
        let blocks: Vec<usize> = (0..5000).map(|_| d.alloc(1000).unwrap()).collect();
        for format in [MILLPOND_SNAPSHOT_JSON, MILLPOND_SNAPSHOT_TORCH_PICKLE] {
            let (mut pieces, mut bytes) = (0, 0);
            send(d, format, |piece| {
                free(d.alloc(7 * MIB).unwrap()).unwrap();
                check(&json(d));
                pieces += 1;
                bytes += piece.len();
                true
            })
            .unwrap();
            assert!(pieces >= 3 && bytes / pieces < 80 * KIB, "{bytes} bytes in {pieces} pieces");
            let mut pieces = 0;
            let stopped = send(d, format, |_| {
                pieces += 1;
                pieces < 2
            });
            assert_eq!((code(stopped), pieces), (MILLPOND_E_SYSTEM, 2));
            assert_eq!(code(send(d, format, |_| panic!("enough"))), MILLPOND_E_SYSTEM);
        }
        blocks.into_iter().for_each(|b| free(b).unwrap());
    });
}

/// An empty folder that goes away.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let path = std::env::temp_dir().join(format!("millpond-snapshots-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    fn names(&self) -> Vec<String> {
        let all = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> = all.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_file_is_there_whole_or_not_at_all() {
    apart(|| {
        let d = host(256 * MIB, true);
        let blocks: Vec<usize> = (0..5000).map(|_| d.alloc(1000).unwrap()).collect();
        let folder = Folder::new();
        let (path, link) = (folder.0.join("a.json"), folder.0.join("link.json"));
        save(d, MILLPOND_SNAPSHOT_JSON, &path).unwrap();
        check(&serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap());
        std::fs::write(&path, "older").unwrap();
        std::os::unix::fs::symlink("a.json", &link).unwrap();
        save(d, MILLPOND_SNAPSHOT_TORCH_PICKLE, &link).unwrap();
        assert!(link.is_symlink(), "a link stays one");
        assert!(std::fs::read(&path).unwrap().starts_with(b"\x80\x02}"));
        assert_eq!(folder.names(), ["a.json", "link.json"]);

        // A disk that is full before the end: the older file stays.
        std::fs::write(&path, "older").unwrap();
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        let small = libc::rlimit { rlim_cur: 100_000, rlim_max: libc::RLIM_INFINITY };
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &small) }, 0);
        for format in [MILLPOND_SNAPSHOT_JSON, MILLPOND_SNAPSHOT_TORCH_PICKLE] {
            let e = save(d, format, &path).unwrap_err();
            assert_eq!(e.code, MILLPOND_E_SYSTEM);
            assert!(e.message.contains("a.json: cannot be written: File too large"), "{}", e.message);
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"older");
        assert_eq!(folder.names(), ["a.json", "link.json"]);

        for (path, why) in [
            (folder.0.join("none/a.json"), "No such file"),
            (folder.0.clone(), "directory"),
            (path.join("b"), "Not a directory"),
            (PathBuf::from("/dev/full"), "No space left"),
        ] {
            let e = save(d, MILLPOND_SNAPSHOT_JSON, &path).unwrap_err();
            assert_eq!(e.code, MILLPOND_E_SYSTEM);
            assert!(e.message.contains(why), "{}", e.message);
        }
        save(d, MILLPOND_SNAPSHOT_JSON, Path::new("/dev/null")).unwrap();
        assert!(!Path::new("/dev/null").is_file());
        blocks.into_iter().for_each(|b| free(b).unwrap());
    });
}

/// A link stays a link, also where it leads to nothing yet, and who might not read the older file does not read the new
/// one.
#[test]
fn a_file_that_is_replaced_keeps_who_may_read_it_and_links_stay() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    apart(|| {
        let d = host(64 * MIB, true);
        let dir = Folder::new();
        let at = |name: &str| dir.0.join(name);
        let mode = |name: &str| std::fs::metadata(at(name)).unwrap().permissions().mode() & 0o777;
        std::fs::write(at("secret"), "older").unwrap();
        std::fs::set_permissions(at("secret"), std::fs::Permissions::from_mode(0o600)).unwrap();
        save(d, MILLPOND_SNAPSHOT_JSON, &at("secret")).unwrap();
        assert_eq!(mode("secret"), 0o600);
        assert!(std::fs::read(at("secret")).unwrap().starts_with(b"{"));
        symlink("second", at("first")).unwrap();
        symlink(at("run7"), at("second")).unwrap();
        for _ in 0..2 {
            save(d, MILLPOND_SNAPSHOT_JSON, &at("first")).unwrap();
            assert!(at("first").is_symlink() && at("second").is_symlink() && !at("run7").is_symlink());
            assert!(std::fs::read(at("run7")).unwrap().starts_with(b"{"));
        }
        symlink("round", at("round")).unwrap();
        assert_eq!(code(save(d, MILLPOND_SNAPSHOT_JSON, &at("round"))), MILLPOND_E_SYSTEM);
        assert!(at("round").is_symlink());
        assert_eq!(std::fs::read_dir(&dir.0).unwrap().count(), 5, "nothing is left");
    });
}

/// A pipe whose reader has gone is an error, and no signal that ends the process.
#[test]
fn a_pipe_that_nobody_reads_any_more_is_told() {
    use std::os::unix::fs::OpenOptionsExt;
    apart(|| {
        let d = host(64 * MIB, true);
        let dir = Folder::new();
        let path = dir.0.join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        // As in a program that is not Rust's: the signal ends it.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        // Larger than what a pipe takes, so the writer waits until the reader goes.
        let blocks: Vec<usize> = (0..4000).map(|_| d.alloc(100).unwrap()).collect();
        let nonblock = 0o4000;
        let reader = std::fs::OpenOptions::new().read(true).custom_flags(nonblock).open(&path).unwrap();
        let gone = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(300));
            drop(reader);
        });
        let e = save(d, MILLPOND_SNAPSHOT_JSON, &path).unwrap_err();
        gone.join().unwrap();
        assert!(e.code == MILLPOND_E_SYSTEM && e.message.contains("Broken pipe"), "{}", e.message);
        // The signal is neither blocked nor left to come.
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        assert_eq!(unsafe { libc::sigpending(set.as_mut_ptr()) }, 0);
        assert_eq!(unsafe { libc::sigismember(set.as_ptr(), libc::SIGPIPE) }, 0);
        let null = std::ptr::null();
        assert_eq!(unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, null, set.as_mut_ptr()) }, 0);
        assert_eq!(unsafe { libc::sigismember(set.as_ptr(), libc::SIGPIPE) }, 0);
        blocks.into_iter().for_each(|b| free(b).unwrap());
    });
}

/// A pipe that nobody has opened for reading is an error, as it is for a history, and not a wait in `open`.
#[test]
fn a_pipe_without_a_reader_is_refused() {
    apart(|| {
        let d = host(64 * MIB, true);
        let dir = Folder::new();
        let path = dir.0.join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        for format in [MILLPOND_SNAPSHOT_JSON, MILLPOND_SNAPSHOT_TORCH_PICKLE] {
            let to = path.clone();
            let e = in_time(10, move || save(d, format, &to)).expect("an end").unwrap_err();
            assert!(
                e.code == MILLPOND_E_SYSTEM && e.message.contains("pipe: cannot be written"),
                "{}",
                e.message
            );
        }
        assert_eq!(
            std::fs::read_dir(&dir.0).unwrap().count(),
            1,
            "it stays a pipe, and nothing is beside it"
        );
    });
}

/// One whose reader is slow gets all of it; one whose reader stands still is given up.
#[test]
fn a_pipe_whose_reader_stands_still_is_given_up() {
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    apart(|| {
        let d = host(64 * MIB, true);
        let dir = Folder::new();
        let path = dir.0.join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let nonblock = 0o4000;
        let mut reader = std::fs::OpenOptions::new().read(true).custom_flags(nonblock).open(&path).unwrap();
        // Larger than what a pipe takes.
        let blocks: Vec<usize> = (0..4000).map(|_| d.alloc(100).unwrap()).collect();
        let to = path.clone();
        let writer = std::thread::spawn(move || save(d, MILLPOND_SNAPSHOT_JSON, &to));
        let mut all = Vec::new();
        let mut piece = [0; 32 << 10];
        while !writer.is_finished() {
            std::thread::sleep(std::time::Duration::from_millis(20));
            if let Ok(n) = reader.read(&mut piece) {
                all.extend_from_slice(&piece[..n]);
            }
        }
        reader.read_to_end(&mut all).unwrap();
        writer.join().unwrap().unwrap();
        assert!(all.len() > 200_000, "{}", all.len());
        check(&serde_json::from_slice(&all).unwrap());

        let (took, done) = timed(|| in_time(30, move || save(d, MILLPOND_SNAPSHOT_JSON, &path)));
        let e = done.expect("an end").unwrap_err();
        assert!(e.code == MILLPOND_E_SYSTEM && e.message.contains("cannot be written"), "{}", e.message);
        assert!(took > std::time::Duration::from_secs(4), "given up after {took:?}");
        blocks.into_iter().for_each(|b| free(b).unwrap());
    });
}
