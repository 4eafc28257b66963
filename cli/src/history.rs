//! Reads a file of a device's history, and prints what is in it: as a table, or as JSON, an object a line.
//!
//! Addresses of callers are told as module and address in it where the file says what was loaded where, which is what
//! `addr2line` takes; or by their names, where these are asked for.

use crate::{symbols, units};
use anyhow::{Context, Result};
use millpond::runtime::{EventKind, HistoryEvent, HistoryFile};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::path::Path;

/// A module's code in memory.
pub(crate) struct Module {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// In the file.
    pub(crate) offset: u64,
    pub(crate) path: String,
    /// What the file itself says, where it is still there.
    file: Option<symbols::Module>,
}

impl Module {
    /// Whether its file was removed or replaced while the program ran, so that none at its path has the names.
    fn is_deleted(&self) -> bool {
        self.path.ends_with(" (deleted)")
    }

    /// The address in the module as it was linked, or the offset in its file where that is not known.
    fn place(&self, address: u64) -> u64 {
        let offset = (address - self.start).saturating_add(self.offset);
        self.file.as_ref().and_then(|f| f.address(offset)).unwrap_or(offset)
    }
}

/// A file that was read.
pub(crate) struct History {
    pub(crate) file: HistoryFile,
    modules: Vec<Module>,
    names: HashMap<u64, Vec<String>>,
}

/// What is to be said of a file that could not be written to its end: why, and where it ends.
pub(crate) fn not_to_its_end(file: &HistoryFile, why: &str) -> String {
    let time = |e: Option<&HistoryEvent>| e.map_or(0, |e| e.event.time);
    let after = time(file.events.last()).saturating_sub(time(file.events.first()));
    let after = units::nanoseconds(after as f64);
    format!("it could not be written to its end: {why}; its last event is {after} after the first")
}

/// A line of `/proc/PID/maps`: five words, and a path, which may have spaces.
pub(crate) fn module(line: &str) -> Option<Module> {
    let mut rest = line;
    let mut words = [""; 5];
    for word in &mut words {
        (*word, rest) = rest.trim_ascii_start().split_once(' ')?;
    }
    let [range, _, offset, ..] = words;
    let (start, end) = range.split_once('-')?;
    let hex = |t| u64::from_str_radix(t, 16).ok();
    let path = rest.trim_ascii_start().to_owned();
    if path.is_empty() {
        return None;
    }
    Some(Module { start: hex(start)?, end: hex(end)?, offset: hex(offset)?, path, file: None })
}

impl History {
    /// Reads a file.
    pub(crate) fn read(path: &Path) -> Result<History> {
        let bytes = std::fs::read(path).with_context(|| format!("{}: cannot be read", path.display()))?;
        History::parse(&bytes).with_context(|| path.display().to_string())
    }

    /// The same of a file's bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Result<History> {
        Ok(History::of(HistoryFile::parse(bytes)?))
    }

    /// The same of what was in it.
    pub(crate) fn of(file: HistoryFile) -> History {
        let mut modules: Vec<Module> = file.modules.lines().filter_map(module).collect();
        if file.events.iter().any(|e| !e.frames.is_empty()) {
            for m in modules.iter_mut().filter(|m| !m.is_deleted()) {
                m.file = symbols::Module::read(Path::new(&m.path));
            }
        }
        History { file, modules, names: HashMap::new() }
    }

    fn module_of(&self, address: u64) -> Option<&Module> {
        self.modules.iter().find(|m| m.start <= address && address < m.end)
    }

    /// From now on callers are told by the names of functions, where their modules are still there and have them.
    pub(crate) fn name_callers(&mut self) -> Result<()> {
        let all: BTreeSet<u64> = self.file.events.iter().flat_map(|e| e.frames.iter().copied()).collect();
        let mut places: BTreeMap<&str, Vec<(u64, u64)>> = BTreeMap::new();
        for f in all {
            if let Some(m) = self.module_of(f).filter(|m| !m.is_deleted()) {
                // A caller's address is that behind the call.
                places.entry(&m.path).or_default().push((m.place(f).saturating_sub(1), f));
            }
        }
        let mut names = HashMap::new();
        for (path, places) in places {
            let addresses: Vec<u64> = places.iter().map(|p| p.0).collect();
            let found = symbols::names(path, &addresses)?;
            names.extend(places.iter().filter_map(|&(place, f)| Some((f, found.get(&place)?.clone()))));
        }
        self.names = names;
        Ok(())
    }

    /// A caller: by the names of the functions there, the innermost first, if it has any, else as module and address in it
    /// where that is known.
    pub(crate) fn frame(&self, address: u64) -> Vec<String> {
        match (self.names.get(&address), self.module_of(address)) {
            (Some(names), _) => names.clone(),
            (None, Some(m)) => vec![format!("{}+{:#x}", m.path, m.place(address))],
            (None, None) => vec![format!("{address:#x}")],
        }
    }

    fn about(&self, key: &str) -> &str {
        self.file.about.iter().find(|a| a.0 == key).map_or("?", |a| &a.1)
    }

    /// What is to be said of the file as a whole, a line each.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.file.dropped > 0 {
            let events = units::counted(self.file.dropped, "event");
            notes.push(format!("it lacks {events}: its writer could not keep up"));
        }
        if let Some((_, why)) = self.file.about.iter().find(|a| a.0 == "failed") {
            notes.push(not_to_its_end(&self.file, why));
        }
        if self.file.cut_off {
            notes.push(format!(
                "it ends in the middle, after byte {}: the program has ended without a word, or still writes",
                self.file.whole_bytes
            ));
        }
        notes
    }

    /// A table.
    pub(crate) fn table(&self) -> String {
        let mut out = format!(
            "history of {} in process {} ({}), {}\n",
            self.about("device"),
            self.about("process"),
            self.about("program"),
            units::counted(self.file.events.len() as u64, "event")
        );
        self.notes().iter().for_each(|n| out += &format!("note: {n}\n"));
        let start = self.file.events.first().map_or(0, |e| e.event.time);
        let _ = writeln!(
            out,
            "{:>14}  {:<14} {:>14} {:>14} {:>14} {:>14} {:>5} {:>8}",
            "time [us]", "event", "address", "bytes", "asked for", "stream", "pool", "thread"
        );
        for HistoryEvent { event: e, frames, text, .. } in &self.file.events {
            let micros = e.time.saturating_sub(start) as f64 / 1000.0;
            let stream = e.stream.map_or("all".to_owned(), |s| format!("{s:#x}"));
            let _ = write!(
                out,
                "{micros:>14.3}  {:<14} {:>#14x} {:>14} {:>14} {stream:>14} {:>5} {:>8}",
                e.kind.name(),
                if text.is_some() || e.kind == EventKind::Oom { 0 } else { e.address },
                e.bytes,
                e.requested,
                e.pool.0,
                e.thread
            );
            let words = [(e.host, "host"), (e.at_once && e.kind != EventKind::Oom, "at once")];
            words.iter().filter(|w| w.0).for_each(|w| out += &format!("  {}", w.1));
            self.file.tags.get(&e.tag).iter().for_each(|t| out += &format!("  tag {t:?}"));
            text.iter().for_each(|t| out += &format!("  {t:?}"));
            let free = e.device_free().map(|n| format!("  the device had {} free", units::bytes(n)));
            out += &free.unwrap_or_default();
            out.push('\n');
            let named = frames.iter().flat_map(|&f| self.frame(f));
            named.for_each(|name| out += &format!("{:>16}{name}\n", ""));
        }
        out
    }

    /// An object a line; the first says what the file is.
    pub(crate) fn json_lines(&self) -> String {
        let about: Map<String, Value> =
            self.file.about.iter().map(|(k, v)| (k.clone(), Value::from(v.as_str()))).collect();
        let head = json!({ "about": about, "dropped": self.file.dropped, "cut_off": self.file.cut_off });
        let mut out = format!("{head}\n");
        for HistoryEvent { event: e, frames, text, .. } in &self.file.events {
            let mut o = Map::new();
            o.insert("time_ns".into(), e.time.into());
            o.insert("action".into(), e.kind.name().into());
            match (text, e.kind) {
                (Some(t), _) => drop(o.insert("text".into(), t.as_str().into())),
                (None, EventKind::Oom) => drop(o.insert("device_free".into(), e.device_free().into())),
                (None, _) => drop(o.insert("addr".into(), e.address.into())),
            }
            o.insert("size".into(), e.bytes.into());
            o.insert("requested".into(), e.requested.into());
            o.insert("stream".into(), e.stream.into());
            o.insert("pool".into(), e.pool.0.into());
            if let Some(name) = self.file.pools.get(&e.pool.0).filter(|_| !e.host) {
                o.insert("pool_name".into(), name.as_str().into());
            }
            o.insert("thread".into(), e.thread.into());
            for (is, name) in [(e.host, "host"), (e.at_once && e.kind != EventKind::Oom, "at_once")] {
                if is {
                    o.insert(name.into(), true.into());
                }
            }
            if e.tag != 0 {
                let name = self.file.tags.get(&e.tag).map(|t| Value::from(t.as_str()));
                o.insert("tag".into(), name.unwrap_or(e.tag.into()));
            }
            if !frames.is_empty() {
                o.insert("frames".into(), frames.iter().flat_map(|&f| self.frame(f)).collect());
            }
            out += &format!("{}\n", Value::Object(o));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_map_is_a_module() {
        let m = module("7f01-7f09 r-xp 00002000 fd:00 123   /lib/x.so").unwrap();
        assert_eq!((m.start, m.end, m.offset, &m.path[..]), (0x7f01, 0x7f09, 0x2000, "/lib/x.so"));
        for none in ["7f01-7f09 r-xp 0000 00:00 0", "7f01-7f09 r-xp 0000 00:00 0 ", "7f01-7f09 r-xp", ""] {
            assert!(module(none).is_none(), "{none:?}");
        }
    }

    #[test]
    fn a_modules_path_may_have_spaces_and_a_deleted_one_has_no_names() {
        let m = module("7f01-7f09 r-xp 00002000 fd:00 123                 /my lib/x  y.so").unwrap();
        assert_eq!((&m.path[..], m.is_deleted()), ("/my lib/x  y.so", false));
        let m = module("7f01-7f09 r-xp 00002000 fd:00 123 /lib/x.so (deleted)").unwrap();
        assert_eq!((&m.path[..], m.is_deleted()), ("/lib/x.so (deleted)", true));
    }
}
