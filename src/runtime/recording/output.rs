//! A file that one thread writes, which may be a pipe whose reader stands still: it is waited for without a call that
//! cannot be left, so that another thread can give it up.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// How the writing of a file goes, for who waits for its end.
#[derive(Default)]
pub(crate) struct Pace {
    /// How often the file has taken something.
    writes: AtomicU64,
    /// Nobody waits any more.
    given_up: AtomicBool,
}

impl Pace {
    pub(super) fn count(&self) -> u64 {
        self.writes.load(Relaxed)
    }

    /// Nothing is written from now on, except what a call that is under way still writes.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Relaxed);
    }
}

/// A file that one thread writes and another may give up.
pub(crate) struct Output {
    file: File,
    pace: Arc<Pace>,
}

impl Output {
    /// Of a file that was opened so that no write waits.
    pub(crate) fn new(file: File, pace: Arc<Pace>) -> Output {
        Output { file, pace }
    }

    /// Writes all of it; waits for a pipe's reader until it is given up.
    pub(super) fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.pace.given_up.load(Relaxed) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match self.file.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    bytes = &bytes[n..];
                    self.pace.writes.fetch_add(1, Relaxed);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait_for_room(),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Not for long: the file may be given up meanwhile.
    fn wait_for_room(&self) {
        const LOOK_MS: i32 = 50;
        let mut wanted = libc::pollfd { fd: self.file.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one entry, which lives until the call returns.
        unsafe { libc::poll(&mut wanted, 1, LOOK_MS) };
    }

    /// Others may write the file from now on, also while forked children still have it open.
    pub(super) fn let_go(&self) {
        // SAFETY: a plain call on a descriptor that is open.
        unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
    }
}
