//! `millpond compare`, and options of the allocator for a replay.

use super::{Folder, err, millpond, out, small_trace};
use serde_json::Value;

/// Two configurations on two traces: the JSON has all of it, and each is what a replay alone says.
#[test]
fn configurations_stand_side_by_side() {
    let folder = Folder::new("compare");
    let trace = folder.file("small.trace", &small_trace());
    let other = folder.file("other.trace", "# name: other\na 1 9000000 0\na 2 3000000 0\nf 1\nf 2\n");
    let (trace, other) = (trace.to_str().unwrap(), other.to_str().unwrap());
    let with = [
        "--with",
        "pool=",
        "--with",
        "none=backend:none",
        "--with",
        "device:cpu",
        "--repeat",
        "2",
        "--passes",
        "2",
    ];
    let o = millpond(&[&["compare", trace, other, "--json", "-"], &with[..]].concat());
    assert!(o.status.success(), "{}", err(&o));
    assert_eq!(err(&o), "");
    let all: Value = serde_json::from_str(&out(&o)).unwrap();
    assert_eq!(all.as_array().map(Vec::len), Some(2));
    assert_eq!(all[1]["trace"], "other");
    let columns = all[0]["configurations"].as_array().unwrap();
    let words = |key: &str| columns.iter().map(|c| c[key].as_str().unwrap()).collect::<Vec<_>>();
    assert_eq!(words("name"), ["pool", "none", "#3"]);
    assert_eq!(words("device"), ["host:0", "host:0", "cpu:0"]);
    for c in columns {
        assert!(c["error"].is_null() && c["out_of_memory"].is_null(), "{c}");
        assert!(c["calls_over_first"].as_f64().unwrap() > 0.0, "{c}");
        assert!(c["smallest_device_over_peak_live"].as_f64().unwrap() >= 1.0, "{c}");
    }
    // What is not pooled is asked of the device each time, and needs no more than the program.
    let (pool, none) = (&columns[0]["replay"], &columns[1]["replay"]);
    assert_eq!(none["operations"], 2 * 580);
    assert!(none["driver_calls"].as_u64() >= Some(580), "{none}");
    assert!(pool["driver_calls"].as_u64() < Some(100), "{pool}");
    assert_eq!(none["requested_bytes"]["peak"], pool["requested_bytes"]["peak"]);
    let alone = millpond(&["bisect", "--quiet", trace, "--options", "backend:none"]);
    let bytes = columns[1]["smallest_device_bytes"].to_string();
    assert!(out(&alone).contains(&format!("({bytes} bytes)")), "{bytes}: {}", out(&alone));

    let o = millpond(&[&["compare", trace, "--no-bisect"], &with[..]].concat());
    let table = out(&o);
    for wants in ["small, 580 operations", "none  host:0, backend:none", "peak reserved", "1.00x"] {
        assert!(table.contains(wants), "`{wants}` is not in\n{table}");
    }
    assert!(!table.contains("smallest device"), "{table}");
    assert!(err(&o).contains("small: none: replay 2 of 2"), "{}", err(&o));
}

/// The others are compared all the same.
#[test]
fn a_configuration_that_fails_is_named() {
    let folder = Folder::new("compare-fails");
    let trace = folder.file("t.trace", "# name: t\na 1 9000000 0\nf 1\n");
    let trace = trace.to_str().unwrap();
    let compare = |more: &[&str]| millpond(&[&["compare", trace, "--repeat", "1"], more].concat());
    let o = compare(&["--with", "good=", "--with", "bad=device:abacus"]);
    assert_eq!(o.status.code(), Some(1), "{}", err(&o));
    let table = out(&o);
    for wants in ["bad: the replay on abacus:0 failed", "peak reserved", "10.00 MiB"] {
        assert!(table.contains(wants), "`{wants}` is not in\n{table}");
    }
    // Too small a device for the replay: what would be enough is told nevertheless.
    let o = compare(&["--with", "good=", "--capacity", "4MiB"]);
    assert_eq!(o.status.code(), Some(3), "{}", err(&o));
    let table = out(&o);
    for wants in ["smallest device", "10.00 MiB", "good: t holds 8.58 MiB at its peak"] {
        assert!(table.contains(wants), "`{wants}` is not in\n{table}");
    }
    for (with, wants) in [("x=", "two configurations have the name `x`"), ("y", "write KEY:VALUE")] {
        let o = compare(&["--with", "x=", "--with", with]);
        assert!(!o.status.success() && err(&o).contains(wants), "{with}: {}", err(&o));
    }
}

#[test]
fn a_replay_takes_options_of_the_allocator() {
    let folder = Folder::new("options");
    let trace = folder.file("t.trace", &small_trace());
    let trace = trace.to_str().unwrap();
    let o = millpond(&["replay", trace, "--json", "-", "--options", "backend:none"]);
    assert!(o.status.success(), "{}", err(&o));
    let all: Value = serde_json::from_str(&out(&o)).unwrap();
    assert_eq!(all[0]["reserved_bytes"], all[0]["allocated_bytes"]);
    let o = millpond(&["replay", trace, "--options", "backend:nun"]);
    assert_eq!(o.status.code(), Some(1));
    assert!(err(&o).contains("column 9: backend is \"nun\""), "{}", err(&o));
}

/// One that is refused before it begins has its place, too.
#[test]
fn the_json_of_a_replay_has_an_object_for_each_trace() {
    let folder = Folder::new("refused");
    let big = folder.file("big.trace", "# name: big\na 1 100000000 0\nf 1\n");
    let good = folder.file("good.trace", "a 1 8 0\nf 1\n");
    let files = [big.to_str().unwrap(), good.to_str().unwrap()];
    let o = millpond(&[&["replay", "--json", "-", "--capacity", "64MiB"], &files[..]].concat());
    assert_eq!(o.status.code(), Some(3), "{}", err(&o));
    let all: Value = serde_json::from_str(&out(&o)).unwrap();
    assert!(all[0]["refused"].as_str().unwrap().contains("has only 64.00 MiB"), "{all}");
    assert_eq!((&all[0]["trace"]["name"], &all[1]["alloc"]["calls"]), (&"big".into(), &1.into()));
}
