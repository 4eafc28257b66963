//! Memory that others outside this process's allocator use: other processes, other devices, and communication libraries
//! that register it. docs/sharing.md describes how it fits together.

use crate::base::error::{Code, Error, Result};
use crate::capi::guard::{Out, UserData, run, run_end, run_roomy};
use crate::capi::handles;
use crate::capi::types::{
    MILLPOND_SEGMENT_ADDED, MILLPOND_SEGMENT_REMOVED, millpond_device, millpond_segment_callback,
};
use crate::fail;
use crate::ffi::exceptions;
use crate::paddle::abi::C_Status;
use crate::runtime::{self, Segment};
use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::ptr::{NonNull, with_exposed_provenance_mut};

/// Registers `callback`, which is called for each range of addresses of the device that gets memory
/// (MILLPOND_SEGMENT_ADDED) and for each that is about to lose it (MILLPOND_SEGMENT_REMOVED); before this returns, for
/// all ranges that have memory now. It is for libraries that register memory with a network or another device.
///
/// Ranges never overlap; a block may span several adjacent ones. A removal reports one range that was added, or a part
/// of one. A removal that the device then refuses is followed by an addition of the same range. While a pool sleeps,
/// its ranges are removed. When the device ends, all ranges are removed, and then the callback is. The range of a block
/// is reported before the block is handed out.
///
/// The calls for a device come one at a time, on whichever thread needs the change. One lock of Millpond is held,
/// which keeps them in order: other threads with a change to report wait for it, so requests that need memory from
/// the device may wait. The callback should not throw, must not wait for a thread that may be in Millpond, and must
/// not call Millpond, which returns NOT_PERMITTED (a request or a free that needs nothing but freed memory of the thread's own
/// stream may succeed all the same). Pinned, unified and imported memory is not reported.
///
/// The number in `out_id` is never 0; the caller removes the callback with `millpond_device_remove_segment_callback`.
///
/// Errors: UNSUPPORTED if the device is not pooled (the backends of the driver, see docs/options.md); INVALID_ARGUMENT;
/// NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_add_segment_callback(
    device: *mut millpond_device,
    callback: millpond_segment_callback,
    user_data: *mut c_void,
    out_id: *mut u64,
) -> C_Status {
    run_roomy(|| {
        let Some(call) = callback else {
            return Err(Error::new(Code::InvalidArgument, "callback is NULL"));
        };
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_id, "out_id") }?;
        let data = UserData(user_data);
        let tell = move |what: Segment, addr: u64, bytes: u64| {
            // The whole struct must be captured, not only the pointer in it.
            let data = &data;
            let event = match what {
                Segment::Added => MILLPOND_SEGMENT_ADDED,
                Segment::Removed => MILLPOND_SEGMENT_REMOVED,
            };
            let ptr = with_exposed_provenance_mut(addr as usize);
            // SAFETY: the caller gave a function for exactly this call with this pointer.
            let _ = exceptions::caught(|| unsafe { call(data.0, event, ptr, bytes as usize) });
        };
        out.set(handles::device(device)?.memory().segment_callbacks().add(tell)?);
        Ok(())
    })
}

/// Removes a segment callback, without calling it again. When this returns, no thread is in it, and `user_data` may be
/// destroyed. Hold no lock that the callback takes.
///
/// Errors: INVALID_ARGUMENT if the number belongs to no callback or to a removed one; UNSUPPORTED if the device is not
/// pooled; NOT_PERMITTED in a segment callback; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_remove_segment_callback(
    device: *mut millpond_device,
    id: u64,
) -> C_Status {
    run(|| handles::device(device)?.memory().segment_callbacks().remove(id))
}

/// An array from C: not NULL, aligned, and not absurdly long.
fn array<T>(ptr: *const T, count: usize, name: &str) -> Result<NonNull<T>> {
    match NonNull::new(ptr.cast_mut()) {
        Some(at) if at.is_aligned() && count <= isize::MAX as usize / size_of::<T>() => Ok(at),
        Some(_) => fail!(Code::InvalidArgument, "{name} is not aligned, or too long"),
        None => fail!(Code::InvalidArgument, "{name} is NULL"),
    }
}

/// How large the arrays for `millpond_export` of this block must be. The sizes stay the same while the block lives and
/// the option `export_handle` is not changed.
///
/// Errors: as `millpond_export`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_export_get_size(
    ptr: *const c_void,
    out_info_bytes: *mut usize,
    out_fd_count: *mut usize,
) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let info = unsafe { Out::new(out_info_bytes, "out_info_bytes") }?;
        // SAFETY: as above.
        let fds = unsafe { Out::new(out_fd_count, "out_fd_count") }?;
        let addr = ptr.addr() as u64;
        let (bytes, count) = runtime::holder(addr)?.0.shared_memory().export_size(addr)?;
        info.set(bytes);
        fds.set(count);
        Ok(())
    })
}

/// Exports the live block that starts at `ptr` for another process: `info_bytes` plain bytes, and `fd_count` file
/// descriptors, as many as `millpond_export_get_size` says. Send both, the descriptors in their order (SCM_RIGHTS, or
/// pidfd_getfd), and close them here; the receiver calls `millpond_import`. Every receiver can read and write the whole
/// granules (2 MiB) in which the block lies, on the host device all mapped memory of the device: share only with
/// processes that you trust.
///
/// The block stays the caller's, and may be freed while others use it. Its memory is reused once every copy of the
/// first descriptor is closed: each importer holds one until it closes the import or ends, and so do the caller and any
/// child forked meanwhile, unless they close theirs. Nothing waits for that. Until then, sleep and restore that would
/// affect the block, and the end of its pool, return BUSY. Work that was queued on the block must be done before
/// another process reads it: streams and events do not reach across processes.
///
/// With the option `export_handle:fabric` the bytes alone identify the memory, and the first descriptor is the only
/// one. The bytes may then go to other machines, which the descriptor cannot: for importers there, the caller must keep
/// it open, and live, until they have reported that they are done. Within a machine the descriptor need not be sent
/// either, on the same condition.
///
/// Errors: UNKNOWN_POINTER, also inside a block; UNSUPPORTED, with the reason, if the device cannot share (device types
/// other than "host" and "cuda", memory that is not mapped on "host", the driver's pools), and if
/// `export_handle:fabric` is impossible; NOT_PERMITTED while the pool sleeps; INVALID_ARGUMENT, also for other sizes;
/// SYSTEM if the process may not have so many descriptors; NOT_INITIALIZED; DEVICE.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_export(
    ptr: *const c_void,
    out_info: *mut c_void,
    info_bytes: usize,
    out_fds: *mut c_int,
    fd_count: usize,
) -> C_Status {
    run_roomy(|| {
        let info = array(out_info.cast::<u8>(), info_bytes, "out_info")?;
        let fds = array(out_fds, fd_count, "out_fds")?;
        let addr = ptr.addr() as u64;
        let device = runtime::holder(addr)?.0;
        let (bytes, count) = device.shared_memory().export_size(addr)?;
        if (bytes, count) != (info_bytes, fd_count) {
            fail!(
                Code::InvalidArgument,
                "this block needs info_bytes {bytes} and fd_count {count}, not {info_bytes} and {fd_count}"
            );
        }
        let export = device.shared_memory().export(addr)?;
        if (export.info.len(), export.fds.len()) != (bytes, count) {
            return Err(Error::new(Code::Internal, "the block has changed while it was exported"));
        }
        // SAFETY: C promises `info_bytes` writable bytes, and the text is exactly as long.
        unsafe { std::ptr::copy_nonoverlapping(export.info.as_ptr(), info.as_ptr(), info_bytes) };
        for (i, fd) in export.fds.into_iter().enumerate() {
            // SAFETY: C promises room for `fd_count` numbers, and there are exactly as many.
            unsafe { fds.add(i).write(fd.into_raw_fd()) };
        }
        Ok(())
    })
}

/// Exports `bytes` bytes at `ptr`, which lie in one live block, as a dma-buf for a driver of another device, such as a
/// network card's (`ibv_reg_dmabuf_mr`). `out_fd` is a new descriptor, which the caller closes; `out_offset` is where in it
/// the first byte is, since a dma-buf has whole pages of the host. The block must stay live until nobody uses the dma-buf
/// any more: unlike `millpond_export` this keeps nothing. Millpond moves no live block.
///
/// Whether one dma-buf may have memory of several handles (granules of 2 MiB, large handles) depends on driver and
/// platform; each block of a contiguous pool (MILLPOND_POOL_CONTIGUOUS) lies in one.
///
/// Errors: UNKNOWN_POINTER; UNSUPPORTED, with the reason, for device types other than "cuda", drivers before CUDA 11.7,
/// and devices without the attribute for it; INVALID_ARGUMENT, also if the bytes do not lie in the block, and where the driver
/// refuses the range; SYSTEM if the process may not have the descriptor; NOT_INITIALIZED; DEVICE.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_export_dmabuf(
    ptr: *const c_void,
    bytes: usize,
    out_fd: *mut c_int,
    out_offset: *mut u64,
) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_fd, "out_fd") }?;
        // SAFETY: as above.
        let begins = unsafe { Out::new(out_offset, "out_offset") }?;
        let addr = ptr.addr() as u64;
        let (fd, offset) = runtime::holder(addr)?.0.shared_memory().export_dma_buf(addr, bytes as u64)?;
        out.set(fd.into_raw_fd());
        begins.set(offset);
        Ok(())
    })
}

/// Opens memory that another process has exported (or this one has, except segments of "cuda") for work on `device`, at
/// an address of its own: `info` and `fds` as `millpond_export` returned them. The device must be of the exporter's
/// type, on "cuda" the same card, whatever its ordinal is. Copies and fills accept the memory; `millpond_free` and
/// `millpond_get_block` do not. The descriptors stay the caller's, who may close them after this. The caller ends the
/// import with `millpond_import_close`; it also ends with the device, and with the process.
///
/// What was exported with `export_handle:fabric` may be opened on any device that the memory's card reaches over the
/// fabric, on this machine or another, and also without descriptors (`fds` NULL, `fd_count` 0). Then nothing here keeps
/// the memory alive: the exporter must, until it learns that this import has ended.
///
/// Errors: INVALID_ARGUMENT for bytes or descriptors that do not come from an export, for another card, and for a
/// fabric handle whose exporter has ended; UNSUPPORTED if the device cannot import; NOT_PERMITTED if this process lacks
/// the exporter's IMEX channel; OUT_OF_MEMORY; SYSTEM; NOT_INITIALIZED; DEVICE.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_import(
    device: *mut millpond_device,
    info: *const c_void,
    info_bytes: usize,
    fds: *const c_int,
    fd_count: usize,
    out_ptr: *mut *mut c_void,
) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_ptr, "out_ptr") }?;
        let info = array(info.cast::<u8>(), info_bytes, "info")?;
        let numbers = if fd_count == 0 { NonNull::dangling() } else { array(fds, fd_count, "fds")? };
        // SAFETY: C promises that many readable bytes.
        let info = unsafe { std::slice::from_raw_parts(info.as_ptr(), info_bytes) };
        // SAFETY: C promises that many readable numbers.
        let numbers = unsafe { std::slice::from_raw_parts(numbers.as_ptr(), fd_count) };
        let mut open = Vec::new();
        for &fd in numbers {
            // SAFETY: asks about a number, which need not be a descriptor.
            if fd < 0 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
                fail!(Code::InvalidArgument, "{fd} is not an open file descriptor");
            }
            // SAFETY: it is open, and C promises that it stays so for the call.
            open.push(unsafe { BorrowedFd::borrow_raw(fd) });
        }
        let addr = handles::device(device)?.shared_memory().import(info, &open)?;
        out.set(with_exposed_provenance_mut(addr as usize));
        Ok(())
    })
}

/// Ends an import, at the address that `millpond_import` returned; once for each import. Waits for the device, whose
/// work may still use the memory.
///
/// Errors: UNKNOWN_POINTER; NOT_PERMITTED in a stream callback and while a stream of the device is captured;
/// NOT_INITIALIZED; DEVICE, and the import is as it was.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_import_close(ptr: *mut c_void) -> C_Status {
    run_end(|| runtime::import_close(ptr.addr() as u64))
}

/// How many freed blocks of the device other processes still use, and their bytes after rounding. Blocks that nobody
/// uses any more become reusable here; requests that find no memory check too. Waits for nothing.
///
/// Errors: UNSUPPORTED if the device is not pooled; INVALID_ARGUMENT; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_poll_exports(
    device: *mut millpond_device,
    out_blocks: *mut usize,
    out_bytes: *mut u64,
) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let blocks = unsafe { Out::new(out_blocks, "out_blocks") }?;
        // SAFETY: as above.
        let bytes = unsafe { Out::new(out_bytes, "out_bytes") }?;
        let (n, sum) = handles::device(device)?.shared_memory().poll_exports()?;
        blocks.set(n as usize);
        bytes.set(sum);
        Ok(())
    })
}

/// Whether work on `peer` could access memory of `device` at its address.
///
/// Errors: INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_can_access_peer(
    device: *const millpond_device,
    peer: *const millpond_device,
    out_can: *mut bool,
) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_can, "out_can") }?;
        out.set(handles::device(device)?.peer_access().is_possible(handles::device(peer)?)?);
        Ok(())
    })
}

/// Gives work on `peer` access to memory of `device` at its address from now on: to all pooled memory, including what
/// is taken later. This cannot be undone. Copies between devices do not need it. Open devices of one type do it by
/// themselves, both ways, unless an option of one of them says `peer_access:off`, the driver refuses it, or the memory is
/// in the driver's own pool. With this call a later refusal fails the request that needs it.
/// Does nothing if that has happened, if the devices share their memory anyway, as those of "host" do, and for a device
/// with itself.
///
/// Errors: UNSUPPORTED if the hardware or the driver allows no access, and for devices of other types, which
/// `millpond_device_can_access_peer` reports beforehand; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE. After an error
/// nothing has changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_enable_peer_access(
    device: *mut millpond_device,
    peer: *mut millpond_device,
) -> C_Status {
    run_roomy(|| handles::device(device)?.peer_access().enable(handles::device(peer)?))
}
