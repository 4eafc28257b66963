//! Millpond: a device-memory runtime that deep-learning frameworks link.
//!
//! Rust programs start at [`runtime::device()`]; C and C++ programs at `include/millpond/millpond.h`,
//! which is written from [`capi`].
//!
//! The rooms, top to bottom; each one only looks down:
//!
//! ```text
//! plugin.rs    the exported InitPlugin              -> paddle, ffi
//! capi/        the millpond_* C exports             -> paddle, runtime, ffi
//! paddle/      the custom-runtime ABI, both ways    -> runtime, device, ffi
//! ffi/         panics and exceptions at the border
//! runtime/     devices, streams, copies, lifetime   -> core, device
//! core/        the offset-only allocator
//! device/      what a device is; host and cuda
//! locks.rs     the order of the library's locks
//! base/        what any library could use: the error type, locks, atomics, tables, forks
//! ```
//!
//! Every room may name `locks` and `base`.

// A package that is declared and not used is a failure of `cargo clippy`.
#![cfg_attr(not(any(test, loom)), warn(unused_crate_dependencies))]
// The models of scripts/loom.sh use `base` and `core` only, and compiling the rest would take nearly as long as they do.
#![cfg_attr(loom, allow(dead_code, unused_imports))]

pub mod base;
pub mod core;
#[cfg(not(loom))]
pub mod device;
#[cfg(not(loom))]
mod ffi;
pub mod locks;
#[cfg(not(loom))]
pub mod paddle;
#[cfg(not(loom))]
pub mod runtime;

#[cfg(all(feature = "capi", not(loom)))]
pub mod capi;
#[cfg(all(feature = "plugin", not(loom)))]
mod plugin;

pub use base::error::{Code, Error, Result};
pub use core::{BlockInfo, Counter, PoolId, Stats};
#[cfg(not(loom))]
pub use device::cuda::CudaOptions;
#[cfg(not(loom))]
pub use device::host::HostOptions;
#[cfg(not(loom))]
pub use runtime::{DeviceInfo, DeviceState, Memory};

/// The Rust program of docs/install.md, run with the other examples of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../docs/install.md")]
struct Readme;
