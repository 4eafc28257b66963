//! The `millpond_*` C exports: check, convert, call, translate; no policy of their own.
//!
//! The doc comments of the exports are written for C readers: cbindgen generates `include/millpond/millpond.h` from
//! them (`tests/sources/header.rs`). One file per noun; every export runs inside `guard.rs`, and only `handles.rs`
//! makes handles.

#![expect(
    clippy::missing_safety_doc,
    reason = "the head of the C header states the rules for all pointers once"
)]
#![expect(non_camel_case_types, reason = "the names are those of the C API")]

mod batch;
mod capture;
mod checkpoint;
mod copy;
mod device;
mod device_type;
mod dlpack;
mod dlpack_abi;
mod dlpack_owner;
mod end_room;
mod group;
mod guard;
mod handles;
mod history;
mod hooks;
mod last_error;
mod latency;
mod library;
mod memory;
mod oom;
mod oom_report;
mod options;
mod pool;
mod scope;
mod share;
mod sleep;
mod snapshot;
mod statistics;
mod statistics_numbers;
mod stream;
mod tags;
mod types;
mod walk;

pub use batch::*;
pub use capture::*;
pub use checkpoint::*;
pub use copy::*;
pub use device::*;
pub use device_type::*;
pub use dlpack::*;
pub use group::*;
pub use history::*;
pub use hooks::*;
pub use last_error::{
    millpond_error_name, millpond_last_error_code, millpond_last_error_message, millpond_last_error_set,
};
pub use latency::*;
pub use library::*;
pub use memory::*;
pub use oom::*;
pub use options::*;
pub use pool::*;
pub use scope::*;
pub use share::*;
pub use sleep::*;
pub use snapshot::*;
pub use statistics::*;
pub use stream::*;
pub use tags::*;
pub use types::*;
pub use walk::*;

pub use crate::paddle::abi::{C_Event, C_Status, C_Stream, CustomRuntimeParams, InitPlugin};
