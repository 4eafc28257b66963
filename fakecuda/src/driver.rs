//! The driver itself: initialisation, version, error texts, and functions by name.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use cudarc::driver::sys::{CUdriverProcAddressQueryResult, CUresult};

use crate::code::{self, *};
use crate::gate::{Entry, exports, put, put_optional};
use crate::sync::lock;

/// The exports of all files.
fn tables() -> impl Iterator<Item = &'static Entry> {
    [
        TABLE,
        UNBOUND,
        crate::capture::TABLE,
        crate::context::TABLE,
        crate::copy::TABLE,
        crate::device::TABLE,
        crate::event::TABLE,
        crate::graph::TABLE,
        crate::host::TABLE,
        crate::managed::TABLE,
        crate::mapping::TABLE,
        crate::memory::TABLE,
        crate::pointer::TABLE,
        crate::pool::TABLE,
        crate::set::TABLE,
        crate::share::TABLE,
        crate::stream::TABLE,
    ]
    .into_iter()
    .flatten()
}

/// An export by its full name.
pub(crate) fn entry(name: &str) -> Option<&'static Entry> {
    tables().find(|entry| entry.name == name)
}

/// The name without `_v2` and the like.
fn base(name: &str) -> (&str, u32) {
    match name.rsplit_once("_v") {
        Some((base, digits)) => digits.parse().map_or((name, 1), |form| (base, form)),
        None => (name, 1),
    }
}

/// The newest form of a function that a program made for `version` knows.
fn by_base_name(name: &str, version: i32, world: &crate::world::World) -> Result<*const (), u32> {
    let mut best: Option<(u32, &Entry)> = None;
    let mut too_new = false;
    for entry in tables() {
        let (entry_base, form) = base(entry.name);
        if entry_base != name || world.config.lacks(entry.name, entry.since) {
            continue;
        }
        if entry.since > version {
            too_new = true;
        } else if best.is_none_or(|(other, _)| form > other) {
            best = Some((form, entry));
        }
    }
    match best {
        Some((_, entry)) => Ok(entry.address),
        None if too_new => {
            Err(CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT as u32)
        }
        None => Err(CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND as u32),
    }
}

fn proc_address(
    world: &crate::world::World,
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut CUdriverProcAddressQueryResult,
) -> crate::world::Answer {
    // 0: default, 1: legacy stream. 2, the per-thread default stream, names variants that this driver lacks.
    if symbol.is_null() || pfn.is_null() || flags > 1 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null; the C caller promises a string.
    let name = unsafe { CStr::from_ptr(symbol) }.to_str().map_err(|_| INVALID_VALUE)?;
    match by_base_name(name, version, world) {
        Ok(address) => {
            put_optional(status.cast::<u32>(), 0);
            put(pfn, address as *mut c_void)
        }
        Err(why) => {
            put_optional(status.cast::<u32>(), why);
            put(pfn, std::ptr::null_mut())?;
            Err(NOT_FOUND)
        }
    }
}

extern "C" fn at_exit() {
    if !crate::world::forked() {
        lock().deinitialised = true;
    }
}

fn error_text(
    code: u32,
    to: *mut *const c_char,
    pick: fn((&'static str, &'static str)) -> &'static str,
) -> crate::world::Answer {
    let names = if code == 0 { Some(("CUDA_SUCCESS\0", "no error\0")) } else { code::names(code) };
    match names {
        Some(names) => put(to, pick(names).as_ptr().cast()),
        None => {
            put(to, std::ptr::null())?;
            Err(INVALID_VALUE)
        }
    }
}

/// The first form of the function below, which cudarc does not bind.
///
/// # Safety
/// As NVIDIA documents it: `symbol` is a string, `pfn` an output.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn cuGetProcAddress(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> u32 {
    crate::gate::call(UNBOUND[0].name, UNBOUND[0].since, crate::gate::Class::Always, &String::new, |w| {
        proc_address(w, symbol, pfn, version, flags, std::ptr::null_mut())
    })
}

const UNBOUND: &[Entry] =
    &[Entry { name: "cuGetProcAddress", since: 11030, address: cuGetProcAddress as *const () }];

exports! {
    2000 Always fn cuInit(flags: c_uint) |w| {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if crate::world::forked() {
            return Err(NOT_INITIALIZED);
        }
        if w.initialised {
            return OK;
        }
        crate::device::make_all(w)?;
        w.claim_process();
        w.initialised = true;
        static ONCE: std::sync::Once = std::sync::Once::new();
        // After this, the driver is shut down at exit: handlers that were registered earlier run later and find it so.
        // SAFETY: registers a function of this library, which is never unloaded once initialised.
        ONCE.call_once(|| { unsafe { libc::atexit(at_exit) }; });
        OK
    }

    2020 Always fn cuDriverGetVersion(version: *mut c_int) |w| {
        put(version, w.config.driver)
    }

    6000 Always fn cuGetErrorName(error: u32 as CUresult, name: *mut *const c_char) |_w| {
        error_text(error, name, |names| names.0)
    }

    6000 Always fn cuGetErrorString(error: u32 as CUresult, text: *mut *const c_char) |_w| {
        error_text(error, text, |names| names.1)
    }

    12000 Always fn cuGetProcAddress_v2(
        symbol: *const c_char,
        pfn: *mut *mut c_void,
        version: c_int,
        flags: u64,
        status: *mut CUdriverProcAddressQueryResult,
    ) |w| {
        proc_address(w, symbol, pfn, version, flags, status)
    }
}
