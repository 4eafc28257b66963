//! Device memory, pinned and registered host memory, managed memory, copies, and what is known about addresses.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

const BAD: CUresult = CUDA_ERROR_INVALID_VALUE;

#[test]
fn capacity_is_one_for_all_kinds() {
    let fake = Fake::new(&[("capacity", "64M")]);
    let first = alloc(40 * MIB);
    no(unsafe { cuMemAlloc_v2(&mut 0, 40 * MIB) }, CUDA_ERROR_OUT_OF_MEMORY);
    let mut handle = 0;
    no(unsafe { cuMemCreate(&mut handle, 32 * MIB, &prop(0), 0) }, CUDA_ERROR_OUT_OF_MEMORY);
    ok(unsafe { cuMemCreate(&mut handle, 16 * MIB, &prop(0), 0) });
    let (mut free, mut total) = (0, 0);
    ok(unsafe { cuMemGetInfo_v2(&mut free, &mut total) });
    assert_eq!((free, total), (8 * MIB, 64 * MIB));
    no(unsafe { cuMemAllocAsync(&mut 0, 9 * MIB, null_mut()) }, CUDA_ERROR_OUT_OF_MEMORY);
    ok(unsafe { cuMemFree_v2(first) });
    ok(unsafe { cuMemRelease(handle) });
    assert_eq!(fake.used(0), 0);
    no(unsafe { cuMemAlloc_v2(&mut 0, usize::MAX) }, CUDA_ERROR_OUT_OF_MEMORY);
}

#[test]
fn memory_is_never_too_cut_up() {
    let fake = Fake::new(&[("capacity", "64M")]);
    // Every second megabyte stays; a GPU's pages would still serve the rest in one piece.
    let all: Vec<CUdeviceptr> = (0..60).map(|_| alloc(MIB)).collect();
    for at in all.iter().step_by(2) {
        ok(unsafe { cuMemFree_v2(*at) });
    }
    let at = alloc(30 * MIB);
    upload(at, &vec![3; 30 * MIB]);
    assert_eq!(download(at + (29 << 20), 1), [3]);
    assert_eq!(fake.used(0), 60 << 20);
}

/// [B] shared memory that this process keeps, which device memory is here.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssShmem:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

#[test]
fn freed_memory_costs_nothing_any_more() {
    let _fake = Fake::new(&[("capacity", "64M")]);
    let before = resident();
    for _ in 0..20 {
        let at = alloc(16 * MIB);
        ok(unsafe { cuMemsetD8_v2(at, 1, 16 * MIB) });
        ok(unsafe { cuMemFree_v2(at) });
    }
    assert!(resident() < before + 32 * MIB, "{} then {}", before, resident());
}

#[test]
fn new_memory_is_not_clear() {
    let _fake = Fake::new(&[]);
    let at = alloc(64);
    assert!(download(at, 64).iter().all(|byte| *byte != 0));
    upload(at, &[1; 64]);
    ok(unsafe { cuMemFree_v2(at) });
    assert_ne!(download(alloc(64), 64), [1; 64], "nor is it what it was");
}

/// Whether memory is junk in its first page and zeros behind it.
fn is_new(at: CUdeviceptr, size: usize) -> bool {
    let all = download(at, size);
    all[..64].iter().all(|byte| *byte != 0) && all[4096..].iter().all(|byte| *byte == 0)
}

#[test]
fn memory_that_served_before_is_as_good_as_new() {
    const SIZE: usize = 4 * MIB;
    let fill = |at| upload(at, &vec![7; SIZE]);
    {
        let _fake = Fake::new(&[]);
        let (first, second) = (alloc(SIZE), alloc(SIZE));
        fill(first);
        fill(second);
        ok(unsafe { cuMemFree_v2(first) });
        assert!(is_new(alloc(SIZE), SIZE), "of a device's file");
    }
    // The second is still there when the driver is reset.
    let _fake = Fake::new(&[]);
    for _ in 0..2 {
        assert!(is_new(alloc(SIZE), SIZE), "after a reset");
    }
}

#[test]
fn frees_and_copies_that_are_wrong() {
    let _fake = Fake::new(&[]);
    let (at, other) = (alloc(1000), alloc(1000));
    assert_eq!((at % 512, other % 512), (0, 0));
    ok(unsafe { cuMemFree_v2(0) });
    no(unsafe { cuMemFree_v2(at + 1) }, BAD);
    no(unsafe { cuMemAlloc_v2(&mut 0, 0) }, BAD);
    no(unsafe { cuMemAlloc_v2(null_mut(), 1) }, BAD);
    let mut host = [0_u8; 2000];
    let to_host: *mut c_void = host.as_mut_ptr().cast();
    no(unsafe { cuMemcpyDtoH_v2(to_host, at, 1001) }, BAD);
    no(unsafe { cuMemcpyHtoD_v2(at + 999, to_host, 2) }, BAD);
    no(unsafe { cuMemcpyDtoD_v2(at, other + 1, 1000) }, BAD);
    // Host for device and device for host.
    no(unsafe { cuMemcpyHtoD_v2(to_host as u64, host.as_ptr().cast(), 1) }, BAD);
    no(unsafe { cuMemcpyHtoD_v2(at, other as *const c_void, 1) }, BAD);
    no(unsafe { cuMemcpyDtoH_v2(at as *mut c_void, other, 1) }, BAD);
    no(unsafe { cuMemcpyDtoH_v2(null_mut(), other, 1) }, BAD);
    no(unsafe { cuMemsetD8_v2(to_host as u64, 1, 1) }, BAD);
    no(unsafe { cuMemsetD32_v2(at + 2, 1, 1) }, BAD);
    ok(unsafe { cuMemsetD32_v2(at, 1, 250) });
    no(unsafe { cuMemsetD32_v2(at, 1, 251) }, BAD);
    ok(unsafe { cuMemcpyHtoD_v2(at, to_host, 0) });
    ok(unsafe { cuMemFree_v2(at) });
    no(unsafe { cuMemFree_v2(at) }, BAD);
    no(unsafe { cuMemcpyDtoH_v2(to_host, at, 1) }, BAD);
    no(unsafe { cuMemsetD8_v2(at, 0, 1) }, BAD);
}

#[test]
fn the_general_copy_knows_both_sides() {
    let _fake = Fake::new(&[]);
    let at = alloc(64);
    let (from, mut to) = ([9_u8; 64], [0_u8; 64]);
    ok(unsafe { cuMemcpy(at, from.as_ptr() as u64, 64) });
    ok(unsafe { cuMemcpyAsync(at + 32, at, 32, null_mut()) });
    ok(unsafe { cuMemcpy(to.as_mut_ptr() as u64, at, 64) });
    assert_eq!(to, from);
    // From host to host it is done when it returns.
    let stream = stream(1);
    ok(unsafe { cuMemcpyAsync(to.as_mut_ptr() as u64, [7_u8; 64].as_ptr() as u64, 64, stream) });
    assert_eq!(to, [7; 64]);
    no(unsafe { cuMemcpy(0, at, 1) }, BAD);
}

#[test]
fn pageable_memory_may_be_read_late() {
    for (staged, wanted) in [("0", 2), ("1", 1)] {
        let fake = Fake::new(&[("staged", staged)]);
        let (at, stream, mut source) = (alloc(64), stream(1), [1_u8; 64]);
        fake.hold(true);
        ok(unsafe { cuMemcpyHtoDAsync_v2(at, source.as_ptr().cast(), 64, stream) });
        source.fill(2);
        fake.hold(false);
        ok(unsafe { cuStreamSynchronize(stream) });
        assert_eq!(download(at, 64), [wanted; 64]);
    }
}

#[test]
fn pinned_memory() {
    let fake = Fake::new(&[]);
    let (mut host, at) = (null_mut(), alloc(100));
    ok(unsafe { cuMemHostAlloc(&mut host, 100, 1) });
    unsafe { host.cast::<u8>().write_bytes(6, 100) };
    let mut device = 0;
    ok(unsafe { cuMemHostGetDevicePointer_v2(&mut device, host, 0) });
    assert_eq!(device, host as u64);
    ok(unsafe { cuMemcpyHtoD_v2(at, host, 100) });
    assert_eq!(download(at, 100), [6; 100]);
    let mut flags = 0;
    ok(unsafe { cuMemHostGetFlags(&mut flags, host) });
    assert_eq!(flags, 1);
    assert_eq!(fake.used(0), 4096, "pinned memory is none of the device's");
    // Past its end it is not pinned memory any more, and may not pretend to be.
    no(unsafe { cuMemcpyHtoD_v2(at, host.wrapping_byte_add(50), 51) }, BAD);
    no(unsafe { cuMemFreeHost(host.wrapping_byte_add(8)) }, BAD);
    no(unsafe { cuMemFree_v2(host as u64) }, BAD);
    no(unsafe { cuMemHostUnregister(host) }, BAD);
    no(unsafe { cuMemHostRegister_v2(host, 100, 0) }, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    ok(unsafe { cuMemFreeHost(host) });
    no(unsafe { cuMemFreeHost(host) }, BAD);
    no(unsafe { cuMemHostGetDevicePointer_v2(&mut device, host, 0) }, BAD);
    no(unsafe { cuMemHostAlloc(&mut host, 0, 0) }, BAD);
    no(unsafe { cuMemHostAlloc(&mut host, 64, 64) }, BAD);
}

#[test]
fn registered_memory() {
    let _fake = Fake::new(&[]);
    let mut own = vec![5_u8; 3 * 4096];
    let start: *mut c_void = own.as_mut_ptr().cast();
    no(unsafe { cuMemHostUnregister(start) }, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    ok(unsafe { cuMemHostRegister_v2(start, 2 * 4096, 0) });
    let twice = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    no(unsafe { cuMemHostRegister_v2(start, 2 * 4096, 0) }, twice);
    no(unsafe { cuMemHostRegister_v2(start.wrapping_byte_add(4096), 2 * 4096, 0) }, twice);
    let mut device = 0;
    ok(unsafe { cuMemHostGetDevicePointer_v2(&mut device, start.wrapping_byte_add(10), 0) });
    assert_eq!(device, start as u64 + 10);
    ok(unsafe { cuMemsetD8_v2(device, 8, 3) });
    ok(unsafe { cuCtxSynchronize() });
    assert_eq!(own[9..14], [5, 8, 8, 8, 5]);
    no(unsafe { cuMemHostUnregister(start.wrapping_byte_add(10)) }, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    ok(unsafe { cuMemHostUnregister(start) });
    no(unsafe { cuMemHostUnregister(start) }, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    // Device memory, memory that does not exist, nothing at all.
    no(unsafe { cuMemHostRegister_v2(alloc(MIB) as *mut c_void, 4096, 0) }, BAD);
    no(unsafe { cuMemHostRegister_v2(4096 as *mut c_void, 4096, 0) }, BAD);
    no(unsafe { cuMemHostRegister_v2(start, 0, 0) }, BAD);
    no(unsafe { cuMemHostRegister_v2(null_mut(), 64, 0) }, BAD);
    no(unsafe { cuMemHostRegister_v2(start, 64, 64) }, BAD);
    no(unsafe { cuMemHostRegister_v2(start, usize::MAX, 0) }, BAD);
}

#[test]
fn managed_memory_is_for_both_sides() {
    let _fake = Fake::new(&[]);
    let mut at = 0;
    no(unsafe { cuMemAllocManaged(&mut at, 64, 0) }, BAD);
    ok(unsafe { cuMemAllocManaged(&mut at, 64, 1) });
    unsafe { (at as *mut u8).write_bytes(1, 64) };
    ok(unsafe { cuMemsetD8_v2(at + 1, 2, 1) });
    ok(unsafe { cuCtxSynchronize() });
    assert_eq!(unsafe { *(at as *const [u8; 3]) }, [1, 2, 1]);
    let mut managed = 0_u32;
    let attribute = CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_IS_MANAGED;
    ok(unsafe { cuPointerGetAttribute((&raw mut managed).cast(), attribute, at) });
    assert_eq!(managed, 1);
    let advice = CUmem_advise_enum::CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
    ok(unsafe { cuMemAdvise(at, 64, advice, 0) });
    ok(unsafe { cuMemAdvise(at, 64, advice, -1) });
    no(unsafe { cuMemAdvise(at, 64, advice, 3) }, CUDA_ERROR_INVALID_DEVICE);
    no(unsafe { cuMemAdvise(alloc(64), 64, advice, 0) }, BAD);
    ok(unsafe { cuMemPrefetchAsync(at, 64, 0, null_mut()) });
    no(unsafe { cuMemPrefetchAsync(at, 65, 0, null_mut()) }, BAD);
    ok(unsafe { cuMemFree_v2(at) });
    no(unsafe { cuMemPrefetchAsync(at, 64, 0, null_mut()) }, BAD);
}

#[test]
fn what_managed_memory_was_told_is_told_again() {
    use CUmem_advise_enum::*;
    use CUmem_range_attribute_enum::*;
    let fake = Fake::new(&[("devices", "2")]);
    let mut at = 0;
    ok(unsafe { cuMemAllocManaged(&mut at, 3 * 4096, 1) });
    let ask = |which, at, size| {
        let mut found: c_int = 7;
        ok(unsafe { cuMemRangeGetAttribute((&raw mut found).cast(), 4, which, at, size) });
        found
    };
    let (last, preferred) =
        (CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION);
    assert_eq!((ask(last, at, 1), ask(preferred, at, 1)), (-2, -2));
    // Whole pages; and what differs among them is nowhere.
    ok(unsafe { cuMemPrefetchAsync(at + 4000, 100, 1, null_mut()) });
    assert_eq!((ask(last, at, 8192), ask(last, at, 3 * 4096), ask(last, at + 8192, 1)), (1, -2, -2));
    ok(unsafe { cuMemPrefetchAsync(at, 3 * 4096, -1, null_mut()) });
    assert_eq!(ask(last, at, 3 * 4096), -1);
    ok(unsafe { cuMemAdvise(at, 4096, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 1) });
    assert_eq!((ask(preferred, at, 4096), ask(preferred, at, 4097)), (1, -2));
    ok(unsafe { cuMemAdvise(at, 4096, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, 99) });
    assert_eq!(ask(preferred, at, 4096), -2);
    ok(unsafe { cuMemAdvise(at, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, 99) });
    let mostly = CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY;
    assert_eq!((ask(mostly, at, 4096), ask(mostly, at, 8192)), (1, 0));
    for device in [0, 1, -1] {
        ok(unsafe { cuMemAdvise(at, 4096, CU_MEM_ADVISE_SET_ACCESSED_BY, device) });
    }
    ok(unsafe { cuMemAdvise(at, 4096, CU_MEM_ADVISE_UNSET_ACCESSED_BY, 0) });
    let (mut by, which) = ([7; 3], CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY);
    ok(unsafe { cuMemRangeGetAttribute((&raw mut by).cast(), 12, which, at, 4096) });
    assert_eq!(by, [-1, 1, -2]);
    no(unsafe { cuMemRangeGetAttribute((&raw mut by).cast(), 6, which, at, 4096) }, BAD);
    no(unsafe { cuMemRangeGetAttribute((&raw mut by).cast(), 12, last, at, 4096) }, BAD);
    no(unsafe { cuMemAdvise(at, 0, CU_MEM_ADVISE_SET_READ_MOSTLY, 0) }, BAD);
    // A device that does not use it at the same time as the host neither has it moved nor is a place.
    fake.set("no_concurrent", "1");
    no(unsafe { cuMemPrefetchAsync(at, 1, 0, null_mut()) }, CUDA_ERROR_INVALID_DEVICE);
    no(unsafe { cuMemAdvise(at, 1, CU_MEM_ADVISE_SET_ACCESSED_BY, 0) }, CUDA_ERROR_INVALID_DEVICE);
    ok(unsafe { cuMemAdvise(at, 1, CU_MEM_ADVISE_SET_READ_MOSTLY, 0) });
    fake.set("no_concurrent", "0");
    ok(unsafe { cuMemFree_v2(at) });
}

#[test]
fn what_an_address_is() {
    use CUpointer_attribute_enum::*;
    let fake = Fake::new(&[("devices", "2")]);
    let (at, mut host) = (alloc(1000), null_mut());
    ok(unsafe { cuMemHostAlloc(&mut host, 64, 0) });
    let ask = |which, at| {
        let mut value = 0_u64;
        match unsafe { cuPointerGetAttribute((&raw mut value).cast(), which, at) } {
            CUDA_SUCCESS => Ok(value),
            code => Err(code),
        }
    };
    assert_eq!(ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at + 999), Ok(2));
    assert_eq!(ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at + 1000), Err(BAD));
    assert_eq!(ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, host as u64), Ok(1));
    assert_eq!(ask(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at), Ok(0));
    assert_eq!(ask(CU_POINTER_ATTRIBUTE_CONTEXT, at), Ok(fake.primary(0) as u64));
    assert_eq!(ask(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at + 5), Ok(at));
    assert_eq!(ask(CU_POINTER_ATTRIBUTE_RANGE_SIZE, at), Ok(1000));
    assert_eq!(ask(CU_POINTER_ATTRIBUTE_HOST_POINTER, at), Err(BAD));
    assert_eq!(ask(CU_POINTER_ATTRIBUTE_HOST_POINTER, host as u64), Ok(host as u64));
    assert_eq!(ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (&raw const fake) as u64), Err(BAD));
    let (first, second) = (ask(CU_POINTER_ATTRIBUTE_BUFFER_ID, at), {
        ok(unsafe { cuMemFree_v2(at) });
        ask(CU_POINTER_ATTRIBUTE_BUFFER_ID, alloc(1000))
    });
    assert_ne!(first, second);
    // The form for many attributes answers for any address.
    let mut which = [CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL];
    let (mut kind, mut ordinal) = (7_u32, 7_i32);
    let mut data: [*mut c_void; 2] = [(&raw mut kind).cast(), (&raw mut ordinal).cast()];
    let local = (&raw const fake) as u64;
    ok(unsafe { cuPointerGetAttributes(2, which.as_mut_ptr(), data.as_mut_ptr(), local) });
    assert_eq!((kind, ordinal), (0, -2));
}

#[test]
fn peers() {
    let fake = Fake::new(&[("devices", "3")]);
    let (zero, one) = (fake.primary(0), fake.primary(1));
    let mut can = 0;
    ok(unsafe { cuDeviceCanAccessPeer(&mut can, 0, 1) });
    assert_eq!(can, 1);
    ok(unsafe { cuDeviceCanAccessPeer(&mut can, 1, 1) });
    assert_eq!(can, 0);
    let here = alloc(64);
    ok(unsafe { cuCtxSetCurrent(one) });
    let there = alloc(64);
    upload(there, &[4; 64]);
    ok(unsafe { cuMemcpyPeer(here, zero, there, one, 64) });
    ok(unsafe { cuMemcpyPeerAsync(here, zero, there, one, 64, null_mut()) });
    ok(unsafe { cuStreamSynchronize(null_mut()) });
    assert_eq!(fake.read(0, here, 64), Ok(vec![4; 64]));
    // A kernel needs access; a copy does not.
    no(unsafe { cuMemsetD8_v2(here, 1, 64) }, BAD);
    no(unsafe { cuCtxEnablePeerAccess(one, 0) }, CUDA_ERROR_INVALID_CONTEXT);
    no(unsafe { cuCtxEnablePeerAccess(zero, 1) }, BAD);
    ok(unsafe { cuCtxEnablePeerAccess(zero, 0) });
    no(unsafe { cuCtxEnablePeerAccess(zero, 0) }, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    ok(unsafe { cuMemsetD8_v2(here, 1, 64) });
    ok(unsafe { cuCtxSynchronize() });
    ok(unsafe { cuCtxDisablePeerAccess(zero) });
    no(unsafe { cuCtxDisablePeerAccess(zero) }, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    no(unsafe { cuMemsetD8_v2(here, 1, 64) }, BAD);
    no(unsafe { cuMemcpyPeer(here, null_mut(), there, one, 64) }, CUDA_ERROR_INVALID_CONTEXT);
}

#[test]
fn mapped_memory_is_open_to_the_devices_that_were_named() {
    let fake = Fake::new(&[("devices", "2")]);
    let (mut at, mut handle) = (0, 0);
    ok(unsafe { cuMemAddressReserve(&mut at, GRANULE, 0, 0, 0) });
    ok(unsafe { cuMemCreate(&mut handle, GRANULE, &prop(1), 0) });
    ok(unsafe { cuMemMap(at, GRANULE, 0, handle, 0) });
    ok(unsafe { cuMemSetAccess(at, GRANULE, &access(1), 1) });
    no(unsafe { cuMemsetD8_v2(at, 1, 1) }, BAD);
    assert_eq!((fake.used(0), fake.used(1)), (0, GRANULE as u64));
    let mut flags = 9;
    ok(unsafe { cuMemGetAccess(&mut flags, &access(0).location, at) });
    assert_eq!(flags, 0);
    ok(unsafe { cuMemSetAccess(at, GRANULE, [access(0), access(1)].as_ptr(), 2) });
    ok(unsafe { cuMemGetAccess(&mut flags, &access(0).location, at) });
    assert_eq!(flags, 3);
    ok(unsafe { cuMemsetD8_v2(at, 1, 1) });
    let (zero, one) = (fake.primary(0), fake.primary(1));
    let plain = alloc(64);
    ok(unsafe { cuMemcpyPeer(plain, zero, at, one, 64) });
    assert_eq!(download(plain, 1), [1]);
}

#[test]
fn a_context_takes_its_own_along() {
    let fake = Fake::new(&[("ended", "refuse")]);
    let (at, stream) = (alloc(64), stream(0));
    ok(unsafe { cuDevicePrimaryCtxRelease_v2(0) });
    assert_eq!(fake.used(0), 0);
    no(unsafe { cuMemAlloc_v2(&mut 0, 1) }, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    no(unsafe { cuDevicePrimaryCtxRelease_v2(0) }, CUDA_ERROR_INVALID_CONTEXT);
    fake.primary(0);
    no(unsafe { cuMemFree_v2(at) }, BAD);
    no(unsafe { cuStreamSynchronize(stream) }, CUDA_ERROR_INVALID_HANDLE);
    alloc(64);
    // A context of a caller's own.
    let mut own = null_mut();
    ok(unsafe { cuCtxCreate_v2(&mut own, 0, 0) });
    alloc(64);
    ok(unsafe { cuCtxDestroy_v2(own) });
    no(unsafe { cuCtxDestroy_v2(own) }, CUDA_ERROR_INVALID_CONTEXT);
    assert_eq!(fake.used(0), 4096);
    no(unsafe { cuCtxDestroy_v2(fake.primary(0)) }, CUDA_ERROR_INVALID_CONTEXT);
    let (mut flags, mut active) = (0, 0);
    ok(unsafe { cuDevicePrimaryCtxGetState(0, &mut flags, &mut active) });
    assert_eq!(active, 1);
    ok(unsafe { cuDevicePrimaryCtxReset_v2(0) });
    ok(unsafe { cuDevicePrimaryCtxGetState(0, &mut flags, &mut active) });
    assert_eq!((active, fake.used(0)), (0, 0));
}
