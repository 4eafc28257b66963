#ifndef MILLPOND_CUSTOM_RUNTIME_H
#define MILLPOND_CUSTOM_RUNTIME_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#define MILLPOND_CUSTOM_RUNTIME_VERSION_MAJOR 0
#define MILLPOND_CUSTOM_RUNTIME_VERSION_MINOR 1
#define MILLPOND_CUSTOM_RUNTIME_VERSION_PATCH 1
#define MILLPOND_CUSTOM_RUNTIME_INTERFACE_SIZE 1128
#define MILLPOND_CUSTOM_RUNTIME_PARAMS_SIZE 96
#define MILLPOND_CUSTOM_RUNTIME_COMMON_SIZE 472
#define MILLPOND_CUSTOM_RUNTIME_SIZE_LIMIT 65536
#define MILLPOND_CUSTOM_RUNTIME_CHECK_VERSION(params)                                \
  do {                                                                               \
    if ((params) == NULL || (params)->size != MILLPOND_CUSTOM_RUNTIME_PARAMS_SIZE || \
        (params)->interface == NULL ||                                               \
        (params)->interface->size != MILLPOND_CUSTOM_RUNTIME_INTERFACE_SIZE) {       \
      return;                                                                        \
    }                                                                                \
    (params)->version.major = MILLPOND_CUSTOM_RUNTIME_VERSION_MAJOR;                 \
    (params)->version.minor = MILLPOND_CUSTOM_RUNTIME_VERSION_MINOR;                 \
    (params)->version.patch = MILLPOND_CUSTOM_RUNTIME_VERSION_PATCH;                 \
  } while (0)
#define MILLPOND_CUSTOM_RUNTIME_CHECK_COMMON(params)                                          \
  do {                                                                                        \
    if ((params) == NULL ||                                                                   \
        (params)->size < offsetof(CustomRuntimeParams, sub_device_type) + sizeof(char*) ||    \
        (params)->size > MILLPOND_CUSTOM_RUNTIME_SIZE_LIMIT || (params)->interface == NULL || \
        (params)->interface->size < MILLPOND_CUSTOM_RUNTIME_COMMON_SIZE ||                    \
        (params)->interface->size > MILLPOND_CUSTOM_RUNTIME_SIZE_LIMIT) {                     \
      return;                                                                                 \
    }                                                                                         \
    (params)->version.major = MILLPOND_CUSTOM_RUNTIME_VERSION_MAJOR;                          \
    (params)->version.minor = MILLPOND_CUSTOM_RUNTIME_VERSION_MINOR;                          \
    (params)->version.patch = MILLPOND_CUSTOM_RUNTIME_VERSION_PATCH;                          \
  } while (0)
#ifndef PADDLE_CUSTOM_RUNTIME_MAJOR_VERSION
#ifdef __cplusplus
extern "C" {
#endif
typedef enum C_Status {
  C_SUCCESS = 0,
  C_WARNING = 1,
  C_FAILED = 2,
  C_ERROR = 3,
  C_INTERNAL_ERROR = 4
} C_Status;
typedef enum C_DataType { C_DATA_TYPE_UNDEFINED_ = 0, C_DATA_TYPE_LAST_ = 15 } C_DataType;
typedef enum C_DataLayout { C_DATA_LAYOUT_ANY_ = 0, C_DATA_LAYOUT_LAST_ = 6 } C_DataLayout;
typedef enum C_CCLReduceOp { C_REDUCE_SUM_ = 0, C_REDUCE_LAST_ = 4 } C_CCLReduceOp;
typedef enum C_StreamCaptureMode {
  C_StreamCaptureModeGlobal = 0,
  C_StreamCaptureModeThreadLocal = 1,
  C_StreamCaptureModeRelaxed = 2
} C_StreamCaptureMode;
typedef enum C_StreamCaptureStatus {
  C_StreamCaptureStatusNone = 0,
  C_StreamCaptureStatusActive = 1,
  C_StreamCaptureStatusInvalidated = 2
} C_StreamCaptureStatus;
typedef struct C_Device_st {
  int id;
} * C_Device;
typedef struct C_Stream_st* C_Stream;
typedef struct C_Event_st* C_Event;
typedef struct C_Allocator_st* C_Allocator;
typedef struct C_Place_st* C_Place;
typedef struct C_EigenDevice_st* C_EigenDevice;
typedef struct C_BLASHandle_st* C_BLASHandle;
typedef struct C_BLASLtHandle_st* C_BLASLtHandle;
typedef struct C_GraphExec_st* C_GraphExec;
typedef struct C_CudaGraph_t_st* C_CudaGraph;
typedef struct C_CudaGraphNode_st* C_CudaGraphNode;
typedef struct C_CCLComm_st* C_CCLComm;
typedef struct C_Profiler_st* C_Profiler;
typedef void (*C_Callback)(C_Device device, C_Stream stream, void* user_data, C_Status* status);
typedef void (*C_GraphExecuterSetter)(C_GraphExec exec, void* user_data);
typedef void (*C_GraphExecHook)(C_GraphExec exec);
typedef struct C_GraphHookManager {
  size_t size;
  C_GraphExecuterSetter* hooks;
  void** user_data;
} C_GraphHookManager;
typedef struct C_CCLRootId {
  size_t sz;
  void* data;
} C_CCLRootId;
typedef struct C_DeviceInterface {
  size_t size;
  C_Status (*initialize)(void);
  C_Status (*finalize)(void);
  C_Status (*init_device)(C_Device device);
  C_Status (*set_device)(C_Device device);
  C_Status (*get_device)(C_Device out_device);
  C_Status (*deinit_device)(C_Device device);
  C_Status (*create_stream)(C_Device device, C_Stream* out_stream);
  C_Status (*destroy_stream)(C_Device device, C_Stream stream);
  C_Status (*query_stream)(C_Device device, C_Stream stream);
  C_Status (*stream_add_callback)(C_Device device, C_Stream stream, C_Callback callback,
                                  void* user_data);
  C_Status (*create_event)(C_Device device, C_Event* out_event);
  C_Status (*record_event)(C_Device device, C_Stream stream, C_Event event);
  C_Status (*destroy_event)(C_Device device, C_Event event);
  C_Status (*query_event)(C_Device device, C_Event event);
  C_Status (*synchronize_device)(C_Device device);
  C_Status (*synchronize_stream)(C_Device device, C_Stream stream);
  C_Status (*synchronize_event)(C_Device device, C_Event event);
  C_Status (*stream_wait_event)(C_Device device, C_Stream stream, C_Event event);
  void* reserved_dev_api[8];
  C_Status (*device_memory_allocate)(C_Device device, void** out_ptr, size_t size_bytes);
  C_Status (*device_memory_deallocate)(C_Device device, void* ptr, size_t size_bytes);
  C_Status (*device_memory_set)(C_Device device, void* ptr, unsigned char value, size_t size_bytes);
  C_Status (*host_memory_allocate)(C_Device device, void** out_ptr, size_t size_bytes);
  C_Status (*host_memory_deallocate)(C_Device device, void* ptr, size_t size_bytes);
  C_Status (*unified_memory_allocate)(C_Device device, void** out_ptr, size_t size_bytes);
  C_Status (*unified_memory_deallocate)(C_Device device, void* ptr, size_t size_bytes);
  C_Status (*memory_copy_h2d)(C_Device device, void* dst, const void* src, size_t size_bytes);
  C_Status (*memory_copy_d2h)(C_Device device, void* dst, const void* src, size_t size_bytes);
  C_Status (*memory_copy_d2d)(C_Device device, void* dst, const void* src, size_t size_bytes);
  C_Status (*memory_copy_p2p)(C_Device dst_device, C_Device src_device, void* dst, const void* src,
                              size_t size_bytes);
  C_Status (*async_memory_copy_h2d)(C_Device device, C_Stream stream, void* dst, const void* src,
                                    size_t size_bytes);
  C_Status (*async_memory_copy_d2h)(C_Device device, C_Stream stream, void* dst, const void* src,
                                    size_t size_bytes);
  C_Status (*async_memory_copy_d2d)(C_Device device, C_Stream stream, void* dst, const void* src,
                                    size_t size_bytes);
  C_Status (*async_memory_copy_p2p)(C_Device dst_device, C_Device src_device, C_Stream stream,
                                    void* dst, const void* src, size_t size_bytes);
  void* reserved_mem_api[8];
  C_Status (*get_device_count)(size_t* out_count);
  C_Status (*get_device_list)(size_t* out_ids);
  C_Status (*device_memory_stats)(C_Device device, size_t* out_total_bytes, size_t* out_free_bytes);
  C_Status (*device_min_chunk_size)(C_Device device, size_t* out_size_bytes);
  C_Status (*device_max_chunk_size)(C_Device device, size_t* out_size_bytes);
  C_Status (*device_max_alloc_size)(C_Device device, size_t* out_size_bytes);
  C_Status (*device_extra_padding_size)(C_Device device, size_t* out_size_bytes);
  C_Status (*device_init_alloc_size)(C_Device device, size_t* out_size_bytes);
  C_Status (*device_realloc_size)(C_Device device, size_t* out_size_bytes);
  C_Status (*get_compute_capability)(C_Device device, size_t* out_value);
  C_Status (*get_device_properties)(C_Device device, void* properties);
  C_Status (*get_runtime_version)(C_Device device, size_t* out_value);
  C_Status (*get_driver_version)(C_Device device, size_t* out_value);
  C_Status (*get_multi_process)(C_Device device, size_t* out_value);
  C_Status (*get_max_threads_per_mp)(C_Device device, size_t* out_value);
  C_Status (*get_max_threads_per_block)(C_Device device, size_t* out_value);
  C_Status (*get_max_grid_dim_size)(C_Device device, unsigned int (*out_sizes)[3]);
  C_Status (*is_float16_supported)(C_Device device, bool* out_value);
  C_Status (*is_bfloat16_supported)(C_Device device, bool* out_value);
  C_Status (*is_dnn_supported)(C_Device device, bool* out_value);
  C_Status (*init_eigen_device)(C_Place place, C_EigenDevice* out_eigen_device, C_Stream stream,
                                C_Allocator allocator);
  C_Status (*destroy_eigen_device)(C_Device device, C_EigenDevice* inout_eigen_device);
  void* reserved_info_api[8];
  C_Status (*xccl_get_comm_name)(C_CCLComm comm, char* out_name);
  C_Status (*xccl_get_unique_id_size)(size_t* out_size_bytes);
  C_Status (*xccl_get_unique_id)(C_CCLRootId* out_id);
  C_Status (*xccl_comm_init_rank)(size_t rank_count, C_CCLRootId* root_id, size_t rank,
                                  C_CCLComm* out_comm);
  C_Status (*xccl_destroy_comm)(C_CCLComm comm);
  C_Status (*xccl_all_reduce)(void* send, void* recv, size_t count, C_DataType data_type,
                              C_CCLReduceOp op, C_CCLComm comm, C_Stream stream);
  C_Status (*xccl_broadcast)(void* buffer, size_t count, C_DataType data_type, size_t root,
                             C_CCLComm comm, C_Stream stream);
  C_Status (*xccl_reduce)(void* send, void* recv, size_t count, C_DataType data_type,
                          C_CCLReduceOp op, size_t root, C_CCLComm comm, C_Stream stream);
  C_Status (*xccl_all_gather)(void* send, void* recv, size_t send_count, C_DataType data_type,
                              C_CCLComm comm, C_Stream stream);
  C_Status (*xccl_reduce_scatter)(void* send, void* recv, size_t recv_count, C_DataType data_type,
                                  C_CCLReduceOp op, C_CCLComm comm, C_Stream stream);
  C_Status (*xccl_group_start)(void);
  C_Status (*xccl_group_end)(void);
  C_Status (*xccl_send)(void* send, size_t count, C_DataType data_type, size_t peer, C_CCLComm comm,
                        C_Stream stream);
  C_Status (*xccl_recv)(void* recv, size_t count, C_DataType data_type, size_t peer, C_CCLComm comm,
                        C_Stream stream);
  C_Status (*xccl_all_to_all)(const void** send, const size_t* send_counts,
                              const C_DataType* send_types, void** recv, const size_t* recv_counts,
                              const C_DataType* recv_types, size_t rank, size_t rank_count,
                              C_CCLComm comm, C_Stream stream);
  void* reserved_ccl_api[8];
  C_Status (*profiler_initialize)(C_Profiler profiler, void** out_user_data);
  C_Status (*profiler_finalize)(C_Profiler profiler, void* user_data);
  C_Status (*profiler_prepare_tracing)(C_Profiler profiler, void* user_data);
  C_Status (*profiler_start_tracing)(C_Profiler profiler, void* user_data);
  C_Status (*profiler_stop_tracing)(C_Profiler profiler, void* user_data);
  C_Status (*profiler_collect_trace_data)(C_Profiler profiler, size_t start_ns, void* user_data);
  void* reserved_profiler_api[8];
  C_Status (*init_blas_handle)(C_Device device, C_BLASHandle* out_handle, C_Stream stream);
  C_Status (*blas_set_math_mode)(C_Device device, C_BLASHandle handle, int mode);
  C_Status (*init_blaslt_handle)(C_Device device, C_BLASLtHandle* out_handle);
  C_Status (*destroy_blas_handle)(C_Device device, C_BLASHandle handle);
  C_Status (*destroy_blaslt_handle)(C_Device device, C_BLASLtHandle handle);
  C_Status (*cuda_stream_begin_capture)(C_Device device, C_Stream stream, C_StreamCaptureMode mode);
  C_Status (*cuda_stream_end_captrue)(C_Device device, C_Stream stream, C_CudaGraph* out_graph);
  C_Status (*cuda_graph_launch)(C_Device device, C_GraphExec exec, C_Stream stream);
  C_Status (*cuda_graph_destroy)(C_CudaGraph graph);
  C_Status (*cuda_graph_exec_destroy)(C_GraphExec exec);
  C_Status (*cuda_graph_instantiate)(C_GraphExec* out_exec, C_CudaGraph* graph,
                                     void** out_error_node, char* log_buffer,
                                     size_t log_size_bytes);
  C_Status (*cuda_graph_get_nodes)(C_CudaGraph graph, C_CudaGraphNode* out_nodes,
                                   size_t* inout_count);
  C_Status (*cuda_stream_capture_info)(C_Device device, C_Stream stream,
                                       C_StreamCaptureStatus* out_status, uint64_t* out_id,
                                       C_CudaGraph* out_graph, C_CudaGraphNode* out_dependencies,
                                       void** out_edges, size_t* out_count);
  C_Status (*get_parameter_setter_for_exec_graph)(C_CudaGraph graph, C_GraphHookManager* out_hooks);
  C_Status (*cuda_graph_debug_dot_print)(C_CudaGraph graph, const char* path, unsigned int flags);
  C_Status (*cuda_thread_exchange_stream_capthure_mode)(C_StreamCaptureMode* inout_mode);
  C_Status (*blas_axpby)(C_Device device, C_Stream stream, C_DataType data_type, size_t count,
                         float alpha, void* x, float beta, void* y);
  void* reserved_other_api[7];
} C_DeviceInterface;
typedef struct CustomRuntimeVersion {
  size_t major;
  size_t minor;
  size_t patch;
} CustomRuntimeVersion;
typedef struct CustomRuntimeParams {
  size_t size;
  C_DeviceInterface* interface;
  CustomRuntimeVersion version;
  char* device_type;
  char* sub_device_type;
  void* pir_default_passes;
  char reserved[32];
} CustomRuntimeParams;
typedef void (*millpond_init_plugin)(CustomRuntimeParams* params);
#ifdef __cplusplus
}
#endif
#else
typedef void (*millpond_init_plugin)(CustomRuntimeParams* params);
#endif
#define MILLPOND_DATA_TYPE_UNDEFINED ((C_DataType)0)
#define MILLPOND_DATA_TYPE_BOOL ((C_DataType)1)
#define MILLPOND_DATA_TYPE_UINT8 ((C_DataType)2)
#define MILLPOND_DATA_TYPE_UINT16 ((C_DataType)3)
#define MILLPOND_DATA_TYPE_UINT32 ((C_DataType)4)
#define MILLPOND_DATA_TYPE_UINT64 ((C_DataType)5)
#define MILLPOND_DATA_TYPE_INT8 ((C_DataType)6)
#define MILLPOND_DATA_TYPE_INT16 ((C_DataType)7)
#define MILLPOND_DATA_TYPE_INT32 ((C_DataType)8)
#define MILLPOND_DATA_TYPE_INT64 ((C_DataType)9)
#define MILLPOND_DATA_TYPE_FLOAT16 ((C_DataType)10)
#define MILLPOND_DATA_TYPE_FLOAT32 ((C_DataType)11)
#define MILLPOND_DATA_TYPE_FLOAT64 ((C_DataType)12)
#define MILLPOND_DATA_TYPE_BFLOAT16 ((C_DataType)13)
#define MILLPOND_DATA_TYPE_COMPLEX64 ((C_DataType)14)
#define MILLPOND_DATA_TYPE_COMPLEX128 ((C_DataType)15)
#define MILLPOND_DATA_LAYOUT_ANY ((C_DataLayout)0)
#define MILLPOND_DATA_LAYOUT_NHWC ((C_DataLayout)1)
#define MILLPOND_DATA_LAYOUT_NCHW ((C_DataLayout)2)
#define MILLPOND_DATA_LAYOUT_NCDHW ((C_DataLayout)3)
#define MILLPOND_DATA_LAYOUT_NDHWC ((C_DataLayout)4)
#define MILLPOND_DATA_LAYOUT_STRIDED ((C_DataLayout)5)
#define MILLPOND_REDUCE_SUM ((C_CCLReduceOp)0)
#define MILLPOND_REDUCE_AVG ((C_CCLReduceOp)1)
#define MILLPOND_REDUCE_MAX ((C_CCLReduceOp)2)
#define MILLPOND_REDUCE_MIN ((C_CCLReduceOp)3)
#define MILLPOND_REDUCE_PRODUCT ((C_CCLReduceOp)4)
#ifdef __cplusplus
#define MILLPOND_ASSERT_(condition, what) static_assert(condition, what)
#else
#define MILLPOND_ASSERT_(condition, what) _Static_assert(condition, what)
#endif
#define MILLPOND_SIZE_(type, bytes) \
  MILLPOND_ASSERT_(sizeof(type) == (bytes), "the size of " #type " is not that of the ABI")
#define MILLPOND_OFFSET_(type, member, bytes)         \
  MILLPOND_ASSERT_(offsetof(type, member) == (bytes), \
                   #type "." #member " is not where the ABI has it")
MILLPOND_SIZE_(void*, 8);
MILLPOND_SIZE_(size_t, 8);
MILLPOND_SIZE_(C_Status, 4);
MILLPOND_SIZE_(C_DataType, 4);
MILLPOND_SIZE_(C_DataLayout, 4);
MILLPOND_SIZE_(C_CCLReduceOp, 4);
MILLPOND_SIZE_(struct C_Device_st, 4);
MILLPOND_SIZE_(C_CCLRootId, 16);
MILLPOND_OFFSET_(C_CCLRootId, sz, 0);
MILLPOND_OFFSET_(C_CCLRootId, data, 8);
MILLPOND_SIZE_(CustomRuntimeVersion, 24);
MILLPOND_OFFSET_(CustomRuntimeVersion, major, 0);
MILLPOND_OFFSET_(CustomRuntimeVersion, minor, 8);
MILLPOND_OFFSET_(CustomRuntimeVersion, patch, 16);
MILLPOND_OFFSET_(CustomRuntimeParams, size, 0);
MILLPOND_OFFSET_(CustomRuntimeParams, interface, 8);
MILLPOND_OFFSET_(CustomRuntimeParams, version, 16);
MILLPOND_OFFSET_(CustomRuntimeParams, device_type, 40);
MILLPOND_OFFSET_(CustomRuntimeParams, sub_device_type, 48);
MILLPOND_OFFSET_(C_DeviceInterface, size, 0);
MILLPOND_OFFSET_(C_DeviceInterface, initialize, 8);
MILLPOND_OFFSET_(C_DeviceInterface, finalize, 16);
MILLPOND_OFFSET_(C_DeviceInterface, init_device, 24);
MILLPOND_OFFSET_(C_DeviceInterface, set_device, 32);
MILLPOND_OFFSET_(C_DeviceInterface, get_device, 40);
MILLPOND_OFFSET_(C_DeviceInterface, deinit_device, 48);
MILLPOND_OFFSET_(C_DeviceInterface, create_stream, 56);
MILLPOND_OFFSET_(C_DeviceInterface, destroy_stream, 64);
MILLPOND_OFFSET_(C_DeviceInterface, query_stream, 72);
MILLPOND_OFFSET_(C_DeviceInterface, stream_add_callback, 80);
MILLPOND_OFFSET_(C_DeviceInterface, create_event, 88);
MILLPOND_OFFSET_(C_DeviceInterface, record_event, 96);
MILLPOND_OFFSET_(C_DeviceInterface, destroy_event, 104);
MILLPOND_OFFSET_(C_DeviceInterface, query_event, 112);
MILLPOND_OFFSET_(C_DeviceInterface, synchronize_device, 120);
MILLPOND_OFFSET_(C_DeviceInterface, synchronize_stream, 128);
MILLPOND_OFFSET_(C_DeviceInterface, synchronize_event, 136);
MILLPOND_OFFSET_(C_DeviceInterface, stream_wait_event, 144);
MILLPOND_OFFSET_(C_DeviceInterface, reserved_dev_api, 152);
MILLPOND_OFFSET_(C_DeviceInterface, device_memory_allocate, 216);
MILLPOND_OFFSET_(C_DeviceInterface, device_memory_deallocate, 224);
MILLPOND_OFFSET_(C_DeviceInterface, device_memory_set, 232);
MILLPOND_OFFSET_(C_DeviceInterface, host_memory_allocate, 240);
MILLPOND_OFFSET_(C_DeviceInterface, host_memory_deallocate, 248);
MILLPOND_OFFSET_(C_DeviceInterface, unified_memory_allocate, 256);
MILLPOND_OFFSET_(C_DeviceInterface, unified_memory_deallocate, 264);
MILLPOND_OFFSET_(C_DeviceInterface, memory_copy_h2d, 272);
MILLPOND_OFFSET_(C_DeviceInterface, memory_copy_d2h, 280);
MILLPOND_OFFSET_(C_DeviceInterface, memory_copy_d2d, 288);
MILLPOND_OFFSET_(C_DeviceInterface, memory_copy_p2p, 296);
MILLPOND_OFFSET_(C_DeviceInterface, async_memory_copy_h2d, 304);
MILLPOND_OFFSET_(C_DeviceInterface, async_memory_copy_d2h, 312);
MILLPOND_OFFSET_(C_DeviceInterface, async_memory_copy_d2d, 320);
MILLPOND_OFFSET_(C_DeviceInterface, async_memory_copy_p2p, 328);
MILLPOND_OFFSET_(C_DeviceInterface, reserved_mem_api, 336);
MILLPOND_OFFSET_(C_DeviceInterface, get_device_count, 400);
MILLPOND_OFFSET_(C_DeviceInterface, get_device_list, 408);
MILLPOND_OFFSET_(C_DeviceInterface, device_memory_stats, 416);
MILLPOND_OFFSET_(C_DeviceInterface, device_min_chunk_size, 424);
MILLPOND_OFFSET_(C_DeviceInterface, device_max_chunk_size, 432);
MILLPOND_OFFSET_(C_DeviceInterface, device_max_alloc_size, 440);
MILLPOND_OFFSET_(C_DeviceInterface, device_extra_padding_size, 448);
MILLPOND_OFFSET_(C_DeviceInterface, device_init_alloc_size, 456);
MILLPOND_OFFSET_(C_DeviceInterface, device_realloc_size, 464);
#ifndef PADDLE_CUSTOM_RUNTIME_MAJOR_VERSION
MILLPOND_SIZE_(C_DeviceInterface, MILLPOND_CUSTOM_RUNTIME_INTERFACE_SIZE);
MILLPOND_SIZE_(CustomRuntimeParams, MILLPOND_CUSTOM_RUNTIME_PARAMS_SIZE);
MILLPOND_OFFSET_(CustomRuntimeParams, pir_default_passes, 56);
MILLPOND_OFFSET_(CustomRuntimeParams, reserved, 64);
MILLPOND_SIZE_(C_StreamCaptureMode, 4);
MILLPOND_SIZE_(C_StreamCaptureStatus, 4);
MILLPOND_SIZE_(C_GraphHookManager, 24);
MILLPOND_OFFSET_(C_GraphHookManager, size, 0);
MILLPOND_OFFSET_(C_GraphHookManager, hooks, 8);
MILLPOND_OFFSET_(C_GraphHookManager, user_data, 16);
MILLPOND_OFFSET_(C_DeviceInterface, get_compute_capability, 472);
MILLPOND_OFFSET_(C_DeviceInterface, get_device_properties, 480);
MILLPOND_OFFSET_(C_DeviceInterface, get_runtime_version, 488);
MILLPOND_OFFSET_(C_DeviceInterface, get_driver_version, 496);
MILLPOND_OFFSET_(C_DeviceInterface, get_multi_process, 504);
MILLPOND_OFFSET_(C_DeviceInterface, get_max_threads_per_mp, 512);
MILLPOND_OFFSET_(C_DeviceInterface, get_max_threads_per_block, 520);
MILLPOND_OFFSET_(C_DeviceInterface, get_max_grid_dim_size, 528);
MILLPOND_OFFSET_(C_DeviceInterface, is_float16_supported, 536);
MILLPOND_OFFSET_(C_DeviceInterface, is_bfloat16_supported, 544);
MILLPOND_OFFSET_(C_DeviceInterface, is_dnn_supported, 552);
MILLPOND_OFFSET_(C_DeviceInterface, init_eigen_device, 560);
MILLPOND_OFFSET_(C_DeviceInterface, destroy_eigen_device, 568);
MILLPOND_OFFSET_(C_DeviceInterface, reserved_info_api, 576);
MILLPOND_OFFSET_(C_DeviceInterface, xccl_get_comm_name, 640);
MILLPOND_OFFSET_(C_DeviceInterface, xccl_get_unique_id_size, 648);
MILLPOND_OFFSET_(C_DeviceInterface, xccl_get_unique_id, 656);
MILLPOND_OFFSET_(C_DeviceInterface, xccl_comm_init_rank, 664);
MILLPOND_OFFSET_(C_DeviceInterface, xccl_destroy_comm, 672);
MILLPOND_OFFSET_(C_DeviceInterface, xccl_all_reduce, 680);
MILLPOND_OFFSET_(C_DeviceInterface, xccl_broadcast, 688);
MILLPOND_OFFSET_(C_DeviceInterface, xccl_reduce, 696);
MILLPOND_OFFSET_(C_DeviceInterface, xccl_all_gather, 704);
MILLPOND_OFFSET_(C_DeviceInterface, xccl_reduce_scatter, 712);
MILLPOND_OFFSET_(C_DeviceInterface, xccl_group_start, 720);
MILLPOND_OFFSET_(C_DeviceInterface, xccl_group_end, 728);
MILLPOND_OFFSET_(C_DeviceInterface, xccl_send, 736);
MILLPOND_OFFSET_(C_DeviceInterface, xccl_recv, 744);
MILLPOND_OFFSET_(C_DeviceInterface, xccl_all_to_all, 752);
MILLPOND_OFFSET_(C_DeviceInterface, reserved_ccl_api, 760);
MILLPOND_OFFSET_(C_DeviceInterface, profiler_initialize, 824);
MILLPOND_OFFSET_(C_DeviceInterface, profiler_finalize, 832);
MILLPOND_OFFSET_(C_DeviceInterface, profiler_prepare_tracing, 840);
MILLPOND_OFFSET_(C_DeviceInterface, profiler_start_tracing, 848);
MILLPOND_OFFSET_(C_DeviceInterface, profiler_stop_tracing, 856);
MILLPOND_OFFSET_(C_DeviceInterface, profiler_collect_trace_data, 864);
MILLPOND_OFFSET_(C_DeviceInterface, reserved_profiler_api, 872);
MILLPOND_OFFSET_(C_DeviceInterface, init_blas_handle, 936);
MILLPOND_OFFSET_(C_DeviceInterface, blas_set_math_mode, 944);
MILLPOND_OFFSET_(C_DeviceInterface, init_blaslt_handle, 952);
MILLPOND_OFFSET_(C_DeviceInterface, destroy_blas_handle, 960);
MILLPOND_OFFSET_(C_DeviceInterface, destroy_blaslt_handle, 968);
MILLPOND_OFFSET_(C_DeviceInterface, cuda_stream_begin_capture, 976);
MILLPOND_OFFSET_(C_DeviceInterface, cuda_stream_end_captrue, 984);
MILLPOND_OFFSET_(C_DeviceInterface, cuda_graph_launch, 992);
MILLPOND_OFFSET_(C_DeviceInterface, cuda_graph_destroy, 1000);
MILLPOND_OFFSET_(C_DeviceInterface, cuda_graph_exec_destroy, 1008);
MILLPOND_OFFSET_(C_DeviceInterface, cuda_graph_instantiate, 1016);
MILLPOND_OFFSET_(C_DeviceInterface, cuda_graph_get_nodes, 1024);
MILLPOND_OFFSET_(C_DeviceInterface, cuda_stream_capture_info, 1032);
MILLPOND_OFFSET_(C_DeviceInterface, get_parameter_setter_for_exec_graph, 1040);
MILLPOND_OFFSET_(C_DeviceInterface, cuda_graph_debug_dot_print, 1048);
MILLPOND_OFFSET_(C_DeviceInterface, cuda_thread_exchange_stream_capthure_mode, 1056);
MILLPOND_OFFSET_(C_DeviceInterface, blas_axpby, 1064);
MILLPOND_OFFSET_(C_DeviceInterface, reserved_other_api, 1072);
#else
MILLPOND_ASSERT_(sizeof(C_DeviceInterface) == 912 || sizeof(C_DeviceInterface) == 920 ||
                     sizeof(C_DeviceInterface) == 976 || sizeof(C_DeviceInterface) == 1032 ||
                     sizeof(C_DeviceInterface) >= 1128,
                 "the size of C_DeviceInterface is none that is known");
MILLPOND_ASSERT_(sizeof(CustomRuntimeParams) == 88 || sizeof(CustomRuntimeParams) >= 96,
                 "the size of CustomRuntimeParams is none that is known");
MILLPOND_ASSERT_(sizeof(C_DeviceInterface) > 1128 ||
                     offsetof(C_DeviceInterface, blas_axpby) == sizeof(C_DeviceInterface) - 64,
                 "C_DeviceInterface.blas_axpby is not where the ABI has it");
#endif
#undef MILLPOND_OFFSET_
#undef MILLPOND_SIZE_
#undef MILLPOND_ASSERT_
#endif
