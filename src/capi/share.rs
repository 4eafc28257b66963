//! Memory that others than this process's allocator look at: communication libraries that register it.

use crate::base::error::{Code, Error};
use crate::capi::guard::{Out, UserData, run};
use crate::capi::handles;
use crate::capi::types::{
    MILLPOND_SEGMENT_ADDED, MILLPOND_SEGMENT_REMOVED, millpond_device, millpond_segment_callback,
};
use crate::paddle::abi::C_Status;
use crate::runtime::Segment;
use std::ffi::c_void;
use std::ptr::with_exposed_provenance_mut;

/// From now on `callback` is called for each range of addresses of the device that gets memory behind it
/// (MILLPOND_SEGMENT_ADDED), and for each that is about to lose it (MILLPOND_SEGMENT_REMOVED); before this returns,
/// for all that have memory now. For libraries that register memory with a network or another device.
///
/// Ranges never overlap; blocks may span several that touch. A removal tells of one range that was added, or of a
/// part of one. A removal that the device then refuses is followed by an addition of the same range. While a pool
/// sleeps, its ranges are removed. When the device ends, all ranges are removed, and then the callback is. A block
/// is told of before it is given out.
///
/// The calls come one at a time for a device, on whichever thread needs the change, with the lock of the device's
/// memory held: other threads that need memory from the device wait meanwhile. The callback must not throw, must not
/// wait for a thread that may be in Millpond, and must not call Millpond: it gets NOT_PERMITTED. Pinned, unified
/// and imported memory is not told of.
///
/// The number in `out_id` is never 0; the caller removes the callback with `millpond_device_remove_segment_callback`.
///
/// Errors: UNSUPPORTED where the device is not pooled (the backends of the driver, see docs/options.md);
/// INVALID_ARGUMENT; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_add_segment_callback(
    device: *mut millpond_device,
    callback: millpond_segment_callback,
    user_data: *mut c_void,
    out_id: *mut u64,
) -> C_Status {
    run(|| {
        let Some(call) = callback else {
            return Err(Error::new(Code::InvalidArgument, "callback is NULL"));
        };
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_id, "out_id") }?;
        let data = UserData(user_data);
        let tell = move |what: Segment, addr: u64, bytes: u64| {
            // The whole struct must move, not only the pointer in it.
            let data = &data;
            let event = match what {
                Segment::Added => MILLPOND_SEGMENT_ADDED,
                Segment::Removed => MILLPOND_SEGMENT_REMOVED,
            };
            let ptr = with_exposed_provenance_mut(addr as usize);
            // SAFETY: the caller gave a function for exactly this call with this pointer.
            unsafe { call(data.0, event, ptr, bytes as usize) }
        };
        out.set(handles::device(device)?.memory().add_segment_callback(tell)?);
        Ok(())
    })
}

/// Removes a segment callback, without telling it anything more. On return no thread is in it, and `user_data` may
/// go. Hold no lock that the callback takes.
///
/// Errors: INVALID_ARGUMENT for a number that is none, or was removed before; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_remove_segment_callback(
    device: *mut millpond_device,
    id: u64,
) -> C_Status {
    run(|| handles::device(device)?.memory().remove_segment_callback(id))
}
