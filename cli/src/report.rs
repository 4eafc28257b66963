//! What a replay found, as a table for people and as JSON for programs.

use crate::replay::{Outcome, Times};
use crate::touch::Touch;
use crate::trace::Trace;
use crate::units::{bytes, count, counted, nanoseconds};
use serde_json::{Value, json};
use std::fmt::Write;

/// One replay with what belongs to it.
pub(crate) struct Run<'a> {
    pub(crate) trace: &'a Trace,
    pub(crate) outcome: &'a Outcome,
    pub(crate) device: String, // as in "host:0"
    pub(crate) capacity: u64,  // [B] of the device
    pub(crate) touch: Touch,
}

/// A row of the summary: label, then now, peak and total where the row has them.
pub(crate) struct Row {
    pub(crate) label: &'static str,
    pub(crate) now: String,
    pub(crate) peak: String,
    pub(crate) total: String,
}

impl Run<'_> {
    /// The counters, for table and picture alike.
    pub(crate) fn memory_rows(&self) -> Vec<Row> {
        let s = &self.outcome.stats;
        let sizes = [
            ("requested", s.requested),
            ("allocated", s.allocated),
            ("active", s.active),
            ("reserved", s.reserved),
        ];
        let mut rows: Vec<Row> = sizes
            .into_iter()
            .map(|(label, c)| Row {
                label,
                now: bytes(c.current),
                peak: bytes(c.peak),
                total: bytes(c.total),
            })
            .collect();
        for (label, c) in [("live blocks", s.blocks), ("segments", s.segments)] {
            rows.push(Row { label, now: count(c.current), peak: count(c.peak), total: count(c.total) });
        }
        rows
    }

    /// Label and value of everything that is one number.
    pub(crate) fn facts(&self) -> Vec<(&'static str, String)> {
        let (t, o) = (self.trace, self.outcome);
        let mut operations = format!(
            "{}  ({}, {}",
            count(o.operations),
            counted(o.alloc.calls, "allocation"),
            counted(o.free.calls, "free")
        );
        if t.left_live > 0 {
            let _ = write!(operations, ", {} never freed", counted(t.left_live, "block"));
        }
        operations.push(')');
        if o.passes > 1 {
            let _ = write!(operations, " in {} passes", o.passes);
        }
        let mut facts = vec![
            ("operations", operations),
            ("streams", o.streams.to_string()),
            (
                "program's peak",
                format!("{}  in {}", bytes(t.peak_live_bytes), counted(t.max_live_blocks, "block")),
            ),
            ("peak reserved / peak live", format!("{:.4}", o.overhead(t))),
            ("driver calls", count(o.driver_calls)),
            ("out of memory", count(o.out_of_memory)),
            (
                "memory touched",
                match self.touch {
                    Touch::None => "no".to_string(),
                    Touch::Edges => "256 bytes at each end of each block".to_string(),
                    Touch::All => "every byte".to_string(),
                },
            ),
        ];
        if let Some(ns) = o.modelled_ns {
            let time = nanoseconds(ns as f64);
            facts.push((
                "modelled driver time",
                format!("{time}  (fake driver: a sum, nothing was measured)"),
            ));
        }
        if t.lost > 0 {
            facts.push(("not in the recording", format!("{} lost", counted(t.lost, "event"))));
        }
        if let Some(why) = &t.failed {
            let end = counted(t.events.len() as u64, "event");
            facts.push((
                "end of the recording",
                format!("it could not be written to its end: {why}; it ends after {end}"),
            ));
        }
        if let Some(c) = o.checked {
            let read = if c.bytes > 0 {
                format!("{} read back, all as written", bytes(c.bytes))
            } else {
                "contents not checked, as nothing was written".to_string()
            };
            facts.push(("checked", format!("{}, no overlap; {read}", counted(c.blocks, "block"))));
        }
        facts
    }

    /// Label and times of the two kinds of call.
    pub(crate) fn time_rows(&self) -> [(&'static str, Times); 2] {
        [("alloc", self.outcome.alloc), ("free", self.outcome.free)]
    }

    /// A sentence about the clock and the whole replay.
    pub(crate) fn time_note(&self) -> String {
        let o = self.outcome;
        let calls = o.alloc.mean * o.alloc.calls as f64 + o.free.mean * o.free.calls as f64;
        format!(
            "Each time includes {} for reading the clock. All calls: {}. The whole replay: {}.",
            nanoseconds(o.clock_ns),
            nanoseconds(calls),
            nanoseconds(o.wall.as_nanos() as f64)
        )
    }

    /// What happened, where memory ran out.
    pub(crate) fn shortage(&self) -> Option<String> {
        let s = self.outcome.shortage.as_ref()?;
        let (t, o) = (self.trace, self.outcome);
        Some(format!(
            "OUT OF MEMORY at operation {} of {} (line {}): a request of {}.\n  \
             The program held {}; with the request it needs {}. The device has {}; {} of it was reserved.\n  \
             To reach its end the trace needs at least {} of live bytes; `millpond bisect` finds what is enough.\n  \
             The library says: {}",
            count(s.event),
            count(t.events.len() as u64),
            s.line,
            bytes(s.request),
            bytes(s.live),
            bytes(s.live + s.request),
            bytes(self.capacity),
            bytes(o.stats.reserved.current),
            bytes(t.peak_live_bytes),
            s.message
        ))
    }

    /// The table.
    pub(crate) fn table(&self, version: &str) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "{} on {}, Millpond {version}", self.trace.name, self.device);
        if !self.trace.source.is_empty() {
            let _ = writeln!(out, "{}", self.trace.source.split(';').next().unwrap_or(""));
        }
        let _ = writeln!(out);
        for (label, value) in self.facts() {
            let _ = writeln!(out, "  {label:<26} {value}");
        }
        let _ = writeln!(out, "\n  {:<14} {:>14} {:>14} {:>14}", "memory", "now", "peak", "total");
        for r in self.memory_rows() {
            let _ = writeln!(out, "  {:<14} {:>14} {:>14} {:>14}", r.label, r.now, r.peak, r.total);
        }
        let heads = ["time per call", "median", "mean", "p99", "max"];
        let _ = writeln!(
            out,
            "\n  {:<14} {:>14} {:>14} {:>14} {:>14}",
            heads[0], heads[1], heads[2], heads[3], heads[4]
        );
        for (label, t) in self.time_rows() {
            let _ = writeln!(
                out,
                "  {:<14} {:>14} {:>14} {:>14} {:>14}",
                label,
                nanoseconds(t.median),
                nanoseconds(t.mean),
                nanoseconds(t.p99),
                nanoseconds(t.max)
            );
        }
        let _ = writeln!(out, "  {}", self.time_note());
        if let Some(shortage) = self.shortage() {
            let _ = writeln!(out, "\n{shortage}");
        }
        out
    }

    /// Everything, in bytes and nanoseconds.
    pub(crate) fn json(&self, version: &str) -> Value {
        let (t, o) = (self.trace, self.outcome);
        let counter =
            |c: crate::api::Counter| json!({"current": c.current, "peak": c.peak, "total": c.total});
        let times = |t: Times| json!({"calls": t.calls, "median_ns": t.median, "mean_ns": t.mean, "p99_ns": t.p99, "max_ns": t.max});
        json!({
            "millpond_version": version,
            "trace": {
                "name": t.name,
                "source": t.source,
                "events": t.events.len(),
                "allocs": t.allocs,
                "streams": t.streams,
                "peak_live_bytes": t.peak_live_bytes,
                "max_live_blocks": t.max_live_blocks,
                "left_live_blocks": t.left_live,
                "total_bytes": t.total_bytes,
                "lost_events": t.lost,
                "failed": t.failed,
            },
            "device": self.device,
            "device_bytes": self.capacity,
            "passes": o.passes,
            "operations": o.operations,
            "requested_bytes": counter(o.stats.requested),
            "allocated_bytes": counter(o.stats.allocated),
            "active_bytes": counter(o.stats.active),
            "reserved_bytes": counter(o.stats.reserved),
            "blocks": counter(o.stats.blocks),
            "segments": counter(o.stats.segments),
            "peak_reserved_over_peak_live": o.overhead(t),
            "driver_calls": o.driver_calls,
            "modelled_driver_ns": o.modelled_ns,
            "out_of_memory_count": o.out_of_memory,
            "alloc": times(o.alloc),
            "free": times(o.free),
            "clock_ns": o.clock_ns,
            "wall_ns": o.wall.as_nanos() as u64,
            "checked_blocks": o.checked.map(|c| c.blocks),
            "checked_bytes": o.checked.map(|c| c.bytes),
            "out_of_memory": o.shortage.as_ref().map(|s| json!({
                "event": s.event,
                "line": s.line,
                "request_bytes": s.request,
                "live_bytes": s.live,
                "message": s.message,
            })),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::api::{Counter, Stats};
    use crate::replay::Shortage;
    use crate::series::Series;
    use std::time::Duration;

    /// A replay that never was, of a trace with a few steps.
    pub(crate) fn sample(shortage: bool) -> (Trace, Outcome) {
        let mut text = String::from("# name: <sample>\n# source: a & b; more\n# step_starts: 2,6\n");
        for i in 1..=5 {
            text += &format!("a {i} {} 0\n", i << 20);
        }
        text += "f 1\nf 2\nf 3\nf 4\n";
        let trace = Trace::parse("x", &text).unwrap();
        let mut series = Series::new(9, 2000);
        for v in [1, 3, 6, 10, 15, 14, 12, 9, 5u64] {
            series.push([v << 20, v << 20, 16 << 20]);
        }
        let counter = |current: u64, peak: u64| Counter { current, peak, total: peak * 3 };
        let stats = Stats {
            requested: counter(5 << 20, 15 << 20),
            allocated: counter(5 << 20, 15 << 20),
            active: counter(5 << 20, 15 << 20),
            reserved: counter(16 << 20, 16 << 20),
            blocks: counter(1, 5),
            segments: counter(1, 1),
            ..Stats::default()
        };
        let outcome = Outcome {
            passes: 1,
            operations: 9,
            streams: 1,
            alloc: Times { calls: 5, median: 80.0, p99: 900.0, max: 4000.0, mean: 120.0 },
            free: Times { calls: 4, median: 60.0, p99: 200.0, max: 300.0, mean: 70.0 },
            clock_ns: 22.0,
            wall: Duration::from_millis(12),
            stats,
            driver_calls: 3,
            modelled_ns: None,
            out_of_memory: u64::from(shortage),
            checked: None,
            shortage: shortage.then(|| Shortage {
                event: 4,
                line: 8,
                request: 5 << 20,
                live: 10 << 20,
                message: "no room".into(),
            }),
            series: Some(series),
        };
        (trace, outcome)
    }

    #[test]
    fn table_and_json_say_the_same() {
        let (trace, outcome) = sample(false);
        let run = Run {
            trace: &trace,
            outcome: &outcome,
            device: "host:0".into(),
            capacity: 1 << 30,
            touch: Touch::Edges,
        };
        let table = run.table("9.9.9");
        for wants in [
            "<sample> on host:0, Millpond 9.9.9",
            "15.00 MiB",
            "16.00 MiB",
            "1.0667",
            "80 ns",
            "1 block never",
        ] {
            assert!(table.contains(wants), "`{wants}` is not in\n{table}");
        }
        assert!(!table.contains("OUT OF MEMORY"));
        let json = run.json("9.9.9");
        assert_eq!(json["reserved_bytes"]["peak"], 16 << 20);
        assert_eq!(json["alloc"]["median_ns"], 80.0);
        assert!(json["out_of_memory"].is_null());
    }

    #[test]
    fn a_shortage_says_what_was_needed() {
        let (trace, outcome) = sample(true);
        let run = Run {
            trace: &trace,
            outcome: &outcome,
            device: "host:0".into(),
            capacity: 12 << 20,
            touch: Touch::None,
        };
        let table = run.table("9");
        for wants in [
            "operation 4 of 9 (line 8)",
            "request of 5.00 MiB",
            "needs 15.00 MiB",
            "has 12.00 MiB",
            "no room",
        ] {
            assert!(table.contains(wants), "`{wants}` is not in\n{table}");
        }
        assert_eq!(run.json("9")["out_of_memory"]["live_bytes"], 10 << 20);
    }
}
