//! Device types: listing, registering and loading them.

use crate::base::error::{Code, Error, Result};
use crate::capi::guard::{Out, file_name, run_end, run_first, run_roomy, text, write_text};
use crate::fail;
use crate::paddle;
use crate::paddle::abi::{C_Status, CustomRuntimeParams};
use crate::runtime;
use std::ffi::c_char;
use std::ptr::NonNull;

/// The bytes that are enough for the name of every device type, including its NUL.
pub const MILLPOND_DEVICE_TYPE_NAME_BYTES: usize = 32;

/// How many device types there are: "cpu", "host", "cuda" (with or without devices), and the registered ones.
///
/// Starts the library if needed. Errors: INVALID_ARGUMENT (NULL, or a bad MILLPOND_* variable); NOT_PERMITTED in a stream
/// callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_type_get_count(out_count: *mut usize) -> C_Status {
    run_first(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_count, "out_count") }?;
        out.set(runtime::type_names()?.len());
        Ok(())
    })
}

/// Writes the name of the device type at `index`, which must be below the count, with its NUL into `out_name` of
/// `capacity` bytes; MILLPOND_DEVICE_TYPE_NAME_BYTES always suffice.
///
/// Errors: OUT_OF_RANGE for the index; INVALID_ARGUMENT for NULL and if the name does not fit; NOT_PERMITTED in a stream
/// callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_type_get_name(
    index: usize,
    out_name: *mut c_char,
    capacity: usize,
) -> C_Status {
    run_first(|| {
        let Some(out) = NonNull::new(out_name) else {
            return Err(Error::new(Code::InvalidArgument, "out_name is NULL"));
        };
        let names = runtime::type_names()?;
        let Some(name) = names.get(index) else {
            fail!(Code::OutOfRange, "there are {} device types; none has index {index}", names.len());
        };
        // SAFETY: C's promise, as the header states it.
        unsafe { write_text(out, capacity, name) }
    })
}

/// Why the device type has no devices, as a text for a person: for instance that there is no CUDA driver, or one that
/// is too old. Empty if it has devices. Written with its NUL into `out_text` of `capacity` bytes; what does not fit is
/// cut off. Does not start CUDA.
///
/// Errors: UNKNOWN_DEVICE if there is no such type; INVALID_ARGUMENT for NULL and a `capacity` of 0; NOT_PERMITTED in a
/// stream callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_type_get_reason(
    type_name: *const c_char,
    out_text: *mut c_char,
    capacity: usize,
) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let name = unsafe { text(type_name, "type_name") }?;
        let why = || Ok(runtime::absence(name)?.unwrap_or_default());
        // SAFETY: as above.
        unsafe { write_as_fits(out_text, capacity, why) }
    })
}

/// Writes a text for a person, as much of it as fits.
///
/// # Safety
/// `out_text`, if it is not NULL, is writable for `capacity` bytes.
pub(super) unsafe fn write_as_fits(
    out_text: *mut c_char,
    capacity: usize,
    text: impl FnOnce() -> Result<String>,
) -> Result<()> {
    let Some(out) = NonNull::new(out_text).filter(|_| capacity > 0) else {
        return Err(Error::new(Code::InvalidArgument, "out_text is NULL, or has no room"));
    };
    let text = text()?;
    let fits = (0..=text.len().min(capacity - 1)).rev().find(|&n| text.is_char_boundary(n)).unwrap_or(0);
    // SAFETY: the caller's promise.
    unsafe { write_text(out, capacity, &text[..fits]) }
}

/// The buffer for the name of a new type, if wanted. Checked before anything is registered.
fn name_buffer(out_name: *mut c_char, capacity: usize) -> Result<Option<NonNull<c_char>>> {
    let out = NonNull::new(out_name);
    if out.is_some() && capacity < MILLPOND_DEVICE_TYPE_NAME_BYTES {
        fail!(
            Code::InvalidArgument,
            "out_name needs {MILLPOND_DEVICE_TYPE_NAME_BYTES} bytes, not {capacity}"
        );
    }
    Ok(out)
}

fn give_name(out: Option<NonNull<c_char>>, capacity: usize, name: &str) -> Result<()> {
    // SAFETY: C's promise about `out_name` and `capacity`, as the header states it.
    out.map_or(Ok(()), |o| unsafe { write_text(o, capacity, name) })
}

/// Registers a custom-runtime plugin that is linked into the program: `init_plugin` is called once, and its device type
/// appears beside "host", with pools over its memory.
///
/// `out_name` receives the type's name and may be NULL; otherwise `capacity` must be at least
/// MILLPOND_DEVICE_TYPE_NAME_BYTES.
/// Errors: PLUGIN_REFUSED, with a message that says what is wrong, for a version, a size or a missing function; BUSY if
/// the name is taken; INVALID_ARGUMENT for NULL; otherwise what the plugin's `initialize` returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_type_register(
    init_plugin: Option<unsafe extern "C-unwind" fn(params: *mut CustomRuntimeParams)>,
    out_name: *mut c_char,
    capacity: usize,
) -> C_Status {
    run_first(|| {
        let out = name_buffer(out_name, capacity)?;
        let Some(init) = init_plugin else {
            return Err(Error::new(Code::InvalidArgument, "init_plugin is NULL"));
        };
        // SAFETY: the caller vouches for the plugin that it linked.
        let name = unsafe { paddle::register_init(init) }?;
        give_name(out, capacity, &name)
    })
}

/// Loads a custom-runtime plugin from the shared object at `path` and registers it as
/// `millpond_device_type_register` does. A refused object is unloaded again; an accepted one
/// stays loaded until its type ends (`millpond_device_type_unregister`, `millpond_finalize`).
///
/// Loading runs the object's code: the caller vouches for the file. A path without a slash is searched for as the
/// dynamic loader does.
/// Errors: SYSTEM, with the loader's message, if the object cannot be loaded; PLUGIN_REFUSED if it has no InitPlugin;
/// and those of `millpond_device_type_register`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_type_load(
    path: *const c_char,
    out_name: *mut c_char,
    capacity: usize,
) -> C_Status {
    run_first(|| {
        let out = name_buffer(out_name, capacity)?;
        // SAFETY: C's promise, as the header states it.
        let path = unsafe { file_name(path, "path") }?;
        // SAFETY: the caller vouches for the object that it names.
        let name = unsafe { paddle::load_plugin(path) }?;
        give_name(out, capacity, &name)
    })
}

/// Ends a registered device type and removes it. Old handles of its devices get NOT_INITIALIZED.
///
/// Waits for calls that other threads are making, including those that are in a callback of a plugin; later calls get
/// NOT_INITIALIZED. Nobody may allocate on this type meanwhile: a block that is allocated just before the end ends with
/// the device. If this returns BUSY, it has disturbed no call.
///
/// Errors: BUSY, and the type stays, while it has live blocks, host memory or unified memory; NOT_PERMITTED for a
/// built-in type and in a stream callback; UNKNOWN_DEVICE; INVALID_ARGUMENT for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_type_unregister(type_name: *const c_char) -> C_Status {
    run_end(|| {
        // SAFETY: C's promise, as the header states it.
        let name = unsafe { text(type_name, "type_name") }?;
        runtime::unregister_type(name)
    })
}
