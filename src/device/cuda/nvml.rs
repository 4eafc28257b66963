//! Counts the machine's GPUs through NVIDIA's management library (NVML): unlike the CUDA driver, it may be used before
//! a fork. Loaded when first asked, never unloaded; absent if there is no driver.

use libloading::Library;
use std::ffi::{CStr, OsStr, c_char, c_uint, c_void};

/// A status; 0 is success.
type Status = c_uint;
type Plain = unsafe extern "C" fn() -> Status;
type GetCount = unsafe extern "C" fn(*mut c_uint) -> Status;
type GetHandle = unsafe extern "C" fn(c_uint, *mut *mut c_void) -> Status;
type GetUuid = unsafe extern "C" fn(*mut c_void, *mut c_char, c_uint) -> Status;

/// [B] more than any UUID has as text.
const UUID_BYTES: usize = 96;

/// A function by its name.
fn symbol<T: Copy>(library: &Library, name: &[u8]) -> Option<T> {
    // SAFETY: the callers below give each name the signature that its documentation has.
    unsafe { library.get::<T>(name) }.ok().map(|s| *s)
}

/// The UUID of each GPU, as `GPU-…` (empty if unknown). `None` if the library cannot tell.
pub(super) fn gpus(library: &OsStr) -> Option<Vec<String>> {
    // SAFETY: the management library's initialisers may run at any time; who names another vouches for it.
    let library = unsafe { Library::new(library) }.ok()?;
    let init: Plain = symbol(&library, b"nvmlInit_v2\0")?;
    let shutdown: Plain = symbol(&library, b"nvmlShutdown\0")?;
    let count: GetCount = symbol(&library, b"nvmlDeviceGetCount_v2\0")?;
    let handle: GetHandle = symbol(&library, b"nvmlDeviceGetHandleByIndex_v2\0")?;
    let uuid: GetUuid = symbol(&library, b"nvmlDeviceGetUUID\0")?;
    std::mem::forget(library);

    // SAFETY: it takes nothing, and counts its callers.
    if unsafe { init() } != 0 {
        return None;
    }
    let mut n = 0;
    // SAFETY: initialised above; the out pointer is a live local.
    let counted = unsafe { count(&mut n) } == 0;
    let one = |i| {
        let mut gpu = std::ptr::null_mut();
        // SAFETY: as above.
        if unsafe { handle(i, &mut gpu) } != 0 {
            return String::new();
        }
        let mut text = [0 as c_char; UUID_BYTES];
        // SAFETY: a handle of this session, and a buffer of the size that is given.
        if unsafe { uuid(gpu, text.as_mut_ptr(), UUID_BYTES as c_uint) } != 0 {
            return String::new();
        }
        text[UUID_BYTES - 1] = 0;
        // SAFETY: the buffer ends with a NUL at the latest in its last byte.
        unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned()
    };
    let gpus = counted.then(|| (0..n).map(one).collect());
    // SAFETY: it pairs with `init`.
    unsafe { shutdown() };
    gpus
}
