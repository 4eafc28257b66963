//! Threads of ours, the signals of the program that they are in, and the one that a write to a pipe raises.

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

/// Runs `write`, which may write to a pipe that nobody reads any more: that is an error of the write then, and no SIGPIPE,
/// which would end the process. Whatever the program has made of that signal stays as it is.
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
        // What the write has raised is this thread's, and waits; one that waited before is the program's.
        if !before && is_pipe_signal_pending() {
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: `pipe` was initialised above; nobody wants to know more of the signal.
            unsafe { libc::sigtimedwait(pipe.as_ptr(), std::ptr::null_mut(), &now) };
        }
        // SAFETY: `old` was filled by the call that succeeded above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), std::ptr::null_mut()) };
    }
    result
}

/// Whether it waits for this thread to take it.
fn is_pipe_signal_pending() -> bool {
    let mut waiting = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `waiting` is valid for writes.
    let told = unsafe { libc::sigpending(waiting.as_mut_ptr()) } == 0;
    // SAFETY: the call that succeeded has filled it.
    told && unsafe { libc::sigismember(waiting.as_ptr(), libc::SIGPIPE) } == 1
}
