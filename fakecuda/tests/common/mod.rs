//! What all tests of the fake use: its control functions, and a fresh driver for each test.
//!
//! The driver is one for the whole process, so tests take turns. The calls themselves are cudarc's bindings, which find
//! the library as a program would; cargo puts its folder on the loader's path.

#![allow(dead_code, clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks)]

#[macro_use]
mod controls;

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard};

pub use cudarc::driver::sys::CUresult::*;
pub use cudarc::driver::sys::*;

static TURN: Mutex<()> = Mutex::new(());

/// A fresh driver, until it is dropped.
pub struct Fake {
    _turn: MutexGuard<'static, ()>,
}

fn control<T: Copy>(name: &str) -> T {
    let symbol = CString::new(name).unwrap();
    unsafe {
        *culib()
            .get::<T>(symbol.as_bytes_with_nul())
            .unwrap_or_else(|_| panic!("{name} is missing: this is no fake driver"))
    }
}

impl Fake {
    /// A driver that is not initialised yet.
    pub fn raw(settings: &[(&str, &str)]) -> Fake {
        let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        control::<extern "C" fn()>("fakecuda_reset")();
        let fake = Fake { _turn: turn };
        for (name, value) in settings {
            assert_eq!(fake.set(name, value), 0, "{name}={value}");
        }
        while unsafe { cuCtxPopCurrent_v2(&mut std::ptr::null_mut()) } == CUDA_SUCCESS {}
        fake
    }

    /// An initialised driver with the primary context of device 0 current.
    pub fn new(settings: &[(&str, &str)]) -> Fake {
        let fake = Fake::raw(settings);
        ok(unsafe { cuInit(0) });
        let context = fake.primary(0);
        ok(unsafe { cuCtxSetCurrent(context) });
        fake
    }

    pub fn primary(&self, device: i32) -> CUcontext {
        let mut context = std::ptr::null_mut();
        ok(unsafe { cuDevicePrimaryCtxRetain(&mut context, device) });
        context
    }

    controls!();

    pub fn fail(&self, name: &str, nth: u64, code: u32, every: bool) -> c_int {
        let name = CString::new(name).unwrap();
        control::<extern "C" fn(*const c_char, u64, u32, c_int) -> c_int>("fakecuda_fail")(
            name.as_ptr(),
            nth,
            code,
            every.into(),
        )
    }

    /// [ns] modelled, of one function.
    pub fn modelled_in(&self, name: &str) -> u64 {
        let name = CString::new(name).unwrap();
        control::<extern "C" fn(*const c_char) -> u64>("fakecuda_modelled_ns")(name.as_ptr())
    }

    /// How often memory was used at two addresses where only one is allowed.
    pub fn aliases(&self) -> u64 {
        control::<extern "C" fn() -> u64>("fakecuda_aliases")()
    }

    /// A kernel that uses a granule at each of these addresses: its number in the stream.
    pub fn try_kernel(
        &self,
        stream: CUstream,
        reads: &[CUdeviceptr],
        writes: &[CUdeviceptr],
        flags: u32,
    ) -> Result<u64, u32> {
        type Launch = extern "C" fn(
            u64,
            *const [u64; 2],
            usize,
            *const [u64; 2],
            usize,
            u32,
            *const c_void,
            *const c_void,
            *mut u64,
        ) -> u32;
        let granules = |list: &[u64]| list.iter().map(|at| [*at, GRANULE as u64]).collect::<Vec<_>>();
        let (reads, writes, mut number) = (granules(reads), granules(writes), 0);
        let (r, w, none) = (reads.as_ptr(), writes.as_ptr(), std::ptr::null());
        let launch: Launch = control("fakecuda_kernel");
        match launch(id(stream), r, reads.len(), w, writes.len(), flags, none, none, &mut number) {
            0 => Ok(number),
            code => Err(code),
        }
    }

    pub fn kernel(&self, stream: CUstream, reads: &[CUdeviceptr], writes: &[CUdeviceptr], flags: u32) -> u64 {
        self.try_kernel(stream, reads, writes, flags).unwrap()
    }

    /// Whether a kernel that stays has begun.
    /// Queues a function as a kernel; returns its number in the stream.
    pub fn launch(&self, stream: CUstream, kernel: unsafe extern "C" fn(*mut c_void)) -> u64 {
        type Launch = unsafe extern "C" fn(u64, unsafe extern "C" fn(*mut c_void), *mut c_void) -> u64;
        unsafe { control::<Launch>("fakecuda_launch")(id(stream), kernel, std::ptr::null_mut()) }
    }

    pub fn kernel_stays(&self, stream: CUstream, number: u64) -> bool {
        control::<extern "C" fn(u64, u64) -> c_int>("fakecuda_kernel_stays")(id(stream), number) != 0
    }

    pub fn kernel_end(&self, stream: CUstream, number: u64) -> u32 {
        control::<extern "C" fn(u64, u64) -> u32>("fakecuda_kernel_end")(id(stream), number)
    }

    pub fn symbol_missing(&self, name: &str) -> bool {
        let name = CString::new(name).unwrap();
        control::<extern "C" fn(*const c_char) -> c_int>("fakecuda_symbol_missing")(name.as_ptr()) != 0
    }
}

/// How the controls know a stream.
fn id(stream: CUstream) -> u64 {
    let mut id = 0;
    ok(unsafe { cuStreamGetId(stream, &mut id) });
    id
}

/// How a kernel is launched: beside the one before it, or to stay until it is told to end.
pub const EARLY: u32 = 1;
pub const STAYS: u32 = 2;

#[track_caller]
pub fn ok(result: CUresult) {
    assert_eq!(result, CUDA_SUCCESS);
}

/// A failure with this code.
#[track_caller]
pub fn no(result: CUresult, code: CUresult) {
    assert_eq!(result, code);
}

#[track_caller]
pub fn alloc(size: usize) -> CUdeviceptr {
    let mut at = 0;
    ok(unsafe { cuMemAlloc_v2(&mut at, size) });
    at
}

#[track_caller]
pub fn upload(to: CUdeviceptr, bytes: &[u8]) {
    ok(unsafe { cuMemcpyHtoD_v2(to, bytes.as_ptr().cast(), bytes.len()) });
}

#[track_caller]
pub fn download(from: CUdeviceptr, size: usize) -> Vec<u8> {
    let mut bytes = vec![0_u8; size];
    ok(unsafe { cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), from, size) });
    bytes
}

#[track_caller]
pub fn stream(flags: u32) -> CUstream {
    let mut out = std::ptr::null_mut();
    ok(unsafe { cuStreamCreate(&mut out, flags) });
    out
}

#[track_caller]
pub fn event(flags: u32) -> CUevent {
    let mut out = std::ptr::null_mut();
    ok(unsafe { cuEventCreate(&mut out, flags) });
    out
}

/// The properties of plain device memory.
pub fn prop(device: c_int) -> CUmemAllocationProp {
    let mut prop: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    prop.type_ = CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type_ = CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    prop
}

/// Read and write for one device.
pub fn access(device: c_int) -> CUmemAccessDesc {
    let mut desc: CUmemAccessDesc = unsafe { std::mem::zeroed() };
    desc.location.type_ = CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
    desc.location.id = device;
    desc.flags = CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    desc
}

pub const MIB: usize = 1 << 20;
pub const GRANULE: usize = 2 << 20;
