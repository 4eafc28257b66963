//! The gate that every export passes, and the macro that makes exports.
//!
//! The order of the checks is the real driver's: a symbol that this driver version lacks, a process that was forked
//! after `cuInit`, the state of the driver, then an injected fault, then the sticky error, then the call itself.

use std::cell::Cell;

use crate::code::*;
use crate::sync::{Guard, lock};
use crate::world::Answer;

/// What a call needs before it may run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Nothing: works before `cuInit` and after a sticky error.
    Always,
    /// `cuInit`; works after a sticky error, because it touches no context.
    Query,
    /// `cuInit` and no sticky error.
    Normal,
}

/// One export, for `cuGetProcAddress`.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) since: i32, // the first driver version that has it, as cuDriverGetVersion counts
    pub(crate) address: *const (),
}

thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Runs a host callback: calls of the driver from inside it are refused, as documented.
pub(crate) fn as_callback(run: impl FnOnce()) {
    IN_CALLBACK.with(|flag| flag.set(true));
    run();
    IN_CALLBACK.with(|flag| flag.set(false));
}

/// Every export's way in.
pub(crate) fn call(
    name: &'static str,
    since: i32,
    class: Class,
    describe: &dyn Fn() -> String,
    body: impl FnOnce(&mut Guard) -> Answer,
) -> u32 {
    if crate::world::forked() && class != Class::Always {
        return NOT_INITIALIZED;
    }
    let told = crate::pace::tell(name);
    let mut world = lock();
    let result = passed(&mut world, name, since, told, class, body);
    world.clock.pass(name, result.is_ok());
    let code = result.err().unwrap_or(0);
    if world.control.logs() {
        world.control.log_call(name, &describe(), code);
    }
    code
}

fn passed(
    world: &mut Guard,
    name: &'static str,
    since: i32,
    told: Option<u32>,
    class: Class,
    body: impl FnOnce(&mut Guard) -> Answer,
) -> Answer {
    if world.config.lacks(name, since) {
        return Err(NOT_FOUND);
    }
    let fault = world.control.count(name).or(told);
    if world.deinitialised {
        return Err(DEINITIALIZED);
    }
    if class != Class::Always && !world.initialised {
        return Err(NOT_INITIALIZED);
    }
    if IN_CALLBACK.with(Cell::get) && class != Class::Always {
        return Err(NOT_PERMITTED);
    }
    if let Some(code) = fault {
        return Err(code);
    }
    if let (Class::Normal, Some(code)) = (class, world.sticky) {
        return Err(code);
    }
    crate::names::within(name, || body(world))
}

/// Writes an output of an export.
pub(crate) fn put<T>(to: *mut T, value: T) -> Answer {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null; that it points to a `T` is what the C caller of the export promises.
    unsafe { to.write_unaligned(value) };
    OK
}

/// As `put`, for outputs that may be left out.
pub(crate) fn put_optional<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: not null; the C caller of the export promises the rest.
        unsafe { to.write_unaligned(value) };
    }
}

/// Reads an input of an export. `T` must be plain numbers: a C enumeration may hold any value.
pub(crate) fn get<T: Copy>(from: *const T) -> Result<T, u32> {
    if from.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null; that it points to a `T` is what the C caller of the export promises.
    Ok(unsafe { from.read_unaligned() })
}

/// Makes exports, each with its signature checked against cudarc's binding of the same name. A parameter of a C
/// enumeration is taken as a number: `mode: u32 as CUstreamCaptureMode`. The number in front is the driver version
/// that brought the function.
macro_rules! exports {
    (@sys $ty:ty) => { $ty };
    (@sys $ty:ty, $enumeration:ty) => { $enumeration };
    ($(
        $(#[$doc:meta])*
        $since:literal $class:ident fn $name:ident($($arg:ident: $ty:ty $(as $enumeration:ty)?),* $(,)?) |$w:ident| $body:block
    )*) => {
        $(
            const _: unsafe fn($($crate::gate::exports!(@sys $ty $(, $enumeration)?)),*) -> cudarc::driver::sys::CUresult =
                cudarc::driver::sys::$name;
            $(#[$doc])*
            ///
            /// # Safety
            /// As NVIDIA documents it: every pointer that is not null points to what the driver API says.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case)]
            pub unsafe extern "C" fn $name($($arg: $ty),*) -> u32 {
                let describe = || String::new() $(+ &format!(concat!(stringify!($arg), "={:?} "), $arg))*;
                $crate::gate::call(stringify!($name), $since, $crate::gate::Class::$class, &describe, |$w| $body)
            }
        )*
        /// The exports of this file.
        pub(crate) const TABLE: &[$crate::gate::Entry] = &[$($crate::gate::Entry {
            name: stringify!($name),
            since: $since,
            address: $name as *const (),
        }),*];
    };
}
pub(crate) use exports;
