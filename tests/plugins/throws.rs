//! A C++ exception that a plugin throws into the library is a failure of that call, on whichever thread, as often as
//! it comes. Needs a C++ compiler.

use crate::apart::apart;
use crate::compilers::{self, Scratch};
use millpond::base::error::Code;
use millpond::paddle::load_plugin;
use millpond::runtime;
use std::thread;

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
#[test]
fn an_exception_from_a_plugin_is_a_failure_of_the_call() {
    apart(|| {
        let scratch = Scratch::new("throws");
        let source = scratch.write("throws.cc", PLUGIN);
        let object = scratch.path("throws.so");
        compilers::compile_ok("-std=c++17", &source, &["-shared", "-fPIC", "-o", object.to_str().unwrap()]);
        // SAFETY: the object that was just built.
        unsafe { load_plugin(&object) }.unwrap();
        let device = runtime::device("throws", 0).unwrap();
        thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..1000 {
                        let e = device.device().alloc(4096).unwrap_err();
                        assert_eq!(e.code(), Code::Device);
                        let said = "device_memory_allocate threw a C++ exception (St13runtime_error)";
                        assert!(e.message().contains(said), "{}", e.message());
                    }
                });
            }
        });
        runtime::finalize().unwrap();
    });
}
