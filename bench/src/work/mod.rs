//! The workloads. Each measurement is a process of its own, which prints lines of `metric value`; they follow those of
//! the external harness that compares released allocators (see docs/performance.md), so that both can be read together.

mod growth;
mod memory;
mod pair;
mod tail;
mod threads;
pub(crate) mod trace;

use anyhow::{Result, bail};
use std::path::PathBuf;

/// What one process is to measure.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// A name of [`crate::subject::SUBJECTS`].
    pub(crate) subject: String,
    /// pair, growth, tail, threads, trace, capacity or memory.
    pub(crate) workload: String,
    /// Of the workload: a size, a number of blocks, a kind and number of threads; of traces, nothing.
    pub(crate) point: String,
    /// [s] of measuring.
    pub(crate) seconds: f64,
    /// [s] before a set-up or a replay is given up.
    pub(crate) budget: f64,
    /// The trace.
    pub(crate) trace: Option<PathBuf>,
}

/// [B] the device of every workload but `capacity`. Nothing touches it.
pub(crate) const DEVICE: u64 = 80 << 30;

/// One number.
pub(crate) fn say(metric: &str, value: f64) {
    println!("{metric} {value}");
}

/// The child's whole work.
pub(crate) fn run(job: &Job) -> Result<()> {
    match job.workload.as_str() {
        "pair" => pair::run(job),
        "growth" => growth::run(job),
        "tail" => tail::run(job),
        "threads" => threads::run(job),
        "trace" => trace::warm(job),
        "capacity" => trace::capacity(job),
        "memory" => memory::run(job),
        other => bail!("no workload {other:?}"),
    }
}
