//! Copies and fills.

use crate::base::error::{Code, Result};
use crate::capi::guard::{run, run_roomy};
use crate::capi::handles;
use crate::capi::pool::stream_id;
use crate::capi::types::{MILLPOND_COPY_D2D, MILLPOND_COPY_D2H, MILLPOND_COPY_H2D, millpond_device};
use crate::fail;
use crate::paddle::abi::{C_Status, C_Stream};
use crate::runtime::CopyKind;
use std::ffi::c_void;

fn kind_of(kind: u32) -> Result<CopyKind> {
    match kind {
        MILLPOND_COPY_H2D => Ok(CopyKind::HostToDevice),
        MILLPOND_COPY_D2H => Ok(CopyKind::DeviceToHost),
        MILLPOND_COPY_D2D => Ok(CopyKind::DeviceToDevice),
        other => fail!(Code::InvalidArgument, "{other} is not a kind of copy (MILLPOND_COPY_*)"),
    }
}

fn address(ptr: *const c_void) -> u64 {
    // The device uses the address: the compiler must know that it may be written through.
    ptr.expose_provenance() as u64
}

/// Copies `size_bytes` and returns when they have arrived; waits for work queued on the device before (while a
/// stream is captured, only for what the default stream waits for). `kind`
/// is a MILLPOND_COPY_* constant. The ranges must not overlap. Size 0: no-op.
///
/// Errors: UNKNOWN_POINTER and OUT_OF_RANGE for a device range that is not inside one live block or unified
/// memory; INVALID_ARGUMENT for NULL or another kind; NOT_PERMITTED in a stream callback; NOT_INITIALIZED; DEVICE. The
/// host range is not checked: the caller vouches for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_copy(
    device: *mut millpond_device,
    kind: u32,
    dst: *mut c_void,
    src: *const c_void,
    size_bytes: usize,
) -> C_Status {
    run(|| {
        let device = handles::device(device)?;
        // SAFETY: the caller in C vouches for the host range.
        unsafe { device.copy(kind_of(kind)?, address(dst), address(src), size_bytes as u64) }
    })
}

/// Queues a copy on `stream`. Device memory and memory of `millpond_host_alloc` must stay unchanged until the copy is
/// done, but the latter may be freed before. Other host memory that is the source has been read when this returns;
/// other host memory that is the destination may be written until the copy is done: on `cuda` the call waits for that,
/// and for what was queued on `stream` before, unless the stream is captured.
///
/// Errors: as `millpond_copy`, and UNKNOWN_STREAM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_copy_async(
    device: *mut millpond_device,
    stream: C_Stream,
    kind: u32,
    dst: *mut c_void,
    src: *const c_void,
    size_bytes: usize,
) -> C_Status {
    run(|| {
        let device = handles::device(device)?;
        let (stream, kind) = (stream_id(stream), kind_of(kind)?);
        // SAFETY: the caller in C vouches for the host range.
        unsafe { device.copy_async(stream, kind, address(dst), address(src), size_bytes as u64) }
    })
}

/// Copies between two devices of the same type and returns when the bytes have arrived. Size 0: no-op.
///
/// Errors: as `millpond_copy`; INVALID_ARGUMENT when the types differ.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_copy_peer(
    dst_device: *mut millpond_device,
    dst: *mut c_void,
    src_device: *mut millpond_device,
    src: *const c_void,
    size_bytes: usize,
) -> C_Status {
    run_roomy(|| {
        let (to, from) = (handles::device(dst_device)?, handles::device(src_device)?);
        from.copy_peer(to, address(dst), address(src), size_bytes as u64)
    })
}

/// Queues a copy between two devices of the same type on `stream`, a stream of the source or of the destination device;
/// NULL is the source's. If a plugin's devices cannot make such copies on the destination's streams, the call waits and
/// copies.
///
/// Blocks without a stream may be freed as soon as this has returned, on both devices, and so may blocks of `stream`.
/// Any other block may be freed once its own stream has been made to wait for the copy.
///
/// Errors: as `millpond_copy_peer`, and UNKNOWN_STREAM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_copy_peer_async(
    dst_device: *mut millpond_device,
    dst: *mut c_void,
    src_device: *mut millpond_device,
    stream: C_Stream,
    src: *const c_void,
    size_bytes: usize,
) -> C_Status {
    run_roomy(|| {
        let (to, from) = (handles::device(dst_device)?, handles::device(src_device)?);
        from.copy_peer_async(stream_id(stream), to, address(dst), address(src), size_bytes as u64)
    })
}

/// Sets `size_bytes` of device memory to `value`, and returns when done; waits for work queued on the device
/// before. Size 0: no-op.
///
/// Errors: as `millpond_copy`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memset(
    device: *mut millpond_device,
    dst: *mut c_void,
    value: u8,
    size_bytes: usize,
) -> C_Status {
    run(|| handles::device(device)?.memset(address(dst), value, size_bytes as u64))
}

/// Queues a fill of device memory on `stream`.
///
/// Errors: as `millpond_copy`, and UNKNOWN_STREAM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memset_async(
    device: *mut millpond_device,
    stream: C_Stream,
    dst: *mut c_void,
    value: u8,
    size_bytes: usize,
) -> C_Status {
    run(|| handles::device(device)?.memset_async(stream_id(stream), address(dst), value, size_bytes as u64))
}
