//! `millpond view`: arguments, and where the page goes.

use super::device::{DeviceArgs, parse_capacity, unrecorded};
use super::output::{check_outputs, is_stdout, say, write_parts};
use crate::{api, perfetto, view};
use anyhow::Result;
use clap::Args;
use std::path::{Path, PathBuf};

#[derive(Args)]
#[command(
    after_help = "Exit status: 0 done, also where a history ends in the middle or a replay runs out of memory, which the \
                  page says, 1 error, 2 wrong arguments."
)]
pub(crate) struct ViewArgs {
    /// A snapshot in Millpond's JSON, a history's file, a snapshot of PyTorch's _dump_snapshot, with its history if it has
    /// one, or a trace, which is replayed: .trace, .trace.zst, RMM's CSV log
    input: PathBuf,
    /// Where the page goes [default: the input's name with .html, in the current folder, unless --perfetto is there]
    #[arg(long, short, value_name = "FILE.html")]
    out: Option<PathBuf>,
    /// Write a trace for Perfetto (ui.perfetto.dev), too: counters, events, waits, and the life of large blocks
    #[arg(long, value_name = "FILE.pftrace")]
    perfetto: Option<PathBuf>,
    /// Tell the callers in a history or a snapshot by the names of functions, which binutils' addr2line finds
    #[arg(long)]
    symbols: bool,
    /// Replay what PyTorch's history asked for on a device of Millpond's, instead of showing what PyTorch did
    #[arg(long)]
    replay: bool,
    /// Which device of PyTorch's snapshot [default: the one with the longest history]
    #[arg(long, value_name = "N", conflicts_with = "replay")]
    ordinal: Option<usize>,
    #[command(flatten)]
    device: DeviceArgs,
    /// Memory of the device on which a trace is replayed, as in 4GiB [default: for `host` twice the peak of the trace;
    /// else all it has]
    #[arg(long, value_name = "BYTES", value_parser = parse_capacity)]
    capacity: Option<u64>,
}

/// Where the page goes where nobody says it.
fn default_out(input: &Path) -> PathBuf {
    let name = input.file_name().map_or_else(|| "millpond".into(), |n| n.to_string_lossy().into_owned());
    PathBuf::from(format!("{name}.html"))
}

/// Runs the command.
pub(crate) fn run(args: &ViewArgs) -> Result<()> {
    unrecorded()?;
    let out = match (&args.out, &args.perfetto) {
        (None, Some(_)) => None,
        (out, _) => Some(out.clone().unwrap_or_else(|| default_out(&args.input))),
    };
    check_outputs(
        std::iter::once(args.input.as_path()).chain(args.device.plugin.as_deref()),
        &[("the page", out.as_deref()), ("the trace for Perfetto", args.perfetto.as_deref())],
    )?;
    let how = view::How {
        symbols: args.symbols,
        replay: args.replay,
        ordinal: args.ordinal,
        device: &args.device,
        capacity: args.capacity,
    };
    let record = view::read(&args.input, &how)?;
    let mut written = Vec::new();
    if let Some(path) = out {
        let page = view::page(&record, &api::version());
        write_parts(&path, &page.each_ref().map(String::as_bytes))?;
        written.push(path);
    }
    if let Some(path) = &args.perfetto {
        write_parts(path, &[&perfetto::export(&record)])?;
        written.push(path.clone());
    }
    record.notes.iter().for_each(|n| tell!("note: {n}"));
    for path in written.iter().filter(|p| !is_stdout(p)) {
        say(&format!("wrote {}\n", path.display()))?;
    }
    Ok(())
}
