//! The viewer: one page from a snapshot, a history or a trace, which shows who holds what memory, where and when.
//!
//! Whatever the file is, it becomes a [`Record`]; that is drawn by the page's own code, or exported for Perfetto.

mod encode;
mod history;
mod page;
mod record;
mod replayed;
mod snapshot;

use crate::commands::device::DeviceArgs;
use crate::history::History;
use crate::trace::Trace;
use anyhow::{Context, Result, ensure};
pub(crate) use record::{Block, Kind, NEVER, Record};
use std::path::Path;

/// The first bytes of a history's file.
const HISTORY: &[u8] = b"MPHIST\r\n";

/// Reads what is to be shown. A trace is replayed on the device, with so much memory.
pub(crate) fn read(path: &Path, symbols: bool, device: &DeviceArgs, capacity: Option<u64>) -> Result<Record> {
    let place = || path.display().to_string();
    let bytes = std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let title = path.file_name().map_or_else(place, |n| n.to_string_lossy().into_owned());
    ensure!(!bytes.is_empty(), "{}: the file is empty", path.display());
    if HISTORY.starts_with(&bytes) || bytes.starts_with(HISTORY) {
        let mut history = History::parse(&bytes).with_context(place)?;
        if symbols {
            history.name_callers()?;
        }
        return Ok(history::record(&title, &history));
    }
    if snapshot::is_json(&bytes) {
        return snapshot::record(&title, &bytes).with_context(place);
    }
    let stem = title.split('.').next().unwrap_or(&title);
    let trace = Trace::from_bytes(stem, &bytes).with_context(place)?;
    drop(bytes);
    replayed::record(&trace, &device.setup()?, capacity)
}

/// The page, in pieces.
pub(crate) fn page(record: &Record, version: &str) -> [String; 3] {
    let [head, tail] = page::around(&record.title);
    [head, encode::base64(&encode::encode(record, version)), tail]
}
