//! The `millpond` command: replays recorded allocation traces through Millpond's C API, shows what
//! it cost, and draws it. This file holds the arguments and what each command does with them.
//!
//! Exit status: 0 done; 1 an error; 2 wrong arguments; 3 out of memory (also: the device or the
//! machine is too small to try).

// A package that is declared and not used is a failure of `cargo clippy`.
#![cfg_attr(not(test), warn(unused_crate_dependencies))]

mod api;
mod bisect;
mod chart;
mod foreign;
mod history;
mod info;
mod machine;
mod pickle;
mod picture;
mod progress;
mod replay;
mod report;
mod series;
mod touch;
mod trace;
mod units;

use anyhow::{Context, Result, bail};
use api::Device;
use clap::{Args, Parser, Subcommand};
use progress::Progress;
use replay::Plan;
use report::Run;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use touch::{Check, Touch};
use trace::Trace;

/// The trace that `millpond demo` replays; it is part of the program, so that the demo needs no file.
const DEMO_TRACE: &[u8] = include_bytes!("../../traces/fasterrcnn_train.trace.zst");

/// The most embedded host devices that the library makes.
const MOST_HOST_DEVICES: u32 = 64;

/// Replays allocation traces of real programs through Millpond.
#[derive(Parser)]
#[command(name = "millpond", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Replay traces on a device, and show what it took
    #[command(after_help = "Exit status: 0 done, 1 error, 2 wrong arguments, 3 out of memory.")]
    Replay(ReplayArgs),
    /// Replay a recorded training run that is built in, check it, and draw it (4 GiB of memory are enough)
    Demo(DemoArgs),
    /// Find the smallest device on which a trace completes
    Bisect(BisectArgs),
    /// List device types and devices, their memory and what they can (exit status 1 when one cannot be asked)
    Info(InfoArgs),
    /// Print a device's history that was streamed to a file (MILLPOND_HISTORY=FILE)
    History(HistoryArgs),
}

#[derive(Args)]
struct DeviceArgs {
    /// The device: `host`, `cpu` or a plugin's type, with `:N` for the N-th one
    #[arg(long, default_value = "host", value_name = "TYPE[:N]", value_parser = parse_device)]
    device: DeviceName,
    /// A custom-runtime plugin to load; its device type is the default for --device then
    #[arg(long, value_name = "PATH.so")]
    plugin: Option<PathBuf>,
}

#[derive(Args)]
struct ReplayArgs {
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

#[derive(Args)]
struct DemoArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// How much of each block is written
    #[arg(long, value_enum, default_value_t = Touch::All)]
    touch: Touch,
    /// Where the picture goes
    #[arg(long, value_name = "FILE", default_value = "millpond-demo.html")]
    out: PathBuf,
}

#[derive(Args)]
struct BisectArgs {
    /// The trace: .trace, .trace.zst, a pickle of PyTorch's _record_memory_history, or RMM's CSV log
    trace: PathBuf,
    #[command(flatten)]
    device: DeviceArgs,
    /// Print the result only
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Args)]
struct InfoArgs {
    /// A custom-runtime plugin to load
    #[arg(long, value_name = "PATH.so")]
    plugin: Option<PathBuf>,
}

#[derive(Args)]
struct HistoryArgs {
    /// The file
    file: PathBuf,
    /// One JSON object a line: the first says what the file is, each other one is an event
    #[arg(long)]
    json: bool,
}

/// A device type and an ordinal.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DeviceName {
    type_name: String,
    ordinal: i32,
}

impl std::fmt::Display for DeviceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.type_name, self.ordinal)
    }
}

fn parse_device(text: &str) -> Result<DeviceName> {
    let (type_name, ordinal) = match text.split_once(':') {
        Some((t, n)) => (t, n.parse().with_context(|| format!("`{n}` is not the number of a device"))?),
        None => (text, 0),
    };
    if type_name.is_empty() || ordinal < 0 {
        bail!("write it as in host or host:1");
    }
    Ok(DeviceName { type_name: type_name.to_string(), ordinal })
}

/// Why the program ends with another status than 0.
enum Failure {
    Error(anyhow::Error),
    OutOfMemory(String),
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(e: E) -> Self {
        Failure::Error(e.into())
    }
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Replay(args) => replay_command(&args),
        Command::Demo(args) => demo_command(&args),
        Command::Bisect(args) => bisect_command(&args).map_err(Failure::from),
        Command::Info(args) => info_command(&args).map_err(Failure::from),
        Command::History(args) => history_command(&args).map_err(Failure::from),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Error(e)) => {
            eprintln!("millpond: {e:#}");
            ExitCode::FAILURE
        }
        Err(Failure::OutOfMemory(message)) => {
            eprintln!("millpond: {message}");
            ExitCode::from(bisect::EXIT_OUT_OF_MEMORY)
        }
    }
}

/// Prints. A reader that has gone away (`millpond info | head -1`) is no reason to fail; a full disk is.
fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        said => said.context("standard output cannot be written"),
    }
}

/// Whether `-` stands for standard output.
fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// Loads the plugin, if any, and names the device that is meant.
fn choose_device(args: &DeviceArgs) -> Result<DeviceName> {
    let mut name = args.device.clone();
    if let Some(path) = &args.plugin {
        let loaded = api::load_plugin(path).with_context(|| path.display().to_string())?;
        if name.type_name == "host" {
            name.type_name = loaded;
        }
    }
    Ok(name)
}

/// Opens a device with so much memory. The embedded host device is made to measure; others are limited.
fn open_device(name: &DeviceName, capacity: Option<u64>, traces: &[Trace]) -> Result<(Device, api::Info)> {
    if name.type_name == "host" {
        let capacity = capacity.unwrap_or_else(|| replay::default_capacity(traces));
        // As many devices as it takes; an ordinal beyond what there can be is refused when it is opened.
        let count = (name.ordinal as u32).saturating_add(1).max(2);
        let count = if count > MOST_HOST_DEVICES { 0 } else { count };
        api::configure_host(count, capacity)?;
    }
    let device = Device::get(&name.type_name, name.ordinal)
        .with_context(|| format!("device {name} cannot be used. `millpond info` lists what there is"))?;
    let mut info = device.info()?;
    if let Some(capacity) = capacity.filter(|_| name.type_name != "host") {
        device.set_limit(capacity)?;
        info.total = info.total.min(capacity);
    }
    Ok((device, info))
}

fn write(path: &Path, text: &str) -> Result<()> {
    if is_stdout(path) {
        return say(text);
    }
    std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

fn replay_command(args: &ReplayArgs) -> Result<(), Failure> {
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
fn replay_all<'t>(
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

fn demo_command(args: &DemoArgs) -> Result<(), Failure> {
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

fn bisect_command(args: &BisectArgs) -> Result<()> {
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

fn info_command(args: &InfoArgs) -> Result<()> {
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

fn history_command(args: &HistoryArgs) -> Result<()> {
    let history = history::History::read(&args.file)?;
    say(&if args.json { history.json_lines() } else { history.table() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn devices_are_read() {
        let d = |s| parse_device(s).map(|d| d.to_string());
        assert_eq!(d("host").unwrap(), "host:0");
        assert_eq!(d("cpu:3").unwrap(), "cpu:3");
        for bad in ["", ":1", "host:x", "host:-1", "host:"] {
            assert!(d(bad).is_err(), "{bad}");
        }
    }
}
