//! The custom-runtime interface, both ways.

pub mod abi;
