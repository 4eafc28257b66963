//! Runs the oracle in separate processes, since a process has only one copy of the library. Each program is written to
//! a file before it runs, so that one that crashes or hangs is known, and is made smaller like any other.

use super::program::{self, Program};
use super::run::{self, KINDS, Kind};
use super::world::Lie;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const CHILD: &str = "MILLPOND_ORACLE_CHILD";
/// So many times a process starts and ends the library: what is ended keeps addresses.
const MOST_PROGRAMS: u64 = 10_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs the body in a process of its own, which has so many seconds; what it says.
#[track_caller]
pub fn apart(test: &str, seconds: u64, body: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let (ok, text) = child(test, seconds, &[]);
    assert!(ok, "{text}");
    if std::env::var_os("MILLPOND_ORACLE_COUNT").is_some() {
        eprintln!("{text}");
    }
}

/// This program once more for one test: whether it went well, and what it said.
fn child(test: &str, seconds: u64, variables: &[(&str, &str)]) -> (bool, String) {
    let log = std::env::temp_dir().join(format!("millpond-oracle-{}-{test}.log", std::process::id()));
    let to = std::fs::File::create(&log).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"]);
    for (key, _) in std::env::vars_os() {
        let key = key.to_string_lossy().into_owned();
        let ours = key.starts_with("MILLPOND_ORACLE_");
        if !ours && (key.starts_with("MILLPOND_") || key.starts_with("PYTORCH_")) {
            command.env_remove(key);
        }
    }
    command.env(CHILD, "1").env("RUST_BACKTRACE", "0").envs(variables.iter().copied());
    let out = to.try_clone().unwrap();
    let mut child = command.stdin(Stdio::null()).stdout(out).stderr(to).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(seconds);
    let ended = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if Instant::now() > until => {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    let text = std::fs::read(&log).unwrap_or_default();
    let _ = std::fs::remove_file(&log);
    let text = String::from_utf8_lossy(&text).into_owned();
    match ended {
        Some(s) if s.success() => (true, text),
        Some(s) => (false, format!("{s}\n{text}")),
        None => (false, format!("still running after {seconds} s\n{text}")),
    }
}

fn kind(name: &str) -> Kind {
    let known = KINDS.iter().find(|k| k.name == name);
    let kind = *known.unwrap_or_else(|| panic!("no kind of device is called {name:?}"));
    let tie = number("MILLPOND_ORACLE_TIE").unwrap_or(kind.tie);
    let capacity = number("MILLPOND_ORACLE_CAPACITY").map_or(kind.capacity, |mib| (mib as usize) << 20);
    Kind { tie, capacity, ..kind }
}

/// Random programs on one kind of device, until the time is over; the first that fails, made smaller, is the answer.
#[track_caller]
pub fn hunt(name: &str) {
    let seconds = number("MILLPOND_ORACLE_SECONDS").unwrap_or(4);
    let last = std::env::temp_dir().join(format!("millpond-oracle-{}-{name}.txt", std::process::id()));
    if let Some(path) = std::env::var_os("MILLPOND_ORACLE_LAST") {
        return hunt_here(kind(name), seconds, Path::new(&path));
    }
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut seed = number("MILLPOND_ORACLE_SEED").unwrap_or(1);
    let (mut ok, mut text) = (true, String::new());
    while ok && Instant::now() < until {
        let left = until.saturating_duration_since(Instant::now()).as_secs().max(1);
        let file = last.to_str().unwrap();
        let (seconds, from) = (left.to_string(), seed.to_string());
        let variables = [
            ("MILLPOND_ORACLE_LAST", file),
            ("MILLPOND_ORACLE_SECONDS", &seconds),
            ("MILLPOND_ORACLE_SEED", &from),
        ];
        (ok, text) = child(name, left + 90, &variables);
        if std::env::var_os("MILLPOND_ORACLE_COUNT").is_some() {
            text.lines().filter_map(|l| l.find("oracle: ").map(|at| &l[at..])).for_each(|l| eprintln!("{l}"));
        }
        seed += MOST_PROGRAMS;
    }
    if ok {
        let _ = std::fs::remove_file(&last);
        return;
    }
    // Made smaller by the child, unless that crashed.
    let mut program = std::fs::read_to_string(&last).unwrap_or_default();
    if !text.contains("made smaller") {
        program = smaller_apart(&program, &last);
    }
    panic!("{text}\nThe program (for tests/oracle/corpus):\n{program}");
}

/// Makes a program smaller that crashes or hangs: each try is a process of its own.
fn smaller_apart(text: &str, last: &Path) -> String {
    let Ok((name, program)) = program::from_text(text) else { return text.to_owned() };
    let until = Instant::now() + Duration::from_secs(90);
    let file = last.to_str().unwrap();
    let small = program::shrink(&program, |p| {
        save(last, kind(&name), &p.to_vec(), "crashes or hangs");
        Instant::now() < until && !child("corpus", 4, &[("MILLPOND_ORACLE_FILE", file)]).0
    });
    save(last, kind(&name), &small, "crashes or hangs");
    std::fs::read_to_string(last).unwrap_or_default()
}

/// Ends this process when no operation comes to its end for long: a program that repeats some may take its time.
fn watch() {
    std::thread::spawn(|| {
        let mut seen = u64::MAX;
        loop {
            std::thread::sleep(Duration::from_secs(12));
            let now = OPERATIONS.load(Relaxed);
            if now == seen {
                eprintln!("oracle: the program hangs");
                std::process::abort();
            }
            seen = now;
        }
    });
}

/// How many have come to their end.
pub static OPERATIONS: AtomicU64 = AtomicU64::new(0);

fn save(path: &Path, kind: Kind, program: &Program, note: &str) {
    let note: String = note.lines().map(|l| format!("# {l}\n")).collect();
    std::fs::write(path, format!("{note}device {}\n{}", kind.name, program::to_text(program))).unwrap();
}

fn hunt_here(kind: Kind, seconds: u64, last: &Path) {
    quiet();
    watch();
    let start = number("MILLPOND_ORACLE_SEED").unwrap_or(1);
    let length = number("MILLPOND_ORACLE_LENGTH").unwrap_or(150) as usize;
    let until = Instant::now() + Duration::from_secs(seconds);
    let (mut operations, mut seed) = (0, start);
    // Operations that are left out, to see what hides behind them.
    let without = std::env::var("MILLPOND_ORACLE_WITHOUT").unwrap_or_default();
    // To collect all kinds of failures there.
    let found = std::env::var_os("MILLPOND_ORACLE_FOUND").map(PathBuf::from);
    let mut known = std::collections::BTreeMap::new();
    while Instant::now() < until && seed < start + MOST_PROGRAMS {
        let mut program = super::random::random(seed, length, kind.taste());
        program.retain(|op| !without.split(',').any(|name| name == op.name()));
        save(last, kind, &program, &format!("seed {seed}: did not come to an end"));
        match run::run(kind, &program, Lie::None) {
            Ok(done) => operations += done,
            Err(first) if found.is_some() => {
                operations += first.op as u64;
                let gist = gist(&first.text);
                let many = known.entry(gist.clone()).or_insert(0u64);
                *many += 1;
                if *many == 1 {
                    let part = &program[..program.len().min(first.op + 3)];
                    let until = Instant::now() + Duration::from_secs(20);
                    let text = smaller(kind, part, &first.text, seed, last, until);
                    let to = found.as_ref().unwrap().join(format!("{}-{seed}.txt", kind.name));
                    std::fs::copy(last, to).unwrap();
                    eprintln!("oracle: found at seed {seed}: {text}");
                }
            }
            Err(first) => {
                eprintln!(
                    "oracle: {} failed after {operations} operations, at seed {seed}: {}",
                    kind.name, first.text
                );
                let until = Instant::now() + Duration::from_secs(60);
                let part = &program[..program.len().min(first.op + 3)];
                let text = smaller(kind, part, &first.text, seed, last, until);
                panic!("seed {seed}, made smaller: {text}");
            }
        }
        seed += 1;
    }
    for (gist, many) in known {
        eprintln!("oracle: {many} times: {gist}");
    }
    eprintln!("oracle: {} operations on {}, seeds {start} to {}", operations, kind.name, seed - 1);
}

/// Programs of several threads, until the time is over.
#[track_caller]
pub fn several(test: &str, kind: &str) {
    let seconds = number("MILLPOND_ORACLE_SECONDS").unwrap_or(4);
    apart(test, seconds + 60, || {
        super::threads::hunt(kind, seconds, number("MILLPOND_ORACLE_SEED").unwrap_or(1))
    });
}

/// The kind of a failure, without its numbers.
fn gist(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_digit()).take(30).collect()
}

fn smaller(
    kind: Kind,
    program: &[program::Op],
    text: &str,
    seed: u64,
    last: &Path,
    until: Instant,
) -> String {
    let want = gist(text);
    let mut said = text.to_owned();
    let small = program::shrink(program, |p| {
        if Instant::now() > until {
            return false;
        }
        save(last, kind, &p.to_vec(), &format!("seed {seed}: crashes or hangs when made smaller"));
        match run::run(kind, p, Lie::None) {
            Err(f) if gist(&f.text) == want => {
                said = f.text;
                true
            }
            _ => false,
        }
    });
    save(last, kind, &small, &format!("seed {seed}: {said}"));
    said
}

/// Panics of the library are seen where they count.
fn quiet() {
    if std::env::var_os("MILLPOND_ORACLE_TRACE").is_none() {
        std::panic::set_hook(Box::new(|info| {
            let text = info.to_string();
            if text.contains("seed ") {
                eprintln!("{text}");
            }
        }));
    }
}

/// Every program of the corpus, or the one that `MILLPOND_ORACLE_FILE` names.
#[track_caller]
pub fn replay(folder: &str) {
    if let Some(file) = std::env::var_os("MILLPOND_ORACLE_FILE").filter(|_| std::env::var_os(CHILD).is_some())
    {
        let text = std::fs::read_to_string(file).unwrap();
        let (name, program) = program::from_text(&text).unwrap();
        if let Err(f) = run::run(kind(&name), &program, Lie::None) {
            panic!("operation {}: {}", f.op, f.text);
        }
        return;
    }
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/oracle").join(folder);
    let mut files: Vec<PathBuf> = match std::env::var_os("MILLPOND_ORACLE_FILE") {
        Some(file) => vec![file.into()],
        None => {
            let all = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path());
            all.filter(|f| f.extension().is_some_and(|e| e == "txt")).collect()
        }
    };
    files.sort();
    let mut failed = String::new();
    for file in &files {
        let (ok, text) = child("corpus", 30, &[("MILLPOND_ORACLE_FILE", file.to_str().unwrap())]);
        if !ok {
            failed += &format!("{}:\n{text}\n", file.display());
        }
        if std::env::var_os("MILLPOND_ORACLE_TRACE").is_some() {
            eprintln!("{text}");
        }
    }
    assert!(failed.is_empty(), "{failed}");
}
