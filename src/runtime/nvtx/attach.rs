//! How a tool is found, and what it is told: all calls of NVTX functions are here.
//!
//! The tool's functions are called from any thread, with locks held (`docs/architecture.md`, "Locks"). They do not call this
//! library.

use super::abi::*;
use crate::base::loaded;
use libloading::os::unix::{Library, RTLD_LAZY};
use std::ffi::{CStr, c_int, c_void};
use std::ptr::{from_mut, from_ref, null, null_mut, without_provenance};
use std::sync::atomic::{AtomicIsize, AtomicPtr, Ordering::Relaxed};

const VARIABLE: &str = if usize::BITS == 64 { "NVTX_INJECTION64_PATH" } else { "NVTX_INJECTION32_PATH" };
/// The greatest number of slots of a module, and a null behind the last.
const MOST: usize = 17;

/// The functions that the tool has put in, by module and callback.
static SLOTS: [[Slot; MOST]; SIZES.len()] =
    [const { [const { AtomicPtr::new(null_mut()) }; MOST] }; SIZES.len()];
/// Where each of them lies; the tool gets this table.
static TABLES: [[AtomicPtr<Slot>; MOST]; SIZES.len()] =
    [const { [const { AtomicPtr::new(null_mut()) }; MOST] }; SIZES.len()];
static MEM: [AtomicIsize; MEM_SLOTS] = [const { AtomicIsize::new(0) }; MEM_SLOTS];

static EXPORT_CALLBACKS: ExportCallbacks = ExportCallbacks { bytes: size_of::<ExportCallbacks>(), table };
static EXPORT_VERSION: ExportVersion =
    ExportVersion { bytes: size_of::<ExportVersion>(), version: VERSION as u32, reserved: 0, set_version };

/// The function that the tool calls first, to get the tables.
unsafe extern "C" fn export(what: u32) -> *const c_void {
    match what {
        CALLBACKS => from_ref(&EXPORT_CALLBACKS).cast(),
        VERSION_INFO => from_ref(&EXPORT_VERSION).cast(),
        _ => null(),
    }
}

unsafe extern "C" fn set_version(_: u32) {}

/// Gives the tool the table of a module. 0: there is no such module.
unsafe extern "C" fn table(module: c_int, to: *mut *const AtomicPtr<Slot>, count: *mut u32) -> c_int {
    let module = usize::try_from(module).unwrap_or(0);
    let Some(&size) = SIZES.get(module).filter(|&&s| s != 0) else { return 0 };
    if !to.is_null() {
        // SAFETY: the tool's pointer, to be written.
        unsafe { to.write(TABLES[module].as_ptr()) };
    }
    if !count.is_null() {
        // SAFETY: as above.
        unsafe { count.write(size as u32) };
    }
    1
}

/// A tool that was found. Its functions are in the tables and stay there.
pub(super) struct Tool {
    domain: AtomicPtr<c_void>,
    memory: Option<Memory>,
}

/// The functions of the memory extension.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    domain: Domain,
    heap_register: HeapRegister,
    heap_unregister: HeapUnregister,
    regions_register: RegionsRegister,
    regions_unregister: RegionsUnregister,
}

/// The tool's handle for its domain, as a number: it is never followed here.
type Domain = usize;

/// The tool that the environment names, after it has filled in the tables. `None` if it names none, or if the tool declines.
pub(super) fn find() -> Option<Tool> {
    let path = std::env::var_os(VARIABLE).filter(|p| !p.is_empty())?;
    for (module, &size) in SIZES.iter().enumerate() {
        for at in 1..size {
            TABLES[module][at].store(from_ref(&SLOTS[module][at]).cast_mut(), Relaxed);
        }
    }
    loaded::keep(); // the tool keeps functions and tables of ours
    // SAFETY: whoever set the variable wants this library in the process, with whatever it does when it is loaded.
    let library = unsafe { Library::open(Some(&path), RTLD_LAZY) }.ok()?;
    // SAFETY: NVTX gives the function of this name this type.
    let begin = unsafe { library.get::<Initialize>(b"InitializeInjectionNvtx2\0") }.map(|f| *f);
    const EXTENSION: &[u8] = b"InitializeInjectionNvtxExtension\0";
    // SAFETY: as above.
    let extend = unsafe { library.get::<InitializeExtension>(EXTENSION) }.map(|f| *f);
    std::mem::forget(library); // its functions are called for as long as the process lives
    // SAFETY: the tool's own function with the argument that NVTX gives it.
    if unsafe { begin.ok()?(export) } == 0 {
        return None;
    }
    if let Some(f) = function::<InitializeTool>(&SLOTS[CORE2][INITIALIZE]) {
        // SAFETY: the tool's function; its argument is reserved.
        unsafe { f(null()) };
    }
    let mut domain: Handle = null_mut();
    if let Some(create) = function::<DomainCreate>(&SLOTS[CORE2][DOMAIN_CREATE]) {
        // SAFETY: the tool's function, and a C string.
        domain = unsafe { create(c"millpond".as_ptr()) };
    }
    let memory = extend.ok().and_then(|f| extension(f, domain.addr()));
    Some(Tool { domain: AtomicPtr::new(domain), memory })
}

/// The memory extension, if the tool has it.
fn extension(extend: InitializeExtension, domain: Domain) -> Option<Memory> {
    let mut segment = ModuleSegment { number: 1, count: MEM_SLOTS, slots: MEM.as_ptr() };
    let mut info = ModuleInfo {
        version: VERSION,
        bytes: size_of::<ModuleInfo>() as u16,
        module: MEM_MODULE,
        compat: MEM_COMPAT,
        segment_count: 1,
        segments: from_mut(&mut segment),
        get_export: null(),
        extra: null(),
    };
    // SAFETY: the tool's function, and what NVTX gives it; only the slots outlive the call.
    if unsafe { extend(&mut info) } == 0 {
        return None;
    }
    let slot = |n: usize| Some(MEM[n].load(Relaxed)).filter(|f| !(0..=NO_FUNCTION).contains(f));
    let at = |n| slot(n).map(|f| without_provenance::<c_void>(f as usize));
    let (a, b) = (at(HEAP_REGISTER)?, at(HEAP_UNREGISTER)?);
    let (c, d) = (at(REGIONS_REGISTER)?, at(REGIONS_UNREGISTER)?);
    Some(Memory {
        domain,
        // SAFETY: the tool has put the function of this number there, to which NVTX gives this type.
        heap_register: unsafe { std::mem::transmute::<*const c_void, HeapRegister>(a) },
        // SAFETY: as above.
        heap_unregister: unsafe { std::mem::transmute::<*const c_void, HeapUnregister>(b) },
        // SAFETY: as above.
        regions_register: unsafe { std::mem::transmute::<*const c_void, RegionsRegister>(c) },
        // SAFETY: as above.
        regions_unregister: unsafe { std::mem::transmute::<*const c_void, RegionsUnregister>(d) },
    })
}

/// The function that the tool has put into a slot, if any. `F` is the type of the function pointer.
fn function<F: Copy>(slot: &Slot) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let f = slot.load(Relaxed);
    // SAFETY: not null, so it is the tool's function, to which NVTX gives the type that the caller names.
    (!f.is_null()).then(|| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&f) })
}

fn attributes(what: &'static CStr, value: u64) -> EventAttributes {
    EventAttributes {
        version: VERSION,
        bytes: size_of::<EventAttributes>() as u16,
        category: 0,
        color_type: 0,
        color: 0,
        payload_type: UNSIGNED_64,
        reserved: 0,
        payload: value,
        message_type: ASCII,
        message: what.as_ptr(),
    }
}

impl Tool {
    pub(super) fn memory(&self) -> Option<Memory> {
        self.memory
    }

    pub(super) fn mark(&self, what: &'static CStr, value: u64) {
        if let Some(f) = function::<Mark>(&SLOTS[CORE2][MARK]) {
            // SAFETY: the tool's function with its own domain; it copies the attributes.
            unsafe { f(self.domain.load(Relaxed), &attributes(what, value)) };
        }
    }

    /// Begins a range on this thread. Returns whether it must be ended.
    pub(super) fn push(&self, what: &'static CStr, value: u64) -> bool {
        let Some(f) = function::<RangePush>(&SLOTS[CORE2][RANGE_PUSH]) else { return false };
        // SAFETY: as above.
        unsafe { f(self.domain.load(Relaxed), &attributes(what, value)) };
        true
    }

    pub(super) fn pop(&self) {
        if let Some(f) = function::<RangePop>(&SLOTS[CORE2][RANGE_POP]) {
            // SAFETY: the tool's function with its own domain.
            unsafe { f(self.domain.load(Relaxed)) };
        }
    }
}

impl Memory {
    fn domain(&self) -> Handle {
        std::ptr::without_provenance_mut(self.domain)
    }

    /// Registers a range, of which only regions may be used. Returns the tool's number for it, or `None`.
    pub(crate) fn heap(&self, address: u64, bytes: u64) -> Option<usize> {
        let range = VirtualRange { bytes: bytes as usize, at: without_provenance(address as usize) };
        let desc = HeapDesc {
            compat: MEM_COMPAT,
            bytes: size_of::<HeapDesc>() as u16,
            reserved: 0,
            usage: SUB_ALLOCATOR,
            kind: VIRTUAL_ADDRESS,
            desc_bytes: size_of::<VirtualRange>(),
            desc: &range,
            category: 0,
            message_type: ASCII,
            message: c"millpond".as_ptr(),
        };
        // SAFETY: the tool's function with its own domain; what it is given lives until it returns.
        let heap = unsafe { (self.heap_register)(self.domain(), &desc) };
        (!heap.is_null()).then(|| heap.addr())
    }

    /// Unregisters a heap, which has no regions any more.
    pub(crate) fn end_heap(&self, heap: usize) {
        let heap = std::ptr::without_provenance_mut(heap);
        // SAFETY: the tool's function with its own domain and heap.
        unsafe { (self.heap_unregister)(self.domain(), heap) };
    }

    /// Registers a region of a heap: memory that may be used.
    pub(crate) fn region(&self, heap: usize, address: u64, bytes: u64) {
        let range = VirtualRange { bytes: bytes as usize, at: without_provenance(address as usize) };
        let batch = RegisterBatch {
            compat: MEM_COMPAT,
            bytes: size_of::<RegisterBatch>() as u16,
            kind: VIRTUAL_ADDRESS,
            heap: std::ptr::without_provenance_mut(heap),
            count: 1,
            element_bytes: size_of::<VirtualRange>(),
            elements: &range,
            handles: null_mut(),
        };
        // SAFETY: as in `heap`.
        unsafe { (self.regions_register)(self.domain(), &batch) };
    }

    /// Unregisters the region that begins at `address`.
    pub(crate) fn end_region(&self, address: u64) {
        let at: *const c_void = without_provenance(address as usize);
        let batch = UnregisterBatch {
            compat: MEM_COMPAT,
            bytes: size_of::<UnregisterBatch>() as u16,
            kind: BY_POINTER,
            count: 1,
            element_bytes: size_of::<*const c_void>(),
            elements: &at,
        };
        // SAFETY: as in `heap`.
        unsafe { (self.regions_unregister)(self.domain(), &batch) };
    }
}
