//! The Memory interface: allocation, copies, fills.
//!
//! Blocks have no stream here, so they are unordered blocks of the default pool: a freed block is not reused before
//! every stream has passed the free. `idle.rs` decides whether freed memory stays with us. The runtime checks ranges.

use super::idle;
use super::options::Options;
use super::session::{device, forked, store};
use crate::base::error::{Code, Error, Result};
use crate::device::{CopyKind, StreamId};
use crate::paddle::abi::{C_Device, C_Status, C_Stream};
use crate::paddle::status::done;
use crate::runtime::{DeviceState, PoolId};
use std::ffi::c_void;
use std::fs::File;
use std::io::Write;

fn addr<T>(pointer: *const T) -> u64 {
    pointer as usize as u64
}

/// Stores the address of new memory, or reports out of memory in the way that the options ask for.
fn give(out: *mut *mut c_void, size: usize, take: impl FnOnce(u64) -> Result<u64>) -> Result<()> {
    if out.is_null() {
        return Err(Error::new(Code::InvalidArgument, "the place for the address is NULL"));
    }
    if isize::try_from(size).is_err() {
        // A mistake in the caller's arithmetic rather than a lack of memory: no retry would help.
        return Err(Error::new(Code::InvalidArgument, "no object is that large"));
    }
    match take(size as u64).inspect_err(tell) {
        Ok(address) => store(out, address as usize as *mut c_void),
        Err(e) if e.code() == Code::OutOfMemory && Options::get().oom_is_null => {
            store(out, std::ptr::null_mut())
        }
        Err(e) => Err(e),
    }
}

/// Writes why there is no memory to where the options say. The interface has no words for it: the host's log has only a
/// status. What cannot be written is lost.
#[cold]
fn tell(e: &Error) {
    let (Some(to), Some(report)) = (&Options::get().report_to, e.oom_report()) else { return };
    let text = report.text();
    if to == "stderr" {
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
    } else if let Ok(mut file) = File::options().append(true).create(true).open(to) {
        let _ = file.write_all(text.as_bytes());
    }
}

/// Frees memory. Does nothing for null, and in a forked child.
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

/// A size of 0 means "unknown": some hosts do not keep the size.
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
    done(|| give(out, size, |bytes| device(d)?.host_memory().alloc(bytes)))
}

pub(super) unsafe extern "C-unwind" fn host_memory_deallocate(
    d: C_Device,
    ptr: *mut c_void,
    _size: usize,
) -> C_Status {
    take_back(d, ptr, |device| {
        device.host_memory().free(addr(ptr))?;
        // The host caches above us. What cannot go back now, as in a stream's callback, goes back at a later free.
        let _ = device.host_memory().empty_cache();
        Ok(())
    })
}

pub(super) unsafe extern "C-unwind" fn unified_memory_allocate(
    d: C_Device,
    out: *mut *mut c_void,
    size: usize,
) -> C_Status {
    done(|| give(out, size, |bytes| device(d)?.unified_memory().alloc(bytes)))
}

pub(super) unsafe extern "C-unwind" fn unified_memory_deallocate(
    d: C_Device,
    ptr: *mut c_void,
    _size: usize,
) -> C_Status {
    take_back(d, ptr, |device| device.unified_memory().free(addr(ptr)))
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
                // SAFETY: the framework vouches for the host range.
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
                // SAFETY: the framework vouches for the host range.
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

/// Orders work that is queued on `stream` of `of` from now on after all work queued on `after` so far.
fn follow(of: &DeviceState, stream: StreamId, after: &DeviceState) -> Result<()> {
    let event = after.events().create()?;
    // A stream that ends meanwhile has nobody who queues more work on it. Recording the event again is fine: a wait
    // keeps what it was queued for.
    let one = |s| match after.events().record(s, event).and_then(|()| of.streams().wait_event(stream, event))
    {
        Err(e) if e.code() == Code::UnknownStream && s != 0 && !after.streams().contains(s) => Ok(()),
        other => other,
    };
    let done = after.memory().streams().live().into_iter().try_for_each(one);
    done.and(after.events().destroy(event))
}

/// Orders work that is queued on `of` from now on after what is queued on `stream` of `after` so far.
fn lead(of: &DeviceState, after: &DeviceState, stream: StreamId) -> Result<()> {
    let event = after.events().create()?;
    let one = |s| match of.streams().wait_event(s, event) {
        Err(e) if e.code() == Code::UnknownStream && s != 0 && !of.streams().contains(s) => Ok(()),
        other => other,
    };
    let recorded = after.events().record(stream, event);
    let done = recorded.and_then(|()| of.memory().streams().live().into_iter().try_for_each(one));
    done.and(after.events().destroy(event))
}

/// The stream belongs to the source or to the destination; PaddlePaddle passes one of the destination. Then nothing
/// that PaddlePaddle could say orders the copy with the source's own work: neither with the work that produces the
/// bytes, nor with the next use of their memory, which PaddlePaddle orders by the source's streams alone. So the copy
/// is ordered after everything queued on the source now, and before everything queued there later.
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
        let stream = addr(stream);
        let copy = || from.copy_peer_async(stream, &to, addr(dst), addr(src), size as u64);
        if size == 0 || from.streams().contains(stream) || !to.streams().contains(stream) {
            return copy();
        }
        follow(&to, stream, &from)?;
        copy()?;
        // If the device cannot be told so, the copy is complete when this returns.
        lead(&from, &to, stream).or_else(|_| to.streams().synchronize(stream))
    })
}
