//! Checks of our own files: the C header matches the sources, and the rooms of `src` only look down. Needs a C and a
//! C++ compiler.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

#[cfg(feature = "capi")]
#[path = "../compilers/mod.rs"]
mod compilers;

#[cfg(feature = "capi")]
mod header;
mod rooms;
