//! Where a history or a recording goes: opening the file, and writing a history into it.

use super::format::{BEFORE_ABOUT, Chunk, head};
use super::output::{LastLine, Output};
use super::tape::Sink;
use super::texts::text_of;
use crate::base::clock;
use crate::base::error::{Code, Error, Result};
use crate::core::PoolId;
use crate::fail;
use crate::runtime::entry::tags;
use crate::runtime::watch::event::{Event, EventKind};
use crate::runtime::watch::pool_names::PoolNames;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The name of the file for one device: `%p` is the process, `%d` the device.
fn name_for(path: &Path, device: &str) -> PathBuf {
    match path.to_str() {
        Some(text) => text.replace("%p", &std::process::id().to_string()).replace("%d", device).into(),
        None => path.to_owned(),
    }
}

/// Opens the file empty, unless another device or process is writing it; then one with their names added to its own.
pub(crate) fn open(path: &Path, device: &str) -> Result<File> {
    let device = device.replace(':', "-");
    let path = name_for(path, &device);
    let create = |path: &Path| -> Result<Option<File>> {
        // A pipe that nobody reads is an error, not a wait.
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).custom_flags(libc::O_NONBLOCK);
        let opened = options.open(path);
        let file = opened.map_err(|e| unwritable(path, &e))?;
        // What is no ordinary file (a pipe, a terminal) may have many writers, and has no length to set.
        if !file.metadata().is_ok_and(|m| m.is_file()) {
            return Ok(Some(file));
        }
        // SAFETY: a plain call on a descriptor that is open.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0
            && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
        {
            return Ok(None);
        }
        file.set_len(0).map_err(|e| unwritable(path, &e))?;
        Ok(Some(file))
    };
    if let Some(file) = create(&path)? {
        return Ok(file);
    }
    let mut other = path.into_os_string();
    other.push(format!(".{device}.{}", std::process::id()));
    let other = PathBuf::from(other);
    match create(&other)? {
        Some(file) => Ok(file),
        None => fail!(Code::Busy, "{} is being written already", other.display()),
    }
}

fn unwritable(path: &Path, e: &io::Error) -> Error {
    Error::formatted(Code::System, format_args!("{} cannot be written: {e}", path.display()))
}

/// The program's own name.
pub(super) fn program() -> String {
    std::env::current_exe().map_or_else(|_| "?".to_owned(), |p| p.display().to_string().replace('\n', " "))
}

/// A history's file. What is in it is whole up to the last flush.
pub(crate) struct HistorySink {
    file: Output,
    head: Vec<u8>,
    last_line: LastLine,
    chunk: Chunk,
    names: Arc<PoolNames>,
    /// Tags and pools whose names are in the file, if they have any.
    tags: BTreeSet<u16>,
    pools: BTreeSet<PoolId>,
    /// What is loaded where, as the file has it.
    modules: String,
}

impl HistorySink {
    /// Of the device of that name, whose pools have these names; `depth` is how many callers an event has at most.
    pub(crate) fn new(file: Output, device: &str, names: Arc<PoolNames>, depth: usize) -> HistorySink {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        let mut about = format!(
            "device: {device}\nprogram: {}\nprocess: {}\nclock: CLOCK_MONOTONIC, ns\nclock_at_start: {}\n\
             unix_time_at_start: {wall}\nframes: {depth}\nmillpond: {}\n",
            program(),
            std::process::id(),
            clock::monotonic(),
            env!("CARGO_PKG_VERSION")
        );
        let last_line = LastLine::keep(&mut about, BEFORE_ABOUT, "", "failed: ");
        HistorySink {
            file,
            head: head(&about),
            last_line,
            chunk: Chunk::default(),
            names,
            tags: BTreeSet::new(),
            pools: BTreeSet::new(),
            modules: String::new(),
        }
    }
}

impl Sink for HistorySink {
    fn event(&mut self, event: &Event, frames: &[u64]) {
        let text = if event.kind == EventKind::Annotate { text_of(event.address) } else { None };
        if event.tag != 0
            && self.tags.insert(event.tag)
            && let Some(name) = tags::name(event.tag)
        {
            self.chunk.tag_name(event.tag, name);
        }
        if event.pool != PoolId::DEFAULT
            && !event.host
            && self.pools.insert(event.pool)
            && let Some(name) = self.names.get(event.pool)
        {
            self.chunk.pool_name(event.pool, &name);
        }
        self.chunk.event(event, frames, text.as_deref());
    }

    fn dropped(&mut self, count: u64) {
        self.chunk.dropped(count);
    }

    fn waiting(&self) -> usize {
        self.head.len() + self.chunk.len()
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut bytes = std::mem::take(&mut self.head);
        bytes.extend(std::mem::take(&mut self.chunk).finish());
        let whole = self.file.length();
        self.file.write_all(&bytes).inspect_err(|e| self.file.end_early(whole, &self.last_line, e))
    }

    fn fails(&mut self) {
        self.exits();
    }

    fn exits(&mut self) {
        // Libraries come and go; those that are there at the end are told.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let code: String = maps.lines().filter(|l| l.contains("r-xp")).flat_map(|l| [l, "\n"]).collect();
        if code != self.modules {
            self.chunk.modules(&code);
            self.modules = code;
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        self.flush()?;
        self.exits();
        let done = self.flush();
        self.file.let_go();
        done
    }
}
