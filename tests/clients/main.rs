//! What other people's programs do with the library and may rely on: streams of their own, on several devices and
//! threads; graphs, pools that sleep, layouts that are restored; pinned memory; plugins that are slow, lack callbacks,
//! call back, or answer badly.
//!
//! Each test is written from the header and the documents, over the C API alone, and runs in a process of its own
//! (`tests/apart`): a call that never returns, or a crash, is a failure of one test. What a test asserts is the
//! contract. If a call may either succeed or be refused, the test accepts both, and nothing between.
#![cfg(all(feature = "capi", unix))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::undocumented_unsafe_blocks,
    unreachable_pub,
    reason = "a test fails by panicking, its helpers too; every unsafe block without a word is a call of a C function under test; \
              the modules are one program"
)]

#[path = "../apart/mod.rs"]
mod apart;
#[path = "../compilers/mod.rs"]
mod compilers;
#[path = "../fakecuda/mod.rs"]
mod cuda;

mod client;
mod recording;
mod slow;

mod backends;
mod dlpack;
mod failed_streams;
mod graphs;
mod other_devices;
mod paddle_calls;
mod per_thread;
mod pinned;
mod plugin_addresses;
mod plugin_calls_back;
mod plugin_ends;
mod plugin_handles;
mod plugin_lacks;
mod plugin_memory;
mod plugin_sizes;
mod plugin_streams;
mod restore;
mod sleep;
