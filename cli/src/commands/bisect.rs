//! `millpond bisect`: arguments, and the sentence about what was found.

use super::device::{DeviceArgs, most_bytes, unrecorded};
use super::output::say;
use crate::trace::Trace;
use crate::{bisect, units};
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
#[command(
    after_help = "Exit status: 0 done, 1 error, also where no device is large enough, 2 wrong arguments."
)]
pub(crate) struct BisectArgs {
    /// The trace: .trace, .trace.zst, a pickle of PyTorch's _record_memory_history, or RMM's CSV log
    trace: PathBuf,
    #[command(flatten)]
    device: DeviceArgs,
    /// Print the result only
    #[arg(long, short)]
    quiet: bool,
}

/// Runs the command.
pub(crate) fn run(args: &BisectArgs) -> Result<()> {
    unrecorded()?;
    let trace = Trace::read(&args.trace)?;
    let setup = args.device.setup()?;
    let capacity =
        bisect::bisect(&args.trace, trace.peak_live_bytes, most_bytes(&setup)?, &setup, args.quiet)?;
    say(&format!(
        "{}: completes on {} with {} ({capacity} bytes), {:.4} of its peak of live bytes ({})\n",
        trace.name,
        setup.device,
        units::bytes(capacity),
        capacity as f64 / trace.peak_live_bytes.max(1) as f64,
        units::bytes(trace.peak_live_bytes)
    ))
}
