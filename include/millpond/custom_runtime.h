/* The custom-runtime interface: how a deep-learning framework talks to a device plugin.
 *
 * One vocabulary for three uses: a plugin fills these types, a host (PaddlePaddle, or a framework
 * that links Millpond) reads them, and Millpond's own C API uses C_Status, C_Stream and C_Event.
 * The layout is that of PaddlePaddle 3.3 (3.3.0 and 3.3.1 agree), checked below at compile time;
 * plugins built with this header load there, and plugins built for PaddlePaddle load here.
 *
 * Valid C11 and C++17, alone. When PaddlePaddle's own header (phi/backends/device_ext.h) has been
 * included BEFORE this one, its types are used and none are defined here; only their layout is
 * checked. The other order does not compile.
 */
/* clang-format off: these are rows */
/* Rules for every callback
 *
 *   Units     Sizes are bytes. Devices are numbered 0..count-1.
 *   Threads   A callback may come from any thread, several at a time. The current device
 *             (set_device) is a property of the calling thread.
 *   Errors    C_SUCCESS, or any other status for a failure. Outputs are written only on success.
 *             A host takes C_WARNING for a failure too.
 *   C++       Callbacks should not throw. An exception is taken for a failure of the call, and
 *             ends there.
 *   NULL      A callback that is left null means what its comment says.
 */
/* clang-format on */
/* What Millpond requires of a plugin: device_memory_allocate, device_memory_deallocate,
 * memory_copy_h2d, memory_copy_d2h and get_device_count. It does without everything else. What
 * PaddlePaddle 3.3 requires: set_device, get_device, create_event, record_event, destroy_event,
 * synchronize_event, device_memory_allocate, device_memory_deallocate, get_device_count and
 * get_device_list; and, without checking, synchronize_device, the blocking copies h2d, d2h and
 * d2d, and device_min_chunk_size.
 */
#ifndef MILLPOND_CUSTOM_RUNTIME_H
#define MILLPOND_CUSTOM_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The version of the interface. All known releases of PaddlePaddle (2.6 to 3.3) say 0.1.1 although
 * their structs differ, so the version alone tells nothing: see the sizes below. */
#define MILLPOND_CUSTOM_RUNTIME_VERSION_MAJOR 0
#define MILLPOND_CUSTOM_RUNTIME_VERSION_MINOR 1
#define MILLPOND_CUSTOM_RUNTIME_VERSION_PATCH 1

/* sizeof(C_DeviceInterface) and sizeof(CustomRuntimeParams) of the layout that is declared here. */
#define MILLPOND_CUSTOM_RUNTIME_INTERFACE_SIZE 1128
#define MILLPOND_CUSTOM_RUNTIME_PARAMS_SIZE 96

/* Everything in C_DeviceInterface below this offset is the same in every release from 2.6 to 3.3:
 * devices, streams, events, memory, and information up to device_realloc_size. Releases since put
 * new members in the middle of what follows:
 *
 *   release                           2.6.2   3.0.0   3.1.1   3.2.2   3.3.0, 3.3.1
 *   sizeof(C_DeviceInterface)           912     920     976    1032           1128
 *   sizeof(CustomRuntimeParams)          88      96      96      96             96
 *
 * A plugin that is to serve them all compares the two sizes that the host gives; unless both are
 * the ones of this header, it writes below this offset only. It never clears the struct with its
 * own sizeof: the host's may be smaller. */
#define MILLPOND_CUSTOM_RUNTIME_COMMON_SIZE 472

/* A host that declares more than this has not set the size: what lies there is no number. */
#define MILLPOND_CUSTOM_RUNTIME_SIZE_LIMIT 65536

/* First line of a plugin's InitPlugin that supports exactly this header's layout:
 *
 *   void InitPlugin(CustomRuntimeParams *params) {
 *     MILLPOND_CUSTOM_RUNTIME_CHECK_VERSION(params);
 *     ...
 *
 * Returns from InitPlugin, with nothing written, unless params and its interface are there and
 * BOTH sizes are this header's; the version stays 0.0.0 then, which makes the host refuse the
 * plugin. Otherwise writes 0.1.1. (PaddlePaddle's macro of that kind goes on when one of the sizes
 * agrees.) The host accepts a version whose major * 10000 + minor * 100 + patch is at least 101. */
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

/* The same for a plugin that fills nothing at or beyond MILLPOND_CUSTOM_RUNTIME_COMMON_SIZE: goes
 * on for every host whose structs are at least as large as what all releases share. */
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

/* PaddlePaddle's header defines this macro; where it has been read, its types are there. */
#ifndef PADDLE_CUSTOM_RUNTIME_MAJOR_VERSION

#ifdef __cplusplus
extern "C" {
#endif

/* What every call returns. */
typedef enum C_Status {
  C_SUCCESS = 0,       /* done */
  C_WARNING = 1,       /* hosts treat it as a failure */
  C_FAILED = 2,        /* the device could not: out of memory, a failed driver or system call */
  C_ERROR = 3,         /* the caller's mistake: a bad argument, an unknown pointer or stream */
  C_INTERNAL_ERROR = 4 /* a defect of the callee */
} C_Status;

/* Element types. The constants are macros, MILLPOND_DATA_TYPE_*, so that they are there beside
 * PaddlePaddle's header too; its own names are too common for a C header. */
typedef enum C_DataType { C_DATA_TYPE_UNDEFINED_ = 0, C_DATA_TYPE_LAST_ = 15 } C_DataType;

/* Orders of a tensor's axes: MILLPOND_DATA_LAYOUT_*. */
typedef enum C_DataLayout { C_DATA_LAYOUT_ANY_ = 0, C_DATA_LAYOUT_LAST_ = 6 } C_DataLayout;

/* What a collective does with the elements: MILLPOND_REDUCE_*. */
typedef enum C_CCLReduceOp { C_REDUCE_SUM_ = 0, C_REDUCE_LAST_ = 4 } C_CCLReduceOp;

/* Which calls a stream capture forbids. */
typedef enum C_StreamCaptureMode {
  C_StreamCaptureModeGlobal = 0,
  C_StreamCaptureModeThreadLocal = 1,
  C_StreamCaptureModeRelaxed = 2
} C_StreamCaptureMode;

/* How a stream's capture stands. */
typedef enum C_StreamCaptureStatus {
  C_StreamCaptureStatusNone = 0,
  C_StreamCaptureStatusActive = 1,
  C_StreamCaptureStatusInvalidated = 2
} C_StreamCaptureStatus;

/* A device. The host owns the struct; it is valid for the length of the call. */
typedef struct C_Device_st {
  int id; /* ordinal, 0..count-1 */
} * C_Device;

/* Handles. What stands behind them is the callee's own; null is the default stream. */
typedef struct C_Stream_st* C_Stream;
typedef struct C_Event_st* C_Event;
typedef struct C_Allocator_st* C_Allocator;     /* a C++ object of PaddlePaddle's */
typedef struct C_Place_st* C_Place;             /* a C++ object of PaddlePaddle's */
typedef struct C_EigenDevice_st* C_EigenDevice; /* a C++ object */
typedef struct C_BLASHandle_st* C_BLASHandle;
typedef struct C_BLASLtHandle_st* C_BLASLtHandle;
typedef struct C_GraphExec_st* C_GraphExec;
typedef struct C_CudaGraph_t_st* C_CudaGraph;
typedef struct C_CudaGraphNode_st* C_CudaGraphNode;
typedef struct C_CCLComm_st* C_CCLComm;
typedef struct C_Profiler_st* C_Profiler;

/* Called when a stream gets there. *status tells whether the work before it went well; the struct
 * behind device and status lives until the callback returns. It must not block. */
typedef void (*C_Callback)(C_Device device, C_Stream stream, void* user_data, C_Status* status);

/* Sets the parameters of an instantiated graph; user_data is the hook's own. */
typedef void (*C_GraphExecuterSetter)(C_GraphExec exec, void* user_data);
typedef void (*C_GraphExecHook)(C_GraphExec exec);

/* The hooks of a captured graph: size entries in both arrays. */
typedef struct C_GraphHookManager {
  size_t size;
  C_GraphExecuterSetter* hooks;
  void** user_data;
} C_GraphHookManager;

/* The id of a collective group. */
typedef struct C_CCLRootId {
  size_t sz; /* bytes at data */
  void* data;
} C_CCLRootId;

/* The table of callbacks. The host owns and clears it, and sets size; the plugin fills it once, in
 * InitPlugin. The callbacks must stay valid until finalize has returned. */
typedef struct C_DeviceInterface {
  size_t size; /* sizeof of this struct as the host knows it; a plugin leaves it */

  /* ---- devices, streams and events ---- */
  /* Makes the plugin ready. Called once, before any other callback, and again only after
   * finalize. Not called when NULL. Anything but C_SUCCESS makes Millpond refuse the
   * plugin; PaddlePaddle ends the process. */
  C_Status (*initialize)(void);
  /* Ends the plugin: its threads must be gone when this returns, because the host may
   * unload the library next. Memory may still be allocated. Must not block in a forked
   * child. Not called when NULL. */
  C_Status (*finalize)(void);
  /* Prepares one device. Comes late: set_device and the size queries may come before it.
   * Not called when NULL. */
  C_Status (*init_device)(C_Device device);
  /* Makes the device current for the calling thread (and for no other). Required by
   * PaddlePaddle. NULL for Millpond: the plugin takes the device from each call's argument.
   * */
  C_Status (*set_device)(C_Device device);
  /* Stores the calling thread's current device: the logical ordinal 0..count-1 that
   * set_device got. Required by PaddlePaddle; Millpond does not call it. */
  C_Status (*get_device)(C_Device out_device);
  /* Ends one device. A host may call it with memory still allocated; PaddlePaddle ends the
   * process on anything but C_SUCCESS. Not called when NULL. */
  C_Status (*deinit_device)(C_Device device);
  /* A new stream: work queued on it runs in order. NULL: the device has no streams, and
   * every host runs all its work on the default stream (a null C_Stream), blocking. */
  C_Status (*create_stream)(C_Device device, C_Stream* out_stream);
  /* Ends a stream; work queued on it still completes. May come with work pending. NULL:
   * streams are leaked. */
  C_Status (*destroy_stream)(C_Device device, C_Stream stream);
  /* C_SUCCESS when nothing queued on the stream is unfinished, any other status when
   * something is. NULL: Millpond waits for the stream and answers that it is done. */
  C_Status (*query_stream)(C_Device device, C_Stream stream);
  /* Calls callback once, when the stream gets there, from a thread of the plugin that holds
   * no lock. NULL: Millpond waits for the stream and calls back from the asking thread. */
  C_Status (*stream_add_callback)(C_Device device, C_Stream stream, C_Callback callback,
                                  void* user_data);
  /* A new event, as if completed. Required by PaddlePaddle. For Millpond the event
   * callbacks are all or none (create, record, destroy, synchronize): without them it waits
   * for the stream where it would have recorded. */
  C_Status (*create_event)(C_Device device, C_Event* out_event);
  /* The event stands for everything queued on the stream so far. Required by PaddlePaddle.
   * */
  C_Status (*record_event)(C_Device device, C_Stream stream, C_Event event);
  /* Ends an event; waits on it that are queued still hold. Required by PaddlePaddle. */
  C_Status (*destroy_event)(C_Device device, C_Event event);
  /* C_SUCCESS when what the event recorded is done, any other status when it is not. NULL:
   * Millpond waits for the event and answers that it is done. */
  C_Status (*query_event)(C_Device device, C_Event event);
  /* Waits for all work queued on the device, also on streams that were ended since. NULL:
   * Millpond waits for each stream that it made, and for an event behind the last work of each
   * that it has ended; without events, for a stream before it ends it (PaddlePaddle crashes). */
  C_Status (*synchronize_device)(C_Device device);
  /* Waits for all work queued on the stream. NULL: Millpond waits for the whole device. */
  C_Status (*synchronize_stream)(C_Device device, C_Stream stream);
  /* Waits for what the event recorded. PaddlePaddle requires it and ends the process on
   * anything but C_SUCCESS. */
  C_Status (*synchronize_event)(C_Device device, C_Event event);
  /* Work queued on the stream from now on waits for what the event has recorded; the host
   * does not wait. NULL: Millpond waits for the event on the host. */
  C_Status (*stream_wait_event)(C_Device device, C_Stream stream, C_Event event);
  void* reserved_dev_api[8]; /* NULL */

  /* ---- memory ---- */
  /* Takes size_bytes of device memory. REQUIRED by every host. On lack of memory: either
   * C_FAILED, or C_SUCCESS with a null pointer (PaddlePaddle then drops its cache and
   * retries; Millpond treats both alike). Addresses are aligned to device_min_chunk_size,
   * or to 256 bytes where that is smaller; of memory that is less aligned, Millpond asks for more
   * and uses the aligned part. What overlaps memory that was not given back, or passes the end of
   * all addresses, is an error of the request, and is not given back. The same for the host
   * memory of the next callbacks. Each device may have addresses of its own. */
  C_Status (*device_memory_allocate)(C_Device device, void** out_ptr, size_t size_bytes);
  /* Gives back what device_memory_allocate returned, with the size of that call. No stream
   * is named: the memory must not be reused before all work queued so far is done. REQUIRED
   * by every host. */
  C_Status (*device_memory_deallocate)(C_Device device, void* ptr, size_t size_bytes);
  /* Fills device memory with a byte, and returns when done. NULL: copies from the host, in
   * pieces. The interface has no fill on a stream: Millpond makes one of asynchronous copies, or
   * waits for the stream and fills then where the plugin has none. */
  C_Status (*device_memory_set)(C_Device device, void* ptr, unsigned char value, size_t size_bytes);
  /* Host memory that copies to and from the device fast (page-locked). NULL: ordinary host
   * memory. */
  C_Status (*host_memory_allocate)(C_Device device, void** out_ptr, size_t size_bytes);
  /* Gives back what host_memory_allocate returned. NULL: host_memory_allocate is not used
   * either. */
  C_Status (*host_memory_deallocate)(C_Device device, void* ptr, size_t size_bytes);
  /* Memory that host and device address alike. NULL: the device has none; asking for it is
   * an error. */
  C_Status (*unified_memory_allocate)(C_Device device, void** out_ptr, size_t size_bytes);
  /* Gives back what unified_memory_allocate returned. NULL: that one is not used either. */
  C_Status (*unified_memory_deallocate)(C_Device device, void* ptr, size_t size_bytes);
  /* Copies host memory to device memory, and returns when the bytes have arrived. May come
   * from several threads at once. REQUIRED by Millpond (PaddlePaddle silently copies
   * nothing when NULL). */
  C_Status (*memory_copy_h2d)(C_Device device, void* dst, const void* src, size_t size_bytes);
  /* Copies device memory to host memory, and returns when the bytes have arrived. REQUIRED
   * by Millpond (PaddlePaddle silently copies nothing when NULL). */
  C_Status (*memory_copy_d2h)(C_Device device, void* dst, const void* src, size_t size_bytes);
  /* Copies within one device, and returns when done. NULL: through the host, in pieces
   * (PaddlePaddle silently copies nothing). */
  C_Status (*memory_copy_d2d)(C_Device device, void* dst, const void* src, size_t size_bytes);
  /* Copies from one device to another of the same type, and returns when done. NULL:
   * through the host. */
  C_Status (*memory_copy_p2p)(C_Device dst_device, C_Device src_device, void* dst, const void* src,
                              size_t size_bytes);
  /* Queues a copy from host memory on a stream. A pageable source must have been read when
   * this returns: the caller may free it at once. NULL: Millpond waits for the stream and
   * then copies synchronously. */
  C_Status (*async_memory_copy_h2d)(C_Device device, C_Stream stream, void* dst, const void* src,
                                    size_t size_bytes);
  /* Queues a copy to host memory on a stream. The destination stays valid until the stream
   * got there. NULL: Millpond waits for the stream and then copies synchronously. */
  C_Status (*async_memory_copy_d2h)(C_Device device, C_Stream stream, void* dst, const void* src,
                                    size_t size_bytes);
  /* Queues a copy within one device. NULL: Millpond waits for the stream and then copies
   * synchronously. */
  C_Status (*async_memory_copy_d2d)(C_Device device, C_Stream stream, void* dst, const void* src,
                                    size_t size_bytes);
  /* Queues a copy between devices on a stream of the source device. NULL: Millpond waits
   * for the stream and then copies synchronously. */
  C_Status (*async_memory_copy_p2p)(C_Device dst_device, C_Device src_device, C_Stream stream,
                                    void* dst, const void* src, size_t size_bytes);
  void* reserved_mem_api[8]; /* NULL */

  /* ---- information ---- */
  /* Stores the number of devices, 0 or more. REQUIRED by every host. */
  C_Status (*get_device_count)(size_t* out_count);
  /* Stores the ids of all devices into an array of get_device_count entries. PaddlePaddle
   * requires it, and that they are 0..count-1 in order. Millpond passes whatever ids are
   * given; NULL: it takes them to be 0..count-1. */
  C_Status (*get_device_list)(size_t* out_ids);
  /* Stores how many bytes the device has, and how many are free now. NULL, or 0 bytes in all:
   * unknown; Millpond then reports 0 for both, and knows no limit but device_max_alloc_size. */
  C_Status (*device_memory_stats)(C_Device device, size_t* out_total_bytes, size_t* out_free_bytes);
  /* Requests are rounded up to a multiple of this [bytes]. NULL or 0: Millpond takes 256.
   * (PaddlePaddle takes NULL for 1, and divides by a 0.) Need not be a power of two for
   * Millpond. */
  C_Status (*device_min_chunk_size)(C_Device device, size_t* out_size_bytes);
  /* A chunk larger than this [bytes] goes to the device directly and is not pooled. NULL or
   * 0: the max alloc size. */
  C_Status (*device_max_chunk_size)(C_Device device, size_t* out_size_bytes);
  /* The host never holds more than this of the device in all [bytes]. NULL or 0: what is
   * free now, or where that is unknown, as much as can be had. */
  C_Status (*device_max_alloc_size)(C_Device device, size_t* out_size_bytes);
  /* Added to each request before it is rounded up to the min chunk [bytes]. NULL: 0. */
  C_Status (*device_extra_padding_size)(C_Device device, size_t* out_size_bytes);
  /* Size of the first chunk that a pooling host takes [bytes]. NULL or 0: 64 MiB, or a sixteenth
   * of the max alloc size in whole 2 MiB if that is less, and 2 MiB at least. */
  C_Status (*device_init_alloc_size)(C_Device device, size_t* out_size_bytes);
  /* Size of each later chunk [bytes]. NULL or 0: the same, or an eighth of what is held where
   * that is more and enough of the device is left. */
  C_Status (*device_realloc_size)(C_Device device, size_t* out_size_bytes);
  /* Stores the compute capability, major * 10 + minor. Until 3.0 this took no device: fill
   * it, and all that follows, only for a host whose size you know. NULL: 0, and Millpond
   * does not ask for the two versions either. */
  C_Status (*get_compute_capability)(C_Device device, size_t* out_value);
  /* properties is a C++ object of PaddlePaddle's. Leave NULL from C, and from any plugin
   * built without PaddlePaddle's headers. */
  C_Status (*get_device_properties)(C_Device device, void* properties);
  /* Stores the version of the runtime library. NULL: 0. */
  C_Status (*get_runtime_version)(C_Device device, size_t* out_value);
  /* Stores the version of the driver. NULL: 0. */
  C_Status (*get_driver_version)(C_Device device, size_t* out_value);
  /* Stores the number of multiprocessors. Millpond neither fills nor reads this, nor any
   * later one. */
  C_Status (*get_multi_process)(C_Device device, size_t* out_value);
  /* Stores how many threads a multiprocessor holds. */
  C_Status (*get_max_threads_per_mp)(C_Device device, size_t* out_value);
  /* Stores how many threads a block may have. */
  C_Status (*get_max_threads_per_block)(C_Device device, size_t* out_value);
  /* Stores the largest grid, three numbers. PaddlePaddle declares a C++ std::array of that
   * layout. */
  C_Status (*get_max_grid_dim_size)(C_Device device, unsigned int (*out_sizes)[3]);
  /* Stores whether kernels may use 16-bit floats. */
  C_Status (*is_float16_supported)(C_Device device, bool* out_value);
  /* Stores whether kernels may use bfloat16. */
  C_Status (*is_bfloat16_supported)(C_Device device, bool* out_value);
  /* Stores whether the device has a library of neural-network primitives. */
  C_Status (*is_dnn_supported)(C_Device device, bool* out_value);
  /* Makes an Eigen device; the arguments are C++ objects of PaddlePaddle's. Leave NULL from
   * C. */
  C_Status (*init_eigen_device)(C_Place place, C_EigenDevice* out_eigen_device, C_Stream stream,
                                C_Allocator allocator);
  /* Ends what init_eigen_device made. Leave NULL from C. */
  C_Status (*destroy_eigen_device)(C_Device device, C_EigenDevice* inout_eigen_device);
  void* reserved_info_api[8]; /* NULL */

  /* ---- collectives (Millpond leaves them null, and ignores a plugin's) ---- */
  /* Stores the communicator's name, with its final zero, into a buffer of the host's. */
  C_Status (*xccl_get_comm_name)(C_CCLComm comm, char* out_name);
  /* Stores the size of a root id [bytes]. */
  C_Status (*xccl_get_unique_id_size)(size_t* out_size_bytes);
  /* Fills the root id that all ranks of a group must be given. */
  C_Status (*xccl_get_unique_id)(C_CCLRootId* out_id);
  /* Joins the group of root_id as rank rank of rank_count. */
  C_Status (*xccl_comm_init_rank)(size_t rank_count, C_CCLRootId* root_id, size_t rank,
                                  C_CCLComm* out_comm);
  /* Leaves the group. */
  C_Status (*xccl_destroy_comm)(C_CCLComm comm);
  /* Queues: reduces count elements of all ranks, the result to all. */
  C_Status (*xccl_all_reduce)(void* send, void* recv, size_t count, C_DataType data_type,
                              C_CCLReduceOp op, C_CCLComm comm, C_Stream stream);
  /* Queues: sends count elements of rank root to all. */
  C_Status (*xccl_broadcast)(void* buffer, size_t count, C_DataType data_type, size_t root,
                             C_CCLComm comm, C_Stream stream);
  /* Queues: reduces count elements of all ranks, the result to rank root. */
  C_Status (*xccl_reduce)(void* send, void* recv, size_t count, C_DataType data_type,
                          C_CCLReduceOp op, size_t root, C_CCLComm comm, C_Stream stream);
  /* Queues: gathers send_count elements of each rank in all ranks. */
  C_Status (*xccl_all_gather)(void* send, void* recv, size_t send_count, C_DataType data_type,
                              C_CCLComm comm, C_Stream stream);
  /* Queues: reduces, then leaves recv_count elements with each rank. */
  C_Status (*xccl_reduce_scatter)(void* send, void* recv, size_t recv_count, C_DataType data_type,
                                  C_CCLReduceOp op, C_CCLComm comm, C_Stream stream);
  /* Opens a group of calls that are to start together. */
  C_Status (*xccl_group_start)(void);
  /* Closes that group. */
  C_Status (*xccl_group_end)(void);
  /* Queues: sends count elements to rank peer. */
  C_Status (*xccl_send)(void* send, size_t count, C_DataType data_type, size_t peer, C_CCLComm comm,
                        C_Stream stream);
  /* Queues: receives count elements from rank peer. */
  C_Status (*xccl_recv)(void* recv, size_t count, C_DataType data_type, size_t peer, C_CCLComm comm,
                        C_Stream stream);
  /* Queues: one buffer to and one from each rank; every array has rank_count entries. */
  C_Status (*xccl_all_to_all)(const void** send, const size_t* send_counts,
                              const C_DataType* send_types, void** recv, const size_t* recv_counts,
                              const C_DataType* recv_types, size_t rank, size_t rank_count,
                              C_CCLComm comm, C_Stream stream);
  void* reserved_ccl_api[8]; /* NULL */

  /* ---- profiler (not used by Millpond) ---- */
  /* Prepares a profiler and may store data of the plugin's own. */
  C_Status (*profiler_initialize)(C_Profiler profiler, void** out_user_data);
  /* Ends it. */
  C_Status (*profiler_finalize)(C_Profiler profiler, void* user_data);
  /* Comes before profiler_start_tracing. */
  C_Status (*profiler_prepare_tracing)(C_Profiler profiler, void* user_data);
  /* Starts to record. */
  C_Status (*profiler_start_tracing)(C_Profiler profiler, void* user_data);
  /* Stops recording. */
  C_Status (*profiler_stop_tracing)(C_Profiler profiler, void* user_data);
  /* Hands over what was recorded since start_ns. */
  C_Status (*profiler_collect_trace_data)(C_Profiler profiler, size_t start_ns, void* user_data);
  void* reserved_profiler_api[8]; /* NULL */

  /* ---- BLAS handles (not used by Millpond) ---- */
  /* Makes a BLAS handle bound to a stream. */
  C_Status (*init_blas_handle)(C_Device device, C_BLASHandle* out_handle, C_Stream stream);
  /* Chooses the math mode of a handle. */
  C_Status (*blas_set_math_mode)(C_Device device, C_BLASHandle handle, int mode);
  /* Makes a handle of the light BLAS library. */
  C_Status (*init_blaslt_handle)(C_Device device, C_BLASLtHandle* out_handle);
  /* Ends a BLAS handle. */
  C_Status (*destroy_blas_handle)(C_Device device, C_BLASHandle handle);
  /* Ends a handle of the light BLAS library. */
  C_Status (*destroy_blaslt_handle)(C_Device device, C_BLASLtHandle handle);

  /* ---- graph capture (not used by Millpond) ---- */
  /* Starts to record what is queued on the stream into a graph. */
  C_Status (*cuda_stream_begin_capture)(C_Device device, C_Stream stream, C_StreamCaptureMode mode);
  /* Ends the capture and stores the graph. (The spelling is the ABI's.) */
  C_Status (*cuda_stream_end_captrue)(C_Device device, C_Stream stream, C_CudaGraph* out_graph);
  /* Queues an instantiated graph. */
  C_Status (*cuda_graph_launch)(C_Device device, C_GraphExec exec, C_Stream stream);
  /* Ends a graph. */
  C_Status (*cuda_graph_destroy)(C_CudaGraph graph);
  /* Ends an instantiated graph. */
  C_Status (*cuda_graph_exec_destroy)(C_GraphExec exec);
  /* Makes a graph ready to launch; what went wrong is written to the log buffer. */
  C_Status (*cuda_graph_instantiate)(C_GraphExec* out_exec, C_CudaGraph* graph,
                                     void** out_error_node, char* log_buffer,
                                     size_t log_size_bytes);
  /* Stores the nodes of a graph. */
  C_Status (*cuda_graph_get_nodes)(C_CudaGraph graph, C_CudaGraphNode* out_nodes,
                                   size_t* inout_count);
  /* Stores what is known of the capture that the stream is part of. */
  C_Status (*cuda_stream_capture_info)(C_Device device, C_Stream stream,
                                       C_StreamCaptureStatus* out_status, uint64_t* out_id,
                                       C_CudaGraph* out_graph, C_CudaGraphNode* out_dependencies,
                                       void** out_edges, size_t* out_count);
  /* Stores the functions that set a launched graph's parameters anew. */
  C_Status (*get_parameter_setter_for_exec_graph)(C_CudaGraph graph, C_GraphHookManager* out_hooks);
  /* Writes a picture of the graph to a file. */
  C_Status (*cuda_graph_debug_dot_print)(C_CudaGraph graph, const char* path, unsigned int flags);
  /* Swaps the calling thread's capture mode. (The spelling is the ABI's.) */
  C_Status (*cuda_thread_exchange_stream_capthure_mode)(C_StreamCaptureMode* inout_mode);

  /* ---- other (not used by Millpond) ---- */
  /* Queues y = alpha * x + beta * y for count elements. */
  C_Status (*blas_axpby)(C_Device device, C_Stream stream, C_DataType data_type, size_t count,
                         float alpha, void* x, float beta, void* y);
  void* reserved_other_api[7]; /* NULL */
} C_DeviceInterface;

/* The interface version that the plugin was built for. */
typedef struct CustomRuntimeVersion {
  size_t major;
  size_t minor;
  size_t patch;
} CustomRuntimeVersion;

/* What InitPlugin gets. The host owns it, clears it, and sets size, interface and interface->size.
 */
typedef struct CustomRuntimeParams {
  size_t size;                  /* sizeof of this struct as the host knows it; a plugin leaves it */
  C_DeviceInterface* interface; /* the table to fill */
  CustomRuntimeVersion version; /* written by the plugin; 0.0.0 means: refuse me */
  char* device_type;            /* the plugin points it to the name of its device type: 1 to 31
                                 * characters, in memory that lives as long as the plugin */
  char* sub_device_type;        /* the plugin may point it to a finer name, or leave it NULL */
  void* pir_default_passes;     /* a C++ object of PaddlePaddle's since 3.0: leave it */
  char reserved[32];            /* leave them */
} CustomRuntimeParams;

/* The one symbol that a plugin exports. */
typedef void (*millpond_init_plugin)(CustomRuntimeParams* params);

#ifdef __cplusplus
} /* extern "C" */
#endif

#else  /* PaddlePaddle's header is there */
typedef void (*millpond_init_plugin)(CustomRuntimeParams* params);
#endif /* PADDLE_CUSTOM_RUNTIME_MAJOR_VERSION */

/* Element types, C_DataType. */
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

/* Orders of axes, C_DataLayout. */
#define MILLPOND_DATA_LAYOUT_ANY ((C_DataLayout)0)
#define MILLPOND_DATA_LAYOUT_NHWC ((C_DataLayout)1)
#define MILLPOND_DATA_LAYOUT_NCHW ((C_DataLayout)2)
#define MILLPOND_DATA_LAYOUT_NCDHW ((C_DataLayout)3)
#define MILLPOND_DATA_LAYOUT_NDHWC ((C_DataLayout)4)
#define MILLPOND_DATA_LAYOUT_STRIDED ((C_DataLayout)5) /* since 3.0 */

/* Reductions, C_CCLReduceOp. */
#define MILLPOND_REDUCE_SUM ((C_CCLReduceOp)0)
#define MILLPOND_REDUCE_AVG ((C_CCLReduceOp)1)
#define MILLPOND_REDUCE_MAX ((C_CCLReduceOp)2)
#define MILLPOND_REDUCE_MIN ((C_CCLReduceOp)3)
#define MILLPOND_REDUCE_PRODUCT ((C_CCLReduceOp)4)

/* ---- the layout, checked ---- */
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

/* What all releases share; PaddlePaddle's header may be of any of them. */
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
/* The rest of the layout that is declared here, whole. */
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
/* One of the known releases, or a later one, which may have grown. blas_axpby has kept its place
 * before the last reserved slots in all of them. */
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

#endif /* MILLPOND_CUSTOM_RUNTIME_H */
