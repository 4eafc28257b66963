//! A file that one thread writes. Writes poll instead of blocking, so that another thread can cancel a stalled pipe.
//!
//! A regular file that cannot be written any further, as its disk is full, ends where it was whole last, and says why in a line of
//! its head that was kept free for that ([`LastLine`]): room that the file has already is all that a full disk gives.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
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

/// A line in the head of a file which tells, in its place, why the file could not be written to its end.
pub(super) struct LastLine {
    /// Of the line in the file.
    at: u64,
    /// What it begins with.
    key: &'static str,
}

impl LastLine {
    /// Its bytes, with the end of the line.
    const LENGTH: usize = 96;

    /// Puts the line behind `head`, of which the file has `before` more bytes, with nothing but `blank` in it, which no
    /// reader takes for a key.
    pub(super) fn keep(head: &mut String, before: usize, blank: &str, key: &'static str) -> LastLine {
        let line = LastLine { at: (before + head.len()) as u64, key };
        head.push_str(&Self::filled(blank));
        line
    }

    /// Filled with spaces, or cut off.
    fn filled(text: &str) -> String {
        let mut line: String = text.chars().filter(|c| c.is_ascii() && !c.is_control()).collect();
        line.truncate(Self::LENGTH - 1);
        format!("{line:<width$}\n", width = Self::LENGTH - 1)
    }
}

/// A file that one thread writes and another one may cancel.
pub(crate) struct Output {
    file: File,
    pace: Arc<Pace>,
    /// \[B\] of it.
    length: u64,
}

impl Output {
    /// `file` must be open in non-blocking mode.
    pub(crate) fn new(file: File, pace: Arc<Pace>) -> Output {
        Output { file, pace, length: 0 }
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
                    self.length += n as u64;
                    self.pace.writes.fetch_add(1, Relaxed);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait_for_room(),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// How long the file is.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// The file cannot be written any further: it ends behind `whole` bytes, and the line tells why. What is no regular
    /// file, or was given up, stays as it is.
    pub(super) fn end_early(&mut self, whole: u64, line: &LastLine, why: &io::Error) {
        let is_given_up = why.kind() == io::ErrorKind::TimedOut;
        if !is_given_up && self.file.set_len(whole).is_ok() && whole >= line.at + LastLine::LENGTH as u64 {
            let text = LastLine::filled(&format!("{}{why}", line.key));
            let _ = self.file.write_all_at(text.as_bytes(), line.at); // who stops the tape is told
        }
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
