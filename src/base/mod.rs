//! What every room may use and that uses no room: sizes, errors, locks, atomics.

pub mod biased;
pub mod error;
pub mod lazy;
pub mod slots;
pub mod sync;
