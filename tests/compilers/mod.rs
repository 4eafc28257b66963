//! The system's C and C++ compilers, for tests that build C sources against the library.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The top of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A folder that goes with the value.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The system's compiler for a standard of C or C++ (`-std=c11`), as the crate `cc` finds it: `CC`, `CXX`, or what the
/// system calls `cc` and `c++`.
fn compiler(standard: &str) -> Command {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut build = ::cc::Build::new();
    build.cpp(standard.contains("++")).target(&target).host(&target).opt_level(0).cargo_metadata(false);
    let tool = build.warnings_into_errors(true).extra_warnings(true).try_get_compiler();
    tool.unwrap_or_else(|e| panic!("these tests need a compiler: {e}")).to_command()
}

/// Compiles one file with every warning an error. `Err` has what the compiler said.
pub fn compile(standard: &str, source: &Path, flags: &[&str]) -> Result<(), String> {
    let output = compiler(standard)
        .args([standard, "-Wpedantic"])
        .arg(format!("-I{}", root().join("include").display()))
        .arg(source)
        .args(flags)
        .output()
        .unwrap_or_else(|e| panic!("the compiler does not run: {e}"));
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[track_caller]
pub fn compile_ok(standard: &str, source: &Path, flags: &[&str]) {
    if let Err(text) = compile(standard, source, flags) {
        panic!("{standard} {}:\n{text}", source.display());
    }
}

/// Millpond's archive, of the library that these tests are built with: to compile it and its dependencies once more, for
/// an archive alone, would take half a minute.
pub fn archive() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (archive, source) = (folder.join("libmillpond.a"), folder.join("archive.rs"));
    // Tests of several processes want it, and one makes it.
    let turn = File::create(folder.join("archive.lock")).unwrap();
    // SAFETY: locks the file of an open descriptor, until that is closed.
    assert_eq!(unsafe { libc::flock(turn.as_raw_fd(), libc::LOCK_EX) }, 0);
    let target = folder.parent().unwrap();
    let library = target.join("debug/libmillpond.rlib");
    // All packages, as for `cargo test --workspace`: by itself one may have other features, and be compiled for them.
    let build =
        ["build", "--locked", "--offline", "--profile", "test", "--workspace", "--lib", "--target-dir"];
    ran(Command::new(env!("CARGO")).args(build).arg(target).current_dir(root()));
    let made = |path: &Path| path.metadata().and_then(|about| about.modified());
    if made(&archive).is_ok_and(|then| then >= made(&library).unwrap()) {
        return archive;
    }
    std::fs::write(&source, "pub extern crate millpond;\n").unwrap();
    let new = folder.join("libmillpond.a.new");
    let mut rustc = Command::new(Path::new(env!("CARGO")).with_file_name("rustc"));
    rustc.args(["--edition", "2024", "--crate-type", "staticlib", "--extern"]);
    rustc.arg(format!("millpond={}", library.display()));
    rustc.arg("-L").arg(format!("dependency={}", target.join("debug/deps").display()));
    ran(rustc.arg("-o").arg(&new).arg(&source));
    // The standard library comes with debug information, which takes as long to link as all else, and valgrind reads it.
    ran(Command::new("objcopy").arg("--strip-debug").arg(&new));
    std::fs::rename(new, &archive).unwrap();
    archive
}

#[track_caller]
fn ran(command: &mut Command) {
    let done = command.stdin(Stdio::null()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Whether a file of that name is mapped into this process.
pub fn is_mapped(name: &str) -> bool {
    std::fs::read_to_string("/proc/self/maps").unwrap().contains(name)
}
