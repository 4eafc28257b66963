//! `make bench`: what Millpond costs and wastes, beside others, in one run.
//!
//! Each measurement is a process of its own (this program again, with `--child`). One repetition visits every subject
//! once for each point, in an order that rotates, so that a slow moment of the machine falls on all; the tables have
//! the medians over the repetitions and half the range between their quartiles.

// A package that is declared and not used is a failure of `cargo clippy`.
#![cfg_attr(not(test), warn(unused_crate_dependencies))]

mod plot;
mod report;
mod run;
mod store;
mod subject;
mod tools;
mod work;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use std::path::PathBuf;

/// The workloads, in the order of the tables.
pub(crate) const WORKLOADS: [&str; 7] = ["pair", "growth", "tail", "threads", "trace", "capacity", "memory"];

/// Measures Millpond beside other allocators and prints one table of goals and what was reached.
#[derive(Parser, Debug, Clone)]
#[command(version)]
pub(crate) struct Args {
    /// One short repetition of everything
    #[arg(long)]
    quick: bool,
    /// Only these workloads: pair, growth, tail, threads, trace, capacity, memory
    #[arg(long, value_delimiter = ',', value_name = "WORKLOADS")]
    only: Vec<String>,
    /// Only these subjects: millpond, segments, "best fit", glibc, mimalloc, floor, null
    #[arg(long, value_delimiter = ',', value_name = "SUBJECTS")]
    subjects: Vec<String>,
    /// One more trace file (.trace or .trace.zst) beside those in traces/; repeatable
    #[arg(long, value_name = "FILE")]
    trace: Vec<PathBuf>,
    /// Repetitions
    #[arg(long, value_name = "N")]
    reps: Option<usize>,
    /// Measuring time of one result, in seconds
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Give up on a set-up or a replay after this many seconds
    #[arg(long, value_name = "S", default_value_t = 30.0)]
    budget: f64,
    /// Write every number here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the plots (SVG) into this directory
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Measure nothing: tables and plots of what --json wrote before
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "trace"])]
    from: Option<PathBuf>,
    /// The directory of the traces
    #[arg(long, value_name = "DIR", default_value = "traces")]
    traces: PathBuf,
    /// Measure SUBJECT,WORKLOAD,POINT in this process
    #[arg(long, hide = true, num_args = 3)]
    child: Option<Vec<String>>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let seconds = args.seconds.unwrap_or(if args.quick { 0.05 } else { 0.25 });
    ensure!(seconds > 0.0 && args.budget > 0.0, "times must be above zero");
    if let Some([subject, workload, point]) = args.child.as_deref() {
        return work::run(&work::Job {
            subject: subject.clone(),
            workload: workload.clone(),
            point: point.clone(),
            seconds,
            budget: args.budget,
            trace: args.trace.first().cloned(),
        });
    }
    for w in &args.only {
        ensure!(WORKLOADS.contains(&w.as_str()), "no workload {w:?}; there are: {}", WORKLOADS.join(", "));
    }
    for s in &args.subjects {
        ensure!(
            subject::kind(s).is_some(),
            "no subject {s:?}; there are: {}",
            subject::SUBJECTS.map(|s| s.0).join(", ")
        );
    }
    let mut plan = run::Plan {
        workloads: WORKLOADS
            .into_iter()
            .filter(|w| args.only.is_empty() || args.only.iter().any(|o| o == w))
            .collect(),
        subjects: subject::SUBJECTS
            .into_iter()
            .filter(|s| args.subjects.is_empty() || args.subjects.iter().any(|o| o == s.0))
            .collect(),
        traces: run::traces(&args.traces, &args.trace)?,
        reps: args.reps.unwrap_or(if args.quick { 1 } else { 5 }).max(1),
        seconds,
        budget: args.budget,
    };
    let store = match &args.from {
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
            let (store, traces) = report::from_json(&text).with_context(|| path.display().to_string())?;
            plan.traces = traces;
            store
        }
        None => run::all(&plan)?,
    };
    print!("{}", report::text(&store, &plan));
    if let Some(path) = &args.json {
        std::fs::write(path, report::json(&store, &plan)?).with_context(|| path.display().to_string())?;
    }
    if let Some(dir) = &args.svg {
        plot::write(&store, &plan, dir).with_context(|| dir.display().to_string())?;
    }
    Ok(())
}
