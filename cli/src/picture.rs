//! The picture's file: one HTML page for all replays of a run, or one SVG. Everything is inside:
//! no font, script or style comes from elsewhere, so it opens from a disk years later.

use crate::chart;
use crate::replay::{ACTIVE, ALLOCATED, RESERVED};
use crate::report::Run;
use crate::series::Series;
use crate::units::{bytes, count, counted, nanoseconds};
use serde_json::json;
use std::fmt::Write;

const COLOURS: &str = include_str!("page/colours.css");
const PAGE_CSS: &str = include_str!("page/page.css");
const UNITS_JS: &str = include_str!("page/units.js");
const PAGE_JS: &str = include_str!("page/page.js");

/// Text as it may stand in HTML and SVG.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// One SVG file. `None` where the replay kept no curves.
pub(crate) fn svg(run: &Run<'_>) -> Option<String> {
    run.outcome.series.as_ref().map(|series| chart::svg(run, series, COLOURS))
}

/// One HTML page with a section for each replay.
pub(crate) fn html(runs: &[Run<'_>], version: &str) -> String {
    let title = runs.iter().map(|r| escape(&r.trace.name)).collect::<Vec<_>>().join(", ");
    let mut h = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title} · Millpond</title>\n<style>\n{COLOURS}{PAGE_CSS}</style>\n</head>\n<body>\n<main>\n"
    );
    for run in runs {
        section(&mut h, run);
    }
    let _ = write!(
        h,
        "<footer>Made by <code>millpond replay</code>, Millpond {}.</footer>\n</main>\n\
         <script>\n{UNITS_JS}{PAGE_JS}</script>\n</body>\n</html>\n",
        escape(version)
    );
    h
}

fn section(h: &mut String, run: &Run<'_>) {
    let (t, o) = (run.trace, run.outcome);
    let _ = writeln!(h, "<section>\n<h1>{}</h1>", escape(&t.name));
    let source = t.source.split(';').next().unwrap_or("");
    let dot = if source.is_empty() { "" } else { ". " };
    let _ = writeln!(
        h,
        "<p class=\"what\">{}{dot}Replayed on device <b>{}</b>, {}.</p>",
        escape(source),
        escape(&run.device),
        counted(o.operations, "operation")
    );
    if let Some(shortage) = run.shortage() {
        let _ = writeln!(h, "<p class=\"bad\">{}</p>", escape(&shortage));
    }
    tiles(h, run);
    if let Some(series) = &o.series {
        figure(h, run, series);
    }
    tables(h, run);
    let _ = writeln!(h, "</section>");
}

fn tiles(h: &mut String, run: &Run<'_>) {
    let (t, o) = (run.trace, run.outcome);
    let tiles = [
        (bytes(t.peak_live_bytes), "program's peak"),
        (bytes(o.stats.reserved.peak), "peak reserved"),
        (format!("{:.3}", o.overhead(t)), "reserved / live, peaks"),
        (count(o.driver_calls), "driver calls"),
        (nanoseconds(o.alloc.median), "median alloc"),
        (nanoseconds(o.free.median), "median free"),
    ];
    let _ = writeln!(h, "<div class=\"tiles\">");
    for (value, what) in tiles {
        let _ = writeln!(h, "<div class=\"tile\"><b>{value}</b><span>{what}</span></div>");
    }
    let _ = writeln!(h, "</div>");
}

fn figure(h: &mut String, run: &Run<'_>, series: &Series<3>) {
    let active = chart::has_active(series);
    let _ = write!(
        h,
        "<figure>\n<div class=\"legend\">\
         <span><i style=\"background: var(--reserved); outline: 1px solid var(--reserved-line)\"></i>reserved: taken from the device</span>"
    );
    if active {
        let _ = write!(
            h,
            "<span><i style=\"background: var(--active); height: 3px; vertical-align: 3px\"></i>active: allocated, or \
             freed but awaited by a stream</span>"
        );
    }
    let _ = write!(
        h,
        "<span><i style=\"background: var(--allocated)\"></i>allocated: in live blocks. A point stands for several \
         operations: dark up to the least that was allocated in them, pale up to the most</span>"
    );
    if !run.trace.step_starts.is_empty() {
        let _ = write!(
            h,
            "<span><i style=\"background: var(--soft); width: 1px; opacity: .55\"></i>a step begins</span>"
        );
    }
    let curve = |c: usize| {
        let min: Vec<u64> = series.spans().iter().map(|s| s[c].min).collect();
        let max: Vec<u64> = series.spans().iter().map(|s| s[c].max).collect();
        json!([min, max])
    };
    let per_pass = run.trace.events.len() as u64;
    let steps: Vec<u64> = (0..u64::from(run.outcome.passes))
        .flat_map(|pass| run.trace.step_starts.iter().map(move |s| pass * per_pass + s))
        .collect();
    let data = json!({
        "viewWidth": chart::WIDTH,
        "left": chart::LEFT,
        "width": chart::PLOT_WIDTH,
        "operations": series.operations(),
        "done": run.outcome.operations,
        "start": (0..series.spans().len()).map(|i| series.start(i)).collect::<Vec<_>>(),
        "steps": steps,
        "reserved": curve(RESERVED),
        "allocated": curve(ALLOCATED),
        "active": if active { curve(ACTIVE) } else { serde_json::Value::Null },
    });
    let _ = writeln!(
        h,
        "</div>\n<div class=\"scroll\"><div class=\"plot\">\n{}<div class=\"tip\" hidden></div>\n\
         <script type=\"application/json\">{data}</script>\n</div></div>\n</figure>",
        chart::svg(run, series, "")
    );
}

fn tables(h: &mut String, run: &Run<'_>) {
    let _ = writeln!(
        h,
        "<div class=\"tables\">\n<div>\n<h2>Memory</h2>\n<table><thead><tr><th></th><th>at the end</th><th>peak</th>\
         <th>total</th></tr></thead><tbody>"
    );
    for r in run.memory_rows() {
        let _ = writeln!(
            h,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            r.label, r.now, r.peak, r.total
        );
    }
    let _ = writeln!(
        h,
        "</tbody></table>\n<h2>Time per call</h2>\n<table><thead><tr><th></th><th>median</th><th>mean</th>\
         <th>p99</th><th>max</th></tr></thead><tbody>"
    );
    for (label, t) in run.time_rows() {
        let _ = writeln!(
            h,
            "<tr><td>{label}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            nanoseconds(t.median),
            nanoseconds(t.mean),
            nanoseconds(t.p99),
            nanoseconds(t.max)
        );
    }
    let _ = writeln!(
        h,
        "</tbody></table>\n<p class=\"note\">{}</p>\n</div>\n<div>\n<h2>The run</h2>\n<table><tbody>",
        run.time_note()
    );
    for (label, value) in run.facts() {
        let _ = writeln!(h, "<tr><td>{label}</td><td>{}</td></tr>", escape(&value));
    }
    let _ = writeln!(h, "</tbody></table>\n</div>\n</div>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;
    use crate::touch::Touch;

    fn page(shortage: bool) -> (String, String) {
        let (trace, outcome) = sample(shortage);
        let run = Run {
            trace: &trace,
            outcome: &outcome,
            device: "host:0".into(),
            capacity: 1 << 30,
            touch: Touch::All,
        };
        let svg = svg(&run).unwrap();
        (html(&[run], "1.2.3"), svg)
    }

    #[test]
    fn the_page_is_whole_and_needs_nothing() {
        let (page, svg) = page(false);
        for wants in
            ["<svg", "peak reserved 16.00 MiB", "peak allocated 15.00 MiB", "&lt;sample&gt;", "</html>"]
        {
            assert!(page.contains(wants), "`{wants}` is missing");
        }
        for refused in ["<sample>", "http://", "https://", "src=", "@import", "url(", "OUT OF MEMORY"] {
            let page = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!page.contains(refused), "`{refused}` is there");
        }
        assert!(svg.contains("<style>") && svg.contains("var(--allocated)"));
    }

    #[test]
    fn a_shortage_is_in_the_picture() {
        let (page, svg) = page(true);
        assert!(svg.contains("out of memory: 5.00 MiB"));
        assert!(page.contains("OUT OF MEMORY"));
    }

    #[test]
    fn text_is_escaped() {
        assert_eq!(escape("<a href=\"x\">&'"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
    }
}
