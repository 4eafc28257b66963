//! Where results go: files, or standard output.

use anyhow::{Context, Result};
use std::io::Write;
use std::path::Path;

/// Prints. A reader that has gone away (`millpond info | head -1`) is no reason to fail; a full disk is.
pub(crate) fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        said => said.context("standard output cannot be written"),
    }
}

/// Whether `-` stands for standard output.
pub(crate) fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// Writes a file, or to standard output where that is named.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    if is_stdout(path) {
        return say(text);
    }
    std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}
