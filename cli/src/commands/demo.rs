//! `millpond demo`: replays a recorded training run that is part of the program, and draws it.

use super::Failure;
use super::device::{DeviceArgs, choose_device};
use super::output::{say, write};
use super::replay::replay_all;
use crate::replay::Plan;
use crate::report::Run;
use crate::touch::{Check, Touch};
use crate::trace::Trace;
use crate::{api, picture, units};
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;

/// The trace; it is part of the program, so that the demo needs no file.
const DEMO_TRACE: &[u8] = include_bytes!("../../../traces/fasterrcnn_train.trace.zst");

#[derive(Args)]
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
    let trace = Trace::from_bytes("demo", DEMO_TRACE)?;
    let name = choose_device(&args.device)?;
    // Reading all of it back too would double the time, and is what `replay --check` is for.
    let plan = Plan { touch: args.touch, check: Check::Ends, passes: 1, picture: true };
    let time = match args.touch {
        Touch::All => format!(
            "Every byte of every block is written, {} in all, which takes most of the time, up to a minute; the calls \
             of the allocator take a fraction of a second (`--touch edges` leaves the writing out).\n",
            units::bytes(trace.total_bytes)
        ),
        Touch::Edges | Touch::None => String::new(),
    };
    say(&format!(
        "A recorded training run: {} allocations and frees, replayed through Millpond's C API on device {name}.\n{time}\n",
        units::count(trace.events.len() as u64)
    ))?;
    let traces = [trace];
    let mut shortages = Vec::new();
    let outcomes = replay_all(&traces, &name, None, plan, false, &mut shortages)?;
    if !shortages.is_empty() {
        return Err(Failure::OutOfMemory(shortages.join("\n")));
    }
    let runs: Vec<Run<'_>> = outcomes
        .iter()
        .map(|(trace, outcome, capacity)| Run {
            trace,
            outcome,
            device: name.to_string(),
            capacity: *capacity,
            touch: args.touch,
        })
        .collect();
    write(&args.out, &picture::html(&runs, &api::version()))?;
    let path = std::fs::canonicalize(&args.out).unwrap_or_else(|_| args.out.clone());
    say(&format!(
        "The picture is in {}\nOpen it in a browser: file://{}\n",
        args.out.display(),
        path.display()
    ))?;
    Ok(())
}
