//! The system's C and C++ compilers, for tests that hold C sources against the library.

#![allow(dead_code, reason = "each test file uses a part")]

use std::path::{Path, PathBuf};
use std::process::Command;

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

/// Compiles one file with every warning an error. `Err` has what the compiler said.
pub fn compile(compiler: &str, standard: &str, source: &Path, flags: &[&str]) -> Result<(), String> {
    let output = Command::new(compiler)
        .args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .arg(format!("-I{}", root().join("include").display()))
        .arg(source)
        .args(flags)
        .output()
        .unwrap_or_else(|e| panic!("these tests need the compiler {compiler:?}: {e}"));
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[track_caller]
pub fn compile_ok(compiler: &str, standard: &str, source: &Path, flags: &[&str]) {
    if let Err(text) = compile(compiler, standard, source, flags) {
        panic!("{compiler} {standard} {}:\n{text}", source.display());
    }
}

/// Whether a file of that name is mapped into this process.
pub fn is_mapped(name: &str) -> bool {
    std::fs::read_to_string("/proc/self/maps").unwrap().contains(name)
}
