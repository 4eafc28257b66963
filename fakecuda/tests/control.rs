//! The driver before and around everything: initialisation, names, functions that are missing, and the controls.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;

fn proc_address(name: &str, version: i32) -> Result<*mut c_void, (CUresult, u32)> {
    let name = CString::new(name).unwrap();
    let mut status = CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS;
    let mut address = 8 as *mut c_void;
    match unsafe { cuGetProcAddress_v2(name.as_ptr(), &mut address, version, 0, &mut status) } {
        CUDA_SUCCESS => Ok(address),
        code => {
            assert!(address.is_null());
            Err((code, status as u32))
        }
    }
}

fn symbol(name: &str) -> *mut c_void {
    let name = CString::new(name).unwrap();
    unsafe { *culib().get::<*mut c_void>(name.as_bytes_with_nul()).unwrap() }
}

#[test]
fn nothing_works_before_cu_init() {
    let _fake = Fake::raw(&[]);
    no(unsafe { cuDeviceGetCount(&mut 0) }, CUDA_ERROR_NOT_INITIALIZED);
    no(unsafe { cuMemAlloc_v2(&mut 0, 1) }, CUDA_ERROR_NOT_INITIALIZED);
    let mut version = 0;
    ok(unsafe { cuDriverGetVersion(&mut version) });
    assert_eq!(version, 12080);
    no(unsafe { cuInit(1) }, CUDA_ERROR_INVALID_VALUE);
    ok(unsafe { cuInit(0) });
    ok(unsafe { cuInit(0) });
    no(unsafe { cuMemAlloc_v2(&mut 0, 1) }, CUDA_ERROR_INVALID_CONTEXT);
}

#[test]
fn without_devices_cu_init_says_so() {
    let _fake = Fake::raw(&[("devices", "0")]);
    no(unsafe { cuInit(0) }, CUDA_ERROR_NO_DEVICE);
}

#[test]
fn devices_differ() {
    let _fake = Fake::new(&[("devices", "2"), ("capacity", "1G,3G")]);
    let (mut count, mut bytes) = (0, 0);
    ok(unsafe { cuDeviceGetCount(&mut count) });
    assert_eq!(count, 2);
    ok(unsafe { cuDeviceTotalMem_v2(&mut bytes, 1) });
    assert_eq!(bytes, 3 << 30);
    let [mut first, mut second]: [CUuuid; 2] = unsafe { std::mem::zeroed() };
    ok(unsafe { cuDeviceGetUuid_v2(&mut first, 0) });
    ok(unsafe { cuDeviceGetUuid_v2(&mut second, 1) });
    assert_ne!(first.bytes, second.bytes);
    let (mut bus, mut found) = ([0; 16], 9);
    ok(unsafe { cuDeviceGetPCIBusId(bus.as_mut_ptr(), 16, 1) });
    ok(unsafe { cuDeviceGetByPCIBusId(&mut found, bus.as_ptr()) });
    assert_eq!(found, 1);
    ok(unsafe { cuDeviceGetName(bus.as_mut_ptr(), 5, 0) });
    assert_eq!(unsafe { CStr::from_ptr(bus.as_ptr()) }, c"Fake");
    no(unsafe { cuDeviceGet(&mut found, 2) }, CUDA_ERROR_INVALID_DEVICE);
    no(unsafe { cuDeviceGet(&mut found, -1) }, CUDA_ERROR_INVALID_DEVICE);
    no(unsafe { cuDeviceTotalMem_v2(&mut bytes, 7) }, CUDA_ERROR_INVALID_DEVICE);
}

#[test]
fn codes_have_names() {
    let _fake = Fake::raw(&[]);
    let mut text = std::ptr::null();
    ok(unsafe { cuGetErrorName(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, &mut text) });
    assert_eq!(unsafe { CStr::from_ptr(text) }, c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION");
    ok(unsafe { cuGetErrorString(CUDA_SUCCESS, &mut text) });
    assert_eq!(unsafe { CStr::from_ptr(text) }, c"no error");
    let name: unsafe extern "C" fn(u32, *mut *const std::ffi::c_char) -> u32 =
        unsafe { std::mem::transmute(symbol("cuGetErrorName")) };
    assert_eq!(unsafe { name(123_456, &mut text) }, 1);
    assert!(text.is_null());
}

#[test]
fn functions_by_name_are_the_newest_that_the_caller_and_the_driver_know() {
    let fake = Fake::raw(&[]);
    assert_eq!(proc_address("cuMemAlloc", 12080), Ok(symbol("cuMemAlloc_v2")));
    assert_eq!(proc_address("cuInit", 2000), Ok(symbol("cuInit")));
    assert_eq!(proc_address("cuStreamGetCaptureInfo", 12030), Ok(symbol("cuStreamGetCaptureInfo_v3")));
    assert_eq!(proc_address("cuStreamGetCaptureInfo", 12020), Ok(symbol("cuStreamGetCaptureInfo_v2")));
    let not_found = CUDA_ERROR_NOT_FOUND;
    assert_eq!(proc_address("cuStreamGetId", 11080), Err((not_found, 2)));
    assert_eq!(proc_address("cuMemAlloc_v2", 12080), Err((not_found, 1)));
    assert_eq!(proc_address("cuNothing", 12080), Err((not_found, 1)));
    assert_eq!(fake.set("driver", "11040"), 0);
    assert!(fake.symbol_missing("cuGetProcAddress_v2"));
    no(unsafe { cuGetProcAddress_v2(c"cuInit".as_ptr(), &mut null_mut(), 12080, 0, null_mut()) }, not_found);
    let old: unsafe extern "C" fn(*const std::ffi::c_char, *mut *mut c_void, i32, u64) -> u32 =
        unsafe { std::mem::transmute(symbol("cuGetProcAddress")) };
    let mut address = null_mut();
    assert_eq!(unsafe { old(c"cuStreamGetCaptureInfo".as_ptr(), &mut address, 12080, 0) }, 0);
    assert_eq!(address, symbol("cuStreamGetCaptureInfo_v2"));
    assert_eq!(unsafe { old(c"cuStreamGetId".as_ptr(), &mut address, 12080, 0) }, 500);
}

#[test]
fn a_missing_function_is_missing_in_every_way() {
    let fake = Fake::new(&[("missing", "cuMemAllocAsync, cuMemMap")]);
    assert_eq!(proc_address("cuMemMap", 12080), Err((CUDA_ERROR_NOT_FOUND, 1)));
    assert!(fake.symbol_missing("cuMemAllocAsync"));
    assert!(fake.symbol_missing("cuNothing"));
    assert!(!fake.symbol_missing("cuMemUnmap"));
    no(unsafe { cuMemAllocAsync(&mut 0, 1, null_mut()) }, CUDA_ERROR_NOT_FOUND);
    assert_eq!(fake.set("no_proc_address", "1"), 0);
    assert!(fake.symbol_missing("cuGetProcAddress"));
    no(
        unsafe { cuGetProcAddress_v2(c"cuInit".as_ptr(), &mut null_mut(), 12080, 0, null_mut()) },
        CUDA_ERROR_NOT_FOUND,
    );
}

#[test]
fn the_nth_call_fails() {
    let fake = Fake::new(&[]);
    let before = fake.used(0);
    assert_eq!(fake.fail("cuMemAlloc_v2", 2, 2, false), 0);
    alloc(1);
    let mut at = 0;
    no(unsafe { cuMemAlloc_v2(&mut at, 1) }, CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!((at, fake.used(0)), (0, before + 4096), "a call that fails changes nothing");
    alloc(1);
    assert_eq!(fake.fail("cuMemFree_v2", 1, 999, true), 0);
    no(unsafe { cuMemFree_v2(0) }, CUDA_ERROR_UNKNOWN);
    no(unsafe { cuMemFree_v2(0) }, CUDA_ERROR_UNKNOWN);
    assert_eq!(fake.calls("cuMemFree_v2"), 2);
    assert_eq!(fake.set("fail", "cuCtxSynchronize:2:700,*:4+:3"), 0);
    ok(unsafe { cuCtxSynchronize() });
    no(unsafe { cuCtxSynchronize() }, CUDA_ERROR_ILLEGAL_ADDRESS);
    ok(unsafe { cuCtxSynchronize() });
    no(unsafe { cuDeviceGetCount(&mut 0) }, CUDA_ERROR_NOT_INITIALIZED);
    assert_eq!(fake.set("fail", "cuCtxSynchronize:0:700"), -1);
    assert_eq!(fake.set("nonsense", "1"), -1);
    assert_eq!(fake.set("capacity", "much"), -1);
    assert_eq!(fake.fail("cuInit", 0, 1, false), -1);
}

#[test]
fn a_code_that_no_header_knows_can_be_injected() {
    let fake = Fake::new(&[]);
    assert_eq!(fake.fail("cuCtxSynchronize", 1, 424_242, false), 0);
    let synchronize: unsafe extern "C" fn() -> u32 =
        unsafe { std::mem::transmute(symbol("cuCtxSynchronize")) };
    assert_eq!(unsafe { synchronize() }, 424_242);
    assert_eq!(unsafe { synchronize() }, 0);
}

#[test]
fn a_sticky_error_stays() {
    let fake = Fake::new(&[]);
    let at = alloc(64);
    fake.sticky(719);
    no(unsafe { cuMemFree_v2(at) }, CUDA_ERROR_LAUNCH_FAILED);
    no(unsafe { cuStreamSynchronize(null_mut()) }, CUDA_ERROR_LAUNCH_FAILED);
    no(unsafe { cuMemsetD8_v2(at, 0, 1) }, CUDA_ERROR_LAUNCH_FAILED);
    ok(unsafe { cuDeviceGetCount(&mut 0) });
    ok(unsafe { cuCtxGetCurrent(&mut null_mut()) });
    ok(unsafe { cuDevicePrimaryCtxRelease_v2(0) });
    fake.sticky(0);
    fake.primary(0);
}

#[test]
fn the_log_tells_calls_and_the_leaks_what_is_left() {
    let fake = Fake::new(&[("keep_log", "1")]);
    let mut handle = 0;
    ok(unsafe { cuMemCreate(&mut handle, GRANULE, &prop(0), 0) });
    no(unsafe { cuMemRelease(5) }, CUDA_ERROR_INVALID_VALUE);
    let log = fake.log();
    assert!(log.contains("cuMemCreate(") && log.contains("size=2097152"), "{log}");
    assert!(log.contains("cuMemRelease(handle=5) = 1"), "{log}");
    let event = event(0);
    let leaks = fake.leaks();
    assert!(leaks.contains(&format!("handle {handle:#x}: 2097152 bytes")), "{leaks}");
    assert!(leaks.contains("event") && leaks.contains("retained 1 times"), "{leaks}");
    ok(unsafe { cuMemRelease(handle) });
    ok(unsafe { cuEventDestroy_v2(event) });
    ok(unsafe { cuDevicePrimaryCtxRelease_v2(0) });
    assert_eq!(fake.leaks(), "");
}

/// The words of a text that begin with `fakecuda_` and stand between these two.
fn functions<'a>(text: &'a str, before: &str, after: char) -> BTreeSet<&'a str> {
    let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
    let found = text.match_indices("fakecuda_").filter_map(|(at, _)| {
        let end = at + text[at..].find(|c| !is_name(c))?;
        (text[..at].ends_with(before) && text[end..].starts_with(after)).then_some(&text[at..end])
    });
    found.collect()
}

#[test]
fn the_c_header_names_what_there_is() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = std::fs::read_to_string(root.join("include/fakecuda.h")).unwrap();
    let files = std::fs::read_dir(root.join("src")).unwrap();
    let source: String = files.map(|f| std::fs::read_to_string(f.unwrap().path()).unwrap()).collect();
    let names = functions(&header, " ", '(');
    assert_eq!(names, functions(&source, "extern \"C\" fn ", '('));
    assert!(names.len() > 20);
    for name in names {
        assert!(!symbol(name).is_null(), "{name}");
    }
}

#[test]
fn modelled_time() {
    let fake = Fake::new(&[]);
    assert_eq!(fake.modelled(), 0, "what takes no memory costs nothing");
    let (mut at, mut handles) = (0, [0; 3]);
    ok(unsafe { cuMemAddressReserve(&mut at, 8 * GRANULE, 0, 0, 0) });
    for (i, handle) in handles.iter_mut().enumerate() {
        ok(unsafe { cuMemCreate(handle, GRANULE, &prop(0), 0) });
        ok(unsafe { cuMemMap(at + (i * GRANULE) as u64, GRANULE, 0, *handle, 0) });
    }
    assert_eq!(fake.modelled_in("cuMemCreate"), 3 * (10_500 + 2 * 20));
    ok(unsafe { cuMemSetAccess(at, 3 * GRANULE, &access(0), 1) });
    assert_eq!(fake.modelled_in("cuMemSetAccess"), 13_000 + 3 * 26_000, "each handle costs, in one call too");
    ok(unsafe { cuMemUnmap(at, 3 * GRANULE) });
    let all = 2_000 + 3 * (10_500 + 40 + 900) + 13_000 + 3 * 26_000 + 7_000 + 3 * 16_500;
    assert_eq!(fake.modelled(), all);
    // A refused call costs what a call costs, without what it would have done.
    no(unsafe { cuMemUnmap(at, 3 * GRANULE) }, CUDA_ERROR_INVALID_VALUE);
    fake.fail("cuMemCreate", 1, 2, false);
    no(unsafe { cuMemCreate(&mut 0, GRANULE, &prop(0), 0) }, CUDA_ERROR_OUT_OF_MEMORY);
    let all = all + 7_000 + 10_500;
    assert_eq!(fake.modelled(), all);
    for bad in ["cuMemUnmap", "cuMemUnmap:1:2", "cuMemUnmap:1:2:3:4", "cuNothing:1:2:3", "cuMemUnmap:1:2:x"] {
        assert_eq!(fake.set("costs", bad), -1, "{bad}");
    }
    assert_eq!(fake.set("costs", "cuMemRelease:7:0:3,cuMemMap:0:1:0"), 0);
    ok(unsafe { cuMemRelease(handles[0]) });
    assert_eq!(fake.modelled(), all + 7 + 6);
    let mut plain = 0;
    ok(unsafe { cuMemAlloc_v2(&mut plain, 64 << 20) });
    ok(unsafe { cuMemFree_v2(plain) });
    assert_eq!(fake.modelled_in("cuMemAlloc_v2"), 40_000 + 64 * 54);
    assert_eq!(fake.modelled_in("cuMemFree_v2"), 34_000 + 64 * 470);
}
