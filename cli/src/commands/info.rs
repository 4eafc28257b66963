//! `millpond info`: arguments, and the exit status.

use super::output::say;
use crate::{api, info};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct InfoArgs {
    /// A custom-runtime plugin to load
    #[arg(long, value_name = "PATH.so")]
    plugin: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &InfoArgs) -> Result<()> {
    if let Some(path) = &args.plugin {
        api::load_plugin(path).with_context(|| path.display().to_string())?;
    }
    let (text, failed) = info::describe()?;
    say(&text)?;
    if failed > 0 {
        bail!("{failed} of these could not be asked");
    }
    Ok(())
}
