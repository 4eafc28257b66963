//! The rooms of `src` only look down: checks in the sources which room names which.

use crate::arrows::{File, circles, names_in};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A room and the rooms that it may name besides `locks` and `base`, which are open to all. `base` names nobody.
const ARROWS: [(&str, &[&str]); 9] = [
    ("plugin.rs", &["paddle", "ffi"]),
    ("capi", &["paddle", "runtime", "ffi"]),
    // The adapter for plugins is a device that speaks the custom-runtime ABI.
    ("paddle", &["runtime", "device", "ffi"]),
    ("ffi", &[]),
    ("runtime", &["core", "device"]),
    ("core", &[]),
    ("device", &[]),
    ("locks.rs", &[]),
    ("base", &[]),
];

/// The Rust files at or below `path`.
pub(crate) fn sources(path: &Path, out: &mut Vec<(String, String)>) {
    files(path, &["rs"], out);
}

/// The files at or below `path` whose names end so.
fn files(path: &Path, endings: &[&str], out: &mut Vec<(String, String)>) {
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|e| files(&e.unwrap().path(), endings, out));
    } else if path.extension().and_then(|e| e.to_str()).is_some_and(|e| endings.contains(&e)) {
        out.push((path.display().to_string(), fs::read_to_string(path).unwrap()));
    }
}

#[test]
fn every_room_only_looks_down() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let rooms: Vec<&str> = ARROWS.iter().map(|(room, _)| room.trim_end_matches(".rs")).collect();
    let mut seen = 0;
    for (room, may) in ARROWS {
        let mut files = Vec::new();
        sources(&src.join(room), &mut files);
        assert!(!files.is_empty(), "{room} has no sources");
        for (file, text) in files {
            for (at, _) in text.match_indices("crate::") {
                let other: String =
                    text[at + 7..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                let for_all = other == "base" || other == "locks" && room != "base";
                if !rooms.contains(&other.as_str()) || for_all || room.trim_end_matches(".rs") == other {
                    continue;
                }
                seen += 1;
                assert!(
                    may.contains(&other.as_str()),
                    "{file} names {other}; {room} may only name {may:?}, locks and base"
                );
            }
        }
    }
    assert!(seen > 20, "only {seen} arrows found: the test has lost its eyes");
}

/// The floors of a room as `docs/architecture.md` has them, lowest first: a file names only those on lower floors, and
/// its own.
fn floors(room: &str) -> Vec<Vec<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/architecture.md")).unwrap();
    let table = page.split(&format!("| floor of `{room}` | what it holds |")).nth(1).unwrap();
    let rows = table.lines().skip(2).map_while(|l| l.strip_prefix("| ")?.split(" |").next());
    let names =
        |row: &str| row.split('`').skip(1).step_by(2).map(|n| n.trim_end_matches('/').to_owned()).collect();
    let mut floors: Vec<Vec<String>> = rows.map(names).collect();
    floors.reverse();
    floors
}

#[test]
fn the_floors_of_a_room_only_look_down() {
    for (room, least) in [("core", 150), ("runtime", 100)] {
        let floors = floors(room);
        let floor_of = |part: &String| floors.iter().position(|rooms| rooms.contains(part));
        let (mut seen, mut wrong) = (0, Vec::new());
        for (file, named) in arrows_of(room) {
            // The room's own `mod.rs` hands names on.
            let Some(part) = file.get(1) else { continue };
            let Some(floor) = floor_of(part) else {
                wrong.push(format!("{} stands on no floor", file.join("::")));
                continue;
            };
            for other in named.iter().filter(|other| other.get(1) != Some(part)) {
                seen += 1;
                let theirs = other.get(1).and_then(floor_of);
                if theirs.is_none_or(|theirs| theirs > floor) {
                    wrong.push(format!(
                        "{} names {}, which stands above it",
                        file.join("::"),
                        other.join("::")
                    ));
                }
            }
        }
        assert!(wrong.is_empty(), "{room}: {wrong:#?}");
        assert!(seen > least, "only {seen} arrows found in {room}: the test has lost its eyes");
    }
}

/// Which files of a room each of its files names, without tests.
fn arrows_of(room: &str) -> BTreeMap<File, BTreeSet<File>> {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(room), &mut files);
    names_in(room, files)
}

#[test]
fn no_files_of_a_room_name_each_other_in_a_circle() {
    for (room, least) in
        [("base", 10), ("core", 150), ("device", 60), ("runtime", 100), ("paddle", 40), ("capi", 40)]
    {
        let names = arrows_of(room);
        let seen: usize = names.values().map(BTreeSet::len).sum();
        assert!(seen >= least, "only {seen} arrows found in {room}: the test has lost its eyes");
        assert_eq!(circles(&names), Vec::<Vec<String>>::new(), "circles among the files of {room}");
    }
}

/// How many methods a type has that others can call.
fn methods_of(name: &str, room: &str) -> usize {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(room), &mut files);
    let start = format!("\nimpl {name} {{\n");
    let faces = files.iter().filter(|(f, _)| !f.contains("/tests")).flat_map(|(_, text)| {
        text.split(&start).skip(1).map(|rest| rest.split("\n}\n").next().unwrap().to_owned())
    });
    faces.map(|face| face.lines().filter(|l| l.starts_with("    pub") && l.contains("fn ")).count()).sum()
}

#[test]
fn a_device_needs_few_methods() {
    let seam = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/device/seam.rs")).unwrap();
    let device = seam.split("\npub trait Device: ").nth(1).unwrap().split("\n}\n").next().unwrap();
    let methods = device.lines().filter(|l| l.starts_with("    fn ")).count();
    assert!(
        (20..=24).contains(&methods),
        "Device has {methods} methods: what only some devices can do is a facet"
    );
}

#[test]
fn no_type_has_more_methods_than_one_can_know() {
    for (name, room) in [("Pond", "core"), ("Memory", "runtime/memory"), ("DeviceState", "runtime")] {
        let methods = methods_of(name, room);
        assert!((20..=40).contains(&methods), "{name} has {methods} methods");
    }
}

/// What may be longer, and why.
const LONG: [&str; 2] = [
    // Generated, and read by name.
    "include/millpond/millpond.h",
    // The one header of the interface that PaddlePaddle defines, in its order: whoever writes a plugin compares the
    // two.
    "include/millpond/custom_runtime.h",
];

/// Nobody reads a file of a thousand lines.
#[test]
fn no_file_is_longer_than_six_hundred_lines() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = Vec::new();
    let rust = ["src", "tests", "cli/src", "cli/tests", "bench/src", "fakecuda/src", "fakecuda/tests"];
    rust.iter().for_each(|f| sources(&root.join(f), &mut all));
    assert!(all.len() > 200, "only {} files found: the test has lost its eyes", all.len());
    let c = ["include", "cpp_tests", "tests", "examples", "bench", "gpu", "torch", "fakecuda/include"];
    let rust = all.len();
    c.iter().for_each(|f| files(&root.join(f), &["c", "h", "cpp", "hpp", "cu"], &mut all));
    assert!(all.len() > rust + 80, "only {} files of C found: the test has lost its eyes", all.len() - rust);
    let long = |(f, text): &&(String, String)| {
        // Copies of them, one for each minor release.
        let kept = Path::new(f).starts_with(root.join("tests/abi")) && f.contains("/include/");
        text.lines().count() > 600 && !kept && !LONG.iter().any(|l| Path::new(f) == root.join(l))
    };
    let long: Vec<_> = all.iter().filter(long).map(|(f, text)| (text.lines().count(), f)).collect();
    assert!(long.is_empty(), "{long:?}");
}
