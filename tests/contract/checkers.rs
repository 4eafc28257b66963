//! AddressSanitizer and valgrind's memcheck see blocks: they report what goes beyond one, or uses a freed one, and
//! nothing else. The program is checkers.cpp.

use crate::compilers::{self, Scratch};
use std::process::Command;

const SANITIZED: [&str; 2] = ["-fsanitize=address", "-fno-omit-frame-pointer"];

fn build(scratch: &Scratch, name: &str, flags: &[&str]) -> String {
    let out = scratch.path(name).to_str().unwrap().to_owned();
    let (source, archive) = (compilers::root().join("tests/contract/checkers.cpp"), compilers::archive());
    let own = [
        "-g",
        "-O1",
        "-pthread",
        archive.to_str().unwrap(),
        "-ldl",
        "-lm",
        "-lgcc_s",
        "-Wl,--gc-sections",
        "-o",
        &out,
    ];
    compilers::compile_ok("-std=c++17", &source, &[&own[..], flags].concat());
    out
}

/// Runs the program in a way; whether it ended well, and what was said.
fn run(program: &[&str], way: &str, variables: &[(&str, &str)]) -> (bool, String) {
    run_all(program, &[way], variables)
}

fn run_all(program: &[&str], ways: &[&str], variables: &[(&str, &str)]) -> (bool, String) {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).args(ways).env("MILLPOND_HOST_CAPACITY", "64M");
    let done = command.envs(variables.iter().copied()).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    (done.status.success(), said)
}

const SEGMENTS: (&str, &str) = ("MILLPOND_HOST_MAPPING", "0");
const UNPOOLED: (&str, &str) = ("MILLPOND_ALLOC_CONF", "backend:none");
const OFF: (&str, &str) = ("MILLPOND_TOOLS", "none");

/// A program that is right gets no report, one that is not gets one, in each way to be wrong.
fn asan(program: &str) {
    for how in [&[][..], &[SEGMENTS]] {
        let (good, said) = run(&[program], "right", how);
        assert!(good && said == "done\n", "{how:?}: {said}");
    }
    let (good, said) = run(&[program, "right"], "unpooled", &[UNPOOLED]);
    assert!(good && said == "done\n", "{said}");
    let ways = [
        "overrun",
        "underrun",
        "after_free",
        "stream_overrun",
        "stream_after_free",
        "queued_after_free",
        "ended_after_free",
        "default_after_free",
        "after_a_restore",
        "pinned_overrun",
        "pinned_after_free",
    ];
    for way in ways {
        for how in [&[][..], &[SEGMENTS]] {
            let (good, said) = run(&[program], way, how);
            assert!(
                !good && said.contains("ERROR: AddressSanitizer: use-after-poison"),
                "{way} {how:?}: {said}"
            );
            assert!(said.contains("checkers.cpp"), "{way}: {said}");
        }
        // Without the library's help nobody sees it.
        let (good, said) = run(&[program], way, &[OFF]);
        assert!(good && said == "done\n", "{way}: {said}");
    }
    let (good, said) = run(&[program], "overrun", &[("MILLPOND_TOOLS", "asn")]);
    assert!(
        !good && said.contains("MILLPOND_TOOLS has \"asn\": want asan, memcheck, nvtx or none"),
        "{said}"
    );
}

#[test]
fn the_sanitizer_sees_blocks() {
    let scratch = Scratch::new("checkers-asan");
    asan(&build(&scratch, "sanitized", &SANITIZED));
}

/// The sanitizer's runtime may be part of the program, and the library a shared one.
#[test]
fn the_sanitizer_may_be_part_of_the_program() {
    let scratch = Scratch::new("checkers-static");
    let program = build(&scratch, "sanitized", &[&SANITIZED[..], &["-static-libasan"]].concat());
    let (good, said) = run(&[&program], "right", &[]);
    assert!(good && said == "done\n", "{said}");
    let (good, said) = run(&[&program], "after_free", &[]);
    assert!(!good && said.contains("AddressSanitizer: use-after-poison"), "{said}");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn memcheck_sees_blocks() {
    let scratch = Scratch::new("checkers-memcheck");
    let program = build(&scratch, "plain", &[]);
    // The search for leaks at the end says nothing here, but finds blocks that overlap. One search does: of segments, which
    // it reads word by word, it takes six times as long as all else.
    let options = ["--quiet", "--error-exitcode=9", "--fair-sched=yes"];
    let under = [&["valgrind"][..], &options, &["--leak-check=no", &program]].concat();
    let (good, said) = run(&[&["valgrind"][..], &options, &[&program]].concat(), "right", &[]);
    assert!(good && said == "done\n", "{said}");
    let (good, said) = run(&under, "right", &[SEGMENTS]);
    assert!(good && said == "done\n", "in segments: {said}");
    let freed = "is 5 bytes inside a block of size 100,000 free'd";
    let wrong = [
        ("overrun", "Invalid write of size 1", ""), // no description: the pool has no red zones
        ("underrun", "Invalid write of size 1", ""),
        ("after_free", "Invalid write of size 1", "is 999 bytes inside a block of size 1,000 free'd"),
        ("stream_overrun", "Invalid write of size 1", ""),
        ("stream_after_free", "Invalid write of size 1", freed),
        ("queued_after_free", "Invalid write of size", "is 0 bytes inside a block of size 100,000 free'd"),
        ("ended_after_free", "Invalid write of size 1", freed),
        ("default_after_free", "Invalid write of size 1", freed),
        ("after_a_restore", "Invalid write of size 1", freed),
        ("pinned_overrun", "Invalid write of size 1", ""),
        ("pinned_after_free", "Invalid write of size 1", freed),
        ("undefined", "depends on uninitialised value", ""),
    ];
    // In one process, since two thirds of what each takes is the start of valgrind and of the library in it.
    let ways: Vec<&str> = std::iter::once("each").chain(wrong.map(|(way, ..)| way)).collect();
    let (good, said) = run_all(&under, &ways, &[]);
    assert!(!good, "{said}");
    let mut parts = said.split("way: ").skip(1);
    for (way, what, where_) in wrong {
        let part = parts.next().unwrap_or_else(|| panic!("{way} is missing: {said}"));
        assert!(part.starts_with(way) && part.contains(what) && part.contains(where_), "{way}: {said}");
        assert!(part.contains("checkers.cpp"), "{way}: {said}");
    }
    assert_eq!(said.matches("done\n").count(), wrong.len(), "{said}");
    let (good, said) = run(&under, "after_free", &[OFF]);
    assert!(good && said == "done\n", "{said}");
}

/// Other tools of valgrind hear nothing, and so say nothing of it, and run the library as it is without them.
#[cfg(target_arch = "x86_64")]
#[test]
fn other_tools_of_valgrind_hear_nothing() {
    let scratch = Scratch::new("checkers-dhat");
    let program = build(&scratch, "plain", &[]);
    let log = scratch.path("dhat");
    let out = format!("--dhat-out-file={}", log.display());
    let (good, said) = run(&["valgrind", "--tool=dhat", "--quiet", &out, &program], "overrun", &[]);
    assert!(good && said == "done\n", "{said}");
}
