//! `millpond replay`: arguments, and what comes of each trace.

use super::device::{DeviceArgs, check_not_overwritten, open_device, parse_capacity};
use super::output::{check_outputs, is_stdout, say, write};
use super::{EXIT_STATUS, Failure};
use crate::probe::Setup;
use crate::progress::Progress;
use crate::replay::{self, Outcome, Plan};
use crate::report::Run;
use crate::touch::{Check, Touch};
use crate::trace::Trace;
use crate::{api, picture, units};
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
#[command(after_help = EXIT_STATUS)]
pub(crate) struct ReplayArgs {
    /// The traces: .trace, .trace.zst, a pickle of PyTorch's _record_memory_history, or RMM's CSV log
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    #[command(flatten)]
    device: DeviceArgs,
    /// Memory of the device, as in 4GiB [default: for `host` twice the peak of the traces; else all it has]
    #[arg(long, value_name = "BYTES", value_parser = parse_capacity)]
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
    check_outputs(
        args.traces.iter().chain(&args.device.plugin).map(PathBuf::as_path),
        &[("--html", args.html.as_deref()), ("--svg", args.svg.as_deref()), ("--json", args.json.as_deref())],
    )?;
    check_not_overwritten(&args.traces)?;
    let traces = args.traces.iter().map(|p| Trace::read(p)).collect::<Result<Vec<_>>>()?;
    let setup = args.device.setup()?;
    let plan = Plan {
        touch: args.touch,
        check: if args.check { Check::All } else { Check::None },
        passes: args.passes,
        picture: args.html.is_some() || args.svg.is_some(),
        tags: false,
    };
    let done = replay_all(&traces, &setup, args.capacity, plan, quiet)?;
    let runs: Vec<Run<'_>> = done.iter().filter_map(|d| d.run(&setup, args.touch)).collect();
    let version = api::version();
    if let Some(path) = &args.json {
        let all: Vec<_> = done
            .iter()
            .map(|d| match d.run(&setup, args.touch) {
                Some(run) => run.json(&version),
                None => serde_json::json!({"trace": {"name": d.trace.name}, "refused": d.shortage}),
            })
            .collect();
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
    out_of_memory(&done)
}

/// What came of one trace.
pub(crate) struct Replayed<'t> {
    trace: &'t Trace,
    outcome: Option<Outcome>, // none: it was refused before it began
    capacity: u64,            // [B] of the device
    shortage: Option<String>, // that it ran out of memory, or why it was refused
}

impl Replayed<'_> {
    /// For a report, if there is something to report.
    pub(crate) fn run(&self, setup: &Setup, touch: Touch) -> Option<Run<'_>> {
        let (trace, outcome) = (self.trace, self.outcome.as_ref()?);
        Some(Run { trace, outcome, device: setup.device.to_string(), capacity: self.capacity, touch })
    }
}

/// An error where memory ran out, with all that is to be said of it.
pub(crate) fn out_of_memory(done: &[Replayed<'_>]) -> Result<(), Failure> {
    let shortages: Vec<&str> = done.iter().filter_map(|d| d.shortage.as_deref()).collect();
    if shortages.is_empty() { Ok(()) } else { Err(Failure::OutOfMemory(shortages.join("\n"))) }
}

/// Replays one trace after the other on one device, and prints each table.
pub(crate) fn replay_all<'t>(
    traces: &'t [Trace],
    setup: &Setup,
    capacity: Option<u64>,
    plan: Plan,
    quiet: bool,
) -> Result<Vec<Replayed<'t>>> {
    let (device, info) = open_device(setup, capacity, traces)?;
    let name = &setup.device;
    if !info.streams() && !quiet && traces.iter().any(|t| t.streams > 1) {
        tell!("note: {name} has no streams; all operations take its default one");
    }
    let mut all = Vec::new();
    for trace in traces {
        let mut done = Replayed { trace, outcome: None, capacity: info.total, shortage: None };
        match replay::check_room(trace, &info, &name.to_string(), plan.touch) {
            Err(message) => done.shortage = Some(message),
            Ok(()) => {
                let total = trace.events.len() as u64 * u64::from(plan.passes);
                let mut progress = Progress::new(&trace.name, total, quiet);
                let outcome = replay::replay(trace, device, info.streams(), plan, &mut progress)?;
                done.shortage = outcome.shortage.as_ref().map(|s| {
                    let (at, line) = (units::count(s.event), s.line);
                    format!("{}: out of memory at operation {at}, line {line}", trace.name)
                });
                done.outcome = Some(outcome);
            }
        }
        if let Some(run) = done.run(setup, plan.touch).filter(|_| !quiet) {
            say(&format!("{}\n", run.table(&api::version())))?;
        }
        all.push(done);
    }
    api::finalize()?;
    Ok(all)
}
