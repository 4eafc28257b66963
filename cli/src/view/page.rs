//! The page around a record: one file that fetches nothing, so it opens from a disk years later.
//!
//! What a program may have named (tags, notes, its own path) is in the data alone, which is base64, and in the title, which
//! is escaped. The page's script writes such names as text, never as markup.

use crate::picture::escape;

const COLOURS: &str = include_str!("../page/colours.css");
const PAGE_CSS: &str = include_str!("../page/page.css");
const VIEW_CSS: &str = include_str!("page/view.css");
const BODY: &str = include_str!("page/page.html");
const SCRIPTS: [&str; 6] = [
    include_str!("../page/units.js"),
    include_str!("page/model.js"),
    include_str!("page/search.js"),
    include_str!("page/timeline.js"),
    include_str!("page/map.js"),
    include_str!("page/app.js"),
];
/// The library that draws the timeline: cli/third_party/uplot/README.md.
const PLOT_JS: &str = include_str!("../../third_party/uplot/uPlot.iife.min.js");
const PLOT_CSS: &str = include_str!("../../third_party/uplot/uPlot.min.css");
const PLOT_LICENCE: &str = include_str!("../../third_party/uplot/LICENSE");

/// What stands before and after the record's base64.
pub(super) fn around(title: &str) -> [String; 2] {
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";
    let head = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <title>{} · Millpond</title>\n<style>\n{COLOURS}{PAGE_CSS}{PLOT_CSS}\n{VIEW_CSS}</style>\n</head>\n{BODY}\
         <script type=\"application/octet-stream;base64\" id=\"data\">",
        escape(title)
    );
    let scripts = SCRIPTS.concat();
    let tail = format!(
        "</script>\n<!-- uPlot, which draws the timeline:\n\n{PLOT_LICENCE}\n-->\n<script>\n{PLOT_JS}\n</script>\n\
         <script>\n{scripts}</script>\n</body>\n</html>\n"
    );
    [head, tail]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_fetches_nothing_and_escapes_its_title() {
        let [head, tail] = around("</title><script>alert(1)</script>");
        assert!(head.contains("&lt;/title&gt;&lt;script&gt;") && !head.contains("<script>alert"));
        assert!(tail.contains("The MIT License"));
        let page = format!("{head}{tail}");
        for refused in ["src=", "@import", "url(", "fetch(", "innerHTML", "eval("] {
            let ours = page.replace(PLOT_JS, "");
            assert!(!ours.contains(refused), "`{refused}` is there");
        }
        // No script ends before its end.
        assert_eq!(page.matches("</script>").count(), 3);
        assert!(!SCRIPTS.concat().contains("<!--") && !PLOT_JS.contains("</script"));
    }
}
