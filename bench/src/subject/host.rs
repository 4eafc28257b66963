//! Allocators of the process's own memory, as a measure of speed. They may write into free blocks, which an
//! allocator of device memory may not; and above some megabytes they go to the system for each request.

use super::{Account, Subject};
use anyhow::{Result, bail};
use std::ffi::c_void;
use std::sync::OnceLock;

pub(super) fn glibc() -> Subject {
    Subject { alloc: glibc_alloc, free: glibc_free, account: Account::default }
}

extern "C" fn glibc_alloc(bytes: usize, _stream: u32, out: *mut *mut c_void) -> i32 {
    // SAFETY: any size will do.
    let p = unsafe { libc::malloc(bytes) };
    // SAFETY: the caller's own pointer.
    unsafe { out.write(p) };
    i32::from(p.is_null())
}

extern "C" fn glibc_free(ptr: *mut c_void, _bytes: usize, _stream: u32) -> i32 {
    // SAFETY: a block of `glibc_alloc`, freed once.
    unsafe { libc::free(ptr) };
    0
}

#[derive(Clone, Copy)]
struct Mimalloc {
    malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
}

static MIMALLOC: OnceLock<Mimalloc> = OnceLock::new();

pub(super) fn mimalloc() -> Result<Subject> {
    // SAFETY: a library of the system; its constructors only set up the allocator.
    let library = unsafe { libc::dlopen(c"libmimalloc.so.2".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        bail!("not installed (Debian: libmimalloc2.0)");
    }
    // SAFETY: a library that was just opened, and a C string.
    let find = |name: &std::ffi::CStr| unsafe { libc::dlsym(library, name.as_ptr()) };
    let (malloc, free) = (find(c"mi_malloc"), find(c"mi_free"));
    if malloc.is_null() || free.is_null() {
        bail!("libmimalloc.so.2 has no mi_malloc");
    }
    // SAFETY: mimalloc documents these types for these names.
    let api = unsafe {
        Mimalloc {
            malloc: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(usize) -> *mut c_void>(malloc),
            free: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(free),
        }
    };
    MIMALLOC.get_or_init(|| api);
    Ok(Subject { alloc: mimalloc_alloc, free: mimalloc_free, account: Account::default })
}

extern "C" fn mimalloc_alloc(bytes: usize, _stream: u32, out: *mut *mut c_void) -> i32 {
    let Some(api) = MIMALLOC.get() else { return 2 };
    // SAFETY: any size will do.
    let p = unsafe { (api.malloc)(bytes) };
    // SAFETY: the caller's own pointer.
    unsafe { out.write(p) };
    i32::from(p.is_null())
}

extern "C" fn mimalloc_free(ptr: *mut c_void, _bytes: usize, _stream: u32) -> i32 {
    let Some(api) = MIMALLOC.get() else { return 2 };
    // SAFETY: a block of `mimalloc_alloc`, freed once.
    unsafe { (api.free)(ptr) };
    0
}
