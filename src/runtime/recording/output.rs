//! A file that one thread writes. Writes poll instead of blocking, so that another thread can cancel a stalled pipe.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The progress of a file, for the thread that waits for its end.
#[derive(Default)]
pub(crate) struct Pace {
    /// Writes so far that the file has accepted.
    writes: AtomicU64,
    /// The other thread has given the file up.
    given_up: AtomicBool,
}

impl Pace {
    pub(super) fn count(&self) -> u64 {
        self.writes.load(Relaxed)
    }

    /// Cancels the writing, except for a call that is already running.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Relaxed);
    }
}

/// A file that one thread writes and another one may cancel.
pub(crate) struct Output {
    file: File,
    pace: Arc<Pace>,
}

impl Output {
    /// `file` must be open in non-blocking mode.
    pub(crate) fn new(file: File, pace: Arc<Pace>) -> Output {
        Output { file, pace }
    }

    /// Writes all bytes. Waits for the reader of a pipe until the writing is cancelled.
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

    /// Returns after 50 ms at the latest, since the writing may be cancelled meanwhile.
    fn wait_for_room(&self) {
        const LOOK_MS: i32 = 50;
        let mut wanted = libc::pollfd { fd: self.file.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one entry, which lives until the call returns.
        unsafe { libc::poll(&mut wanted, 1, LOOK_MS) };
    }

    /// Releases the lock on the file, so that others can write it even while forked children still have it open.
    pub(super) fn let_go(&self) {
        // SAFETY: a plain call on a descriptor that is open.
        unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
    }
}
