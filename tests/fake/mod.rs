//! A plugin in Rust for the tests: two devices on ordinary memory, with every callback. Before its `init` runs, the
//! calling thread sets how it should differ.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use millpond::paddle::abi::*;
use std::alloc::Layout;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

type Tweak = Box<dyn FnMut(&mut CustomRuntimeParams, &mut C_DeviceInterface)>;

thread_local! {
    static TWEAK: RefCell<Option<Tweak>> = const { RefCell::new(None) };
    /// The device that `set_device` made current on this thread.
    pub static CURRENT: Cell<c_int> = const { Cell::new(-1) };
    /// Calls on this thread that named another device; other tests leave `set_device` out.
    pub static WRONG_DEVICE: Cell<usize> = const { Cell::new(0) };
}

/// Sizes of the live allocations, by address.
pub static LIVE: Mutex<Option<HashMap<usize, usize>>> = Mutex::new(None);
static HANDLES: AtomicU64 = AtomicU64::new(16);

/// Registers the plugin under `name`, changed by `tweak`.
pub fn register(
    name: &str,
    mut tweak: impl FnMut(&mut CustomRuntimeParams, &mut C_DeviceInterface) + 'static,
) -> millpond::Result<String> {
    let name = CString::new(name).unwrap();
    TWEAK.with(|t| {
        *t.borrow_mut() = Some(Box::new(move |params, table| {
            params.device_type = name.clone().into_raw();
            tweak(params, table);
        }));
    });
    // SAFETY: `init` follows the contract but for what a test breaks on purpose.
    unsafe { millpond::paddle::register_init(init) }
}

pub unsafe extern "C-unwind" fn init(params: *mut CustomRuntimeParams) {
    // SAFETY: the host's contract.
    let params = unsafe { &mut *params };
    // SAFETY: as above.
    let table = unsafe { &mut *params.interface };
    params.version = CustomRuntimeVersion::CURRENT;
    params.device_type = c"fake".as_ptr().cast_mut();
    table.set_device = Some(set_device);
    table.create_stream = Some(create_stream);
    table.destroy_stream = Some(on_stream);
    table.synchronize_stream = Some(on_stream);
    table.query_stream = Some(on_stream);
    table.create_event = Some(create_event);
    table.record_event = Some(with_event);
    table.destroy_event = Some(on_event);
    table.synchronize_event = Some(on_event);
    table.synchronize_device = Some(on_device);
    table.device_memory_allocate = Some(allocate);
    table.device_memory_deallocate = Some(deallocate);
    table.device_memory_set = Some(fill);
    table.memory_copy_h2d = Some(copy);
    table.memory_copy_d2h = Some(copy);
    table.memory_copy_d2d = Some(copy);
    table.memory_copy_p2p = Some(copy_p2p);
    table.async_memory_copy_h2d = Some(copy_async);
    table.async_memory_copy_d2h = Some(copy_async);
    table.async_memory_copy_d2d = Some(copy_async);
    table.get_device_count = Some(count);
    table.get_device_list = Some(list);
    table.device_memory_stats = Some(stats);
    table.device_min_chunk_size = Some(min_chunk);
    // It stays: a host may call again, with the struct sizes of another release.
    TWEAK.with(|t| {
        if let Some(tweak) = t.borrow_mut().as_mut() {
            tweak(params, table);
        }
    });
}

/// Leaves only what is required of a plugin.
pub fn minimal(table: &mut C_DeviceInterface) {
    let size = table.size;
    // SAFETY: all zeroes is a valid table.
    *table = unsafe { std::mem::zeroed() };
    table.size = size;
    table.device_memory_allocate = Some(allocate);
    table.device_memory_deallocate = Some(deallocate);
    table.memory_copy_h2d = Some(copy);
    table.memory_copy_d2h = Some(copy);
    table.get_device_count = Some(count);
}

fn check(d: C_Device) {
    // SAFETY: the host gives a device for the length of the call.
    let id = unsafe { (*d).id };
    if CURRENT.with(Cell::get) != id {
        WRONG_DEVICE.set(WRONG_DEVICE.get() + 1);
    }
}

pub unsafe extern "C-unwind" fn set_device(d: C_Device) -> C_Status {
    // SAFETY: as in `check`.
    CURRENT.with(|c| c.set(unsafe { (*d).id }));
    C_Status::SUCCESS
}

pub unsafe extern "C-unwind" fn on_device(d: C_Device) -> C_Status {
    check(d);
    C_Status::SUCCESS
}

pub unsafe extern "C-unwind" fn create_stream(d: C_Device, out: *mut C_Stream) -> C_Status {
    check(d);
    // SAFETY: the host's place for the answer.
    unsafe { *out = (HANDLES.fetch_add(16, Ordering::SeqCst) as usize) as C_Stream };
    C_Status::SUCCESS
}

pub unsafe extern "C-unwind" fn null_stream(_d: C_Device, out: *mut C_Stream) -> C_Status {
    // SAFETY: the host's place for the answer.
    unsafe { *out = std::ptr::null_mut() };
    C_Status::SUCCESS
}

pub unsafe extern "C-unwind" fn on_stream(d: C_Device, _s: C_Stream) -> C_Status {
    check(d);
    C_Status::SUCCESS
}

pub unsafe extern "C-unwind" fn create_event(d: C_Device, out: *mut C_Event) -> C_Status {
    check(d);
    // SAFETY: the host's place for the answer.
    unsafe { *out = (HANDLES.fetch_add(16, Ordering::SeqCst) as usize) as C_Event };
    C_Status::SUCCESS
}

pub unsafe extern "C-unwind" fn null_event(_d: C_Device, out: *mut C_Event) -> C_Status {
    // SAFETY: the host's place for the answer.
    unsafe { *out = std::ptr::null_mut() };
    C_Status::SUCCESS
}

pub unsafe extern "C-unwind" fn with_event(d: C_Device, _s: C_Stream, _e: C_Event) -> C_Status {
    check(d);
    C_Status::SUCCESS
}

pub unsafe extern "C-unwind" fn on_event(d: C_Device, _e: C_Event) -> C_Status {
    check(d);
    C_Status::SUCCESS
}

pub unsafe extern "C-unwind" fn allocate(d: C_Device, out: *mut *mut c_void, size: usize) -> C_Status {
    if d.is_null() || size == 0 {
        return C_Status::ERROR;
    }
    // SAFETY: the size is not 0, the alignment a power of two.
    let memory = unsafe { std::alloc::alloc(Layout::from_size_align(size, 256).unwrap()) };
    LIVE.lock().unwrap().get_or_insert_default().insert(memory as usize, size);
    // SAFETY: the host's place for the answer.
    unsafe { *out = memory.cast() };
    C_Status::SUCCESS
}

/// Fails unless the size is that of the allocation.
pub unsafe extern "C-unwind" fn deallocate(_d: C_Device, ptr: *mut c_void, size: usize) -> C_Status {
    if LIVE.lock().unwrap().get_or_insert_default().remove(&(ptr as usize)) != Some(size) {
        return C_Status::INTERNAL_ERROR;
    }
    // SAFETY: taken by `allocate` with this layout.
    unsafe { std::alloc::dealloc(ptr.cast(), Layout::from_size_align(size, 256).unwrap()) };
    C_Status::SUCCESS
}

pub unsafe extern "C-unwind" fn fill(_d: C_Device, ptr: *mut c_void, value: u8, size: usize) -> C_Status {
    // SAFETY: the host checked the range.
    unsafe { ptr.cast::<u8>().write_bytes(value, size) };
    C_Status::SUCCESS
}

pub unsafe extern "C-unwind" fn copy(
    _d: C_Device,
    dst: *mut c_void,
    src: *const c_void,
    size: usize,
) -> C_Status {
    // SAFETY: the host checked the ranges.
    unsafe { dst.cast::<u8>().copy_from(src.cast(), size) };
    C_Status::SUCCESS
}

pub unsafe extern "C-unwind" fn copy_async(
    d: C_Device,
    _s: C_Stream,
    dst: *mut c_void,
    src: *const c_void,
    size: usize,
) -> C_Status {
    check(d);
    // SAFETY: as `copy`.
    unsafe { copy(d, dst, src, size) }
}

pub unsafe extern "C-unwind" fn copy_p2p(
    to: C_Device,
    from: C_Device,
    dst: *mut c_void,
    src: *const c_void,
    size: usize,
) -> C_Status {
    check(from);
    // SAFETY: as `copy`.
    unsafe { copy(to, dst, src, size) }
}

pub unsafe extern "C-unwind" fn count(out: *mut usize) -> C_Status {
    // SAFETY: the host's place for the answer.
    unsafe { *out = 2 };
    C_Status::SUCCESS
}

pub unsafe extern "C-unwind" fn list(out: *mut usize) -> C_Status {
    for i in 0..2 {
        // SAFETY: room for `count` ids.
        unsafe { *out.add(i) = i };
    }
    C_Status::SUCCESS
}

pub unsafe extern "C-unwind" fn stats(_d: C_Device, total: *mut usize, free: *mut usize) -> C_Status {
    // SAFETY: the host's places for the answers.
    unsafe { (*total, *free) = (64 << 20, 32 << 20) };
    C_Status::SUCCESS
}

pub unsafe extern "C-unwind" fn min_chunk(_d: C_Device, out: *mut usize) -> C_Status {
    // SAFETY: the host's place for the answer.
    unsafe { *out = 512 };
    C_Status::SUCCESS
}
