//! The custom-runtime ABI in Rust: `repr(C)` mirrors of the types that frameworks and plugins exchange, with the layout
//! of PaddlePaddle 3.3.1, and what is known of the other releases.
//!
//! Only types and facts; no call is made here. Numbers from foreign code are integers, never Rust enums: a value out of
//! range would be undefined behaviour. Callbacks are `C-unwind`, so that a C++ exception thrown into us has defined
//! behaviour. `include/millpond/custom_runtime.h` has the public contract of each member; `layout.rs` asserts every
//! offset, there and here.

#![allow(non_camel_case_types, reason = "the names are the ABI's")]

mod interface;
mod layout;
mod types;

pub use interface::C_DeviceInterface;
#[doc(hidden)]
pub use layout::FACTS;
pub use layout::{Capabilities, KnownLayout, known_layout};
pub use types::*;

use std::ffi::{c_char, c_void};

/// What the host passes to `InitPlugin`.
#[repr(C)]
pub struct CustomRuntimeParams {
    /// `sizeof` of this struct as the host knows it (bytes).
    pub size: usize,
    /// The table to fill.
    pub interface: *mut C_DeviceInterface,
    /// Written by the plugin; 0.0.0 means that it refuses to serve this host.
    pub version: CustomRuntimeVersion,
    /// Set by the plugin to the name of its device type.
    pub device_type: *mut c_char,
    /// May be set by the plugin to a finer name.
    pub sub_device_type: *mut c_char,
    /// A C++ object of PaddlePaddle's since 3.0, reserved bytes before: never touched.
    pub pir_default_passes: *mut c_void,
    /// Room for later members.
    pub reserved: [c_char; 32],
}

/// The one function that a plugin exports. `None` stands for the null pointer that a host may pass.
pub type InitPlugin = unsafe extern "C-unwind" fn(params: *mut CustomRuntimeParams);
