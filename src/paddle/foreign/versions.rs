//! The version numbers of a plugin's device.
//!
//! Until 3.0 `get_compute_capability` had one argument, the pointer for its answer; since 3.1 a device comes first, and
//! the two version queries behind it moved by one slot. A plugin does not say for which it was built, so the first
//! argument points to memory that can be read as a device and written as an answer: what the call changes shows which.

use super::plugin::Plugin;
use crate::device::Versions;
use crate::ffi::exceptions;
use crate::paddle::abi::{C_Device, C_Device_st, C_Status};
use std::ffi::c_int;

/// Read as a device, written as a number.
#[repr(C)]
union Either {
    device: C_Device_st,
    number: usize,
    _room: [u64; 8],
}

/// A value that no plugin returns.
const UNTOUCHED: usize = usize::MAX;

type Query = unsafe extern "C-unwind" fn(C_Device, *mut usize) -> C_Status;

enum Answer {
    /// The 3.1 form, which stored to its second argument.
    Modern(u64),
    /// The old form, which stored to its first.
    Old(u64),
    /// Nothing was stored, or the query failed.
    None,
}

fn ask(query: Query, id: c_int) -> Answer {
    // SAFETY: all zeroes is a valid value of each member.
    let mut first: Either = unsafe { std::mem::zeroed() };
    first.device = C_Device_st { id };
    // SAFETY: written in full just above (zeroes, then the id).
    let before = unsafe { first.number };
    let mut second = UNTOUCHED;
    // SAFETY: the plugin's contract, in either of its two forms: `first` is a device and has room for an answer; an
    // old callback ignores the second argument.
    let status = exceptions::caught(|| unsafe { query((&raw mut first).cast(), &mut second) });
    // SAFETY: initialised before; a plugin may have stored a number there.
    let after = unsafe { first.number };
    if status != Ok(C_Status::SUCCESS) {
        Answer::None
    } else if second != UNTOUCHED {
        Answer::Modern(second as u64)
    } else if after != before {
        Answer::Old(after as u64)
    } else {
        Answer::None
    }
}

fn value(query: Option<Query>, id: c_int) -> u64 {
    match query.map(|q| ask(q, id)) {
        Some(Answer::Modern(v) | Answer::Old(v)) => v,
        _ => 0,
    }
}

/// The three numbers; 0 for each that the plugin does not report. The two versions are queried only if the compute
/// capability has shown which form the plugin has.
pub(super) fn query(plugin: &Plugin, id: c_int) -> Versions {
    let table = &plugin.table;
    match table.get_compute_capability.map(|q| ask(q, id)) {
        Some(Answer::Modern(compute_capability)) => Versions {
            compute_capability,
            runtime: value(table.get_runtime_version, id),
            driver: value(table.get_driver_version, id),
        },
        Some(Answer::Old(compute_capability)) => Versions {
            compute_capability,
            // In the old form these are one slot earlier. The Rust type of the first differs only in its second
            // argument, which is a pointer too.
            runtime: value(
                // SAFETY: both are function pointers with two pointer arguments and the same result.
                table.get_device_properties.map(|f| unsafe {
                    std::mem::transmute::<
                        unsafe extern "C-unwind" fn(C_Device, *mut std::ffi::c_void) -> C_Status,
                        Query,
                    >(f)
                }),
                id,
            ),
            driver: value(table.get_runtime_version, id),
        },
        _ => Versions::default(),
    }
}
