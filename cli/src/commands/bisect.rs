//! `millpond bisect`: arguments, and the sentence about what was found.

use super::device::{DeviceArgs, choose_device, open_device};
use super::output::say;
use crate::trace::Trace;
use crate::{bisect, units};
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
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
    let trace = Trace::read(&args.trace)?;
    let plugin = args.device.plugin.as_deref();
    let device = args.device.device.to_string();
    // The embedded host device is made to measure.
    let most = match args.device.device.type_name.as_str() {
        "host" if plugin.is_none() => u64::MAX,
        _ => {
            let name = choose_device(&args.device)?;
            open_device(&name, None, &[])?.1.total
        }
    };
    let capacity = bisect::bisect(&args.trace, trace.peak_live_bytes, most, &device, plugin, args.quiet)?;
    say(&format!(
        "{}: completes on {device} with {} ({capacity} bytes), {:.4} of its peak of live bytes ({})\n",
        trace.name,
        units::bytes(capacity),
        capacity as f64 / trace.peak_live_bytes.max(1) as f64,
        units::bytes(trace.peak_live_bytes)
    ))
}
