//! The device types of the process, and the devices that were opened from them.

mod builtin;
mod gate;
pub(crate) mod registry;

pub use builtin::host_options;
