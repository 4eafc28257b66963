//! `millpond demo`, to its end: what it says, and its picture.

use super::{Folder, err, millpond, out};

/// The number of an attribute.
fn number(tag: &str, name: &str) -> f64 {
    let from = tag.split_once(&format!(" {name}=\"")).unwrap_or_else(|| panic!("{name} is not in {tag}")).1;
    from.split('"').next().unwrap().parse().unwrap()
}

/// The corners of a path of M, H, V and Z.
fn corners(path: &str) -> Vec<(f64, f64)> {
    let d = path.split_once(" d=\"").unwrap().1.split('"').next().unwrap();
    let (mut at, mut all) = ((0.0, 0.0), Vec::new());
    let mut rest = d;
    while let Some(letter) = rest.chars().next() {
        let end = rest[1..].find(|c: char| c.is_ascii_uppercase()).map_or(rest.len(), |n| n + 1);
        let numbers: Vec<f64> = rest[1..end].split_whitespace().map(|n| n.parse().unwrap()).collect();
        match (letter, &numbers[..]) {
            ('M', &[x, y]) => at = (x, y),
            ('H', &[x]) => at.0 = x,
            ('V', &[y]) => at.1 = y,
            ('Z', []) => {}
            other => panic!("{other:?} in {path}"),
        }
        all.push(at);
        rest = &rest[end..];
    }
    all
}

#[test]
fn the_demo_runs_to_its_end_and_its_picture_can_be_read() {
    let folder = Folder::new("demo");
    let page = folder.0.join("demo.html");
    let o = millpond(&["demo", "--touch", "edges", "--out", page.to_str().unwrap()]);
    assert!(o.status.success(), "{}", err(&o));
    let text = out(&o);
    for wants in
        ["A recorded training run: ", "on device host:0", "fasterrcnn", "The picture is in ", "file:///"]
    {
        assert!(text.contains(wants), "`{wants}` is not in\n{text}");
    }
    assert!(!text.contains("takes most of the time"), "the ends alone take none");
    let html = std::fs::read_to_string(&page).unwrap();
    // The legend has words for each shade.
    for wants in [
        "reserved: taken from the device",
        "allocated: in live blocks",
        "dark up to the least that was allocated in them, pale up to the most",
    ] {
        assert!(html.contains(wants), "`{wants}` is not on the page");
    }
    // No line strikes a peak's label through: those of the page have a rim of the card's colour, come after the lines, and
    // the line that the label belongs to does not pass through it.
    let style = html.split_once("text.peak {").expect("the style of labels").1.split('}').next().unwrap();
    assert!(style.contains("paint-order: stroke") && style.contains("stroke: var(--card)"), "{style}");
    let svg = html.split_once("<svg").unwrap().1.split("</svg>").next().unwrap();
    let line = svg.lines().find(|l| l.contains("class=\"high-line\"")).unwrap();
    let labels: Vec<&str> = svg.lines().filter(|l| l.contains("class=\"peak\"")).collect();
    assert_eq!(labels.len(), 2, "{labels:?}");
    let place = |part: &str| svg.find(part).unwrap();
    assert!(labels.iter().all(|l| place(l) > place(line) && place(l) > place("class=\"reserved-line\"")));
    let label = labels.iter().find(|l| l.contains("peak allocated")).expect("a label of the peak");
    assert!(labels.iter().any(|l| l.contains("peak reserved")));
    let (x, y) = (number(label, "x"), number(label, "y"));
    let half = label.split_once('>').unwrap().1.len() as f64 * 3.5;
    let (left, right) = match label {
        l if l.contains("\"start\"") => (x, x + 2.0 * half),
        l if l.contains("\"end\"") => (x - 2.0 * half, x),
        _ => (x - half, x + half),
    };
    // The top of the letters is below the line of the peak itself, where it lies above the label.
    let at_peak = corners(line).into_iter().map(|c| c.1).fold(f64::MAX, f64::min);
    assert!(y - 10.0 > at_peak, "the label at {y} is below the highest point {at_peak}");
    let flat = corners(line).windows(2).any(|w| {
        let (a, b) = (w[0], w[1]);
        a.1 == b.1 && a.1 > y - 9.0 && a.1 < y && a.0.min(b.0) < left && a.0.max(b.0) > right
    });
    assert!(!flat, "a line goes through the whole label");
}
