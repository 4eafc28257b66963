//! Writes a file so that it is there whole or not at all: under a temporary name in the same folder, then renamed.

use crate::base::error::{Code, Error, Result};
use crate::base::signals::without_pipe_signal;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How many temporary names are tried.
const TRIES: u32 = 1000;

/// How many links are followed at most.
const MOST_LINKS: u32 = 64;

/// A pipe that takes nothing for so long is given up, as that of a history is.
const STANDSTILL: Duration = Duration::from_secs(5);

/// The number of files begun so far; part of their temporary names.
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// A function that takes the bytes of the file.
type To<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

/// Calls `write` with a function that takes the bytes of the file; see `Snapshot::save`.
pub(super) fn save(path: &Path, write: impl FnOnce(To<'_>) -> Result<()>) -> Result<()> {
    let failed = |e: io::Error| {
        Error::formatted(Code::System, format_args!("{}: cannot be written: {e}", path.display()))
    };
    if path.as_os_str().is_empty() {
        return Err(Error::new(Code::InvalidArgument, "the path of the snapshot is empty"));
    }
    let mut mode = None;
    let target = match fs::metadata(path) {
        // A pipe or a terminal is written to, not replaced by a file. Opening a folder fails.
        Ok(m) if !m.is_file() => {
            // A pipe that nobody reads is an error, not a wait.
            let mut options = OpenOptions::new();
            let mut out = options.write(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
            return write(&mut |piece| without_pipe_signal(|| write_to(&mut out, piece)).map_err(failed));
        }
        // Replaces the file that a link leads to, not the link.
        Ok(m) => {
            mode = Some(m.permissions());
            fs::canonicalize(path).map_err(failed)?
        }
        Err(e) if e.kind() == ErrorKind::NotFound => end_of_links(path),
        Err(e) => return Err(failed(e)),
    };
    let (mut out, beside) = Beside::begin(&target).map_err(failed)?;
    if let Some(mode) = mode {
        out.set_permissions(mode).map_err(failed)?; // who might not read the older file does not read this one
    }
    write(&mut |piece| out.write_all(piece).map_err(failed))?;
    // Some file systems report a full disk only now.
    out.sync_all().map_err(failed)?;
    drop(out);
    beside.become_(&target).map_err(failed)
}

/// Writes all of it to a pipe or a terminal that was opened so that no write waits, as long as it takes something now and
/// then.
fn write_to(out: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    let mut last = Instant::now();
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => {
                bytes = &bytes[n..];
                last = Instant::now();
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                let left = STANDSTILL.saturating_sub(last.elapsed());
                if left.is_zero() {
                    return Err(io::Error::new(ErrorKind::TimedOut, "its reader stands still"));
                }
                let mut wanted = libc::pollfd { fd: out.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
                // SAFETY: one entry, which lives until the call returns.
                unsafe { libc::poll(&mut wanted, 1, left.as_millis() as i32 + 1) };
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// The file that a link will lead to when there is one; `path` itself where that is no link. The system has
/// followed them, so they have an end, unless somebody changes them just now.
fn end_of_links(path: &Path) -> PathBuf {
    let mut at = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Ok(to) = fs::read_link(&at) else { break };
        at = at.parent().map_or(to.clone(), |folder| folder.join(&to));
    }
    at
}

/// A temporary file, removed when dropped unless it was renamed.
struct Beside(Option<PathBuf>);

impl Beside {
    fn begin(target: &Path) -> io::Result<(File, Beside)> {
        let mut last = io::Error::from(ErrorKind::AlreadyExists);
        for _ in 0..TRIES {
            let number = BEGUN.fetch_add(1, Relaxed);
            let path = target.with_file_name(format!(".millpond-{}-{number}.part", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok((file, Beside(Some(path)))),
                Err(e) if e.kind() == ErrorKind::AlreadyExists => last = e,
                Err(e) => return Err(e),
            }
        }
        Err(last)
    }

    fn become_(mut self, target: &Path) -> io::Result<()> {
        if let Some(path) = &self.0 {
            fs::rename(path, target)?;
        }
        self.0 = None;
        Ok(())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // Ignored: the error that led here is the one to report.
            let _ = fs::remove_file(path);
        }
    }
}
