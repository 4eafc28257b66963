//! Which device a command uses: the arguments, and opening it.

use crate::api::{self, Device};
use crate::probe::{DeviceName, Setup};
use crate::replay;
use crate::trace::Trace;
use crate::units;
use anyhow::{Context, Result, bail};
use clap::Args;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The most embedded host devices that the library makes.
const MOST_HOST_DEVICES: u32 = 64;

#[derive(Args)]
pub(crate) struct DeviceArgs {
    /// The device: `host`, `cpu` or a plugin's type, with `:N` for the N-th one
    #[arg(long, default_value = "host", value_name = "TYPE[:N]", value_parser = parse_device)]
    pub(crate) device: DeviceName,
    /// A custom-runtime plugin to load; its device type is the default for --device then
    #[arg(long, value_name = "PATH.so")]
    pub(crate) plugin: Option<PathBuf>,
    /// Options of its allocator, as in MILLPOND_ALLOC_CONF, and stronger than that: see docs/options.md
    #[arg(long, default_value = "", hide_default_value = true, value_name = "KEY:VALUE,...")]
    pub(crate) options: String,
}

impl DeviceArgs {
    /// Loads the plugin, if any, and says what is meant.
    pub(crate) fn setup(&self) -> Result<Setup> {
        let device = meant(&self.device, self.plugin.as_deref())?;
        Ok(Setup { device, plugin: self.plugin.clone(), options: self.options.clone() })
    }
}

pub(crate) fn parse_device(text: &str) -> Result<DeviceName> {
    let (type_name, ordinal) = match text.split_once(':') {
        Some((t, n)) => (t, n.parse().with_context(|| format!("`{n}` is not the number of a device"))?),
        None => (text, 0),
    };
    if type_name.is_empty() || ordinal < 0 {
        bail!("write it as in host or host:1");
    }
    Ok(DeviceName { type_name: type_name.to_string(), ordinal })
}

/// Loads the plugin, if any, and says which device is meant: one of the plugin's type where none is named.
pub(crate) fn meant(device: &DeviceName, plugin: Option<&Path>) -> Result<DeviceName> {
    let mut device = device.clone();
    if let Some(path) = plugin {
        let loaded = api::load_plugin(path).with_context(|| path.display().to_string())?;
        if device.type_name == "host" {
            device.type_name = loaded;
        }
    }
    Ok(device)
}

/// The size of a device, which is not 0.
pub(crate) fn parse_capacity(text: &str) -> Result<u64> {
    match units::parse_bytes(text)? {
        0 => bail!("a device of 0 bytes holds nothing"),
        n => Ok(n),
    }
}

/// What the library writes where somebody records a program.
const RECORDS: [&str; 2] = ["MILLPOND_RECORD", "MILLPOND_HISTORY"];
/// What else has to go with these.
const BESIDE_RECORDS: &str = "MILLPOND_HISTORY_SIGNAL";

/// The value of a variable of the environment, also where [`unrecorded`] has put it aside.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    let value = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
    value(name).or_else(|| value(&aside(name)))
}

/// The name under which the value of a variable is handed on.
fn aside(name: &str) -> String {
    format!("_{name}")
}

/// Runs this program anew without the variables that have devices recorded, if they are set: for commands that open
/// devices only to ask them, and would empty the recording of the program that is meant.
pub(crate) fn unrecorded() -> Result<()> {
    let value = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
    if !RECORDS.iter().any(|name| value(name).is_some()) {
        return Ok(());
    }
    let mut again = Command::new(std::env::current_exe().context("this program's own file is not known")?);
    again.args(std::env::args_os().skip(1));
    for name in RECORDS.into_iter().chain([BESIDE_RECORDS]) {
        if let Some(value) = value(name) {
            again.env(aside(name), value);
        }
        again.env_remove(name);
    }
    Err(again.exec()).context("this program cannot be started anew")
}

/// Refuses to have a trace emptied by the recording of its own replay.
pub(crate) fn check_not_overwritten(traces: &[PathBuf]) -> Result<()> {
    let real = |p: &Path| std::fs::canonicalize(p).ok();
    for name in RECORDS {
        let Some(file) = std::env::var_os(name).and_then(|v| real(Path::new(&v))) else { continue };
        if let Some(same) = traces.iter().find(|t| real(t).as_ref() == Some(&file)) {
            bail!("{name} is set to {}, which would be emptied; unset it first", same.display());
        }
    }
    Ok(())
}

/// Opens a device with so much memory. The embedded host device is made to measure; others are limited.
pub(crate) fn open_device(
    setup: &Setup,
    capacity: Option<u64>,
    traces: &[Trace],
) -> Result<(Device, api::Info)> {
    let name = &setup.device;
    if !setup.options.is_empty() {
        api::set_default_options(&setup.options)?;
    }
    if name.type_name == "host" {
        let capacity = capacity.unwrap_or_else(|| replay::default_capacity(traces));
        // As many devices as it takes; an ordinal beyond what there can be is refused when it is opened.
        let count = (name.ordinal as u32).saturating_add(1).max(2);
        let count = if count > MOST_HOST_DEVICES { 0 } else { count };
        api::configure_host(count, capacity)?;
    }
    let device = Device::get(&name.type_name, name.ordinal)
        .with_context(|| format!("device {name} cannot be used. `millpond info` lists what there is"))?;
    let mut info = device.info()?;
    if let Some(capacity) = capacity.filter(|_| name.type_name != "host") {
        device.set_limit(capacity)?;
        info.total = info.total.min(capacity);
    }
    Ok((device, info))
}

/// [B] The largest device that there can be with this setup.
pub(crate) fn most_bytes(setup: &Setup) -> Result<u64> {
    if setup.is_made_to_measure() {
        Ok(replay::MOST_HOST_BYTES)
    } else {
        Ok(open_device(setup, None, &[])?.1.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read() {
        let d = |s| parse_device(s).map(|d| d.to_string());
        assert_eq!(d("host").unwrap(), "host:0");
        assert_eq!(d("cpu:3").unwrap(), "cpu:3");
        for bad in ["", ":1", "host:x", "host:-1", "host:"] {
            assert!(d(bad).is_err(), "{bad}");
        }
    }
}
