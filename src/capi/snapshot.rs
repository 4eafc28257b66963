//! Snapshots: a device's memory at one moment, written to a file or passed to a function.

use crate::base::error::{Code, Error, Result};
use crate::capi::guard::{answered, file_name, run_roomy};
use crate::capi::handles;
use crate::capi::types::{
    MILLPOND_SNAPSHOT_JSON, MILLPOND_SNAPSHOT_TORCH_PICKLE, millpond_device, millpond_write_callback,
};
use crate::fail;
use crate::paddle::abi::C_Status;
use crate::runtime::{Snapshot, SnapshotFormat};
use std::ffi::{c_char, c_void};

fn format_of(format: u32) -> Result<SnapshotFormat> {
    match format {
        MILLPOND_SNAPSHOT_JSON => Ok(SnapshotFormat::Json),
        MILLPOND_SNAPSHOT_TORCH_PICKLE => Ok(SnapshotFormat::TorchPickle),
        _ => fail!(
            Code::InvalidArgument,
            "there is no format {format} of snapshots: want a MILLPOND_SNAPSHOT_*"
        ),
    }
}

fn taken(device: *const millpond_device) -> Result<Snapshot> {
    handles::device(device)?.snapshot()
}

/// Writes a snapshot of the device's memory to the file `path`, in one of the MILLPOND_SNAPSHOT_* formats: every block
/// of all pools (live, waiting and free) and the account (device, pools, pinned memory), all at the same moment, and
/// the options in force. docs/snapshots.md describes both formats. Nobody can allocate or free on the device while the
/// blocks are collected, which takes less than 100 ms for a million; after that the file is written in pieces, with no
/// lock held.
///
/// The file is written in the same folder under a name that begins with ".millpond-", and renamed when it is complete;
/// an older file is replaced. After an error nothing is left of it, and an older file is unchanged. A path that is not
/// a regular file, such as a pipe, is written to directly; a pipe without a reader is an error, and so is one that takes
/// nothing for 5 s.
///
/// Errors: INVALID_ARGUMENT; SYSTEM if the file cannot be written, with the reason; OUT_OF_MEMORY if the host has no
/// memory for the list of blocks; NOT_INITIALIZED; DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_write_snapshot(
    device: *const millpond_device,
    format: u32,
    path: *const c_char,
) -> C_Status {
    run_roomy(|| {
        let format = format_of(format)?;
        // SAFETY: C's promise, as the header states it.
        let path = unsafe { file_name(path, "path") }?;
        taken(device)?.save(format, path)
    })
}

/// Passes the same snapshot to a function: `callback` gets the bytes in pieces of slightly more than 64 KiB (the last
/// one may be shorter), until it returns false.
///
/// Errors: INVALID_ARGUMENT, also if `callback` is NULL; SYSTEM if it returned false or threw; OUT_OF_MEMORY if the
/// host has no memory for the list of blocks; NOT_INITIALIZED; DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_send_snapshot(
    device: *const millpond_device,
    format: u32,
    callback: millpond_write_callback,
    user_data: *mut c_void,
) -> C_Status {
    run_roomy(|| {
        let format = format_of(format)?;
        let Some(call) = callback else { fail!(Code::InvalidArgument, "callback is NULL") };
        taken(device)?.send(format, |piece| {
            // SAFETY: the caller gave a function for exactly this call with this pointer.
            match answered(|| unsafe { call(user_data, piece.as_ptr().cast(), piece.len()) })? {
                true => Ok(()),
                false => Err(Error::new(Code::System, "the callback takes no more of the snapshot")),
            }
        })
    })
}
