//! Plugins from shared objects: the example in C, complete and with only the required callbacks, and the errors for
//! objects that are not plugins. Needs a C compiler, as the header tests do.

use crate::compilers::{self, Scratch};
use millpond::device::Caps;
use millpond::paddle::load_plugin;
use millpond::runtime::{self, PoolId};
use millpond::{Code, Result};
use std::path::{Path, PathBuf};

fn load(path: &Path) -> Result<String> {
    // SAFETY: objects that this test built, or parts of the C library.
    unsafe { load_plugin(path) }
}

fn build(scratch: &Scratch, name: &str, flags: &[&str]) -> PathBuf {
    let out = scratch.path(&format!("{name}.so"));
    let folder = compilers::root().join("examples/foreign_plugin");
    let (source, streams) = (folder.join("plugin.c"), folder.join("streams.c"));
    let mut all =
        vec!["-shared", "-fPIC", "-pthread", streams.to_str().unwrap(), "-o", out.to_str().unwrap()];
    all.extend(flags);
    compilers::compile_ok("-std=c11", &source, &all);
    out
}

fn round_trip(name: &str) {
    let n = 100_000u64;
    let source: Vec<u8> = (0..n).map(|i| i as u8).collect();
    let mut back = vec![0u8; n as usize];
    for ordinal in 0..runtime::device_count(name).unwrap() {
        let d = runtime::device(name, ordinal).unwrap();
        let p = d.memory().alloc_unordered(PoolId::DEFAULT, n).unwrap();
        d.write(p, &source).unwrap();
        d.read(p, &mut back).unwrap();
        assert!(back == source);
        assert_eq!(runtime::unregister_type(name).unwrap_err().code(), Code::Busy);
        d.memory().free(p, None, None).unwrap();
    }
}

#[test]
fn the_example_plugin_loads_and_unloads() {
    let scratch = Scratch::new("plugin-load");
    let path = build(&scratch, "whole", &[]);
    for _ in 0..3 {
        assert_eq!(load(&path).unwrap(), "example");
        assert_eq!(load(&path).unwrap_err().code(), Code::Busy);
        assert!(runtime::device("example", 0).unwrap().device().caps().contains(Caps::STREAMS));
        round_trip("example");
        runtime::unregister_type("example").unwrap();
        assert!(!compilers::is_mapped("whole.so"), "the object is still loaded");
    }
    let minimal = build(&scratch, "minimal", &["-DEXAMPLE_MINIMAL", "-DEXAMPLE_TYPE=\"small\""]);
    assert_eq!(load(&minimal).unwrap(), "small");
    round_trip("small");
}

#[test]
fn what_is_no_plugin_is_told() {
    let missing = load(Path::new("/nonexistent/plugin.so")).unwrap_err();
    assert_eq!(missing.code(), Code::System);
    assert!(missing.message().contains("No such file"), "{missing}");
    let other = load(Path::new("libm.so.6")).unwrap_err();
    assert_eq!(other.code(), Code::PluginRefused);
    assert!(other.message().contains("InitPlugin"), "{other}");
    assert_eq!(load(Path::new("")).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(load(Path::new("a\0b")).unwrap_err().code(), Code::InvalidArgument);
}

#[test]
fn a_refused_object_is_unloaded() {
    let scratch = Scratch::new("plugin-refused");
    let path = build(&scratch, "nameless", &["-DEXAMPLE_TYPE=\"\""]);
    assert_eq!(load(&path).unwrap_err().code(), Code::PluginRefused);
    assert!(!compilers::is_mapped("nameless.so"), "the object is still loaded");
}
