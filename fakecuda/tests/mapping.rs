//! The mapping calls: aliasing, remapping, and everything that the documentation forbids.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;

fn reserve(size: usize) -> CUdeviceptr {
    let mut at = 0;
    ok(unsafe { cuMemAddressReserve(&mut at, size, 0, 0, 0) });
    at
}

fn create(size: usize) -> CUmemGenericAllocationHandle {
    let mut handle = 0;
    ok(unsafe { cuMemCreate(&mut handle, size, &prop(0), 0) });
    handle
}

fn map(at: CUdeviceptr, size: usize, handle: CUmemGenericAllocationHandle) {
    ok(unsafe { cuMemMap(at, size, 0, handle, 0) });
    ok(unsafe { cuMemSetAccess(at, size, &access(0), 1) });
}

#[test]
fn the_same_memory_shows_at_two_addresses() {
    let fake = Fake::new(&[]);
    let (first, second) = (reserve(4 * GRANULE), reserve(GRANULE));
    let handle = create(GRANULE);
    map(first + GRANULE as u64, GRANULE, handle);
    map(second, GRANULE, handle);
    upload(first + GRANULE as u64 + 5, b"aliased");
    assert_eq!(download(second + 5, 7), b"aliased");
    // In the loose mode the host plays kernel at the very addresses.
    assert_eq!(unsafe { *((second + 5) as *const u8) }, b'a');
    unsafe { ((second + 5) as *mut u8).write(b'A') };
    assert_eq!(download(first + GRANULE as u64 + 5, 7), b"Aliased");
    ok(unsafe { cuMemUnmap(first + GRANULE as u64, GRANULE) });
    // The content goes with the memory, not with the address.
    map(first, GRANULE, handle);
    assert_eq!(download(first + 5, 7), b"Aliased");
    ok(unsafe { cuMemRelease(handle) });
    assert_eq!(fake.used(0), GRANULE as u64, "mappings hold the memory");
    ok(unsafe { cuMemUnmap(first, GRANULE) });
    ok(unsafe { cuMemUnmap(second, GRANULE) });
    assert_eq!(fake.used(0), 0);
    ok(unsafe { cuMemAddressFree(first, 4 * GRANULE) });
    ok(unsafe { cuMemAddressFree(second, GRANULE) });
    ok(unsafe { cuDevicePrimaryCtxRelease_v2(0) });
    assert_eq!(fake.leaks(), "");
}

#[test]
fn one_copy_goes_over_many_handles() {
    let _fake = Fake::new(&[]);
    let at = reserve(4 * GRANULE);
    for index in 0..4 {
        map(at + (index * GRANULE) as u64, GRANULE, create(GRANULE));
    }
    let bytes: Vec<u8> = (0..3 * GRANULE).map(|index| (index / 4099) as u8).collect();
    upload(at + 4096, &bytes);
    assert_eq!(download(at + 4096, bytes.len()), bytes);
}

#[test]
fn what_is_not_mapped_or_not_granted_is_refused() {
    let fake = Fake::new(&[]);
    let at = reserve(3 * GRANULE);
    let mut byte = 0_u8;
    let mut read = |from| unsafe { cuMemcpyDtoH_v2((&raw mut byte).cast(), from, 1) };
    no(read(at), CUDA_ERROR_INVALID_VALUE);
    let handle = create(GRANULE);
    ok(unsafe { cuMemMap(at, GRANULE, 0, handle, 0) });
    no(read(at), CUDA_ERROR_INVALID_VALUE);
    no(unsafe { cuMemsetD8_v2(at, 1, 1) }, CUDA_ERROR_INVALID_VALUE);
    let mut desc = access(0);
    desc.flags = CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READ;
    ok(unsafe { cuMemSetAccess(at, GRANULE, &desc, 1) });
    ok(read(at));
    no(unsafe { cuMemsetD8_v2(at, 1, 1) }, CUDA_ERROR_INVALID_VALUE);
    ok(unsafe { cuMemSetAccess(at, GRANULE, &access(0), 1) });
    ok(unsafe { cuMemsetD8_v2(at, 1, 1) });
    no(read(at + GRANULE as u64), CUDA_ERROR_INVALID_VALUE);
    no(unsafe { cuMemsetD8_v2(at + 1, 1, GRANULE) }, CUDA_ERROR_INVALID_VALUE);
    ok(unsafe { cuCtxSynchronize() }); // the fill must not come after the unmap
    // A new mapping at an address that had access starts without.
    ok(unsafe { cuMemUnmap(at, GRANULE) });
    ok(unsafe { cuMemMap(at, GRANULE, 0, handle, 0) });
    no(read(at), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(fake.read(0, at, 1), Err(700));
}

#[test]
fn the_rules_of_mapping() {
    let _fake = Fake::new(&[]);
    let bad = CUDA_ERROR_INVALID_VALUE;
    let at = reserve(4 * GRANULE);
    let (mut out, mut handle) = (0, 0);
    no(unsafe { cuMemAddressReserve(&mut out, GRANULE + 4096, 0, 0, 0) }, bad);
    no(unsafe { cuMemAddressReserve(&mut out, 0, 0, 0, 0) }, bad);
    no(unsafe { cuMemAddressReserve(&mut out, GRANULE, 3 * GRANULE, 0, 0) }, bad);
    no(unsafe { cuMemCreate(&mut handle, GRANULE / 2, &prop(0), 0) }, bad);
    no(unsafe { cuMemCreate(&mut handle, 0, &prop(0), 0) }, bad);
    no(unsafe { cuMemCreate(&mut handle, GRANULE, &prop(7), 0) }, CUDA_ERROR_INVALID_DEVICE);
    no(unsafe { cuMemCreate(&mut handle, GRANULE, std::ptr::null(), 0) }, bad);
    let handle = create(2 * GRANULE);
    no(unsafe { cuMemMap(at + 4096, GRANULE, 0, handle, 0) }, bad);
    no(unsafe { cuMemMap(at, GRANULE + 4096, 0, handle, 0) }, bad);
    no(unsafe { cuMemMap(at, 4 * GRANULE, 0, handle, 0) }, bad);
    // Only a whole handle.
    no(unsafe { cuMemMap(at, GRANULE, 0, handle, 0) }, CUDA_ERROR_NOT_SUPPORTED);
    no(unsafe { cuMemMap(at, GRANULE, GRANULE, handle, 0) }, CUDA_ERROR_NOT_SUPPORTED);
    no(unsafe { cuMemMap(at, GRANULE, 2 * GRANULE, handle, 0) }, bad);
    no(unsafe { cuMemMap(at + 3 * GRANULE as u64, 2 * GRANULE, 0, handle, 0) }, bad);
    no(unsafe { cuMemMap(alloc(GRANULE), GRANULE, 0, handle, 0) }, bad);
    map(at + GRANULE as u64, 2 * GRANULE, handle);
    no(unsafe { cuMemMap(at, 2 * GRANULE, 0, handle, 0) }, bad);
    no(unsafe { cuMemMap(at + 2 * GRANULE as u64, 2 * GRANULE, 0, handle, 0) }, bad);
    no(unsafe { cuMemUnmap(at + GRANULE as u64, GRANULE) }, bad);
    no(unsafe { cuMemUnmap(at, 4 * GRANULE) }, bad);
    no(unsafe { cuMemSetAccess(at + GRANULE as u64, GRANULE, &access(0), 1) }, bad);
    no(unsafe { cuMemAddressFree(at, 4 * GRANULE) }, bad);
    ok(unsafe { cuMemRelease(handle) });
    no(unsafe { cuMemRelease(handle) }, bad);
    no(unsafe { cuMemMap(at, GRANULE, 0, handle, 0) }, bad);
    ok(unsafe { cuMemUnmap(at + GRANULE as u64, 2 * GRANULE) });
    no(unsafe { cuMemUnmap(at + GRANULE as u64, 2 * GRANULE) }, bad);
    no(unsafe { cuMemAddressFree(at, 2 * GRANULE) }, bad);
    ok(unsafe { cuMemAddressFree(at, 4 * GRANULE) });
    no(unsafe { cuMemAddressFree(at, 4 * GRANULE) }, bad);
    no(unsafe { cuMemMap(at, GRANULE, 0, create(GRANULE), 0) }, bad);
}

#[test]
fn many_whole_mappings_go_in_one_call() {
    let fake = Fake::new(&[]);
    let at = reserve(4 * GRANULE);
    for index in 0..3 {
        let handle = create(GRANULE);
        ok(unsafe { cuMemMap(at + (index * GRANULE) as u64, GRANULE, 0, handle, 0) });
        ok(unsafe { cuMemRelease(handle) });
    }
    ok(unsafe { cuMemSetAccess(at, 3 * GRANULE, &access(0), 1) });
    upload(at, &[1; 3 * GRANULE]);
    // A gap at the end is no mapping.
    no(unsafe { cuMemUnmap(at, 4 * GRANULE) }, CUDA_ERROR_INVALID_VALUE);
    ok(unsafe { cuMemUnmap(at, 3 * GRANULE) });
    assert_eq!(fake.used(0), 0);
}

#[test]
fn a_handle_comes_back_from_an_address() {
    let fake = Fake::new(&[]);
    let at = reserve(GRANULE);
    let handle = create(GRANULE);
    map(at, GRANULE, handle);
    let mut again = 0;
    ok(unsafe { cuMemRetainAllocationHandle(&mut again, (at + 77) as *mut _) });
    assert_eq!(again, handle);
    let mut found = unsafe { std::mem::zeroed() };
    ok(unsafe { cuMemGetAllocationPropertiesFromHandle(&mut found, again) });
    assert_eq!(found.location.id, 0);
    ok(unsafe { cuMemRelease(handle) });
    ok(unsafe { cuMemRelease(handle) });
    no(unsafe { cuMemRelease(handle) }, CUDA_ERROR_INVALID_VALUE);
    // No handle is left; the mapping still holds the memory and gives a handle back.
    ok(unsafe { cuMemRetainAllocationHandle(&mut again, at as *mut _) });
    ok(unsafe { cuMemUnmap(at, GRANULE) });
    assert_eq!(fake.used(0), GRANULE as u64);
    ok(unsafe { cuMemRelease(again) });
    assert_eq!(fake.used(0), 0);
    no(unsafe { cuMemRetainAllocationHandle(&mut again, at as *mut _) }, CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn an_eighty_gigabyte_device_costs_what_is_touched() {
    let fake = Fake::new(&[("capacity", "80G")]);
    let at = reserve(64 << 30);
    let mut handles = Vec::new();
    loop {
        let mut handle = 0;
        match unsafe { cuMemCreate(&mut handle, 1 << 30, &prop(0), 0) } {
            CUDA_SUCCESS => handles.push(handle),
            other => break no(other, CUDA_ERROR_OUT_OF_MEMORY),
        }
    }
    assert_eq!(handles.len(), 80);
    map(at + (63 << 30), 1 << 30, handles[79]);
    upload(at + (64 << 30) - 4, b"last");
    assert_eq!(download(at + (64 << 30) - 4, 4), b"last");
    let mut pointer = 0;
    no(unsafe { cuMemAlloc_v2(&mut pointer, 1) }, CUDA_ERROR_OUT_OF_MEMORY);
    ok(unsafe { cuMemRelease(handles[0]) });
    assert_eq!(fake.used(0), 79 << 30);
    alloc(1 << 20);
}

#[test]
fn without_the_capability_nothing_maps() {
    let fake = Fake::new(&[("no_vmm", "1")]);
    let mut value = -1;
    let attribute = CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED;
    ok(unsafe { cuDeviceGetAttribute(&mut value, attribute, 0) });
    assert_eq!(value, 0);
    let mut at = 0;
    no(unsafe { cuMemAddressReserve(&mut at, GRANULE, 0, 0, 0) }, CUDA_ERROR_NOT_SUPPORTED);
    assert_eq!(fake.calls("cuMemAddressReserve"), 1);
}

fn attribute(which: CUpointer_attribute, at: CUdeviceptr) -> Result<u64, CUresult> {
    let mut value = 0_u64;
    match unsafe { cuPointerGetAttribute((&raw mut value).cast(), which, at) } {
        CUDA_SUCCESS => Ok(value),
        code => Err(code),
    }
}

fn range_of(at: CUdeviceptr) -> Result<(CUdeviceptr, usize), CUresult> {
    let (mut base, mut size) = (0, 0);
    match unsafe { cuMemGetAddressRange_v2(&mut base, &mut size, at) } {
        CUDA_SUCCESS => Ok((base, size)),
        code => Err(code),
    }
}

#[test]
fn a_range_is_one_handles_mapping() {
    use CUpointer_attribute_enum::*;
    let _fake = Fake::new(&[]);
    let at = reserve(6 * GRANULE);
    let granule = GRANULE as u64;
    let (small, large) = (create(GRANULE), create(2 * GRANULE));
    map(at, GRANULE, small);
    map(at + granule, 2 * GRANULE, large);
    map(at + 4 * granule, GRANULE, small);
    assert_eq!(range_of(at + 5), Ok((at, GRANULE)));
    assert_eq!(range_of(at + 2 * granule + 5), Ok((at + granule, 2 * GRANULE)));
    assert_eq!(range_of(at + 3 * granule), Err(CUDA_ERROR_NOT_FOUND), "nothing is mapped there");
    // The range attributes are of the reservation, also where nothing is mapped.
    for place in [at + 5, at + 3 * granule] {
        assert_eq!(attribute(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, place), Ok(at));
        assert_eq!(attribute(CU_POINTER_ATTRIBUTE_RANGE_SIZE, place), Ok(6 * granule));
    }
    assert_eq!(attribute(CU_POINTER_ATTRIBUTE_MAPPED, at + 3 * granule), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(attribute(CU_POINTER_ATTRIBUTE_MAPPED, at + 4 * granule), Ok(1));
    assert_eq!(attribute(CU_POINTER_ATTRIBUTE_CONTEXT, at), Ok(0), "it is of no context");
    assert_eq!(attribute(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, at), Ok(0));
    assert_eq!(attribute(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, alloc(64)), Ok(1));
    // An id is a mapping's: the same memory has two at two addresses.
    let id = |place| attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, place);
    assert_ne!(id(at), id(at + 4 * granule));
    assert_ne!(id(at), id(at + granule));
    assert_eq!(id(at + granule), id(at + 2 * granule + 7));
    assert_eq!(id(at + 3 * granule), Err(CUDA_ERROR_INVALID_VALUE));
    let before = id(at + granule);
    ok(unsafe { cuMemUnmap(at + granule, 2 * GRANULE) });
    map(at + granule, 2 * GRANULE, create(2 * GRANULE));
    assert_ne!(id(at + granule), before, "other memory at the same address");
}

#[test]
fn properties_that_only_the_attribute_promises() {
    let fake = Fake::new(&[("refuse_fd", "801"), ("refuse_rdma", "1")]);
    let mut handle = 0;
    let mut with = prop(0);
    with.requestedHandleTypes.0 = 1;
    no(unsafe { cuMemCreate(&mut handle, GRANULE, &with, 0) }, CUDA_ERROR_NOT_SUPPORTED);
    with.allocFlags.gpuDirectRDMACapable = 1;
    no(unsafe { cuMemCreate(&mut handle, GRANULE, &with, 0) }, CUDA_ERROR_INVALID_VALUE);
    with.requestedHandleTypes.0 = 0;
    no(unsafe { cuMemCreate(&mut handle, GRANULE, &with, 0) }, CUDA_ERROR_INVALID_VALUE);
    let mut bytes = 0;
    let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    ok(unsafe { cuMemGetAllocationGranularity(&mut bytes, &with, least) });
    ok(unsafe { cuMemCreate(&mut handle, GRANULE, &prop(0), 0) });
    assert_eq!(fake.used(0), GRANULE as u64);
}

#[test]
fn handles_mappings_and_tables_have_limits() {
    let fake = Fake::new(&[("capacity", "16M"), ("most_handles", "3"), ("most_mappings", "2")]);
    let at = reserve(4 * GRANULE);
    let handles = [create(GRANULE), create(GRANULE), create(GRANULE)];
    no(unsafe { cuMemCreate(&mut 0, GRANULE, &prop(0), 0) }, CUDA_ERROR_OUT_OF_MEMORY);
    for (i, handle) in handles.iter().enumerate() {
        ok(unsafe { cuMemMap(at + (i * GRANULE) as u64, GRANULE, 0, *handle, 0) });
    }
    no(unsafe { cuMemSetAccess(at, 3 * GRANULE, &access(0), 1) }, CUDA_ERROR_OUT_OF_MEMORY);
    ok(unsafe { cuMemSetAccess(at, 2 * GRANULE, &access(0), 1) });
    ok(unsafe { cuMemSetAccess(at, 2 * GRANULE, &access(0), 1) });
    no(unsafe { cuMemSetAccess(at + 2 * GRANULE as u64, GRANULE, &access(0), 1) }, CUDA_ERROR_OUT_OF_MEMORY);
    ok(unsafe { cuMemUnmap(at, GRANULE) });
    assert_eq!(fake.set("table_bytes", "8M"), 0);
    assert_eq!(fake.used(0), 6 << 20);
    ok(unsafe { cuMemSetAccess(at + 2 * GRANULE as u64, GRANULE, &access(0), 1) });
    assert_eq!(fake.used(0), 14 << 20, "page tables lie on the device");
    assert_eq!(fake.set("most_mappings", "9"), 0);
    ok(unsafe { cuMemMap(at, GRANULE, 0, handles[0], 0) });
    no(unsafe { cuMemSetAccess(at, GRANULE, &access(0), 1) }, CUDA_ERROR_OUT_OF_MEMORY);
    ok(unsafe { cuMemUnmap(at, 3 * GRANULE) });
    assert_eq!(fake.used(0), 6 << 20);
}

#[test]
fn memory_goes_to_others() {
    let fake = Fake::new(&[("capacity", "8M")]);
    let handle = create(GRANULE);
    assert_eq!(fake.take(0, 7 << 20), 2, "we hold it");
    assert_eq!(fake.take(0, 5 << 20), 0);
    no(unsafe { cuMemCreate(&mut 0, GRANULE, &prop(0), 0) }, CUDA_ERROR_OUT_OF_MEMORY);
    let (mut free, mut total) = (0, 0);
    ok(unsafe { cuMemGetInfo_v2(&mut free, &mut total) });
    assert_eq!((free, total), (1 << 20, 8 << 20));
    fake.give(0, 9 << 20);
    assert_eq!(fake.used(0), GRANULE as u64);
    ok(unsafe { cuMemRelease(handle) });
}
