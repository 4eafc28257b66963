//! A CUDA driver library for tests: `libcuda.so` without a GPU.
//!
//! It is written from NVIDIA's public documentation of the driver API, and from nothing else. "Device memory" is host
//! memory behind address ranges that the driver hands out; streams run on threads; the mapping calls alias as the
//! real ones do. What the documentation forbids is refused here, and what it leaves open is answered in the way that
//! is harder for the caller. README.md says what a test on it proves and what not.
//!
//! One lock guards everything (`sync.rs`, raw pthread, so that thread sanitizers see it). Every export goes through
//! one gate (`gate.rs`) that counts, logs and injects faults, and checks that the driver may be called at all.

// A package that is declared and not used is a failure of `cargo clippy`.
#![cfg_attr(not(test), warn(unused_crate_dependencies))]

mod alias;
mod capture;
mod card;
mod clock;
mod code;
mod config;
mod context;
mod control;
mod copy;
mod device;
mod driver;
mod event;
mod exec;
mod gate;
mod graph;
mod host;
mod managed;
mod mapping;
mod memory;
mod names;
mod pace;
mod physical;
mod pointer;
mod pool;
mod set;
mod share;
mod space;
mod stream;
mod sync;
mod world;
