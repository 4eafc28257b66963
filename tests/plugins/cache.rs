//! The cache of the plugin. By default, memory that a host frees goes back to the device; with
//! MILLPOND_PLUGIN_CACHE=on it stays in the pool. The variable is read once, so each case is a process of its own.

use crate::{apart, fake};
use millpond::paddle::abi::*;
use millpond::paddle::init_plugin;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

const MIB: usize = 1 << 20;

/// [B] of a device that is not small.
const LARGE: usize = 4 << 30;

/// Calls for memory that the device got.
static CALLS: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C-unwind" fn allocate(d: C_Device, out: *mut *mut c_void, bytes: usize) -> C_Status {
    CALLS.fetch_add(1, Ordering::Relaxed);
    unsafe { fake::allocate(d, out, bytes) }
}

unsafe extern "C-unwind" fn stats(_: C_Device, total: *mut usize, free: *mut usize) -> C_Status {
    unsafe { (*total, *free) = (LARGE, LARGE) };
    C_Status::SUCCESS
}

unsafe extern "C-unwind" fn segment(_: C_Device, out: *mut usize) -> C_Status {
    unsafe { *out = 8 * MIB };
    C_Status::SUCCESS
}

/// [B] that the device has handed out.
fn held() -> usize {
    fake::LIVE.lock().unwrap().as_ref().map_or(0, |live| live.values().sum())
}

/// In the child: takes `count` blocks of `bytes` and frees them; gives the most that was held, and what is left.
fn cycle(count: usize, bytes: usize) -> (usize, usize) {
    let mut table: C_DeviceInterface = unsafe { std::mem::zeroed() };
    let mut params: CustomRuntimeParams = unsafe { std::mem::zeroed() };
    table.size = size_of_val(&table);
    params.size = size_of_val(&params);
    params.interface = &mut table;
    unsafe { init_plugin(&mut params) };
    assert_eq!(unsafe { table.initialize.unwrap()() }, C_Status::SUCCESS);
    let mut device = C_Device_st { id: 0 };
    let mut blocks = Vec::new();
    for _ in 0..count {
        let mut block = null_mut();
        let status = unsafe { table.device_memory_allocate.unwrap()(&mut device, &mut block, bytes) };
        assert_eq!(status, C_Status::SUCCESS);
        assert!(!block.is_null());
        blocks.push(block);
    }
    let most = held();
    for block in blocks {
        let status = unsafe { table.device_memory_deallocate.unwrap()(&mut device, block, bytes) };
        assert_eq!(status, C_Status::SUCCESS);
    }
    (most, held())
}

fn child(name: &str, cache: &str) {
    let done = apart::program(&format!("cache::{name}"))
        .env("MILLPOND_PLUGIN_DEVICE", "behind")
        .env("MILLPOND_PLUGIN_CACHE", cache)
        .envs(name.contains("again").then_some(("MILLPOND_TEST_LARGE", "1")))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
}

fn is_child() -> bool {
    let child = std::env::var_os("MILLPOND_PLUGIN_DEVICE").is_some();
    if child {
        let tweak = |_: &mut CustomRuntimeParams, table: &mut C_DeviceInterface| {
            table.device_memory_allocate = Some(allocate);
            if std::env::var_os("MILLPOND_TEST_LARGE").is_some() {
                table.device_memory_stats = Some(stats);
                table.device_init_alloc_size = Some(segment);
                table.device_realloc_size = Some(segment);
            }
        };
        fake::register("behind", tweak).unwrap();
    }
    child
}

#[test]
fn what_the_host_frees_goes_back_to_the_device() {
    if !is_child() {
        return child("what_the_host_frees_goes_back_to_the_device", "off");
    }
    // The fake device has 32 MiB.
    for (count, bytes) in [(64, 256), (64, 100_000), (4, 5 * MIB)] {
        let (most, left) = cycle(count, bytes);
        assert!(most >= count * bytes, "{most}");
        assert!(left == 0, "{left} of {most} bytes stay after blocks of {bytes}");
    }
}

/// A host without a cache: the driver is not asked for every pair, and what stays is little.
#[test]
fn what_the_host_takes_again_at_once_stays() {
    if !is_child() {
        return child("what_the_host_takes_again_at_once_stays", "off");
    }
    let left: Vec<usize> = (0..100).map(|_| cycle(1, MIB).1).collect();

    let calls = CALLS.load(Ordering::Relaxed);
    assert!(calls <= 4, "{calls} calls for 100 pairs");
    assert_eq!(left[0], 0, "the first goes back");
    assert!(*left.last().unwrap() <= LARGE / 64, "{left:?}");
    // More than that goes back.
    assert_eq!(cycle(4, 20 * MIB).1, 0);
}

#[test]
fn with_the_cache_on_it_stays() {
    if !is_child() {
        return child("with_the_cache_on_it_stays", "on");
    }
    let (most, left) = cycle(4, 5 * MIB);
    assert!(left == most && most >= 20 * MIB, "{left} of {most} bytes are left");
}
