//! `millpond history`: arguments, and which form is printed.

use super::output::say;
use crate::history;
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
#[command(
    after_help = "Exit status: 0 done, also where the file ends in the middle, 1 error, 2 wrong arguments."
)]
pub(crate) struct HistoryArgs {
    /// The file
    file: PathBuf,
    /// One JSON object a line: the first says what the file is, each other one is an event
    #[arg(long)]
    json: bool,
    /// Tell callers by the names of functions, which binutils' addr2line finds
    #[arg(long)]
    symbols: bool,
}

/// Runs the command.
pub(crate) fn run(args: &HistoryArgs) -> Result<()> {
    let mut history = history::History::read(&args.file)?;
    if args.symbols {
        history.name_callers()?;
    }
    say(&if args.json { history.json_lines() } else { history.table() })
}
