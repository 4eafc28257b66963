//! The C header follows the doc comments of `src/capi`: the test generates it again and compares.
//! `MILLPOND_BLESS=1 cargo test --test sources` rewrites it. Needs a C and a C++ compiler.

use crate::compilers;
use std::path::{Path, PathBuf};

/// One section of the header: its title, and the file of `src/capi` that has it.
const SECTIONS: [(&str, &str); 26] = [
    ("Constants and structs", "types.rs"),
    ("Last error", "last_error.rs"),
    ("Library", "library.rs"),
    ("Device types", "device_type.rs"),
    ("Devices", "device.rs"),
    ("Options", "options.rs"),
    ("Pools: stream-ordered memory", "pool.rs"),
    ("Pools: zeroed blocks, many in one call", "batch.rs"),
    ("Scopes: pools by thread", "scope.rs"),
    ("Captures: memory of graphs", "capture.rs"),
    ("Checkpoints: layouts of pools", "checkpoint.rs"),
    ("Sleep: pools without physical memory", "sleep.rs"),
    ("Memory without a pool in hand", "memory.rs"),
    ("Seeing memory: every block", "walk.rs"),
    ("Seeing memory: snapshots", "snapshot.rs"),
    ("Seeing memory: why there is none", "oom.rs"),
    ("Seeing memory: tags", "tags.rs"),
    ("Seeing memory: its history, and recordings", "history.rs"),
    ("Seeing memory: hooks", "hooks.rs"),
    ("Seeing memory: statistics in full", "statistics.rs"),
    ("Seeing memory: how long calls take", "latency.rs"),
    ("Sharing: other processes, other devices", "share.rs"),
    ("Groups: programs that share a card", "group.rs"),
    ("Copies and fills", "copy.rs"),
    ("Streams and events", "stream.rs"),
    ("DLPack", "dlpack.rs"),
];

const HEAD: &str = include_str!("head.h");
const TAIL: &str = include_str!("tail.h");

const VERSION_NUMBER: &str = "\
/* The same as one number, for the preprocessor: #if MILLPOND_VERSION_NUMBER >= 2000 is 0.2.0 or newer. */
#define MILLPOND_VERSION_NUMBER \\
  (MILLPOND_VERSION_MAJOR * 1000000 + MILLPOND_VERSION_MINOR * 1000 + MILLPOND_VERSION_PATCH)
";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn section(file: &str) -> String {
    let config = cbindgen::Config::from_root_or_default(root());
    let bindings = cbindgen::Builder::new()
        .with_config(config)
        .with_src(root().join("src/capi").join(file))
        .generate()
        .unwrap_or_else(|e| panic!("{file}: {e}"));
    let mut text = Vec::new();
    bindings.write(&mut text);
    tidy(&String::from_utf8(text).unwrap())
}

/// Comments of one line take one line, and constants stand together.
fn tidy(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let (mut out, mut n) = (String::new(), 0);
    while n < lines.len() {
        let indent = &lines[n][..lines[n].len() - lines[n].trim_start().len()];
        let short = lines[n].trim() == "/**" && lines.get(n + 2).is_some_and(|l| l.trim() == "*/");
        let between = lines[n].is_empty()
            && n > 0
            && lines[n - 1].starts_with("#define ")
            && lines[n + 1..]
                .iter()
                .find(|l| !l.starts_with("/**") && !l.starts_with(" *"))
                .is_some_and(|l| l.starts_with("#define "));
        if short {
            out += &format!("{indent}/** {} */\n", lines[n + 1].trim().trim_start_matches("* "));
            n += 3;
            continue;
        }
        if !between {
            out += lines[n];
            out.push('\n');
        }
        n += 1;
    }
    out
}

fn written() -> String {
    let version = [
        ("MAJOR", env!("CARGO_PKG_VERSION_MAJOR")),
        ("MINOR", env!("CARGO_PKG_VERSION_MINOR")),
        ("PATCH", env!("CARGO_PKG_VERSION_PATCH")),
    ];
    let mut out = HEAD.to_owned();
    for (part, number) in version {
        out += &format!("#define MILLPOND_VERSION_{part} {number}\n");
    }
    out += VERSION_NUMBER;
    for (title, file) in SECTIONS {
        out += &format!("\n/* ---- {title} {} */\n\n", "-".repeat(98 - title.len()));
        out += section(file).trim();
        out += "\n";
    }
    out + TAIL
}

fn header() -> PathBuf {
    root().join("include/millpond/millpond.h")
}

#[test]
fn the_header_is_what_the_sources_say() {
    let want = written();
    if std::env::var_os("MILLPOND_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(header(), &want).unwrap();
    }
    let have = std::fs::read_to_string(header()).unwrap();
    if let Some((n, (h, w))) = have.lines().zip(want.lines()).enumerate().find(|(_, (h, w))| h != w) {
        panic!(
            "millpond.h differs from the sources at line {}:\n  header:  {h}\n  sources: {w}\n\
             run MILLPOND_BLESS=1 cargo test --test sources",
            n + 1
        );
    }
    assert_eq!(
        have.lines().count(),
        want.lines().count(),
        "millpond.h is longer or shorter than the sources say"
    );
}

#[test]
fn every_export_is_in_the_header_and_documented() {
    let text = written();
    let mut exports = 0;
    for entry in std::fs::read_dir(root().join("src/capi")).unwrap() {
        let source = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for (at, _) in source.match_indices("extern \"C\" fn millpond_") {
            let name: String =
                source[at + 14..].trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let call = format!("{name}(");
            let lines: Vec<&str> = text.lines().collect();
            let at = lines.iter().position(|l| !l.starts_with(" *") && l.contains(&call));
            let at = at.unwrap_or_else(|| panic!("{name} is not in the header"));
            let comment = if lines[at - 1] == "MILLPOND_NODISCARD" { at - 2 } else { at - 1 };
            assert!(lines[comment].ends_with("*/"), "{name} has no comment in the header");
            exports += 1;
        }
    }
    assert!(exports >= 55, "only {exports} exports found");
    for leak in ["# Safety", "[`", "```", "crate::", "C-unwind", "_private"] {
        assert!(!text.contains(leak), "{leak:?} leaked into the header");
    }
}

/// `(struct, size, [(field, offset)])` as Rust lays it out.
macro_rules! layouts {
    ($($name:ident { $($field:ident),* $(,)? })*) => {
        &[$((stringify!($name), size_of::<$name>(), &[$((stringify!($field), offset_of!($name, $field))),*])),*]
    };
}

type Layout = (&'static str, usize, &'static [(&'static str, usize)]);

fn layouts() -> &'static [Layout] {
    use millpond::capi::*;
    use std::mem::offset_of;
    layouts! {
        millpond_host_options { struct_size, device_count, capacity_bytes, disable_mapping }
        millpond_device_info {
            struct_size, r#type, ordinal, caps, total_bytes, free_bytes, min_chunk_bytes, max_chunk_bytes,
            max_alloc_bytes, extra_padding_bytes, init_alloc_bytes, realloc_bytes, compute_capability,
            runtime_version, driver_version, name, pci_bus_id, uuid,
        }
        millpond_pool_options { struct_size, limit_bytes, name, flags }
        millpond_counter { current, peak, total }
        millpond_stats {
            struct_size, requested_bytes, allocated_bytes, active_bytes, reserved_bytes, blocks, segments,
            driver_calls, out_of_memory_count, limit_bytes, sleeping_bytes,
        }
        millpond_block_info { struct_size, base, size_bytes, requested_bytes, stream, pool, device }
    }
}

/// The example of the header's head, as a function.
fn example() -> String {
    let lines: Vec<&str> = HEAD.lines().collect();
    let first = lines.iter().position(|l| l.contains("millpond_device *device;")).unwrap();
    let count = lines[first..].iter().position(|l| *l == " *").unwrap();
    let body: Vec<_> = lines[first..first + count].iter().map(|l| l.trim_start_matches(" *")).collect();
    let body = body.join("\n").replace("... work queued on the default stream may use p ...", "");
    format!("#include <stdio.h>\nvoid example(void);\nvoid example(void) {{\n{body}\n}}\n")
}

#[test]
fn it_compiles_with_our_layout_and_its_example() {
    let mut text = "#include <millpond/millpond.h>\n#include <millpond/millpond.h>\n".to_owned();
    text += "#include <assert.h>\n";
    for (name, size, fields) in layouts() {
        text += &format!("static_assert(sizeof({name}) == {size}, \"size of {name}\");\n");
        for (field, offset) in *fields {
            let field = field.trim_start_matches("r#");
            text += &format!("static_assert(offsetof({name}, {field}) == {offset}, \"{name}.{field}\");\n");
        }
    }
    text += &example();
    let scratch = compilers::Scratch::new("millpond-header");
    for (standard, extension) in
        [("-std=c11", "c"), ("-std=c17", "c"), ("-std=c++17", "cc"), ("-std=c++20", "cc")]
    {
        let file = scratch.write(&format!("header.{extension}"), &text);
        compilers::compile_ok(standard, &file, &["-fsyntax-only"]);
        // The check can fail: a wrong offset does not compile.
        let wrong = text.replacen("== 8,", "== 9,", 1);
        assert_ne!(wrong, text);
        let file = scratch.write(&format!("wrong.{extension}"), &wrong);
        compilers::compile(standard, &file, &["-fsyntax-only"]).expect_err("a wrong offset compiled");
    }
}

/// The compiler complains about an ignored status where the caller owns what the call gives, and only there.
#[test]
fn only_the_status_of_what_gives_something_must_be_looked_at() {
    let scratch = compilers::Scratch::new("millpond-nodiscard");
    let compile = |standard: &str, extension: &str, before: &str, call: &str| {
        let text = format!(
            "{before}\n#include <millpond/millpond.h>\nvoid f(millpond_device *d);\n\
             void f(millpond_device *d) {{ void *p = NULL; (void)d; (void)p; {call}; }}\n"
        );
        let file = scratch.write(&format!("nodiscard.{extension}"), &text);
        compilers::compile(standard, &file, &["-c", "-o", "/dev/null"])
    };
    for (standard, extension) in [("-std=c11", "c"), ("-std=c++14", "cc"), ("-std=c++17", "cc")] {
        for gives in ["millpond_alloc(d, 1, &p)", "millpond_host_alloc(d, 1, &p)"] {
            compile(standard, extension, "", gives).expect_err("an ignored allocation");
            compile(standard, extension, "#define MILLPOND_NODISCARD", gives).unwrap();
        }
        for takes in ["millpond_free(p)", "millpond_device_synchronize(d)"] {
            compile(standard, extension, "", takes).unwrap();
        }
    }
}

/// A feature macro that stands for a function which is not there would be worse than none.
#[test]
fn feature_macros_stand_for_functions_of_the_header() {
    let exports = crate::symbols::exports();
    let lines: Vec<_> = HEAD.lines().filter_map(|l| l.strip_prefix("#define MILLPOND_HAS_")).collect();
    assert!(lines.len() > 20);
    for line in lines {
        let (name, functions) = line.split_once(" 1 ").expect(line);
        assert!(name.chars().all(|c| c.is_ascii_uppercase() || c == '_'), "{name}");
        let functions = functions.trim().strip_prefix("/* ").and_then(|f| f.strip_suffix(" */")).expect(line);
        for function in functions.split(", ") {
            assert!(exports.contains(function), "MILLPOND_HAS_{name} stands for {function}");
        }
    }
}
