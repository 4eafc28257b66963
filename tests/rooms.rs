//! The rooms of `src` only look down: who may name whom, read from the sources.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]

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
