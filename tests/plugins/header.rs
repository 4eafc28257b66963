//! `custom_runtime.h` compiles alone, twice, in C and in C++, and after a header that defines the
//! same types; it says what the Rust mirror says, and refuses a layout that differs. Needs a C and a
//! C++ compiler.

use crate::compilers::{self, Scratch, compile, compile_ok};
use millpond::paddle::abi::{FACTS, KnownLayout};
use std::fmt::Write;
use std::path::PathBuf;

const LANGUAGES: [(&str, &str); 5] = [
    ("-std=c11", "c"),
    ("-std=c17", "c"),
    ("-std=c++17", "cc"),
    ("-std=c++20", "cc"),
    // As some frameworks still have it.
    ("-std=gnu11", "c"),
];
const INCLUDE: &str = "#include <millpond/custom_runtime.h>\n";

fn header() -> String {
    std::fs::read_to_string(compilers::root().join("include/millpond/custom_runtime.h")).unwrap()
}

/// A header like PaddlePaddle's: the types of ours between its guards, and the macro of PaddlePaddle's
/// version that tells that they are there. `change` makes another release of it.
fn stub(change: impl FnOnce(&mut String)) -> String {
    let text = header();
    let start = text.find("#ifndef PADDLE_CUSTOM_RUNTIME_MAJOR_VERSION").unwrap();
    let start = start + text[start..].find('\n').unwrap();
    let end = start + text[start..].find("/* PaddlePaddle's header is there */").unwrap();
    let end = text[..end].rfind("#else").unwrap();
    let mut types = text[start..end].to_owned();
    change(&mut types);
    format!(
        "#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n{types}\n\
         #define PADDLE_CUSTOM_RUNTIME_MAJOR_VERSION 0\n"
    )
}

fn in_all(name: &str, text: &str) {
    let scratch = Scratch::new(name);
    for (standard, extension) in LANGUAGES {
        let file = scratch.write(&format!("{name}.{extension}"), text);
        compile_ok(standard, &file, &["-fsyntax-only"]);
    }
}

/// Does not compile, for a reason that holds `why`.
#[track_caller]
fn in_none(name: &str, text: &str, why: &str) {
    let scratch = Scratch::new(name);
    for (standard, extension) in LANGUAGES {
        let file: PathBuf = scratch.write(&format!("{name}.{extension}"), text);
        let said = compile(standard, &file, &["-fsyntax-only"]).expect_err("it compiled");
        assert!(said.contains(why), "{why:?} is not in\n{said}");
    }
}

#[test]
fn it_compiles_alone_and_twice() {
    in_all("alone", INCLUDE);
    in_all("twice", &format!("{INCLUDE}{INCLUDE}"));
}

#[test]
fn its_macros_compile() {
    let plugin = "static void exact(CustomRuntimeParams *params) {\n\
                    MILLPOND_CUSTOM_RUNTIME_CHECK_VERSION(params);\n\
                    params->interface->initialize = NULL;\n}\n\
                  static void common(CustomRuntimeParams *params) {\n\
                    MILLPOND_CUSTOM_RUNTIME_CHECK_COMMON(params);\n}\n\
                  millpond_init_plugin plugins[2] = {exact, common};\n\
                  C_DataType type = MILLPOND_DATA_TYPE_COMPLEX128;\n\
                  C_DataLayout layout = MILLPOND_DATA_LAYOUT_STRIDED;\n\
                  C_CCLReduceOp op = MILLPOND_REDUCE_PRODUCT;\n";
    in_all("macros", &format!("{INCLUDE}{plugin}"));
    in_all("macros-after", &format!("{}{INCLUDE}{plugin}", stub(|_| ())));
}

#[test]
fn it_compiles_after_a_header_with_the_same_types() {
    in_all("after", &format!("{}{INCLUDE}{INCLUDE}", stub(|_| ())));
}

/// Takes the named callbacks out, as an older release has them.
fn without(types: &mut String, members: &[&str]) {
    for member in members {
        let at = types.find(&format!("(*{member})(")).unwrap();
        let start = types[..at].rfind("  C_Status").unwrap();
        let end = at + types[at..].find(';').unwrap() + 1;
        types.replace_range(start..end, "");
    }
}

#[test]
fn it_compiles_after_an_older_release() {
    let graph = [
        "is_dnn_supported",
        "cuda_stream_begin_capture",
        "cuda_stream_end_captrue",
        "cuda_graph_launch",
        "cuda_graph_destroy",
        "cuda_graph_exec_destroy",
        "cuda_graph_instantiate",
        "cuda_graph_get_nodes",
        "cuda_stream_capture_info",
        "get_parameter_setter_for_exec_graph",
        "cuda_graph_debug_dot_print",
        "cuda_thread_exchange_stream_capthure_mode",
    ];
    in_all("older", &format!("{}{INCLUDE}", stub(|t| without(t, &graph))));
    // No release has one member fewer than that.
    let odd = stub(|t| {
        without(t, &graph);
        without(t, &["is_float16_supported"]);
    });
    in_none("odd", &format!("{odd}{INCLUDE}"), "none that is known");
}

#[test]
fn a_layout_that_differs_does_not_compile() {
    let moved = stub(|t| without(t, &["query_stream"]));
    in_none("moved", &format!("{moved}{INCLUDE}"), "stream_add_callback is not where the ABI has it");
    let params =
        stub(|t| *t = t.replacen("  char* sub_device_type;", "  char *odd; char *sub_device_type;", 1));
    in_none("params", &format!("{params}{INCLUDE}"), "sub_device_type is not where the ABI has it");
}

#[test]
fn it_has_the_layout_of_the_rust_mirror() {
    let mut text = String::from(INCLUDE);
    for (name, size, members) in FACTS {
        let tag = if *name == "C_Device_st" { "struct " } else { "" };
        writeln!(text, "MP_ASSERT(sizeof({tag}{name}) == {size}, \"{name}\");").unwrap();
        for (member, offset) in *members {
            writeln!(text, "MP_ASSERT(offsetof({tag}{name}, {member}) == {offset}, \"{name}.{member}\");")
                .unwrap();
        }
    }
    let newest = KnownLayout::ALL.last().unwrap();
    for (name, value) in [
        ("INTERFACE_SIZE", newest.interface_size),
        ("PARAMS_SIZE", newest.params_size),
        ("COMMON_SIZE", KnownLayout::COMMON),
        ("SIZE_LIMIT", KnownLayout::SIZE_LIMIT),
    ] {
        writeln!(text, "MP_ASSERT(MILLPOND_CUSTOM_RUNTIME_{name} == {value}, \"{name}\");").unwrap();
    }
    let define = "#ifdef __cplusplus\n#define MP_ASSERT static_assert\n#else\n#define MP_ASSERT _Static_assert\n#endif\n";
    in_all("mirror", &format!("{define}{text}"));
    // The check can fail.
    let wrong = text.replacen("== 464", "== 456", 1);
    assert_ne!(wrong, text);
    in_none("mirror-wrong", &format!("{define}{wrong}"), "device_realloc_size");
}

/// A formatter once took the rows for prose, and put the end of one before the next.
#[test]
fn rows_of_the_rules_are_rows() {
    let text = header();
    let rules = text.split_once("/* Rules for every callback\n").unwrap().1.split_once("*/").unwrap().0;
    let words: Vec<_> =
        rules.lines().filter_map(|l| l.strip_prefix(" *   ")).filter(|l| !l.starts_with(' ')).collect();
    let firsts: Vec<_> = words.iter().map(|l| l.split_whitespace().next().unwrap()).collect();
    assert_eq!(firsts, ["Units", "Threads", "Errors", "C++", "NULL"]);
    for line in rules.lines().filter(|l| l.starts_with(" * ")) {
        assert!(line.starts_with(" *   "), "{line:?} is in no row");
        assert!(!line[13..].trim_start().contains("  "), "{line:?} is two rows");
    }
}
