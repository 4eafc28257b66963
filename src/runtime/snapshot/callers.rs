//! Which function an address of code is in, as far as the running program itself can tell: the module, the address for which
//! it was linked there, which is what `addr2line` takes, and the function's name where the module exports it. Files and lines
//! stand in debugging information alone, which is not read here.
//!
//! Addresses are looked up when the snapshot is written: those of a module that was unloaded since then have no name, or that
//! of a module which lies there now.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::ptr::{null, null_mut};

/// The place of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Caller {
    /// The path of the module's file; empty where it is not known.
    pub module: String,
    /// The address of the call there, or in memory where the module is not known.
    pub offset: u64,
    pub function: Option<String>,
}

impl Caller {
    /// The function, or where it is.
    pub(super) fn name(&self) -> String {
        match &self.function {
            Some(name) => name.clone(),
            None if self.module.is_empty() => format!("{:#x}", self.offset),
            None => {
                format!("{}+{:#x}", self.module.rsplit('/').next().unwrap_or(&self.module), self.offset)
            }
        }
    }
}

/// A part of a module that is loaded.
struct Part {
    start: u64,
    end: u64,
    /// What was added to the addresses for which the module was linked.
    moved: u64,
    module: usize,
}

/// What is loaded at one moment.
#[derive(Default)]
pub(super) struct Callers {
    parts: Vec<Part>,
    modules: Vec<String>,
}

impl Callers {
    pub(super) fn now() -> Callers {
        let mut all = Callers::default();
        // SAFETY: the function and its argument are a pair, and neither is kept.
        unsafe { libc::dl_iterate_phdr(Some(module), (&raw mut all).cast()) };
        all
    }

    /// Of a return address, which lies behind the call.
    pub(super) fn of(&self, back: u64) -> Caller {
        let call = back.saturating_sub(1);
        let Some(part) = self.parts.iter().find(|p| p.start <= call && call < p.end) else {
            return Caller { offset: call, ..Caller::default() };
        };
        let module = self.modules.get(part.module).cloned().unwrap_or_default();
        Caller { module, offset: call.wrapping_sub(part.moved), function: function(call) }
    }
}

unsafe extern "C" fn module(info: *mut libc::dl_phdr_info, _: libc::size_t, to: *mut c_void) -> c_int {
    const ENOUGH: usize = 1 << 16;
    // SAFETY: `now` has given its own `Callers` to this function alone.
    let all = unsafe { &mut *to.cast::<Callers>() };
    // SAFETY: the loader's own, for this call.
    let info = unsafe { &*info };
    if info.dlpi_phdr.is_null() || all.parts.len() > ENOUGH {
        return 0;
    }
    let name = match info.dlpi_name.is_null() {
        true => &[][..],
        // SAFETY: a C string of the loader's, for this call.
        false => unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes(),
    };
    let name = match name {
        // The program itself has no name here.
        [] => std::env::current_exe().map(|p| p.as_os_str().as_bytes().to_vec()).unwrap_or_default(),
        some => some.to_vec(),
    };
    let number = all.modules.len();
    all.modules.push(String::from_utf8_lossy(&name).into_owned());
    // SAFETY: the loader says that there are so many.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    // The types are of 32 bits on other systems.
    #[allow(clippy::useless_conversion)]
    for h in headers.iter().filter(|h| h.p_type == libc::PT_LOAD) {
        let moved = u64::from(info.dlpi_addr);
        let start = moved.wrapping_add(h.p_vaddr.into());
        all.parts.push(Part { start, end: start.saturating_add(h.p_memsz.into()), moved, module: number });
    }
    0
}

/// The name of the function around an address, if its module exports it.
fn function(call: u64) -> Option<String> {
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked for; the answer goes where there is room for it.
    let known = unsafe { libc::dladdr(call as *const c_void, found.as_mut_ptr()) };
    // SAFETY: zeros are a valid answer, and `dladdr` writes another.
    let found = unsafe { found.assume_init() };
    if known == 0 || found.dli_sname.is_null() {
        return None;
    }
    // SAFETY: a C string in the module, which stays as long as its code, on which somebody's call stands; a module that is
    // unloaded at this very moment is the program's fault, as with `dladdr` itself.
    let name = unsafe { CStr::from_ptr(found.dli_sname) };
    Some(demangled(name).unwrap_or_else(|| name.to_string_lossy().into_owned()))
}

/// What the C++ runtime makes of a name, where the process has one.
fn demangled(name: &CStr) -> Option<String> {
    type Demangle = unsafe extern "C" fn(*const c_char, *mut c_char, *mut usize, *mut c_int) -> *mut c_char;
    if !name.to_bytes().starts_with(b"_") {
        return None;
    }
    // SAFETY: a plain question to the loader.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__cxa_demangle".as_ptr()) };
    if found.is_null() {
        return None;
    }
    // SAFETY: the C++ ABI defines the function of that name so.
    let demangle = unsafe { std::mem::transmute::<*mut c_void, Demangle>(found) };
    let mut status = 0;
    // SAFETY: a C string, no buffer, and a place for the status, as the function wants them.
    let text = unsafe { demangle(name.as_ptr(), null_mut(), null::<usize>().cast_mut(), &mut status) };
    if text.is_null() {
        return None;
    }
    // SAFETY: a C string that the function has allocated.
    let plain = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    // SAFETY: by `malloc`, for the caller to free.
    unsafe { libc::free(text.cast()) };
    Some(plain)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn code_is_found_in_its_module() {
        let all = Callers::now();
        let here = code_is_found_in_its_module as fn() as usize as u64;
        let own = all.of(here + 1);
        assert_eq!(own.module, std::env::current_exe().unwrap().to_str().unwrap());
        assert!(own.offset < here, "as it was linked: {own:?}");
        assert!(own.name().contains(&format!("+{:#x}", own.offset)) || own.function.is_some(), "{own:?}");
        let exported = all.of(libc::getpid as *const () as usize as u64 + 1);
        assert!(exported.function.as_ref().is_some_and(|f| f.ends_with("getpid")), "{exported:?}");
        assert_eq!((all.of(1).module.as_str(), all.of(1).offset, all.of(0).offset), ("", 0, 0));
        assert_eq!(all.of(u64::MAX).name(), "0xfffffffffffffffe");
    }

    #[test]
    fn names_are_told_as_people_write_them() {
        assert_eq!(demangled(c"main"), None);
        assert_eq!(demangled(c"_Znonsense"), None);
        // Only where a C++ runtime is loaded, which a Rust program need not have.
        if let Some(plain) = demangled(c"_ZN3one3twoEi") {
            assert_eq!(plain, "one::two(int)");
        }
    }
}
