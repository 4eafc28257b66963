/* DRAFT of the contract; capi/ makes it true and cbindgen then writes this file from capi's doc comments. */
#ifndef MILLPOND_MILLPOND_H
#define MILLPOND_MILLPOND_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "millpond/custom_runtime.h" /* C_Status, C_Device, C_Stream, C_Event, C_Callback, CustomRuntimeParams */

#define MILLPOND_VERSION_MAJOR 0
#define MILLPOND_VERSION_MINOR 1
#define MILLPOND_VERSION_PATCH 0

/* millpond_last_error_code(): stable numbers, never reused (see base/error.rs) */
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
/* C_Status of a failed call: C_FAILED for OUT_OF_MEMORY, DEVICE and SYSTEM; C_INTERNAL_ERROR for INTERNAL; C_ERROR for the rest. */

#define MILLPOND_COPY_H2D 0u
#define MILLPOND_COPY_D2H 1u
#define MILLPOND_COPY_D2D 2u

#define MILLPOND_CAP_MAPPING 1u      /* millpond_device_info.caps */
#define MILLPOND_CAP_HOST_ACCESS 2u
#define MILLPOND_CAP_UNIFIED 4u
#define MILLPOND_CAP_PINNED 8u
#define MILLPOND_CAP_STREAMS 16u
#define MILLPOND_CAP_CALLBACKS 32u

typedef struct millpond_device millpond_device; /* borrowed; valid until millpond_finalize() or its type is unregistered; later uses get a status */
typedef struct millpond_pool millpond_pool;

typedef struct millpond_host_options { /* the embedded host device; zero means default */
  size_t struct_size;
  uint32_t device_count;          /* default 2; at most 64 */
  uint64_t capacity_bytes;        /* each device; default: half the machine's memory / device_count, committed as touched */
  uint32_t disable_mapping;       /* 1: behave as a device that can only give segments */
} millpond_host_options;

typedef struct millpond_device_info {
  size_t struct_size;
  char type[32]; int32_t ordinal; uint32_t caps;
  uint64_t total_bytes, free_bytes;
  uint64_t min_chunk_bytes, max_chunk_bytes, max_alloc_bytes, extra_padding_bytes, init_alloc_bytes, realloc_bytes;
  uint64_t compute_capability, runtime_version, driver_version;
} millpond_device_info;

typedef struct millpond_pool_options { size_t struct_size; uint64_t limit_bytes; /* 0: no limit of its own */ const char *name; /* NULL: unnamed */ } millpond_pool_options;

typedef struct millpond_counter { uint64_t current, peak, total; } millpond_counter; /* total: everything ever added */
typedef struct millpond_stats {
  size_t struct_size;
  millpond_counter requested_bytes; /* as asked for, before rounding */
  millpond_counter allocated_bytes; /* in live blocks, after rounding */
  millpond_counter active_bytes;    /* allocated, plus freed but waiting for a stream */
  millpond_counter reserved_bytes;  /* taken from the device */
  millpond_counter blocks;          /* live blocks */
  millpond_counter segments;        /* calls' worth of device memory held */
  uint64_t driver_calls;            /* calls into device memory management so far (alloc, free, create, map, ...) */
  uint64_t out_of_memory_count;     /* requests that failed for lack of memory */
  uint64_t limit_bytes;             /* 0: none */
} millpond_stats;

/* --- library --- */
const char *millpond_version(void);
uint32_t    millpond_last_error_code(void);      /* of the calling thread; 0 after a successful start, not cleared by success */
const char *millpond_last_error_message(void);   /* never NULL; borrowed until the next failing call on this thread */
const char *millpond_error_name(uint32_t code);  /* "MILLPOND_E_OUT_OF_MEMORY"; "unknown" otherwise */
C_Status    millpond_host_configure(const millpond_host_options *options); /* before the first use of "host", else BUSY */
C_Status    millpond_finalize(void); /* ends every device type; live blocks are lost; all later calls get NOT_INITIALIZED until a next millpond_device_get(), which starts anew; old handles stay refused */

/* --- device types and devices --- */
C_Status millpond_device_type_get_count(size_t *out_count);
C_Status millpond_device_type_get_name(size_t index, char *out_name, size_t capacity); /* BUSY never; OUT_OF_RANGE; INVALID when it doesn't fit */
C_Status millpond_device_type_register(void (*init_plugin)(CustomRuntimeParams *), char *out_name, size_t capacity); /* out_name may be NULL */
C_Status millpond_device_type_load(const char *path, char *out_name, size_t capacity);
C_Status millpond_device_type_unregister(const char *type); /* BUSY while blocks of it live */
C_Status millpond_device_get_count(const char *type, size_t *out_count);
C_Status millpond_device_get(const char *type, int32_t ordinal, millpond_device **out_device);
C_Status millpond_device_get_info(millpond_device *device, millpond_device_info *inout_info); /* struct_size set by the caller */
C_Status millpond_device_synchronize(millpond_device *device);
C_Status millpond_device_set_limit(millpond_device *device, uint64_t limit_bytes); /* reserved never passes it; 0: none */
C_Status millpond_device_get_stats(millpond_device *device, millpond_stats *inout_stats);
C_Status millpond_device_reset_peaks(millpond_device *device);
C_Status millpond_device_empty_cache(millpond_device *device); /* unused memory of all pools back to the device */
C_Status millpond_device_get_default_pool(millpond_device *device, millpond_pool **out_pool); /* borrowed */

/* --- pools --- */
C_Status millpond_pool_create(millpond_device *device, const millpond_pool_options *options, millpond_pool **out_pool);
C_Status millpond_pool_destroy(millpond_pool *pool); /* NULL: no-op. BUSY while blocks of it live. */
C_Status millpond_pool_get_device(const millpond_pool *pool, millpond_device **out_device);
C_Status millpond_pool_alloc(millpond_pool *pool, size_t size_bytes, C_Stream stream, void **out_ptr);
   /* stream-ordered: usable by work queued on `stream` from now on. size 0: C_SUCCESS and NULL. */
C_Status millpond_pool_free(millpond_pool *pool, void *ptr, C_Stream stream);
   /* stream-ordered: reusable at once by work queued later on `stream`; if it is not the stream of the allocation, both are honoured. NULL: no-op */
C_Status millpond_pool_empty_cache(millpond_pool *pool);
C_Status millpond_pool_set_limit(millpond_pool *pool, uint64_t limit_bytes);
C_Status millpond_pool_get_stats(millpond_pool *pool, millpond_stats *inout_stats);
C_Status millpond_pool_reset_peaks(millpond_pool *pool);

/* --- memory without a pool in hand --- */
C_Status millpond_alloc(millpond_device *device, size_t size_bytes, void **out_ptr);
   /* not stream-ordered: usable at once from every stream and the host; from the default pool */
C_Status millpond_free(void *ptr);
   /* any block of any pool. A block of millpond_alloc is reused when every stream has passed this point (like cudaFree without its wait);
      a block of millpond_pool_alloc goes back to its stream. NULL: no-op */
C_Status millpond_free_sized(void *ptr, size_t size_bytes); /* WRONG_SIZE, and nothing freed, when size differs from the request */
C_Status millpond_record_stream(void *ptr, C_Stream stream); /* the block is also used by `stream`: reuse waits for what is queued there at the free */
typedef struct millpond_block_info { size_t struct_size; void *base; size_t size_bytes; size_t requested_bytes; C_Stream stream; millpond_pool *pool; millpond_device *device; } millpond_block_info;
C_Status millpond_get_block(const void *ptr, millpond_block_info *inout_info); /* ptr may lie inside the block */
C_Status millpond_host_alloc(millpond_device *device, size_t size_bytes, void **out_ptr);    /* pinned */
C_Status millpond_host_free(millpond_device *device, void *ptr);
C_Status millpond_unified_alloc(millpond_device *device, size_t size_bytes, void **out_ptr);
C_Status millpond_unified_free(millpond_device *device, void *ptr);

/* --- copies: device ranges must lie in one live block, else OUT_OF_RANGE / UNKNOWN_POINTER --- */
C_Status millpond_copy(millpond_device *device, uint32_t kind, void *dst, const void *src, size_t size_bytes);
C_Status millpond_copy_async(millpond_device *device, C_Stream stream, uint32_t kind, void *dst, const void *src, size_t size_bytes);
C_Status millpond_copy_peer(millpond_device *dst_device, void *dst, millpond_device *src_device, const void *src, size_t size_bytes);
C_Status millpond_copy_peer_async(millpond_device *dst_device, void *dst, millpond_device *src_device, C_Stream src_stream, const void *src, size_t size_bytes);
C_Status millpond_memset(millpond_device *device, void *dst, uint8_t value, size_t size_bytes);
C_Status millpond_memset_async(millpond_device *device, C_Stream stream, void *dst, uint8_t value, size_t size_bytes);

/* --- streams and events --- */
C_Status millpond_stream_create(millpond_device *device, C_Stream *out_stream);
C_Status millpond_stream_destroy(millpond_device *device, C_Stream stream); /* NULL: no-op. Live blocks of it stay valid */
C_Status millpond_stream_query(millpond_device *device, C_Stream stream, bool *out_done);
C_Status millpond_stream_synchronize(millpond_device *device, C_Stream stream);
C_Status millpond_stream_wait_event(millpond_device *device, C_Stream stream, C_Event event);
typedef void (*millpond_stream_callback)(void *user_data, C_Status status);
C_Status millpond_stream_add_callback(millpond_device *device, C_Stream stream, millpond_stream_callback callback, void *user_data);
C_Status millpond_event_create(millpond_device *device, C_Event *out_event);
C_Status millpond_event_destroy(millpond_device *device, C_Event event); /* NULL: no-op */
C_Status millpond_event_record(millpond_device *device, C_Stream stream, C_Event event);
C_Status millpond_event_query(millpond_device *device, C_Event event, bool *out_done);
C_Status millpond_event_synchronize(millpond_device *device, C_Event event);
#endif
