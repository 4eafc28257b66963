//! `millpond record`: the files of a program that was run with MILLPOND_RECORD and MILLPOND_HISTORY.
//!
//! The library empties a file that an earlier process has written. So the files of all processes and devices are written
//! apart, into a folder beside their later place, and get their names when the program has ended.

use crate::trace::Trace;
use anyhow::{Context, Result};
use millpond::runtime::HistoryFile;
use nix::fcntl::{Flock, FlockArg};
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// What the library writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Trace,
    History,
}

impl Kind {
    fn extension(self) -> &'static str {
        match self {
            Kind::Trace => "trace",
            Kind::History => "history",
        }
    }
}

/// The folder in which a program's files are written.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Makes it, beside the file that is wanted.
    pub(crate) fn beside(file: &Path) -> Result<Folder> {
        let parent = file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let place = || format!("{} cannot be written", file.display());
        // The program may go to another folder before it opens a device.
        let path = fs::canonicalize(parent).with_context(place)?;
        let path = path.join(format!(".millpond-record-{}", std::process::id()));
        fs::create_dir(&path).with_context(place)?;
        Ok(Folder(path))
    }

    /// What the variable of the environment is set to.
    pub(crate) fn pattern(&self, kind: Kind) -> PathBuf {
        self.0.join(format!("%p.%d.{}", kind.extension()))
    }

    /// The files that are there, by process and device.
    fn files(&self, kind: Kind) -> Result<Vec<Part>> {
        let mut parts = Vec::new();
        for entry in fs::read_dir(&self.0).context("the recorded files cannot be found")? {
            let path = entry?.path();
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            let stem = name.strip_suffix(kind.extension()).and_then(|s| s.strip_suffix('.'));
            let known = stem.and_then(|s| s.split_once('.'));
            if let Some((process, device)) = known.and_then(|(p, d)| Some((p.parse().ok()?, d.to_string()))) {
                parts.push(Part { path, process, device });
            }
        }
        parts.sort_by(|a, b| (a.process, &a.device).cmp(&(b.process, &b.device)));
        Ok(parts)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left could not be renamed, and stays.
        let _ = fs::remove_dir(&self.0);
    }
}

/// A file of one process and device.
struct Part {
    path: PathBuf,
    process: u32,
    device: String, // as in "host-0"
}

/// What became of the recordings of one kind.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// The files, with what is in each.
    pub(crate) files: Vec<(PathBuf, String)>,
    /// Devices that were opened, and of which nothing was asked.
    pub(crate) unused: Vec<String>,
}

/// `file` for one of several recordings.
fn name_for(file: &Path, part: &Part, several: bool) -> PathBuf {
    let text = file.as_os_str().to_string_lossy();
    if text.contains("%p") || text.contains("%d") {
        return text.replace("%p", &part.process.to_string()).replace("%d", &part.device).into();
    }
    if !several {
        return file.to_owned();
    }
    let mut name: OsString = file.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".{}.{}", part.device, part.process));
    if let Some(extension) = file.extension() {
        name.push(".");
        name.push(extension);
    }
    file.with_file_name(name)
}

/// Whether a process that lives on still writes it: the library holds a lock on its files.
fn is_written(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| Flock::lock(file, FlockArg::LockSharedNonblock).is_err())
}

/// What is in a file; `None`: nothing.
fn describe(part: &Part, kind: Kind) -> Option<String> {
    let device = part.device.rsplit_once('-').map_or(part.device.clone(), |(t, n)| format!("{t}:{n}"));
    let of = format!("{device} of process {}", part.process);
    let mut said = match kind {
        Kind::Trace => match Trace::read(&part.path) {
            Ok(t) => {
                let lost = if t.lost > 0 { format!("; {} events were lost", t.lost) } else { String::new() };
                let (events, peak) =
                    (crate::units::count(t.events.len() as u64), crate::units::bytes(t.peak_live_bytes));
                format!("{of} ({}), {events} events, peak {peak}{lost}", t.name)
            }
            Err(_) if !has_events(&part.path) => return None,
            Err(e) => format!("{of}; it is damaged: {:#}", e.root_cause()),
        },
        Kind::History => match fs::read(&part.path).ok().map(|b| HistoryFile::parse(&b)) {
            Some(Ok(h)) if h.events.is_empty() && !h.cut_off => return None,
            Some(Ok(h)) => {
                let events = crate::units::count(h.events.len() as u64);
                let dropped =
                    if h.dropped > 0 { format!("; {} more were dropped", h.dropped) } else { String::new() };
                let cut = if h.cut_off { "; it ends in the middle" } else { "" };
                format!("{of}, {events} events{dropped}{cut}")
            }
            Some(Err(e)) => format!("{of}; it is damaged: {e}"),
            None => format!("{of}; it cannot be read"),
        },
    };
    if is_written(&part.path) {
        said += "; it is still being written";
    }
    Some(said)
}

/// Whether a trace has a line that is not a comment.
fn has_events(path: &Path) -> bool {
    fs::read(path).is_ok_and(|b| b.split(|&c| c == b'\n').any(|l| !l.is_empty() && l[0] != b'#'))
}

/// Gives the recordings their names: `file`, where there is one; else the device and the process are added. Where `file`
/// has `%p` or `%d`, they stand for those.
pub(crate) fn keep(folder: &Folder, kind: Kind, file: &Path) -> Result<Kept> {
    let mut kept = Kept::default();
    let mut full = Vec::new();
    for part in folder.files(kind)? {
        match describe(&part, kind) {
            Some(said) => full.push((part, said)),
            None if is_written(&part.path) => full.push((part, "it is still being written".into())),
            None => {
                kept.unused.push(format!("{} in process {}", part.device, part.process));
                let _ = fs::remove_file(&part.path);
            }
        }
    }
    let several = full.len() > 1;
    for (part, said) in full {
        let mut name = name_for(file, &part, several);
        // As with %p alone, of a process with two devices.
        if kept.files.iter().any(|f| f.0 == name) {
            name.as_mut_os_string().push(format!(".{}.{}", part.device, part.process));
        }
        fs::rename(&part.path, &name)
            .with_context(|| format!("{} cannot become {}", part.path.display(), name.display()))?;
        kept.files.push((name, said));
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_files_have_names_of_their_own() {
        let part = Part { path: PathBuf::new(), process: 7, device: "host-1".into() };
        let name = |file: &str, several| name_for(Path::new(file), &part, several).display().to_string();
        assert_eq!(name("a/my.trace", false), "a/my.trace");
        assert_eq!(name("a/my.trace", true), "a/my.host-1.7.trace");
        assert_eq!(name("my", true), "my.host-1.7");
        assert_eq!(name("%p-%d.trace", false), "7-host-1.trace");
        assert_eq!(name("%p-%d.trace", true), "7-host-1.trace");
    }
}
