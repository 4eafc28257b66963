//! The picture itself: one SVG of allocated, active and reserved bytes over the operations of a
//! program, with axes, steps and peaks. Colours come from the style sheet around it.

use crate::replay::{ACTIVE, ALLOCATED, RESERVED};
use crate::report::Run;
use crate::series::{Series, Span};
use crate::units;
use std::fmt::Write;

pub(crate) const WIDTH: f64 = 1120.0;
pub(crate) const HEIGHT: f64 = 440.0;
pub(crate) const LEFT: f64 = 78.0;
pub(crate) const PLOT_WIDTH: f64 = WIDTH - LEFT - 22.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = HEIGHT - 58.0;
/// More steps than this are not drawn one by one.
const MOST_STEPS: usize = 200;
/// Rough width of a letter of the labels where they are largest, on a narrow page.
const LETTER: f64 = 11.8;

/// Ticks at round numbers: 0, step, 2 step … up to `max` or a little less than a step over it.
pub(crate) fn ticks(max: f64, about: f64) -> Vec<f64> {
    if !(max > 0.0 && max.is_finite()) {
        return vec![0.0];
    }
    let raw = max / about;
    let power = 10f64.powf(raw.log10().floor());
    let step =
        [1.0, 2.0, 2.5, 5.0, 10.0].map(|s| s * power).into_iter().find(|s| *s >= raw * 0.999).unwrap_or(raw);
    (0..).map(|i| f64::from(i) * step).take_while(|t| *t <= max * 1.000_001).collect()
}

/// The largest binary unit in which `max` is at least 1: its name and size.
pub(crate) fn unit(max: u64) -> (&'static str, f64) {
    match max {
        n if n >= 1 << 30 => ("GiB", (1u64 << 30) as f64),
        n if n >= 1 << 20 => ("MiB", (1u64 << 20) as f64),
        n if n >= 1 << 10 => ("KiB", 1024.0),
        _ => ("B", 1.0),
    }
}

/// Where values lie on the picture.
struct Frame<'s> {
    series: &'s Series<3>,
    top_value: f64, // [B] at the upper edge
    done: u64,      // operations that took place
}

impl Frame<'_> {
    fn x(&self, operation: f64) -> f64 {
        LEFT + PLOT_WIDTH * operation / self.series.operations() as f64
    }

    fn y(&self, bytes: f64) -> f64 {
        BOTTOM - (BOTTOM - TOP) * bytes / self.top_value
    }

    /// Left and right edge of a bucket.
    fn edges(&self, bucket: usize) -> (f64, f64) {
        let next =
            if bucket + 1 < self.series.spans().len() { self.series.start(bucket + 1) } else { self.done };
        (self.x(self.series.start(bucket) as f64), self.x(next as f64))
    }

    /// A stair line through one value of each bucket; `closed` down to the axis for an area.
    fn stairs(&self, curve: usize, value: impl Fn(&Span) -> u64, closed: bool) -> String {
        let mut d = String::new();
        let mut last = f64::NAN;
        for (i, spans) in self.series.spans().iter().enumerate() {
            let y = self.y(value(&spans[curve]) as f64);
            let (left, right) = self.edges(i);
            if i == 0 {
                let from = if closed { BOTTOM } else { y };
                let _ = write!(d, "M{left:.1} {from:.1}");
            }
            if format!("{y:.1}") != format!("{last:.1}") {
                let _ = write!(d, "H{left:.1}V{y:.1}");
            }
            if i + 1 == self.series.spans().len() {
                let _ = write!(d, "H{right:.1}");
            }
            last = y;
        }
        if closed && !d.is_empty() {
            let _ = write!(d, "V{BOTTOM:.1}Z");
        }
        d
    }
}

/// Whether the active bytes ever differ from the allocated ones.
pub(crate) fn has_active(series: &Series<3>) -> bool {
    series.spans().iter().any(|s| s[ACTIVE] != s[ALLOCATED])
}

/// The SVG element. `style` goes into it, for a file of its own; empty inside a page.
pub(crate) fn svg(run: &Run<'_>, series: &Series<3>, style: &str) -> String {
    let highest = series.peak(RESERVED).0.max(series.peak(ACTIVE).0).max(series.peak(ALLOCATED).0).max(1);
    let (unit_name, unit_bytes) = unit(highest);
    let frame = Frame {
        series,
        top_value: highest as f64 * 1.08, // room for the label of the peak
        done: run.outcome.operations.min(series.operations()),
    };
    let mut s = format!(
        "<svg class=\"pond\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         tabindex=\"0\" aria-label=\"Allocated and reserved bytes over the operations of the program\">\n"
    );
    if !style.is_empty() {
        let _ = writeln!(s, "<style>{style} svg {{ background: var(--card) }}</style>");
    }
    axes(&mut s, &frame, unit_name, unit_bytes);
    let _ = writeln!(s, "<path class=\"reserved\" d=\"{}\"/>", frame.stairs(RESERVED, |v| v.max, true));
    let _ = writeln!(s, "<path class=\"high\" d=\"{}\"/>", frame.stairs(ALLOCATED, |v| v.max, true));
    let _ = writeln!(s, "<path class=\"low\" d=\"{}\"/>", frame.stairs(ALLOCATED, |v| v.min, true));
    let _ = writeln!(s, "<path class=\"high-line\" d=\"{}\"/>", frame.stairs(ALLOCATED, |v| v.max, false));
    if has_active(series) {
        let _ = writeln!(s, "<path class=\"active-line\" d=\"{}\"/>", frame.stairs(ACTIVE, |v| v.max, false));
    }
    let _ = writeln!(s, "<path class=\"reserved-line\" d=\"{}\"/>", frame.stairs(RESERVED, |v| v.max, false));
    steps(&mut s, &frame, run);
    if let Some(shortage) = &run.outcome.shortage {
        let x = frame.x(frame.done as f64);
        let _ = writeln!(s, "<line class=\"end\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{BOTTOM}\"/>");
        let text = format!("out of memory: {}", units::bytes(shortage.request));
        label(&mut s, "bad", x, (TOP + BOTTOM) / 2.0, &text);
    }
    peaks(&mut s, &frame);
    let _ = writeln!(
        s,
        "<line class=\"cursor\" x1=\"0\" x2=\"0\" y1=\"{TOP}\" y2=\"{BOTTOM}\" hidden=\"\"/>\n</svg>"
    );
    s
}

fn axes(s: &mut String, frame: &Frame<'_>, unit_name: &str, unit_bytes: f64) {
    let right = LEFT + PLOT_WIDTH;
    let in_units = ticks(frame.top_value / unit_bytes, 6.0);
    let decimals = if in_units.iter().all(|t| t.fract().abs() < 1e-9) { 0 } else { 2 };
    let decimals =
        if decimals > 0 && in_units.iter().all(|t| (t * 10.0).fract().abs() < 1e-6) { 1 } else { decimals };
    for t in in_units {
        let y = frame.y(t * unit_bytes);
        let class = if t == 0.0 { "axis" } else { "grid" };
        let _ =
            writeln!(s, "<line class=\"{class}\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>");
        let text = if t == 0.0 { "0".to_string() } else { format!("{t:.decimals$} {unit_name}") };
        let _ = writeln!(
            s,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
            LEFT - 9.0,
            y + 4.5
        );
    }
    let operations = frame.series.operations();
    for t in ticks(operations as f64, 8.0) {
        if t.fract() != 0.0 {
            continue;
        }
        let x = frame.x(t);
        let _ = writeln!(
            s,
            "<line class=\"axis\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{BOTTOM}\" y2=\"{}\"/>",
            BOTTOM + 10.0
        );
        let anchor = if x > right - 24.0 { "end" } else { "middle" };
        let _ = writeln!(
            s,
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            BOTTOM + 25.0,
            units::count(t as u64)
        );
    }
    let _ = writeln!(
        s,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">operations: allocations and frees in program order</text>",
        LEFT + PLOT_WIDTH / 2.0,
        HEIGHT - 8.0
    );
}

/// Small marks below the axis where a step of the program begins.
fn steps(s: &mut String, frame: &Frame<'_>, run: &Run<'_>) {
    let per_pass = run.trace.events.len() as u64;
    let starts = &run.trace.step_starts;
    if starts.len() * run.outcome.passes as usize > MOST_STEPS {
        return;
    }
    for pass in 0..u64::from(run.outcome.passes) {
        for &start in starts {
            let x = frame.x((pass * per_pass + start) as f64);
            let _ = writeln!(
                s,
                "<line class=\"step\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>",
                BOTTOM + 1.0,
                BOTTOM + 6.0
            );
        }
    }
}

/// Text near a point, anchored so that it stays inside.
fn label(s: &mut String, class: &str, x: f64, y: f64, text: &str) {
    let half = text.len() as f64 * LETTER / 2.0;
    let (anchor, x) = if x - half < LEFT + 4.0 {
        ("start", x.max(LEFT + 6.0))
    } else if x + half > LEFT + PLOT_WIDTH - 4.0 {
        ("end", x.min(LEFT + PLOT_WIDTH - 6.0))
    } else {
        ("middle", x)
    };
    let _ = writeln!(
        s,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
    );
}

/// A dot and a label at the highest reserved and allocated values: the one above its dot, the other below it.
fn peaks(s: &mut String, frame: &Frame<'_>) {
    for (curve, what, colour) in
        [(RESERVED, "reserved", "--reserved-line"), (ALLOCATED, "allocated", "--allocated")]
    {
        let (value, at) = frame.series.peak(curve);
        if value == 0 {
            continue;
        }
        let (x, y) = (frame.x(at as f64 + 0.5), frame.y(value as f64));
        let _ = writeln!(
            s,
            "<circle class=\"dot\" style=\"fill: var({colour})\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"/>"
        );
        let text = format!("peak {what} {}", units::bytes(value));
        if curve == RESERVED {
            label(s, "peak", x, y - 11.0, &text);
            continue;
        }
        // Below both lines, where none goes through it.
        label(s, "peak", x, y + 24.0, &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover() {
        assert_eq!(ticks(10.0, 5.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(192_460.0, 8.0), [0.0, 25e3, 50e3, 75e3, 100e3, 125e3, 150e3, 175e3]);
        for max in [0.3, 1.0, 1.99, 7.0, 23.46, 999.0, 1.0e6] {
            let t = ticks(max, 5.0);
            assert!((3..=7).contains(&t.len()), "{max}: {t:?}");
            assert!(t[t.len() - 1] <= max * 1.00001);
        }
        assert_eq!(ticks(0.0, 5.0), [0.0]);
    }

    #[test]
    fn units_fit() {
        assert_eq!(unit(1).0, "B");
        assert_eq!(unit(1 << 20).0, "MiB");
        assert_eq!(unit((1 << 30) - 1).0, "MiB");
        assert_eq!(unit(5 << 30).0, "GiB");
    }
}
