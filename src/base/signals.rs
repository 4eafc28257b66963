//! Signals, which belong to the program: threads of the library receive none, and a write to a pipe that nobody reads raises
//! none. One signal of the program's choice can be handled here: its handler rings a bell, for which a thread of the
//! library waits.

use crate::base::error::{Code, Error, Result};
use crate::base::fork;
use crate::fail;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

/// Runs `spawn` with all signals blocked, which the new thread inherits: the host program's signal
/// handlers keep running on its own threads.
pub(crate) fn without_signals<T>(spawn: impl FnOnce() -> T) -> T {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut old = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `all` is valid for writes; sigfillset initialises it.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: `all` was initialised above, `old` is valid for writes.
    let rc = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr()) };
    let result = spawn();
    if rc == 0 {
        // SAFETY: `old` was filled by the call that succeeded above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), std::ptr::null_mut()) };
    }
    result
}

/// Runs `write`, which may write to a pipe that nobody reads any more. The write fails then, and raises no SIGPIPE, which
/// would end the process. What the program does on that signal is not changed.
pub(crate) fn without_pipe_signal<T>(write: impl FnOnce() -> T) -> T {
    let mut pipe = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut old = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `pipe` is valid for writes; sigemptyset initialises it.
    unsafe { libc::sigemptyset(pipe.as_mut_ptr()) };
    // SAFETY: `pipe` was initialised above.
    unsafe { libc::sigaddset(pipe.as_mut_ptr(), libc::SIGPIPE) };
    // SAFETY: `pipe` was initialised above, `old` is valid for writes.
    let blocked = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, pipe.as_ptr(), old.as_mut_ptr()) } == 0;
    let before = is_pipe_signal_pending();
    let result = write();
    if blocked {
        // A signal that the write has raised is pending on this thread. One that was pending before is the program's.
        if !before && is_pipe_signal_pending() {
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: `pipe` was initialised above; no information about the signal is asked for.
            unsafe { libc::sigtimedwait(pipe.as_ptr(), std::ptr::null_mut(), &now) };
        }
        // SAFETY: `old` was filled by the call that succeeded above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), std::ptr::null_mut()) };
    }
    result
}

/// Whether SIGPIPE is pending on this thread.
fn is_pipe_signal_pending() -> bool {
    let mut waiting = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `waiting` is valid for writes.
    let told = unsafe { libc::sigpending(waiting.as_mut_ptr()) } == 0;
    // SAFETY: the call that succeeded has filled it.
    told && unsafe { libc::sigismember(waiting.as_ptr(), libc::SIGPIPE) } == 1
}

/// A semaphore, not a file descriptor: the program may close any descriptor, and get its number for a file of its own.
struct Semaphore(UnsafeCell<MaybeUninit<libc::sem_t>>);

// SAFETY: what it holds is made for several threads; it is initialised before any of them gets to it (RINGS_IN).
unsafe impl Sync for Semaphore {}

static BELL: Semaphore = Semaphore(UnsafeCell::new(MaybeUninit::zeroed()));
/// The process in which the bell hangs, by its number of forks from 1; 0: none. A signal of a child does not ring the bell of
/// its parent.
static RINGS_IN: AtomicU64 = AtomicU64::new(0);

/// What a handler rings, and one thread waits for. It is never removed, since a handler may be running.
pub(crate) struct Bell(());

impl Bell {
    /// Makes the bell that handlers ring from now on, once in a process. `System` if the system gives no semaphore.
    pub(crate) fn hang() -> Result<Bell> {
        // SAFETY: nobody uses it yet in this process: handlers do nothing before the next line.
        if unsafe { libc::sem_init(BELL.0.get().cast(), 0, 0) } != 0 {
            let why = std::io::Error::last_os_error();
            return Err(Error::formatted(Code::System, format_args!("no semaphore to hear a signal: {why}")));
        }
        RINGS_IN.store(fork::count() + 1, Release);
        Ok(Bell(()))
    }

    /// Waits until it rings; `false` if it never will.
    pub(crate) fn wait(&self) -> bool {
        loop {
            // SAFETY: whoever has a Bell has initialised it.
            if unsafe { libc::sem_wait(BELL.0.get().cast()) } == 0 {
                return true;
            }
            if std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                return false;
            }
        }
    }
}

/// The handler. It only calls what a handler may call, and leaves `errno` as it was.
extern "C" fn ring(_signal: libc::c_int) {
    if RINGS_IN.load(Acquire) != fork::count() + 1 {
        return;
    }
    // SAFETY: a plain call.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the thread's own.
    let before = unsafe { *place };
    // SAFETY: it was initialised in this process, and never ends. POSIX lets handlers call this.
    unsafe { libc::sem_post(BELL.0.get().cast()) };
    // SAFETY: as above.
    unsafe { *place = before };
}

/// Whether [`ring`] handles the signal; if not, whether nobody does.
fn handler_of(signal: i32) -> Result<(bool, bool)> {
    let mut now = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: `now` is valid for writes.
    if unsafe { libc::sigaction(signal, std::ptr::null(), now.as_mut_ptr()) } != 0 {
        return Err(Error::formatted(Code::InvalidArgument, format_args!("there is no signal {signal}")));
    }
    // SAFETY: the call that succeeded has filled it.
    let now = unsafe { now.assume_init() }.sa_sigaction;
    Ok((now == ring as *const () as usize, now == libc::SIG_DFL || now == libc::SIG_IGN))
}

/// Makes the signal ring from now on. `Busy` if the program handles it; `InvalidArgument` for a signal whose meaning must not
/// change.
pub(crate) fn ring_on(signal: i32) -> Result<()> {
    let (ours, free) = handler_of(signal)?;
    let no = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGABRT,
        libc::SIGTRAP,
        libc::SIGPIPE,
    ];
    if no.contains(&signal) {
        fail!(
            Code::InvalidArgument,
            "signal {signal} says that something has failed, and is no signal from outside"
        );
    }
    if !ours && !free {
        fail!(Code::Busy, "the program handles signal {signal} itself");
    }
    if !ours && let Some(before) = BEFORE.get(signal as usize) {
        before.store(if ignored(signal) { libc::SIG_IGN } else { libc::SIG_DFL }, Relaxed);
    }
    set_handler(signal, ring as *const () as usize)
}

/// What each signal did before: it was ignored (SIG_IGN), or had its default action.
static BEFORE: [AtomicUsize; 65] = [const { AtomicUsize::new(libc::SIG_DFL) }; 65];

fn ignored(signal: i32) -> bool {
    let mut now = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: `now` is valid for writes.
    let known = unsafe { libc::sigaction(signal, std::ptr::null(), now.as_mut_ptr()) } == 0;
    // SAFETY: the call that succeeded has filled it.
    known && unsafe { now.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// Gives the signal back its earlier action, unless the program has set a handler since.
pub(crate) fn ring_no_more(signal: i32) {
    if handler_of(signal).is_ok_and(|h| h.0) {
        let before = BEFORE.get(signal as usize).map_or(libc::SIG_DFL, |b| b.load(Relaxed));
        let _ = set_handler(signal, before); // another handler was set before
    }
}

fn set_handler(signal: i32, handler: usize) -> Result<()> {
    // SAFETY: all zeros are a valid sigaction.
    let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
    new.sa_sigaction = handler;
    new.sa_flags = libc::SA_RESTART;
    // SAFETY: `new` is valid, and what the handler calls may be called in one.
    if unsafe { libc::sigaction(signal, &new, std::ptr::null_mut()) } != 0 {
        return Err(Error::formatted(
            Code::InvalidArgument,
            format_args!("signal {signal} cannot be handled"),
        ));
    }
    Ok(())
}
