//! Checks of our own files: the C header and the shared library's symbols match the sources, the rooms of `src` only look
//! down, nobody can replace a part of a pond's ground, room is asked for in optimised builds, the tables of locks are complete, the
//! lists of mutants fit the sources, and the links of the documentation lead
//! somewhere. Needs a C and a C++ compiler.
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
mod abi;
mod arrows;
mod ground;
mod header;
mod links;
mod locks;
mod mutants;
mod names;
mod packages;
#[cfg(feature = "capi")]
mod room;
mod rooms;
#[cfg(feature = "capi")]
mod symbols;
