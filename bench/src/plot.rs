//! The figures of docs/performance.md, as SVG: cost against live blocks, capacity by trace, scaling with threads.

use crate::report::number;
use crate::run::{GROWTH, Plan};
use crate::store::Store;
use anyhow::Result;
use std::fmt::Write as _;
use std::path::Path;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 56.0;
/// One colour for each subject, distinguishable for colour-blind readers.
const COLOURS: [(&str, &str); 7] = [
    ("millpond", "#0072b2"),
    ("segments", "#56b4e9"),
    ("best fit", "#d55e00"),
    ("glibc", "#009e73"),
    ("mimalloc", "#cc79a7"),
    ("floor", "#8c8c8c"),
    ("null", "#c8c8c8"),
];

fn colour(name: &str) -> &'static str {
    COLOURS.iter().find(|c| c.0 == name).map_or("#000000", |c| c.1)
}

struct Svg(String);

impl Svg {
    fn new(title: &str, height: f64) -> Svg {
        let mut s = String::new();
        let _ = write!(
            s,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
             font-size=\"12\" role=\"img\">\n<title>{title}</title>\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
        );
        let mut svg = Svg(s);
        svg.text(LEFT, 22.0, "start", "#111111", title);
        svg
    }
    fn text(&mut self, x: f64, y: f64, anchor: &str, fill: &str, t: &str) {
        let t = t.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(
            self.0,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{fill}\">{t}</text>"
        );
    }
    fn line(&mut self, a: (f64, f64), b: (f64, f64), stroke: &str, extra: &str) {
        let (x1, y1, x2, y2) = (a.0, a.1, b.0, b.1);
        let _ = writeln!(
            self.0,
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{stroke}\" {extra}/>"
        );
    }
    fn end(mut self) -> String {
        self.0 += "</svg>\n";
        self.0
    }
}

/// A curve: name and points.
type Curve<'a> = (&'a str, Vec<(f64, f64)>);

/// Curves over one axis; `ticks` are the marks of x with their texts.
fn curves(
    title: &str,
    unit: &str,
    ticks: &[(f64, String)],
    all: &[Curve<'_>],
    log: bool,
    goal: Option<(f64, f64)>,
) -> String {
    let values = || all.iter().flat_map(|c| c.1.iter().map(|p| p.1));
    let top = values().fold(1.0, f64::max);
    let bottom = if log { values().fold(f64::MAX, f64::min).max(0.1) } else { 0.0 };
    let (low, high) = if log { (bottom.log10().floor(), top.log10().ceil()) } else { (0.0, round_up(top)) };
    let scale = |v: f64| if log { v.max(1e-9).log10() } else { v };
    let (first, last) = (ticks.first().map_or(0.0, |t| t.0), ticks.last().map_or(1.0, |t| t.0));
    let x = |v: f64| LEFT + (v - first) / (last - first).max(1e-9) * (WIDTH - LEFT - RIGHT);
    let y = |v: f64| HEIGHT - BOTTOM - (scale(v) - low) / (high - low).max(1e-9) * (HEIGHT - TOP - BOTTOM);
    let mut svg = Svg::new(title, HEIGHT);
    svg.text(LEFT - 8.0, TOP - 8.0, "end", "#555555", unit);
    let mut marks = Vec::new();
    if log {
        (low as i32..=high as i32).for_each(|e| marks.push(10f64.powi(e)));
    } else {
        (0..=4).for_each(|i| marks.push(high * f64::from(i) / 4.0));
    }
    for m in marks {
        svg.line((LEFT, y(m)), (WIDTH - RIGHT, y(m)), "#e4e4e4", "");
        svg.text(LEFT - 8.0, y(m) + 4.0, "end", "#555555", &number(m).replace(".00", "").replace(".0", ""));
    }
    for (v, t) in ticks {
        let anchor = if *v == last { "end" } else { "middle" };
        svg.text(x(*v), HEIGHT - BOTTOM + 18.0, anchor, "#555555", t);
    }
    if let Some((gx, gy)) = goal {
        let (px, py) = (x(gx), y(gy));
        svg.line((px - 18.0, py), (px + 18.0, py), "#000000", "stroke-width=\"2\" stroke-dasharray=\"4 3\"");
        svg.text(px - 22.0, py + 4.0, "end", "#000000", "goal");
    }
    // Names beside the last points, pushed up where they would overlap.
    let mut names: Vec<(f64, f64, &str)> =
        all.iter().filter_map(|(n, p)| p.last().map(|p| (x(p.0), y(p.1), *n))).collect();
    names.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut lowest: Vec<(f64, f64)> = Vec::new(); // by x: where the next name must be above
    for (px, py, name) in names {
        let column = lowest.iter_mut().find(|f| (f.0 - px).abs() < 1.0);
        let at = column.as_ref().map_or(py, |f| py.min(f.1));
        match column {
            Some(f) => f.1 = at - 14.0,
            None => lowest.push((px, at - 14.0)),
        }
        svg.text(px + 10.0, at + 4.0, "start", colour(name), name);
    }
    for (name, points) in all {
        let path: Vec<String> = points.iter().map(|p| format!("{:.1},{:.1}", x(p.0), y(p.1))).collect();
        let c = colour(name);
        let _ = writeln!(
            svg.0,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{c}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for p in points {
            let _ =
                writeln!(svg.0, "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{c}\"/>", x(p.0), y(p.1));
        }
    }
    svg.end()
}

/// The next of 1, 2, 4, 6, 8 times a power of ten, so that quarters of it are short numbers.
fn round_up(v: f64) -> f64 {
    let unit = 10f64.powf(v.max(1e-9).log10().floor());
    [1.0, 2.0, 4.0, 6.0, 8.0].iter().map(|m| m * unit).find(|m| *m >= v).unwrap_or(10.0 * unit)
}

/// The waste of each trace: bars of how far the smallest device is above the live bytes.
fn bars(title: &str, groups: &[(String, Vec<(&str, f64)>)]) -> String {
    const BAR: f64 = 13.0;
    let rows: usize = groups.iter().map(|g| g.1.len()).sum();
    let height = TOP + rows as f64 * BAR + groups.len() as f64 * 14.0 + BOTTOM;
    let left = 150.0;
    let top = groups.iter().flat_map(|g| g.1.iter().map(|b| b.1)).fold(1.0, f64::max) * 1.1;
    let x = |v: f64| left + v / top * (WIDTH - left - RIGHT);
    let mut svg = Svg::new(title, height);
    let bottom = height - BOTTOM + 6.0;
    for (i, goal) in
        [("goal, mapping, worst: 1 %", 1.0), ("goal, segments, worst: 5 %", 5.0)].iter().enumerate()
    {
        svg.line((x(goal.1), TOP - 6.0), (x(goal.1), bottom), "#000000", "stroke-dasharray=\"4 3\"");
        svg.text(x(goal.1), bottom + 14.0 + 14.0 * i as f64, "start", "#000000", goal.0);
    }
    let mut y = TOP;
    for (name, values) in groups {
        svg.text(left - 8.0, y + values.len() as f64 * BAR / 2.0 + 4.0, "end", "#111111", name);
        for (subject, v) in values {
            let _ = writeln!(
                svg.0,
                "<rect x=\"{left:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"/>",
                (x(*v) - left).max(0.5),
                BAR - 2.0,
                colour(subject)
            );
            svg.text(x(*v) + 5.0, y + BAR - 4.0, "start", "#555555", &format!("{v:.1} %"));
            y += BAR;
        }
        y += 14.0;
    }
    let mut at = TOP + 8.0;
    for subject in groups.first().map_or(&[][..], |g| g.1.as_slice()) {
        svg.text(WIDTH - RIGHT + 60.0, at, "start", colour(subject.0), subject.0);
        at += 16.0;
    }
    svg.end()
}

/// Writes the figures for which there are numbers.
pub(crate) fn write(store: &Store, plan: &Plan, dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    let names: Vec<&str> = plan.subjects.iter().map(|s| s.0).collect();
    let curve = |points: &[(f64, String)], metric: &str| -> Vec<Curve<'_>> {
        let of =
            |n: &str| points.iter().filter_map(|(x, p)| Some((*x, store.value(n, p, metric)?))).collect();
        names.iter().map(|n| (*n, of(n))).filter(|c: &Curve<'_>| c.1.len() > 1).collect()
    };

    let points: Vec<_> = GROWTH.iter().map(|n| ((*n as f64).log10(), format!("growth/{n}"))).collect();
    let ticks: Vec<_> = GROWTH.iter().map(|n| ((*n as f64).log10(), format!("{n} live"))).collect();
    let all = curve(&points, "ns");
    if !all.is_empty() {
        let title = "Replace a random live block, holes between them: ns";
        std::fs::write(dir.join("growth.svg"), curves(title, "ns", &ticks, &all, true, Some((6.0, 80.0))))?;
    }

    let points: Vec<_> = [1.0, 2.0, 4.0].iter().map(|n| (f64::log2(*n), format!("threads/{n}"))).collect();
    let text = |n: f64| if n == 1.0 { "1 thread".to_owned() } else { format!("{n} threads") };
    let ticks: Vec<_> = [1.0, 2.0, 4.0].iter().map(|n| (f64::log2(*n), text(*n))).collect();
    let all: Vec<_> = curve(&points, "mpairs").into_iter().filter(|c| c.0 != "null").collect();
    if !all.is_empty() {
        let title = "Threads with streams of their own, 4 KiB: million pairs a second";
        std::fs::write(dir.join("threads.svg"), curves(title, "M/s", &ticks, &all, false, None))?;
    }

    let groups: Vec<_> = (plan.traces.iter())
        .map(|t| {
            let name = Plan::name(t);
            let value = |s| Some((store.value(s, &format!("capacity/{name}"), "smallest")? - 1.0) * 100.0);
            (name.clone(), names.iter().filter_map(|n| Some((*n, value(n)?))).collect::<Vec<_>>())
        })
        .filter(|g| !g.1.is_empty())
        .collect();
    if !groups.is_empty() {
        let title = "Smallest device that completes, above the peak of the live bytes";
        std::fs::write(dir.join("capacity.svg"), bars(title, &groups))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        assert_eq!([0.9, 1.0, 3.0, 41.0, 950.0].map(round_up), [1.0, 1.0, 4.0, 60.0, 1000.0]);
    }

    #[test]
    fn figures_are_well_formed() {
        let ticks = [(0.0, "1".to_owned()), (1.0, "2".to_owned())];
        let svg = curves(
            "a < b",
            "ns",
            &ticks,
            &[("millpond", vec![(0.0, 5.0), (1.0, 50.0)])],
            true,
            Some((1.0, 8.0)),
        );
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("a &lt; b") && !svg.contains("NaN") && !svg.contains("inf"));
        let svg = bars("t", &[("trace".into(), vec![("millpond", 0.0), ("segments", 3.0)])]);
        assert_eq!(svg.matches("<rect").count(), 3);
    }
}
