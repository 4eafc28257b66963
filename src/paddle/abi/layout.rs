//! The measured layout: every size and offset of the 3.3.1 types, asserted at compile time, and the table of the
//! layouts that released hosts declare.

use super::CustomRuntimeParams;
use super::interface::C_DeviceInterface;
use super::types::*;
use std::mem::{align_of, offset_of, size_of};

/// Which of the version queries from offset 472 on a host's layout has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capabilities {
    /// `get_compute_capability(value)` and, behind it, at 480 and 488, the two versions, without a device argument.
    /// Millpond leaves them null: its answers differ by device.
    WithoutDevice,
    /// `get_compute_capability(device, value)` at 472, `get_runtime_version` at 488 and
    /// `get_driver_version` at 496.
    WithDevice,
}

/// The layout that a release of PaddlePaddle declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownLayout {
    /// The releases that were measured.
    pub releases: &'static str,
    /// `sizeof(C_DeviceInterface)` (bytes).
    pub interface_size: usize,
    /// `sizeof(CustomRuntimeParams)` (bytes).
    pub params_size: usize,
    /// Where the version queries are.
    pub capabilities: Capabilities,
}

const fn known(
    releases: &'static str,
    interface_size: usize,
    params_size: usize,
    capabilities: Capabilities,
) -> KnownLayout {
    KnownLayout { releases, interface_size, params_size, capabilities }
}

impl KnownLayout {
    /// Every member of `C_DeviceInterface` below this offset is the same in all known releases.
    pub const COMMON: usize = 472;
    /// What all releases have of `CustomRuntimeParams`: everything up to and including `sub_device_type`.
    pub const COMMON_PARAMS: usize = 56;
    /// A host that declares more than this has not initialised the size (bytes).
    pub const SIZE_LIMIT: usize = 65536;

    /// All measured layouts, oldest first. All have version 0.1.1, so only the sizes distinguish them.
    pub const ALL: &'static [KnownLayout] = &[
        known("2.6.2", 912, 88, Capabilities::WithoutDevice),
        known("3.0.0", 920, 96, Capabilities::WithoutDevice),
        known("3.1.1", 976, 96, Capabilities::WithDevice),
        known("3.2.2", 1032, 96, Capabilities::WithDevice),
        known("3.3.0, 3.3.1", 1128, 96, Capabilities::WithDevice),
    ];
}

/// The layout with exactly these two sizes, if one was measured.
pub fn known_layout(interface_size: usize, params_size: usize) -> Option<&'static KnownLayout> {
    KnownLayout::ALL.iter().find(|l| l.interface_size == interface_size && l.params_size == params_size)
}

/// `Type [size, align] { member: offset }`, checked at compile time.
macro_rules! layout {
    ($($name:ident [$size:literal, $align:literal] { $($member:ident: $offset:literal,)* })*) => {
        $(
            const _: () = assert!(size_of::<$name>() == $size);
            const _: () = assert!(align_of::<$name>() == $align);
            $(const _: () = assert!(offset_of!($name, $member) == $offset);)*
        )*
        /// The same facts (type, size, members with their offsets), for the test that compares the C header with them.
        #[doc(hidden)]
        pub const FACTS: &[(&str, usize, &[(&str, usize)])] =
            &[$((stringify!($name), $size, &[$((stringify!($member), $offset)),*])),*];
    };
}

const _: () = assert!(size_of::<C_Status>() == 4 && align_of::<C_Status>() == 4);
const _: () = assert!(size_of::<C_DataType>() == 4 && align_of::<C_DataType>() == 4);
const _: () = assert!(size_of::<C_DataLayout>() == 4 && align_of::<C_DataLayout>() == 4);
const _: () = assert!(size_of::<C_CCLReduceOp>() == 4 && align_of::<C_CCLReduceOp>() == 4);
const _: () = assert!(size_of::<C_StreamCaptureMode>() == 4 && align_of::<C_StreamCaptureMode>() == 4);
const _: () = assert!(size_of::<C_StreamCaptureStatus>() == 4);
const _: () = assert!(size_of::<C_Device>() == 8 && size_of::<C_Stream>() == 8);
const _: () = assert!(size_of::<C_Callback>() == 8 && size_of::<C_GraphExecuterSetter>() == 8);
const _: () = assert!(offset_of!(C_DeviceInterface, get_compute_capability) == KnownLayout::COMMON);
const _: () = assert!(offset_of!(CustomRuntimeParams, pir_default_passes) == KnownLayout::COMMON_PARAMS);

layout! {
    C_Device_st [4, 4] {
        id: 0,
    }
    C_GraphHookManager [24, 8] {
        size: 0,
        hooks: 8,
        user_data: 16,
    }
    C_CCLRootId [16, 8] {
        sz: 0,
        data: 8,
    }
    C_DeviceInterface [1128, 8] {
        size: 0,
        initialize: 8,
        finalize: 16,
        init_device: 24,
        set_device: 32,
        get_device: 40,
        deinit_device: 48,
        create_stream: 56,
        destroy_stream: 64,
        query_stream: 72,
        stream_add_callback: 80,
        create_event: 88,
        record_event: 96,
        destroy_event: 104,
        query_event: 112,
        synchronize_device: 120,
        synchronize_stream: 128,
        synchronize_event: 136,
        stream_wait_event: 144,
        reserved_dev_api: 152,
        device_memory_allocate: 216,
        device_memory_deallocate: 224,
        device_memory_set: 232,
        host_memory_allocate: 240,
        host_memory_deallocate: 248,
        unified_memory_allocate: 256,
        unified_memory_deallocate: 264,
        memory_copy_h2d: 272,
        memory_copy_d2h: 280,
        memory_copy_d2d: 288,
        memory_copy_p2p: 296,
        async_memory_copy_h2d: 304,
        async_memory_copy_d2h: 312,
        async_memory_copy_d2d: 320,
        async_memory_copy_p2p: 328,
        reserved_mem_api: 336,
        get_device_count: 400,
        get_device_list: 408,
        device_memory_stats: 416,
        device_min_chunk_size: 424,
        device_max_chunk_size: 432,
        device_max_alloc_size: 440,
        device_extra_padding_size: 448,
        device_init_alloc_size: 456,
        device_realloc_size: 464,
        get_compute_capability: 472,
        get_device_properties: 480,
        get_runtime_version: 488,
        get_driver_version: 496,
        get_multi_process: 504,
        get_max_threads_per_mp: 512,
        get_max_threads_per_block: 520,
        get_max_grid_dim_size: 528,
        is_float16_supported: 536,
        is_bfloat16_supported: 544,
        is_dnn_supported: 552,
        init_eigen_device: 560,
        destroy_eigen_device: 568,
        reserved_info_api: 576,
        xccl_get_comm_name: 640,
        xccl_get_unique_id_size: 648,
        xccl_get_unique_id: 656,
        xccl_comm_init_rank: 664,
        xccl_destroy_comm: 672,
        xccl_all_reduce: 680,
        xccl_broadcast: 688,
        xccl_reduce: 696,
        xccl_all_gather: 704,
        xccl_reduce_scatter: 712,
        xccl_group_start: 720,
        xccl_group_end: 728,
        xccl_send: 736,
        xccl_recv: 744,
        xccl_all_to_all: 752,
        reserved_ccl_api: 760,
        profiler_initialize: 824,
        profiler_finalize: 832,
        profiler_prepare_tracing: 840,
        profiler_start_tracing: 848,
        profiler_stop_tracing: 856,
        profiler_collect_trace_data: 864,
        reserved_profiler_api: 872,
        init_blas_handle: 936,
        blas_set_math_mode: 944,
        init_blaslt_handle: 952,
        destroy_blas_handle: 960,
        destroy_blaslt_handle: 968,
        cuda_stream_begin_capture: 976,
        cuda_stream_end_captrue: 984,
        cuda_graph_launch: 992,
        cuda_graph_destroy: 1000,
        cuda_graph_exec_destroy: 1008,
        cuda_graph_instantiate: 1016,
        cuda_graph_get_nodes: 1024,
        cuda_stream_capture_info: 1032,
        get_parameter_setter_for_exec_graph: 1040,
        cuda_graph_debug_dot_print: 1048,
        cuda_thread_exchange_stream_capthure_mode: 1056,
        blas_axpby: 1064,
        reserved_other_api: 1072,
    }
    CustomRuntimeVersion [24, 8] {
        major: 0,
        minor: 8,
        patch: 16,
    }
    CustomRuntimeParams [96, 8] {
        size: 0,
        interface: 8,
        version: 16,
        device_type: 40,
        sub_device_type: 48,
        pir_default_passes: 56,
        reserved: 64,
    }
}
