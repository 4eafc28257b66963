//! Where results go: files, or standard output.

use anyhow::{Context, Result};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Prints. A reader that has gone away (`millpond info | head -1`) is no reason to fail; a full disk is.
pub(crate) fn say(text: &str) -> Result<()> {
    say_parts(&[text.as_bytes()])
}

fn put(out: &mut dyn Write, parts: &[&[u8]]) -> std::io::Result<()> {
    parts.iter().try_for_each(|p| out.write_all(p))?;
    out.flush()
}

fn say_parts(parts: &[&[u8]]) -> Result<()> {
    match put(&mut std::io::stdout().lock(), parts) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        said => said.context("standard output cannot be written"),
    }
}

/// Whether `-` stands for standard output.
pub(crate) fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// The file, without links, that writing to a path replaces or makes. `None`: standard output, what is no ordinary file, as
/// /dev/null, and what cannot be written.
pub(crate) fn place(path: &Path) -> Option<PathBuf> {
    if is_stdout(path) {
        return None;
    }
    if let Ok(found) = path.canonicalize() {
        return found.is_file().then_some(found);
    }
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some(parent.canonicalize().ok()?.join(path.file_name()?))
}

/// Writes a file, or to standard output where that is named.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    write_parts(path, &[text.as_bytes()])
}

/// The same, of bytes in several pieces.
pub(crate) fn write_parts(path: &Path, parts: &[&[u8]]) -> Result<()> {
    if is_stdout(path) {
        return say_parts(parts);
    }
    let written = std::fs::File::create(path).and_then(|mut file| put(&mut file, parts));
    written.with_context(|| format!("{} cannot be written", path.display()))
}
