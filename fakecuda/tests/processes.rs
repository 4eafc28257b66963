//! What needs a process of its own: the environment, sharing, strict mode, fork, and the end.
//!
//! A test here starts this program again with one of the ignored tests, which are the other processes' parts.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output, Stdio};
use std::ptr::null_mut;

/// Runs one of the ignored tests in a new process.
fn part(name: &str, environment: &[(&str, &str)], keep_fd: Option<i32>) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--ignored", "--test-threads=1"]).stdin(Stdio::null());
    command.env("FAKECUDA_TEST_PART", "1").envs(environment.iter().copied());
    unsafe {
        command.pre_exec(move || {
            if let Some(fd) = keep_fd {
                libc::fcntl(fd, libc::F_SETFD, 0);
            }
            Ok(())
        });
    }
    command.output().unwrap()
}

#[track_caller]
fn succeeds(output: Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// The ignored tests are parts; run by `--ignored` alone they have nothing to do.
fn is_part() -> bool {
    std::env::var_os("FAKECUDA_TEST_PART").is_some()
}

fn fresh() {
    ok(unsafe { cuInit(0) });
    let mut context = null_mut();
    ok(unsafe { cuDevicePrimaryCtxRetain(&mut context, 0) });
    ok(unsafe { cuCtxSetCurrent(context) });
}

#[test]
fn the_environment_is_obeyed() {
    let environment = [
        ("FAKECUDA_DEVICES", "3"),
        ("FAKECUDA_CAPACITY", "1G,2G,3G"),
        ("CUDA_VISIBLE_DEVICES", "2, 0 ,7,1"),
        ("FAKECUDA_FAIL", "cuMemAlloc_v2:2:2"),
        ("FAKECUDA_MISSING", "cuMemAllocAsync"),
    ];
    succeeds(part("part_environment", &environment, None));
}

#[test]
#[ignore = "a part"]
fn part_environment() {
    if !is_part() {
        return;
    }
    fresh();
    let (mut count, mut bytes) = (0, [0; 2]);
    ok(unsafe { cuDeviceGetCount(&mut count) });
    assert_eq!(count, 2, "the list ends at the first device that does not exist");
    ok(unsafe { cuDeviceTotalMem_v2(&mut bytes[0], 0) });
    ok(unsafe { cuDeviceTotalMem_v2(&mut bytes[1], 1) });
    assert_eq!(bytes, [3 << 30, 1 << 30]);
    alloc(1);
    no(unsafe { cuMemAlloc_v2(&mut 0, 1) }, CUDA_ERROR_OUT_OF_MEMORY);
    alloc(1);
    no(unsafe { cuMemAllocAsync(&mut 0, 1, null_mut()) }, CUDA_ERROR_NOT_FOUND);
}

#[test]
fn devices_are_visible_by_uuid_too() {
    for (list, count) in [("GPU-66616b65", 1), ("", 0), ("-1", 0), ("0,0", 0), ("nonsense,0", 0)] {
        let environment =
            [("FAKECUDA_DEVICES", "2"), ("CUDA_VISIBLE_DEVICES", list), ("COUNT", &count.to_string())];
        succeeds(part("part_visible", &environment, None));
    }
}

#[test]
#[ignore = "a part"]
fn part_visible() {
    if !is_part() {
        return;
    }
    let wanted: i32 = std::env::var("COUNT").unwrap().parse().unwrap();
    if wanted == 0 {
        return no(unsafe { cuInit(0) }, CUDA_ERROR_NO_DEVICE);
    }
    fresh();
    let mut count = 0;
    ok(unsafe { cuDeviceGetCount(&mut count) });
    assert_eq!(count, wanted);
}

fn shareable() -> CUmemAllocationProp {
    let mut prop = prop(0);
    prop.requestedHandleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop
}

const FD: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

fn map(handle: CUmemGenericAllocationHandle) -> CUdeviceptr {
    let mut at = 0;
    ok(unsafe { cuMemAddressReserve(&mut at, GRANULE, 0, 0, 0) });
    ok(unsafe { cuMemMap(at, GRANULE, 0, handle, 0) });
    ok(unsafe { cuMemSetAccess(at, GRANULE, &access(0), 1) });
    at
}

#[test]
fn memory_goes_to_another_process_by_file_descriptor() {
    let fake = Fake::new(&[]);
    let (mut handle, mut fd) = (0, -1);
    ok(unsafe { cuMemCreate(&mut handle, GRANULE, &shareable(), 0) });
    let at = map(handle);
    upload(at, b"from the exporter");
    ok(unsafe { cuMemExportToShareableHandle((&raw mut fd).cast(), handle, FD, 0) });
    succeeds(part("part_import", &[("FD", &fd.to_string())], Some(fd)));
    assert_eq!(download(at, 17), b"FROM the importer");
    // The exporter's own import is the same memory, and keeps it after everything else is gone.
    let mut again = 0;
    ok(unsafe { cuMemImportFromShareableHandle(&mut again, fd as usize as *mut _, FD) });
    unsafe { libc::close(fd) };
    ok(unsafe { cuMemUnmap(at, GRANULE) });
    ok(unsafe { cuMemRelease(handle) });
    assert_eq!(fake.used(0), GRANULE as u64);
    assert_eq!(download(map(again), 4), b"FROM");
    no(unsafe { cuMemImportFromShareableHandle(&mut again, null_mut(), FD) }, CUDA_ERROR_INVALID_VALUE);
    no(unsafe { cuMemImportFromShareableHandle(&mut again, 999 as *mut _, FD) }, CUDA_ERROR_INVALID_VALUE);
}

/// The file of memory that nobody holds any more serves again, as zeros, unless another process may have mapped it.
#[test]
fn memory_that_was_handed_on_serves_nobody_else() {
    let _fake = Fake::new(&[]);
    for exported in [false, true] {
        let mut made = [(0, 0); 2].map(|_| {
            let mut handle = 0;
            ok(unsafe { cuMemCreate(&mut handle, GRANULE, &shareable(), 0) });
            (handle, map(handle))
        });
        let (handle, at) = made[0];
        upload(at, &[7; GRANULE]);
        let mut fd = -1;
        if exported {
            ok(unsafe { cuMemExportToShareableHandle((&raw mut fd).cast(), handle, FD, 0) });
        }
        for (handle, at) in made {
            ok(unsafe { cuMemUnmap(at, GRANULE) });
            ok(unsafe { cuMemRelease(handle) });
        }
        for (handle, at) in &mut made {
            ok(unsafe { cuMemCreate(handle, GRANULE, &shareable(), 0) });
            *at = map(*handle);
            assert!(download(*at, GRANULE)[4096..].iter().all(|byte| *byte == 0));
            upload(*at, &[9; GRANULE]);
        }
        if exported {
            let mut kept = [0u8; 4];
            assert_eq!(unsafe { libc::pread(fd, kept.as_mut_ptr().cast(), 4, 8192) }, 4);
            assert_eq!(kept, [7; 4], "what the importer has");
            unsafe { libc::close(fd) };
        }
        for (handle, at) in made {
            ok(unsafe { cuMemUnmap(at, GRANULE) });
            ok(unsafe { cuMemRelease(handle) });
        }
    }
}

#[test]
#[ignore = "a part"]
fn part_import() {
    if !is_part() {
        return;
    }
    fresh();
    let fd: usize = std::env::var("FD").unwrap().parse().unwrap();
    let mut handle = 0;
    ok(unsafe { cuMemImportFromShareableHandle(&mut handle, fd as *mut _, FD) });
    unsafe { libc::close(fd as i32) };
    let at = map(handle);
    ok(unsafe { cuMemRelease(handle) });
    assert_eq!(download(at, 17), b"from the exporter");
    upload(at, b"FROM the importer");
}

#[test]
fn only_what_was_made_for_it_is_exported() {
    let fake = Fake::new(&[]);
    let (mut handle, mut fd) = (0, -1);
    ok(unsafe { cuMemCreate(&mut handle, GRANULE, &prop(0), 0) });
    let out = (&raw mut fd).cast();
    no(unsafe { cuMemExportToShareableHandle(out, handle, FD, 0) }, CUDA_ERROR_INVALID_VALUE);
    no(unsafe { cuMemExportToShareableHandle(out, 77, FD, 0) }, CUDA_ERROR_INVALID_VALUE);
    assert_eq!(fake.set("no_fd", "1"), 0);
    no(unsafe { cuMemCreate(&mut handle, GRANULE, &shareable(), 0) }, CUDA_ERROR_NOT_SUPPORTED);
}

const FABRIC: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;

fn handles(types: u32) -> CUmemAllocationProp {
    let mut prop = prop(0);
    prop.requestedHandleTypes = CUmemAllocationHandleType_enum(types);
    prop
}

/// As an argument, and back.
fn text_of(handle: &CUmemFabricHandle) -> String {
    let bytes: Vec<String> = handle.data.iter().map(|byte| byte.to_string()).collect();
    bytes.join(",")
}

fn fabric_of(text: &str) -> CUmemFabricHandle {
    let mut handle: CUmemFabricHandle = unsafe { std::mem::zeroed() };
    for (to, byte) in handle.data.iter_mut().zip(text.split(',')) {
        *to = byte.parse::<u8>().unwrap() as _;
    }
    handle
}

#[test]
fn memory_goes_to_another_process_by_fabric_handle() {
    let fake = Fake::new(&[("fabric", "1")]);
    let (mut made, mut handle) = (0, fabric_of("0"));
    ok(unsafe { cuMemCreate(&mut made, GRANULE, &handles(1 | 8), 0) });
    let at = map(made);
    upload(at, b"from the exporter");
    let out = (&raw mut handle).cast();
    no(
        unsafe { cuMemExportToShareableHandle(out, made, handles(9).requestedHandleTypes, 0) },
        CUDA_ERROR_INVALID_VALUE,
    );
    ok(unsafe { cuMemExportToShareableHandle(out, made, FABRIC, 0) });
    // Another IMEX channel, none, and bytes that are no handle.
    let mut again = 0;
    for (channel, expected) in
        [("1", CUDA_ERROR_NOT_PERMITTED), ("none", CUDA_ERROR_NOT_PERMITTED), ("0", CUDA_SUCCESS)]
    {
        assert_eq!(fake.set("imex", channel), 0);
        no(unsafe { cuMemImportFromShareableHandle(&mut again, out, FABRIC) }, expected);
    }
    let mut other = handle;
    other.data[0] ^= 1;
    no(
        unsafe { cuMemImportFromShareableHandle(&mut again, (&raw mut other).cast(), FABRIC) },
        CUDA_ERROR_INVALID_VALUE,
    );
    no(unsafe { cuMemImportFromShareableHandle(&mut again, null_mut(), FABRIC) }, CUDA_ERROR_INVALID_VALUE);
    // To a process that sees the card, and to one that sees another, as on another machine.
    for card in ["0", "1"] {
        let environment = [
            ("HANDLE", &*text_of(&handle)),
            ("FAKECUDA_FABRIC", "1"),
            ("FAKECUDA_DEVICES", "2"),
            ("CUDA_VISIBLE_DEVICES", card),
        ];
        succeeds(part("part_fabric", &environment, None));
        assert_eq!(download(at, 17), b"FROM the importer");
        upload(at, b"from the exporter");
    }
    // What is gone is not imported.
    ok(unsafe { cuMemUnmap(at, GRANULE) });
    ok(unsafe { cuMemRelease(made) });
    ok(unsafe { cuMemRelease(again) });
    assert_eq!(fake.used(0), 0);
    no(unsafe { cuMemImportFromShareableHandle(&mut again, out, FABRIC) }, CUDA_ERROR_INVALID_VALUE);
}

#[test]
#[ignore = "a part"]
fn part_fabric() {
    if !is_part() {
        return;
    }
    fresh();
    let mut handle = fabric_of(&std::env::var("HANDLE").unwrap());
    let mut made = 0;
    ok(unsafe { cuMemImportFromShareableHandle(&mut made, (&raw mut handle).cast(), FABRIC) });
    let at = map(made);
    ok(unsafe { cuMemRelease(made) });
    assert_eq!(download(at, 17), b"from the exporter");
    upload(at, b"FROM the importer");
}

#[test]
fn fabric_handles_are_refused_as_documented() {
    let attribute = CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED;
    let has = || {
        let mut value = -1;
        let status = unsafe { cuDeviceGetAttribute(&mut value, attribute, 0) };
        (status, value)
    };
    let create = |types| unsafe { cuMemCreate(&mut 0, GRANULE, &handles(types), 0) };
    // As a card was seen to answer in a process without a channel: the attribute says yes.
    let fake = Fake::new(&[]);
    assert_eq!(has(), (CUDA_SUCCESS, 1));
    no(create(8), CUDA_ERROR_NOT_PERMITTED);
    no(create(9), CUDA_ERROR_NOT_PERMITTED);
    no(create(17), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(fake.set("fabric", "0"), 0);
    assert_eq!(has(), (CUDA_SUCCESS, 0));
    no(create(8), CUDA_ERROR_NOT_SUPPORTED);
    no(create(9), CUDA_ERROR_NOT_SUPPORTED);
    no(create(17), CUDA_ERROR_INVALID_VALUE);
    // The attribute says yes, and the process has no channel.
    assert_eq!((fake.set("fabric", "1"), fake.set("imex", "none"), fake.set("imex", "-1")), (0, 0, -1));
    assert_eq!(has(), (CUDA_SUCCESS, 1));
    no(create(9), CUDA_ERROR_NOT_PERMITTED);
    ok(create(1));
    assert_eq!(fake.set("imex", "3"), 0);
    ok(create(9));
    assert_eq!(fake.set("driver", "12020"), 0);
    assert_eq!(has().0, CUDA_ERROR_INVALID_VALUE);
    no(create(9), CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn memory_goes_to_another_process_by_the_older_handle() {
    let _fake = Fake::new(&[]);
    let at = alloc(1000);
    upload(at, b"from the exporter");
    let mut handle: CUipcMemHandle = unsafe { std::mem::zeroed() };
    ok(unsafe { cuIpcGetMemHandle(&mut handle, at + 100) });
    let bytes: Vec<String> = handle.reserved.iter().map(|byte| (*byte as u8).to_string()).collect();
    succeeds(part("part_open", &[("HANDLE", &bytes.join(","))], None));
    assert_eq!(download(at, 17), b"FROM the importer");
    no(unsafe { cuIpcOpenMemHandle_v2(&mut 0, handle, 1) }, CUDA_ERROR_INVALID_CONTEXT);
    no(unsafe { cuIpcCloseMemHandle(at) }, CUDA_ERROR_INVALID_VALUE);
    let mut made = 0;
    ok(unsafe { cuMemCreate(&mut made, GRANULE, &prop(0), 0) });
    no(unsafe { cuIpcGetMemHandle(&mut handle, map(made)) }, CUDA_ERROR_INVALID_VALUE);
}

#[test]
#[ignore = "a part"]
fn part_open() {
    if !is_part() {
        return;
    }
    fresh();
    let mut handle: CUipcMemHandle = unsafe { std::mem::zeroed() };
    let text = std::env::var("HANDLE").unwrap();
    for (to, byte) in handle.reserved.iter_mut().zip(text.split(',')) {
        *to = byte.parse::<u8>().unwrap() as _;
    }
    let (mut at, mut again) = (0, 0);
    no(unsafe { cuIpcOpenMemHandle_v2(&mut at, handle, 0) }, CUDA_ERROR_INVALID_VALUE);
    ok(unsafe { cuIpcOpenMemHandle_v2(&mut at, handle, 1) });
    ok(unsafe { cuIpcOpenMemHandle_v2(&mut again, handle, 1) });
    assert_eq!(at, again);
    assert_eq!(download(at, 17), b"from the exporter");
    no(unsafe { cuMemsetD8_v2(at, 0, 1001) }, CUDA_ERROR_INVALID_VALUE);
    no(unsafe { cuMemFree_v2(at) }, CUDA_ERROR_INVALID_VALUE);
    upload(at, b"FROM the importer");
    ok(unsafe { cuIpcCloseMemHandle(at) });
    assert_eq!(download(at, 4), b"FROM");
    ok(unsafe { cuIpcCloseMemHandle(at) });
    no(unsafe { cuIpcCloseMemHandle(at) }, CUDA_ERROR_INVALID_VALUE);
    no(unsafe { cuMemsetD8_v2(at, 0, 1) }, CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn in_strict_mode_the_host_cannot_touch_device_memory() {
    for what in ["alloc", "mapped", "pool"] {
        let output = part("part_strict", &[("FAKECUDA_STRICT", "1"), ("WHAT", what)], None);
        assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{what}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("test part_strict"));
    }
}

#[test]
#[ignore = "a part"]
fn part_strict() {
    if !is_part() {
        return;
    }
    fresh();
    let at = match std::env::var("WHAT").unwrap().as_str() {
        "alloc" => alloc(GRANULE),
        "mapped" => {
            let mut handle = 0;
            ok(unsafe { cuMemCreate(&mut handle, GRANULE, &prop(0), 0) });
            map(handle)
        }
        _ => {
            let mut at = 0;
            ok(unsafe { cuMemAllocAsync(&mut at, GRANULE, null_mut()) });
            at
        }
    };
    // The driver's own ways work as ever; host memory is no device memory.
    upload(at, b"through the driver");
    assert_eq!(download(at, 18), b"through the driver");
    let mut host = null_mut();
    ok(unsafe { cuMemHostAlloc(&mut host, 64, 0) });
    unsafe { host.cast::<u8>().write(1) };
    // The crash that the other side expects; any earlier failure is a panic and not this signal.
    unsafe { std::hint::black_box((at as *const u8).read_volatile()) };
}

#[test]
fn a_forked_process_has_no_driver() {
    succeeds(part("part_fork", &[], None));
}

#[test]
#[ignore = "a part"]
fn part_fork() {
    if !is_part() {
        return;
    }
    // Before cuInit a fork does no harm.
    let before = unsafe { libc::fork() };
    if before == 0 {
        let good = unsafe { cuInit(0) } == CUDA_SUCCESS;
        unsafe { libc::_exit(if good { 0 } else { 1 }) };
    }
    let mut status = -1;
    unsafe { libc::waitpid(before, &mut status, 0) };
    assert_eq!(status, 0);
    fresh();
    let after = unsafe { libc::fork() };
    if after == 0 {
        let refused = CUDA_ERROR_NOT_INITIALIZED;
        let good = unsafe { cuMemAlloc_v2(&mut 0, 1) } == refused
            && unsafe { cuDeviceGetCount(&mut 0) } == refused
            && unsafe { cuInit(0) } == refused;
        unsafe { libc::_exit(if good { 0 } else { 1 }) };
    }
    unsafe { libc::waitpid(after, &mut status, 0) };
    assert_eq!(status, 0);
    alloc(1);
}

extern "C" fn late() {
    if unsafe { cuCtxSynchronize() } == CUDA_ERROR_DEINITIALIZED {
        unsafe { libc::_exit(42) };
    }
}

#[test]
fn at_exit_the_driver_is_shut_down() {
    let output = part("part_exit", &[], None);
    assert_eq!(output.status.code(), Some(42), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
#[ignore = "a part"]
fn part_exit() {
    if !is_part() {
        return;
    }
    unsafe { libc::atexit(late) };
    fresh();
    alloc(1);
}
