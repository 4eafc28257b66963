//! A C++ exception that a plugin throws into the library ends the process with a message: Rust cannot
//! take one over, and going on with half a call's work undone would be worse. Needs a C++ compiler.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

mod cc;

use cc::Scratch;
use millpond::paddle::load_plugin;
use millpond::runtime;
use std::os::unix::process::ExitStatusExt;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::Command;

const PLUGIN: &str = r#"
#include <millpond/custom_runtime.h>
#include <stdexcept>
static C_Status count(size_t *out) { *out = 1; return C_SUCCESS; }
static C_Status allocate(C_Device, void **, size_t) { throw std::runtime_error("thrown on purpose"); }
static C_Status deallocate(C_Device, void *, size_t) { return C_SUCCESS; }
static C_Status copy(C_Device, void *, const void *, size_t) { return C_SUCCESS; }
extern "C" void InitPlugin(CustomRuntimeParams *params) {
  MILLPOND_CUSTOM_RUNTIME_CHECK_COMMON(params);
  static char type[] = "throws";
  params->device_type = type;
  params->interface->device_memory_allocate = allocate;
  params->interface->device_memory_deallocate = deallocate;
  params->interface->memory_copy_h2d = copy;
  params->interface->memory_copy_d2h = copy;
  params->interface->get_device_count = count;
}
"#;
const CHILD: &str = "MILLPOND_TEST_THROWING_PLUGIN";

#[test]
fn an_exception_from_a_plugin_ends_the_process_and_says_so() {
    if let Some(plugin) = std::env::var_os(CHILD) {
        // SAFETY: the object that the parent built.
        unsafe { load_plugin(Path::new(&plugin)) }.unwrap();
        let device = runtime::device("throws", 0).unwrap();
        // As every export of the C API does, with the guard around it.
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| device.device().alloc(4096).is_ok()));
        println!("went on with {result:?}");
        return;
    }
    let scratch = Scratch::new("throws");
    let source = scratch.write("throws.cc", PLUGIN);
    let object = scratch.path("throws.so");
    cc::compile_ok("c++", "-std=c++17", &source, &["-shared", "-fPIC", "-o", object.to_str().unwrap()]);
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "an_exception_from_a_plugin_ends_the_process_and_says_so", "--nocapture"])
        .env(CHILD, &object)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stderr);
    let went_on = String::from_utf8_lossy(&child.stdout).contains("went on");
    assert_eq!(child.status.signal(), Some(libc::SIGABRT), "{:?}: {said}", child.status);
    assert!(said.contains("foreign exception") && !went_on, "{said}");
}
