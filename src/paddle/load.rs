//! Shared objects that hold a plugin: open, find `InitPlugin`, close.

use super::abi::InitPlugin;
use crate::base::error::{Code, Error, Result};
use crate::fail;
use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

/// A loaded shared object; closed when dropped.
pub(super) struct Library {
    handle: NonNull<c_void>,
    path: String,
}

// SAFETY: a dlopen handle may be used from any thread; the loader locks inside.
unsafe impl Send for Library {}
// SAFETY: as above; `&Library` only allows look-ups.
unsafe impl Sync for Library {}

/// The loader's message for the calling thread's last failure.
fn loader_error() -> String {
    // SAFETY: dlerror has no preconditions.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: dlerror returned a C string that lives until this thread's next loader call.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

impl Library {
    /// Loads the object; binds all its symbols now, and makes none available to other objects.
    pub(super) fn open(path: &Path) -> Result<Library> {
        let shown = path.display().to_string();
        if shown.is_empty() {
            // An empty name would mean the program itself.
            return Err(Error::new(Code::InvalidArgument, "the path of the plugin is empty"));
        }
        let Ok(c_path) = CString::new(path.as_os_str().as_bytes()) else {
            fail!(Code::InvalidArgument, "the path {shown:?} has a zero byte");
        };
        // SAFETY: `c_path` is a C string that lives for the call; the caller of `load_plugin` vouches
        // for the object's constructors.
        let handle = unsafe { libc::dlopen(c_path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        match NonNull::new(handle) {
            Some(handle) => Ok(Library { handle, path: shown }),
            None => fail!(Code::System, "cannot load the plugin {shown}: {}", loader_error()),
        }
    }

    /// The object's `InitPlugin`; valid as long as `self` lives.
    pub(super) fn init_plugin(&self) -> Result<InitPlugin> {
        // SAFETY: the handle is open, the name is a C string.
        let symbol = unsafe { libc::dlsym(self.handle.as_ptr(), c"InitPlugin".as_ptr()) };
        if symbol.is_null() {
            fail!(Code::PluginRefused, "{} is no plugin: {}", self.path, loader_error());
        }
        // SAFETY: by the plugin convention a symbol of this name is a function of this type; the
        // caller of `load_plugin` vouches that the object follows it.
        Ok(unsafe { std::mem::transmute::<*mut c_void, InitPlugin>(symbol) })
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: opened by `open`, closed once, here. A failure leaves the object loaded: harmless.
        let _ = unsafe { libc::dlclose(self.handle.as_ptr()) };
    }
}
