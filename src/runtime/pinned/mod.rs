//! The cache of a device's pinned host memory, and what is live of its unified memory: data behind locks, which makes no
//! call on a device. `device/host_memory.rs` and `device/unified.rs` have the calls.

pub(super) mod cache;
pub(super) mod left;
pub(super) mod numbers;
mod ranges;
pub(super) mod sizes;
pub(super) mod state;
mod statistics;
pub(super) mod tags;
