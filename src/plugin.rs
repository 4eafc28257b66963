//! The one symbol that Millpond exports as a plugin. Built with the feature `plugin` and without
//! `capi`, so that a host which links the library itself keeps its own `millpond_*` functions.

use crate::paddle::{abi::CustomRuntimeParams, init_plugin};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Fills the host's table. Writes nothing beyond the sizes that the host declares, and nothing at all
/// when it cannot serve the host: the version stays 0.0.0 then, which hosts refuse.
///
/// # Safety
///
/// `params` is NULL or follows the contract of `custom_runtime.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn InitPlugin(params: *mut CustomRuntimeParams) {
    crate::ffi::panics::silence();
    // SAFETY: the host's contract, handed on. A panic could only leave the version unset.
    let _ = catch_unwind(AssertUnwindSafe(|| unsafe { init_plugin(params) }));
}
