//! The viewer: one page from a snapshot, a history or a trace, which shows who holds what memory, where and when.
//!
//! Whatever the file is, it becomes a [`Record`]; that is drawn by the page's own code, or exported for Perfetto.

mod encode;
mod history;
mod page;
mod record;
mod replayed;
mod snapshot;
mod table;
mod texts;
mod torch;

use crate::commands::device::DeviceArgs;
use crate::foreign;
use crate::history::History;
use crate::trace::Trace;
use anyhow::{Context, Result, ensure};
pub(crate) use record::{Block, Kind, NEVER, Record};
use std::path::Path;

/// The first bytes of a history's file.
const HISTORY: &[u8] = b"MPHIST\r\n";

/// How a file is to be read.
pub(crate) struct How<'a> {
    /// Callers of a history or a snapshot get the names of functions.
    pub(crate) symbols: bool,
    /// A pickle is replayed, like any other trace, and not shown as it is.
    pub(crate) replay: bool,
    /// The device of a pickle that has several.
    pub(crate) ordinal: Option<usize>,
    /// Where a trace is replayed, and how much memory [B] there is.
    pub(crate) device: &'a DeviceArgs,
    pub(crate) capacity: Option<u64>,
}

/// Reads what is to be shown. A trace is replayed.
pub(crate) fn read(path: &Path, how: &How<'_>) -> Result<Record> {
    let mut record = read_file(path, how)?;
    let lacks = record.texts.lacks();
    record.notes.extend(lacks);
    Ok(record)
}

fn read_file(path: &Path, how: &How<'_>) -> Result<Record> {
    let place = || path.display().to_string();
    let bytes = std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let title = path.file_name().map_or_else(place, |n| n.to_string_lossy().into_owned());
    ensure!(!bytes.is_empty(), "{}: the file is empty", path.display());
    if HISTORY.starts_with(&bytes) || bytes.starts_with(HISTORY) {
        let mut history = History::parse(&bytes).with_context(place)?;
        if how.symbols {
            history.name_callers()?;
        }
        return Ok(history::record(&title, &history));
    }
    if snapshot::is_json(&bytes) {
        return snapshot::record(&title, &bytes, how.symbols).with_context(place);
    }
    if foreign::is_pickle(&bytes) && !how.replay {
        return torch::record(&title, &bytes, how.ordinal).with_context(place);
    }
    let stem = title.split('.').next().unwrap_or(&title);
    let trace = Trace::from_bytes(stem, &bytes).with_context(place)?;
    drop(bytes);
    replayed::record(&trace, &how.device.setup()?, how.capacity)
}

/// The page, in pieces.
pub(crate) fn page(record: &Record, version: &str) -> [String; 3] {
    let [head, tail] = page::around(&record.title);
    [head, encode::base64(&encode::encode(record, version)), tail]
}

#[cfg(test)]
mod tests;
