//! What every room may use and what uses no room itself: errors, locks, atomics, lazily committed tables.

pub mod biased;
pub mod changed;
pub(crate) mod checkers;
pub(crate) mod clock;
pub(crate) mod descriptor;
pub mod error;
pub(crate) mod foreign;
pub(crate) mod fork;
pub mod histogram;
pub mod lazy;
pub(crate) mod loaded;
pub mod masked;
pub(crate) mod numa;
pub(crate) mod nvtx;
pub(crate) mod published;
#[cfg(any(feature = "capi", feature = "plugin"))]
pub(crate) mod quiet;
pub mod remote;
pub mod ring;
pub(crate) mod signals;
pub mod slots;
pub(crate) mod sort;
pub mod sync;
