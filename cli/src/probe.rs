//! Replays in processes of their own, of this very program, so that nothing of one helps or hinders the next: what
//! `bisect` and `compare` are made of.

use crate::replay::EXIT_OUT_OF_MEMORY;
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A device type and an ordinal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceName {
    pub(crate) type_name: String,
    pub(crate) ordinal: i32,
}

impl std::fmt::Display for DeviceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.type_name, self.ordinal)
    }
}

/// What is replayed on.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) device: DeviceName,
    pub(crate) plugin: Option<PathBuf>, // that has the device
    pub(crate) options: String,         // of the allocator; may be empty
}

impl Setup {
    /// Whether the device gets the size that a replay wants: the embedded type's do.
    pub(crate) fn is_made_to_measure(&self) -> bool {
        self.device.type_name == "host" && self.plugin.is_none()
    }
}

impl std::fmt::Display for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let comma = if self.options.is_empty() { "" } else { ", " };
        write!(f, "{}{comma}{}", self.device, self.options)
    }
}

/// How a replay ended.
pub(crate) enum End {
    /// All of it was served. Standard output.
    Completed(String),
    /// It ran out of memory, or was refused as it is too large. Standard output, and the last words.
    OutOfMemory(String, String),
}

/// Replays the trace at `path`, with more arguments of `millpond replay`. An error is any end but those two.
pub(crate) fn replay(path: &Path, setup: &Setup, more: &[&str]) -> Result<End> {
    let program = std::env::current_exe().context("this program's own file is not known")?;
    let mut command = Command::new(program);
    // One word each: neither a path nor options may be taken for an argument.
    command.args(["replay", "--quiet"]).arg(format!("--device={}", setup.device)).args(more);
    if !setup.options.is_empty() {
        command.arg(format!("--options={}", setup.options));
    }
    if let Some(plugin) = &setup.plugin {
        let mut word = OsString::from("--plugin=");
        word.push(plugin);
        command.arg(word);
    }
    command.arg("--").arg(path);
    // What the user records is not each of these.
    command.env_remove("MILLPOND_RECORD").env_remove("MILLPOND_HISTORY");
    let output = command.stdin(Stdio::null()).output().context("a replay could not be started")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim_end().strip_prefix("millpond: ").unwrap_or(said.trim_end()).to_string();
    let out = || String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.code() {
        Some(0) => Ok(End::Completed(out())),
        Some(code) if code == i32::from(EXIT_OUT_OF_MEMORY) => Ok(End::OutOfMemory(out(), said)),
        _ => bail!("the replay on {setup} failed ({}):\n{said}", output.status),
    }
}
