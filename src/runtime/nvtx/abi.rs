//! The binary interface between an instrumented program and an NVTX tool, version 3, and of its memory extension: the
//! tables that a tool fills in, and the structures that its functions take. The layouts are those of the published
//! headers (`nvToolsExt.h`, `nvtxTypes.h`, `nvtxExtTypes.h`, `nvToolsExtMem.h`), which a test compares.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicIsize, AtomicPtr};

pub(super) const VERSION: u16 = 3;

/// What a tool asks [`ExportTable`] for.
pub(super) const CALLBACKS: u32 = 1;
pub(super) const VERSION_INFO: u32 = 3;

/// A function that a tool may put in, or null.
pub(super) type Slot = AtomicPtr<c_void>;
/// How many callbacks each module has, with the one that is none; by the module's number.
pub(super) const SIZES: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
pub(super) const CORE2: usize = 5;
/// Callbacks of [`CORE2`].
pub(super) const MARK: usize = 1;
pub(super) const RANGE_PUSH: usize = 4;
pub(super) const RANGE_POP: usize = 5;
pub(super) const DOMAIN_CREATE: usize = 12;
pub(super) const INITIALIZE: usize = 15;

pub(super) type ExportTable = unsafe extern "C" fn(u32) -> *const c_void;
/// `InitializeInjectionNvtx2`; 0 is failure.
pub(super) type Initialize = unsafe extern "C" fn(ExportTable) -> c_int;

#[repr(C)]
pub(super) struct ExportCallbacks {
    pub bytes: usize,
    pub table: unsafe extern "C" fn(c_int, *mut *const AtomicPtr<Slot>, *mut u32) -> c_int,
}

#[repr(C)]
pub(super) struct ExportVersion {
    pub bytes: usize,
    pub version: u32,
    pub reserved: u32,
    pub set_version: unsafe extern "C" fn(u32),
}

/// A handle of the tool's.
pub(super) type Handle = *mut c_void;
pub(super) const UNSIGNED_64: i32 = 1;
pub(super) const ASCII: u32 = 1;

#[repr(C)]
pub(super) struct EventAttributes {
    pub version: u16,
    pub bytes: u16,
    pub category: u32,
    pub color_type: i32,
    pub color: u32,
    pub payload_type: i32,
    pub reserved: i32,
    pub payload: u64,
    pub message_type: u32,
    pub message: *const c_char,
}

pub(super) type DomainCreate = unsafe extern "C" fn(*const c_char) -> Handle;
pub(super) type Mark = unsafe extern "C" fn(Handle, *const EventAttributes);
pub(super) type RangePush = unsafe extern "C" fn(Handle, *const EventAttributes) -> c_int;
pub(super) type RangePop = unsafe extern "C" fn(Handle) -> c_int;
pub(super) type InitializeTool = unsafe extern "C" fn(*const c_void);

/// The memory extension.
pub(super) const MEM_MODULE: u16 = 1;
pub(super) const MEM_COMPAT: u16 = 0x0102;
pub(super) const MEM_SLOTS: usize = 63;
/// Its slots. A number up to this is no function.
pub(super) const NO_FUNCTION: isize = 4;
pub(super) const HEAP_REGISTER: usize = 0;
pub(super) const HEAP_UNREGISTER: usize = 1;
pub(super) const REGIONS_REGISTER: usize = 3;
pub(super) const REGIONS_UNREGISTER: usize = 5;

/// `InitializeInjectionNvtxExtension`; 0 is failure.
pub(super) type InitializeExtension = unsafe extern "C" fn(*mut ModuleInfo) -> c_int;

#[repr(C)]
pub(super) struct ModuleSegment {
    pub number: usize,
    pub count: usize,
    pub slots: *const AtomicIsize,
}

#[repr(C)]
pub(super) struct ModuleInfo {
    pub version: u16,
    pub bytes: u16,
    pub module: u16,
    pub compat: u16,
    pub segment_count: usize,
    pub segments: *mut ModuleSegment,
    pub get_export: *const c_void,
    pub extra: *const c_void,
}

pub(super) const SUB_ALLOCATOR: u32 = 1;
pub(super) const VIRTUAL_ADDRESS: u32 = 1;
pub(super) const BY_POINTER: u32 = 1;

#[repr(C)]
pub(super) struct VirtualRange {
    pub bytes: usize,
    pub at: *const c_void,
}

#[repr(C)]
pub(super) struct HeapDesc {
    pub compat: u16,
    pub bytes: u16,
    pub reserved: u32,
    pub usage: u32,
    pub kind: u32,
    pub desc_bytes: usize,
    pub desc: *const VirtualRange,
    pub category: u32,
    pub message_type: u32,
    pub message: *const c_char,
}

#[repr(C)]
pub(super) struct RegisterBatch {
    pub compat: u16,
    pub bytes: u16,
    pub kind: u32,
    pub heap: Handle,
    pub count: usize,
    pub element_bytes: usize,
    pub elements: *const VirtualRange,
    pub handles: *mut Handle,
}

#[repr(C)]
pub(super) struct UnregisterBatch {
    pub compat: u16,
    pub bytes: u16,
    pub kind: u32,
    pub count: usize,
    pub element_bytes: usize,
    /// Addresses, as `kind` says.
    pub elements: *const *const c_void,
}

pub(super) type HeapRegister = unsafe extern "C" fn(Handle, *const HeapDesc) -> Handle;
pub(super) type HeapUnregister = unsafe extern "C" fn(Handle, Handle);
pub(super) type RegionsRegister = unsafe extern "C" fn(Handle, *const RegisterBatch);
pub(super) type RegionsUnregister = unsafe extern "C" fn(Handle, *const UnregisterBatch);

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<EventAttributes>() == 48);
    assert!(size_of::<ExportVersion>() == 24);
    assert!(size_of::<ModuleInfo>() == 40);
    assert!(size_of::<HeapDesc>() == 48);
    assert!(size_of::<RegisterBatch>() == 48);
    assert!(size_of::<UnregisterBatch>() == 32);
};
