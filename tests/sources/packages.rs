//! Every package that only tests declare is used by one of them. (`unused_crate_dependencies` sees the packages of the
//! library; a package of tests is linked into each test program, and most programs use only some.)

use crate::rooms::sources;
use std::fs;
use std::path::Path;

/// Not named in any source, and why: what is looked for instead.
const LOADED: [(&str, &str); 1] = [
    // A shared library that cargo builds beside the tests, which load it.
    ("millpond-fakecuda", "libcuda.so"),
];

/// The packages in the sections of a manifest whose names end with `dev-dependencies`.
fn for_tests(manifest: &str) -> Vec<&str> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line.trim_end_matches(']').ends_with("dev-dependencies");
        } else if let Some((name, _)) = line.split_once('=').filter(|_| inside && !line.starts_with('#')) {
            found.push(name.trim());
        }
    }
    found
}

/// Whether a source names the package in a path, such as `cc::Build` or `use proptest::prelude::*`.
fn is_named(package: &str, text: &str) -> bool {
    let path = format!("{}::", package.replace('-', "_"));
    let code = text.lines().map(|l| l.split("//").next().unwrap());
    code.flat_map(|l| l.match_indices(&path).map(move |(at, _)| &l[..at]))
        .map(|before| before.strip_suffix("::").unwrap_or(before)) // `::cc::Build`
        .any(|before| !before.ends_with(|c: char| c.is_alphanumeric() || c == '_'))
}

#[test]
fn every_package_of_the_tests_is_used() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut seen = 0;
    for (manifest, folders) in [
        (".", ["src", "tests"]),
        ("cli", ["src", "tests"]),
        ("bench", ["src", "src"]),
        ("fakecuda", ["src", "tests"]),
    ] {
        let home = root.join(manifest);
        let text = fs::read_to_string(home.join("Cargo.toml")).unwrap();
        let mut files = Vec::new();
        folders.iter().for_each(|f| sources(&home.join(f), &mut files));
        for package in for_tests(&text) {
            seen += 1;
            let used = match LOADED.iter().find(|l| l.0 == package) {
                Some((_, file)) => files.iter().any(|(_, text)| text.contains(file)),
                None => files.iter().any(|(_, text)| is_named(package, text)),
            };
            assert!(used, "{manifest}/Cargo.toml: no test names {package}");
        }
    }
    assert!(seen >= 5, "only {seen} packages found: the test has lost its eyes");
}

#[test]
fn a_package_that_is_not_used_is_found() {
    let manifest =
        "[dependencies]\na = \"1\"\n\n[target.'cfg(not(loom))'.dev-dependencies]\n# b = \"1\"\nc-d = \"1\"\n";
    assert_eq!(for_tests(manifest), ["c-d"]);
    assert!(is_named("c-d", "use c_d::{E};\n") && is_named("c-d", "    let x = ::c_d::new();\n"));
    for text in ["// use c_d::E;\n", "use abc_d::E;\n", "use x::c_d::E;\n", "let c_d = 1;\n"] {
        assert!(!is_named("c-d", text), "{text}");
    }
}
