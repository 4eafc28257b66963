//! An open device, and the calls on it by noun: each checks its arguments before the device sees them.

pub(super) mod by_address;
mod copies;
mod host_memory;
mod host_statistics;
mod host_waits;
mod peers;
mod sharing;
pub(super) mod state;
mod streams;
pub(super) mod table;
mod unified;
mod zeroed;
