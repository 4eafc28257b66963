//! Tests in processes of their own: the same test program is started again for just one test, with a deadline. A test
//! that hangs or crashes affects no other, none finds the library in the state that another one left, and whatever a
//! test configures, closes or forbids ends with its process.
//!
//! Tests run in parallel as the runner decides; those that measure time run alone.

#![allow(dead_code, unreachable_pub, reason = "each program uses a part")]

use std::fs::File;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::RwLock;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// In the process of one test: its name.
const INSIDE: &str = "MILLPOND_TEST_APART";
/// Tests that repeat something do a part of it (`make check`).
const QUICK: &str = "MILLPOND_TEST_QUICK";

/// Who measures time has the machine for itself, as far as this program is concerned.
static QUIET: RwLock<()> = RwLock::new(());

/// The test that a closure stands in, as the runner names it: `module::function`.
fn name_of<F>(_: &F) -> &'static str {
    let full = std::any::type_name::<F>();
    let full = full.split_once("::").map_or(full, |(_, rest)| rest);
    full.split("::{{closure}}").next().unwrap_or(full)
}

/// Runs the body in a process of its own, which has a minute.
#[track_caller]
pub fn apart(body: impl FnOnce()) {
    run(name_of(&body), Duration::from_secs(60), false, &[], body);
}

/// [`apart`], for a body that has to have longer, or shall be ended sooner.
#[track_caller]
pub fn apart_for(seconds: u64, body: impl FnOnce()) {
    run(name_of(&body), Duration::from_secs(seconds), false, &[], body);
}

/// [`apart`], with variables of the environment.
#[track_caller]
pub fn apart_with(variables: &[(&str, &str)], body: impl FnOnce()) {
    run(name_of(&body), Duration::from_secs(60), false, variables, body);
}

/// [`apart`], for a body that measures time: no other test of this mechanism runs meanwhile.
#[track_caller]
pub fn alone(seconds: u64, body: impl FnOnce()) {
    run(name_of(&body), Duration::from_secs(seconds), true, &[], body);
}

/// [`apart_for`], and what the process says in lines with this start is said here, too.
#[allow(clippy::print_stdout, reason = "this is what it is for")]
#[track_caller]
pub fn apart_told(seconds: u64, start: &str, body: impl FnOnce()) {
    let text = run(name_of(&body), Duration::from_secs(seconds), false, &[], body);
    text.lines().filter(|line| line.starts_with(start)).for_each(|line| println!("{line}"));
}

/// So many rounds of a test that repeats something, or an eighth of them where a part will do.
pub fn rounds(all: usize) -> usize {
    if std::env::var_os(QUICK).is_some() { all / 8 } else { all }
}

/// So long for a test that repeats something, or an eighth of it where a part will do.
pub fn lasting(all: Duration) -> Duration {
    if std::env::var_os(QUICK).is_some() { all / 8 } else { all }
}

/// This program once more, for the test of that name (`module::function`) and no other, with nothing in its
/// environment that makes the library or the fake driver differ.
pub fn program(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"]);
    for (name, _) in std::env::vars_os() {
        let ours = ["MILLPOND_", "FAKECUDA_", "PYTORCH_", "CUDA_"];
        if name.to_str().is_some_and(|n| ours.iter().any(|o| n.starts_with(o))) {
            command.env_remove(name);
        }
    }
    command.env("RUST_BACKTRACE", "0");
    command
}

/// What the process has said; nothing where this is the process.
#[track_caller]
fn run(name: &str, limit: Duration, quiet: bool, variables: &[(&str, &str)], body: impl FnOnce()) -> String {
    if std::env::var(INSIDE).is_ok_and(|inside| inside == name) {
        body();
        return String::new();
    }
    let (_many, _one);
    if quiet {
        _one = QUIET.write().unwrap_or_else(|e| e.into_inner());
    } else {
        _many = QUIET.read().unwrap_or_else(|e| e.into_inner());
    }
    let mut command = program(name);
    command.env(INSIDE, name).envs(variables.iter().copied());
    if let Some(quick) = std::env::var_os(QUICK) {
        command.env(QUICK, quick);
    }
    match ended(name, command, limit) {
        (Some(s), text) if s.success() && text.contains("test result: ok. 1 passed") => text,
        (Some(s), text) if s.success() => panic!("no test is called {name:?}:\n{text}"),
        (Some(s), text) => panic!("{}:\n{text}", ending(s)),
        (None, text) => panic!("still running after {} s:\n{text}", limit.as_secs()),
    }
}

fn ending(status: ExitStatus) -> String {
    status.signal().map_or_else(|| format!("the test failed ({status})"), |n| format!("ended by signal {n}"))
}

/// How the process ended, unless it took too long, and what it has said.
fn ended(name: &str, mut command: Command, limit: Duration) -> (Option<ExitStatus>, String) {
    // A file, as a pipe would stay open for as long as anything that the test forks.
    let file = format!("apart-{}-{}", name.replace("::", "-"), std::process::id());
    let said = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
    let out = File::create(&said).unwrap();
    command.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out);
    command.process_group(0); // what it forks ends with it
    end_with_this_thread(&mut command);
    let begun = Instant::now();
    // Not waited for by its handle: that would not tell what it has used.
    let child = command.spawn().unwrap().id() as i32;
    let (status, used) = loop {
        match reaped(child, libc::WNOHANG) {
            Some((status, used)) => break (Some(status), used),
            None if begun.elapsed() > limit => {
                // The whole group, by the child's own number. SAFETY: only a number is given; the child has not been
                // waited for, so that the number is still its own.
                unsafe { libc::kill(-child, libc::SIGKILL) };
                break (None, reaped(child, 0).unwrap().1);
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    note_time(name, begun.elapsed(), used);
    let text = String::from_utf8_lossy(&std::fs::read(&said).unwrap()).into_owned();
    let _ = std::fs::remove_file(&said);
    (status, text)
}

/// How a child has ended, and the processor time that it has used; `None` while it runs.
fn reaped(child: i32, how: i32) -> Option<(ExitStatus, Duration)> {
    let (mut status, mut used) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: a child of ours that nobody else waits for; both places are ours and are written by the call.
    let ended = unsafe { libc::wait4(child, &mut status, how, used.as_mut_ptr()) };
    assert!(ended >= 0, "wait4: {}", std::io::Error::last_os_error());
    // SAFETY: written by the call, and zeros are a value, too.
    let used = unsafe { used.assume_init() };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    (ended == child).then(|| (ExitStatus::from_raw(status), time(used.ru_utime) + time(used.ru_stime)))
}

/// Writes what a test took and what it used of the processor, in seconds, to the file that `MILLPOND_TEST_TIMES` names.
fn note_time(name: &str, took: Duration, used: Duration) {
    let Some(path) = std::env::var_os("MILLPOND_TEST_TIMES") else { return };
    let mut file = File::options().create(true).append(true).open(path).unwrap();
    writeln!(file, "{:7.2} {:7.2}  {name}", took.as_secs_f64(), used.as_secs_f64()).unwrap();
}

/// The process ends when this program is ended, which a terminal's interrupt does not do for a group of its own.
#[cfg(target_os = "linux")]
fn end_with_this_thread(command: &mut Command) {
    // SAFETY: between fork and exec only one call of the system is made, with numbers.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        })
    };
}

#[cfg(not(target_os = "linux"))]
fn end_with_this_thread(_: &mut Command) {}

/// Says where the test is, for when it does not get further.
#[allow(clippy::print_stdout, reason = "the process of the test says it to the one that waits")]
pub fn step(what: &str) {
    println!("step: {what}");
}

/// Runs the body on a thread of its own. Fails when it is not done in time, and leaves the thread where it is then.
#[track_caller]
pub fn within<T: Send + 'static>(seconds: u64, what: &str, body: impl FnOnce() -> T + Send + 'static) -> T {
    match in_time(seconds, body) {
        Some(answer) => answer,
        None => panic!("{what}: not done after {seconds} s"),
    }
}

/// [`within`], where being late is an answer, too.
pub fn in_time<T: Send + 'static>(seconds: u64, body: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (tell, told) = channel();
    let worker = std::thread::spawn(move || tell.send(body()));
    match told.recv_timeout(Duration::from_secs(seconds)) {
        Ok(answer) => Some(answer),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => match worker.join() {
            Err(payload) => std::panic::resume_unwind(payload),
            Ok(_) => None,
        },
    }
}

/// Looks again and again until the answer is yes; no for ever is a failure.
#[track_caller]
pub fn until(what: &str, mut yes: impl FnMut() -> bool) {
    assert!(soon(Duration::from_secs(10), &mut yes), "waited in vain: {what}");
}

/// Whether the answer is yes before so long has passed.
pub fn soon(limit: Duration, mut yes: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !yes() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}
