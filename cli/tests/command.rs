//! The built command on the host device, as a user runs it: what it prints, writes and answers.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

#[path = "command/compare.rs"]
mod compare;
#[path = "command/demo.rs"]
mod demo;
#[cfg(target_os = "linux")]
#[path = "command/fake.rs"]
mod fake;
#[path = "command/group.rs"]
mod group;
#[path = "command/hostile.rs"]
mod hostile;
#[path = "command/info.rs"]
mod info;
#[path = "command/outputs.rs"]
mod outputs;
#[path = "command/record.rs"]
mod record;
#[path = "command/sizes.rs"]
mod sizes;

/// A folder for one test's files, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn millpond(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millpond"))
        .args(args)
        // What a developer has set for their own host devices must not change these tests.
        .env_remove("MILLPOND_HOST_CAPACITY")
        .env_remove("MILLPOND_HOST_DEVICES")
        .env_remove("MILLPOND_HOST_MAPPING")
        .output()
        .unwrap()
}

fn out(o: &Output) -> String {
    String::from_utf8(o.stdout.clone()).unwrap()
}

fn err(o: &Output) -> String {
    String::from_utf8(o.stderr.clone()).unwrap()
}

/// Three streams, blocks from 1 byte to 3 MiB, each freed a while after its birth; the last 20 are left.
fn small_trace() -> String {
    let mut text =
        String::from("# name: small\n# source: made for a test; by hand\n# step_starts: 100,200\n");
    for i in 1..=300u64 {
        let bytes = [1, 7, 256, 513, 4096, 70_000, 1 << 20, 3 << 20][(i * 5 % 8) as usize] + i % 3;
        text += &format!("a {i} {bytes} {}\n", i % 3);
        if i > 20 {
            text += &format!("f {}\n", i - 20);
        }
    }
    text
}

#[test]
fn replays_and_checks() {
    let folder = Folder::new("replay");
    let trace = folder.file("small.trace", &small_trace());
    let html = folder.0.join("small.html");
    let svg = folder.0.join("small.svg");
    let json = folder.0.join("small.json");
    for touch in ["none", "edges", "all"] {
        let o = millpond(&[
            "replay",
            trace.to_str().unwrap(),
            "--check",
            "--touch",
            touch,
            "--passes",
            "3",
            "--html",
            html.to_str().unwrap(),
            "--svg",
            svg.to_str().unwrap(),
            "--json",
            json.to_str().unwrap(),
        ]);
        assert!(o.status.success(), "{touch}: {}", err(&o));
        let text = out(&o);
        for wants in
            ["small on host:0", "1 740", "in 3 passes", "900 blocks, no overlap", "peak reserved / peak live"]
        {
            assert!(text.contains(wants), "{touch}: `{wants}` is not in\n{text}");
        }
        assert_eq!(text.contains("all as written"), touch != "none");
        // Not a terminal: plain lines.
        assert!(err(&o).contains("small:  50% (") || err(&o).contains("small: 100% ("), "{}", err(&o));
        let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
        let run = &json[0];
        assert_eq!(run["alloc"]["calls"], 900);
        assert_eq!(run["free"]["calls"], 840);
        assert_eq!(run["blocks"]["current"], 20);
        assert_eq!(run["checked_blocks"], 900);
        assert_eq!(run["requested_bytes"]["peak"], run["trace"]["peak_live_bytes"]);
        assert!(run["reserved_bytes"]["peak"].as_u64() >= run["allocated_bytes"]["peak"].as_u64());
        // With all bytes touched, all bytes are read back.
        let read = run["checked_bytes"].as_u64().unwrap();
        let total = run["trace"]["total_bytes"].as_u64().unwrap() * 3;
        assert_eq!(
            (read == total, read == 0),
            (touch == "all", touch == "none"),
            "{touch}: {read} of {total}"
        );
        assert!(std::fs::read_to_string(&html).unwrap().contains("peak reserved"));
        assert!(std::fs::read_to_string(&svg).unwrap().starts_with("<svg"));
    }
}

/// The pickle is one that the library's own test writes, with events in it.
#[test]
fn records_of_other_programs_are_replayed() {
    let folder = Folder::new("records");
    let pickle = Path::new(env!("CARGO_MANIFEST_DIR")).join("../torch/tests/small_snapshot.pickle");
    let csv = folder.file(
        "rmm.csv",
        "Thread,Time,Action,Pointer,Size,Stream\n1,10:00:00,allocate,0x7f00,1024,0\n1,10:00:01,free,0x7f00,1024,0\n",
    );
    for (file, wants) in [(&pickle, "PyTorch's memory history of device 1"), (&csv, "a log of RMM")] {
        let o = millpond(&["replay", "--check", file.to_str().unwrap()]);
        assert!(o.status.success(), "{}", err(&o));
        assert!(out(&o).contains(wants), "{}", out(&o));
    }
    let hostile = folder.0.join("hostile.pickle");
    std::fs::write(&hostile, b"\x80\x02cos\nsystem\n(X\x05\0\0\0touchtR.").unwrap();
    let o = millpond(&["replay", hostile.to_str().unwrap()]);
    assert!(!o.status.success());
    assert!(err(&o).contains("hostile.pickle") && err(&o).contains("at byte 2: GLOBAL"), "{}", err(&o));
}

#[test]
fn quiet_is_quiet() {
    let folder = Folder::new("quiet");
    let trace = folder.file("t.trace", &small_trace());
    let o = millpond(&["replay", "--quiet", "--device", "cpu", trace.to_str().unwrap()]);
    assert!(o.status.success(), "{}", err(&o));
    assert_eq!((out(&o), err(&o)), (String::new(), String::new()));
}

#[test]
fn bad_input_is_named() {
    let folder = Folder::new("bad");
    let missing = folder.0.join("none.trace");
    let broken = folder.file("broken.trace", "# name: broken\na 1 8 0\nfree 1\n");
    let good = folder.file("good.trace", "a 1 8 0\nf 1\n");
    let (missing, broken, good) =
        (missing.to_str().unwrap(), broken.to_str().unwrap(), good.to_str().unwrap());
    for (args, code, wants) in [
        (&["replay", missing][..], 1, "none.trace: no such file"),
        (&["replay", broken], 1, "broken.trace: line 3: `free 1`"),
        (&["replay", good, "--device", "abacus"], 1, "device abacus:0 cannot be used"),
        (&["replay", good, "--device", "host:9999"], 1, "device host:9999 cannot be used"),
        (&["replay", good, "--plugin", "/nowhere/x.so"], 1, "/nowhere/x.so"),
        (&["replay", good, "--capacity", "4 parsecs"], 2, "parsecs"),
        (&["replay", good, "--html", "/nowhere/x.html"], 1, "/nowhere/x.html cannot be written"),
        (&["replay", good, good, "--svg", "x.svg"], 1, "--svg takes one trace"),
        (&["replay"], 2, "TRACE"),
    ] {
        let o = millpond(args);
        assert_eq!(o.status.code(), Some(code), "{args:?}: {}", err(&o));
        assert!(err(&o).contains(wants), "{args:?}: `{wants}` is not in\n{}", err(&o));
    }
}

#[test]
fn too_small_a_device_is_refused_before_it_starts() {
    let folder = Folder::new("small");
    let trace = folder.file("big.trace", "a 1 100000000 0\nf 1\n");
    let o = millpond(&["replay", trace.to_str().unwrap(), "--capacity", "64MiB"]);
    assert_eq!(o.status.code(), Some(3), "{}", err(&o));
    assert!(err(&o).contains("has only 64.00 MiB") && err(&o).contains("--capacity"), "{}", err(&o));
}

#[test]
fn running_out_of_memory_says_what_was_needed() {
    let folder = Folder::new("oom");
    // Blocks are aligned to 32 bytes at least, so that 2 MiB cannot hold more than 65 536 of them.
    let text: String = (1..=70_000).map(|i| format!("a {i} 1 0\n")).collect();
    let trace = folder.file("many.trace", &text);
    let html = folder.0.join("many.html");
    let o = millpond(&[
        "replay",
        trace.to_str().unwrap(),
        "--capacity",
        "2MiB",
        "--touch",
        "none",
        "--html",
        html.to_str().unwrap(),
    ]);
    assert_eq!(o.status.code(), Some(3), "{}\n{}", err(&o), out(&o));
    let text = out(&o);
    for wants in ["OUT OF MEMORY at operation", "of 70 000", "a request of 1 B", "The device has 2.00 MiB"] {
        assert!(text.contains(wants), "`{wants}` is not in\n{text}");
    }
    assert!(std::fs::read_to_string(&html).unwrap().contains("out of memory: 1 B"));
}

#[test]
fn bisect_finds_the_smallest_device() {
    let folder = Folder::new("bisect");
    let trace = folder.file("t.trace", "a 1 9000000 0\na 2 3000000 0\nf 1\na 3 8000000 0\nf 3\nf 2\n");
    let o = millpond(&["bisect", trace.to_str().unwrap()]);
    assert!(o.status.success(), "{}", err(&o));
    // 12 000 000 bytes at the peak are 5.72 steps of 2 MiB: nothing below 12 MiB can do.
    let text = out(&o);
    let bytes: u64 = text.split_once('(').unwrap().1.split_once(" bytes").unwrap().0.parse().unwrap();
    assert!(bytes.is_multiple_of(2 << 20) && (12 << 20..=64 << 20).contains(&bytes), "{text}");
    assert!(err(&o).contains("completes"), "{}", err(&o));
}

#[test]
fn info_lists_the_built_in_devices() {
    let o = millpond(&["info"]);
    assert!(o.status.success(), "{}", err(&o));
    let text = out(&o);
    for wants in ["cpu:0", "host:0", "host:1", "capabilities", "host access"] {
        assert!(text.contains(wants), "`{wants}` is not in\n{text}");
    }
}

/// Each trace has totals of its own.
#[test]
fn traces_of_one_replay_do_not_run_into_each_other() {
    let folder = Folder::new("several");
    let trace = folder.file("t.trace", &small_trace());
    let path = trace.to_str().unwrap();
    let o = millpond(&["replay", path, path, path, "--json", "-"]);
    assert!(o.status.success(), "{}", err(&o));
    // Nothing else is on standard output, and no file has that name.
    let all: serde_json::Value = serde_json::from_str(&out(&o)).unwrap();
    assert_eq!(all.as_array().map(Vec::len), Some(3));
    for run in all.as_array().unwrap() {
        for counter in ["requested_bytes", "allocated_bytes", "blocks"] {
            assert_eq!(run[counter], all[0][counter], "{counter}");
        }
    }
    assert_eq!(all[0]["blocks"]["total"], 300);
    assert!(!Path::new("-").exists());
    let both = millpond(&["replay", path, "--json", "-", "--html", "-"]);
    assert_eq!(both.status.code(), Some(1), "{}", err(&both));
}

#[test]
fn bisect_ends_where_the_device_does() {
    let folder = Folder::new("beyond");
    let trace = folder.file("t.trace", "a 1 1000000000000000 0\nf 1\n");
    let o = millpond(&["bisect", trace.to_str().unwrap(), "--device", "cpu"]);
    assert_eq!(o.status.code(), Some(1), "{}", out(&o));
    assert!(err(&o).contains("it needs 909.5 TiB at least, and the device has"), "{}", err(&o));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told() {
    let folder = Folder::new("full");
    let trace = folder.file("t.trace", &small_trace());
    let snapshot = folder.file("s.json", r#"{"schema":"millpond.snapshot","version":1,"segments":[]}"#);
    let (trace, snapshot) = (trace.to_str().unwrap(), snapshot.to_str().unwrap());
    let history = folder.0.join("t.history");
    let o = Command::new(env!("CARGO_BIN_EXE_millpond"))
        .args(["replay", "-q", trace])
        .env("MILLPOND_HISTORY", &history)
        .output()
        .unwrap();
    assert!(o.status.success(), "{}", err(&o));
    let (history, page) = (history.to_str().unwrap(), folder.0.join("page.html"));
    let page = page.to_str().unwrap();
    for args in [
        &["info"][..],
        &["info", "--json", "-"],
        &["--help"],
        &["--version"],
        &["replay", "--help"],
        &["replay", trace],
        &["replay", trace, "--json", "-"],
        &["replay", trace, "--html", "-"],
        &["replay", trace, "--svg", "-"],
        &["bisect", "-q", trace],
        &["compare", "--no-bisect", "--repeat", "1", trace],
        &["compare", "--no-bisect", "--repeat", "1", trace, "--json", "-"],
        &["history", history],
        &["history", "--json", history],
        &["view", snapshot, "-o", "-"],
        &["view", snapshot, "-o", page],
        &["view", history, "--perfetto", "-"],
        &["demo", "--touch", "none", "--out", page],
        &["demo", "--touch", "none", "--out", "-"],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let o = Command::new(env!("CARGO_BIN_EXE_millpond")).args(args).stdout(full).output().unwrap();
        assert_eq!(o.status.code(), Some(1), "{args:?}");
        assert!(err(&o).contains("standard output cannot be written"), "{args:?}: {}", err(&o));
    }
    for args in [
        &["info", "--json"][..],
        &["replay", "-q", trace, "--svg"],
        &["compare", "--no-bisect", "--repeat", "1", "-q", trace, "--json"],
        &["view", snapshot, "-o"],
        &["view", history, "--perfetto"],
        &["demo", "--touch", "none", "--out"],
    ] {
        let o = millpond(&[args, &["/dev/full"]].concat());
        assert_eq!(o.status.code(), Some(1), "{args:?}");
        assert!(err(&o).contains("/dev/full cannot be written"), "{args:?}: {}", err(&o));
    }
}

#[test]
fn numbers_that_are_too_large_are_quoted_whole() {
    let folder = Folder::new("large");
    let trace = folder.file("t.trace", "a 1 123456789012345678901234567890 0\n");
    let o = millpond(&["replay", trace.to_str().unwrap()]);
    assert!(err(&o).contains("the bytes `123456789012345678901234567890` is 2^64 or more"), "{}", err(&o));
}

/// What a program asked for is recorded, here a replay, and replays to the same account; its history can be read.
#[test]
fn a_recorded_program_replays_to_the_same_peak() {
    let folder = Folder::new("record");
    let trace = folder.file("small.trace", &small_trace());
    let (recorded, history) = (folder.0.join("recorded.trace"), folder.0.join("small.history"));
    let replay = |trace: &Path, variables: &[(&str, &Path)]| {
        let o = Command::new(env!("CARGO_BIN_EXE_millpond"))
            .args(["replay", "--json", "-", "--capacity", "1GiB", trace.to_str().unwrap()])
            .env_remove("MILLPOND_HOST_CAPACITY")
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        assert!(o.status.success(), "{}", err(&o));
        let all: serde_json::Value = serde_json::from_str(&out(&o)).unwrap();
        all[0].clone()
    };
    let program = replay(&trace, &[("MILLPOND_RECORD", &recorded), ("MILLPOND_HISTORY", &history)]);
    let again = replay(&recorded, &[]);
    for sum in ["requested_bytes", "allocated_bytes", "reserved_bytes"] {
        assert_eq!(program[sum]["peak"], again[sum]["peak"], "{sum}");
    }
    assert_eq!(program["trace"]["peak_live_bytes"], again["trace"]["peak_live_bytes"]);

    let o = millpond(&["history", "--json", history.to_str().unwrap()]);
    assert!(o.status.success(), "{}", err(&o));
    let text = out(&o);
    let lines: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines[0]["about"]["device"], "host:0");
    let count = |action: &str| lines.iter().filter(|l| l["action"] == action).count();
    assert_eq!((count("alloc"), lines[0]["dropped"].as_u64()), (300, Some(0)));
    assert!(count("segment_alloc") > 0 && count("free_requested") >= 280, "{text:.300}");
    let table = out(&millpond(&["history", history.to_str().unwrap()]));
    assert!(table.starts_with("history of host:0 in process ") && table.contains("at once"), "{table:.300}");

    let bytes = std::fs::read(&history).unwrap();
    let cut = folder.0.join("cut.history");
    std::fs::write(&cut, &bytes[..bytes.len() - 5]).unwrap();
    let o = millpond(&["history", cut.to_str().unwrap()]);
    assert!(o.status.success() && out(&o).contains("it ends in the middle"), "{}", err(&o));
    let mut bad = bytes.clone();
    bad[bytes.len() / 2] ^= 1;
    std::fs::write(&cut, &bad).unwrap();
    let o = millpond(&["history", cut.to_str().unwrap()]);
    assert!(o.status.code() == Some(1) && err(&o).contains("byte "), "{}", err(&o));
}
