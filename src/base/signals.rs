//! Threads of ours, and the signals of the program that they are in.

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
