//! The numbers that stand for streams, events and addresses on both sides of the seam.

use std::ffi::c_void;

/// The bits of a `C_Stream`; 0 is the device's default stream.
pub type StreamId = u64;
/// No stream of any device: what the C++ header holds of one that could not be made.
pub const NO_STREAM: StreamId = StreamId::MAX;
/// The bits of a `C_Event`; never 0.
pub type EventId = u64;

/// The maximum length of a device type's name, in bytes, without the terminating 0 of C.
pub const MAX_TYPE_NAME: usize = 31;

/// An address as the pointer argument that a foreign function expects.
pub(crate) fn as_ptr(addr: u64) -> *mut c_void {
    addr as usize as *mut c_void
}
