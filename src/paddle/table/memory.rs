//! The Memory interface: allocation, copies, fills.
//!
//! Blocks carry no stream here, so they are unordered ones of the default pool: a freed block is not
//! used again before every stream has passed that point. Whether freed memory stays with us is decided in
//! `idle.rs`. Ranges are checked by the runtime.

use super::idle;
use super::options::Options;
use super::session::{device, forked, store};
use crate::base::error::{Code, Error, Result};
use crate::device::CopyKind;
use crate::paddle::abi::{C_Device, C_Status, C_Stream};
use crate::paddle::status::done;
use crate::runtime::{DeviceState, PoolId};
use std::ffi::c_void;

fn addr<T>(pointer: *const T) -> u64 {
    pointer as usize as u64
}

/// Stores the address of new memory, or tells that there is none in the way that the options ask for.
fn give(out: *mut *mut c_void, size: usize, take: impl FnOnce(u64) -> Result<u64>) -> Result<()> {
    if out.is_null() {
        return Err(Error::new(Code::InvalidArgument, "the place for the address is NULL"));
    }
    if isize::try_from(size).is_err() {
        // A mistake in the caller's arithmetic rather than a lack of memory: no retry will help.
        return Err(Error::new(Code::InvalidArgument, "no object is that large"));
    }
    match take(size as u64) {
        Ok(address) => store(out, address as usize as *mut c_void),
        Err(e) if e.code() == Code::OutOfMemory && Options::get().oom_is_null => {
            store(out, std::ptr::null_mut())
        }
        Err(e) => Err(e),
    }
}

/// Gives memory back; nothing happens for null, and in a forked child.
fn take_back(d: C_Device, ptr: *mut c_void, free: impl FnOnce(&DeviceState) -> Result<()>) -> C_Status {
    done(|| {
        if ptr.is_null() || forked() {
            return Ok(());
        }
        free(&*device(d)?)
    })
}

pub(super) unsafe extern "C-unwind" fn device_memory_allocate(
    d: C_Device,
    out: *mut *mut c_void,
    size: usize,
) -> C_Status {
    done(|| give(out, size, |bytes| device(d)?.memory().alloc_unordered(PoolId::DEFAULT, bytes)))
}

/// A size of 0 stands for "whatever it was": some hosts do not know.
pub(super) unsafe extern "C-unwind" fn device_memory_deallocate(
    d: C_Device,
    ptr: *mut c_void,
    size: usize,
) -> C_Status {
    take_back(d, ptr, |device| {
        device.memory().free(addr(ptr), None, (size != 0).then_some(size as u64))?;
        idle::freed(device, size as u64);
        Ok(())
    })
}

pub(super) unsafe extern "C-unwind" fn device_memory_set(
    d: C_Device,
    ptr: *mut c_void,
    value: u8,
    size: usize,
) -> C_Status {
    done(|| device(d)?.memset(addr(ptr), value, size as u64))
}

pub(super) unsafe extern "C-unwind" fn host_memory_allocate(
    d: C_Device,
    out: *mut *mut c_void,
    size: usize,
) -> C_Status {
    done(|| give(out, size, |bytes| device(d)?.host_alloc(bytes)))
}

pub(super) unsafe extern "C-unwind" fn host_memory_deallocate(
    d: C_Device,
    ptr: *mut c_void,
    _size: usize,
) -> C_Status {
    take_back(d, ptr, |device| {
        device.host_free(addr(ptr))?;
        // The host caches above us. What cannot go back now, as in a stream's callback, goes with a later free.
        let _ = device.host_empty_cache();
        Ok(())
    })
}

pub(super) unsafe extern "C-unwind" fn unified_memory_allocate(
    d: C_Device,
    out: *mut *mut c_void,
    size: usize,
) -> C_Status {
    done(|| give(out, size, |bytes| device(d)?.unified_alloc(bytes)))
}

pub(super) unsafe extern "C-unwind" fn unified_memory_deallocate(
    d: C_Device,
    ptr: *mut c_void,
    _size: usize,
) -> C_Status {
    take_back(d, ptr, |device| device.unified_free(addr(ptr)))
}

macro_rules! copies {
    ($($name:ident, $queued:ident, $kind:ident;)*) => {$(
        pub(super) unsafe extern "C-unwind" fn $name(
            d: C_Device,
            dst: *mut c_void,
            src: *const c_void,
            size: usize,
        ) -> C_Status {
            done(|| {
                let device = device(d)?;
                // SAFETY: the host range is the promise of the framework.
                unsafe { device.copy(CopyKind::$kind, addr(dst), addr(src), size as u64) }
            })
        }

        pub(super) unsafe extern "C-unwind" fn $queued(
            d: C_Device,
            stream: C_Stream,
            dst: *mut c_void,
            src: *const c_void,
            size: usize,
        ) -> C_Status {
            done(|| {
                let device = device(d)?;
                // SAFETY: the host range is the promise of the framework.
                unsafe { device.copy_async(addr(stream), CopyKind::$kind, addr(dst), addr(src), size as u64) }
            })
        }
    )*};
}

copies! {
    memory_copy_h2d, async_memory_copy_h2d, HostToDevice;
    memory_copy_d2h, async_memory_copy_d2h, DeviceToHost;
    memory_copy_d2d, async_memory_copy_d2d, DeviceToDevice;
}

pub(super) unsafe extern "C-unwind" fn memory_copy_p2p(
    dst_device: C_Device,
    src_device: C_Device,
    dst: *mut c_void,
    src: *const c_void,
    size: usize,
) -> C_Status {
    done(|| device(src_device)?.copy_peer(&*device(dst_device)?, addr(dst), addr(src), size as u64))
}

pub(super) unsafe extern "C-unwind" fn async_memory_copy_p2p(
    dst_device: C_Device,
    src_device: C_Device,
    stream: C_Stream,
    dst: *mut c_void,
    src: *const c_void,
    size: usize,
) -> C_Status {
    done(|| {
        let (from, to) = (device(src_device)?, device(dst_device)?);
        from.copy_peer_async(addr(stream), &to, addr(dst), addr(src), size as u64)
    })
}
