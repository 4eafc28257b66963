//! The shared object that contains this code. A program may unload it (`dlclose`) at any moment, also while a thread of the
//! library starts, or while somebody holds one of its functions to call it later. So before either happens, the object is
//! marked to stay for the rest of the process. If this code is linked into the program itself, there is nothing to mark.

use std::ffi::c_void;
use std::ptr::{from_mut, null, null_mut};
use std::sync::Once;

/// Keeps this code loaded from now on. Cheap after the first call. Must be called before a thread is started, and
/// before a function of ours is handed out that may be called after the current call has returned.
pub(crate) fn keep() {
    static ONCE: Once = Once::new();
    ONCE.call_once(mark);
}

fn mark() {
    let mut about =
        libc::Dl_info { dli_fname: null(), dli_fbase: null_mut(), dli_sname: null(), dli_saddr: null_mut() };
    let own = mark as *const c_void;
    // SAFETY: `about` is ours; the address is only looked up.
    let known = unsafe { libc::dladdr(own, from_mut(&mut about)) } != 0;
    if !known || about.dli_fname.is_null() {
        return;
    }
    let how = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
    // SAFETY: the name comes from the loader and is that of a loaded object; with NOLOAD no new code runs.
    let handle = unsafe { libc::dlopen(about.dli_fname, how) };
    if !handle.is_null() {
        // SAFETY: the handle from above; the NODELETE mark outlives it.
        let _ = unsafe { libc::dlclose(handle) };
    }
}
