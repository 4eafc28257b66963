//! `millpond replay`: arguments, and what comes of each trace.

use super::Failure;
use super::device::{DeviceArgs, DeviceName, choose_device, open_device};
use super::output::{is_stdout, say, write};
use crate::progress::Progress;
use crate::replay::{self, Plan};
use crate::report::Run;
use crate::touch::{Check, Touch};
use crate::trace::Trace;
use crate::{api, picture, units};
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct ReplayArgs {
    /// The traces: .trace, .trace.zst, a pickle of PyTorch's _record_memory_history, or RMM's CSV log
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    #[command(flatten)]
    device: DeviceArgs,
    /// Memory of the device, as in 4GiB [default: for `host` twice the peak of the traces; else all it has]
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes)]
    capacity: Option<u64>,
    /// How much of each block is written
    #[arg(long, value_enum, default_value_t = Touch::Edges)]
    touch: Touch,
    /// Prove that no two live blocks overlap: keep a map of their ranges, and give what is written a pattern that is
    /// read back before each free
    #[arg(long)]
    check: bool,
    /// Replay each trace N times, keeping the memory between
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    passes: u32,
    /// Draw the memory over the program's time into an HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The same as an SVG file (one trace only)
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the results as JSON: an array with an object for each trace (`-`: to standard output, and nothing else)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print nothing but errors
    #[arg(long, short)]
    quiet: bool,
}

/// Runs the command.
pub(crate) fn run(args: &ReplayArgs) -> Result<(), Failure> {
    if args.svg.is_some() && args.traces.len() > 1 {
        return Err(anyhow::anyhow!("--svg takes one trace; --html draws any number").into());
    }
    let files = || args.html.iter().chain(&args.svg).chain(&args.json);
    // What goes to standard output goes there alone.
    let quiet = args.quiet || files().any(|f| is_stdout(f));
    if files().filter(|f| is_stdout(f)).count() > 1 {
        return Err(
            anyhow::anyhow!("only one of --html, --svg and --json can be `-`, standard output").into()
        );
    }
    let traces = args.traces.iter().map(|p| Trace::read(p)).collect::<Result<Vec<_>>>()?;
    let name = choose_device(&args.device)?;
    let plan = Plan {
        touch: args.touch,
        check: if args.check { Check::All } else { Check::None },
        passes: args.passes,
        picture: args.html.is_some() || args.svg.is_some(),
    };
    let mut shortages = Vec::new();
    let outcomes = replay_all(&traces, &name, args.capacity, plan, quiet, &mut shortages)?;
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
    let version = api::version();
    if let Some(path) = &args.json {
        let all: Vec<_> = runs.iter().map(|r| r.json(&version)).collect();
        write(path, &format!("{:#}\n", serde_json::Value::Array(all)))?;
    }
    if let Some(path) = &args.html {
        write(path, &picture::html(&runs, &version))?;
    }
    if let (Some(path), Some(svg)) = (&args.svg, runs.first().and_then(picture::svg)) {
        write(path, &svg)?;
    }
    if !quiet {
        for path in files() {
            say(&format!("wrote {}\n", path.display()))?;
        }
    }
    if shortages.is_empty() { Ok(()) } else { Err(Failure::OutOfMemory(shortages.join("\n"))) }
}

/// Replays one trace after the other on one device, prints each table, and collects what ran out of memory.
pub(crate) fn replay_all<'t>(
    traces: &'t [Trace],
    name: &DeviceName,
    capacity: Option<u64>,
    plan: Plan,
    quiet: bool,
    shortages: &mut Vec<String>,
) -> Result<Vec<(&'t Trace, replay::Outcome, u64)>> {
    let (device, info) = open_device(name, capacity, traces)?;
    if !info.streams() && !quiet && traces.iter().any(|t| t.streams > 1) {
        eprintln!("note: {name} has no streams; all operations take its default one");
    }
    let mut outcomes = Vec::new();
    for trace in traces {
        if let Err(message) = replay::check_room(trace, &info, &name.to_string(), plan.touch) {
            shortages.push(message);
            continue;
        }
        let total = trace.events.len() as u64 * u64::from(plan.passes);
        let mut progress = Progress::new(&trace.name, total, quiet);
        let outcome = replay::replay(trace, device, info.streams(), plan, &mut progress)?;
        let run = Run {
            trace,
            outcome: &outcome,
            device: name.to_string(),
            capacity: info.total,
            touch: plan.touch,
        };
        if !quiet {
            say(&format!("{}\n", run.table(&api::version())))?;
        }
        if let Some(s) = &outcome.shortage {
            shortages.push(format!("{}: out of memory at operation {}", trace.name, units::count(s.event)));
        }
        outcomes.push((trace, outcome, info.total));
    }
    api::finalize()?;
    Ok(outcomes)
}
