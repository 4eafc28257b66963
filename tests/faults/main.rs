//! Every device call fails once. Each public operation that can call a device runs on each kind of device, in a world
//! that has been used before: blocks that live, freed blocks that wait, a stream that has ended with work queued. First
//! nothing fails, and the device calls of the operation are counted. Then the operation runs again and again in worlds
//! made anew, and the first, the second, ... the nth call fails: for lack of memory, once in passing, or until it is
//! healed.
//!
//! Whatever fails, the operation succeeds or returns an error with a message, the model (`world.rs`) holds, and
//! everything comes back once the device works again.
//!
//! The operations are a table (`operations.rs`), and so are the kinds of devices (`kinds.rs`): a new one is one line,
//! and the printed counts follow. Known failures are in `known.rs`, with the reason.
#![cfg(all(feature = "capi", target_os = "linux"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::undocumented_unsafe_blocks,
    unreachable_pub,
    reason = "a test fails by panicking, its helpers too; every block is one call of an interface under test"
)]

#[path = "../apart/mod.rs"]
mod apart;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../contract/api.rs"]
mod api;
#[path = "../fakecuda/mod.rs"]
mod cuda;
#[path = "../seam/mod.rs"]
mod seam;
#[allow(dead_code, unused_imports, reason = "other tests use the rest")]
#[path = "../clients/slow.rs"]
mod slow;

mod calls;
mod each;
mod fault;
mod faulty;
mod heap;
mod kinds;
mod known;
mod operations;
mod places;
mod questions;
mod without_heap;
mod world;

/// What `slow.rs` wants of the program that it is part of.
mod client {
    pub use crate::api::{Failed as Refused, outcome as said};
}
