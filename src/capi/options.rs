//! Options: how the memory of a device behaves, as text.

use crate::base::error::{Code, Error, Result};
use crate::capi::guard::{run_roomy, text, write_text};
use crate::capi::handles;
use crate::capi::types::millpond_device;
use crate::fail;
use crate::paddle::abi::C_Status;
use crate::runtime::{self, DeviceState};
use std::ffi::c_char;
use std::ptr::NonNull;

/// The bytes that are enough for the value of every option, including its NUL.
pub const MILLPOND_OPTION_BYTES: usize = 512;
/// The bytes that are enough for all options of a device as one text, including its NUL.
pub const MILLPOND_OPTIONS_BYTES: usize = 2048;

fn buffer(out_text: *mut c_char) -> Result<NonNull<c_char>> {
    NonNull::new(out_text).ok_or_else(|| Error::new(Code::InvalidArgument, "out_text is NULL"))
}

/// Sets options of devices that are opened from now on: `options` is "key:value,key:value", with the keys and
/// values of docs/options.md, which are those of PyTorch's PYTORCH_ALLOC_CONF. `type_name` NULL: for devices of
/// all types; `ordinal` -1: for all ordinals. Later settings override earlier ones, and all of them override the
/// environment (MILLPOND_ALLOC_CONF). Open devices keep their options. `millpond_finalize` forgets what was set.
///
/// A bad value in the environment makes the call that opens a device fail, with an error that names the variable.
/// Errors: INVALID_ARGUMENT for NULL in `options`, an ordinal below -1, and a malformed text: the message has the
/// column and the nearest right key or value, and nothing is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_set_default_options(
    type_name: *const c_char,
    ordinal: i32,
    options: *const c_char,
) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let options = unsafe { text(options, "options") }?;
        let name = if type_name.is_null() {
            None
        } else {
            // SAFETY: as above.
            Some(unsafe { text(type_name, "type_name") }?)
        };
        let ordinal = match ordinal {
            -1 => None,
            n => match usize::try_from(n) {
                Ok(n) => Some(n),
                Err(_) => fail!(Code::InvalidArgument, "the ordinal is {n}: want -1 (all), 0 or more"),
            },
        };
        runtime::set_default_options(name, ordinal, options)
    })
}

/// PyTorch runs on devices of the type `type_name` (NULL: of all types): those that are opened from now on also take
/// the options of PyTorch's environment variables, where MILLPOND_ALLOC_CONF is not set (docs/options.md). Without this
/// call those variables mean nothing to Millpond. `millpond_finalize` forgets it.
///
/// A bad value in one of them makes the call that opens a device fail, with an error that names the variable.
/// Errors: INVALID_ARGUMENT for a name that is not UTF-8; NOT_PERMITTED in a forked child.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_set_pytorch_options(type_name: *const c_char) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let name = if type_name.is_null() { None } else { Some(unsafe { text(type_name, "type_name") }?) };
        runtime::set_pytorch_options(name)
    })
}

/// Changes options of an open device from now on; `options` as in `millpond_set_default_options`. Live blocks
/// stay as they are. `backend`, `expandable_segments` and `peer_access` cannot be changed here: set them as defaults
/// before the device is first used.
///
/// Errors: INVALID_ARGUMENT for NULL and for a malformed text, with the column and the nearest right key or value;
/// BUSY for an option that an open device cannot change; NOT_INITIALIZED. After an error nothing has changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_set_options(
    device: *mut millpond_device,
    options: *const c_char,
) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let options = unsafe { text(options, "options") }?;
        handles::device(device)?.options().set(options)
    })
}

/// The current value of the option `key`, written with its NUL into `out_text` of `capacity` bytes;
/// MILLPOND_OPTION_BYTES always suffice. `backend` and `expandable_segments` say what is in effect, whatever was asked
/// for.
///
/// Errors: INVALID_ARGUMENT for NULL, for an unknown key, and if the value does not fit; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_get_option(
    device: *const millpond_device,
    key: *const c_char,
    out_text: *mut c_char,
    capacity: usize,
) -> C_Status {
    // SAFETY: C's promise, as the header states it.
    unsafe { tell(device, key, out_text, capacity, |d, key| d.options().value(key)) }
}

/// Where the value of the option `key` comes from, written with its NUL into `out_text` of `capacity` bytes
/// (MILLPOND_OPTION_BYTES always suffice): "built in"; the name of a variable of the environment; "program", for a call;
/// "device", if the device can do nothing else, whatever was asked for.
///
/// Errors: as of `millpond_device_get_option`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_get_option_source(
    device: *const millpond_device,
    key: *const c_char,
    out_text: *mut c_char,
    capacity: usize,
) -> C_Status {
    // SAFETY: as above.
    unsafe { tell(device, key, out_text, capacity, |d, key| d.options().source(key)) }
}

/// Writes what `of` says of an option.
///
/// # Safety
/// As of the exports above.
unsafe fn tell<T: AsRef<str>>(
    device: *const millpond_device,
    key: *const c_char,
    out_text: *mut c_char,
    capacity: usize,
    of: impl FnOnce(&DeviceState, &str) -> Result<T>,
) -> C_Status {
    run_roomy(|| {
        let out = buffer(out_text)?;
        // SAFETY: the caller's promise.
        let key = unsafe { text(key, "key") }?;
        let value = of(handles::device(device)?, key)?;
        // SAFETY: as above.
        unsafe { write_text(out, capacity, value.as_ref()) }
    })
}

/// All options of the device as one text that `millpond_set_default_options` takes, written with its NUL into
/// `out_text` of `capacity` bytes; MILLPOND_OPTIONS_BYTES always suffice.
///
/// Errors: INVALID_ARGUMENT for NULL and when the text does not fit; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_get_options(
    device: *const millpond_device,
    out_text: *mut c_char,
    capacity: usize,
) -> C_Status {
    run_roomy(|| {
        let out = buffer(out_text)?;
        let all = handles::device(device)?.options().text()?;
        // SAFETY: C's promise, as the header states it.
        unsafe { write_text(out, capacity, &all) }
    })
}
