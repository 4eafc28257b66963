//! Writes a file so that it is there whole or not at all: under a temporary name in the same folder, then renamed.

use crate::base::error::{Code, Error, Result};
use crate::base::signals::without_pipe_signal;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How many temporary names are tried.
const TRIES: u32 = 1000;

/// How many links are followed at most.
const MOST_LINKS: u32 = 64;

/// The number of files begun so far; part of their temporary names.
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// A function that takes the bytes of the file.
type To<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

/// Calls `write` with a function that takes the bytes of the file; see `Snapshot::save`.
pub(super) fn save(path: &Path, write: impl FnOnce(To<'_>) -> Result<()>) -> Result<()> {
    let failed =
        |e: io::Error| Error::new(Code::System, format!("{}: cannot be written: {e}", path.display()));
    if path.as_os_str().is_empty() {
        return Err(Error::new(Code::InvalidArgument, "the path of the snapshot is empty"));
    }
    let mut mode = None;
    let target = match fs::metadata(path) {
        // A pipe or a terminal is written to, not replaced by a file. Opening a folder fails.
        Ok(m) if !m.is_file() => {
            let mut out = OpenOptions::new().write(true).open(path).map_err(failed)?;
            return write(&mut |piece| without_pipe_signal(|| out.write_all(piece)).map_err(failed));
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
