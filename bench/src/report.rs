//! The table of goals and what was reached, and all numbers as JSON.

use crate::run::{GROWTH, PAIR, Plan, THREADS};
use crate::store::Store;
use crate::tools::median;
use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::path::PathBuf;

/// How a goal is compared.
#[derive(Clone, Copy, PartialEq)]
enum Want {
    AtMost(f64),
    AtLeast(f64),
    None,
}

/// A value, and its spread as a part of it where that is known.
type Cell = (f64, Option<f64>);

/// A line of the table.
struct Row {
    what: String,
    unit: &'static str,
    want: Want,
    /// By subject.
    cells: Vec<(&'static str, Option<Cell>)>,
    /// Which subject the goal is about.
    who: &'static str,
}

struct Rows<'a> {
    store: &'a Store,
    plan: &'a Plan,
    rows: Vec<Row>,
}

fn bytes(n: u64) -> String {
    match n {
        n if n >= 1 << 20 => format!("{} MiB", n >> 20),
        n if n >= 1 << 10 => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}

/// Three digits or so.
pub(crate) fn number(v: f64) -> String {
    match v {
        v if v >= 1e6 => format!("{:.1}M", v / 1e6),
        v if v >= 10_000.0 => format!("{:.0}k", v / 1000.0),
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        _ => format!("{v:.2}"),
    }
}

fn exact(unit: &str, v: f64) -> String {
    match unit {
        "x live" => format!("{v:.4}"),
        "calls" => format!("{v:.0}"),
        "%" => format!("{v:.4}"),
        _ => number(v),
    }
}

impl Rows<'_> {
    fn push(
        &mut self,
        what: impl Into<String>,
        unit: &'static str,
        who: &'static str,
        want: Want,
        cell: impl Fn(&Store, &str) -> Option<Cell>,
    ) {
        let cells: Vec<_> = self.plan.subjects.iter().map(|s| (s.0, cell(self.store, s.0))).collect();
        if cells.iter().any(|c| c.1.is_some()) {
            self.rows.push(Row { what: what.into(), unit, want, cells, who });
        }
    }

    fn metric(&mut self, what: &str, unit: &'static str, want: Want, point: &str, metric: &str) {
        self.push(what, unit, "millpond", want, |s, name| {
            s.value(name, point, metric).map(|v| (v, s.spread(name, point, metric)))
        });
    }

    /// One metric of a point over the same of another.
    fn ratio(&mut self, what: &str, want: Want, over: &str, under: &str, metric: &str) {
        self.push(what, "x", "millpond", want, |s, name| {
            Some((s.value(name, over, metric)? / s.value(name, under, metric)?, None))
        });
    }

    /// Median and worst over the traces.
    fn traces(
        &mut self,
        what: &str,
        unit: &'static str,
        who: &'static str,
        want: [Want; 2],
        workload: &str,
        metric: &str,
    ) {
        let points = self.plan.trace_points(workload);
        let worst = |v: &[f64]| v.iter().copied().fold(0.0, f64::max);
        for (name, is_worst, want) in [("median", false, want[0]), ("worst", true, want[1])] {
            let points = &points;
            self.push(format!("{what}, {name}"), unit, who, want, move |s, name| {
                let v = s.over(name, points, metric);
                (!v.is_empty()).then(|| (if is_worst { worst(&v) } else { median(&v) }, None))
            });
        }
    }
}

fn rows<'a>(store: &'a Store, plan: &'a Plan) -> Vec<Row> {
    use Want::{AtLeast, AtMost};
    let mut r = Rows { store, plan, rows: Vec::new() };
    let floor = |p: &str| store.value("floor", p, "ns");
    for n in PAIR {
        let p = format!("pair/{n}");
        let want = floor(&p).map_or(Want::None, |f| AtMost(2.0 * f));
        r.metric(&format!("warm pair, {}", bytes(n)), "ns", want, &p, "ns");
    }
    r.metric("driver calls of warm pairs", "calls", AtMost(0.0), "pair/1048576", "driver_calls_warm");
    for n in GROWTH {
        let want = if n == 1_000_000 { AtMost(80.0) } else { Want::None };
        r.metric(&format!("replace among {n}"), "ns", want, &format!("growth/{n}"), "ns");
    }
    r.ratio("growth from 100 to 10 000", AtMost(1.5), "growth/10000", "growth/100", "ns");
    r.metric("mixed sizes, 1000 live", "ns/op", Want::None, "tail/1000", "ns_op");
    for (m, want) in [("p50", Want::None), ("p99", Want::None), ("p999", AtMost(120.0))] {
        let name = m.replace("p999", "p99.9");
        r.metric(
            &format!("allocate {name} (clock included)"),
            "ns",
            want,
            "tail/1000",
            &format!("alloc_{m}"),
        );
    }
    r.metric("one thread", "M/s", Want::None, "threads/1", "mpairs");
    r.metric("two threads, own streams", "M/s", Want::None, "threads/2", "mpairs");
    r.ratio("two threads over one", AtLeast(1.95), "threads/2", "threads/1", "mpairs");
    r.ratio("four threads over two", AtLeast(0.9), "threads/4", "threads/2", "mpairs");
    r.metric("allocate here, free there", "M/s", AtLeast(8.0), "threads/hand-over", "mpairs");
    r.traces("trace, warm", "ns/op", "millpond", [AtMost(12.0), AtMost(20.0)], "trace", "warm_ns");
    r.traces("trace, cold", "ns/op", "millpond", [Want::None; 2], "trace", "cold_ns");
    r.traces("driver calls, warm pass", "calls", "millpond", [AtMost(0.0); 2], "trace", "driver_calls_warm");
    r.traces("driver calls / 1000 op, cold", "", "millpond", [Want::None; 2], "trace", "driver_calls_cold");
    r.traces("peak reserved", "x live", "millpond", [AtMost(1.01), AtMost(1.02)], "trace", "peak");
    r.traces("smallest device", "x live", "millpond", [AtMost(1.005), AtMost(1.01)], "capacity", "smallest");
    r.traces(
        "same, segments only",
        "x live",
        "segments",
        [AtMost(1.02), AtMost(1.05)],
        "capacity",
        "smallest",
    );
    r.metric("host memory of a live block", "B", AtMost(64.0), "memory/blocks", "block");
    r.metric("host memory of a full device", "%", AtMost(0.05), "memory/full", "percent_of_device");
    r.metric("host memory of an open device", "B", Want::None, "memory/blocks", "device");
    r.rows
}

/// The tables, as Markdown that is also readable as text.
pub(crate) fn text(store: &Store, plan: &Plan) -> String {
    let mut out = String::new();
    let mut head = vec!["what".to_owned(), "unit".into(), "goal".into(), "reached".into(), "met".into()];
    let others: Vec<_> = plan.subjects.iter().map(|s| s.0).filter(|s| *s != "millpond").collect();
    head.extend(others.iter().map(|s| (*s).to_owned()));
    let mut table = Vec::new();
    for r in rows(store, plan) {
        let cell = |name: &str| {
            let (v, spread) = r.cells.iter().find(|c| c.0 == name)?.1?;
            let spread = spread.map_or(String::new(), |s| format!(" ±{:.0}%", s * 100.0));
            Some(exact(r.unit, v) + &spread)
        };
        let value = r.cells.iter().find(|c| c.0 == r.who).and_then(|c| c.1).map(|c| c.0);
        let (goal, met) = match (r.want, value) {
            (Want::AtMost(g), v) => (format!("<= {}", exact(r.unit, g)), v.map(|v| v <= g)),
            (Want::AtLeast(g), v) => (format!(">= {}", exact(r.unit, g)), v.map(|v| v >= g)),
            (Want::None, _) => (String::new(), None),
        };
        let met = met.map_or("", |m| if m { "yes" } else { "no" });
        let mut line = vec![r.what.clone(), r.unit.into(), goal, cell(r.who).unwrap_or_default(), met.into()];
        line.extend(others.iter().map(|o| cell(o).unwrap_or_default()));
        table.push(line);
    }
    out += &markdown(&head, &table);
    per_trace(&mut out, store, plan);
    let nothing = |s: &str, p: &str| store.all().all(|v| (v.0, v.1) != (s, p));
    for (subject, point, why) in store.failures().filter(|f| nothing(f.0, f.1)) {
        let _ = writeln!(out, "{subject}, {point}: {why}");
    }
    out
}

fn per_trace(out: &mut String, store: &Store, plan: &Plan) {
    let devices: Vec<_> = plan.subjects.iter().map(|s| s.0).filter(|s| plan_is_device(s)).collect();
    if plan.traces.is_empty() || !plan.workloads.iter().any(|w| matches!(*w, "trace" | "capacity")) {
        return;
    }
    let mut head = vec!["trace".to_owned()];
    for what in ["warm ns/op", "peak", "smallest"] {
        head.extend(devices.iter().map(|d| format!("{what}, {d}")));
    }
    let table: Vec<Vec<String>> = (plan.traces.iter())
        .map(|t| {
            let name = Plan::name(t);
            let mut line = vec![name.clone()];
            for (w, m) in [("trace", "warm_ns"), ("trace", "peak"), ("capacity", "smallest")] {
                for d in &devices {
                    let point = format!("{w}/{name}");
                    let above = store.value(d, &point, "fails_above").filter(|f| *f > 0.0);
                    let mark = above.map_or(String::new(), |f| format!(" ({f:.0} fail above)"));
                    let unit = if m == "warm_ns" { "ns" } else { "x live" };
                    line.push(store.value(d, &point, m).map_or(String::new(), |v| exact(unit, v) + &mark));
                }
            }
            line
        })
        .collect();
    let _ = writeln!(out);
    *out += &markdown(&head, &table);
}

fn plan_is_device(name: &str) -> bool {
    crate::subject::kind(name) == Some(crate::subject::Kind::Device)
}

fn markdown(head: &[String], rows: &[Vec<String>]) -> String {
    let width =
        |i: usize| rows.iter().chain([&head.to_vec()]).map(|r| r[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |r: &[String]| {
        let cells = r.iter().zip(&widths).enumerate();
        let cells = cells.map(|(i, (c, &w))| if i == 0 { format!("{c:<w$}") } else { format!("{c:>w$}") });
        format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
    };
    let dashes = widths.iter().enumerate().map(|(i, &w)| {
        let d = "-".repeat(w.max(1));
        if i == 0 { d } else { format!("{}:", &d[..w.max(2) - 1]) }
    });
    let rule = format!("| {} |\n", dashes.collect::<Vec<_>>().join(" | "));
    line(head) + &rule + &rows.iter().map(|r| line(r)).collect::<String>()
}

/// Every number of every repetition.
pub(crate) fn json(store: &Store, plan: &Plan) -> Result<String> {
    let mut all = serde_json::Map::new();
    for (subject, point, metric, values) in store.all() {
        let entry = all.entry(subject.to_owned()).or_insert_with(|| serde_json::json!({}));
        entry[point][metric] = serde_json::json!({ "median": median(values), "all": values });
    }
    let failures: Vec<_> = store.failures().map(|(s, p, w)| serde_json::json!([s, p, w])).collect();
    let text = serde_json::to_string_pretty(&serde_json::json!({
        "repetitions": plan.reps,
        "seconds": plan.seconds,
        "traces": plan.traces.iter().map(|t| Plan::name(t)).collect::<Vec<_>>(),
        "threads": THREADS,
        "results": all,
        "failures": failures,
    }))?;
    Ok(text + "\n")
}

/// The numbers that [`json`] wrote, and the traces they are about.
pub(crate) fn from_json(text: &str) -> Result<(Store, Vec<PathBuf>)> {
    let all: serde_json::Value = serde_json::from_str(text)?;
    let mut store = Store::default();
    let entries = |v: &serde_json::Value| v.as_object().cloned().unwrap_or_default();
    for (subject, points) in entries(&all["results"]) {
        for (point, metrics) in entries(&points) {
            for (metric, values) in entries(&metrics) {
                let values = values["all"].as_array().context("not a file of this program")?;
                values
                    .iter()
                    .filter_map(|v| v.as_f64())
                    .for_each(|v| store.add(&subject, &point, &metric, v));
            }
        }
    }
    let traces = all["traces"].as_array().context("not a file of this program")?;
    let traces = traces.iter().filter_map(|t| t.as_str()).map(PathBuf::from).collect();
    Ok((store, traces))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::SUBJECTS;

    fn plan() -> Plan {
        Plan {
            workloads: vec!["pair", "trace", "capacity"],
            subjects: SUBJECTS.to_vec(),
            traces: vec!["a.trace".into(), "b.trace".into()],
            reps: 1,
            seconds: 1.0,
            budget: 1.0,
        }
    }

    #[test]
    fn a_goal_is_met_or_not() {
        let mut s = Store::default();
        s.add("floor", "pair/512", "ns", 10.0);
        s.add("millpond", "pair/512", "ns", 19.9);
        s.add("floor", "pair/4096", "ns", 10.0);
        s.add("millpond", "pair/4096", "ns", 20.1);
        for (t, v) in [("a", 1.001), ("b", 1.02)] {
            s.add("millpond", &format!("capacity/{t}"), "smallest", v);
        }
        let text = text(&s, &plan());
        let line = |what: &str| text.lines().find(|l| l.contains(what)).unwrap_or("").to_owned();
        assert!(line("pair, 512 B").contains("| yes |"), "{text}");
        assert!(line("pair, 4 KiB").contains("|  no |"), "{text}");
        assert!(line("smallest device, worst").contains("1.0200 |  no |"), "{text}");
        assert!(!text.contains("replace among"), "nothing measured, no row");
    }

    #[test]
    fn json_comes_back() {
        let mut s = Store::default();
        [1.5, 2.5, 3.5].iter().for_each(|v| s.add("millpond", "trace/a", "warm_ns", *v));
        let (back, traces) = json(&s, &plan()).and_then(|t| from_json(&t)).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(back.value("millpond", "trace/a", "warm_ns"), Some(2.5));
        assert_eq!(traces.len(), 2);
        assert!(from_json("{}").is_err());
    }

    #[test]
    fn columns_line_up() {
        let m = markdown(&["a".into(), "bb".into()], &[vec!["xyz".into(), "1".into()]]);
        assert_eq!(m, "| a   | bb |\n| --- | -: |\n| xyz |  1 |\n");
    }
}
