//! `millpond record`: the files of a program that was run with MILLPOND_RECORD and MILLPOND_HISTORY.
//!
//! The library empties a file that an earlier process has written. So the files of all processes and devices are written
//! apart, into a folder beside their later place, and get their names when the program has ended.

use crate::history::not_to_its_end;
use crate::trace::Trace;
use crate::units::{bytes, counted};
use anyhow::{Context, Result, bail, ensure};
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

/// The folder of a file as it is written, `.` where it has none.
fn parent_of(file: &Path) -> &Path {
    file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Where a file is or will be, without links and `..` in its folder.
fn place_of(file: &Path) -> Result<PathBuf> {
    let is_folder = file.is_dir() || file.as_os_str().as_encoded_bytes().ends_with(b"/");
    ensure!(!is_folder, "{} is a folder; name a file", file.display());
    let Some(name) = file.file_name() else { bail!("`{}` names no file", file.display()) };
    let folder = fs::canonicalize(parent_of(file));
    Ok(folder.with_context(|| format!("{} cannot be written", file.display()))?.join(name))
}

/// Refuses names that the files of a program could not get when it has ended, the program's own, and one name for both
/// kinds.
pub(crate) fn check_names(trace: &Path, history: Option<&Path>, program: &Path) -> Result<()> {
    let place = place_of(trace)?;
    // A name without a folder is that of a program in PATH.
    let program = program.components().nth(1).and_then(|_| program.canonicalize().ok());
    for file in [Some(trace), history].into_iter().flatten() {
        let found = file.canonicalize().ok();
        ensure!(
            found.is_none() || found != program,
            "{} is the program, and would be overwritten; name another file",
            file.display()
        );
        // A recording gets its name as a file that takes the place of what is there.
        let special = |m: fs::Metadata| !m.is_file() && !m.is_symlink() && !m.is_dir();
        ensure!(
            !fs::symlink_metadata(file).is_ok_and(special),
            "{} is no ordinary file; name one that can be replaced",
            file.display()
        );
    }
    if let Some(history) = history {
        ensure!(
            place_of(history)? != place,
            "{} cannot be both the recording and the history; name two files",
            history.display()
        );
    }
    Ok(())
}

/// The folder in which a program's files of one kind are written.
pub(crate) struct Folder {
    path: PathBuf,
    kind: Kind,
}

impl Folder {
    /// Makes it, beside the file that is wanted.
    pub(crate) fn beside(file: &Path, kind: Kind) -> Result<Folder> {
        let place = || format!("{} cannot be written", file.display());
        // The program may go to another folder before it opens a device.
        let parent = fs::canonicalize(parent_of(file)).with_context(place)?;
        // The library replaces these wherever they are in a path, and nothing in a path that is not UTF-8.
        for folder in [parent_of(file), &parent] {
            match folder.to_str() {
                Some(name) if name.contains("%p") || name.contains("%d") => bail!(
                    "{}: its folder {name} has %p or %d in its path, which stand for the process and the device; \
                     choose a file in another folder",
                    place()
                ),
                Some(_) => {}
                None => bail!("{}: the path of its folder {} is not UTF-8", place(), folder.display()),
            }
        }
        let path = parent.join(format!(".millpond-{}-{}", kind.extension(), std::process::id()));
        fs::create_dir(&path).with_context(place)?;
        Ok(Folder { path, kind })
    }

    /// What the variable of the environment is set to.
    pub(crate) fn pattern(&self) -> PathBuf {
        self.path.join(format!("%p.%d.{}", self.kind.extension()))
    }

    /// The files that are there, by process and device.
    fn files(&self) -> Result<Vec<Part>> {
        let mut parts = Vec::new();
        for entry in fs::read_dir(&self.path).context("the recorded files cannot be found")? {
            let path = entry?.path();
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            if let Some((process, device)) = parts_of(name, self.kind) {
                parts.push(Part { process, device: device.to_string(), path });
            }
        }
        parts.sort_by(|a, b| (a.process, &a.device, &a.path).cmp(&(b.process, &b.device, &b.path)));
        Ok(parts)
    }

    /// Removes the folder. `Some`: where what could not be named is left.
    pub(crate) fn remove(self) -> Option<PathBuf> {
        fs::remove_dir(&self.path).is_err().then(|| self.path.clone())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path); // where it is not empty, `remove` has told
    }
}

/// Process and device of a file of that name. A second copy of the library in one process (a plugin's, for instance)
/// finds the file of the first in use, and adds both once more.
fn parts_of(name: &str, kind: Kind) -> Option<(u32, &str)> {
    let (number, rest) = name.split_once('.')?;
    let process = number.parse().ok()?;
    let mark = format!(".{}", kind.extension());
    if let Some(device) = rest.strip_suffix(&mark) {
        return Some((process, device));
    }
    let (device, again) = rest.strip_suffix(&format!(".{number}"))?.rsplit_once(&format!("{mark}."))?;
    (device == again).then_some((process, device))
}

/// A file of one process and device.
struct Part {
    path: PathBuf,
    process: u32,
    device: String, // as in "host-0"
}

impl Part {
    /// As in "host:0 of process 17".
    fn of(&self) -> String {
        let device = self.device.rsplit_once('-').map_or(self.device.clone(), |(t, n)| format!("{t}:{n}"));
        format!("{device} of process {}", self.process)
    }
}

/// What became of the recordings of one kind.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// The files, with what is in each.
    pub(crate) files: Vec<(PathBuf, String)>,
    /// Devices that were opened, and of which nothing was asked.
    pub(crate) unused: Vec<String>,
    /// A file could not be written to its end.
    pub(crate) failed: bool,
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

/// What a process lacks that was killed, or has left without its exit functions.
const NO_EXIT: &str = "its process ended without a word, so that some of its last 50 ms may be missing";

/// What a trace lacks whose disk is full.
fn failed(why: &str) -> String {
    format!("it could not be written to its end: {why}")
}

/// Of a file without its head, which is written when the device is opened.
const EMPTY: &str =
    "it is empty: nothing could be written, as where the disk is full, or its process ended at once";

/// A file, and what is in it.
enum Content {
    Nothing,
    Something(Vec<String>), // for a sentence, with semicolons between
    Failed(Vec<String>),    // the same of a file that could not be written to its end
}

/// Takes away the last line of a process that was killed while it wrote that: "f 12" may have been meant as "f 123".
fn drop_half_line(path: &Path) -> std::io::Result<()> {
    let bytes = fs::read(path)?;
    let whole = bytes.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
    if whole == bytes.len() { Ok(()) } else { File::options().write(true).open(path)?.set_len(whole as u64) }
}

fn trace_content(path: &Path) -> Content {
    let trace = match Trace::read(path) {
        Ok(t) => t,
        Err(_) if !has_events(path) => {
            let text = fs::read_to_string(path).unwrap_or_default();
            let said = |key| text.lines().find_map(|l| l.strip_prefix(key));
            return match said("# failed: ") {
                Some(why) => Content::Failed(vec![failed(why.trim_end())]),
                None if text.is_empty() => Content::Failed(vec![EMPTY.into()]),
                None if said("# exit:").or(said("# events:")).is_some() => Content::Nothing,
                None => Content::Something(vec![NO_EXIT.into()]),
            };
        }
        Err(e) => return Content::Something(vec![format!("it is damaged: {:#}", e.root_cause())]),
    };
    let (events, peak) = (counted(trace.events.len() as u64, "event"), bytes(trace.peak_live_bytes));
    let mut said = vec![format!("{}: {events}, peak {peak}", trace.name)];
    said.extend((trace.lost > 0).then(|| format!("{} lost", counted(trace.lost, "event"))));
    if let Some(why) = &trace.failed {
        said.push(failed(why));
        return Content::Failed(said);
    }
    said.extend((!trace.is_ended).then(|| NO_EXIT.into()));
    Content::Something(said)
}

fn history_content(path: &Path) -> Content {
    let read = fs::read(path).map_err(anyhow::Error::from);
    let history = match read.and_then(|b| Ok(HistoryFile::parse(&b)?)) {
        Ok(h) => h,
        Err(_) if fs::metadata(path).is_ok_and(|m| m.len() == 0) => {
            return Content::Failed(vec![EMPTY.into()]);
        }
        Err(e) => return Content::Something(vec![format!("it is damaged: {e:#}")]),
    };
    let ended = !history.modules.is_empty();
    if history.events.is_empty() && ended {
        return Content::Nothing;
    }
    let mut said = vec![counted(history.events.len() as u64, "event")];
    said.extend((history.dropped > 0).then(|| format!("{} more dropped", history.dropped)));
    if let Some((_, why)) = history.about.iter().find(|a| a.0 == "failed") {
        said.push(not_to_its_end(&history, why));
        return Content::Failed(said);
    }
    said.extend((!ended).then(|| NO_EXIT.into()));
    Content::Something(said)
}

/// Whether a trace has a line that is not a comment.
fn has_events(path: &Path) -> bool {
    fs::read(path).is_ok_and(|b| b.split(|&c| c == b'\n').any(|l| !l.is_empty() && l[0] != b'#'))
}

/// Gives the recordings their names: `file`, where there is one; else the device and the process are added. Where `file`
/// has `%p` or `%d`, they stand for those.
pub(crate) fn keep(folder: &Folder, file: &Path) -> Result<Kept> {
    let mut kept = Kept::default();
    let mut full = Vec::new();
    for part in folder.files()? {
        let written = is_written(&part.path).then(|| "it is still being written".to_string());
        if folder.kind == Kind::Trace && written.is_none() {
            drop_half_line(&part.path).context("the recording's last line")?;
        }
        let content = match folder.kind {
            Kind::Trace => trace_content(&part.path),
            Kind::History => history_content(&part.path),
        };
        match (content, written) {
            (Content::Failed(said), _) => {
                kept.failed = true;
                full.push((part, said));
            }
            (Content::Something(said), None) => full.push((part, said)),
            // Whoever writes it has not ended, with or without a word.
            (Content::Something(said), Some(written)) => {
                let said = said.into_iter().filter(|s| s != NO_EXIT).chain([written]).collect();
                full.push((part, said));
            }
            (Content::Nothing, Some(written)) => full.push((part, vec![written])),
            (Content::Nothing, None) => {
                kept.unused.push(part.of());
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
        kept.files.push((name, format!("{}, {}", part.of(), said.join("; "))));
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_tell_process_and_device() {
        let of = |name| parts_of(name, Kind::Trace);
        assert_eq!(of("17.host-0.trace"), Some((17, "host-0")));
        assert_eq!(of("17.my.type-1.trace"), Some((17, "my.type-1")));
        assert_eq!(of("17.host-0.trace.host-0.17"), Some((17, "host-0")));
        for other in ["17.host-0.history", "x.host-0.trace", "17.host-0.trace.host-1.17", "17", ""] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn half_a_line_is_dropped() {
        let path = std::env::temp_dir().join(format!("millpond-half-{}", std::process::id()));
        for (text, whole) in
            [("a 1 8 0\nf 1\n", "a 1 8 0\nf 1\n"), ("a 1 8 0\nf 1", "a 1 8 0\n"), ("a", ""), ("", "")]
        {
            fs::write(&path, text).unwrap();
            drop_half_line(&path).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), whole);
        }
        fs::remove_file(&path).unwrap();
    }

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
