//! Each test in a process of its own, with a deadline: this same test program, started again with only that test.
//! What hangs is ended and told, what crashes is told, and no test finds the library as another one left it.

use std::any::type_name;
use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const INSIDE: &str = "MILLPOND_TEST_APART";

/// Runs `body`, which is a closure of the calling test, in a process of its own. It fails if that has not come to its
/// end after so many seconds.
#[track_caller]
pub fn apart<F: FnOnce()>(seconds: u64, body: F) {
    // The closure's type is named after the function that it stands in, which is the test.
    let path = type_name::<F>().trim_end_matches("::{{closure}}");
    let (_, test) = path.split_once("::").unwrap();
    if std::env::var(INSIDE).is_ok_and(|inside| inside == test) {
        return body();
    }
    let name = format!("apart-{}-{}", test.replace("::", "-"), std::process::id());
    let said = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let ended = run(test, &said, Duration::from_secs(seconds));
    let text = String::from_utf8_lossy(&std::fs::read(&said).unwrap()).into_owned();
    let _ = std::fs::remove_file(&said);
    match ended {
        Ok(0) if text.contains("test result: ok. 1 passed") => {}
        Ok(0) => panic!("no test of the name {test:?} ran:\n{text}"),
        Ok(status) => panic!("it failed, with status {status}:\n{text}"),
        Err(why) => panic!("{why}; what it said:\n{text}"),
    }
}

/// The exit status, or what else became of the process.
fn run(test: &str, said: &Path, within: Duration) -> Result<i32, String> {
    let out = File::create(said).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([test, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"])
        .stdin(Stdio::null())
        .stdout(out.try_clone().unwrap())
        .stderr(out)
        .process_group(0); // what it forks ends with it
    for (name, _) in std::env::vars_os() {
        let ours = ["MILLPOND_", "FAKECUDA_", "PYTORCH_", "CUDA_"];
        if name.to_str().is_some_and(|n| ours.iter().any(|o| n.starts_with(o))) {
            command.env_remove(name);
        }
    }
    let mut child = command.env(INSIDE, test).env("RUST_BACKTRACE", "0").spawn().unwrap();
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return match (status.code(), status.signal()) {
                (Some(code), _) => Ok(code),
                (None, signal) => Err(format!("it crashed, by signal {}", signal.unwrap_or(0))),
            };
        }
        if start.elapsed() > within {
            // The whole group, by the child's own number.
            unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
            let _ = child.wait();
            return Err(format!("it had not come to its end after {within:?}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Says where the test is, for when it does not get further.
pub fn step(what: &str) {
    println!("step: {what}");
}
