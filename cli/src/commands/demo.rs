//! `millpond demo`: replays a recorded training run that is part of the program, and draws it.

use super::device::DeviceArgs;
use super::output::{check_outputs, is_stdout, say, write};
use super::replay::{out_of_memory, replay_all};
use super::{EXIT_STATUS, Failure};
use crate::replay::Plan;
use crate::touch::{Check, Touch};
use crate::trace::Trace;
use crate::{api, picture, units};
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;

/// The trace; it is part of the program, so that the demo needs no file.
const DEMO_TRACE: &[u8] = include_bytes!("../../demo.trace.zst");

#[derive(Args)]
#[command(after_help = EXIT_STATUS)]
pub(crate) struct DemoArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// How much of each block is written
    #[arg(long, value_enum, default_value_t = Touch::All)]
    touch: Touch,
    /// Where the picture goes
    #[arg(long, value_name = "FILE", default_value = "millpond-demo.html")]
    out: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &DemoArgs) -> Result<(), Failure> {
    check_outputs(args.device.plugin.as_deref(), &[("--out", Some(&args.out))])?;
    let trace = Trace::from_bytes("demo", DEMO_TRACE)?;
    let setup = args.device.setup()?;
    // Reading all of it back too would double the time, and is what `replay --check` is for.
    let plan = Plan { touch: args.touch, check: Check::Ends, passes: 1, picture: true, tags: false };
    let time = match args.touch {
        Touch::All => format!(
            "Every byte of every block is written, {} in all, which takes most of the time, up to a minute; the calls \
             of the allocator take a fraction of a second (`--touch edges` leaves the writing out).\n",
            units::bytes(trace.total_bytes)
        ),
        Touch::Edges | Touch::None => String::new(),
    };
    // A page that goes to standard output goes there alone.
    let quiet = is_stdout(&args.out);
    let told = |text: &str| if quiet { Ok(()) } else { say(text) };
    told(&format!(
        "A recorded training run: {} allocations and frees, replayed through Millpond's C API on device {}.\n{time}\n",
        units::count(trace.events.len() as u64),
        setup.device
    ))?;
    let traces = [trace];
    let done = replay_all(&traces, &setup, None, plan, quiet)?;
    out_of_memory(&done)?;
    let runs: Vec<_> = done.iter().filter_map(|d| d.run(&setup, args.touch)).collect();
    write(&args.out, &picture::html(&runs, &api::version()))?;
    let path = std::fs::canonicalize(&args.out).unwrap_or_else(|_| args.out.clone());
    told(&format!(
        "The picture is in {}\nOpen it in a browser: file://{}\n",
        args.out.display(),
        path.display()
    ))?;
    Ok(())
}
