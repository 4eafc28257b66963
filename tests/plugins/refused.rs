//! Which plugins are refused, and that the message names what is wrong.

use crate::fake::register;
use millpond::paddle::abi::*;
use millpond::runtime;
use millpond::{Code, Error};

#[track_caller]
fn refused(result: millpond::Result<String>, what: &str) -> Error {
    let error = result.expect_err("the plugin was accepted");
    assert_eq!(error.code(), Code::PluginRefused, "{error}");
    assert!(error.message().contains(what), "{what:?} is not named in {error}");
    error
}

#[test]
fn each_required_function_is_named_when_it_is_missing() {
    refused(register("r0", |_, t| t.device_memory_allocate = None), "device_memory_allocate");
    refused(register("r0", |_, t| t.device_memory_deallocate = None), "device_memory_deallocate");
    refused(register("r0", |_, t| t.memory_copy_h2d = None), "memory_copy_h2d");
    refused(register("r0", |_, t| t.memory_copy_d2h = None), "memory_copy_d2h");
    refused(register("r0", |_, t| t.get_device_count = None), "get_device_count");
    let both = |_: &mut CustomRuntimeParams, t: &mut C_DeviceInterface| {
        t.memory_copy_h2d = None;
        t.get_device_count = None;
    };
    refused(register("r0", both), "memory_copy_h2d, get_device_count");
    assert!(!runtime::type_names().unwrap().contains(&"r0".to_owned()));
}

#[test]
fn a_version_below_0_1_1_is_refused() {
    let with = |major, minor, patch| {
        move |p: &mut CustomRuntimeParams, _: &mut C_DeviceInterface| {
            p.version = CustomRuntimeVersion { major, minor, patch }
        }
    };
    refused(register("v0", with(0, 0, 0)), "0.0.0");
    refused(register("v0", with(0, 1, 0)), "version 0.1.0 is below 0.1.1");
    refused(register("v0", with(0, 0, 100)), "0.0.100");
    register("v1", with(0, 1, 1)).unwrap();
    register("v2", with(0, 1, 2)).unwrap();
    register("v3", with(1, 0, 0)).unwrap();
    // As a number that a narrow sum would wrap below the limit.
    register("v4", with(usize::MAX, usize::MAX, usize::MAX)).unwrap();
}

#[test]
fn a_size_that_no_release_has_is_refused() {
    refused(register("s0", |_, t| t.size = 900), "C_DeviceInterface.size was 1128 and is now 900");
    refused(register("s0", |_, t| t.size = 1136), "1136");
    refused(register("s0", |_, t| t.size = usize::MAX), "C_DeviceInterface.size");
    refused(register("s0", |p, _| p.size = 80), "CustomRuntimeParams.size was 96 and is now 80");
    refused(register("s0", |p, _| p.interface = std::ptr::null_mut()), "interface was changed");
    // Plugins clear the table, and its size with it, or write the size that they were built for.
    register("s1", |_, t| t.size = 0).unwrap();
    register("s2", |_, t| t.size = 912).unwrap();
}

#[test]
fn a_plugin_that_writes_past_the_declared_size_is_refused() {
    refused(
        register("w0", |_, t| {
            let end = (&raw mut *t).cast::<u8>();
            // SAFETY: on purpose past the end; the host keeps room there.
            unsafe { end.add(size_of::<C_DeviceInterface>()).write(1) };
        }),
        "wrote past",
    );
    refused(
        register("w0", |p, _| {
            let end = (&raw mut *p).cast::<u8>();
            // SAFETY: as above.
            unsafe { end.add(size_of::<CustomRuntimeParams>()).write(1) };
        }),
        "wrote past",
    );
}

#[test]
fn names_are_checked() {
    refused(register("", |_, _| ()), "device_type is empty");
    refused(register(&"x".repeat(32), |_, _| ()), "longer than 31");
    refused(register("a\tb", |_, _| ()), "control");
    refused(register("n0", |p, _| p.device_type = std::ptr::null_mut()), "device_type is NULL");
    refused(register("n0", |p, _| p.device_type = c"\xff".as_ptr().cast_mut()), "not UTF-8");
    assert_eq!(register(&"x".repeat(31), |_, _| ()).unwrap(), "x".repeat(31));
    register("n1", |_, _| ()).unwrap();
    assert_eq!(register("n1", |_, _| ()).unwrap_err().code(), Code::Busy);
    assert_eq!(register("host", |_, _| ()).unwrap_err().code(), Code::Busy);
}

#[test]
fn a_failed_start_is_told_and_takes_no_name() {
    unsafe extern "C-unwind" fn fails() -> C_Status {
        C_Status(77)
    }
    let error = register("i0", |_, t| t.initialize = Some(fails)).unwrap_err();
    assert_eq!(error.code(), Code::Device);
    assert!(error.message().contains("initialize") && error.message().contains("77"), "{error}");
    register("i0", |_, _| ()).unwrap();

    unsafe extern "C-unwind" fn huge(out: *mut usize) -> C_Status {
        // SAFETY: the host's place for the answer.
        unsafe { *out = usize::MAX };
        C_Status::SUCCESS
    }
    refused(register("i1", |_, t| t.get_device_count = Some(huge)), "get_device_count");
    unsafe extern "C-unwind" fn bad_ids(out: *mut usize) -> C_Status {
        // SAFETY: room for two ids.
        unsafe { *out.add(1) = usize::MAX };
        C_Status::SUCCESS
    }
    refused(register("i1", |_, t| t.get_device_list = Some(bad_ids)), "get_device_list");
    refused(register("i2", |_, _| std::panic::panic_any("on purpose")), "panicked");
}
