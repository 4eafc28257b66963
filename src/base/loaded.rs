//! The shared object that this code is in. A program may close it (`dlclose`) at any moment, without a word to us,
//! while a thread of ours is about to start, or while somebody holds a function of ours to be called later. So before
//! the first of these, the object is marked to stay for the rest of the process. In a program itself there is nothing
//! to keep.

use std::ffi::c_void;
use std::ptr::{from_mut, null, null_mut};
use std::sync::Once;

/// From now on this code stays loaded. Cheap after the first time. To be called before a thread is started, and before
/// a function of ours is handed out that may be called after the call in which it was.
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
    // SAFETY: the loader's own name of a loaded object; with NOLOAD nothing new is run.
    let handle = unsafe { libc::dlopen(about.dli_fname, how) };
    if !handle.is_null() {
        // SAFETY: the handle from above; the mark NODELETE stays.
        let _ = unsafe { libc::dlclose(handle) };
    }
}
