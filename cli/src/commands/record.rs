//! `millpond record`: arguments, running the program, and what is said of its files.

use crate::child;
use crate::record::{Folder, Kept, Kind, check_names, keep};
use anyhow::{Context, Result, anyhow};
use clap::Args;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// As of `env` and the shells.
const NOT_FOUND: u8 = 127;
const NOT_STARTED: u8 = 126;

#[derive(Args)]
#[command(
    after_help = "The program gets the signals that this one gets. Exit status: the program's own (a signal that \
                        ended it ends this command, too); 1 where it was 0 and nothing was recorded, or not to the end, \
                        as the disk was full; 127 where there is no such program, 126 where it cannot be started; 2 wrong arguments.\n\n  \
                        millpond record -o my.trace -- python3 train.py --epochs 1\n  \
                        millpond replay my.trace"
)]
pub(crate) struct RecordArgs {
    /// Where the trace goes [default: the program's name, with .trace]. With several processes or devices each has a file,
    /// with its device and process in the name, or in the place of %d and %p
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the history of the memory, too, for `millpond history`
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// With N callers of each request and free in the history
    #[arg(long, value_name = "N", requires = "history", value_parser = clap::value_parser!(u32).range(0..=64))]
    frames: Option<u32>,
    /// Say nothing of what was recorded
    #[arg(long, short)]
    quiet: bool,
    /// The program, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The default name of a trace.
fn trace_of(program: &OsString) -> PathBuf {
    let name = Path::new(program).file_name().unwrap_or(program);
    let mut name = name.to_owned();
    name.push(".trace");
    name.into()
}

/// Says what was recorded.
fn tell(kept: &Kept) {
    for (file, what) in &kept.files {
        tell!("millpond: recorded {}: {what}", file.display());
    }
    for device in &kept.unused {
        tell!("millpond: nothing was asked of {device}");
    }
}

/// Runs the command.
pub(crate) fn run(args: &RecordArgs) -> Result<ExitCode> {
    let [program, arguments @ ..] = &args.program[..] else {
        return Err(anyhow!("there is no program to run"));
    };
    let output = args.output.clone().unwrap_or_else(|| trace_of(program));
    check_names(&output, args.history.as_deref(), Path::new(program))?;
    let traces = Folder::beside(&output, Kind::Trace)?;
    let mut command = Command::new(program);
    command.args(arguments).env("MILLPOND_RECORD", traces.pattern());
    let mut histories = None;
    if let Some(file) = &args.history {
        let folder = Folder::beside(file, Kind::History)?; // perhaps on another disk
        command.env("MILLPOND_HISTORY", folder.pattern());
        if let Some(frames) = args.frames {
            command.env("MILLPOND_HISTORY_FRAMES", frames.to_string());
        }
        histories = Some((folder, file));
    }
    let status = match child::run(command)? {
        Ok(status) => status,
        Err(e) => {
            tell!("millpond: {} cannot be started: {e}", program.to_string_lossy());
            return Ok(ExitCode::from(if e.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_STARTED }));
        }
    };
    let kept = keep(&traces, &output).context("the recording")?;
    if !args.quiet {
        tell(&kept);
    }
    let mut failed = kept.failed;
    if let Some((folder, file)) = &histories {
        let kept = keep(folder, file).context("the history")?;
        kept.files.iter().filter(|_| !args.quiet).for_each(|(file, what)| {
            tell!("millpond: history {}: {what}", file.display());
        });
        failed |= kept.failed;
    }
    let nothing = kept.files.is_empty();
    if nothing && kept.unused.is_empty() {
        tell!(
            "millpond: nothing was recorded: {} has opened no device of Millpond (or runs with another environment than \
             it was given)",
            program.to_string_lossy()
        );
    } else if nothing {
        tell!("millpond: nothing was recorded: {} has asked for no memory", program.to_string_lossy());
    }
    for folder in [Some(traces), histories.map(|(folder, _)| folder)].into_iter().flatten() {
        if let Some(left) = folder.remove() {
            tell!("millpond: what is left is in {}", left.display());
        }
    }
    if (nothing || failed) && status.success() { Ok(ExitCode::FAILURE) } else { Ok(child::end_like(status)) }
}
