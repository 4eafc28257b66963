//! Where results go: files, or standard output.

use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Links that lead from a path to its file, at most; the system's own bound.
const MOST_LINKS: usize = 40;

/// Prints. A reader that has gone away (`millpond info | head -1`) is no reason to fail; a full disk is.
pub(crate) fn say(text: &str) -> Result<()> {
    say_parts(&[text.as_bytes()])
}

fn put(out: &mut dyn Write, parts: &[&[u8]]) -> io::Result<()> {
    parts.iter().try_for_each(|p| out.write_all(p))?;
    out.flush()
}

fn say_parts(parts: &[&[u8]]) -> Result<()> {
    match put(&mut io::stdout().lock(), parts) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        said => said.context("standard output cannot be written"),
    }
}

/// Whether `-` stands for standard output.
pub(crate) fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// What writing to a path changes.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// Standard output that is no ordinary file.
    Stdout,
    /// An ordinary file, by whatever name: its file system, and its number there.
    File(u64, u64),
    /// A file that is to be made.
    New(PathBuf),
}

impl Place {
    fn of_file(file: &Metadata) -> Place {
        Place::File(file.dev(), file.ino())
    }

    /// `None`: what is no ordinary file, as /dev/null or a pipe, and what cannot be written.
    fn of(path: &Path) -> Option<Place> {
        if is_stdout(path) {
            let file = io::stdout().as_fd().try_clone_to_owned().and_then(|f| File::from(f).metadata());
            return Some(file.ok().filter(Metadata::is_file).map_or(Place::Stdout, |f| Place::of_file(&f)));
        }
        if let Ok(file) = fs::metadata(path) {
            return file.is_file().then(|| Place::of_file(&file));
        }
        let path = behind_links(path);
        Some(Place::New(folder_of(&path).canonicalize().ok()?.join(path.file_name()?)))
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Where the links lead that are the last part of a path, also where there is nothing.
fn behind_links(path: &Path) -> PathBuf {
    let mut at = path.to_owned();
    for _ in 0..MOST_LINKS {
        match fs::read_link(&at) {
            Ok(next) if !is_handle(&at) => at = folder_of(&at).join(next),
            _ => break,
        }
    }
    at
}

/// Whether a path names what this process has open, whatever the name of that: /dev/stdout, /proc/self/fd/1.
fn is_handle(path: &Path) -> bool {
    path.starts_with("/proc") || path.starts_with("/dev") && !path.starts_with("/dev/shm")
}

/// Refuses outputs, each with what a message calls it, that would take the place of what is read, or of each other.
pub(crate) fn check_outputs<'a>(
    inputs: impl IntoIterator<Item = &'a Path>,
    outputs: &[(&str, Option<&Path>)],
) -> Result<()> {
    let named = outputs.iter().filter_map(|&(what, path)| Some((what, path?)));
    let places: Vec<_> = named.map(|(what, path)| (what, path, Place::of(path))).collect();
    for (n, (what, _, place)) in places.iter().enumerate() {
        let before = places[..n].iter().find(|p| place.is_some() && p.2 == *place);
        if let Some((other, path, _)) = before {
            bail!("{other} and {what} cannot both be {}; name two files", path.display());
        }
    }
    for input in inputs {
        let from = fs::metadata(input).ok().filter(Metadata::is_file).map(|f| Place::of_file(&f));
        let over = from.is_some() && places.iter().any(|p| p.2 == from);
        ensure!(!over, "{} is what is read, and would be overwritten; name another file", input.display());
    }
    Ok(())
}

/// Writes a file, or to standard output where that is named.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    write_parts(path, &[text.as_bytes()])
}

/// The same, of bytes in several pieces. An ordinary file stays as it was until the new one is whole.
pub(crate) fn write_parts(path: &Path, parts: &[&[u8]]) -> Result<()> {
    if is_stdout(path) {
        return say_parts(parts);
    }
    let target = behind_links(path);
    let in_place = || File::create(path).and_then(|mut file| put(&mut file, parts));
    let written = match fs::metadata(&target) {
        _ if is_handle(&target) => in_place(),
        Ok(old) if !old.is_file() => in_place(),
        // Its other names would keep what was there before.
        Ok(old) if old.nlink() > 1 => in_place(),
        Ok(old) => replace(&target, Some(&old), parts).unwrap_or_else(in_place),
        Err(e) if e.kind() == ErrorKind::NotFound => replace(&target, None, parts).unwrap_or_else(in_place),
        Err(e) => Err(e),
    };
    written.with_context(|| format!("{} cannot be written", path.display()))
}

/// A file on its way, which goes unless it gets its name.
struct Draft(PathBuf);

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0); // it is not there where it has got its name
    }
}

fn draft_beside(target: &Path) -> io::Result<(Draft, File)> {
    let mut n = 0;
    loop {
        let path = target.with_file_name(format!(".millpond-{}-{n}.part", std::process::id()));
        match File::options().write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((Draft(path), file)),
            // Of a process of that number that was killed.
            Err(e) if e.kind() == ErrorKind::AlreadyExists && n < 100 => n += 1,
            Err(e) => return Err(e),
        }
    }
}

/// Writes a new file beside `target`, and gives it that name. `None`: the folder or the file does not allow that.
fn replace(target: &Path, old: Option<&Metadata>, parts: &[&[u8]]) -> Option<io::Result<()>> {
    // What may not be written is not replaced, either.
    if old.is_some()
        && let Err(e) = File::options().write(true).open(target)
    {
        return Some(Err(e));
    }
    let (draft, mut file) = match draft_beside(target) {
        Ok(made) => made,
        Err(e) if matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
            return None;
        }
        // A full disk, above all: what is there stays.
        Err(e) => return Some(Err(e)),
    };
    if let Some(old) = old {
        let new = file.metadata().ok()?;
        if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
            std::os::unix::fs::fchown(&file, Some(old.uid()), Some(old.gid())).ok()?;
        }
        file.set_permissions(old.permissions()).ok()?;
    }
    if let Err(e) = put(&mut file, parts) {
        return Some(Err(e));
    }
    // Not in a folder where only its owner may take the old one away, nor where that is mounted.
    fs::rename(&draft.0, target).ok().map(Ok)
}
