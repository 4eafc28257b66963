//! `C_DeviceInterface`, complete, as PaddlePaddle 3.3.1 lays it out: the table of callbacks that a plugin fills and a
//! host reads. Offsets 0 to 471 are the same in every release since 2.6; what follows has moved in each. Never hold a
//! reference to a host's table: it may be shorter than this type.

use super::types::*;
use std::ffi::{c_char, c_void};

/// The table of callbacks. Only the first sentence of each contract is given here; `include/millpond/custom_runtime.h`
/// has the rest.
#[repr(C)]
pub struct C_DeviceInterface {
    /// `sizeof` of the interface as the host knows it (bytes).
    pub size: usize,

    // ---- devices, streams and events ----
    /// Makes the plugin ready.
    pub initialize: Option<unsafe extern "C-unwind" fn() -> C_Status>,
    /// Ends the plugin.
    pub finalize: Option<unsafe extern "C-unwind" fn() -> C_Status>,
    /// Prepares one device.
    pub init_device: Option<unsafe extern "C-unwind" fn(device: C_Device) -> C_Status>,
    /// Makes the device current for the calling thread (and for no other).
    pub set_device: Option<unsafe extern "C-unwind" fn(device: C_Device) -> C_Status>,
    /// Stores the calling thread's current device.
    pub get_device: Option<unsafe extern "C-unwind" fn(out_device: C_Device) -> C_Status>,
    /// Ends one device.
    pub deinit_device: Option<unsafe extern "C-unwind" fn(device: C_Device) -> C_Status>,
    /// A new stream.
    pub create_stream:
        Option<unsafe extern "C-unwind" fn(device: C_Device, out_stream: *mut C_Stream) -> C_Status>,
    /// Ends a stream; work queued on it still completes.
    pub destroy_stream: Option<unsafe extern "C-unwind" fn(device: C_Device, stream: C_Stream) -> C_Status>,
    /// C_SUCCESS when nothing queued on the stream is unfinished, any other status when something is.
    pub query_stream: Option<unsafe extern "C-unwind" fn(device: C_Device, stream: C_Stream) -> C_Status>,
    /// Calls `callback` once, when the stream reaches it, from a thread of the plugin that holds no lock.
    pub stream_add_callback: Option<
        unsafe extern "C-unwind" fn(
            device: C_Device,
            stream: C_Stream,
            callback: C_Callback,
            user_data: *mut c_void,
        ) -> C_Status,
    >,
    /// A new event, which counts as completed.
    pub create_event:
        Option<unsafe extern "C-unwind" fn(device: C_Device, out_event: *mut C_Event) -> C_Status>,
    /// Makes the event stand for everything queued on the stream so far.
    pub record_event:
        Option<unsafe extern "C-unwind" fn(device: C_Device, stream: C_Stream, event: C_Event) -> C_Status>,
    /// Ends an event; waits for it that are already queued stay in force.
    pub destroy_event: Option<unsafe extern "C-unwind" fn(device: C_Device, event: C_Event) -> C_Status>,
    /// C_SUCCESS when what the event recorded is done, any other status when it is not.
    pub query_event: Option<unsafe extern "C-unwind" fn(device: C_Device, event: C_Event) -> C_Status>,
    /// Waits for all work queued on the device.
    pub synchronize_device: Option<unsafe extern "C-unwind" fn(device: C_Device) -> C_Status>,
    /// Waits for all work queued on the stream.
    pub synchronize_stream:
        Option<unsafe extern "C-unwind" fn(device: C_Device, stream: C_Stream) -> C_Status>,
    /// Waits for what the event recorded.
    pub synchronize_event: Option<unsafe extern "C-unwind" fn(device: C_Device, event: C_Event) -> C_Status>,
    /// Makes work queued on the stream from now on wait for what the event has recorded; the host does not wait.
    pub stream_wait_event:
        Option<unsafe extern "C-unwind" fn(device: C_Device, stream: C_Stream, event: C_Event) -> C_Status>,
    /// Room for later members; null.
    pub reserved_dev_api: [*mut c_void; 8],

    // ---- memory ----
    /// Takes `size_bytes` of device memory.
    pub device_memory_allocate: Option<
        unsafe extern "C-unwind" fn(
            device: C_Device,
            out_ptr: *mut *mut c_void,
            size_bytes: usize,
        ) -> C_Status,
    >,
    /// Gives back what `device_memory_allocate` returned, with the size of that call.
    pub device_memory_deallocate: Option<
        unsafe extern "C-unwind" fn(device: C_Device, ptr: *mut c_void, size_bytes: usize) -> C_Status,
    >,
    /// Fills device memory with a byte, and returns when done.
    pub device_memory_set: Option<
        unsafe extern "C-unwind" fn(
            device: C_Device,
            ptr: *mut c_void,
            value: u8,
            size_bytes: usize,
        ) -> C_Status,
    >,
    /// Host memory that copies to and from the device fast (page-locked).
    pub host_memory_allocate: Option<
        unsafe extern "C-unwind" fn(
            device: C_Device,
            out_ptr: *mut *mut c_void,
            size_bytes: usize,
        ) -> C_Status,
    >,
    /// Gives back what `host_memory_allocate` returned.
    pub host_memory_deallocate: Option<
        unsafe extern "C-unwind" fn(device: C_Device, ptr: *mut c_void, size_bytes: usize) -> C_Status,
    >,
    /// Memory that host and device access at the same address.
    pub unified_memory_allocate: Option<
        unsafe extern "C-unwind" fn(
            device: C_Device,
            out_ptr: *mut *mut c_void,
            size_bytes: usize,
        ) -> C_Status,
    >,
    /// Gives back what `unified_memory_allocate` returned.
    pub unified_memory_deallocate: Option<
        unsafe extern "C-unwind" fn(device: C_Device, ptr: *mut c_void, size_bytes: usize) -> C_Status,
    >,
    /// Copies host memory to device memory, and returns when the bytes have arrived.
    pub memory_copy_h2d: Option<
        unsafe extern "C-unwind" fn(
            device: C_Device,
            dst: *mut c_void,
            src: *const c_void,
            size_bytes: usize,
        ) -> C_Status,
    >,
    /// Copies device memory to host memory, and returns when the bytes have arrived.
    pub memory_copy_d2h: Option<
        unsafe extern "C-unwind" fn(
            device: C_Device,
            dst: *mut c_void,
            src: *const c_void,
            size_bytes: usize,
        ) -> C_Status,
    >,
    /// Copies within one device, and returns when done.
    pub memory_copy_d2d: Option<
        unsafe extern "C-unwind" fn(
            device: C_Device,
            dst: *mut c_void,
            src: *const c_void,
            size_bytes: usize,
        ) -> C_Status,
    >,
    /// Copies from one device to another of the same type, and returns when done.
    pub memory_copy_p2p: Option<
        unsafe extern "C-unwind" fn(
            dst_device: C_Device,
            src_device: C_Device,
            dst: *mut c_void,
            src: *const c_void,
            size_bytes: usize,
        ) -> C_Status,
    >,
    /// Queues a copy from host memory on a stream.
    pub async_memory_copy_h2d: Option<
        unsafe extern "C-unwind" fn(
            device: C_Device,
            stream: C_Stream,
            dst: *mut c_void,
            src: *const c_void,
            size_bytes: usize,
        ) -> C_Status,
    >,
    /// Queues a copy to host memory on a stream.
    pub async_memory_copy_d2h: Option<
        unsafe extern "C-unwind" fn(
            device: C_Device,
            stream: C_Stream,
            dst: *mut c_void,
            src: *const c_void,
            size_bytes: usize,
        ) -> C_Status,
    >,
    /// Queues a copy within one device.
    pub async_memory_copy_d2d: Option<
        unsafe extern "C-unwind" fn(
            device: C_Device,
            stream: C_Stream,
            dst: *mut c_void,
            src: *const c_void,
            size_bytes: usize,
        ) -> C_Status,
    >,
    /// Queues a copy between devices on a stream of the source device.
    pub async_memory_copy_p2p: Option<
        unsafe extern "C-unwind" fn(
            dst_device: C_Device,
            src_device: C_Device,
            stream: C_Stream,
            dst: *mut c_void,
            src: *const c_void,
            size_bytes: usize,
        ) -> C_Status,
    >,
    /// Room for later members; null.
    pub reserved_mem_api: [*mut c_void; 8],

    // ---- information ----
    /// Stores the number of devices, 0 or more.
    pub get_device_count: Option<unsafe extern "C-unwind" fn(out_count: *mut usize) -> C_Status>,
    /// Stores the ids of all devices into an array of `get_device_count` entries.
    pub get_device_list: Option<unsafe extern "C-unwind" fn(out_ids: *mut usize) -> C_Status>,
    /// Stores how many bytes the device has, and how many are free now.
    pub device_memory_stats: Option<
        unsafe extern "C-unwind" fn(
            device: C_Device,
            out_total_bytes: *mut usize,
            out_free_bytes: *mut usize,
        ) -> C_Status,
    >,
    /// Requests are rounded up to a multiple of this (bytes).
    pub device_min_chunk_size:
        Option<unsafe extern "C-unwind" fn(device: C_Device, out_size_bytes: *mut usize) -> C_Status>,
    /// A chunk larger than this (bytes) goes to the device directly and is not pooled.
    pub device_max_chunk_size:
        Option<unsafe extern "C-unwind" fn(device: C_Device, out_size_bytes: *mut usize) -> C_Status>,
    /// The host never holds more than this of the device in total (bytes).
    pub device_max_alloc_size:
        Option<unsafe extern "C-unwind" fn(device: C_Device, out_size_bytes: *mut usize) -> C_Status>,
    /// Added to each request before it is rounded up to the min chunk (bytes).
    pub device_extra_padding_size:
        Option<unsafe extern "C-unwind" fn(device: C_Device, out_size_bytes: *mut usize) -> C_Status>,
    /// Size of the first chunk that a pooling host takes (bytes).
    pub device_init_alloc_size:
        Option<unsafe extern "C-unwind" fn(device: C_Device, out_size_bytes: *mut usize) -> C_Status>,
    /// Size of each later chunk (bytes).
    pub device_realloc_size:
        Option<unsafe extern "C-unwind" fn(device: C_Device, out_size_bytes: *mut usize) -> C_Status>,
    /// Stores the compute capability, major * 10 + minor.
    pub get_compute_capability:
        Option<unsafe extern "C-unwind" fn(device: C_Device, out_value: *mut usize) -> C_Status>,
    /// `properties` is a C++ object of PaddlePaddle's.
    pub get_device_properties:
        Option<unsafe extern "C-unwind" fn(device: C_Device, properties: *mut c_void) -> C_Status>,
    /// Stores the version of the runtime library.
    pub get_runtime_version:
        Option<unsafe extern "C-unwind" fn(device: C_Device, out_value: *mut usize) -> C_Status>,
    /// Stores the version of the driver.
    pub get_driver_version:
        Option<unsafe extern "C-unwind" fn(device: C_Device, out_value: *mut usize) -> C_Status>,
    /// Stores the number of multiprocessors.
    pub get_multi_process:
        Option<unsafe extern "C-unwind" fn(device: C_Device, out_value: *mut usize) -> C_Status>,
    /// Stores how many threads a multiprocessor holds.
    pub get_max_threads_per_mp:
        Option<unsafe extern "C-unwind" fn(device: C_Device, out_value: *mut usize) -> C_Status>,
    /// Stores how many threads a block may have.
    pub get_max_threads_per_block:
        Option<unsafe extern "C-unwind" fn(device: C_Device, out_value: *mut usize) -> C_Status>,
    /// Stores the largest grid, three numbers.
    pub get_max_grid_dim_size:
        Option<unsafe extern "C-unwind" fn(device: C_Device, out_sizes: *mut [u32; 3]) -> C_Status>,
    /// Stores whether kernels may use 16-bit floats.
    pub is_float16_supported:
        Option<unsafe extern "C-unwind" fn(device: C_Device, out_value: *mut bool) -> C_Status>,
    /// Stores whether kernels may use bfloat16.
    pub is_bfloat16_supported:
        Option<unsafe extern "C-unwind" fn(device: C_Device, out_value: *mut bool) -> C_Status>,
    /// Stores whether the device has a library of neural-network primitives.
    pub is_dnn_supported:
        Option<unsafe extern "C-unwind" fn(device: C_Device, out_value: *mut bool) -> C_Status>,
    /// Makes an Eigen device; the arguments are C++ objects of PaddlePaddle's.
    pub init_eigen_device: Option<
        unsafe extern "C-unwind" fn(
            place: C_Place,
            out_eigen_device: *mut C_EigenDevice,
            stream: C_Stream,
            allocator: C_Allocator,
        ) -> C_Status,
    >,
    /// Ends what `init_eigen_device` made.
    pub destroy_eigen_device: Option<
        unsafe extern "C-unwind" fn(device: C_Device, inout_eigen_device: *mut C_EigenDevice) -> C_Status,
    >,
    /// Room for later members; null.
    pub reserved_info_api: [*mut c_void; 8],

    // ---- collectives (not used by Millpond: left null in its own table, ignored in a plugin's) ----
    /// Stores the communicator's name, with its final zero, into a buffer of the host's.
    pub xccl_get_comm_name:
        Option<unsafe extern "C-unwind" fn(comm: C_CCLComm, out_name: *mut c_char) -> C_Status>,
    /// Stores the size of a root id (bytes).
    pub xccl_get_unique_id_size: Option<unsafe extern "C-unwind" fn(out_size_bytes: *mut usize) -> C_Status>,
    /// Fills the root id that all ranks of a group must be given.
    pub xccl_get_unique_id: Option<unsafe extern "C-unwind" fn(out_id: *mut C_CCLRootId) -> C_Status>,
    /// Joins the group of `root_id` as rank `rank` of `rank_count`.
    pub xccl_comm_init_rank: Option<
        unsafe extern "C-unwind" fn(
            rank_count: usize,
            root_id: *mut C_CCLRootId,
            rank: usize,
            out_comm: *mut C_CCLComm,
        ) -> C_Status,
    >,
    /// Leaves the group.
    pub xccl_destroy_comm: Option<unsafe extern "C-unwind" fn(comm: C_CCLComm) -> C_Status>,
    /// Queues.
    pub xccl_all_reduce: Option<
        unsafe extern "C-unwind" fn(
            send: *mut c_void,
            recv: *mut c_void,
            count: usize,
            data_type: C_DataType,
            op: C_CCLReduceOp,
            comm: C_CCLComm,
            stream: C_Stream,
        ) -> C_Status,
    >,
    /// Queues.
    pub xccl_broadcast: Option<
        unsafe extern "C-unwind" fn(
            buffer: *mut c_void,
            count: usize,
            data_type: C_DataType,
            root: usize,
            comm: C_CCLComm,
            stream: C_Stream,
        ) -> C_Status,
    >,
    /// Queues.
    pub xccl_reduce: Option<
        unsafe extern "C-unwind" fn(
            send: *mut c_void,
            recv: *mut c_void,
            count: usize,
            data_type: C_DataType,
            op: C_CCLReduceOp,
            root: usize,
            comm: C_CCLComm,
            stream: C_Stream,
        ) -> C_Status,
    >,
    /// Queues.
    pub xccl_all_gather: Option<
        unsafe extern "C-unwind" fn(
            send: *mut c_void,
            recv: *mut c_void,
            send_count: usize,
            data_type: C_DataType,
            comm: C_CCLComm,
            stream: C_Stream,
        ) -> C_Status,
    >,
    /// Queues.
    pub xccl_reduce_scatter: Option<
        unsafe extern "C-unwind" fn(
            send: *mut c_void,
            recv: *mut c_void,
            recv_count: usize,
            data_type: C_DataType,
            op: C_CCLReduceOp,
            comm: C_CCLComm,
            stream: C_Stream,
        ) -> C_Status,
    >,
    /// Opens a group of calls that are to start together.
    pub xccl_group_start: Option<unsafe extern "C-unwind" fn() -> C_Status>,
    /// Closes that group.
    pub xccl_group_end: Option<unsafe extern "C-unwind" fn() -> C_Status>,
    /// Queues.
    pub xccl_send: Option<
        unsafe extern "C-unwind" fn(
            send: *mut c_void,
            count: usize,
            data_type: C_DataType,
            peer: usize,
            comm: C_CCLComm,
            stream: C_Stream,
        ) -> C_Status,
    >,
    /// Queues.
    pub xccl_recv: Option<
        unsafe extern "C-unwind" fn(
            recv: *mut c_void,
            count: usize,
            data_type: C_DataType,
            peer: usize,
            comm: C_CCLComm,
            stream: C_Stream,
        ) -> C_Status,
    >,
    /// Queues.
    pub xccl_all_to_all: Option<
        unsafe extern "C-unwind" fn(
            send: *mut *const c_void,
            send_counts: *const usize,
            send_types: *const C_DataType,
            recv: *mut *mut c_void,
            recv_counts: *const usize,
            recv_types: *const C_DataType,
            rank: usize,
            rank_count: usize,
            comm: C_CCLComm,
            stream: C_Stream,
        ) -> C_Status,
    >,
    /// Room for later members; null.
    pub reserved_ccl_api: [*mut c_void; 8],

    // ---- profiler (not used by Millpond) ----
    /// Prepares a profiler and may store data of the plugin's own.
    pub profiler_initialize: Option<
        unsafe extern "C-unwind" fn(profiler: C_Profiler, out_user_data: *mut *mut c_void) -> C_Status,
    >,
    /// Ends it.
    pub profiler_finalize:
        Option<unsafe extern "C-unwind" fn(profiler: C_Profiler, user_data: *mut c_void) -> C_Status>,
    /// Comes before `profiler_start_tracing`.
    pub profiler_prepare_tracing:
        Option<unsafe extern "C-unwind" fn(profiler: C_Profiler, user_data: *mut c_void) -> C_Status>,
    /// Starts to record.
    pub profiler_start_tracing:
        Option<unsafe extern "C-unwind" fn(profiler: C_Profiler, user_data: *mut c_void) -> C_Status>,
    /// Stops recording.
    pub profiler_stop_tracing:
        Option<unsafe extern "C-unwind" fn(profiler: C_Profiler, user_data: *mut c_void) -> C_Status>,
    /// Hands over what was recorded since `start_ns`.
    pub profiler_collect_trace_data: Option<
        unsafe extern "C-unwind" fn(
            profiler: C_Profiler,
            start_ns: usize,
            user_data: *mut c_void,
        ) -> C_Status,
    >,
    /// Room for later members; null.
    pub reserved_profiler_api: [*mut c_void; 8],

    // ---- BLAS handles (not used by Millpond) ----
    /// Makes a BLAS handle bound to a stream.
    pub init_blas_handle: Option<
        unsafe extern "C-unwind" fn(
            device: C_Device,
            out_handle: *mut C_BLASHandle,
            stream: C_Stream,
        ) -> C_Status,
    >,
    /// Chooses the math mode of a handle.
    pub blas_set_math_mode:
        Option<unsafe extern "C-unwind" fn(device: C_Device, handle: C_BLASHandle, mode: i32) -> C_Status>,
    /// Makes a handle of the light BLAS library.
    pub init_blaslt_handle:
        Option<unsafe extern "C-unwind" fn(device: C_Device, out_handle: *mut C_BLASLtHandle) -> C_Status>,
    /// Ends a BLAS handle.
    pub destroy_blas_handle:
        Option<unsafe extern "C-unwind" fn(device: C_Device, handle: C_BLASHandle) -> C_Status>,
    /// Ends a handle of the light BLAS library.
    pub destroy_blaslt_handle:
        Option<unsafe extern "C-unwind" fn(device: C_Device, handle: C_BLASLtHandle) -> C_Status>,

    // ---- graph capture (not used by Millpond) ----
    /// Starts to record what is queued on the stream into a graph.
    pub cuda_stream_begin_capture: Option<
        unsafe extern "C-unwind" fn(
            device: C_Device,
            stream: C_Stream,
            mode: C_StreamCaptureMode,
        ) -> C_Status,
    >,
    /// Ends the capture and stores the graph.
    pub cuda_stream_end_captrue: Option<
        unsafe extern "C-unwind" fn(
            device: C_Device,
            stream: C_Stream,
            out_graph: *mut C_CudaGraph,
        ) -> C_Status,
    >,
    /// Queues an instantiated graph.
    pub cuda_graph_launch: Option<
        unsafe extern "C-unwind" fn(device: C_Device, exec: C_GraphExec, stream: C_Stream) -> C_Status,
    >,
    /// Ends a graph.
    pub cuda_graph_destroy: Option<unsafe extern "C-unwind" fn(graph: C_CudaGraph) -> C_Status>,
    /// Ends an instantiated graph.
    pub cuda_graph_exec_destroy: Option<unsafe extern "C-unwind" fn(exec: C_GraphExec) -> C_Status>,
    /// Makes a graph ready to launch; what went wrong is written to the log buffer.
    pub cuda_graph_instantiate: Option<
        unsafe extern "C-unwind" fn(
            out_exec: *mut C_GraphExec,
            graph: *mut C_CudaGraph,
            out_error_node: *mut *mut c_void,
            log_buffer: *mut c_char,
            log_size_bytes: usize,
        ) -> C_Status,
    >,
    /// Stores the nodes of a graph.
    pub cuda_graph_get_nodes: Option<
        unsafe extern "C-unwind" fn(
            graph: C_CudaGraph,
            out_nodes: *mut C_CudaGraphNode,
            inout_count: *mut usize,
        ) -> C_Status,
    >,
    /// Stores what is known of the capture that the stream is part of.
    pub cuda_stream_capture_info: Option<
        unsafe extern "C-unwind" fn(
            device: C_Device,
            stream: C_Stream,
            out_status: *mut C_StreamCaptureStatus,
            out_id: *mut u64,
            out_graph: *mut C_CudaGraph,
            out_dependencies: *mut C_CudaGraphNode,
            out_edges: *mut *mut c_void,
            out_count: *mut usize,
        ) -> C_Status,
    >,
    /// Stores the functions that update a launched graph's parameters.
    pub get_parameter_setter_for_exec_graph: Option<
        unsafe extern "C-unwind" fn(graph: C_CudaGraph, out_hooks: *mut C_GraphHookManager) -> C_Status,
    >,
    /// Writes a picture of the graph to a file.
    pub cuda_graph_debug_dot_print:
        Option<unsafe extern "C-unwind" fn(graph: C_CudaGraph, path: *const c_char, flags: u32) -> C_Status>,
    /// Swaps the calling thread's capture mode.
    pub cuda_thread_exchange_stream_capthure_mode:
        Option<unsafe extern "C-unwind" fn(inout_mode: *mut C_StreamCaptureMode) -> C_Status>,

    // ---- other (not used by Millpond) ----
    /// Queues y = alpha * x + beta * y for `count` elements.
    pub blas_axpby: Option<
        unsafe extern "C-unwind" fn(
            device: C_Device,
            stream: C_Stream,
            data_type: C_DataType,
            count: usize,
            alpha: f32,
            x: *mut c_void,
            beta: f32,
            y: *mut c_void,
        ) -> C_Status,
    >,
    /// Room for later members; null.
    pub reserved_other_api: [*mut c_void; 7],
}
