//! The rooms of `src` only look down: who may name whom, read from the sources.

use std::fs;
use std::path::Path;

/// A room and the rooms that it may name. `base` is open to all and names nobody.
const ARROWS: [(&str, &[&str]); 7] = [
    ("plugin.rs", &["paddle"]),
    ("capi", &["paddle", "runtime"]),
    // The adapter for plugins is a device that speaks the custom-runtime ABI.
    ("paddle", &["runtime", "device"]),
    ("runtime", &["core", "device"]),
    ("core", &[]),
    ("device", &[]),
    ("base", &[]),
];

/// The Rust files at or below `path`.
fn sources(path: &Path, out: &mut Vec<(String, String)>) {
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|e| sources(&e.unwrap().path(), out));
    } else if path.extension().is_some_and(|e| e == "rs") {
        out.push((path.display().to_string(), fs::read_to_string(path).unwrap()));
    }
}

#[test]
fn every_room_only_looks_down() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let rooms = ["base", "core", "device", "runtime", "paddle", "capi", "plugin"];
    let mut seen = 0;
    for (room, may) in ARROWS {
        let mut files = Vec::new();
        sources(&src.join(room), &mut files);
        assert!(!files.is_empty(), "{room} has no sources");
        for (file, text) in files {
            for (at, _) in text.match_indices("crate::") {
                let other: String =
                    text[at + 7..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                if !rooms.contains(&other.as_str())
                    || other == "base"
                    || room.trim_end_matches(".rs") == other
                {
                    continue;
                }
                seen += 1;
                assert!(
                    may.contains(&other.as_str()),
                    "{file} names {other}; {room} may only name {may:?} and base"
                );
            }
        }
    }
    assert!(seen > 20, "only {seen} arrows found: the test has lost its eyes");
}

/// The floors of `core`, lowest first: a file names only those on lower floors, and its own.
const CORE: [&[&str]; 10] = [
    &["backing", "units"],
    &["shape", "types", "layout"],
    &["desc"],
    &["bins", "aliases"],
    &["order"],
    &["heap"],
    &["state"],
    &["ledger"],
    &["ground"],
    &["supply"],
];
/// Above all of these.
const TOP: [&str; 3] = ["features", "ladder", "pond"];

fn floor_of(room: &str) -> Option<usize> {
    let top = TOP.iter().position(|&r| r == room).map(|i| CORE.len() + i);
    CORE.iter().position(|rooms| rooms.contains(&room)).or(top)
}

#[test]
fn the_floors_of_core_only_look_down() {
    let core = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/core");
    let mut files = Vec::new();
    sources(&core, &mut files);
    let mut seen = 0;
    for (file, text) in files {
        let inside = file.strip_prefix(&format!("{}/", core.display())).unwrap();
        let room = inside.split('/').next().unwrap().trim_end_matches(".rs");
        let Some(floor) = floor_of(room) else {
            assert!(["mod", "tests"].contains(&room), "{inside} stands on no floor");
            continue;
        };
        // `use super::x` in a file of `core` itself, `use super::super::x` one folder deeper.
        let up = "super::".repeat(inside.matches('/').count() + 1);
        for line in text.lines().map(str::trim).take_while(|l| !l.starts_with("#[cfg(test)]")) {
            let named = [format!("use {up}"), "use crate::core::".to_owned()]
                .iter()
                .find_map(|start| line.strip_prefix(start.as_str()).map(str::to_owned));
            let Some(named) = named else { continue };
            let other: String = named.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let Some(theirs) = floor_of(&other).filter(|_| other != room) else { continue };
            seen += 1;
            assert!(theirs <= floor, "{inside} names {other}, which stands above it: {line}");
        }
    }
    assert!(seen > 100, "only {seen} arrows found: the test has lost its eyes");
}

#[test]
fn the_lock_table_of_the_documentation_is_the_one_that_is_checked() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/architecture.md")).unwrap();
    let table = page.split("| level | what it guards |").nth(1).unwrap();
    let told: Vec<&str> =
        table.lines().skip(2).map_while(|l| l.strip_prefix("| `")?.split('`').next()).collect();
    assert_eq!(told, millpond::base::sync::levels::NAMES);
}

/// Nobody reads a file of a thousand lines.
#[test]
fn no_file_is_longer_than_six_hundred_lines() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    ["src", "tests", "cli/src", "bench/src", "fakecuda/src"]
        .iter()
        .for_each(|f| sources(&root.join(f), &mut files));
    assert!(files.len() > 200, "only {} files found: the test has lost its eyes", files.len());
    let long: Vec<_> =
        files.iter().map(|(f, text)| (text.lines().count(), f)).filter(|f| f.0 > 600).collect();
    assert!(long.is_empty(), "{long:?}");
}
