#ifndef MILLPOND_MILLPOND_H
#define MILLPOND_MILLPOND_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "millpond/custom_runtime.h"
#ifndef MILLPOND_NODISCARD
#if (defined(__cplusplus) && __cplusplus >= 201703L) || \
    (defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L)
#define MILLPOND_NODISCARD [[nodiscard]]
#elif defined(__GNUC__)
#define MILLPOND_NODISCARD __attribute__((warn_unused_result))
#else
#define MILLPOND_NODISCARD
#endif
#endif
#define MILLPOND_HAS_ALIGNED 1
#define MILLPOND_HAS_ZEROED 1
#define MILLPOND_HAS_BATCH 1
#define MILLPOND_HAS_TRY_EXPAND 1
#define MILLPOND_HAS_USABLE_SIZE 1
#define MILLPOND_HAS_TRIM 1
#define MILLPOND_HAS_BUDGET 1
#define MILLPOND_HAS_GROUP 1
#define MILLPOND_HAS_CAPTURE 1
#define MILLPOND_HAS_CHECKPOINT 1
#define MILLPOND_HAS_SLEEP 1
#define MILLPOND_HAS_HOST_REGISTER 1
#define MILLPOND_HAS_UNIFIED_ADVICE 1
#define MILLPOND_HAS_STREAM_PRIORITY 1
#define MILLPOND_HAS_TIMED_EVENTS 1
#define MILLPOND_HAS_OOM_HANDLER 1
#define MILLPOND_HAS_POOL_OOM_HANDLER 1
#define MILLPOND_HAS_HOOKS 1
#define MILLPOND_HAS_SEGMENT_CALLBACKS 1
#define MILLPOND_HAS_TAGS 1
#define MILLPOND_HAS_HISTORY 1
#define MILLPOND_HAS_LATENCY 1
#define MILLPOND_HAS_EXPORT 1
#define MILLPOND_HAS_DLPACK 1
#ifdef __cplusplus
extern "C" {
#endif
#define MILLPOND_VERSION_MAJOR 0
#define MILLPOND_VERSION_MINOR 1
#define MILLPOND_VERSION_PATCH 0
#define MILLPOND_VERSION_NUMBER \
  (MILLPOND_VERSION_MAJOR * 1000000 + MILLPOND_VERSION_MINOR * 1000 + MILLPOND_VERSION_PATCH)
#define MILLPOND_OK 0
#define MILLPOND_E_INVALID_ARGUMENT 1
#define MILLPOND_E_OUT_OF_MEMORY 2
#define MILLPOND_E_UNKNOWN_POINTER 3
#define MILLPOND_E_DOUBLE_FREE 4
#define MILLPOND_E_UNKNOWN_STREAM 5
#define MILLPOND_E_UNKNOWN_EVENT 6
#define MILLPOND_E_UNKNOWN_DEVICE 7
#define MILLPOND_E_NOT_INITIALIZED 8
#define MILLPOND_E_UNSUPPORTED 9
#define MILLPOND_E_OUT_OF_RANGE 10
#define MILLPOND_E_DEVICE 11
#define MILLPOND_E_SYSTEM 12
#define MILLPOND_E_PLUGIN_REFUSED 13
#define MILLPOND_E_BUSY 14
#define MILLPOND_E_NOT_PERMITTED 15
#define MILLPOND_E_WRONG_SIZE 16
#define MILLPOND_E_INTERNAL 17
#define MILLPOND_POOL_CONTIGUOUS 1
#define MILLPOND_SLEEP_KEEP 1
#define MILLPOND_SEGMENT_ADDED 1
#define MILLPOND_SEGMENT_REMOVED 2
#define MILLPOND_BLOCK_LIVE 1
#define MILLPOND_BLOCK_WAITING 2
#define MILLPOND_BLOCK_FREE 4
#define MILLPOND_BLOCK_ANY 7
#define MILLPOND_SNAPSHOT_JSON 1
#define MILLPOND_SNAPSHOT_TORCH_PICKLE 2
#define MILLPOND_COPY_H2D 0
#define MILLPOND_COPY_D2H 1
#define MILLPOND_COPY_D2D 2
#define MILLPOND_PLACE_DEVICE 1
#define MILLPOND_PLACE_HOST 2
#define MILLPOND_ADVICE_READ_MOSTLY 1
#define MILLPOND_ADVICE_UNSET_READ_MOSTLY 2
#define MILLPOND_ADVICE_PREFERRED 3
#define MILLPOND_ADVICE_UNSET_PREFERRED 4
#define MILLPOND_ADVICE_ACCESSED_BY 5
#define MILLPOND_ADVICE_UNSET_ACCESSED_BY 6
#define MILLPOND_CAP_MAPPING 1
#define MILLPOND_CAP_HOST_ACCESS 2
#define MILLPOND_CAP_UNIFIED 4
#define MILLPOND_CAP_PINNED 8
#define MILLPOND_CAP_STREAMS 16
#define MILLPOND_CAP_CALLBACKS 32
#define MILLPOND_CAP_EXPORT 64
#define MILLPOND_CAP_RDMA 128
#define MILLPOND_STREAM_NON_BLOCKING 1
#define MILLPOND_HISTORY_ALLOC 1
#define MILLPOND_HISTORY_FREE_REQUESTED 2
#define MILLPOND_HISTORY_FREE_COMPLETED 3
#define MILLPOND_HISTORY_FREE_REFUSED 4
#define MILLPOND_HISTORY_SEGMENT_ALLOC 5
#define MILLPOND_HISTORY_SEGMENT_FREE 6
#define MILLPOND_HISTORY_SEGMENT_MAP 7
#define MILLPOND_HISTORY_SEGMENT_UNMAP 8
#define MILLPOND_HISTORY_OOM 9
#define MILLPOND_HISTORY_RECORD_STREAM 10
#define MILLPOND_HISTORY_SNAPSHOT 11
#define MILLPOND_HISTORY_ANNOTATE 12
#define MILLPOND_HISTORY_HOST 1
#define MILLPOND_HISTORY_AT_ONCE 2
#define MILLPOND_HISTORY_STREAM 4
typedef struct millpond_capture millpond_capture;
typedef struct millpond_checkpoint millpond_checkpoint;
typedef struct millpond_device millpond_device;
typedef struct millpond_pool millpond_pool;
typedef struct millpond_host_options {
  size_t struct_size;
  uint32_t device_count;
  uint64_t capacity_bytes;
  uint32_t disable_mapping;
} millpond_host_options;
typedef struct millpond_device_info {
  size_t struct_size;
  char type[32];
  int32_t ordinal;
  uint32_t caps;
  uint64_t total_bytes;
  uint64_t free_bytes;
  uint64_t min_chunk_bytes;
  uint64_t max_chunk_bytes;
  uint64_t max_alloc_bytes;
  uint64_t extra_padding_bytes;
  uint64_t init_alloc_bytes;
  uint64_t realloc_bytes;
  uint64_t compute_capability;
  uint64_t runtime_version;
  uint64_t driver_version;
  char name[64];
  char pci_bus_id[16];
  uint8_t uuid[16];
} millpond_device_info;
typedef struct millpond_pool_options {
  size_t struct_size;
  uint64_t limit_bytes;
  const char *name;
  uint64_t flags;
} millpond_pool_options;
typedef struct millpond_counter {
  uint64_t current;
  uint64_t peak;
  uint64_t total;
} millpond_counter;
typedef struct millpond_stats {
  size_t struct_size;
  struct millpond_counter requested_bytes;
  struct millpond_counter allocated_bytes;
  struct millpond_counter active_bytes;
  struct millpond_counter reserved_bytes;
  struct millpond_counter blocks;
  struct millpond_counter segments;
  uint64_t driver_calls;
  uint64_t out_of_memory_count;
  uint64_t limit_bytes;
  struct millpond_counter sleeping_bytes;
} millpond_stats;
typedef struct millpond_host_stats {
  size_t struct_size;
  struct millpond_counter requested_bytes;
  struct millpond_counter allocated_bytes;
  struct millpond_counter reserved_bytes;
  struct millpond_counter blocks;
  uint64_t cached_bytes;
  uint64_t pending_bytes;
  uint64_t driver_calls;
  uint64_t reuse_count;
  int32_t numa_node;
} millpond_host_stats;
typedef struct millpond_block_info {
  size_t struct_size;
  void *base;
  size_t size_bytes;
  size_t requested_bytes;
  C_Stream stream;
  struct millpond_pool *pool;
  struct millpond_device *device;
} millpond_block_info;
typedef struct millpond_block_record {
  size_t struct_size;
  void *ptr;
  size_t size_bytes;
  size_t requested_bytes;
  C_Stream stream;
  struct millpond_pool *pool;
  void *segment;
  uint32_t state;
  uint32_t tag;
} millpond_block_record;
typedef bool (*millpond_walk_callback)(void *user_data, const struct millpond_block_record *record);
typedef bool (*millpond_write_callback)(void *user_data, const void *data, size_t size_bytes);
typedef struct millpond_history_options {
  size_t struct_size;
  size_t event_count;
  size_t frame_count;
  const char *path;
} millpond_history_options;
typedef struct millpond_history_event {
  size_t struct_size;
  uint64_t time_ns;
  uint32_t kind;
  uint32_t flags;
  void *ptr;
  uint64_t size_bytes;
  uint64_t requested_bytes;
  C_Stream stream;
  struct millpond_pool *pool;
  uint32_t thread;
  uint32_t tag;
  const uint64_t *frames;
  size_t frame_count;
  const char *text;
  uint64_t device_free_bytes;
  uint64_t stamp;
} millpond_history_event;
typedef bool (*millpond_history_callback)(void *user_data, const struct millpond_history_event *event);
typedef void (*millpond_stream_callback)(void *user_data, C_Status status);
typedef bool (*millpond_oom_callback)(void *user_data, uint64_t size_bytes);
typedef void (*millpond_segment_callback)(void *user_data, uint32_t event, void *ptr, size_t size_bytes);
typedef void (*millpond_restore_callback)(void *user_data, void *ptr, size_t size_bytes, bool live);
typedef void (*millpond_dlpack_release)(void *user_data);
typedef struct millpond_dlpack_options {
  size_t struct_size;
  uint8_t dtype_code;
  uint8_t dtype_bits;
  uint16_t dtype_lanes;
  int32_t ndim;
  const int64_t *shape;
  const int64_t *strides;
  uint64_t byte_offset;
  uint64_t flags;
  uint32_t device_type;
  millpond_dlpack_release release;
  void *user_data;
} millpond_dlpack_options;
typedef struct millpond_dlpack_view {
  size_t struct_size;
  void *data;
  void *start;
  uint64_t size_bytes;
  uint64_t element_count;
  uint64_t flags;
  int32_t ndim;
  uint32_t device_type;
  int32_t device_id;
  uint8_t dtype_code;
  uint8_t dtype_bits;
  uint16_t dtype_lanes;
  uint32_t is_compact;
  const int64_t *shape;
  const int64_t *strides;
  void *block;
  struct millpond_pool *pool;
  struct millpond_device *device;
} millpond_dlpack_view;
uint32_t millpond_last_error_code(void);
const char *millpond_last_error_message(void);
void millpond_last_error_set(uint32_t code,
                             const char *message);
const char *millpond_error_name(uint32_t code);
const char *millpond_version(void);
uint32_t millpond_version_number(void);
C_Status millpond_host_configure(const millpond_host_options *options);
C_Status millpond_finalize(void);
#define MILLPOND_DEVICE_TYPE_NAME_BYTES 32
C_Status millpond_device_type_get_count(size_t *out_count);
C_Status millpond_device_type_get_name(size_t index,
                                       char *out_name,
                                       size_t capacity);
C_Status millpond_device_type_get_reason(const char *type_name,
                                         char *out_text,
                                         size_t capacity);
C_Status millpond_device_type_register(void (*init_plugin)(CustomRuntimeParams *params),
                                       char *out_name,
                                       size_t capacity);
C_Status millpond_device_type_load(const char *path,
                                   char *out_name,
                                   size_t capacity);
C_Status millpond_device_type_unregister(const char *type_name);
C_Status millpond_device_get_count(const char *type_name,
                                   size_t *out_count);
C_Status millpond_device_get(const char *type_name,
                             int32_t ordinal,
                             millpond_device **out_device);
C_Status millpond_device_get_info(const millpond_device *device,
                                  millpond_device_info *inout_info);
C_Status millpond_device_get_reason(const millpond_device *device,
                                    uint32_t cap,
                                    char *out_text,
                                    size_t capacity);
C_Status millpond_device_synchronize(millpond_device *device);
C_Status millpond_device_set_limit(millpond_device *device,
                                   uint64_t limit_bytes);
C_Status millpond_device_set_budget(millpond_device *device,
                                    uint64_t budget_bytes,
                                    uint64_t *out_above_bytes);
C_Status millpond_device_get_stats(const millpond_device *device,
                                   millpond_stats *inout_stats);
C_Status millpond_device_reset_peaks(millpond_device *device);
C_Status millpond_device_empty_cache(millpond_device *device);
C_Status millpond_device_trim_to(millpond_device *device, uint64_t keep_bytes);
C_Status millpond_device_add_oom_callback(millpond_device *device,
                                          millpond_oom_callback callback,
                                          void *user_data,
                                          uint64_t *out_id);
C_Status millpond_device_remove_oom_callback(millpond_device *device,
                                             uint64_t id);
C_Status millpond_device_get_default_pool(millpond_device *device, millpond_pool **out_pool);
#define MILLPOND_OPTION_BYTES 512
#define MILLPOND_OPTIONS_BYTES 2048
C_Status millpond_set_default_options(const char *type_name,
                                      int32_t ordinal,
                                      const char *options);
C_Status millpond_set_pytorch_options(const char *type_name);
C_Status millpond_device_set_options(millpond_device *device,
                                     const char *options);
C_Status millpond_device_get_option(const millpond_device *device,
                                    const char *key,
                                    char *out_text,
                                    size_t capacity);
C_Status millpond_device_get_option_source(const millpond_device *device,
                                           const char *key,
                                           char *out_text,
                                           size_t capacity);
C_Status millpond_device_get_options(const millpond_device *device, char *out_text, size_t capacity);
MILLPOND_NODISCARD
C_Status millpond_pool_create(millpond_device *device,
                              const millpond_pool_options *options,
                              millpond_pool **out_pool);
C_Status millpond_pool_destroy(millpond_pool *pool);
C_Status millpond_pool_release(millpond_pool *pool);
C_Status millpond_pool_get_device(const millpond_pool *pool, millpond_device **out_device);
MILLPOND_NODISCARD
C_Status millpond_pool_alloc(millpond_pool *pool,
                             size_t size_bytes,
                             C_Stream stream,
                             void **out_ptr);
MILLPOND_NODISCARD
C_Status millpond_pool_alloc_unordered(millpond_pool *pool,
                                       size_t size_bytes,
                                       void **out_ptr);
C_Status millpond_pool_free(millpond_pool *pool, void *ptr, C_Stream stream);
C_Status millpond_pool_empty_cache(millpond_pool *pool);
C_Status millpond_pool_trim_to(millpond_pool *pool,
                               uint64_t keep_bytes);
C_Status millpond_pool_set_limit(millpond_pool *pool, uint64_t limit_bytes);
C_Status millpond_pool_get_stats(const millpond_pool *pool, millpond_stats *inout_stats);
C_Status millpond_pool_reset_peaks(millpond_pool *pool);
MILLPOND_NODISCARD
C_Status millpond_pool_alloc_zeroed(millpond_pool *pool,
                                    size_t size_bytes,
                                    C_Stream stream,
                                    void **out_ptr);
MILLPOND_NODISCARD
C_Status millpond_pool_alloc_aligned(millpond_pool *pool,
                                     size_t size_bytes,
                                     size_t alignment_bytes,
                                     C_Stream stream,
                                     void **out_ptr);
MILLPOND_NODISCARD
C_Status millpond_pool_alloc_unordered_aligned(millpond_pool *pool,
                                               size_t size_bytes,
                                               size_t alignment_bytes,
                                               void **out_ptr);
MILLPOND_NODISCARD
C_Status millpond_pool_alloc_batch(millpond_pool *pool,
                                   const size_t *sizes_bytes,
                                   size_t count,
                                   C_Stream stream,
                                   void **out_ptrs);
C_Status millpond_pool_free_batch(millpond_pool *pool,
                                  void *const *ptrs,
                                  size_t count,
                                  C_Stream stream,
                                  size_t *out_freed_count);
C_Status millpond_scope_begin(millpond_pool *pool);
C_Status millpond_scope_end(millpond_pool *pool);
MILLPOND_NODISCARD
C_Status millpond_capture_begin(millpond_pool *pool,
                                C_Stream stream,
                                millpond_capture **out_capture);
MILLPOND_NODISCARD
C_Status millpond_capture_keep(millpond_pool *pool,
                               millpond_capture **out_capture);
C_Status millpond_capture_add_stream(millpond_capture *capture,
                                     C_Stream stream);
C_Status millpond_capture_end(millpond_capture *capture);
C_Status millpond_capture_release(millpond_capture *capture);
C_Status millpond_capture_release_async(millpond_capture *capture);
MILLPOND_NODISCARD
C_Status millpond_pool_checkpoint(millpond_pool *pool,
                                  millpond_checkpoint **out_checkpoint);
C_Status millpond_pool_restore(millpond_pool *pool,
                               const millpond_checkpoint *checkpoint,
                               millpond_restore_callback callback,
                               void *user_data);
C_Status millpond_checkpoint_destroy(millpond_checkpoint *checkpoint);
C_Status millpond_pool_sleep(millpond_pool *pool,
                             uint32_t flags);
C_Status millpond_pool_wake(millpond_pool *pool);
C_Status millpond_device_sleep(millpond_device *device,
                               const char *pool_name,
                               uint32_t flags);
C_Status millpond_device_wake(millpond_device *device,
                              const char *pool_name);
MILLPOND_NODISCARD
C_Status millpond_alloc(millpond_device *device,
                        size_t size_bytes,
                        void **out_ptr);
C_Status millpond_free(void *ptr);
C_Status millpond_device_free(millpond_device *device,
                              void *ptr);
C_Status millpond_free_sized(void *ptr, size_t size_bytes);
MILLPOND_NODISCARD
C_Status millpond_try_expand(void *ptr,
                             size_t new_size_bytes);
C_Status millpond_get_usable_size(const void *ptr,
                                  size_t *out_size_bytes);
C_Status millpond_record_stream(void *ptr,
                                C_Stream stream);
C_Status millpond_record_end(void *ptr,
                             C_Stream stream);
C_Status millpond_record_end_at(void *ptr,
                                C_Stream stream,
                                C_Event event);
C_Status millpond_get_block(const void *ptr,
                            millpond_block_info *inout_info);
MILLPOND_NODISCARD
C_Status millpond_host_alloc(millpond_device *device,
                             size_t size_bytes,
                             void **out_ptr);
C_Status millpond_host_free(millpond_device *device,
                            void *ptr);
C_Status millpond_host_record_stream(millpond_device *device,
                                     const void *ptr,
                                     C_Stream stream);
C_Status millpond_device_get_host_stats(const millpond_device *device,
                                        millpond_host_stats *inout_stats);
C_Status millpond_device_reset_host_peaks(millpond_device *device);
C_Status millpond_device_empty_host_cache(millpond_device *device);
C_Status millpond_host_register(millpond_device *device,
                                void *ptr,
                                size_t size_bytes);
C_Status millpond_host_unregister(millpond_device *device,
                                  void *ptr);
MILLPOND_NODISCARD
C_Status millpond_unified_alloc(millpond_device *device,
                                size_t size_bytes,
                                void **out_ptr);
C_Status millpond_unified_free(millpond_device *device,
                               void *ptr);
C_Status millpond_unified_prefetch(millpond_device *device,
                                   C_Stream stream,
                                   const void *ptr,
                                   size_t size_bytes,
                                   uint32_t place);
C_Status millpond_unified_advise(millpond_device *device,
                                 const void *ptr,
                                 size_t size_bytes,
                                 uint32_t advice,
                                 uint32_t place);
#define MILLPOND_SEGMENT_KIND_WHOLE 1
#define MILLPOND_SEGMENT_KIND_LARGE 2
#define MILLPOND_SEGMENT_KIND_SMALL 3
#define MILLPOND_SEGMENT_KIND_SCATTERED 4
typedef struct millpond_segment_record {
  size_t struct_size;
  void *ptr;
  size_t size_bytes;
  void *home;
  C_Stream stream;
  millpond_pool *pool;
  uint32_t kind;
  uint32_t reserved;
} millpond_segment_record;
typedef bool (*millpond_segment_walk_callback)(void *user_data, const struct millpond_segment_record *record);
C_Status millpond_device_walk_blocks(const millpond_device *device,
                                     const millpond_pool *pool,
                                     uint32_t states,
                                     millpond_walk_callback callback,
                                     void *user_data);
C_Status millpond_device_list_blocks(const millpond_device *device,
                                     const millpond_pool *pool,
                                     uint32_t states,
                                     millpond_block_record *records,
                                     size_t record_size,
                                     size_t capacity,
                                     size_t *out_count);
C_Status millpond_device_walk_segments(const millpond_device *device,
                                       const millpond_pool *pool,
                                       millpond_segment_walk_callback callback,
                                       void *user_data);
C_Status millpond_device_list_segments(const millpond_device *device,
                                       const millpond_pool *pool,
                                       struct millpond_segment_record *records,
                                       size_t record_size,
                                       size_t capacity,
                                       size_t *out_count);
C_Status millpond_device_write_snapshot(const millpond_device *device,
                                        uint32_t format,
                                        const char *path);
C_Status millpond_device_send_snapshot(const millpond_device *device,
                                       uint32_t format,
                                       millpond_write_callback callback,
                                       void *user_data);
#define MILLPOND_OOM_BOOKKEEPING 1
#define MILLPOND_OOM_LARGER_THAN_DEVICE 2
#define MILLPOND_OOM_ABOVE_POOL_LIMIT 3
#define MILLPOND_OOM_ABOVE_DEVICE_LIMIT 4
#define MILLPOND_OOM_POOL_LIMIT 5
#define MILLPOND_OOM_DEVICE_LIMIT 6
#define MILLPOND_OOM_WAITING 7
#define MILLPOND_OOM_FRAGMENTED 8
#define MILLPOND_OOM_DEVICE_REFUSED 9
#define MILLPOND_OOM_EXHAUSTED 10
#define MILLPOND_OOM_MISSING_ALL 1
#define MILLPOND_OOM_MISSING_DEVICE_FREE 2
#define MILLPOND_OOM_MISSING_WAITS 4
#define MILLPOND_OOM_MISSING_LARGEST 8
#define MILLPOND_OOM_MISSING_STREAMS 16
#define MILLPOND_OOM_MAPS 1
#define MILLPOND_OOM_COULD_MAP 2
#define MILLPOND_OOM_POOLED 4
#define MILLPOND_OOM_CAPTURED 8
#define MILLPOND_OOM_HAS_STREAM 16
#define MILLPOND_OOM_WATCHED 32
#define MILLPOND_OOM_NO_SCATTER 64
#define MILLPOND_OOM_CONTIGUOUS 128
#define MILLPOND_OOM_COULD_POOL 256
#define MILLPOND_OOM_WAITS_FOR_STREAM 1
#define MILLPOND_OOM_WAITS_FOR_ALL_STREAMS 2
#define MILLPOND_OOM_WAITS_FOR_ENDED 3
#define MILLPOND_OOM_WAITS_FOR_OTHERS 4
#define MILLPOND_OOM_WAITS_FOR_NOTHING 5
#define MILLPOND_OOM_STEP_POOL_IDLE 0
#define MILLPOND_OOM_STEP_COLLECT 1
#define MILLPOND_OOM_STEP_DEVICE 2
#define MILLPOND_OOM_STEP_WHOLE 3
#define MILLPOND_OOM_STEP_POOL_BUSY 4
#define MILLPOND_OOM_STEP_OTHERS_IDLE 5
#define MILLPOND_OOM_STEP_READY 6
#define MILLPOND_OOM_STEP_WAITING 7
#define MILLPOND_OOM_STEP_OTHERS_BUSY 8
#define MILLPOND_OOM_STEP_TRIM 9
#define MILLPOND_OOM_STEP_CALLBACKS 10
#define MILLPOND_OOM_TOP 8
#define MILLPOND_OOM_STEPS 11
#define MILLPOND_OOM_LABEL 48
#define MILLPOND_OOM_WORDS 192
typedef struct millpond_oom_holder {
  char label[MILLPOND_OOM_LABEL];
  millpond_pool *pool;
  C_Stream stream;
  uint64_t live_bytes;
  uint64_t block_count;
  uint64_t waiting_bytes;
  uint64_t free_bytes;
} millpond_oom_holder;
typedef struct millpond_oom_wait {
  uint32_t waits_for;
  uint32_t block_count;
  C_Stream stream;
  uint64_t bytes;
} millpond_oom_wait;
typedef struct millpond_oom_tried {
  uint32_t step;
  uint32_t try_count;
  uint32_t helped_count;
  uint32_t reserved;
  uint64_t bytes;
} millpond_oom_tried;
typedef struct millpond_oom_report {
  size_t struct_size;
  uint32_t reason;
  uint32_t missing;
  uint32_t flags;
  uint32_t waiting_stream_count;
  millpond_device *device;
  millpond_pool *pool;
  char pool_label[MILLPOND_OOM_LABEL];
  C_Stream stream;
  uint64_t requested_bytes;
  uint64_t rounded_bytes;
  uint64_t pool_limit_bytes;
  uint64_t device_limit_bytes;
  uint64_t device_most_bytes;
  uint64_t pool_reserved_bytes;
  uint64_t reserved_bytes;
  uint64_t live_bytes;
  uint64_t waiting_bytes;
  uint64_t exported_bytes;
  uint64_t free_here_bytes;
  uint64_t free_other_streams_bytes;
  uint64_t free_other_pools_bytes;
  uint64_t moving_bytes;
  uint64_t sleeping_bytes;
  uint64_t unreserved_bytes;
  uint64_t device_free_bytes;
  uint64_t largest_here_bytes;
  uint64_t largest_elsewhere_bytes;
  char device_said[MILLPOND_OOM_WORDS];
  uint32_t pool_count;
  uint32_t stream_count;
  uint32_t tag_count;
  uint32_t wait_count;
  uint32_t tried_count;
  uint32_t reserved;
  struct millpond_oom_holder pools[MILLPOND_OOM_TOP];
  struct millpond_oom_holder streams[MILLPOND_OOM_TOP];
  struct millpond_oom_holder tags[MILLPOND_OOM_TOP];
  struct millpond_oom_wait waits[MILLPOND_OOM_TOP];
  struct millpond_oom_tried tried[MILLPOND_OOM_STEPS];
  uint64_t whole_granule_bytes;
  uint64_t headroom_bytes;
  uint64_t max_split_bytes;
} millpond_oom_report;
typedef bool (*millpond_oom_handler)(void *user_data, const struct millpond_oom_report *report);
C_Status millpond_device_last_oom(const millpond_device *device,
                                  struct millpond_oom_report *inout_report);
C_Status millpond_last_oom(struct millpond_oom_report *inout_report);
C_Status millpond_oom_report_text(const struct millpond_oom_report *report,
                                  char *out_text,
                                  size_t capacity,
                                  size_t *out_size);
C_Status millpond_device_add_oom_handler(millpond_device *device,
                                         millpond_oom_handler handler,
                                         void *user_data,
                                         uint64_t *out_id);
C_Status millpond_pool_add_oom_handler(millpond_pool *pool,
                                       millpond_oom_handler handler,
                                       void *user_data,
                                       uint64_t *out_id);
typedef struct millpond_tag_stats {
  size_t struct_size;
  const char *name;
  uint32_t tag;
  uint32_t reserved;
  millpond_counter requested_bytes;
  millpond_counter allocated_bytes;
  millpond_counter blocks;
  uint64_t waiting_bytes;
  millpond_counter active_bytes;
  millpond_counter active_blocks;
  millpond_counter small_allocated_bytes;
  millpond_counter small_blocks;
  millpond_counter host_bytes;
  millpond_counter host_blocks;
  millpond_counter unified_bytes;
  millpond_counter unified_blocks;
} millpond_tag_stats;
C_Status millpond_tag_push(const char *name);
C_Status millpond_tag_pop(void);
C_Status millpond_tag_get_number(const char *name, uint32_t *out_tag);
C_Status millpond_tag_push_number(uint32_t tag);
const char *millpond_tag_get_name(uint32_t tag);
C_Status millpond_device_list_tags(const millpond_device *device,
                                   struct millpond_tag_stats *stats,
                                   size_t stats_size,
                                   size_t capacity,
                                   size_t *out_count);
C_Status millpond_device_history_start(millpond_device *device,
                                       const millpond_history_options *options);
C_Status millpond_device_history_stop(millpond_device *device,
                                      uint64_t *out_dropped);
C_Status millpond_device_history_read(const millpond_device *device,
                                      millpond_history_callback callback,
                                      void *user_data,
                                      uint64_t *out_dropped);
C_Status millpond_history_on_signal(int signal,
                                    const millpond_history_options *options);
C_Status millpond_history_annotate(const char *note);
uint64_t millpond_history_stamp(void);
C_Status millpond_device_record_start(millpond_device *device,
                                      const char *path);
C_Status millpond_device_record_stop(millpond_device *device,
                                     uint64_t *out_dropped);
#define MILLPOND_HOOK_ALLOC 1
#define MILLPOND_HOOK_FREE 2
#define MILLPOND_HOOK_FREE_FAILED 3
typedef struct millpond_block_event {
  size_t struct_size;
  uint32_t kind;
  uint32_t has_stream;
  void *ptr;
  size_t requested_bytes;
  size_t size_bytes;
  C_Stream stream;
  millpond_pool *pool;
  millpond_device *device;
} millpond_block_event;
typedef void (*millpond_hook)(void *user_data, const struct millpond_block_event *event);
typedef void (*millpond_hook_destroy)(void *user_data);
C_Status millpond_device_add_hook(millpond_device *device,
                                  millpond_hook hook,
                                  void *user_data,
                                  millpond_hook_destroy destroy,
                                  uint64_t *out_id);
C_Status millpond_device_remove_hook(millpond_device *device,
                                     uint64_t id);
#define MILLPOND_STATS_JSON 1
#define MILLPOND_STATS_PROMETHEUS 2
#define MILLPOND_STATS_STREAMS 256
typedef struct millpond_flow {
  uint64_t current;
  uint64_t peak;
  uint64_t allocated;
  uint64_t freed;
} millpond_flow;
typedef struct millpond_split {
  struct millpond_flow all;
  struct millpond_flow large_pool;
  struct millpond_flow small_pool;
} millpond_split;
typedef struct millpond_memory_stats {
  size_t struct_size;
  struct millpond_split allocation;
  struct millpond_split segment;
  struct millpond_split active;
  struct millpond_split inactive_split;
  struct millpond_split allocated_bytes;
  struct millpond_split reserved_bytes;
  struct millpond_split active_bytes;
  struct millpond_split inactive_split_bytes;
  struct millpond_split requested_bytes;
  struct millpond_flow oversize_allocations;
  struct millpond_flow oversize_segments;
  struct millpond_flow sleeping_bytes;
  uint64_t num_alloc_retries;
  uint64_t num_ooms;
  uint64_t num_oom_rejections;
  uint64_t num_sync_all_streams;
  uint64_t num_device_alloc;
  uint64_t num_device_free;
  uint64_t max_split_size;
  uint64_t limit_bytes;
  uint64_t free_bytes;
  uint64_t releasable_bytes;
  uint64_t largest_cached_bytes;
  uint64_t largest_free_bytes;
  uint64_t fragmentation_ppm;
} millpond_memory_stats;
typedef struct millpond_times {
  uint64_t total;
  uint64_t max;
  uint64_t min;
  uint64_t count;
  uint64_t avg;
} millpond_times;
typedef struct millpond_host_memory_stats {
  size_t struct_size;
  struct millpond_flow allocations;
  struct millpond_flow allocated_bytes;
  struct millpond_flow active_requests;
  struct millpond_flow active_bytes;
  struct millpond_times host_alloc_time;
  struct millpond_times host_free_time;
  uint64_t num_host_alloc;
  uint64_t num_host_free;
  uint64_t cached_bytes;
  uint64_t pending_bytes;
} millpond_host_memory_stats;
typedef struct millpond_stream_stats {
  size_t struct_size;
  C_Stream stream;
  uint32_t has_stream;
  uint64_t block_count;
  uint64_t requested_bytes;
  uint64_t allocated_bytes;
  uint64_t waiting_count;
  uint64_t waiting_bytes;
  uint64_t free_count;
  uint64_t free_bytes;
  uint64_t total_count;
  uint64_t total_bytes;
  uint64_t peak_count;
  uint64_t peak_requested_bytes;
  uint64_t peak_allocated_bytes;
} millpond_stream_stats;
C_Status millpond_device_get_memory_stats(const millpond_device *device,
                                          struct millpond_memory_stats *inout_stats);
C_Status millpond_pool_get_memory_stats(const millpond_pool *pool, struct millpond_memory_stats *inout_stats);
C_Status millpond_device_reset_accumulated(millpond_device *device);
C_Status millpond_pool_reset_accumulated(millpond_pool *pool);
C_Status millpond_memory_stats_find(const struct millpond_memory_stats *stats,
                                    const char *name,
                                    uint64_t *out_value);
const char *millpond_memory_stats_name(size_t index);
C_Status millpond_device_get_host_memory_stats(const millpond_device *device,
                                               struct millpond_host_memory_stats *inout_stats);
C_Status millpond_device_reset_host_accumulated(millpond_device *device);
C_Status millpond_host_memory_stats_find(const struct millpond_host_memory_stats *stats,
                                         const char *name,
                                         uint64_t *out_value);
const char *millpond_host_memory_stats_name(size_t index);
C_Status millpond_device_list_stream_stats(const millpond_device *device,
                                           const millpond_pool *pool,
                                           struct millpond_stream_stats *records,
                                           size_t record_size,
                                           size_t capacity,
                                           size_t *out_count);
C_Status millpond_device_write_stats(const millpond_device *device,
                                     uint32_t format,
                                     char *buffer,
                                     size_t capacity,
                                     size_t *out_needed);
C_Status millpond_write_stats(uint32_t format,
                              char *buffer,
                              size_t capacity,
                              size_t *out_needed);
#define MILLPOND_LATENCY_ALLOC 1
#define MILLPOND_LATENCY_FREE 2
#define MILLPOND_LATENCY_DEVICE_ALLOC 3
#define MILLPOND_LATENCY_DEVICE_FREE 4
#define MILLPOND_LATENCY_DEVICE_EVENT 5
#define MILLPOND_LATENCY_EVENT_WAIT 6
#define MILLPOND_LATENCY_LOCK_WAIT 7
#define MILLPOND_LATENCY_BUCKETS 160
typedef struct millpond_latency {
  size_t struct_size;
  uint64_t count;
  uint64_t total_ns;
  uint64_t min_ns;
  uint64_t max_ns;
  uint64_t buckets[MILLPOND_LATENCY_BUCKETS];
} millpond_latency;
C_Status millpond_device_get_latency(const millpond_device *device,
                                     uint32_t what,
                                     struct millpond_latency *inout_latency);
C_Status millpond_device_reset_latencies(millpond_device *device);
C_Status millpond_latency_quantile(const struct millpond_latency *latency,
                                   double part,
                                   uint64_t *out_ns);
uint64_t millpond_latency_bucket_start(size_t index);
const char *millpond_latency_name(uint32_t what);
C_Status millpond_device_add_segment_callback(millpond_device *device,
                                              millpond_segment_callback callback,
                                              void *user_data,
                                              uint64_t *out_id);
C_Status millpond_device_remove_segment_callback(millpond_device *device,
                                                 uint64_t id);
C_Status millpond_export_get_size(const void *ptr,
                                  size_t *out_info_bytes,
                                  size_t *out_fd_count);
MILLPOND_NODISCARD
C_Status millpond_export(const void *ptr,
                         void *out_info,
                         size_t info_bytes,
                         int *out_fds,
                         size_t fd_count);
MILLPOND_NODISCARD
C_Status millpond_export_dmabuf(const void *ptr,
                                size_t bytes,
                                int *out_fd,
                                uint64_t *out_offset);
MILLPOND_NODISCARD
C_Status millpond_import(millpond_device *device,
                         const void *info,
                         size_t info_bytes,
                         const int *fds,
                         size_t fd_count,
                         void **out_ptr);
C_Status millpond_import_close(void *ptr);
C_Status millpond_device_poll_exports(millpond_device *device,
                                      size_t *out_blocks,
                                      uint64_t *out_bytes);
C_Status millpond_device_can_access_peer(const millpond_device *device,
                                         const millpond_device *peer,
                                         bool *out_can);
C_Status millpond_device_enable_peer_access(millpond_device *device,
                                            millpond_device *peer);
#define MILLPOND_GROUP_NAME 40
typedef struct millpond_group_member {
  size_t struct_size;
  uint64_t member_id;
  uint64_t process_id;
  char name[MILLPOND_GROUP_NAME];
  char device[MILLPOND_GROUP_NAME];
  uint8_t card[16];
  uint64_t reserved_bytes;
  uint64_t unused_bytes;
  uint64_t budget_bytes;
  uint64_t given_bytes;
  uint64_t received_bytes;
  uint64_t looked_ms;
} millpond_group_member;
C_Status millpond_device_join_group(millpond_device *device,
                                    const char *path,
                                    const char *name,
                                    uint64_t wait_ms,
                                    uint64_t *out_member_id);
C_Status millpond_device_leave_group(millpond_device *device);
C_Status millpond_device_serve_group(millpond_device *device,
                                     uint64_t timeout_ms,
                                     uint64_t *out_given_bytes);
C_Status millpond_group_list(const char *path,
                             struct millpond_group_member *records,
                             size_t record_size,
                             size_t capacity,
                             size_t *out_count);
C_Status millpond_group_set_budget(const char *path,
                                   uint64_t member_id,
                                   uint64_t budget_bytes);
C_Status millpond_copy(millpond_device *device,
                       uint32_t kind,
                       void *dst,
                       const void *src,
                       size_t size_bytes);
C_Status millpond_copy_async(millpond_device *device,
                             C_Stream stream,
                             uint32_t kind,
                             void *dst,
                             const void *src,
                             size_t size_bytes);
C_Status millpond_copy_peer(millpond_device *dst_device,
                            void *dst,
                            millpond_device *src_device,
                            const void *src,
                            size_t size_bytes);
C_Status millpond_copy_peer_async(millpond_device *dst_device,
                                  void *dst,
                                  millpond_device *src_device,
                                  C_Stream stream,
                                  const void *src,
                                  size_t size_bytes);
C_Status millpond_memset(millpond_device *device, void *dst, uint8_t value, size_t size_bytes);
C_Status millpond_memset_async(millpond_device *device,
                               C_Stream stream,
                               void *dst,
                               uint8_t value,
                               size_t size_bytes);
MILLPOND_NODISCARD
C_Status millpond_stream_create(millpond_device *device,
                                C_Stream *out_stream);
C_Status millpond_device_get_stream_priority_range(millpond_device *device,
                                                   int32_t *out_least,
                                                   int32_t *out_greatest);
MILLPOND_NODISCARD
C_Status millpond_stream_create_with_priority(millpond_device *device,
                                              int32_t priority,
                                              uint32_t flags,
                                              C_Stream *out_stream);
C_Status millpond_stream_destroy(millpond_device *device,
                                 C_Stream stream);
C_Status millpond_stream_forget(millpond_device *device,
                                C_Stream stream);
C_Status millpond_stream_query(millpond_device *device, C_Stream stream, bool *out_done);
C_Status millpond_stream_synchronize(millpond_device *device, C_Stream stream);
C_Status millpond_stream_wait_event(millpond_device *device,
                                    C_Stream stream,
                                    C_Event event);
C_Status millpond_stream_add_callback(millpond_device *device,
                                      C_Stream stream,
                                      millpond_stream_callback callback,
                                      void *user_data);
MILLPOND_NODISCARD
C_Status millpond_event_create(millpond_device *device,
                               C_Event *out_event);
MILLPOND_NODISCARD
C_Status millpond_event_create_timed(millpond_device *device,
                                     C_Event *out_event);
C_Status millpond_event_get_elapsed(millpond_device *device,
                                    C_Event start,
                                    C_Event end,
                                    float *out_milliseconds);
C_Status millpond_event_destroy(millpond_device *device,
                                C_Event event);
C_Status millpond_event_record(millpond_device *device,
                               C_Stream stream,
                               C_Event event);
C_Status millpond_event_query(millpond_device *device, C_Event event, bool *out_done);
C_Status millpond_event_is_held(millpond_device *device,
                                C_Event event,
                                bool *out_held);
C_Status millpond_event_synchronize(millpond_device *device, C_Event event);
typedef struct DLManagedTensor DLManagedTensor;
typedef struct DLManagedTensorVersioned DLManagedTensorVersioned;
MILLPOND_NODISCARD
C_Status millpond_dlpack_export(void *ptr,
                                const millpond_dlpack_options *options,
                                struct DLManagedTensorVersioned **out_tensor);
MILLPOND_NODISCARD
C_Status millpond_dlpack_export_legacy(void *ptr,
                                       const millpond_dlpack_options *options,
                                       struct DLManagedTensor **out_tensor);
C_Status millpond_dlpack_get_view(const millpond_device *device,
                                  const struct DLManagedTensorVersioned *tensor,
                                  millpond_dlpack_view *inout_view);
C_Status millpond_dlpack_get_view_legacy(const millpond_device *device,
                                         const struct DLManagedTensor *tensor,
                                         millpond_dlpack_view *inout_view);
C_Status millpond_dlpack_destroy(struct DLManagedTensorVersioned *tensor);
C_Status millpond_dlpack_destroy_legacy(struct DLManagedTensor *tensor);
#ifdef __cplusplus
}
#endif
#endif
