//! The library as a whole: version, configuration, finalisation.

use crate::capi::guard::{Versioned, read_struct, run_end, run_first};
use crate::capi::types::millpond_host_options;
use crate::paddle::abi::C_Status;
use crate::runtime;
use std::ffi::c_char;

const VERSION_NUMBER: u32 = number(env!("CARGO_PKG_VERSION_MAJOR")) * 1_000_000
    + number(env!("CARGO_PKG_VERSION_MINOR")) * 1000
    + number(env!("CARGO_PKG_VERSION_PATCH"));

/// The number that Cargo gives as a text of digits.
const fn number(digits: &str) -> u32 {
    let (digits, mut number, mut at) = (digits.as_bytes(), 0, 0);
    while at < digits.len() {
        number = number * 10 + (digits[at] - b'0') as u32;
        at += 1;
    }
    number
}

// SAFETY: repr(C), `struct_size` first, integers only.
unsafe impl Versioned for millpond_host_options {}

/// The version of the library as "major.minor.patch". Never NULL; lives for ever. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The version of the library as one number, to be compared with MILLPOND_VERSION_NUMBER, which is that of the header:
/// major * 1 000 000 + minor * 1000 + patch. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_version_number() -> u32 {
    VERSION_NUMBER
}

/// Configures the built-in device type "host". Must come before the first call that names a device type. `options` may
/// be NULL: defaults.
///
/// Errors: BUSY once the library was used; INVALID_ARGUMENT for more than 64 devices, for another value
/// than 0 or 1 in `disable_mapping`, for a capacity that no device can have, and for a bad value of a
/// MILLPOND_HOST_* variable that the options do not override.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_host_configure(options: *const millpond_host_options) -> C_Status {
    run_first(|| {
        // SAFETY: C's promise, as the header states it.
        let o = unsafe { read_struct(options, "options") }?;
        runtime::configure_host(runtime::host_options(o.device_count, o.capacity_bytes, o.disable_mapping)?)
    })
}

/// Ends every device type: waits for the work of all devices, then gives everything back. Live blocks, pools, streams
/// and events are lost; registered device types are removed.
///
/// Afterwards every call with an old handle (of a device, pool, capture or checkpoint) returns NOT_INITIALIZED, for ever,
/// and so does every call with an old address, stream or event until the library starts again. Then these are as any
/// others that it does not know (UNKNOWN_POINTER and so on), and a new block, stream or event may have the number of an
/// old one: do not use them. The next call that names a device type starts the library again, with the host device's
/// defaults unless it is configured again. Not needed before the end of the process.
///
/// Waits for calls that other threads are making; later ones return NOT_INITIALIZED. Only allocating and freeing on a
/// registered device type must not be in progress meanwhile. Files of histories and recordings are waited for, as
/// `millpond_device_history_stop` says.
///
/// Errors: NOT_INITIALIZED if nothing was started; NOT_PERMITTED in a stream callback; otherwise the first failure of a
/// device, after all have been ended.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_finalize() -> C_Status {
    run_end(runtime::finalize)
}
