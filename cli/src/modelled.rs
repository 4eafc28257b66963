//! Modelled driver time: what the calls of a replay would have cost on a card, as the fake CUDA driver of the tests adds it
//! up (`fakecuda/README.md`). A real driver has no such function, so nothing is ever said of one.

use std::ffi::{OsString, c_char};

type Modelled = unsafe extern "C" fn(*const c_char) -> u64;

/// [ns] since the fake driver was loaded; `None` if no fake driver is.
#[cfg(target_os = "linux")]
pub(crate) fn nanoseconds() -> Option<u64> {
    use libloading::os::unix::{Library, RTLD_LAZY};
    /// Only what is loaded already.
    const RTLD_NOLOAD: i32 = 4;
    let named = std::env::var_os("MILLPOND_CUDA_LIBRARY").filter(|name| !name.is_empty());
    let names =
        named.map_or_else(|| ["libcuda.so.1", "libcuda.so"].map(OsString::from).to_vec(), |name| vec![name]);
    // SAFETY: nothing is loaded, so no initialiser runs.
    let open = |name: &OsString| unsafe { Library::open(Some(name), RTLD_LAZY | RTLD_NOLOAD) }.ok();
    let driver = names.iter().find_map(open)?;
    // SAFETY: the fake's header declares the name with this signature, and no other library has it.
    let ask = unsafe { driver.get::<Modelled>(b"fakecuda_modelled_ns\0") }.ok()?;
    // SAFETY: NULL stands for all functions, by the header.
    Some(unsafe { ask(std::ptr::null()) })
}

/// The fake driver is built for Linux only.
#[cfg(not(target_os = "linux"))]
pub(crate) fn nanoseconds() -> Option<u64> {
    None
}
