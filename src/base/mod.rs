//! What every room may use and that uses no room: sizes, errors, locks, atomics.

pub mod biased;
pub mod changed;
pub(crate) mod descriptor;
pub mod error;
pub(crate) mod foreign;
pub(crate) mod fork;
pub mod lazy;
pub(crate) mod loaded;
pub(crate) mod numa;
#[cfg(any(feature = "capi", feature = "plugin"))]
pub(crate) mod quiet;
pub mod remote;
pub mod slots;
pub mod sync;
