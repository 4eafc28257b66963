//! An open device, and the calls on it by noun: each checks its arguments before the device sees them.

pub(super) mod by_address;
mod copies;
pub(super) mod events;
pub(super) mod group;
pub(super) mod host_memory;
mod host_statistics;
mod host_waits;
pub(super) mod options;
pub(super) mod peers;
pub(super) mod pools;
pub(super) mod sharing;
pub(super) mod state;
pub(super) mod streams;
pub(super) mod table;
pub(super) mod tags;
pub(super) mod unified;
pub(crate) mod zeroed;
