//! Each test of this binary runs in a process of its own: one that hangs or crashes takes no other with it, and what it
//! configures, closes or forbids ends with it. The test function starts this program again for just that test, and
//! waits for it, but not for ever.
//!
//! Tests run beside each other as the runner likes; those that measure time run alone.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::RwLock;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const CHILD: &str = "MILLPOND_CONTRACT_CHILD";

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

/// [`apart`], for a body that has to have longer.
#[track_caller]
pub fn apart_for(seconds: u64, body: impl FnOnce()) {
    run(name_of(&body), Duration::from_secs(seconds), false, &[], body);
}

/// [`apart`], with variables of the environment.
#[track_caller]
pub fn apart_with(variables: &[(&str, &str)], body: impl FnOnce()) {
    run(name_of(&body), Duration::from_secs(60), false, variables, body);
}

/// [`apart`], for a body that measures time: no other test runs meanwhile.
#[track_caller]
pub fn alone(seconds: u64, body: impl FnOnce()) {
    run(name_of(&body), Duration::from_secs(seconds), true, &[], body);
}

/// [`apart_for`], and what the process says in lines with this start is said here, too.
#[allow(dead_code, clippy::print_stdout, reason = "not every program has much to say")]
#[track_caller]
pub fn apart_told(seconds: u64, start: &str, body: impl FnOnce()) {
    let text = run(name_of(&body), Duration::from_secs(seconds), false, &[], body);
    text.lines().filter(|line| line.starts_with(start)).for_each(|line| println!("{line}"));
}

/// What the process has said; nothing where this is the process.
#[track_caller]
fn run(name: &str, limit: Duration, quiet: bool, variables: &[(&str, &str)], body: impl FnOnce()) -> String {
    if std::env::var_os(CHILD).is_some() {
        body();
        return String::new();
    }
    let (_many, _one);
    if quiet {
        _one = QUIET.write().unwrap_or_else(|e| e.into_inner());
    } else {
        _many = QUIET.read().unwrap_or_else(|e| e.into_inner());
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"]);
    for (key, _) in std::env::vars_os() {
        let mine = key.to_str().is_some_and(|k| k.starts_with("MILLPOND_") || k.starts_with("PYTORCH_"));
        if mine {
            command.env_remove(key);
        }
    }
    let child = command.env(CHILD, name).env("RUST_BACKTRACE", "0").envs(variables.iter().copied());
    let child = child.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (status, text) = wait(child, limit);
    match status {
        Some(s) if s.success() && text.contains("1 passed") => text,
        Some(s) if s.success() => panic!("no test is called {name:?}:\n{text}"),
        Some(s) => panic!("{}:\n{text}", ending(s)),
        None => panic!("still running after {} s:\n{text}", limit.as_secs()),
    }
}

fn ending(status: ExitStatus) -> String {
    status.signal().map_or_else(|| format!("the test failed ({status})"), |n| format!("ended by signal {n}"))
}

/// How the child ended, unless it took too long, and what it has said.
fn wait(mut child: Child, limit: Duration) -> (Option<ExitStatus>, String) {
    let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let read = |mut from: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = from.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        })
    };
    let (out, err) = (read(Box::new(out)), read(Box::new(err)));
    let until = Instant::now() + limit;
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if Instant::now() > until => {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let text = out.join().unwrap() + &err.join().unwrap();
    (status, text)
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
