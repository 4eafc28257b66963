//! What an export creates: the tensor for the consumer, and behind it what its deleter needs.
//!
//! The deleter may run at any time: on any thread, after the device or its type has ended, in a forked child, or after
//! the program has closed the shared object that contains this library. So the tensor holds the record of the device,
//! which is never freed, and the first export keeps the code loaded.

use crate::base::loaded;
use crate::capi::dlpack_abi::{DlTensor, Legacy, MAJOR, MINOR, Versioned};
use crate::capi::guard::guarded;
use crate::capi::types::millpond_dlpack_release;
use crate::ffi::exceptions;
use crate::runtime::{self, DeviceState};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

/// What a tensor owns: the memory, and who gives it back.
pub(crate) struct Share {
    pub(crate) device: Arc<DeviceState>,
    pub(crate) addr: u64,
    pub(crate) release: millpond_dlpack_release,
    pub(crate) user_data: *mut c_void,
    /// The shape, followed by the strides.
    pub(crate) extents: Box<[i64]>,
}

impl Share {
    /// The deleter returns nothing to its caller. So `release` is called wherever the deleter is, and a block that
    /// cannot be freed there is freed by a later call.
    fn end(self) {
        if runtime::check_fork().is_err() {
            return; // the memory is the parent's
        }
        let _ = guarded(|| {
            match self.release {
                Some(release) => {
                    // SAFETY: the exporter gave a function for one call with this pointer, from any thread.
                    let _ = exceptions::caught(|| unsafe { release(self.user_data) });
                }
                None => self.device.memory().free_for_good(self.addr),
            }
            Ok(())
        });
    }
}

/// A managed tensor followed by its share: the tensor comes first, so that one address denotes both.
#[repr(C)]
struct Owned<T> {
    managed: T,
    share: Share,
}

unsafe extern "C-unwind" fn delete_versioned(tensor: *mut Versioned) {
    if !tensor.is_null() {
        // SAFETY: `export_versioned` made it of a box; the consumer calls this once.
        unsafe { Box::from_raw(tensor.cast::<Owned<Versioned>>()) }.share.end();
    }
}

unsafe extern "C-unwind" fn delete_legacy(tensor: *mut Legacy) {
    if !tensor.is_null() {
        // SAFETY: `export_legacy` made it of a box; the consumer calls this once.
        unsafe { Box::from_raw(tensor.cast::<Owned<Legacy>>()) }.share.end();
    }
}

/// Points the tensor at the share's extents, which stay where they are when the box is moved.
fn at_extents(tensor: DlTensor, share: &mut Share) -> DlTensor {
    let dimensions = share.extents.len() / 2;
    let (shape, strides) = share.extents.split_at_mut(dimensions);
    DlTensor { shape: shape.as_mut_ptr(), strides: strides.as_mut_ptr(), ..tensor }
}

/// The tensor for a consumer; its deleter ends the share.
pub(crate) fn export_versioned(tensor: DlTensor, flags: u64, mut share: Share) -> *mut Versioned {
    loaded::keep(); // a consumer may call the deleter long after its producer was closed
    let tensor = at_extents(tensor, &mut share);
    let deleter: Option<unsafe extern "C-unwind" fn(*mut Versioned)> = Some(delete_versioned);
    let managed = Versioned { major: MAJOR, minor: MINOR, context: null_mut(), deleter, flags, tensor };
    let owned = Box::into_raw(Box::new(Owned { managed, share }));
    let out = owned.cast::<Versioned>();
    // SAFETY: the box's own first part. PaddlePaddle (2.6 to 3.3) calls no deleter without a context.
    unsafe { (*out).context = owned.cast() };
    out
}

/// The same in the old layout.
pub(crate) fn export_legacy(tensor: DlTensor, mut share: Share) -> *mut Legacy {
    loaded::keep(); // a consumer may call the deleter long after its producer was closed
    let tensor = at_extents(tensor, &mut share);
    let deleter: Option<unsafe extern "C-unwind" fn(*mut Legacy)> = Some(delete_legacy);
    let managed = Legacy { tensor, context: null_mut(), deleter };
    let owned = Box::into_raw(Box::new(Owned { managed, share }));
    let out = owned.cast::<Legacy>();
    // SAFETY: as above.
    unsafe { (*out).context = owned.cast() };
    out
}
