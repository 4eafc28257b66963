//! Calls into code that may throw a C++ exception. Rust lets an exception pass through its frames but cannot catch it:
//! `catch_unwind` ends the process. So such calls go through a frame of our own, whose personality routine catches
//! everything as `catch (...)` does, except Rust's panics and the forced unwinding of a thread that ends.
//!
//! The contract is that of the Itanium C++ ABI, "Exception Handling", level I. On systems other than Linux on x86-64
//! and aarch64 nothing is caught: there an exception ends the process.

use crate::base::sync::levels::{Called, check_unlocked};
use std::fmt;

/// The body threw an exception, which has been caught and destroyed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Thrown {
    /// The mangled name of the C++ type; empty if unknown.
    kind: String,
}

impl fmt::Display for Thrown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind.is_empty() {
            f.write_str("threw an exception")
        } else {
            write!(f, "threw a C++ exception ({})", self.kind)
        }
    }
}

/// Runs the body, which calls code of others, and catches an exception that leaves it. Panics pass through. The calling
/// thread holds no lock, since the code may call this library.
#[cfg_attr(debug_assertions, track_caller)]
pub(crate) fn caught<R>(body: impl FnOnce() -> R) -> Result<R, Thrown> {
    check_unlocked(Called::Callback);
    run(body)
}

/// As for [`caught`].
#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn run<R>(body: impl FnOnce() -> R) -> Result<R, Thrown> {
    Ok(body())
}

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
use taken_over::run;

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod taken_over {
    use super::Thrown;
    use std::arch::naked_asm;
    use std::ffi::{CStr, c_char, c_int, c_void};

    /// The head of every exception object, as the unwinder defines it.
    #[repr(C)]
    struct Exception {
        class: u64,
        cleanup: *const c_void,
    }

    unsafe extern "C" {
        fn _Unwind_SetGR(context: *mut c_void, register: c_int, value: usize);
        fn _Unwind_SetIP(context: *mut c_void, value: usize);
        fn _Unwind_DeleteException(exception: *mut Exception);
    }

    const SEARCH_PHASE: c_int = 1;
    /// The thread is ending or being cancelled, which must not be stopped.
    const FORCE_UNWIND: c_int = 8;
    const HANDLER_FOUND: c_int = 6;
    const INSTALL_CONTEXT: c_int = 7;
    const CONTINUE_UNWIND: c_int = 8;
    /// The register in which the landing pad finds the exception: number 0, rax or x0.
    const EXCEPTION_REGISTER: c_int = 0;

    const RUST: u64 = u64::from_ne_bytes(*b"MOZ\0RUST");
    /// GNU and LLVM. The last byte says whether the exception is a copy.
    const CXX: [u64; 2] = [u64::from_be_bytes(*b"GNUCC++\0"), u64::from_be_bytes(*b"CLNGC++\0")];

    struct Call<F, R> {
        body: Option<F>,
        result: Option<R>,
    }

    /// As for [`caught`](super::caught).
    pub(super) fn run<R>(body: impl FnOnce() -> R) -> Result<R, Thrown> {
        unsafe extern "C-unwind" fn run<F: FnOnce() -> R, R>(call: *mut c_void) {
            // SAFETY: the outer function gives its own `Call` of these types, which it does not touch meanwhile.
            let call = unsafe { &mut *call.cast::<Call<F, R>>() };
            if let Some(body) = call.body.take() {
                call.result = Some(body());
            }
        }
        fn of<F: FnOnce() -> R, R>(_: &Call<F, R>) -> unsafe extern "C-unwind" fn(*mut c_void) {
            run::<F, R>
        }
        let mut call = Call { body: Some(body), result: None };
        let run = of(&call);
        // SAFETY: `run` is called once, with the `Call` that it expects, which lives until then.
        let thrown = unsafe { enter(run, (&raw mut call).cast()) };
        match call.result {
            Some(result) if thrown.is_null() => Ok(result),
            // SAFETY: the unwinder has left the exception to us.
            _ => Err(unsafe { take_over(thrown) }),
        }
    }

    /// Calls `run(data)`. Returns the exception that left it, or null.
    ///
    /// # Safety
    ///
    /// As for `run`.
    #[cfg(target_arch = "x86_64")]
    #[unsafe(naked)]
    unsafe extern "C-unwind" fn enter(
        run: unsafe extern "C-unwind" fn(*mut c_void),
        data: *mut c_void,
    ) -> *mut Exception {
        naked_asm!(
            ".cfi_startproc",
            ".hidden {personality}",
            ".cfi_personality 0x1b, {personality}", // PC-relative, four bytes
            "endbr64",
            "push rbp",
            ".cfi_def_cfa_offset 16",
            ".cfi_offset rbp, -16",
            "mov rbp, rsp",
            ".cfi_def_cfa_register rbp",
            "mov rax, rdi",
            "mov rdi, rsi",
            "call rax",
            "xor eax, eax",
            "pop rbp",
            ".cfi_def_cfa rsp, 8",
            "ret",
            ".cfi_endproc",
            personality = sym personality,
        )
    }

    /// Where `enter` continues after an exception: with its frame as it was at the call, and the exception in rax.
    #[cfg(target_arch = "x86_64")]
    #[unsafe(naked)]
    unsafe extern "C" fn landing() {
        naked_asm!("endbr64", "pop rbp", "ret")
    }

    /// As for x86-64.
    ///
    /// # Safety
    ///
    /// As for `run`.
    #[cfg(target_arch = "aarch64")]
    #[unsafe(naked)]
    unsafe extern "C-unwind" fn enter(
        run: unsafe extern "C-unwind" fn(*mut c_void),
        data: *mut c_void,
    ) -> *mut Exception {
        naked_asm!(
            ".cfi_startproc",
            ".hidden {personality}",
            ".cfi_personality 0x1b, {personality}",
            "stp x29, x30, [sp, #-16]!",
            ".cfi_def_cfa_offset 16",
            ".cfi_offset x29, -16",
            ".cfi_offset x30, -8",
            "mov x29, sp",
            ".cfi_def_cfa_register x29",
            "mov x8, x0",
            "mov x0, x1",
            "blr x8",
            "mov x0, xzr",
            "ldp x29, x30, [sp], #16",
            ".cfi_def_cfa sp, 0",
            "ret",
            ".cfi_endproc",
            personality = sym personality,
        )
    }

    /// As for x86-64.
    #[cfg(target_arch = "aarch64")]
    #[unsafe(naked)]
    unsafe extern "C" fn landing() {
        naked_asm!("ldp x29, x30, [sp], #16", "ret")
    }

    /// The personality routine of `enter`: tells the unwinder what to do at its frame.
    unsafe extern "C" fn personality(
        version: c_int,
        actions: c_int,
        class: u64,
        exception: *mut Exception,
        context: *mut c_void,
    ) -> c_int {
        if version != 1 || actions & FORCE_UNWIND != 0 || class == RUST {
            return CONTINUE_UNWIND;
        }
        if actions & SEARCH_PHASE != 0 {
            return HANDLER_FOUND;
        }
        // SAFETY: in the second phase the unwinder has a context to be changed: `enter` goes on at `landing`.
        unsafe {
            _Unwind_SetGR(context, EXCEPTION_REGISTER, exception.addr());
            _Unwind_SetIP(context, landing as *const () as usize);
        }
        INSTALL_CONTEXT
    }

    /// Destroys a caught exception.
    ///
    /// # Safety
    ///
    /// `exception` is null, or was caught here and is destroyed by nobody else.
    unsafe fn take_over(exception: *mut Exception) -> Thrown {
        let mut thrown = Thrown { kind: String::new() };
        if exception.is_null() {
            return thrown;
        }
        // SAFETY: a caught exception is readable.
        let Exception { class, cleanup } = unsafe { exception.read() };
        // SAFETY: this class has a cleanup function, which lies in the library that made the exception.
        let handler = CXX.contains(&(class & !0xff)).then(|| unsafe { Handler::of(cleanup) }).flatten();
        match handler {
            // SAFETY: a C++ exception, caught and released by the library that made it.
            Some(h) => unsafe {
                (h.begin)(exception);
                thrown.kind = h.kind();
                (h.end)();
            },
            // SAFETY: this is how `catch (...)` of another language destroys it.
            None => unsafe { _Unwind_DeleteException(exception) },
        }
        thrown
    }

    /// The C++ runtime that made an exception. It counts uncaught exceptions, so it has to catch and release its own.
    struct Handler {
        begin: unsafe extern "C" fn(*mut Exception) -> *mut c_void,
        end: unsafe extern "C-unwind" fn(),
        kind: Option<unsafe extern "C" fn() -> *const TypeInfo>,
    }

    /// `std::type_info`, as the ABI has it.
    #[repr(C)]
    struct TypeInfo {
        vtable: *const c_void,
        name: *const c_char,
    }

    /// The library that an address lies in.
    fn library(at: *const c_void) -> Option<libc::Dl_info> {
        // SAFETY: all zeros is a value of this plain struct.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: asks about an address, which may be anything.
        (unsafe { libc::dladdr(at, &mut info) } != 0 && !info.dli_fname.is_null()).then_some(info)
    }

    impl Handler {
        /// # Safety
        ///
        /// `cleanup` is that of a C++ exception.
        unsafe fn of(cleanup: *const c_void) -> Option<Handler> {
            let from = library(cleanup)?;
            // SAFETY: a name from the loader, which only finds what is loaded.
            let handle = unsafe { libc::dlopen(from.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
            if handle.is_null() {
                return None;
            }
            let find = |name: &CStr| {
                // SAFETY: a live handle and a C string.
                let at = unsafe { libc::dlsym(handle, name.as_ptr()) }.cast_const();
                // The name may resolve to another library, which counts exceptions of its own.
                library(at).filter(|l| !at.is_null() && l.dli_fbase == from.dli_fbase).map(|_| at)
            };
            let all = find(c"__cxa_begin_catch").zip(find(c"__cxa_end_catch"));
            let kind = find(c"__cxa_current_exception_type");
            // SAFETY: from `dlopen` above; the library stays, as its exception is under way.
            unsafe { libc::dlclose(handle) };
            let (begin, end) = all?;
            // SAFETY: the ABI gives the functions of these names these types.
            unsafe {
                Some(Handler {
                    begin: std::mem::transmute::<
                        *const c_void,
                        unsafe extern "C" fn(*mut Exception) -> *mut c_void,
                    >(begin),
                    end: std::mem::transmute::<*const c_void, unsafe extern "C-unwind" fn()>(end),
                    kind: kind.map(|k| {
                        std::mem::transmute::<*const c_void, unsafe extern "C" fn() -> *const TypeInfo>(k)
                    }),
                })
            }
        }

        /// The mangled name of the exception's type. Valid between `begin` and `end`.
        unsafe fn kind(&self) -> String {
            // SAFETY: the caller's promise.
            let Some(info) = self.kind.map(|k| unsafe { k() }).filter(|i| !i.is_null()) else {
                return String::new();
            };
            // SAFETY: the ABI's layout; the name is a C string that lives as long as the library.
            let name = unsafe { CStr::from_ptr((*info).name) };
            name.to_string_lossy().trim_start_matches('*').to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_result_comes_out_and_a_panic_passes() {
        assert_eq!(caught(|| 7), Ok(7));
        let dropped = std::cell::Cell::new(false);
        struct Tell<'a>(&'a std::cell::Cell<bool>);
        impl Drop for Tell<'_> {
            fn drop(&mut self) {
                self.0.set(true);
            }
        }
        let out = catch_unwind(AssertUnwindSafe(|| {
            caught(|| {
                let _tell = Tell(&dropped);
                std::panic::resume_unwind(Box::new(3))
            })
        }));
        assert_eq!(*out.unwrap_err().downcast::<i32>().unwrap(), 3);
        assert!(dropped.get());
    }
}
