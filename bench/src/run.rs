//! Runs the measurements: one process each, subjects interleaved.

use crate::store::Store;
use crate::subject::Kind;
use anyhow::{Context, Result};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What is to be measured.
pub(crate) struct Plan {
    pub(crate) workloads: Vec<&'static str>,
    pub(crate) subjects: Vec<(&'static str, Kind, &'static str)>,
    pub(crate) traces: Vec<PathBuf>,
    pub(crate) reps: usize,
    pub(crate) seconds: f64,
    pub(crate) budget: f64,
}

/// [B] of the warm pair.
pub(crate) const PAIR: [u64; 4] = [512, 4096, 1 << 20, 64 << 20];
/// Live blocks.
pub(crate) const GROWTH: [u64; 3] = [100, 10_000, 1_000_000];
/// Numbers of threads, and a pipeline of two.
pub(crate) const THREADS: [&str; 4] = ["1", "2", "4", "hand-over"];

impl Plan {
    /// The short name of a trace: the file's, to the first dot.
    pub(crate) fn name(trace: &Path) -> String {
        let file = trace.file_name().unwrap_or_default().to_string_lossy().into_owned();
        file.split('.').next().unwrap_or("trace").to_owned()
    }
    /// The points of a workload over all traces.
    pub(crate) fn trace_points(&self, workload: &str) -> Vec<String> {
        self.traces.iter().map(|t| format!("{workload}/{}", Plan::name(t))).collect()
    }

    /// All measurements: workload, point, trace.
    fn points(&self) -> Vec<(&'static str, String, Option<&Path>)> {
        let mut all = Vec::new();
        for &w in &self.workloads {
            let mut push = |p: String| all.push((w, p, None));
            match w {
                "pair" => PAIR.iter().for_each(|n| push(n.to_string())),
                "growth" => GROWTH.iter().for_each(|n| push(n.to_string())),
                "tail" => push("1000".into()),
                "threads" => THREADS.iter().for_each(|n| push((*n).into())),
                "memory" => ["blocks", "full"].iter().for_each(|n| push((*n).into())),
                _ => all.extend(self.traces.iter().map(|t| (w, Plan::name(t), Some(t.as_path())))),
            }
        }
        all
    }

    /// Whether the measurement says anything for a subject of this kind.
    fn applies(&self, workload: &str, point: &str, name: &str, kind: Kind, rep: usize) -> bool {
        match workload {
            "pair" => true,
            // A million blocks of a host allocator are real memory.
            "growth" => kind != Kind::Host || point != "1000000",
            "tail" => name != "floor",
            "threads" => name != "floor" || point != "hand-over",
            "trace" => kind == Kind::Device,
            // The same each time.
            "capacity" => kind == Kind::Device && rep == 0,
            _ => matches!(name, "millpond" | "segments") && rep == 0,
        }
    }
}

/// The traces of a directory, in the order of their names, and those given by hand.
pub(crate) fn traces(dir: &Path, more: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let is_trace = |p: &PathBuf| {
        let n = p.to_string_lossy();
        n.ends_with(".trace") || n.ends_with(".trace.zst")
    };
    let mut found: Vec<PathBuf> = match std::fs::read_dir(dir) {
        Ok(entries) => entries.filter_map(|e| e.ok().map(|e| e.path())).filter(is_trace).collect(),
        Err(_) => Vec::new(),
    };
    found.sort();
    for m in more {
        std::fs::metadata(m).with_context(|| m.display().to_string())?;
        if !found.iter().any(|f| Plan::name(f) == Plan::name(m)) {
            found.push(m.clone());
        }
    }
    Ok(found)
}

/// Measures everything.
pub(crate) fn all(plan: &Plan) -> Result<Store> {
    let mut store = Store::default();
    let points = plan.points();
    let start = std::time::Instant::now();
    for rep in 0..plan.reps {
        for (workload, point, trace) in &points {
            let n = plan.subjects.len();
            for &(name, kind, _) in (0..n).map(|k| &plan.subjects[(k + rep) % n]) {
                let key = format!("{workload}/{point}");
                // What took too long takes too long again; a burst without a disturbance may still come.
                let again = *workload == "threads" || store.failure(name, &key).is_none();
                if again && plan.applies(workload, point, name, kind, rep) {
                    one(plan, &mut store, name, workload, point, *trace)?;
                }
            }
            if std::io::stderr().is_terminal() {
                let seconds = start.elapsed().as_secs();
                eprint!("\r\x1b[Krepetition {}/{}, {workload} {point}, {seconds} s", rep + 1, plan.reps);
            }
        }
    }
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    Ok(store)
}

fn one(
    plan: &Plan,
    store: &mut Store,
    name: &str,
    workload: &str,
    point: &str,
    trace: Option<&Path>,
) -> Result<()> {
    let mut c = Command::new(std::env::current_exe()?);
    c.args(["--child", name, workload, point]);
    c.args(["--seconds", &plan.seconds.to_string(), "--budget", &plan.budget.to_string()]);
    if let Some(t) = trace {
        c.arg("--trace").arg(t);
    }
    // Millpond's own switches would change what is measured.
    for (key, _) in std::env::vars_os().filter(|(k, _)| k.to_string_lossy().starts_with("MILLPOND_")) {
        c.env_remove(key);
    }
    let out = c.stdin(Stdio::null()).output()?;
    let key = format!("{workload}/{point}");
    if !out.status.success() {
        let text = String::from_utf8_lossy(&out.stderr);
        let why = text.lines().find(|l| !l.is_empty()).unwrap_or("no message").trim_start_matches("Error: ");
        store.fail(name, &key, why.to_owned());
    }
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        if let Some((metric, value)) = line.split_once(' ')
            && let Ok(v) = value.parse()
        {
            store.add(name, &key, metric, v);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_traces() {
        assert_eq!(Plan::name(Path::new("a/b.c/gpt2_train.trace.zst")), "gpt2_train");
    }
}
