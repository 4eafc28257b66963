//! `millpond view` as a user runs it: what it writes for each kind of file, and what it says of files that are not as they
//! should be. What the page does is tests/view/run.py's matter, in a browser.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

#[path = "../../tests/view/samples.rs"]
mod samples;

fn view(input: &Path, more: &[&str]) -> Output {
    let mut c = Command::new(env!("CARGO_BIN_EXE_millpond"));
    c.arg("view").arg(input).args(more).current_dir(input.parent().unwrap());
    c.env_remove("MILLPOND_HOST_CAPACITY")
        .env_remove("MILLPOND_HOST_DEVICES")
        .env_remove("MILLPOND_HOST_MAPPING");
    c.output().unwrap()
}

fn err(o: &Output) -> String {
    String::from_utf8(o.stderr.clone()).unwrap()
}

/// A number of LEB128 at the front.
fn varint(bytes: &mut &[u8]) -> u64 {
    let mut n = 0;
    for shift in (0..64).step_by(7) {
        let b = bytes[0];
        *bytes = &bytes[1..];
        n |= u64::from(b & 127) << shift;
        if b < 128 {
            break;
        }
    }
    n
}

/// The fields of a protobuf message: number, and either a number or bytes.
fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, &[u8])> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        match key & 7 {
            0 => out.push((key >> 3, varint(&mut bytes), &b""[..])),
            2 => {
                let length = varint(&mut bytes) as usize;
                out.push((key >> 3, 0, &bytes[..length]));
                bytes = &bytes[length..];
            }
            other => panic!("wire type {other}"),
        }
    }
    out
}

fn one<'a>(all: &[(u64, u64, &'a [u8])], field: u64) -> Option<(u64, &'a [u8])> {
    all.iter().find(|f| f.0 == field).map(|f| (f.1, f.2))
}

/// All in one test: the samples are made by the library, of which a process has one.
#[test]
fn every_kind_of_file_becomes_a_page() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("view-{}", std::process::id()));
    samples::write(&folder, false);
    let put = |name: &str, bytes: &[u8]| -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let program = std::fs::read(folder.join("program.history")).unwrap();
    let trace = put("small.trace", b"# step_starts: 1\na 1 1000 0\na 2 0 1\na 3 70000 1\nf 1\nf 2\n");
    put("rmm.csv", b"Thread,Time,Action,Pointer,Size,Stream\n1,10:00:00:000001,allocate,0x10,512,0\n");
    let names = [
        "program.history",
        "awkward.history",
        "late.history",
        "empty.history",
        "one.history",
        "program.json",
    ];
    for name in names.iter().chain(&["alone.json", "small.trace", "rmm.csv"]) {
        let o = view(&folder.join(name), &[]);
        assert!(o.status.success(), "{name}: {}", err(&o));
        let page = std::fs::read_to_string(folder.join(format!("{name}.html"))).unwrap();
        assert!(page.ends_with("</html>\n") && page.contains("The MIT License"), "{name}");
        // Names are in the data alone, which is base64.
        assert!(!page.contains("onerror=a") && page.matches("</script>").count() == 3, "{name}");
    }
    // PyTorch's own snapshot, as it was, and replayed.
    put("dump.pickle", include_bytes!("torch/segments.pickle"));
    let o = view(&folder.join("dump.pickle"), &["-o", "-"]);
    assert!(
        o.status.success() && err(&o).contains("which --ordinal shows: 1 (2.00 MiB reserved)"),
        "{}",
        err(&o)
    );
    let o = view(&folder.join("dump.pickle"), &["--ordinal", "7"]);
    assert_eq!(o.status.code(), Some(1));
    assert!(err(&o).contains("has no device 7; it has 2"), "{}", err(&o));
    let o = view(&folder.join("dump.pickle"), &["--replay", "-o", "-"]);
    assert!(o.status.success() && err(&o).is_empty(), "{}", err(&o));
    assert!(err(&view(&folder.join("late.history"), &[])).contains("4 blocks are older than the record"));

    // A file whose writer was killed is shown as far as it goes; what is damaged or something else is refused.
    let cut = put("cut.history", &program[..program.len() - 100]);
    let o = view(&cut, &[]);
    assert!(o.status.success() && err(&o).contains("it ends in the middle, after byte "), "{}", err(&o));
    let mut bad = program.clone();
    bad[program.len() / 2] ^= 1;
    let json = std::fs::read(folder.join("program.json")).unwrap();
    for (name, bytes, wants) in [
        ("bad.history", &bad[..], "byte "),
        ("begun.history", &program[..5], "begins otherwise"),
        ("cut.json", &json[..json.len() / 2], " line "),
        ("other.json", b"{\"a\": 1}", "no snapshot of Millpond"),
        ("nothing", b"", "the file is empty"),
        ("bad.trace", b"a 1 2 0\nq\n", "line 2"),
    ] {
        let file = put(name, bytes);
        let o = view(&file, &[]);
        assert_eq!(o.status.code(), Some(1), "{name}");
        assert!(err(&o).contains(wants) && err(&o).contains(name), "{name}: {}", err(&o));
        assert!(!folder.join(format!("{name}.html")).exists(), "{name}");
    }
    assert!(err(&view(&folder.join("absent"), &[])).contains("cannot be read"));
    assert_eq!(view(&trace, &["-o", "/dev/full"]).status.code(), Some(1));
    let o = view(&trace, &["-o", "-"]);
    assert!(o.stdout.starts_with(b"<!doctype html>") && o.stdout.ends_with(b"</html>\n"));

    // Nothing is overwritten: neither one output by the other, nor the input.
    std::os::unix::fs::symlink("small.trace", folder.join("link")).unwrap();
    let before = std::fs::read(&trace).unwrap();
    for (outputs, wants) in [
        (&["-o", "-", "--perfetto", "-"][..], "cannot both be -"),
        (&["-o", "x", "--perfetto", "./x"], "cannot both be x"),
        (&["-o", "small.trace"], "would be overwritten"),
        (&["-o", "link"], "would be overwritten"),
        (&["--perfetto", "./small.trace"], "would be overwritten"),
    ] {
        let o = view(&trace, outputs);
        assert_eq!(o.status.code(), Some(1), "{outputs:?}");
        assert!(err(&o).contains(wants) && o.stdout.is_empty(), "{outputs:?}: {}", err(&o));
    }
    assert!(!folder.join("x").exists() && std::fs::read(&trace).unwrap() == before);
    let o = view(&trace, &["-o", "/dev/null", "--perfetto", "/dev/null"]);
    assert!(o.status.success(), "{}", err(&o));

    // Perfetto: packets of one sequence; what is allocated by tag sums up to what is allocated.
    let out = folder.join("x.pftrace");
    let o = view(&folder.join("program.history"), &["--perfetto", out.to_str().unwrap()]);
    assert!(o.status.success() && !folder.join("x.html").exists(), "{}", err(&o));
    let bytes = std::fs::read(&out).unwrap();
    let mut names = std::collections::HashMap::new();
    let mut last = std::collections::HashMap::new();
    let mut open = std::collections::HashMap::new();
    let mut instants = 0;
    for (field, _, packet) in fields(&bytes) {
        let packet = fields(packet);
        assert_eq!((field, one(&packet, 10)), (1, Some((1, &b""[..]))));
        if let Some((_, track)) = one(&packet, 60) {
            let track = fields(track);
            let name = one(&track, 2).map_or("", |n| std::str::from_utf8(n.1).unwrap());
            names.insert(one(&track, 1).unwrap().0, name.to_owned());
        }
        if let Some((_, event)) = one(&packet, 11) {
            let event = fields(event);
            let track = one(&event, 11).unwrap().0;
            assert!(names.contains_key(&track));
            match one(&event, 9).unwrap().0 {
                1 => assert!(!std::mem::replace(open.entry(track).or_insert(false), true)),
                2 => assert!(std::mem::replace(open.get_mut(&track).unwrap(), false)),
                3 => instants += 1,
                4 => drop(last.insert(names[&track].clone(), one(&event, 30).unwrap().0)),
                other => panic!("an event of type {other}"),
            }
        }
    }
    assert!(open.values().all(|o| !o) && !open.is_empty() && instants > 1000);
    let by_tag: u64 = last.iter().filter(|n| n.0.starts_with("allocated, tag")).map(|n| n.1).sum();
    assert_eq!((by_tag, last["reserved"]), (last["allocated"], 320 << 20));
    assert!(last["allocated"] > 200 << 20);
    let _ = std::fs::remove_dir_all(&folder);
}

/// What a trace says that blocks are for is what they are grouped by.
#[test]
fn the_tags_of_a_trace_are_shown() {
    let folder = std::env::temp_dir().join(format!("millpond-view-tags-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let trace = folder.join("tagged.trace");
    let text = "# tag: kv cache\na 1 100000 0\n# tag:\na 2 5000 0\nf 1\n# tag: a name of more than thirty-one bytes\na 3 9 0\n";
    std::fs::write(&trace, text).unwrap();
    let o = view(&trace, &["-o", "tagged.html", "--perfetto", "tagged.pftrace"]);
    assert!(o.status.success(), "{}", err(&o));
    let told = std::fs::read(folder.join("tagged.pftrace")).unwrap();
    let has = |name: &str| told.windows(name.len()).any(|w| w == name.as_bytes());
    assert!(
        has("kv cache") && has("a name of more than thirty-one ") && !has("a name of more than thirty-one b")
    );
    std::fs::remove_dir_all(&folder).unwrap();
}
