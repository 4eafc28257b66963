//! The device type `cuda` over the fake driver. A process has one driver and one library: tests take turns
//! (`fakecuda::Fake`), and each restarts both. Long tests run in processes of their own, in parallel.
#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::undocumented_unsafe_blocks,
    unreachable_pub,
    reason = "a test fails by panicking, its helpers too; a child answers on its standard output; every block is one \
              call of the library, of the fake or of fork"
)]

#[path = "../apart/mod.rs"]
mod apart;
#[path = "../compilers/mod.rs"]
mod compilers;
#[path = "../fakecuda/mod.rs"]
mod cuda;
#[path = "../random/mod.rs"]
mod random;
#[cfg(feature = "capi")]
#[path = "../sharing/mod.rs"]
mod sharing;

mod aliases;
mod backends;
mod contiguous;
mod device;
mod driver;
#[cfg(feature = "capi")]
mod fabric;
mod faults;
mod foreign;
#[cfg(feature = "capi")]
mod group;
mod headroom;
mod kinds;
mod large;
mod modelled;
mod nvtx;
#[cfg(feature = "capi")]
mod on_cuda;
mod peers;
mod pools;
mod probe;
mod refusals;
#[cfg(feature = "capi")]
mod share;
mod times;
mod trim;
mod unified;
