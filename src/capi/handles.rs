//! The values that C holds as `millpond_device *`, `millpond_pool *` and the like.
//!
//! A handle is never a pointer: its top 16 bits are a mark that no address of a process has, so a pointer of the
//! caller, a handle of another kind and an arbitrary value are all recognised. Below the mark is a number of the runtime:
//! that of a device, or that of a pool (`runtime/memory/pool_numbers.rs`). This file only encodes and decodes; a lookup is
//! a few loads, takes no lock and follows no pointer from C.

use crate::base::error::{Code, Error, Result};
use crate::capi::guard;
use crate::capi::types::{millpond_capture, millpond_checkpoint, millpond_device, millpond_pool};
use crate::paddle::abi::C_Status;
use crate::runtime::ladder::Caller;
use crate::runtime::{self, DeviceState, PoolHandle, PoolId};
use std::ptr::without_provenance_mut;
use std::sync::Arc;

const _: () = assert!(size_of::<usize>() == 8, "handles need 64-bit pointers");

const DEVICE_MARK: u64 = 0xD1CE;
const DEFAULT_POOL_MARK: u64 = 0xDEF0;
const POOL_MARK: u64 = 0xB00C;
const MARK_SHIFT: u32 = 48;
fn invalid<T>(message: &'static str) -> Result<T> {
    Err(Error::new(Code::InvalidArgument, message))
}

fn to_ptr<T>(mark: u64, rest: u64) -> *mut T {
    without_provenance_mut((mark << MARK_SHIFT | rest) as usize)
}

fn split<T>(handle: *const T) -> (u64, u64) {
    let bits = handle.addr() as u64;
    (bits >> MARK_SHIFT, bits & ((1 << MARK_SHIFT) - 1))
}

/// The handle of a device.
pub(crate) fn of_device(device: &DeviceState) -> *mut millpond_device {
    to_ptr(DEVICE_MARK, device.id().into())
}

/// The open device of a handle.
#[inline]
pub(crate) fn device(handle: *const millpond_device) -> Result<&'static Arc<DeviceState>> {
    match split(handle) {
        (DEVICE_MARK, id) => open_device(id),
        (0, 0) => invalid("the device is NULL"),
        _ => invalid("the device is not a handle that millpond_device_get gave"),
    }
}

#[inline]
fn open_device(id: u64) -> Result<&'static Arc<DeviceState>> {
    let Some(d) = u32::try_from(id).ok().and_then(runtime::by_id) else {
        return invalid("the handle's device was never opened");
    };
    if !d.is_open() {
        return Err(Error::new(
            Code::NotInitialized,
            "the device has ended; get it again with millpond_device_get",
        ));
    }
    Ok(d)
}

/// Something of a device that has a 32-bit number, which is never reused.
pub(crate) trait Numbered {
    /// The mark of its handles; no other kind has it.
    const MARK: u64;
    /// For messages.
    const WHAT: &'static str;
}

impl Numbered for millpond_capture {
    const MARK: u64 = 0xCA97;
    const WHAT: &'static str = "capture";
}

impl Numbered for millpond_checkpoint {
    const MARK: u64 = 0xCEC9;
    const WHAT: &'static str = "checkpoint";
}

/// The handle of a numbered thing of a device. The device's id must fit into 16 bits.
pub(crate) fn of_numbered<T: Numbered>(device: &DeviceState, number: u64) -> Result<*mut T> {
    if device.id() > 0xFFFF || number > u64::from(u32::MAX) {
        return Err(Error::new(Code::System, "there were too many of these on the device"));
    }
    Ok(to_ptr(T::MARK, u64::from(device.id()) << 32 | number))
}

/// The device and the number of such a handle. The device knows whether the number is still valid.
pub(crate) fn numbered<T: Numbered>(handle: *const T) -> Result<(&'static Arc<DeviceState>, u64)> {
    match split(handle) {
        (mark, rest) if mark == T::MARK => Ok((open_device(rest >> 32)?, rest & u64::from(u32::MAX))),
        (0, 0) => Err(Error::formatted(Code::InvalidArgument, format_args!("the {} is NULL", T::WHAT))),
        _ => Err(Error::formatted(
            Code::InvalidArgument,
            format_args!("the {0} is not a handle of a {0}", T::WHAT),
        )),
    }
}

/// The open device and the pool of a handle.
#[inline]
pub(crate) fn pool(handle: *const millpond_pool) -> Result<(&'static Arc<DeviceState>, PoolId)> {
    match split(handle) {
        (POOL_MARK, number) => {
            let pool = PoolHandle::of_number(number)?;
            Ok((open_device(pool.device().id().into())?, pool.id()))
        }
        (DEFAULT_POOL_MARK, id) => Ok((open_device(id)?, PoolId::DEFAULT)),
        (0, 0) => invalid("the pool is NULL"),
        _ => invalid("the pool is not a handle of a pool"),
    }
}

/// The pool of a handle, which must be one of that device; `None` for NULL, which stands for all pools.
pub(crate) fn pool_on(device: &DeviceState, handle: *const millpond_pool) -> Result<Option<PoolId>> {
    if handle.is_null() {
        return Ok(None);
    }
    let (of, pool) = pool(handle)?;
    if of.id() != device.id() {
        return invalid("the pool is one of another device");
    }
    Ok(Some(pool))
}

/// The handle of a pool of `device`: the same each time, created if there is none yet.
pub(crate) fn of_pool(device: &DeviceState, pool: PoolId) -> Result<*mut millpond_pool> {
    if pool == PoolId::DEFAULT {
        return Ok(to_ptr(DEFAULT_POOL_MARK, device.id().into()));
    }
    Ok(to_ptr(POOL_MARK, device.memory().pools().number(pool)?))
}

/// The handle of a pool of `device`; none if the pool has ended meanwhile.
pub(crate) fn of_live_pool(device: &DeviceState, pool: PoolId) -> Option<*mut millpond_pool> {
    if pool == PoolId::DEFAULT {
        return of_pool(device, pool).ok();
    }
    Some(to_ptr(POOL_MARK, device.memory().pools().number_if_live(pool)?))
}

/// The handle of the default pool of what may be a device.
#[inline(always)]
pub(crate) fn default_pool_of(device: *const millpond_device) -> *const millpond_pool {
    match split(device) {
        (DEVICE_MARK, id) => to_ptr::<millpond_pool>(DEFAULT_POOL_MARK, id),
        _ => std::ptr::null(),
    }
}

/// A pool, as C names it in an allocation or a free.
#[derive(Clone, Copy)]
pub(crate) struct Named(pub *const millpond_pool);

impl Caller for Named {
    type Failure = C_Status;
    const UNWINDS: bool = false;

    #[inline(always)]
    fn number(self) -> u64 {
        self.0.addr() as u64
    }

    #[inline(always)]
    fn with_number(self, number: u64) -> Self {
        Named(without_provenance_mut(number as usize))
    }

    fn pool(self) -> Result<(&'static Arc<DeviceState>, PoolId)> {
        pool(self.0)
    }

    fn may_call(self) -> Result<()> {
        guard::may_call()
    }

    fn refused(self, e: Error) -> Error {
        with_name(self.0, e)
    }

    fn guard<T>(self, body: impl FnOnce() -> Result<T>) -> Result<T, C_Status> {
        guard::guarded(body)
    }
}

/// The error of a call that names the pool, prefixed with the pool's name if it has one.
#[cold]
pub(crate) fn with_name(handle: *const millpond_pool, e: Error) -> Error {
    let (POOL_MARK, number) = split(handle) else { return e };
    match PoolHandle::of_number(number) {
        Ok(pool) => pool.device().memory().pools().naming(pool.id(), e),
        Err(_) => e,
    }
}
