//! cmake/millpond.map, the symbols of the shared library: every function of the C header is in exactly one version node,
//! nothing else is, and no node is newer than the library. With the built library a packaging test compares them
//! (tests/packaging/checks/shared_symbols.cmake).
//!
//! `MILLPOND_BLESS=1 cargo test --test sources` adds new functions to the node of this version. It takes none away: a
//! function that a release had stays (docs/packages.md).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

type Version = (u32, u32);

/// The functions of each version node.
type Nodes = BTreeMap<Version, BTreeSet<String>>;

fn map() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cmake/millpond.map")
}

/// The functions that the sources export.
pub(crate) fn exports() -> BTreeSet<String> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/capi");
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(sources).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for (at, _) in text.match_indices("extern \"C\" fn millpond_") {
            let name = text[at + 14..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            found.insert(name);
        }
    }
    found
}

fn this_version() -> Version {
    (env!("CARGO_PKG_VERSION_MAJOR").parse().unwrap(), env!("CARGO_PKG_VERSION_MINOR").parse().unwrap())
}

/// Reads what `written` writes, and refuses anything else: a pattern would export what nobody has reviewed.
fn read(text: &str) -> Nodes {
    let mut nodes = Nodes::new();
    let mut node = None;
    let mut before: Option<Version> = None;
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("MILLPOND_").and_then(|l| l.strip_suffix(" {")) {
            let (major, minor) = name.split_once('.').expect("a node is MILLPOND_major.minor");
            let version = (major.parse().unwrap(), minor.parse().unwrap());
            assert!(before < Some(version), "nodes stand in the order of their versions: {line}");
            node = Some(version);
            nodes.insert(version, BTreeSet::new());
        } else if let Some(name) = line.strip_suffix(';').filter(|l| l.starts_with("millpond_")) {
            assert!(name.chars().all(|c| c.is_alphanumeric() || c == '_'), "one function a line: {line}");
            let known = nodes.values().any(|n| n.contains(name));
            assert!(!known, "{name} stands in the list twice");
            nodes.get_mut(&node.expect("a function outside a node")).unwrap().insert(name.to_owned());
        } else if let Some(end) = line.strip_prefix('}') {
            let after = before.map_or(String::new(), |(major, minor)| format!(" MILLPOND_{major}.{minor}"));
            assert_eq!(end, format!("{after};"), "a node ends with the name of the one before it");
            before = node.take();
        } else {
            let other = line.is_empty() || line == "global:" || line == "local: *;" || line.starts_with('#');
            assert!(other, "not understood: {line}");
        }
    }
    nodes
}

fn written(nodes: &Nodes) -> String {
    let mut text = "\
# The symbols of libmillpond.so, by the minor release that brought each. Reviewed, like the header: what a release had
# stays for as long as the library is called libmillpond.so.0 (docs/packages.md). New functions go into the node of the
# coming release: MILLPOND_BLESS=1 cargo test --test sources.
"
    .to_owned();
    let mut before = String::new();
    for ((major, minor), names) in nodes {
        text += &format!("\nMILLPOND_{major}.{minor} {{\n  global:\n");
        for name in names {
            text += &format!("    {name};\n");
        }
        // One node says it for all.
        let local = if before.is_empty() { "  local: *;\n" } else { "" };
        text += &format!("{local}}}{before};\n");
        before = format!(" MILLPOND_{major}.{minor}");
    }
    text
}

#[test]
fn the_symbols_of_the_shared_library_are_the_functions_of_the_header() {
    let bless = std::env::var_os("MILLPOND_BLESS").is_some_and(|v| v == "1");
    let mut nodes = read(&std::fs::read_to_string(map()).unwrap_or_default());
    let listed = |nodes: &Nodes| nodes.values().flatten().cloned().collect::<BTreeSet<String>>();
    let new: Vec<String> = exports().difference(&listed(&nodes)).cloned().collect();
    if bless && !new.is_empty() {
        nodes.entry(this_version()).or_default().extend(new.iter().cloned());
        std::fs::write(map(), written(&nodes)).unwrap();
    }
    let (exports, listed) = (exports(), listed(&nodes));
    let missing: Vec<_> = exports.difference(&listed).collect();
    assert!(
        missing.is_empty(),
        "not in cmake/millpond.map: {missing:?}; MILLPOND_BLESS=1 cargo test --test sources adds them"
    );
    let gone: Vec<_> = listed.difference(&exports).collect();
    assert!(
        gone.is_empty(),
        "in cmake/millpond.map, and in no source: {gone:?}; a released function stays, one that never was goes from the list"
    );
    assert!(exports.len() >= 100, "only {} exports found", exports.len());
    let newest = *nodes.keys().last().unwrap();
    assert!(newest <= this_version(), "the node {newest:?} is newer than the library");
}

#[test]
fn a_list_that_is_wrong_is_noticed() {
    let nodes = Nodes::from([
        ((0, 1), BTreeSet::from(["millpond_a".to_owned(), "millpond_b".to_owned()])),
        ((0, 2), BTreeSet::from(["millpond_c".to_owned()])),
    ]);
    let text = written(&nodes);
    assert_eq!(read(&text), nodes);
    for (have, broken) in [
        ("millpond_c;", "millpond_*;"),           // a pattern
        ("millpond_c;", "millpond_a;"),           // twice
        ("} MILLPOND_0.1;", "};"),                // a node that does not follow the one before
        ("MILLPOND_0.2 {", "MILLPOND_0.1 {"),     // out of order
        ("    millpond_c;", "    _ZN4core3fmt;"), // nothing of the header
    ] {
        let wrong = text.replace(have, broken);
        assert_ne!(wrong, text);
        std::panic::catch_unwind(|| read(&wrong)).expect_err(broken);
    }
}
