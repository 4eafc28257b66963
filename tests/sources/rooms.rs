//! The rooms of `src` only look down: checks in the sources which room names which.

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

/// The floors of `core`, lowest first: a file names only those on lower floors, and its own.
const CORE: [&[&str]; 10] = [
    &["backing", "units"],
    &["shape", "types", "layout", "report", "tied"],
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
const TOP: [&str; 4] = ["features", "ladder", "faces", "pond"];

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

/// A file of a room by its path as a module, such as `["runtime", "memory", "pooled"]`.
type File = Vec<String>;

/// What one file names with `use`, in full, and whether it hands that on to others (`pub use`).
struct Uses {
    path: Vec<String>,
    public: bool,
}

/// `a::{b, c::d}` as `a::b` and `a::c::d`, without new names.
fn paths_in(tree: &str) -> Vec<String> {
    let Some((before, inside)) = tree.split_once('{') else {
        return vec![tree.split(" as ").next().unwrap().trim().to_owned()];
    };
    let inside = &inside[..inside.rfind('}').unwrap()];
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for c in inside.chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if c == ',' && depth == 0 {
            parts.push(String::new());
        } else {
            parts.last_mut().unwrap().push(c);
        }
    }
    let whole = |part: &String| paths_in(&format!("{}{}", before.trim(), part.trim()));
    parts.iter().filter(|p| !p.trim().is_empty()).flat_map(whole).collect()
}

/// All that a file names, without what only its tests name.
fn uses_in(file: &File, text: &str, known: &BTreeSet<File>) -> Vec<Uses> {
    let code: String = text
        .lines()
        .map(|l| l.split("//").next().unwrap())
        .take_while(|l| !["#[cfg(test)]", "#[cfg(all(test"].iter().any(|t| l.starts_with(t)))
        .fold(String::new(), |all, l| all + l + "\n");
    let mut uses = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let line = code[..at].rfind('\n').map_or(0, |i| i + 1);
        let before = code[line..at].trim();
        if !before.is_empty() && !before.starts_with("pub") {
            continue;
        }
        let tree = code[at + 4..].split(';').next().unwrap();
        for path in paths_in(tree) {
            let mut rest: Vec<String> = path.split("::").map(|s| s.trim().to_owned()).collect();
            rest.retain(|s| s != "self");
            let first = rest.first().cloned().unwrap_or_default();
            let mut path = file.clone();
            if first == "crate" {
                (path, rest) = (Vec::new(), rest.split_off(1));
            } else if first == "super" {
                while rest.first().is_some_and(|s| s == "super") {
                    path.pop();
                    rest.remove(0);
                }
            } else {
                path.push(first);
                if !known.contains(&path) {
                    continue; // another crate
                }
                path.pop();
            }
            path.extend(rest);
            uses.push(Uses { path, public: !before.is_empty() });
        }
    }
    uses
}

/// The file of the room in which what a path names stands: what a file has from another one, that one has.
fn home_of(path: &[String], all: &BTreeMap<File, Vec<Uses>>, depth: u32) -> Option<File> {
    let at = (1..=path.len()).rev().find(|&n| all.contains_key(&path[..n]))?;
    let (file, rest) = (path[..at].to_vec(), &path[at..]);
    let handed_on = |u: &&Uses| u.path.last() == rest.first() && u.path != path;
    match all[&file].iter().find(handed_on) {
        Some(u) if !rest.is_empty() && depth < 8 => {
            home_of(&[&u.path[..], &rest[1..]].concat(), all, depth + 1)
        }
        _ => Some(file),
    }
}

/// Files that can be reached from each other, by the files that each names.
fn circles(names: &BTreeMap<File, BTreeSet<File>>) -> Vec<Vec<String>> {
    let reached = |from: &File| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(file) = next.pop() {
            next.extend(names[file].iter().filter(|f| seen.insert((*f).clone())));
        }
        seen
    };
    let all: BTreeMap<&File, BTreeSet<File>> = names.keys().map(|f| (f, reached(f))).collect();
    let mut found: Vec<Vec<String>> = Vec::new();
    for (&file, to) in all.iter().filter(|(file, to)| to.contains(**file)) {
        let circle: Vec<String> = to.iter().filter(|f| all[f].contains(file)).map(|f| f.join("::")).collect();
        if !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

/// Which files of a room each of its files names.
fn names_in(room: &str, files: Vec<(String, String)>) -> BTreeMap<File, BTreeSet<File>> {
    let module = |file: &str| -> File {
        let inside = file.split_once("/src/").unwrap().1.trim_end_matches(".rs").trim_end_matches("/mod");
        inside.split('/').map(str::to_owned).collect()
    };
    let files: Vec<(File, String)> = files.into_iter().map(|(f, text)| (module(&f), text)).collect();
    let files = files.into_iter().filter(|(f, _)| !f.iter().any(|part| part == "tests"));
    let files: BTreeMap<File, String> = files.collect();
    let known: BTreeSet<File> = files.keys().cloned().collect();
    let all: BTreeMap<File, Vec<Uses>> =
        files.iter().map(|(f, text)| (f.clone(), uses_in(f, text, &known))).collect();
    let homes = |file: &File| {
        let own = all[file].iter().filter(|u| !u.public && u.path.first().is_some_and(|r| r == room));
        own.filter_map(|u| home_of(&u.path, &all, 0)).filter(|home| home != file).collect()
    };
    known.iter().map(|f| (f.clone(), homes(f))).collect()
}

#[test]
fn no_files_of_a_room_name_each_other_in_a_circle() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (room, least) in
        [("base", 10), ("core", 150), ("device", 60), ("runtime", 100), ("paddle", 40), ("capi", 40)]
    {
        let mut files = Vec::new();
        sources(&src.join(room), &mut files);
        let names = names_in(room, files);
        let seen: usize = names.values().map(BTreeSet::len).sum();
        assert!(seen >= least, "only {seen} arrows found in {room}: the test has lost its eyes");
        assert_eq!(circles(&names), Vec::<Vec<String>>::new(), "circles among the files of {room}");
    }
}

#[test]
fn a_circle_is_found_through_what_a_file_hands_on() {
    let file = |path: &str, text: &str| (format!("/x/src/room/{path}.rs"), text.to_owned());
    let room = |b: &str| {
        names_in(
            "room",
            vec![
                file("mod", "mod a;\nmod b;\nmod c;\npub use a::{A, Other as O};\npub(crate) use b::B;\n"),
                file("a", "use crate::room::B;\npub struct A(B);\n"),
                file("b", b),
                file("c", "use super::{\n    A,\n    b::{B, inner::C},\n};\n"),
            ],
        )
    };
    assert_eq!(circles(&room("pub struct B;\n")), Vec::<Vec<String>>::new());
    assert_eq!(circles(&room("// use super::A;\n#[cfg(test)]\nuse super::A;\n")), Vec::<Vec<String>>::new());
    assert_eq!(circles(&room("use super::A;\n")), [["room::a", "room::b"]]);
    assert_eq!(circles(&room("use super::c;\n")), [["room::a", "room::b", "room::c"]]);
}

#[test]
fn the_face_of_the_pond_stays_small() {
    let core = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/core");
    let mut files = Vec::new();
    sources(&core, &mut files);
    let faces = files.iter().filter(|(f, _)| !f.contains("/tests")).flat_map(|(_, text)| {
        text.split("\nimpl Pond {\n").skip(1).map(|rest| rest.split("\n}\n").next().unwrap().to_owned())
    });
    let methods: usize = faces
        .map(|face| face.lines().filter(|l| l.starts_with("    pub") && l.contains(" fn ")).count())
        .sum();
    assert!((20..=40).contains(&methods), "Pond has {methods} methods");
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
