//! The C API, and the parts of the Rust API of `runtime` that go beyond it, as a user sees them: on the host device,
//! and on a test device that behaves as a test wants.
//!
//! A process has one copy of the library. Tests restart it and take turns (`support::alone`); tests of a process as a
//! whole, or that count what a process does, run in processes of their own.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::undocumented_unsafe_blocks,
    unreachable_pub,
    reason = "a test fails by panicking, its helpers too; every block is one call of the interface under test, \
              or a copy of memory that the test owns"
)]

#[cfg(unix)]
#[path = "../apart/mod.rs"]
mod apart;
#[path = "../random/mod.rs"]
mod random;
#[cfg(all(feature = "capi", target_os = "linux"))]
#[path = "../sharing/mod.rs"]
mod sharing;
#[macro_use]
#[path = "../seam/reaches_itself.rs"]
mod reaches_itself;
#[path = "../support/mod.rs"]
mod support;

#[cfg(feature = "capi")]
mod aligned;
#[cfg(feature = "capi")]
mod bad_input;
#[cfg(feature = "capi")]
mod dlpack;
#[cfg(all(feature = "capi", unix))]
mod end_room;
#[cfg(all(feature = "capi", unix))]
mod environment;
#[cfg(all(feature = "capi", unix))]
mod hammer;
#[cfg(feature = "capi")]
mod hook_ends;
#[cfg(feature = "capi")]
mod hooks;
#[cfg(all(feature = "capi", unix))]
mod host_memory;
#[cfg(feature = "capi")]
mod life;
#[cfg(feature = "capi")]
mod messages;
#[cfg(feature = "capi")]
mod oom_callbacks;
#[cfg(all(feature = "capi", unix))]
mod oom_host;
#[cfg(all(feature = "capi", unix))]
mod oom_host_lists;
#[cfg(all(feature = "capi", unix))]
mod options;
mod pinned;
#[cfg(feature = "capi")]
mod pools;
#[cfg(all(feature = "capi", unix))]
mod process;
#[cfg(feature = "capi")]
mod requests;
#[cfg(feature = "capi")]
mod resize;
mod runtime;
#[cfg(all(feature = "capi", target_os = "linux"))]
mod segments;
#[cfg(all(feature = "capi", target_os = "linux"))]
mod share;
#[cfg(feature = "capi")]
mod times;
#[cfg(feature = "capi")]
mod trim;
#[cfg(all(feature = "capi", unix))]
mod warm;
