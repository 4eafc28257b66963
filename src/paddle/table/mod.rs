//! Millpond as a plugin: the private callbacks that a host's `C_DeviceInterface` gets, and what `InitPlugin` writes.
//!
//! How much is written depends on the sizes that the host declares, never on our own `sizeof`: below offset 472 all
//! releases agree; beyond it, only a host whose two sizes are exactly those of a measured release gets the version
//! queries. The C++ members stay as the host left them.

mod facts;
mod idle;
mod info;
mod memory;
mod options;
mod session;
mod streams;

use super::abi::{
    C_DeviceInterface, Capabilities, CustomRuntimeParams, CustomRuntimeVersion, KnownLayout, known_layout,
};
use options::Options;
use std::mem::{offset_of, size_of};

/// The minimum that a host's interface must declare: every callback that PaddlePaddle requires lies below it (bytes).
const INTERFACE_MIN: usize = offset_of!(C_DeviceInterface, device_memory_stats);
/// The minimum that a host's params must declare: the name of the device type lies below it (bytes).
const PARAMS_MIN: usize = offset_of!(CustomRuntimeParams, sub_device_type);

/// Fills what the host declared; the body of `InitPlugin`.
///
/// Changes nothing, so that the host refuses us by its own check of the version, if a pointer is null, if a struct is
/// too small for what every host needs or larger than any can be, or if the version field already holds a version other
/// than
/// 0.0.0 that is not compatible with 0.1.1 (another major number, or below 0.1.1).
///
/// # Safety
///
/// `params` is null or points to params that are as large as they declare, and so does their
/// `interface`; nobody else uses them during the call.
pub unsafe fn init_plugin(params: *mut CustomRuntimeParams) {
    if params.is_null() || !params.is_aligned() {
        return;
    }
    // Field by field through pointers: a reference would claim more bytes than an older host has.
    // SAFETY: not null; every host's params start with their size.
    let params_size = unsafe { (&raw const (*params).size).read() };
    if !(PARAMS_MIN..=KnownLayout::SIZE_LIMIT).contains(&params_size) {
        return;
    }
    // SAFETY: the declared size holds the members up to `PARAMS_MIN`.
    let table = unsafe { (&raw const (*params).interface).read() };
    // SAFETY: as above.
    let version = unsafe { (&raw const (*params).version).read() };
    if table.is_null() || !table.is_aligned() {
        return;
    }
    // SAFETY: not null; every host's interface starts with its size.
    let table_size = unsafe { (&raw const (*table).size).read() };
    let current = CustomRuntimeVersion::CURRENT;
    let foreign_version =
        version.number() != 0 && (version.major != current.major || version.number() < current.number());
    if !(INTERFACE_MIN..=KnownLayout::SIZE_LIMIT).contains(&table_size) || foreign_version {
        return;
    }
    let options = Options::get();

    let layout = known_layout(table_size, params_size);
    // SAFETY: the caller vouches for the declared bytes; `fill` stays inside them.
    unsafe { fill(table, table_size, layout) };

    // SAFETY: these members lie below `PARAMS_MIN`, which the declared size covers.
    unsafe {
        (&raw mut (*params).version).write(current);
        (&raw mut (*params).device_type).write(options.device_type.as_ptr().cast_mut());
    }
    if params_size >= PARAMS_MIN + size_of::<usize>() {
        // SAFETY: the declared size covers this member too.
        unsafe { (&raw mut (*params).sub_device_type).write(options.sub_device_type.as_ptr().cast_mut()) };
    }
}

/// Stores the callbacks that lie below the end of what may be written.
///
/// # Safety
///
/// `table` points to at least `declared` writable bytes.
unsafe fn fill(table: *mut C_DeviceInterface, declared: usize, layout: Option<&KnownLayout>) {
    let mut end = declared.min(KnownLayout::COMMON);
    macro_rules! put {
        ($($member:ident = $callback:path;)*) => {$(
            if offset_of!(C_DeviceInterface, $member) + size_of::<usize>() <= end {
                // SAFETY: the member lies inside the bytes that the caller vouches for.
                unsafe { (&raw mut (*table).$member).write(Some($callback)) };
            }
        )*};
    }
    put! {
        initialize = session::initialize;
        finalize = session::finalize;
        init_device = session::init_device;
        set_device = session::set_device;
        get_device = session::get_device;
        deinit_device = session::deinit_device;
        create_stream = streams::create_stream;
        destroy_stream = streams::destroy_stream;
        query_stream = streams::query_stream;
        stream_add_callback = streams::stream_add_callback;
        create_event = streams::create_event;
        record_event = streams::record_event;
        destroy_event = streams::destroy_event;
        query_event = streams::query_event;
        synchronize_device = streams::synchronize_device;
        synchronize_stream = streams::synchronize_stream;
        synchronize_event = streams::synchronize_event;
        stream_wait_event = streams::stream_wait_event;
        device_memory_allocate = memory::device_memory_allocate;
        device_memory_deallocate = memory::device_memory_deallocate;
        device_memory_set = memory::device_memory_set;
        host_memory_allocate = memory::host_memory_allocate;
        host_memory_deallocate = memory::host_memory_deallocate;
        unified_memory_allocate = memory::unified_memory_allocate;
        unified_memory_deallocate = memory::unified_memory_deallocate;
        memory_copy_h2d = memory::memory_copy_h2d;
        memory_copy_d2h = memory::memory_copy_d2h;
        memory_copy_d2d = memory::memory_copy_d2d;
        memory_copy_p2p = memory::memory_copy_p2p;
        async_memory_copy_h2d = memory::async_memory_copy_h2d;
        async_memory_copy_d2h = memory::async_memory_copy_d2h;
        async_memory_copy_d2d = memory::async_memory_copy_d2d;
        async_memory_copy_p2p = memory::async_memory_copy_p2p;
        get_device_count = info::get_device_count;
        get_device_list = info::get_device_list;
        device_memory_stats = info::device_memory_stats;
        device_min_chunk_size = info::device_min_chunk_size;
        device_max_chunk_size = info::device_max_chunk_size;
        device_max_alloc_size = info::device_max_alloc_size;
        device_extra_padding_size = info::device_extra_padding_size;
        device_init_alloc_size = info::device_init_alloc_size;
        device_realloc_size = info::device_realloc_size;
    }
    if layout.is_some_and(|l| l.capabilities == Capabilities::WithDevice) {
        end = declared;
        put! {
            get_compute_capability = info::get_compute_capability;
            get_runtime_version = info::get_runtime_version;
            get_driver_version = info::get_driver_version;
        }
    }
}
