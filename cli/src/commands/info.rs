//! `millpond info`: arguments, and the exit status.

use super::device::unrecorded;
use super::output::{check_outputs, say, write};
use crate::{api, info};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
#[command(
    after_help = "Exit status: 0 done, 1 error, also where a device cannot be opened, 2 wrong arguments."
)]
pub(crate) struct InfoArgs {
    /// A custom-runtime plugin to load
    #[arg(long, value_name = "PATH.so")]
    plugin: Option<PathBuf>,
    /// Every option of each device, also those that nobody has set
    #[arg(long)]
    all: bool,
    /// Write it as JSON, with all options (`-`: to standard output, and nothing else)
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &InfoArgs) -> Result<()> {
    unrecorded()?;
    check_outputs(args.plugin.as_deref(), &[("--json", args.json.as_deref())])?;
    if let Some(path) = &args.plugin {
        api::load_plugin(path).with_context(|| path.display().to_string())?;
    }
    let report = info::ask()?;
    match &args.json {
        Some(path) => write(path, &format!("{:#}\n", report.json()))?,
        None => say(&report.text(args.all))?,
    }
    match report.failures() {
        0 => Ok(()),
        1 => bail!("a device or type cannot be opened"),
        n => bail!("{n} devices or types cannot be opened"),
    }
}
