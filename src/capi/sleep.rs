//! Sleep and wake: the physical memory of pools goes back to the device; their addresses stay.

use crate::base::error::{Code, Result};
use crate::capi::guard::{run_roomy, text};
use crate::capi::handles;
use crate::capi::types::{MILLPOND_SLEEP_KEEP, millpond_device, millpond_pool};
use crate::fail;
use crate::paddle::abi::C_Status;
use crate::runtime::{DeviceState, PoolId};
use std::ffi::c_char;

bitflags::bitflags! {
    struct SleepFlags: u32 {
        const KEEP = MILLPOND_SLEEP_KEEP;
    }
}

fn keeps(flags: u32) -> Result<bool> {
    match SleepFlags::from_bits(flags) {
        Some(flags) => Ok(flags.contains(SleepFlags::KEEP)),
        None => fail!(Code::InvalidArgument, "{flags:#x} has flags that there are not (MILLPOND_SLEEP_*)"),
    }
}

fn named(device: &DeviceState, name: &str) -> Result<Vec<PoolId>> {
    let pools = device.memory().pools().named(name);
    if pools.is_empty() {
        fail!(Code::InvalidArgument, "the device has no pool named {name:?}");
    }
    Ok(pools)
}

/// Gives the physical memory of the pool back to the device until `millpond_pool_wake`. Its addresses stay, and so do
/// its blocks, which nobody may access meanwhile: copies and fills of them return NOT_PERMITTED, and so do requests to
/// the pool. Blocks may be freed. With `flags` 0 the contents of the memory are lost; with MILLPOND_SLEEP_KEEP they are
/// copied to host memory and back. Waits for the device.
///
/// Errors: UNSUPPORTED if the device does not map; NOT_PERMITTED if the pool already sleeps, and in a stream callback;
/// BUSY while a stream of the device is captured; OUT_OF_MEMORY for host memory; INVALID_ARGUMENT; NOT_INITIALIZED;
/// DEVICE. After an error nothing has changed, except that if the device takes memory and does not give it back, a part
/// of the pool may sleep, as `sleeping_bytes` shows: wake it then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_sleep(pool: *mut millpond_pool, flags: u32) -> C_Status {
    run_roomy(|| {
        let (device, id) = handles::pool(pool)?;
        device.pools().sleep(&[id], keeps(flags)?).map_err(|e| handles::with_name(pool, e))
    })
}

/// Brings the memory of a sleeping pool back, at the same addresses. If there is too little, idle memory of other pools
/// is given back for it: where a limit lacks some, no more than that, and none if it would not be enough; all where the
/// device itself refuses. And where the device is in a group, other programs are asked as for a request
/// (`millpond_device_join_group`).
///
/// Errors: OUT_OF_MEMORY, and the pool sleeps on with what was kept; NOT_PERMITTED if it does not sleep, and in
/// a stream callback; BUSY while a stream of the device is captured; UNSUPPORTED; INVALID_ARGUMENT;
/// NOT_INITIALIZED; DEVICE. After an error nothing has changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_wake(pool: *mut millpond_pool) -> C_Status {
    run_roomy(|| {
        let (device, id) = handles::pool(pool)?;
        device.pools().wake(&[id]).map_err(|e| handles::with_name(pool, e))
    })
}

/// `millpond_pool_sleep` for all pools of the device that were created with this name, which serves as a tag: all of
/// them or none.
///
/// Errors: INVALID_ARGUMENT, also if there is no such pool; otherwise those of `millpond_pool_sleep`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_sleep(
    device: *mut millpond_device,
    pool_name: *const c_char,
    flags: u32,
) -> C_Status {
    run_roomy(|| {
        let device = handles::device(device)?;
        // SAFETY: C's promise, as the header states it.
        let name = unsafe { text(pool_name, "pool_name") }?;
        device.pools().sleep(&named(device, name)?, keeps(flags)?)
    })
}

/// `millpond_pool_wake` for all sleeping pools of the device that were created with this name. If one cannot wake,
/// those that have woken before it stay awake, and the call may be repeated.
///
/// Errors: INVALID_ARGUMENT also when there is no such pool; NOT_PERMITTED also when none of them sleeps; else
/// those of `millpond_pool_wake`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_wake(
    device: *mut millpond_device,
    pool_name: *const c_char,
) -> C_Status {
    run_roomy(|| {
        let device = handles::device(device)?;
        // SAFETY: C's promise, as the header states it.
        let name = unsafe { text(pool_name, "pool_name") }?;
        let mut pools = named(device, name)?;
        pools.retain(|&p| device.memory().pools().sleeps(p));
        if pools.is_empty() {
            fail!(Code::NotPermitted, "no pool named {name:?} sleeps");
        }
        device.pools().wake(&pools)
    })
}
