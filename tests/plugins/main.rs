//! Plugins from both sides: device types of plugins, in Rust (`fake`) and from shared objects; Millpond as a plugin of
//! a host; and the header that both are written with.
//!
//! Each test's device types have names of their own, so tests run in parallel; tests that end the library or depend on
//! the environment run in processes of their own.
#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::undocumented_unsafe_blocks,
    unreachable_pub,
    reason = "a test fails by panicking, its helpers too; every block is a call of the table under test, or of fork"
)]

#[path = "../apart/mod.rs"]
mod apart;
#[path = "../compilers/mod.rs"]
mod compilers;
#[path = "../fake/mod.rs"]
mod fake;

mod cache;
mod fallbacks;
mod fork;
mod header;
mod load;
mod refused;
mod table;
mod throws;
