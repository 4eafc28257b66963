//! The functions of the CUDA driver: which ones, since which version, and how they are found at run time.
//!
//! The signatures are those of `cudarc`'s bindings, compared by the compiler below, except for the status: here it is
//! an integer, since a newer driver may return a number that the bindings' `enum` does not know. Each function is
//! requested for the CUDA version in front of it, so that the driver returns that version of it. A library is loaded
//! once for each path and never unloaded: the driver registers handlers for the end of the process.

#![allow(non_snake_case, reason = "the names are the driver's own")]

use crate::base::error::{Code, Result};
use crate::base::sync::system::{Mutex, lock};
use crate::fail;
use cudarc::driver::sys::*;
use libloading::Library;
use std::ffi::{CStr, OsStr, OsString, c_char, c_int, c_uint, c_ulonglong, c_void};

/// The oldest supported driver, as `cuDriverGetVersion` counts: CUDA 11.4.
pub(super) const OLDEST: i32 = 11_040;
/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM`: the NULL stream is the legacy one, whatever the program was
/// compiled with.
const LEGACY_STREAM: u64 = 1;

/// Asks the driver for a function: its name without suffix, its exported name, and the version that introduced it.
type Find<'a> = &'a dyn Fn(&CStr, &CStr, c_int) -> *mut c_void;

/// The first name without its Rust syntax, as a C string.
macro_rules! c_name {
    ($name:expr) => {{
        const TEXT: &str = concat!($name, "\0");
        match CStr::from_bytes_with_nul(TEXT.as_bytes()) {
            Ok(text) => text,
            Err(_) => c"",
        }
    }};
}

macro_rules! table {
    ($($need:ident $since:tt $name:ident, $base:literal, ($($arg:ty),*);)*) => {
        $(
            // The compiler compares each signature with that of the bindings.
            const _: unsafe fn($($arg),*) -> CUresult = cudarc::driver::sys::$name;
        )*

        /// The driver's functions by their exported names. The required ones are always present.
        pub(super) struct Table {
            $(pub(super) $name: Option<unsafe extern "C" fn($($arg),*) -> u32>,)*
        }

        /// What is asked for each of them, in their order: a list, so that asking is a loop and no code for each.
        const WANTED: &[Wanted] = &[$(Wanted {
            required: required!($need),
            since: $since,
            base: c_name!($base),
            exported: c_name!(stringify!($name)),
        }),*];

        impl Table {
            /// Finds all functions; also returns the names of required ones that are missing.
            fn find(find: Find<'_>) -> (Table, Vec<&'static CStr>) {
                let (found, missing) = find_all(find);
                let mut found = found.into_iter();
                let mut next = || found.next().unwrap_or(std::ptr::null_mut());
                $(
                    // SAFETY: NULL becomes `None`; anything else is the driver's function of this name and version,
                    // which has this signature by its documentation. A status is an `int`-sized enum in C.
                    let $name = unsafe {
                        std::mem::transmute::<
                            *mut c_void,
                            Option<unsafe extern "C" fn($($arg),*) -> u32>,
                        >(next())
                    };
                )*
                (Table { $($name),* }, missing)
            }
        }
    };
}

macro_rules! required {
    (required) => {
        true
    };
    (optional) => {
        false
    };
}

/// A function of the driver.
struct Wanted {
    required: bool,
    since: c_int,
    base: &'static CStr,
    exported: &'static CStr,
}

/// The addresses of all functions in the order of `WANTED`, and the names of required ones that are missing.
fn find_all(find: Find<'_>) -> (Vec<*mut c_void>, Vec<&'static CStr>) {
    let mut missing = Vec::new();
    let found = WANTED.iter().map(|w| {
        let at = find(w.base, w.exported, w.since);
        if at.is_null() && w.required {
            missing.push(w.exported);
        }
        at
    });
    (found.collect(), missing)
}

table! {
    required OLDEST cuInit, "cuInit", (c_uint);
    required OLDEST cuDriverGetVersion, "cuDriverGetVersion", (*mut c_int);
    required OLDEST cuGetErrorName, "cuGetErrorName", (CUresult, *mut *const c_char);
    required OLDEST cuDeviceGetCount, "cuDeviceGetCount", (*mut c_int);
    required OLDEST cuDeviceGet, "cuDeviceGet", (*mut CUdevice, c_int);
    required OLDEST cuDeviceGetAttribute, "cuDeviceGetAttribute", (*mut c_int, CUdevice_attribute, CUdevice);
    required OLDEST cuDeviceTotalMem_v2, "cuDeviceTotalMem", (*mut usize, CUdevice);
    required OLDEST cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (*mut CUcontext, CUdevice);
    required OLDEST cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", (CUdevice);
    required OLDEST cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer", (*mut c_int, CUdevice, CUdevice);
    required OLDEST cuCtxPushCurrent_v2, "cuCtxPushCurrent", (CUcontext);
    required OLDEST cuCtxPopCurrent_v2, "cuCtxPopCurrent", (*mut CUcontext);
    required OLDEST cuCtxGetCurrent, "cuCtxGetCurrent", (*mut CUcontext);
    required OLDEST cuCtxSetCurrent, "cuCtxSetCurrent", (CUcontext);
    required OLDEST cuCtxSynchronize, "cuCtxSynchronize", ();
    required OLDEST cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess", (CUcontext, c_uint);
    optional 12_050 cuCtxRecordEvent, "cuCtxRecordEvent", (CUcontext, CUevent);
    required OLDEST cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", (*mut CUstreamCaptureMode);

    required OLDEST cuMemGetInfo_v2, "cuMemGetInfo", (*mut usize, *mut usize);
    required OLDEST cuMemAlloc_v2, "cuMemAlloc", (*mut CUdeviceptr, usize);
    required OLDEST cuMemFree_v2, "cuMemFree", (CUdeviceptr);
    required OLDEST cuMemHostAlloc, "cuMemHostAlloc", (*mut *mut c_void, usize, c_uint);
    required OLDEST cuMemFreeHost, "cuMemFreeHost", (*mut c_void);
    required OLDEST cuMemHostRegister_v2, "cuMemHostRegister", (*mut c_void, usize, c_uint);
    required OLDEST cuMemHostUnregister, "cuMemHostUnregister", (*mut c_void);
    required OLDEST cuMemAllocManaged, "cuMemAllocManaged", (*mut CUdeviceptr, usize, c_uint);
    optional OLDEST cuMemPrefetchAsync, "cuMemPrefetchAsync", (CUdeviceptr, usize, CUdevice, CUstream);
    optional OLDEST cuMemAdvise, "cuMemAdvise", (CUdeviceptr, usize, CUmem_advise, CUdevice);
    required OLDEST cuPointerGetAttribute, "cuPointerGetAttribute", (*mut c_void, CUpointer_attribute, CUdeviceptr);

    required OLDEST cuMemcpyHtoD_v2, "cuMemcpyHtoD", (CUdeviceptr, *const c_void, usize);
    required OLDEST cuMemcpyDtoH_v2, "cuMemcpyDtoH", (*mut c_void, CUdeviceptr, usize);
    required OLDEST cuMemcpyDtoD_v2, "cuMemcpyDtoD", (CUdeviceptr, CUdeviceptr, usize);
    required OLDEST cuMemcpyHtoDAsync_v2, "cuMemcpyHtoDAsync", (CUdeviceptr, *const c_void, usize, CUstream);
    required OLDEST cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync", (*mut c_void, CUdeviceptr, usize, CUstream);
    required OLDEST cuMemcpyDtoDAsync_v2, "cuMemcpyDtoDAsync", (CUdeviceptr, CUdeviceptr, usize, CUstream);
    required OLDEST cuMemcpyPeerAsync, "cuMemcpyPeerAsync", (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, usize, CUstream);
    required OLDEST cuMemsetD8_v2, "cuMemsetD8", (CUdeviceptr, u8, usize);
    required OLDEST cuMemsetD8Async, "cuMemsetD8Async", (CUdeviceptr, u8, usize, CUstream);

    required OLDEST cuStreamCreate, "cuStreamCreate", (*mut CUstream, c_uint);
    optional OLDEST cuStreamCreateWithPriority, "cuStreamCreateWithPriority", (*mut CUstream, c_uint, c_int);
    optional OLDEST cuCtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", (*mut c_int, *mut c_int);
    required OLDEST cuStreamDestroy_v2, "cuStreamDestroy", (CUstream);
    required OLDEST cuStreamQuery, "cuStreamQuery", (CUstream);
    required OLDEST cuStreamSynchronize, "cuStreamSynchronize", (CUstream);
    required OLDEST cuStreamWaitEvent, "cuStreamWaitEvent", (CUstream, CUevent, c_uint);
    required OLDEST cuLaunchHostFunc, "cuLaunchHostFunc", (CUstream, CUhostFn, *mut c_void);
    required OLDEST cuStreamGetCtx, "cuStreamGetCtx", (CUstream, *mut CUcontext);
    optional 12_050 cuStreamGetCtx_v2, "cuStreamGetCtx", (CUstream, *mut CUcontext, *mut CUgreenCtx);
    required OLDEST cuStreamGetCaptureInfo_v2, "cuStreamGetCaptureInfo", (CUstream, *mut CUstreamCaptureStatus, *mut cuuint64_t, *mut CUgraph, *mut *const CUgraphNode, *mut usize);
    required OLDEST cuEventCreate, "cuEventCreate", (*mut CUevent, c_uint);
    required OLDEST cuEventDestroy_v2, "cuEventDestroy", (CUevent);
    required OLDEST cuEventRecord, "cuEventRecord", (CUevent, CUstream);
    required OLDEST cuEventQuery, "cuEventQuery", (CUevent);
    required OLDEST cuEventSynchronize, "cuEventSynchronize", (CUevent);
    required OLDEST cuEventElapsedTime, "cuEventElapsedTime", (*mut f32, CUevent, CUevent);

    required OLDEST cuMemAddressReserve, "cuMemAddressReserve", (*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
    required OLDEST cuMemAddressFree, "cuMemAddressFree", (CUdeviceptr, usize);
    required OLDEST cuMemCreate, "cuMemCreate", (*mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong);
    required OLDEST cuMemRelease, "cuMemRelease", (CUmemGenericAllocationHandle);
    required OLDEST cuMemMap, "cuMemMap", (CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
    required OLDEST cuMemUnmap, "cuMemUnmap", (CUdeviceptr, usize);
    required OLDEST cuMemSetAccess, "cuMemSetAccess", (CUdeviceptr, usize, *const CUmemAccessDesc, usize);
    required OLDEST cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity", (*mut usize, *const CUmemAllocationProp, CUmemAllocationGranularity_flags);

    optional OLDEST cuDeviceGetName, "cuDeviceGetName", (*mut c_char, c_int, CUdevice);
    optional OLDEST cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId", (*mut c_char, c_int, CUdevice);
    optional OLDEST cuDeviceGetUuid_v2, "cuDeviceGetUuid", (*mut CUuuid, CUdevice);
    optional OLDEST cuMemExportToShareableHandle, "cuMemExportToShareableHandle", (*mut c_void, CUmemGenericAllocationHandle, CUmemAllocationHandleType, c_ulonglong);
    optional OLDEST cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", (*mut CUmemGenericAllocationHandle, *mut c_void, CUmemAllocationHandleType);
    optional 11_070 cuMemGetHandleForAddressRange, "cuMemGetHandleForAddressRange", (*mut c_void, CUdeviceptr, usize, CUmemRangeHandleType, c_ulonglong);
    optional OLDEST cuIpcGetMemHandle, "cuIpcGetMemHandle", (*mut CUipcMemHandle, CUdeviceptr);
    optional OLDEST cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", (*mut CUdeviceptr, CUipcMemHandle, c_uint);
    optional OLDEST cuIpcCloseMemHandle, "cuIpcCloseMemHandle", (CUdeviceptr);

    required OLDEST cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", (*mut CUdeviceptr, usize, CUmemoryPool, CUstream);
    required OLDEST cuMemFreeAsync, "cuMemFreeAsync", (CUdeviceptr, CUstream);
    required OLDEST cuMemPoolCreate, "cuMemPoolCreate", (*mut CUmemoryPool, *const CUmemPoolProps);
    required OLDEST cuMemPoolDestroy, "cuMemPoolDestroy", (CUmemoryPool);
    required OLDEST cuMemPoolSetAccess, "cuMemPoolSetAccess", (CUmemoryPool, *const CUmemAccessDesc, usize);
    required OLDEST cuMemPoolSetAttribute, "cuMemPoolSetAttribute", (CUmemoryPool, CUmemPool_attribute, *mut c_void);
    required OLDEST cuMemPoolGetAttribute, "cuMemPoolGetAttribute", (CUmemoryPool, CUmemPool_attribute, *mut c_void);
    required OLDEST cuMemPoolTrimTo, "cuMemPoolTrimTo", (CUmemoryPool, usize);
}

type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> u32;
type GetProcAddressV2 = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_uint) -> u32;

/// The address of an exported symbol, or NULL.
fn symbol(library: &Library, name: &CStr) -> *mut c_void {
    // SAFETY: only the address is taken; the caller gives it the type that the documentation of the name specifies.
    let found = unsafe { library.get::<*mut c_void>(name.to_bytes_with_nul()) };
    found.map_or(std::ptr::null_mut(), |s| *s)
}

/// Opens the library: the named one, or the system's driver.
fn open(named: Option<&OsStr>) -> Result<Library> {
    let names: Vec<&OsStr> = match named {
        Some(n) => vec![n],
        None => vec![OsStr::new("libcuda.so.1"), OsStr::new("libcuda.so")],
    };
    let mut first = None;
    for name in names {
        // SAFETY: the driver's initialisers may run at any time; a user who names another library vouches for it.
        match unsafe { Library::new(name) } {
            Ok(library) => return Ok(library),
            Err(e) => {
                let e = std::error::Error::source(&e).map_or_else(|| e.to_string(), |s| s.to_string());
                first = first.or(Some(e));
            }
        }
    }
    fail!(Code::UnknownDevice, "no CUDA driver: {}", first.unwrap_or_default())
}

/// Loads the functions of a library. Does not initialise CUDA: a forked child may still do that.
fn load_table(named: Option<&OsStr>) -> Result<Table> {
    let library = open(named)?;
    let v2 = symbol(&library, c"cuGetProcAddress_v2");
    let v1 = symbol(&library, c"cuGetProcAddress");
    // SAFETY: NULL becomes `None`; anything else is the driver's function of this name, with its documented signature.
    let v2 = unsafe { std::mem::transmute::<*mut c_void, Option<GetProcAddressV2>>(v2) };
    // SAFETY: as above.
    let v1 = unsafe { std::mem::transmute::<*mut c_void, Option<GetProcAddress>>(v1) };
    let by_v2 = |base: &CStr, since: c_int| {
        let (mut at, mut why) = (std::ptr::null_mut(), 0);
        // SAFETY: both out pointers are live locals.
        let status = v2.map(|f| unsafe { f(base.as_ptr(), &mut at, since, LEGACY_STREAM, &mut why) });
        if status == Some(0) { at } else { std::ptr::null_mut() }
    };
    let by_v1 = |base: &CStr, since: c_int| {
        let mut at = std::ptr::null_mut();
        // SAFETY: the out pointer is a live local.
        let status = v1.map(|f| unsafe { f(base.as_ptr(), &mut at, since, LEGACY_STREAM) });
        if status == Some(0) { at } else { std::ptr::null_mut() }
    };
    // If the driver's own search finds anything at all, it is also trusted about what it does not find.
    let find: Find<'_> = if !by_v2(c"cuInit", OLDEST).is_null() {
        &|base, _, since| by_v2(base, since)
    } else if !by_v1(c"cuInit", OLDEST).is_null() {
        &|base, _, since| by_v1(base, since)
    } else {
        &|_, exported, _| symbol(&library, exported)
    };
    let (mut table, missing) = Table::find(find);
    std::mem::forget(library);
    // The version is checked first: it says more than the name of a missing function.
    if let Some(f) = table.cuDriverGetVersion {
        let mut version = 0;
        // SAFETY: the out pointer is a live local; the call needs no initialised driver.
        let status = unsafe { f(&mut version) };
        if status == 0 && version < OLDEST {
            fail!(
                Code::UnknownDevice,
                "the CUDA driver is of CUDA {}.{}; 11.4 or newer is needed",
                version / 1000,
                version % 1000 / 10
            );
        }
        if version < 12_050 {
            // Asked for the form of a newer version, a driver may return the newest one that it has.
            table.cuStreamGetCtx_v2 = None;
        }
    }
    match missing.first() {
        None => Ok(table),
        Some(name) => fail!(
            Code::UnknownDevice,
            "the CUDA driver lacks {} (missing functions: {}); CUDA 11.4 or newer is needed",
            name.to_string_lossy(),
            missing.len()
        ),
    }
}

type Loaded = (Option<OsString>, &'static Table);
static LOADED: Mutex<Vec<Loaded>> = Mutex::new(Vec::new());

/// The functions of the named library, or of the system's driver. A failed load is tried again at the next call.
pub(super) fn load(named: Option<&OsStr>) -> Result<&'static Table> {
    let mut loaded = lock(&LOADED);
    if let Some(l) = loaded.iter().find(|l| l.0.as_deref() == named) {
        return Ok(l.1);
    }
    let table: &'static Table = Box::leak(Box::new(load_table(named)?));
    loaded.push((named.map(OsStr::to_owned), table));
    Ok(table)
}

impl Table {
    /// The driver's own name for a status, which need not be one that the bindings know.
    pub(super) fn error_name(&self, status: u32) -> Option<&'static str> {
        type ByNumber = unsafe extern "C" fn(u32, *mut *const c_char) -> u32;
        type ByEnum = unsafe extern "C" fn(CUresult, *mut *const c_char) -> u32;
        // SAFETY: a C enum without negative values is passed as an unsigned integer of 32 bits.
        let f = unsafe { std::mem::transmute::<Option<ByEnum>, Option<ByNumber>>(self.cuGetErrorName) }?;
        let mut text = std::ptr::null();
        // SAFETY: the out pointer is a live local; unknown numbers are refused by the driver.
        if unsafe { f(status, &mut text) } != 0 || text.is_null() {
            return None;
        }
        // SAFETY: the driver gives a string of its own with a NUL, which lives as long as it is loaded: for ever.
        unsafe { CStr::from_ptr(text) }.to_str().ok()
    }
}
