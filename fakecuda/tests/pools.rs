//! Stream-ordered allocation and memory pools.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// A host function that waits until its flag is set: the stream stays busy.
unsafe extern "C" fn wait_for_flag(flag: *mut c_void) {
    let flag = unsafe { &*flag.cast::<AtomicBool>() };
    while !flag.load(SeqCst) {
        std::thread::yield_now();
    }
}

const NON_BLOCKING: u32 = 1;

use CUmemPool_attribute_enum as Attribute;

fn pool(device: i32) -> CUmemoryPool {
    let mut pool = null_mut();
    ok(unsafe { cuDeviceGetDefaultMemPool(&mut pool, device) });
    pool
}

fn get(pool: CUmemoryPool, which: CUmemPool_attribute) -> u64 {
    let mut value = 0_u64;
    ok(unsafe { cuMemPoolGetAttribute(pool, which, (&raw mut value).cast()) });
    value
}

fn set(pool: CUmemoryPool, which: CUmemPool_attribute, value: u64) -> CUresult {
    let mut value = value;
    unsafe { cuMemPoolSetAttribute(pool, which, (&raw mut value).cast()) }
}

fn alloc_async(size: usize, stream: CUstream) -> CUdeviceptr {
    let mut at = 0;
    ok(unsafe { cuMemAllocAsync(&mut at, size, stream) });
    at
}

fn free_async(at: CUdeviceptr, stream: CUstream) {
    ok(unsafe { cuMemFreeAsync(at, stream) });
}

fn props() -> CUmemPoolProps {
    let mut props: CUmemPoolProps = unsafe { std::mem::zeroed() };
    props.allocType = CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type_ = CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
    props
}

#[test]
fn the_threshold_decides_what_a_synchronisation_keeps() {
    let fake = Fake::new(&[]);
    let (pool, stream) = (pool(0), stream(NON_BLOCKING));
    let at = alloc_async(100, stream);
    ok(unsafe { cuMemsetD8Async(at, 4, 100, stream) });
    assert_eq!(get(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 512);
    assert_eq!(get(pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), fake.used(0));
    free_async(at, stream);
    ok(unsafe { cuStreamSynchronize(stream) });
    assert_eq!((fake.used(0), get(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)), (0, 0));
    ok(set(pool, Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX));
    free_async(alloc_async(64 * MIB, stream), stream);
    ok(unsafe { cuStreamSynchronize(stream) });
    assert_eq!(fake.used(0), 64 << 20);
    assert_eq!(get(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH), 64 << 20);
    ok(unsafe { cuMemPoolTrimTo(pool, 64 << 20) });
    assert_eq!(fake.used(0), 64 << 20);
    ok(unsafe { cuMemPoolTrimTo(pool, 0) });
    assert_eq!(fake.used(0), 0);
    ok(set(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0));
    assert_eq!(get(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH), 0);
    no(set(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 5), CUDA_ERROR_INVALID_VALUE);
    no(set(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0), CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn memory_is_reused_in_its_stream_at_once_and_elsewhere_when_free() {
    let fake = Fake::new(&[("capacity", "32M")]);
    let (first, second) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
    let flag = AtomicBool::new(false);
    ok(unsafe { cuLaunchHostFunc(first, Some(wait_for_flag), (&raw const flag).cast_mut().cast()) });
    let at = alloc_async(32 * MIB, first);
    ok(unsafe { cuMemsetD8Async(at, 1, MIB, first) });
    free_async(at, first);
    // The same stream may have it before anything has run.
    let again = alloc_async(32 * MIB, first);
    assert_eq!(at, again);
    free_async(again, first);
    // Another stream gets it with a wait behind the free.
    let other = alloc_async(32 * MIB, second);
    assert_eq!(at, other);
    ok(unsafe { cuMemsetD8Async(other, 2, MIB, second) });
    std::thread::sleep(std::time::Duration::from_millis(30));
    no(unsafe { cuStreamQuery(second) }, CUDA_ERROR_NOT_READY);
    flag.store(true, SeqCst);
    ok(unsafe { cuStreamSynchronize(second) });
    assert_eq!(fake.read(0, other, 1), Ok(vec![2]));
    free_async(other, second);
}

#[test]
fn without_internal_waits_busy_memory_is_not_given() {
    let fake = Fake::new(&[("capacity", "32M")]);
    let (first, second) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
    ok(set(pool(0), Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0));
    fake.hold(true);
    let at = alloc_async(32 * MIB, first);
    free_async(at, first);
    no(unsafe { cuMemAllocAsync(&mut 0, 32 * MIB, second) }, CUDA_ERROR_OUT_OF_MEMORY);
    fake.hold(false);
    ok(unsafe { cuStreamSynchronize(first) });
    alloc_async(32 * MIB, second);
}

#[test]
fn what_is_freed_or_not_a_pools_is_refused() {
    let _fake = Fake::new(&[]);
    let (stream, plain) = (stream(NON_BLOCKING), alloc(64));
    let bad = CUDA_ERROR_INVALID_VALUE;
    let at = alloc_async(1000, stream);
    no(unsafe { cuMemsetD8Async(at, 0, 1001, stream) }, bad);
    no(unsafe { cuMemFreeAsync(at + 512, stream) }, bad);
    no(unsafe { cuMemFreeAsync(plain, stream) }, bad);
    no(unsafe { cuMemFreeAsync(0, stream) }, bad);
    let (mut base, mut size) = (0, 0);
    ok(unsafe { cuMemGetAddressRange_v2(&mut base, &mut size, at + 999) });
    assert_eq!((base, size), (at, 1000));
    free_async(at, stream);
    no(unsafe { cuMemFreeAsync(at, stream) }, bad);
    no(unsafe { cuMemsetD8Async(at, 0, 1, stream) }, bad);
    no(unsafe { cuMemFree_v2(at) }, bad);
    let at = alloc_async(1000, stream);
    ok(unsafe { cuMemFree_v2(at) });
    no(unsafe { cuMemAllocAsync(&mut 0, 0, stream) }, bad);
    no(unsafe { cuMemAllocAsync(&mut 0, 1 << 40, stream) }, CUDA_ERROR_OUT_OF_MEMORY);
}

#[test]
fn unused_memory_of_a_pool_serves_other_allocations() {
    let fake = Fake::new(&[("capacity", "64M")]);
    let stream = stream(NON_BLOCKING);
    ok(set(pool(0), Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX));
    let kept = alloc_async(MIB, stream);
    free_async(alloc_async(32 * MIB, stream), stream);
    ok(unsafe { cuStreamSynchronize(stream) });
    assert_eq!(fake.used(0), 64 << 20);
    let at = alloc(32 * MIB);
    no(unsafe { cuMemAlloc_v2(&mut 0, 1) }, CUDA_ERROR_OUT_OF_MEMORY);
    ok(unsafe { cuMemFree_v2(at) });
    free_async(kept, stream);
}

#[test]
fn pools_of_ones_own() {
    let fake = Fake::new(&[]);
    let stream = stream(NON_BLOCKING);
    let (mut own, mut now) = (null_mut(), null_mut());
    ok(unsafe { cuMemPoolCreate(&mut own, &props()) });
    no(unsafe { cuMemPoolDestroy(pool(0)) }, CUDA_ERROR_INVALID_VALUE);
    ok(unsafe { cuDeviceSetMemPool(0, own) });
    let at = alloc_async(64, stream);
    assert_eq!(get(own, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 512);
    let mut found: CUmemoryPool = null_mut();
    let attribute = CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;
    ok(unsafe { cuPointerGetAttribute((&raw mut found).cast(), attribute, at) });
    assert_eq!(found, own);
    // Destroyed while something is allocated: the handle goes, the memory stays until it is freed.
    ok(unsafe { cuMemPoolDestroy(own) });
    no(unsafe { cuMemPoolDestroy(own) }, CUDA_ERROR_INVALID_VALUE);
    ok(unsafe { cuDeviceGetMemPool(&mut now, 0) });
    assert_eq!(now, pool(0));
    upload(at, b"still here");
    free_async(at, stream);
    ok(unsafe { cuStreamSynchronize(stream) });
    assert_eq!(fake.used(0), 0);
    assert!(!fake.leaks().contains("pool"), "{}", fake.leaks());
    let mut bad = props();
    bad.location.id = 5;
    no(unsafe { cuMemPoolCreate(&mut own, &bad) }, CUDA_ERROR_INVALID_DEVICE);
}

#[test]
fn another_device_needs_access_to_a_pool() {
    let fake = Fake::new(&[("devices", "2")]);
    let stream0 = stream(NON_BLOCKING);
    let at = alloc_async(64, stream0);
    ok(unsafe { cuStreamSynchronize(stream0) });
    assert_eq!(fake.write(1, at, b"x"), Err(700));
    let mut own = access(0);
    own.flags = CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_NONE;
    no(unsafe { cuMemPoolSetAccess(pool(0), &own, 1) }, CUDA_ERROR_INVALID_VALUE);
    ok(unsafe { cuMemPoolSetAccess(pool(0), &access(1), 1) });
    assert_eq!(fake.write(1, at, b"x"), Ok(()));
    let mut flags = CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_NONE;
    ok(unsafe { cuMemPoolGetAccess(&mut flags, pool(0), &mut access(1).location) });
    assert_eq!(flags, CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

#[test]
fn a_device_without_pools() {
    let _fake = Fake::new(&[("no_pools", "1")]);
    let mut value = 1;
    let attribute = CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
    ok(unsafe { cuDeviceGetAttribute(&mut value, attribute, 0) });
    assert_eq!(value, 0);
    no(unsafe { cuMemAllocAsync(&mut 0, 64, null_mut()) }, CUDA_ERROR_NOT_SUPPORTED);
    no(unsafe { cuDeviceGetDefaultMemPool(&mut null_mut(), 0) }, CUDA_ERROR_NOT_SUPPORTED);
}
