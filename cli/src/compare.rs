//! `millpond compare`: several configurations on one trace, side by side. Each replay is a process of its own, and the
//! configurations take turns, so that what else the machine does falls on all of them.

use crate::bisect;
use crate::probe::{self, End, Setup};
use crate::replay::MOST_HOST_BYTES;
use crate::trace::Trace;
use crate::units::{bytes, count, counted, nanoseconds};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

/// What is compared.
#[derive(Clone, Debug)]
pub(crate) struct Configuration {
    pub(crate) name: String,
    pub(crate) setup: Setup,
}

/// How.
pub(crate) struct Plan {
    pub(crate) capacity: Option<u64>, // [B] of the device
    pub(crate) touch: String,         // as `replay` takes it
    pub(crate) repeats: u32,          // of each replay; at least 1
    pub(crate) passes: u32,           // of the trace in each
    pub(crate) bisect: bool,          // whether the smallest device is looked for
    pub(crate) quiet: bool,
}

/// What came of one configuration.
pub(crate) struct Column {
    configuration: Configuration,
    result: Option<Value>, // of the fastest replay, as `millpond replay --json` tells it
    smallest: Option<u64>, // [B] device on which the trace completes
    out_of_memory: Option<String>,
    error: Option<String>,
}

/// One trace with all configurations.
pub(crate) struct Comparison<'t> {
    trace: &'t Trace,
    pub(crate) columns: Vec<Column>,
}

impl Column {
    fn new(configuration: Configuration) -> Column {
        Column { configuration, result: None, smallest: None, out_of_memory: None, error: None }
    }

    /// Whether there is more to find out.
    fn is_well(&self) -> bool {
        self.error.is_none() && self.out_of_memory.is_none()
    }

    /// Whether something failed that is not a lack of memory.
    pub(crate) fn failed(&self) -> bool {
        self.error.is_some()
    }

    /// Whether memory ran out.
    pub(crate) fn ran_out(&self) -> bool {
        self.out_of_memory.is_some()
    }

    /// What went wrong, in a line or more.
    pub(crate) fn says(&self) -> String {
        let why = self.error.as_deref().or(self.out_of_memory.as_deref()).unwrap_or("nothing");
        format!("{}: {why}", self.configuration.name)
    }

    /// A number of the result, by its path.
    fn number(&self, path: &str) -> Option<f64> {
        self.result.as_ref()?.pointer(path)?.as_f64()
    }

    /// [ns] all calls, without what reading the clock costs.
    fn calls_ns(&self) -> Option<f64> {
        let clock = self.number("/clock_ns")?;
        ["alloc", "free"].iter().try_fold(0.0, |sum, kind| {
            let (calls, mean) =
                (self.number(&format!("/{kind}/calls"))?, self.number(&format!("/{kind}/mean_ns"))?);
            Some(sum + calls * (mean - clock).max(0.0))
        })
    }

    fn replay(&mut self, path: &Path, plan: &Plan) -> Result<()> {
        let mut more = vec![
            "--json=-".to_string(),
            format!("--touch={}", plan.touch),
            format!("--passes={}", plan.passes),
        ];
        more.extend(plan.capacity.map(|c| format!("--capacity={c}")));
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        let out = match probe::replay(path, &self.configuration.setup, &more)? {
            End::Completed(out) => out,
            End::OutOfMemory(out, said) => {
                self.out_of_memory = Some(said);
                out
            }
        };
        let all: Value = serde_json::from_str(&out).context("what a replay printed cannot be read")?;
        let new = all.get(0).filter(|r| r.get("alloc").is_some()).cloned();
        let old = self.result.take();
        let before = self.calls_ns();
        self.result = new;
        // The fastest of them is what the machine disturbed least.
        if old.is_some() && (self.result.is_none() || before < self.calls_ns()) {
            self.result = old;
        }
        Ok(())
    }

    fn find_smallest(&mut self, path: &Path, peak: u64) -> Result<()> {
        let setup = &self.configuration.setup;
        let most = if setup.is_made_to_measure() {
            MOST_HOST_BYTES
        } else {
            self.number("/device_bytes").map_or(u64::MAX, |n| n as u64)
        };
        self.smallest = Some(bisect::bisect(path, peak, most, setup, true)?);
        Ok(())
    }
}

/// Compares.
pub(crate) fn compare<'t>(
    path: &Path,
    trace: &'t Trace,
    configurations: &[Configuration],
    plan: &Plan,
) -> Comparison<'t> {
    let mut columns: Vec<Column> = configurations.iter().cloned().map(Column::new).collect();
    let say = |c: &Column, what: &str| {
        if !plan.quiet {
            tell!("{}: {}: {what}", trace.name, c.configuration.name);
        }
    };
    for turn in 1..=plan.repeats {
        for c in columns.iter_mut().filter(|c| c.is_well()) {
            say(c, &format!("replay {turn} of {}", plan.repeats));
            c.error = c.replay(path, plan).err().map(|e| format!("{e:#}"));
        }
    }
    // A device that is made to measure may well be large enough where the one of the replays was not.
    let can_be_found = |c: &Column| c.is_well() || c.ran_out() && c.configuration.setup.is_made_to_measure();
    for c in columns.iter_mut().filter(|c| plan.bisect && can_be_found(c)) {
        say(c, "looking for the smallest device");
        c.error = c.find_smallest(path, trace.peak_live_bytes).err().map(|e| format!("{e:#}"));
    }
    Comparison { trace, columns }
}

/// A ratio: `1.05x`.
fn times(ratio: f64) -> String {
    if ratio < 10.0 { format!("{ratio:.2}x") } else { format!("{ratio:.0}x") }
}

impl Comparison<'_> {
    /// A row of the table: its label, and the cell of each column; none where no column has one.
    fn row(&self, label: &str, cell: impl Fn(&Column) -> Option<String>) -> Option<Vec<String>> {
        let cells: Vec<Option<String>> = self.columns.iter().map(cell).collect();
        cells.iter().any(Option::is_some).then(|| {
            let told = cells.into_iter().map(|c| c.unwrap_or_else(|| "-".to_string()));
            std::iter::once(label.to_string()).chain(told).collect()
        })
    }

    /// What is measured against the first column: the value there, and ratios beside it.
    fn against_first(&self, label: &str, value: impl Fn(&Column) -> Option<f64>) -> [Option<Vec<String>>; 2] {
        let first = self.columns.first().and_then(&value).filter(|v| *v > 0.0);
        [
            self.row(label, |c| value(c).map(nanoseconds)),
            self.row("  against the first", |c| Some(times(value(c)? / first?))),
        ]
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let live = self.trace.peak_live_bytes.max(1) as f64;
        let sized = |label: &'static str, path: &'static str| {
            self.row(label, move |c| Some(bytes(c.number(path)? as u64)))
        };
        let counted = |label: &'static str, path: &'static str| {
            self.row(label, move |c| Some(count(c.number(path)? as u64)))
        };
        let smallest = |c: &Column| c.smallest;
        let mut rows = vec![
            self.row("smallest device", |c| smallest(c).map(bytes)),
            self.row("  / program's peak", |c| Some(format!("{:.4}", smallest(c)? as f64 / live))),
            sized("peak reserved", "/reserved_bytes/peak"),
            self.row("  / program's peak", |c| {
                Some(format!("{:.4}", c.number("/reserved_bytes/peak")? / live))
            }),
            sized("peak active", "/active_bytes/peak"),
            sized("peak allocated", "/allocated_bytes/peak"),
            counted("peak segments", "/segments/peak"),
            counted("driver calls", "/driver_calls"),
        ];
        rows.extend(self.against_first("all calls", Column::calls_ns));
        rows.extend(self.against_first("median alloc", |c| c.number("/alloc/median_ns")));
        rows.extend(self.against_first("median free", |c| c.number("/free/median_ns")));
        rows.into_iter().flatten().collect()
    }

    /// The table.
    pub(crate) fn table(&self, version: &str) -> String {
        let t = self.trace;
        let mut out = format!(
            "{}, {}, Millpond {version}; the program's peak is {} in {}\n\n",
            t.name,
            counted(t.events.len() as u64, "operation"),
            bytes(t.peak_live_bytes),
            counted(t.max_live_blocks, "block")
        );
        let mut rows = self.rows();
        let names = self.columns.iter().map(|c| c.configuration.name.clone());
        rows.insert(0, std::iter::once(String::new()).chain(names).collect());
        let width = |n: usize| rows.iter().map(|r| r[n].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..=self.columns.len()).map(width).collect();
        let names = self.columns.iter().map(|c| c.configuration.name.chars().count()).max().unwrap_or(0);
        for c in &self.columns {
            let _ = writeln!(out, "  {:<names$}  {}", c.configuration.name, c.configuration.setup);
        }
        out.push('\n');
        for row in rows.iter().filter(|_| rows.len() > 1) {
            let mut line = format!("  {:<w$}", row[0], w = widths[0]);
            for (cell, w) in row.iter().zip(&widths).skip(1) {
                let _ = write!(line, "  {cell:>w$}");
            }
            let _ = writeln!(out, "{}", line.trim_end());
        }
        for c in &self.columns {
            if c.failed() || c.ran_out() {
                let _ = writeln!(out, "\n{}", c.says());
            }
        }
        out
    }

    /// Everything, in bytes and nanoseconds.
    pub(crate) fn json(&self) -> Value {
        let first = self.columns.first().and_then(Column::calls_ns).filter(|v| *v > 0.0);
        let live = self.trace.peak_live_bytes.max(1) as f64;
        let columns: Vec<Value> = self
            .columns
            .iter()
            .map(|c| {
                let smallest = c.smallest;
                json!({
                    "name": c.configuration.name,
                    "device": c.configuration.setup.device.to_string(),
                    "options": c.configuration.setup.options,
                    "smallest_device_bytes": smallest,
                    "smallest_device_over_peak_live": smallest.map(|s| s as f64 / live),
                    "calls_ns": c.calls_ns(),
                    "calls_over_first": c.calls_ns().zip(first).map(|(own, first)| own / first),
                    "out_of_memory": c.out_of_memory,
                    "error": c.error,
                    "replay": c.result,
                })
            })
            .collect();
        json!({
            "trace": self.trace.name,
            "peak_live_bytes": self.trace.peak_live_bytes,
            "configurations": columns,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::device::parse_device;

    fn column(name: &str, result: Option<Value>) -> Column {
        let setup =
            Setup { device: parse_device("host").unwrap(), plugin: None, options: "backend:none".into() };
        let mut c = Column::new(Configuration { name: name.into(), setup });
        c.result = result;
        c
    }

    #[test]
    fn times_are_told_against_the_first() {
        let trace = Trace::parse("t", "a 1 1048576 0\nf 1\n").unwrap();
        let result = |mean: f64| {
            let calls = json!({"calls": 10, "mean_ns": mean, "median_ns": mean});
            json!({"clock_ns": 20.0, "alloc": calls, "free": calls, "reserved_bytes": {"peak": 2 << 20}})
        };
        let mut columns = vec![
            column("one", Some(result(120.0))),
            column("other", Some(result(320.0))),
            column("small", None),
        ];
        columns[0].smallest = Some(3 << 20);
        columns[2].out_of_memory = Some("it has only 1 B".into());
        let both = Comparison { trace: &trace, columns };
        assert_eq!(both.columns[0].calls_ns(), Some(2000.0));
        let table = both.table("9");
        for wants in [
            "3.00x",
            "1.00x",
            "2.0000",
            "3.0000",
            "2.00 µs",
            "small: it has only 1 B",
            "host:0, backend:none",
        ] {
            assert!(table.contains(wants), "`{wants}` is not in\n{table}");
        }
        // A column for each, and nothing of what nobody has.
        assert!(table.lines().any(|l| l.split_whitespace().eq(["one", "other", "small"])), "{table}");
        assert!(!table.contains("driver calls"), "{table}");
        let json = both.json();
        assert_eq!(json["configurations"][1]["calls_over_first"], 3.0);
        assert_eq!(json["configurations"][0]["smallest_device_over_peak_live"], 3.0);
        assert!(json["configurations"][2]["replay"].is_null());
    }
}
