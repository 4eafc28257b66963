//! Millpond: a device-memory runtime that deep-learning frameworks link.
//!
//! Rust programs start at [`runtime::device()`]; C and C++ programs at `include/millpond/millpond.h`,
//! which is written from [`capi`].
//!
//! The rooms, top to bottom; each one only looks down:
//!
//! ```text
//! plugin.rs    the exported InitPlugin            -> paddle
//! capi/        the millpond_* C exports           -> paddle, runtime
//! paddle/      the custom-runtime ABI, both ways  -> runtime, device
//! runtime/     devices, streams, copies, lifetime -> core, device
//! core/        the offset-only allocator          -> base
//! device/      what a device is; host and cuda    -> base
//! base/        errors, locks, cells, forks: nothing of ours
//! ```

// A package that is declared and not used is a failure of `cargo clippy`.
#![cfg_attr(not(any(test, loom)), warn(unused_crate_dependencies))]

pub mod base;
pub mod core;
pub mod device;
pub mod paddle;
pub mod runtime;

#[cfg(feature = "capi")]
pub mod capi;
#[cfg(feature = "plugin")]
mod plugin;

pub use base::error::{Code, Error, Result};
pub use core::{BlockInfo, Counter, PoolId, Stats};
pub use device::cuda::CudaOptions;
pub use device::host::HostOptions;
pub use runtime::{DeviceInfo, DeviceState, Memory};

/// The Rust program of docs/install.md, run with the other examples of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../docs/install.md")]
struct Readme;
