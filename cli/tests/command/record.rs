//! `millpond record`, with this command and shells as the programs that are recorded.

use super::{Folder, err, out, small_trace};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

const MILLPOND: &str = env!("CARGO_BIN_EXE_millpond");

/// In that folder, where the program's files go.
fn command(folder: &Folder, args: &[&str]) -> Command {
    let mut command = Command::new(MILLPOND);
    command.args(args).current_dir(&folder.0);
    for variable in ["MILLPOND_HOST_CAPACITY", "MILLPOND_HOST_DEVICES", "MILLPOND_RECORD", "MILLPOND_HISTORY"]
    {
        command.env_remove(variable);
    }
    command
}

fn record(folder: &Folder, args: &[&str]) -> Output {
    command(folder, &[&["record"], args].concat()).output().unwrap()
}

fn names(folder: &Folder) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(&folder.0)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn what_a_program_asks_for_can_be_replayed() {
    let folder = Folder::new("record-one");
    folder.file("small.trace", &small_trace());
    let program = [MILLPOND, "replay", "--quiet", "small.trace"];
    let o = record(&folder, &[&["-o", "my.trace", "--history", "my.history", "--"], &program[..]].concat());
    assert_eq!(o.status.code(), Some(0), "{}", err(&o));
    assert!(
        err(&o).contains("recorded my.trace: host:0 of process ") && err(&o).contains(": 600 events, peak ")
    );
    assert!(err(&o).contains("history my.history: host:0"), "{}", err(&o));
    assert!(!err(&o).contains("without a word"), "{}", err(&o));
    assert_eq!(names(&folder), ["my.history", "my.trace", "small.trace"]);
    let o = command(&folder, &["replay", "my.trace"]).output().unwrap();
    assert!(o.status.success() && out(&o).contains("recorded by Millpond from "), "{}", out(&o));
    let o = command(&folder, &["history", "my.history"]).output().unwrap();
    assert!(o.status.success() && out(&o).contains("segment_alloc"), "{}", err(&o));
    // The program's own name, where none is wanted.
    let o = record(&folder, &[&["--quiet"], &program[..]].concat());
    assert_eq!((o.status.code(), err(&o)), (Some(0), String::new()));
    assert_eq!(names(&folder), ["millpond.trace", "my.history", "my.trace", "small.trace"]);
}

/// As in `millpond record -- ./train 2>&1 | head -1`: the status is still the program's.
#[test]
fn nobody_need_read_what_it_says() {
    let folder = Folder::new("record-unread");
    folder.file("small.trace", &small_trace());
    let unread = |args: &[&str]| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        command(&folder, args).stdout(Stdio::null()).stderr(writer).status().unwrap().code()
    };
    let program = [MILLPOND, "replay", "--quiet", "small.trace"];
    assert_eq!(unread(&[&["record", "-o", "my.trace", "--"], &program[..]].concat()), Some(0));
    assert_eq!(unread(&["record", "--", "sh", "-c", "exit 3"]), Some(3));
    assert_eq!(unread(&["record", "--", "./none"]), Some(127));
    assert_eq!(unread(&["replay", "small.trace"]), Some(0));
    assert_eq!(unread(&["bisect", "small.trace"]), Some(0));
    assert_eq!(unread(&["replay", "none.trace"]), Some(1));
}

/// One folder may be written in several ways.
#[test]
fn both_files_may_be_in_one_folder_however_it_is_written() {
    let folder = Folder::new("record-same");
    folder.file("small.trace", &small_trace());
    let absolute = folder.0.join("my.history");
    for history in ["./my.history", absolute.to_str().unwrap()] {
        let program = [MILLPOND, "replay", "--quiet", "small.trace"];
        let o = record(&folder, &[&["-o", "my.trace", "--history", history, "--"], &program[..]].concat());
        assert_eq!(o.status.code(), Some(0), "{history}: {}", err(&o));
        assert_eq!(names(&folder), ["my.history", "my.trace", "small.trace"]);
        std::fs::remove_file(&absolute).unwrap();
    }
}

/// What could not get its name at the end is refused before the program starts.
#[test]
fn names_that_cannot_be_had_are_refused_at_once() {
    let folder = Folder::new("record-names");
    for sub in ["has %p", "run%d/sub", "dir"] {
        std::fs::create_dir_all(folder.0.join(sub)).unwrap();
    }
    std::os::unix::fs::symlink("has %p", folder.0.join("link")).unwrap();
    let absolute = folder.0.join("run");
    let absolute = absolute.to_str().unwrap();
    for (files, wants) in [
        (&["-o", "has %p/x.trace"][..], "has %p or %d in its path"),
        (&["-o", "link/x.trace"], "has %p or %d in its path"),
        (&["-o", "run%d/sub/x.trace"], "has %p or %d in its path"),
        (&["-o", "x.trace", "--history", "has %p/x.history"], "has %p or %d in its path"),
        (&["-o", "run", "--history", "run"], "cannot be both"),
        (&["-o", "run", "--history", "dir/../run"], "cannot be both"),
        (&["-o", absolute, "--history", "run"], "cannot be both"),
        (&["-o", "dir"], "dir is a folder"),
        (&["-o", "new/"], "new/ is a folder"),
        (&["-o", "x.trace", "--history", "dir"], "dir is a folder"),
    ] {
        let o = record(&folder, &[files, &["--", "touch", "started"]].concat());
        assert_eq!(o.status.code(), Some(1), "{files:?}: {}", err(&o));
        assert!(err(&o).contains(wants), "{files:?}: {}", err(&o));
        assert_eq!(names(&folder), ["dir", "has %p", "link", "run%d"], "{files:?}");
    }
}

/// The second process would empty the file of the first, if they wrote the same one.
#[test]
fn each_process_and_device_has_a_file() {
    let folder = Folder::new("record-many");
    folder.file("small.trace", &small_trace());
    let both =
        format!("{MILLPOND} replay -q small.trace && {MILLPOND} replay -q --device cpu small.trace; exit 5");
    let o = record(&folder, &["-o", "my.trace", "--", "sh", "-c", &both]);
    assert_eq!(o.status.code(), Some(5), "{}", err(&o));
    let names = names(&folder);
    let of = |device: &str| {
        let prefix = format!("my.{device}.");
        let name = names.iter().find(|n| n.starts_with(&prefix) && n.ends_with(".trace")).unwrap();
        assert!(err(&o).contains(&format!("recorded {name}: ")), "{}", err(&o));
        std::fs::read_to_string(folder.0.join(name)).unwrap()
    };
    assert_eq!(names.len(), 3, "{names:?}");
    for device in ["host-0", "cpu-0"] {
        assert!(of(device).contains("\n# events: 600\n"), "{device}");
    }
    let o = record(&folder, &["-o", "%d.trace", "--", "sh", "-c", &both]);
    assert!(err(&o).contains("recorded cpu-0.trace: ") && err(&o).contains("recorded host-0.trace: "));
}

#[test]
fn the_end_of_the_program_is_the_end_of_the_command() {
    let folder = Folder::new("record-ends");
    for (program, code, wants) in [
        (&["true"][..], 1, "true has opened no device of Millpond"),
        (&["sh", "-c", "exit 7"], 7, "nothing was recorded"),
        (&["./no-such-program"], 127, "./no-such-program cannot be started"),
        (&["/"], 126, "/ cannot be started"),
        (&[], 2, "<PROGRAM>"),
        (&["-c", "true"], 127, "-c cannot be started"),
    ] {
        let o = record(&folder, &[&["--"], program].concat());
        assert_eq!(o.status.code(), Some(code), "{program:?}: {}", err(&o));
        assert!(err(&o).contains(wants), "{program:?}: {}", err(&o));
    }
    // A mistyped option of the command is not taken for a program; the program's own options are its own.
    let o = record(&folder, &["--ouput", "x", "true"]);
    assert!(o.status.code() == Some(2) && err(&o).contains("'--output'"), "{}", err(&o));
    assert_eq!(record(&folder, &["sh", "-c", "exit 8", "--help"]).status.code(), Some(8));
    let o = record(&folder, &["-o", "/nowhere/x.trace", "true"]);
    assert!(
        o.status.code() == Some(1) && err(&o).contains("/nowhere/x.trace cannot be written"),
        "{}",
        err(&o)
    );
    let o = record(&folder, &["sh", "-c", "kill -KILL $$"]);
    assert_eq!(o.status.signal(), Some(9), "{}", err(&o));
    assert_eq!(names(&folder), [""; 0]);
}

/// A process that is killed has its files up to shortly before that; what may be missing is told.
#[test]
fn a_killed_program_leaves_its_recording() {
    let folder = Folder::new("record-killed");
    folder.file("small.trace", &small_trace());
    let script = format!(
        "{MILLPOND} replay -q --passes 1000000 small.trace & p=$!; sleep 0.5; kill -9 $p; wait $p; exit 4"
    );
    let o = record(&folder, &["-o", "my.trace", "--history", "my.history", "--", "sh", "-c", &script]);
    assert_eq!(o.status.code(), Some(4), "{}", err(&o));
    assert_eq!(names(&folder), ["my.history", "my.trace", "small.trace"]);
    assert_eq!(err(&o).matches("its process ended without a word").count(), 2, "{}", err(&o));
}

#[test]
fn signals_reach_the_program() {
    let folder = Folder::new("record-signals");
    let script = "trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    let mut child = command(&folder, &["record", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut from = std::io::BufReader::new(child.stdout.take().unwrap());
    let line = |from: &mut std::io::BufReader<_>| {
        let mut text = String::new();
        std::io::BufRead::read_line(from, &mut text).unwrap();
        text
    };
    assert_eq!(line(&mut from), "ready\n");
    let kill = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    assert_eq!(line(&mut from), "caught\n");
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

/// A recording says what it lacks.
#[test]
fn lost_events_are_told_of_by_a_replay() {
    let folder = Folder::new("lost");
    folder.file("t.trace", "a 1 8 0\nf 1\n# events: 2\n# lost: 3 events; frees are left out\n");
    let o = command(&folder, &["replay", "t.trace"]).output().unwrap();
    assert!(o.status.success() && out(&o).contains("3 events lost"), "{}", out(&o));
}

/// A disk that is full ends the files, and the command says so, also by its status; so does whoever reads them. What is in
/// them is whole.
#[test]
fn a_disk_that_is_full_is_told() {
    let folder = Folder::new("record-full");
    folder.file("small.trace", &small_trace());
    // No file may have more than 8 blocks of 512 or 1024 bytes: the disk is full, as it were.
    let within = |files: &str, program: &str| {
        let script =
            format!("trap '' XFSZ; ulimit -f 8; exec {MILLPOND} record {files} -- sh -c '{program}'");
        Command::new("sh").args(["-c", &script]).current_dir(&folder.0).output().unwrap()
    };
    let replays = format!("{MILLPOND} replay -q --passes 20 small.trace");
    for (files, wants) in [
        ("-o my.trace", &["recorded my.trace: "][..]),
        ("-o my.trace --history my.history", &["recorded my.trace: ", "history my.history: "]),
    ] {
        let o = within(files, &replays);
        assert_eq!(o.status.code(), Some(1), "{files}: {}", err(&o));
        for file in wants {
            let text = err(&o);
            let line = text.lines().find(|l| l.contains(file)).unwrap();
            assert!(line.contains("it could not be written to its end: File too large"), "{line}");
            let ends = if file.starts_with("history") { "; its last event is " } else { "" };
            assert!(!line.contains("without a word") && line.contains(ends), "{line}");
        }
    }
    // Without the command, the files end behind what was whole last.
    let script = format!(
        "trap '' XFSZ; ulimit -f 8; export MILLPOND_RECORD=own.trace MILLPOND_HISTORY=own.history; exec {replays}"
    );
    let o = Command::new("sh").args(["-c", &script]).current_dir(&folder.0).output().unwrap();
    assert!(o.status.success(), "{}", err(&o));
    let text = std::fs::read_to_string(folder.0.join("own.trace")).unwrap();
    assert!(text.contains("\n# failed: File too large") && text.ends_with('\n'), "{text:.400}");
    let o = command(&folder, &["history", "own.history"]).output().unwrap();
    assert!(o.status.success() && !out(&o).contains("in the middle"), "{}", out(&o));
    // Not even the head.
    let script = format!("trap '' XFSZ; ulimit -f 0; exec {MILLPOND} record -o none.trace -- {replays}");
    let o = Command::new("sh").args(["-c", &script]).current_dir(&folder.0).output().unwrap();
    assert!(o.status.code() == Some(1) && err(&o).contains("it is empty: nothing could be"), "{}", err(&o));
    // The program's own status where that tells already.
    assert_eq!(within("-o my.trace --quiet", &format!("{replays}; exit 5")).status.code(), Some(5));
    let o = command(&folder, &["replay", "my.trace"]).output().unwrap();
    assert!(o.status.success(), "{}", err(&o));
    assert!(out(&o).contains("it could not be written to its end: File too large"), "{}", out(&o));
    // And where it ends: for a trace after so many events, for a history so long after its first one.
    assert!(out(&o).contains("; it ends after "), "{}", out(&o));
    for (args, ends) in [
        (&["history", "my.history"][..], "; its last event is "),
        (&["view", "my.history", "-o", "page.html"], "; its last event is "),
        (&["view", "my.trace", "-o", "page.html"], "; it ends after "),
    ] {
        let o = command(&folder, args).output().unwrap();
        let told = [out(&o), err(&o)].concat();
        assert!(o.status.success() && told.contains("could not be written to its end: File too"), "{told}");
        assert!(told.contains(ends), "{told}");
    }
}
