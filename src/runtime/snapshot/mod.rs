//! Snapshots: a copy of the layout of a device's memory at one moment, which can be written as JSON or as the pickle
//! that PyTorch's tools read.
//!
//! The copy takes 40 bytes a block. It is written after that, with no lock held and in pieces, so that the text of a
//! million blocks is never in memory as a whole. `json.rs` and `torch.rs` have the two formats, `pickle.rs` the
//! opcodes, `sink.rs` the buffer, `file.rs` the file and `callers.rs` what is known of a caller.

use crate::base::clock;
use crate::base::error::{Code, Error, Result};
use crate::base::room::{check_room, while_kept};
use crate::core::PoolId;
use crate::device::MemoryInfo;
use crate::runtime::device::state::DeviceState;
use crate::runtime::watch::event::{Event as Seen, EventKind, thread_number};
pub use contents::Snapshot;
pub use event::{Action, Event};
use settings::Settings;
use sink::Sink;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

mod callers;
mod contents;
mod event;
mod events;
mod file;
mod json;
mod pickle;
mod settings;
mod sink;
#[cfg(test)]
mod tests;
mod torch;

/// \[B\] what the writing of a snapshot needs of the host's memory beside the snapshot, and more.
const WRITE_BYTES: usize = 1 << 20;

/// The format of a written snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SnapshotFormat {
    /// The JSON of `docs/snapshots.md`, with a version.
    Json = 1,
    /// The pickle of `torch.cuda.memory._snapshot()`.
    TorchPickle = 2,
}

impl DeviceState {
    /// Copies the layout of all memory of the device at one moment, with the account of the same moment. Nobody can
    /// allocate or free on the device while the blocks are collected, which takes less than 100 ms for a million. The
    /// device is asked how much it has free, and which waits are over.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let _pass = self.enter()?;
        if self.memory().watchers().any() {
            self.memory().watchers().list().tell(Seen::new(EventKind::Snapshot));
        }
        let layout = self.memory().statistics().layout()?;
        let options = self.memory().settings().options();
        let time_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_micros() as u64);
        let monotonic_ns = clock::monotonic();
        // Most devices have no history.
        let history = self.history().unwrap_or_default();
        let mut snapshot = Snapshot {
            kept: events::of(&history.events, thread_number(), time_us, monotonic_ns),
            layout,
            type_name: self.type_name().to_owned(),
            ordinal: self.ordinal(),
            time_us,
            memory: while_kept(|| self.device().memory_info()).ok().and_then(MemoryInfo::known),
            settings: Settings::of(&options),
            options: options.pairs().collect(),
            pinned: self.host_memory().stats()?,
            names: BTreeMap::new(),
        };
        snapshot.name_pools(|pool| self.memory().pools().name(pool));
        Ok(snapshot)
    }
}

impl Snapshot {
    /// Gives the pools other names than they have on the device.
    pub fn name_pools(&mut self, name_of: impl Fn(PoolId) -> Option<String>) {
        let named = self.layout.pools.iter().filter_map(|p| Some((p.0, name_of(p.0)?)));
        self.names = named.collect();
    }

    /// Writes the snapshot in pieces of some tens of KiB.
    pub fn write(&self, format: SnapshotFormat, to: &mut impl Write) -> Result<()> {
        self.write_with(format, self.kept.events.iter().copied(), to)
    }

    /// The same, with the events before it, oldest first.
    pub fn write_with(
        &self,
        format: SnapshotFormat,
        events: impl Iterator<Item = Event>,
        to: &mut impl Write,
    ) -> Result<()> {
        let write = |piece: &[u8]| {
            to.write_all(piece)
                .map_err(|e| Error::formatted(Code::System, format_args!("writing the snapshot: {e}")))
        };
        self.send_with(format, events, write)
    }

    /// The same as [`write`](Self::write), to a function. An error of the function ends the writing and is returned.
    pub fn send(&self, format: SnapshotFormat, to: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.send_with(format, self.kept.events.iter().copied(), to)
    }

    /// The same, to a function. An error of the function ends the writing and is returned.
    pub fn send_with(
        &self,
        format: SnapshotFormat,
        events: impl Iterator<Item = Event>,
        mut to: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        check_room(WRITE_BYTES)?;
        let mut sink = Sink::new(&mut to);
        match format {
            SnapshotFormat::Json => json::write(self, events, &mut sink)?,
            SnapshotFormat::TorchPickle => torch::write(self, events, &mut sink)?,
        }
        sink.end()
    }

    /// Writes the snapshot to a file. It is written in the same folder under a name that begins with `.millpond-`, and
    /// renamed when it is complete; after an error nothing is left of it, and an older file is unchanged. A path that
    /// is not a regular file, such as a pipe, is written to directly. `System` if the file cannot be written, with the
    /// reason: also for a pipe without a reader, or one that takes nothing for 5 s.
    pub fn save(&self, format: SnapshotFormat, path: &Path) -> Result<()> {
        file::save(path, |to| self.send(format, to))
    }
}
