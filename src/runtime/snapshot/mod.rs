//! A snapshot: everything that a device's memory is at one moment, kept, and written down as JSON or as PyTorch's
//! tools read it.
//!
//! What is kept is of one moment; it takes 40 bytes a block. Writing happens afterwards, with no lock held and in
//! pieces, so that a million blocks are never in memory as text. `json.rs` and `torch.rs` say what is written,
//! `pickle.rs` and `sink.rs` how, `file.rs` where to.

use crate::base::error::{Code, Error, Result};
use crate::core::{Layout, PoolId};
use crate::device::MemoryInfo;
use crate::runtime::device::DeviceState;
use crate::runtime::pinned::HostStats;
use sink::Sink;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

mod file;
mod json;
mod pickle;
mod sink;
#[cfg(test)]
mod tests;
mod torch;

/// How a snapshot is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SnapshotFormat {
    /// The JSON of `docs/seeing.md`, with a version.
    Json = 1,
    /// The pickle of `torch.cuda.memory._snapshot()`.
    TorchPickle = 2,
}

/// What happened, by PyTorch's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A block was given out.
    Alloc,
    /// A block was freed by its owner.
    FreeRequested,
    /// A freed block can be used again.
    FreeCompleted,
    /// Memory was taken from the device with one call.
    SegmentAlloc,
    /// It went back.
    SegmentFree,
    /// Addresses got memory behind them.
    SegmentMap,
    /// They lost it.
    SegmentUnmap,
    /// A request found no memory; the event's address is the bytes that the device had free.
    Oom,
    /// A snapshot was taken.
    Snapshot,
}

impl Action {
    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Action::Alloc => "alloc",
            Action::FreeRequested => "free_requested",
            Action::FreeCompleted => "free_completed",
            Action::SegmentAlloc => "segment_alloc",
            Action::SegmentFree => "segment_free",
            Action::SegmentMap => "segment_map",
            Action::SegmentUnmap => "segment_unmap",
            Action::Oom => "oom",
            Action::Snapshot => "snapshot",
        }
    }
}

/// Something that happened before a snapshot, for [`Snapshot::write_with`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What.
    pub action: Action,
    /// When, in microseconds since 1970.
    pub time_us: u64,
    /// Where; see [`Action::Oom`].
    pub address: u64,
    /// [B] of the block, of the segment or of the request.
    pub bytes: u64,
    /// The stream; 0 is the default one.
    pub stream: u64,
}

/// The memory of a device at one moment. Get it with [`DeviceState::snapshot`].
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Every block, and the account.
    pub layout: Layout,
    /// The type of the device.
    pub type_name: String,
    /// Its ordinal within the type.
    pub ordinal: usize,
    /// Microseconds since 1970.
    pub time_us: u64,
    memory: Option<MemoryInfo>,
    options: Vec<(&'static str, String)>,
    settings: torch::Settings,
    pinned: HostStats,
    names: BTreeMap<PoolId, String>,
}

impl DeviceState {
    /// All memory of the device as it is at one moment, with the account of that same moment. Nobody allocates or frees
    /// on the device while the blocks are collected, less than 100 ms for a million. The device is asked what it has free, and
    /// about what waits.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let _pass = self.enter()?;
        let layout = self.memory().layout()?;
        let options = self.memory().options();
        Ok(Snapshot {
            layout,
            type_name: self.type_name().to_owned(),
            ordinal: self.ordinal(),
            time_us: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_micros() as u64),
            memory: self.device().memory_info().ok(),
            settings: torch::Settings::of(&options),
            options: options.pairs().collect(),
            pinned: self.host_stats()?,
            names: BTreeMap::new(),
        })
    }
}

impl Snapshot {
    /// Gives the pools the names that they are told by.
    pub fn name_pools(&mut self, name_of: impl Fn(PoolId) -> Option<String>) {
        let named = self.layout.pools.iter().filter_map(|p| Some((p.0, name_of(p.0)?)));
        self.names = named.collect();
    }

    /// Writes it in pieces of some tens of KiB.
    pub fn write(&self, format: SnapshotFormat, to: &mut impl Write) -> Result<()> {
        self.write_with(format, std::iter::empty(), to)
    }

    /// The same, with what happened before, oldest first.
    pub fn write_with(
        &self,
        format: SnapshotFormat,
        events: impl Iterator<Item = Event>,
        to: &mut impl Write,
    ) -> Result<()> {
        let write = |piece: &[u8]| {
            to.write_all(piece).map_err(|e| Error::new(Code::System, format!("writing the snapshot: {e}")))
        };
        self.send_with(format, events, write)
    }

    /// The same, to a function. What that answers ends the writing.
    pub fn send_with(
        &self,
        format: SnapshotFormat,
        events: impl Iterator<Item = Event>,
        mut to: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut sink = Sink::new(&mut to);
        match format {
            SnapshotFormat::Json => json::write(self, events, &mut sink)?,
            SnapshotFormat::TorchPickle => torch::write(self, events, &mut sink)?,
        }
        sink.end()
    }

    /// Writes it to a file, which has its name only when it is whole: until then it stands beside it, under a name that
    /// begins with `.millpond-`, and after an error nothing is left of it and an older file is as it was. What is no
    /// plain file, such as a pipe, is written to directly. `System` where the file cannot be written, with the reason.
    pub fn save(&self, format: SnapshotFormat, path: &Path) -> Result<()> {
        file::save(path, |to| self.send_with(format, std::iter::empty(), to))
    }
}
