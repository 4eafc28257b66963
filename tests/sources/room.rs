//! Whether the host has room is asked however the library is built. A compiler may leave out memory that nobody uses, and then
//! there is always room: the tests' own build does not, and what CMake builds does not, but Cargo's release without link-time
//! optimisation did. So the file that asks, which needs nothing else, is compiled in each of these ways.

use crate::compilers::{Scratch, root};
use std::path::Path;
use std::process::Command;

/// Levels of optimisation, each with what may be inlined: the compiler's own limit, and those that we build or have built with.
const WAYS: [(&str, u32); 4] = [("2", 250), ("3", 250), ("3", 50), ("3", 45)];

#[test]
fn room_is_asked_for_in_optimised_builds() {
    let scratch = Scratch::new("room");
    let program = format!(
        "#![allow(dead_code)]
        #[path = {:?}]
        mod boxed;
        fn main() {{
            assert!(boxed::has_room(65536), \"there is room\");
            assert!(!boxed::has_room(isize::MAX as usize), \"the heap was not asked\");
        }}",
        root().join("src/base/boxed.rs")
    );
    let (source, made) = (scratch.write("room.rs", &program), scratch.path("room"));
    for (level, inlined) in WAYS {
        let mut rustc = Command::new(Path::new(env!("CARGO")).with_file_name("rustc"));
        rustc.args(["--edition", "2024", &format!("-Copt-level={level}")]);
        rustc.arg(format!("-Cllvm-args=-inline-threshold={inlined}"));
        let done = rustc.arg("-o").arg(&made).arg(&source).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let done = Command::new(&made).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "level {level}, inlined up to {inlined}: {said}");
    }
}
