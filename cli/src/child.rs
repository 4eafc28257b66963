//! A program that this one starts, waits for, and stands in for: it gets the signals that are sent here, and its end is
//! told as this program's own.

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, kill, pthread_sigmask, raise, signal};
use nix::sys::signalfd::SignalFd;
use nix::unistd::Pid;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus};

/// What is handed on to the program.
const HANDED_ON: [Signal; 6] =
    [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2];
/// The code of a signal that the kernel sent itself. From a terminal it goes to all of the foreground's processes, so the
/// program has it already.
const FROM_KERNEL: i32 = 0x80;

/// Runs a program to its end. The outer error is this program's; the inner one says that it could not be started.
/// Signals stay blocked afterwards, so that nothing is left half done; [`end_like`] is what comes then.
pub(crate) fn run(mut command: Command) -> Result<io::Result<ExitStatus>> {
    let mut signals = SigSet::from_iter(HANDED_ON);
    signals.add(Signal::SIGCHLD);
    let mut before = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&signals), Some(&mut before)).context("signals")?;
    // Who started this program may have chosen not to hear of its children's ends; then nobody would.
    // SAFETY: sets the default; no handler of ours is involved.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }.context("signals")?;
    let inbox = SignalFd::new(&signals).context("signals")?;
    // SAFETY: between fork and exec only `pthread_sigmask` is called, which POSIX allows there; nothing is allocated.
    unsafe { command.pre_exec(move || Ok(before.thread_set_mask()?)) };
    match command.spawn() {
        Ok(child) => wait(child, &inbox).map(Ok),
        Err(e) => Ok(Err(e)),
    }
}

/// Hands on signals until the program has ended.
fn wait(mut child: Child, inbox: &SignalFd) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait().context("the program cannot be waited for")? {
            return Ok(status);
        }
        let got = match inbox.read_signal() {
            Ok(Some(got)) => got,
            Ok(None) | Err(Errno::EINTR) => continue,
            Err(e) => return Err(e).context("signals"),
        };
        let sent = Signal::try_from(got.ssi_signo as i32).ok().filter(|s| *s != Signal::SIGCHLD);
        if let Some(sent) = sent.filter(|_| got.ssi_code != FROM_KERNEL) {
            // The program is not waited for yet, so its number is still its own. It may refuse.
            let _ = kill(Pid::from_raw(child.id() as i32), sent);
        }
    }
}

/// Ends this program as that one has ended: by the same signal, or with its status, which is returned.
pub(crate) fn end_like(status: ExitStatus) -> ExitCode {
    if let Some(number) = status.signal() {
        if let Ok(sent) = Signal::try_from(number) {
            // One core file is enough.
            let hard = getrlimit(Resource::RLIMIT_CORE).map_or(0, |l| l.1);
            let _ = setrlimit(Resource::RLIMIT_CORE, 0, hard);
            let mut only = SigSet::empty();
            only.add(sent);
            // SAFETY: sets the default; Rust's runtime ignores SIGPIPE.
            let _ = unsafe { signal(sent, SigHandler::SigDfl) };
            let _ = raise(sent);
            let _ = only.thread_unblock();
        }
        return ExitCode::from(128u8.saturating_add(number as u8));
    }
    ExitCode::from(status.code().unwrap_or(1) as u8)
}
