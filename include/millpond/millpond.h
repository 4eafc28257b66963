/* Millpond: device memory for deep-learning frameworks. The native C API.
 *
 * Written by cbindgen from the comments in src/capi; edit those. Valid C11 and C++17.
 *
 *   millpond_device *device;
 *   millpond_pool *pool;
 *   void *p;
 *   if (millpond_device_get("host", 0, &device) == C_SUCCESS &&
 *       millpond_device_get_default_pool(device, &pool) == C_SUCCESS &&
 *       millpond_pool_alloc(pool, 1 << 20, NULL, &p) == C_SUCCESS) {
 *     ... work queued on the default stream may use p ...
 *     millpond_pool_free(pool, p, NULL);
 *   } else {
 *     fprintf(stderr, "%s\n", millpond_last_error_message());
 *   }
 *
 * Ownership   The verb tells. create/destroy own a handle, alloc/free own memory, get borrows, register/
 *             unregister are for tables. Handles of devices and pools are numbers and point to nothing; what is
 *             borrowed stays valid as long as what it came from. Destroying or freeing NULL is a no-op.
 * Threads     Every function may be called from any thread, many at a time, unless its comment says otherwise. A
 *             handle that is destroyed must not be in use by another thread. No lock is held while a callback
 *             runs, but for the one that keeps segment callbacks in order. Callbacks should not throw. A walk, a
 *             reading of a history and a snapshot whose callback throws end with SYSTEM, as it has not got all;
 *             what other callbacks throw is lost, and counts as false where they return a bool (Linux; elsewhere
 *             it ends the process).
 * Errors      Every call that can fail returns C_Status: C_SUCCESS; C_FAILED for OUT_OF_MEMORY, DEVICE and SYSTEM;
 *             C_INTERNAL_ERROR for INTERNAL; C_ERROR for the caller's mistakes. millpond_last_error_code() and
 *             millpond_last_error_message() of the same thread tell more. Comments name errors without their
 *             MILLPOND_E_. Outputs are written only on success. Any call may return OUT_OF_MEMORY where the host
 *             itself has no memory left, and has changed nothing then; docs/rules.md says in which few places that
 *             still ends the process. Nothing else does. Nothing is printed, but for a defect in Millpond itself or
 *             in a device written in Rust: its message goes to stderr, and the call returns C_INTERNAL_ERROR.
 * Units       Sizes are bytes; names end in _bytes, _count. Streams are C_Stream of the custom runtime; NULL is
 *             the default stream of the device, and always exists.
 * Structs     Options and results start with struct_size. Set it to sizeof the struct before each call: a program
 *             built with an older or a newer header than the library keeps working. Results are written as far
 *             as they fit; options that an older program does not have are zero, and zero means default.
 *
 * Bad input that is always caught, with a status, and with nothing lost or changed:
 *   - NULL where a pointer is needed; an out pointer that is not aligned; a struct_size of 0
 *   - a device or pool handle that is destroyed, ended, of the other kind, or was never one
 *   - a device type or ordinal that does not exist; an index or an enumeration out of range
 *   - size 0 (C_SUCCESS and NULL, or a no-op), and sizes up to SIZE_MAX that no device can have (OUT_OF_MEMORY)
 *   - freeing a pointer that is not ours, that lies inside a block, or that has been freed already and whose
 *     address is not in use again; a wrong size at millpond_free_sized
 *   - a destroyed or foreign stream or event, on devices that know theirs ("host" and "cpu" do)
 *   - a copy or fill that runs past the end of a block of device memory
 *   - any call before a device was opened, after millpond_finalize, or in the child of a fork (NOT_PERMITTED)
 * Not caught: host ranges of copies that are not the caller's, strings without an end, and use of memory after
 * it was freed.
 *
 * Process     Only what the program has asked for has threads: streams of "host" and "cpu", and histories and
 *             recordings that go to files (docs/rules.md). In the child of a fork every call gets NOT_PERMITTED
 *             if the parent had opened a device. At exit nothing needs to be called, and static
 *             destructors may still free: they get a status at worst.
 * Environment The defaults of the device type "host", read at the first use; a bad value fails that use, and the
 *             message names the variable. MILLPOND_HOST_DEVICES: how many devices, 1 to 64 (default 2).
 *             MILLPOND_HOST_CAPACITY: bytes of each, with an optional suffix K, M or G (default: half of the
 *             machine's memory, shared by the devices). MILLPOND_HOST_MAPPING: 0 or 1 (default 1).
 */
#ifndef MILLPOND_MILLPOND_H
#define MILLPOND_MILLPOND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "millpond/custom_runtime.h" /* C_Status, C_Stream, C_Event, CustomRuntimeParams */

/* On calls that give memory or a handle to the caller, who cannot know whether there is any without a look at the
 * status: the compiler warns if it is ignored. Define it as nothing before this header to have no warning. */
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

/* What this header has beside the calls that every one has, for code that is compiled against several: each macro stands
 * for the functions named beside it and for all that belongs to them. */
#define MILLPOND_HAS_ALIGNED 1           /* millpond_pool_alloc_aligned */
#define MILLPOND_HAS_ZEROED 1            /* millpond_pool_alloc_zeroed */
#define MILLPOND_HAS_BATCH 1             /* millpond_pool_alloc_batch, millpond_pool_free_batch */
#define MILLPOND_HAS_TRY_EXPAND 1        /* millpond_try_expand */
#define MILLPOND_HAS_USABLE_SIZE 1       /* millpond_get_usable_size */
#define MILLPOND_HAS_TRIM 1              /* millpond_pool_trim_to, millpond_device_trim_to */
#define MILLPOND_HAS_BUDGET 1            /* millpond_device_set_budget */
#define MILLPOND_HAS_GROUP 1             /* millpond_device_join_group, millpond_group_list */
#define MILLPOND_HAS_CAPTURE 1           /* millpond_capture_begin */
#define MILLPOND_HAS_CHECKPOINT 1        /* millpond_pool_checkpoint */
#define MILLPOND_HAS_SLEEP 1             /* millpond_pool_sleep, millpond_device_sleep */
#define MILLPOND_HAS_HOST_REGISTER 1     /* millpond_host_register */
#define MILLPOND_HAS_UNIFIED_ADVICE 1    /* millpond_unified_prefetch, millpond_unified_advise */
#define MILLPOND_HAS_STREAM_PRIORITY 1   /* millpond_stream_create_with_priority */
#define MILLPOND_HAS_TIMED_EVENTS 1      /* millpond_event_create_timed */
#define MILLPOND_HAS_OOM_HANDLER 1       /* millpond_device_add_oom_handler */
#define MILLPOND_HAS_POOL_OOM_HANDLER 1  /* millpond_pool_add_oom_handler */
#define MILLPOND_HAS_HOOKS 1             /* millpond_device_add_hook */
#define MILLPOND_HAS_SEGMENT_CALLBACKS 1 /* millpond_device_add_segment_callback */
#define MILLPOND_HAS_TAGS 1              /* millpond_tag_push */
#define MILLPOND_HAS_HISTORY 1           /* millpond_device_history_start */
#define MILLPOND_HAS_LATENCY 1           /* millpond_device_get_latency */
#define MILLPOND_HAS_EXPORT 1            /* millpond_export, millpond_import */
#define MILLPOND_HAS_DLPACK 1            /* millpond_dlpack_export */

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. The library tells its own in millpond_version. */
#define MILLPOND_VERSION_MAJOR 0
#define MILLPOND_VERSION_MINOR 1
#define MILLPOND_VERSION_PATCH 0
/* The same as one number, for the preprocessor: #if MILLPOND_VERSION_NUMBER >= 2000 is 0.2.0 or newer. */
#define MILLPOND_VERSION_NUMBER \
  (MILLPOND_VERSION_MAJOR * 1000000 + MILLPOND_VERSION_MINOR * 1000 + MILLPOND_VERSION_PATCH)

/* ---- Constants and structs ----------------------------------------------------------------------------- */

/** `millpond_last_error_code`: no call has failed on this thread yet. */
#define MILLPOND_OK 0
/** An argument is outside its documented range: NULL, a bad flag, a bad handle, an overflow. */
#define MILLPOND_E_INVALID_ARGUMENT 1
/** The device has not enough free memory, or a limit was reached. */
#define MILLPOND_E_OUT_OF_MEMORY 2
/** The address is not the start of a live block of this library. */
#define MILLPOND_E_UNKNOWN_POINTER 3
/** The block was freed before. */
#define MILLPOND_E_DOUBLE_FREE 4
/** The stream is not known to this device, or was destroyed. */
#define MILLPOND_E_UNKNOWN_STREAM 5
/** The event is not known to this device, or was destroyed. */
#define MILLPOND_E_UNKNOWN_EVENT 6
/** No device type of that name, or no device of that ordinal. */
#define MILLPOND_E_UNKNOWN_DEVICE 7
/** The library was not started, or the device has ended. */
#define MILLPOND_E_NOT_INITIALIZED 8
/** The device type cannot do this. */
#define MILLPOND_E_UNSUPPORTED 9
/** A range runs past the end of its block, or an index past the end of its table. */
#define MILLPOND_E_OUT_OF_RANGE 10
/** The driver or plugin reported a failure of its own. */
#define MILLPOND_E_DEVICE 11
/** The operating system refused a call. */
#define MILLPOND_E_SYSTEM 12
/** A custom-runtime plugin was refused: version, struct size or a missing function. */
#define MILLPOND_E_PLUGIN_REFUSED 13
/** The object is still in use, or the name is taken. */
#define MILLPOND_E_BUSY 14
/** The call is not allowed here: in a stream callback, or in a forked child. */
#define MILLPOND_E_NOT_PERMITTED 15
/** The size given at free differs from the size at allocation. */
#define MILLPOND_E_WRONG_SIZE 16
/** A defect of this library; please report it. */
#define MILLPOND_E_INTERNAL 17
/**
 * `millpond_pool_options`: each block of the pool lies in one physical allocation of the device, so that libraries which
 * register memory, or share it with other processes, see all of a block by its address. No block is scattered; free
 * memory that lies apart serves no larger block. On a device that maps, blocks share allocations of 64 MiB (less on a
 * small device), and a larger block has one of its own; on other devices every pool is so. Blocks that a captured stream
 * asks for come from the capture's pool, whatever pool they name.
 */
#define MILLPOND_POOL_CONTIGUOUS 1
/** `millpond_pool_sleep`: the contents of the memory are kept in host memory, and restored by the wake. */
#define MILLPOND_SLEEP_KEEP 1
/** `millpond_device_add_segment_callback`: the range has memory from now on. */
#define MILLPOND_SEGMENT_ADDED 1
/** The same: the range is about to lose its memory. */
#define MILLPOND_SEGMENT_REMOVED 2
/** For `millpond_device_walk_blocks`, as the next two: an allocated block. */
#define MILLPOND_BLOCK_LIVE 1
/** A freed block that is not reused before some streams, or other processes, have passed what was queued. */
#define MILLPOND_BLOCK_WAITING 2
/** Free memory: the next request may get it. Pools that sleep have none. */
#define MILLPOND_BLOCK_FREE 4
/** All of these. */
#define MILLPOND_BLOCK_ANY 7
/** Format of `millpond_device_write_snapshot`: JSON, with the schema in docs/snapshots.md. */
#define MILLPOND_SNAPSHOT_JSON 1
/**
 * Format of `millpond_device_write_snapshot`: the pickle of PyTorch's `torch.cuda.memory._snapshot()`, for its tools
 * (`_memory_viz.py`).
 */
#define MILLPOND_SNAPSHOT_TORCH_PICKLE 2
/** Copy from host memory to device memory. */
#define MILLPOND_COPY_H2D 0
/** Copy from device memory to host memory. */
#define MILLPOND_COPY_D2H 1
/** Copy within one device. */
#define MILLPOND_COPY_D2D 2
/** A place of unified memory: the memory of the device. */
#define MILLPOND_PLACE_DEVICE 1
/** A place of unified memory: the processor's. */
#define MILLPOND_PLACE_HOST 2
/** `millpond_unified_advise`: it is mostly read, so each place that reads may get a copy. Has no place. */
#define MILLPOND_ADVICE_READ_MOSTLY 1
/** `millpond_unified_advise`: undoes MILLPOND_ADVICE_READ_MOSTLY. */
#define MILLPOND_ADVICE_UNSET_READ_MOSTLY 2
/** `millpond_unified_advise`: it should lie at the place. */
#define MILLPOND_ADVICE_PREFERRED 3
/** `millpond_unified_advise`: undoes MILLPOND_ADVICE_PREFERRED, whatever the place. */
#define MILLPOND_ADVICE_UNSET_PREFERRED 4
/** `millpond_unified_advise`: the place uses it, and should have it mapped wherever it lies, so that it need not move. */
#define MILLPOND_ADVICE_ACCESSED_BY 5
/** `millpond_unified_advise`: undoes MILLPOND_ADVICE_ACCESSED_BY of the place. */
#define MILLPOND_ADVICE_UNSET_ACCESSED_BY 6
/** Bit of `millpond_device_info.caps`: physical memory is separate from addresses. */
#define MILLPOND_CAP_MAPPING 1
/** Bit of `millpond_device_info.caps`: the host can read and write device memory at its address. */
#define MILLPOND_CAP_HOST_ACCESS 2
/** Bit of `millpond_device_info.caps`: unified memory works. */
#define MILLPOND_CAP_UNIFIED 4
/** Bit of `millpond_device_info.caps`: host memory is page-locked, as far as the limit allows. */
#define MILLPOND_CAP_PINNED 8
/** Bit of `millpond_device_info.caps`: streams can be created. */
#define MILLPOND_CAP_STREAMS 16
/** Bit of `millpond_device_info.caps`: stream callbacks work. */
#define MILLPOND_CAP_CALLBACKS 32
/** Bit of `millpond_device_info.caps`: blocks can be shared with other processes (`millpond_export`). */
#define MILLPOND_CAP_EXPORT 64
/**
 * Bit of `millpond_device_info.caps`: the driver lets other devices on the bus, such as network cards, reach pooled
 * memory directly (GPUDirect RDMA).
 */
#define MILLPOND_CAP_RDMA 128
/** Flag of `millpond_stream_create_with_priority`: the default stream does not wait for the stream, nor the stream for it. */
#define MILLPOND_STREAM_NON_BLOCKING 1
/** Event of a history: a request was served. */
#define MILLPOND_HISTORY_ALLOC 1
/** Event of a history: a free was asked for; told before the memory can be used again. */
#define MILLPOND_HISTORY_FREE_REQUESTED 2
/** Event of a history: what the freed block waited for is over. Not told after FREE_REQUESTED with MILLPOND_HISTORY_AT_ONCE. */
#define MILLPOND_HISTORY_FREE_COMPLETED 3
/** Event of a history: a free that was asked for has failed: the block lives on. */
#define MILLPOND_HISTORY_FREE_REFUSED 4
/** Event of a history: memory was taken from the device, and is at that address. */
#define MILLPOND_HISTORY_SEGMENT_ALLOC 5
/** Event of a history: memory went back to the device: what was taken, or a part, or several side by side. */
#define MILLPOND_HISTORY_SEGMENT_FREE 6
/** Event of a history: memory that was there before is shown at that address, too. */
#define MILLPOND_HISTORY_SEGMENT_MAP 7
/** Event of a history: it is not shown there any more. */
#define MILLPOND_HISTORY_SEGMENT_UNMAP 8
/** Event of a history: a request has failed for lack of memory, whatever was tried. */
#define MILLPOND_HISTORY_OOM 9
/** Event of a history: a block is used by one more stream. */
#define MILLPOND_HISTORY_RECORD_STREAM 10
/** Event of a history: a snapshot was taken. */
#define MILLPOND_HISTORY_SNAPSHOT 11
/** Event of a history: the program has noted `text`. */
#define MILLPOND_HISTORY_ANNOTATE 12
/** Flag of an event: it is pinned host memory. */
#define MILLPOND_HISTORY_HOST 1
/** Flag of MILLPOND_HISTORY_FREE_REQUESTED: nothing had to be waited for. */
#define MILLPOND_HISTORY_AT_ONCE 2
/** Flag of an event: it is of one stream. Without it `stream` is NULL, and means all of them. */
#define MILLPOND_HISTORY_STREAM 4

/**
 * A capture of work for later, and the graph that it made: a handle from `millpond_capture_begin`. It is a number and
 * points to nothing; a released one is recognised.
 */
typedef struct millpond_capture millpond_capture;

/**
 * A recorded layout of a pool: a handle from `millpond_pool_checkpoint`. It is a number and points to
 * nothing; a destroyed one is recognised.
 */
typedef struct millpond_checkpoint millpond_checkpoint;

/**
 * A device: a handle, borrowed from `millpond_device_get`. It is a number and points to nothing. It stays known for
 * ever, and calls on a device that has ended return MILLPOND_E_NOT_INITIALIZED.
 */
typedef struct millpond_device millpond_device;

/**
 * A pool of a device's memory: a handle from `millpond_pool_create` or
 * `millpond_device_get_default_pool`. It is a number and points to nothing; a destroyed pool's
 * handle is recognised.
 */
typedef struct millpond_pool millpond_pool;

/** The configuration of the built-in device type "host". Zero means the default, which the environment can set. */
typedef struct millpond_host_options {
  /** sizeof(millpond_host_options) */
  size_t struct_size;
  /** Number of devices, at most 64. 0: MILLPOND_HOST_DEVICES, otherwise 2. */
  uint32_t device_count;
  /**
   * Bytes of each device, committed as they are touched. 0: MILLPOND_HOST_CAPACITY, otherwise half of the machine's
   * memory divided by the number of devices.
   */
  uint64_t capacity_bytes;
  /** 1: the devices only give segments and cannot map. 0: MILLPOND_HOST_MAPPING, otherwise they can map. */
  uint32_t disable_mapping;
} millpond_host_options;

/** What a device reports about itself. */
typedef struct millpond_device_info {
  /** sizeof(millpond_device_info) */
  size_t struct_size;
  /** Name of the device type, with its NUL. */
  char type[32];
  /** Ordinal of the device within its type. */
  int32_t ordinal;
  /** MILLPOND_CAP_* bits. */
  uint32_t caps;
  /** Bytes the device has; 0 if it does not say, as a plugin without `device_memory_stats`. */
  uint64_t total_bytes;
  /** Bytes that could be taken from it now; means nothing where total_bytes is 0. */
  uint64_t free_bytes;
  /** Requests are rounded up to a multiple of this; addresses are aligned to it. */
  uint64_t min_chunk_bytes;
  /** A request that takes more than this goes to the device directly. */
  uint64_t max_chunk_bytes;
  /** The maximum that is ever taken from the device. */
  uint64_t max_alloc_bytes;
  /** Added to each request before it is rounded. */
  uint64_t extra_padding_bytes;
  /** Size of the first chunk that is taken from the device. */
  uint64_t init_alloc_bytes;
  /** Size of each later chunk. */
  uint64_t realloc_bytes;
  /** Compute capability, major * 10 + minor. */
  uint64_t compute_capability;
  /** Version of the runtime library. */
  uint64_t runtime_version;
  /** Version of the driver. */
  uint64_t driver_version;
  /** The product's name, with its NUL: of the card, or of the processor; cut where it is longer. Empty if unknown. */
  char name[64];
  /** Where a card is on the bus, as in "0000:3b:00.0", with its NUL. Empty if it is not there, or unknown. */
  char pci_bus_id[16];
  /** The card's UUID, as NVML and `nvidia-smi -L` have it: it stays the same where ordinals change. All 0 if unknown. */
  uint8_t uuid[16];
} millpond_device_info;

/** The configuration of a new pool. */
typedef struct millpond_pool_options {
  /** sizeof(millpond_pool_options) */
  size_t struct_size;
  /** The pool never reserves more bytes than this; 0: no limit of its own. */
  uint64_t limit_bytes;
  /** UTF-8 text for error messages; NULL: unnamed. Copied. */
  const char *name;
  /** MILLPOND_POOL_* bits; 0: none. */
  uint64_t flags;
} millpond_pool_options;

/** One quantity over time. */
typedef struct millpond_counter {
  /** Its value now. */
  uint64_t current;
  /** The highest value since the start or the last reset of the peaks. */
  uint64_t peak;
  /** The sum of everything ever added. */
  uint64_t total;
} millpond_counter;

/** The exact account of a pool or of a device. */
typedef struct millpond_stats {
  /** sizeof(millpond_stats) */
  size_t struct_size;
  /** Bytes in live blocks, as requested. */
  struct millpond_counter requested_bytes;
  /** Bytes in live blocks after rounding. */
  struct millpond_counter allocated_bytes;
  /** `allocated_bytes`, plus bytes that are freed but still wait for a stream. */
  struct millpond_counter active_bytes;
  /** Bytes taken from the device. */
  struct millpond_counter reserved_bytes;
  /** Live blocks. */
  struct millpond_counter blocks;
  /** Pieces of memory taken from the device. */
  struct millpond_counter segments;
  /** Calls into the memory management of the device so far. */
  uint64_t driver_calls;
  /** Requests that failed for lack of memory, including those that hit a limit. */
  uint64_t out_of_memory_count;
  /** The limit of `reserved_bytes`; 0: none. */
  uint64_t limit_bytes;
  /** Bytes of sleeping memory: given back to the device until its pool wakes. */
  struct millpond_counter sleeping_bytes;
} millpond_stats;

/** The account of a device's pinned host memory. */
typedef struct millpond_host_stats {
  /** sizeof(millpond_host_stats) */
  size_t struct_size;
  /** Bytes in live blocks, as requested. */
  struct millpond_counter requested_bytes;
  /** Bytes in live blocks after rounding. */
  struct millpond_counter allocated_bytes;
  /** Bytes taken from the device. */
  struct millpond_counter reserved_bytes;
  /** Live blocks. */
  struct millpond_counter blocks;
  /** Freed bytes that can be reused. */
  uint64_t cached_bytes;
  /** Freed bytes that still wait for a stream. */
  uint64_t pending_bytes;
  /** Calls to the device so far that took memory or gave it back. */
  uint64_t driver_calls;
  /** Requests so far that were served without such a call. */
  uint64_t reuse_count;
  /** The NUMA node from which memory is taken if it has room; -1 if the device does not report one. */
  int32_t numa_node;
} millpond_host_stats;

/** What is known of one live block. */
typedef struct millpond_block_info {
  /** sizeof(millpond_block_info) */
  size_t struct_size;
  /** First address of the block. */
  void *base;
  /**
   * Bytes of the block after rounding: what it costs. Those beyond `requested_bytes` are not the program's: a copy
   * that passes the request is refused, so that an overrun is seen.
   */
  size_t size_bytes;
  /** The requested bytes. */
  size_t requested_bytes;
  /** The stream that orders its reuse; NULL for the default stream and for a block of `millpond_alloc`. */
  C_Stream stream;
  /** The pool from which it was allocated; borrowed. */
  struct millpond_pool *pool;
  /** The device it lies on; borrowed. */
  struct millpond_device *device;
} millpond_block_info;

/** One block of a walk: live, waiting or free. */
typedef struct millpond_block_record {
  /** sizeof(millpond_block_record), or as much of it as was written. */
  size_t struct_size;
  /** First address. */
  void *ptr;
  /** Bytes after rounding, as `allocated_bytes` and `active_bytes` count them; for free memory its length. */
  size_t size_bytes;
  /** The requested bytes; 0 for free memory. */
  size_t requested_bytes;
  /**
   * The stream that orders its reuse or, for free memory, the stream whose requests it serves; NULL for the default
   * stream, for all streams (`millpond_alloc`), and for one that has ended.
   */
  C_Stream stream;
  /** The pool to which it belongs; borrowed. NULL for free memory of a pool that has ended. */
  struct millpond_pool *pool;
  /**
   * Where the piece of memory begins that contains it and that was taken from the device with one call. NULL if the
   * device maps: it takes granules of 2 MiB, and a block may lie across any of them.
   */
  void *segment;
  /** One MILLPOND_BLOCK_* bit. */
  uint32_t state;
  /** The number of its tag (`millpond_tag_get_name`); 0 for a block without a tag and for free memory. */
  uint32_t tag;
} millpond_block_record;

/**
 * Called for each block of `millpond_device_walk_blocks`, with the pointer given there, on the thread of that call,
 * with no lock held. The record lives for the call. Returns whether to continue. If it throws, the walk ends with
 * MILLPOND_E_SYSTEM.
 */
typedef bool (*millpond_walk_callback)(void *user_data, const struct millpond_block_record *record);

/**
 * Takes the bytes of `millpond_device_send_snapshot`, piece by piece and in order, with the pointer given there.
 * Called on the thread of that call, with no lock held. Returns whether to continue. If it throws, the call ends with
 * MILLPOND_E_SYSTEM.
 */
typedef bool (*millpond_write_callback)(void *user_data, const void *data, size_t size_bytes);

/** How a history is to be. */
typedef struct millpond_history_options {
  /** sizeof(millpond_history_options) */
  size_t struct_size;
  /**
   * The newest so many events are kept, rounded up to a power of two; 0: 65 536. Each takes 64 bytes, and 8 for each
   * caller, rounded up to 64.
   */
  size_t event_count;
  /** How many callers of each request, free and note are kept; 0: none. Above 64: 64. */
  size_t frame_count;
  /** All events go to this file, too; NULL: to none. `%p` in it is the number of the process, `%d` the device. */
  const char *path;
} millpond_history_options;

/** One event of a history. */
typedef struct millpond_history_event {
  /** sizeof(millpond_history_event) */
  size_t struct_size;
  /**
   * Nanoseconds of CLOCK_MONOTONIC, computed from `stamp` when the history is read: as exact as that clock has run evenly
   * since the history began. In the order of the stamps.
   */
  uint64_t time_ns;
  /** A MILLPOND_HISTORY_ number: what happened. */
  uint32_t kind;
  /** MILLPOND_HISTORY_HOST, _AT_ONCE, _STREAM. */
  uint32_t flags;
  /** Where; NULL where there is no place. */
  void *ptr;
  /** Bytes as charged. */
  uint64_t size_bytes;
  /** Bytes as asked for. */
  uint64_t requested_bytes;
  /** The stream of the block, also when it has ended, or of the request. */
  C_Stream stream;
  /** The pool that served it; borrowed. NULL where it has ended, and where there is none. */
  struct millpond_pool *pool;
  /** The system's number of the thread (gettid). */
  uint32_t thread;
  /** What the thread was doing, as it said; 0: nothing. */
  uint32_t tag;
  /** The callers' return addresses, the innermost first; some of the first are in Millpond. For the call. */
  const uint64_t *frames;
  /** How many there are. */
  size_t frame_count;
  /** Of MILLPOND_HISTORY_ANNOTATE; else NULL. For the call. */
  const char *text;
  /** Of MILLPOND_HISTORY_OOM: bytes that the device had free, as it says; UINT64_MAX if it could not be asked. Else 0. */
  uint64_t device_free_bytes;
  /** When it happened, as `millpond_history_stamp` tells it. */
  uint64_t stamp;
} millpond_history_event;

/**
 * Called for each event of `millpond_device_history_read`, the oldest first, with the pointer given there. The event
 * lives for the call. On the thread of the call, with no lock held. Returns whether to go on. If it throws, the reading
 * ends with MILLPOND_E_SYSTEM.
 */
typedef bool (*millpond_history_callback)(void *user_data, const struct millpond_history_event *event);

/**
 * Called on a thread of the device when a stream reaches it, with the pointer given to `millpond_stream_add_callback`
 * and the state of the stream (C_SUCCESS, or the failure of earlier work). It should not throw: that is lost. It must not make
 * calls that wait: they return MILLPOND_E_NOT_PERMITTED.
 */
typedef void (*millpond_stream_callback)(void *user_data, C_Status status);

/**
 * Called when a request for `size_bytes` finds no memory, with the pointer given to
 * `millpond_device_add_oom_callback`: on the thread of the request, with no lock held, after everything else was
 * tried. Returns true if it freed something. It may allocate and free through Millpond; a request that fails inside it
 * calls no callbacks. Several threads may call it at once. It should not throw: that counts as false.
 */
typedef bool (*millpond_oom_callback)(void *user_data, uint64_t size_bytes);

/**
 * Called with the pointer given to `millpond_device_add_segment_callback`, a MILLPOND_SEGMENT_* number, and a range of
 * the device's addresses, on a thread that is inside a call of Millpond, which it must not call. It should not throw:
 * that is lost.
 */
typedef void (*millpond_segment_callback)(void *user_data, uint32_t event, void *ptr, size_t size_bytes);

/**
 * Called once for each block that `millpond_pool_restore` has changed, with the pointer given there: with `ptr` and
 * the requested `size_bytes`, and whether the block is live now or was freed. On the thread of the call, after
 * everything is done, with no lock held. It should not throw: that is lost, and the other blocks are told all the same.
 */
typedef void (*millpond_restore_callback)(void *user_data, void *ptr, size_t size_bytes, bool live);

/**
 * Called once, on any thread, when the consumer of a tensor of `millpond_dlpack_export` gives it back, with the
 * pointer from the options. It should not throw: that is lost.
 */
typedef void (*millpond_dlpack_release)(void *user_data);

/** What the tensor of `millpond_dlpack_export` looks like. Zero means the default. */
typedef struct millpond_dlpack_options {
  /** sizeof(millpond_dlpack_options) */
  size_t struct_size;
  /** The element's kind, a DLDataTypeCode. With 0 bits: unsigned bytes. */
  uint8_t dtype_code;
  /** Bits of one lane. */
  uint8_t dtype_bits;
  /** Lanes of one element. 0: 1. */
  uint16_t dtype_lanes;
  /** Dimensions, 0 to 64. */
  int32_t ndim;
  /**
   * As many sizes as `ndim` says, in elements. NULL with `ndim` 0: one dimension, with as many elements as the block
   * has room for after `byte_offset`. Not NULL with `ndim` 0: a single element. Copied.
   */
  const int64_t *shape;
  /** As many steps as `ndim` says, in elements. NULL: row by row. Copied. */
  const int64_t *strides;
  /**
   * From the start of the block to the first element. It is added to the tensor's `data`, whose own `byte_offset` is
   * 0, since not every consumer reads that.
   */
  uint64_t byte_offset;
  /** DLPACK_FLAG_BITMASK_* bits: read only (1), copied (2), elements of less than a byte padded to one (4). */
  uint64_t flags;
  /** A DLDeviceType to report instead of the one that `millpond_dlpack_export` describes. 0: that one. */
  uint32_t device_type;
  /** Called by the deleter instead of a free, for a block that its owner keeps. NULL: the deleter frees it. */
  millpond_dlpack_release release;
  /** Passed to `release`. */
  void *user_data;
} millpond_dlpack_options;

/** What is known of a DLPack tensor. */
typedef struct millpond_dlpack_view {
  /** sizeof(millpond_dlpack_view) */
  size_t struct_size;
  /** The first element, `byte_offset` added. NULL when there are none. */
  void *data;
  /** The lowest address of any element: before `data` where strides are negative. NULL when there are none. */
  void *start;
  /** From `start` to the end of the highest element. */
  uint64_t size_bytes;
  /** Number of elements. */
  uint64_t element_count;
  /** DLPACK_FLAG_BITMASK_* bits. */
  uint64_t flags;
  /** Number of dimensions. */
  int32_t ndim;
  /** A DLDeviceType. */
  uint32_t device_type;
  /** Number of the device. */
  int32_t device_id;
  /** The element's kind, a DLDataTypeCode. */
  uint8_t dtype_code;
  /** Bits of one lane. */
  uint8_t dtype_bits;
  /** Lanes of one element. */
  uint16_t dtype_lanes;
  /** 1: the elements lie row by row without gaps. 0: use the strides. */
  uint32_t is_compact;
  /** Sizes, in elements; borrowed from the tensor. */
  const int64_t *shape;
  /** Steps, in elements; borrowed from the tensor. NULL: row by row. */
  const int64_t *strides;
  /** The start of the block of this library that contains the elements; NULL for other memory. */
  void *block;
  /** The pool of that block; borrowed. */
  struct millpond_pool *pool;
  /** The device of that block; borrowed. */
  struct millpond_device *device;
} millpond_dlpack_view;

/* ---- Last error ---------------------------------------------------------------------------------------- */

/**
 * The code of the last failed call on the calling thread; MILLPOND_OK if none has failed yet. A call that succeeds
 * does not clear it. Never fails.
 */
uint32_t millpond_last_error_code(void);

/**
 * A message about the last failed call on the calling thread, UTF-8; "" if none has failed yet. Never NULL.
 * Borrowed until the next failing call on this thread, or the thread's end.
 */
const char *millpond_last_error_message(void);

/**
 * Records a failure of the calling thread, for a layer over this library that refuses a call before the library sees
 * it: `millpond_last_error_code` and `millpond_last_error_message` then tell it as one of the library's own. `code` is one of
 * MILLPOND_E_*; another number counts as MILLPOND_E_INVALID_ARGUMENT. `message` is UTF-8 and ends with a NUL; it is copied,
 * as far as there is room (511 bytes), and NULL counts as "". Never fails.
 */
void millpond_last_error_set(uint32_t code,
                             const char *message);

/**
 * The name of an error code, as "MILLPOND_E_OUT_OF_MEMORY"; "MILLPOND_OK" for 0, "unknown" for a number
 * that this version does not know. Never NULL, and never freed.
 */
const char *millpond_error_name(uint32_t code);

/* ---- Library ------------------------------------------------------------------------------------------- */

/** The version of the library as "major.minor.patch". Never NULL; lives for ever. Never fails. */
const char *millpond_version(void);

/**
 * The version of the library as one number, to be compared with MILLPOND_VERSION_NUMBER, which is that of the header:
 * major * 1 000 000 + minor * 1000 + patch. Never fails.
 */
uint32_t millpond_version_number(void);

/**
 * Configures the built-in device type "host". Must come before the first call that names a device type. `options` may
 * be NULL: defaults.
 *
 * Errors: BUSY once the library was used; INVALID_ARGUMENT for more than 64 devices, for another value
 * than 0 or 1 in `disable_mapping`, for a capacity that no device can have, and for a bad value of a
 * MILLPOND_HOST_* variable that the options do not override.
 */
C_Status millpond_host_configure(const millpond_host_options *options);

/**
 * Ends every device type: waits for the work of all devices, then gives everything back. Live blocks, pools, streams
 * and events are lost; registered device types are removed.
 *
 * Afterwards every call with an old handle (of a device, pool, capture or checkpoint) returns NOT_INITIALIZED, for ever,
 * and so does every call with an old address, stream or event until the library starts again. Then these are as any
 * others that it does not know (UNKNOWN_POINTER and so on), and a new block, stream or event may have the number of an
 * old one: do not use them. The next call that names a device type starts the library again, with the host device's
 * defaults unless it is configured again. Not needed before the end of the process.
 *
 * Waits for calls that other threads are making; later ones return NOT_INITIALIZED. Only allocating and freeing on a
 * registered device type must not be in progress meanwhile. Files of histories and recordings are waited for, as
 * `millpond_device_history_stop` says.
 *
 * Errors: NOT_INITIALIZED if nothing was started; NOT_PERMITTED in a stream callback; otherwise the first failure of a
 * device, after all have been ended.
 */
C_Status millpond_finalize(void);

/* ---- Device types -------------------------------------------------------------------------------------- */

/** The bytes that are enough for the name of every device type, including its NUL. */
#define MILLPOND_DEVICE_TYPE_NAME_BYTES 32

/**
 * How many device types there are: "cpu", "host", "cuda" (with or without devices), and the registered ones.
 *
 * Starts the library if needed. Errors: INVALID_ARGUMENT (NULL, or a bad MILLPOND_* variable); NOT_PERMITTED in a stream
 * callback.
 */
C_Status millpond_device_type_get_count(size_t *out_count);

/**
 * Writes the name of the device type at `index`, which must be below the count, with its NUL into `out_name` of
 * `capacity` bytes; MILLPOND_DEVICE_TYPE_NAME_BYTES always suffice.
 *
 * Errors: OUT_OF_RANGE for the index; INVALID_ARGUMENT for NULL and if the name does not fit; NOT_PERMITTED in a stream
 * callback.
 */
C_Status millpond_device_type_get_name(size_t index,
                                       char *out_name,
                                       size_t capacity);

/**
 * Why the device type has no devices, as a text for a person: for instance that there is no CUDA driver, or one that
 * is too old. Empty if it has devices. Written with its NUL into `out_text` of `capacity` bytes; what does not fit is
 * cut off. Does not start CUDA.
 *
 * Errors: UNKNOWN_DEVICE if there is no such type; INVALID_ARGUMENT for NULL and a `capacity` of 0; NOT_PERMITTED in a
 * stream callback.
 */
C_Status millpond_device_type_get_reason(const char *type_name,
                                         char *out_text,
                                         size_t capacity);

/**
 * Registers a custom-runtime plugin that is linked into the program: `init_plugin` is called once, and its device type
 * appears beside "host", with pools over its memory.
 *
 * `out_name` receives the type's name and may be NULL; otherwise `capacity` must be at least
 * MILLPOND_DEVICE_TYPE_NAME_BYTES.
 * Errors: PLUGIN_REFUSED, with a message that says what is wrong, for a version, a size or a missing function; BUSY if
 * the name is taken; INVALID_ARGUMENT for NULL; otherwise what the plugin's `initialize` returns.
 */
C_Status millpond_device_type_register(void (*init_plugin)(CustomRuntimeParams *params),
                                       char *out_name,
                                       size_t capacity);

/**
 * Loads a custom-runtime plugin from the shared object at `path` and registers it as
 * `millpond_device_type_register` does. A refused object is unloaded again; an accepted one
 * stays loaded until its type ends (`millpond_device_type_unregister`, `millpond_finalize`).
 *
 * Loading runs the object's code: the caller vouches for the file. A path without a slash is searched for as the
 * dynamic loader does.
 * Errors: SYSTEM, with the loader's message, if the object cannot be loaded; PLUGIN_REFUSED if it has no InitPlugin;
 * and those of `millpond_device_type_register`.
 */
C_Status millpond_device_type_load(const char *path,
                                   char *out_name,
                                   size_t capacity);

/**
 * Ends a registered device type and removes it. Old handles of its devices get NOT_INITIALIZED.
 *
 * Waits for calls that other threads are making, including those that are in a callback of a plugin; later calls get
 * NOT_INITIALIZED. Nobody may allocate on this type meanwhile: a block that is allocated just before the end ends with
 * the device. If this returns BUSY, it has disturbed no call.
 *
 * Errors: BUSY, and the type stays, while it has live blocks, host memory or unified memory; NOT_PERMITTED for a
 * built-in type and in a stream callback; UNKNOWN_DEVICE; INVALID_ARGUMENT for NULL.
 */
C_Status millpond_device_type_unregister(const char *type_name);

/* ---- Devices ------------------------------------------------------------------------------------------- */

/**
 * How many devices the type has. Starts the type if needed. "cuda" is counted without starting CUDA, as far as that is
 * possible, so that a child that uses CUDA can still be forked. 0 devices are no error:
 * `millpond_device_type_get_reason` says why.
 *
 * Errors: UNKNOWN_DEVICE if there is no such type; INVALID_ARGUMENT for NULL; NOT_PERMITTED in a stream callback.
 */
C_Status millpond_device_get_count(const char *type_name,
                                   size_t *out_count);

/**
 * The device of that type and ordinal, opened on first use; the same handle each time. Borrowed: there is nothing to
 * give back. Valid until `millpond_finalize` or until its type is unregistered; later uses return NOT_INITIALIZED.
 *
 * Errors: UNKNOWN_DEVICE for the type or the ordinal, with the reason if a type has no devices; INVALID_ARGUMENT for
 * NULL; otherwise what opening the device returns.
 */
C_Status millpond_device_get(const char *type_name,
                             int32_t ordinal,
                             millpond_device **out_device);

/**
 * What the device reports about itself, with the memory that is free now. The caller sets `inout_info->struct_size`;
 * as much as fits is written.
 *
 * Errors: INVALID_ARGUMENT, NOT_INITIALIZED, DEVICE.
 */
C_Status millpond_device_get_info(const millpond_device *device,
                                  millpond_device_info *inout_info);

/**
 * Why the device does not have the capability `cap` (one of MILLPOND_CAP_*), as a text for a person: for instance that
 * the driver has no virtual memory management. Empty if it has it. Written with its NUL into `out_text` of `capacity`
 * bytes; what does not fit is cut off.
 *
 * Errors: INVALID_ARGUMENT for NULL, a `capacity` of 0, and a `cap` that is not one capability; NOT_INITIALIZED.
 */
C_Status millpond_device_get_reason(const millpond_device *device,
                                    uint32_t cap,
                                    char *out_text,
                                    size_t capacity);

/**
 * Waits for all work queued on the device, on all its streams.
 *
 * Errors: INVALID_ARGUMENT, NOT_INITIALIZED, DEVICE; NOT_PERMITTED in a stream callback.
 */
C_Status millpond_device_synchronize(millpond_device *device);

/**
 * Limits the bytes taken from the device to `limit_bytes` from now on; 0: no limit. A limit below what is already
 * taken frees no block: it only refuses more.
 *
 * Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
 */
C_Status millpond_device_set_limit(millpond_device *device,
                                   uint64_t limit_bytes);

/**
 * As `millpond_device_set_limit`, for a program that shares the device with others and gives way to them while it runs:
 * if more than `budget_bytes` are taken now, unused memory goes back to the device until no more than that is left, as
 * `millpond_device_trim_to` gives it. `out_above_bytes`, which may be NULL, gets how much is taken beyond the budget
 * all the same, in blocks and beside them: 0 if the budget is kept. Blocks that are freed later do not go back by
 * themselves; a second call with the same budget sees to that. Memory that sleeps, and pinned memory of the host, do
 * not count. 0: no budget, and nothing goes back.
 *
 * Errors: as `millpond_device_trim_to`; the budget is in force even then, but for INVALID_ARGUMENT and
 * NOT_INITIALIZED.
 */
C_Status millpond_device_set_budget(millpond_device *device,
                                    uint64_t budget_bytes,
                                    uint64_t *out_above_bytes);

/**
 * The account of all pools of the device together. The caller sets `inout_stats->struct_size`; as much as
 * fits is written. It may be read some hundred times a second at no cost to those who allocate. A thread that reads more
 * than eight times in a millisecond what others are using sleeps 50 us after each further reading, else they would wait for it
 * most of the time (docs/performance.md).
 *
 * Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
 */
C_Status millpond_device_get_stats(const millpond_device *device,
                                   millpond_stats *inout_stats);

/**
 * Resets the peaks of the device's account to the current values.
 *
 * Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
 */
C_Status millpond_device_reset_peaks(millpond_device *device);

/**
 * Gives memory that no block uses back to the device, from all pools.
 *
 * Errors: as `millpond_pool_empty_cache`.
 */
C_Status millpond_device_empty_cache(millpond_device *device);

/**
 * As `millpond_pool_trim_to`, for all pools of the device together.
 *
 * Errors: as `millpond_pool_trim_to`.
 */
C_Status millpond_device_trim_to(millpond_device *device, uint64_t keep_bytes);

/**
 * Registers a callback for requests that find no memory of the device (of any pool, with or without a stream):
 * `callback` is called with `user_data` after everything else was tried, so that a framework can free its own caches.
 * All callbacks are called, the oldest first; if one returns true, the request is tried again. If it still finds nothing, because
 * that was too little or another thread was faster, they are called again, as long as one returns true and memory of the
 * device was freed meanwhile, a thousand times at most. The number in
 * `out_id` is never 0, and unique among the callbacks of all devices. The caller removes it with
 * `millpond_device_remove_oom_callback`; it ends with the device, but may still be running then on another thread.
 *
 * Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
 */
C_Status millpond_device_add_oom_callback(millpond_device *device,
                                          millpond_oom_callback callback,
                                          void *user_data,
                                          uint64_t *out_id);

/**
 * Removes an out-of-memory callback. When this returns, no thread is in it, but perhaps the calling one, and `user_data`
 * may be destroyed. Hold no lock that the callback takes.
 *
 * Errors: INVALID_ARGUMENT if the number belongs to no callback, to a removed one, to one that has ended with its pool (in
 * which no thread is any more either), or to one of another device;
 * NOT_PERMITTED, and the callback stays, in a stream callback, since a thread in the callback may wait for that stream, and
 * within an out-of-memory callback or a hook if another thread is in the callback, as the two could wait for each other;
 * NOT_INITIALIZED.
 */
C_Status millpond_device_remove_oom_callback(millpond_device *device,
                                             uint64_t id);

/**
 * The pool that the device has from the start. Borrowed: it cannot be destroyed. Valid as long as the device.
 *
 * Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
 */
C_Status millpond_device_get_default_pool(millpond_device *device, millpond_pool **out_pool);

/* ---- Options ------------------------------------------------------------------------------------------- */

/** The bytes that are enough for the value of every option, including its NUL. */
#define MILLPOND_OPTION_BYTES 512
/** The bytes that are enough for all options of a device as one text, including its NUL. */
#define MILLPOND_OPTIONS_BYTES 2048

/**
 * Sets options of devices that are opened from now on: `options` is "key:value,key:value", with the keys and
 * values of docs/options.md, which are those of PyTorch's PYTORCH_ALLOC_CONF. `type_name` NULL: for devices of
 * all types; `ordinal` -1: for all ordinals. Later settings override earlier ones, and all of them override the
 * environment (MILLPOND_ALLOC_CONF). Open devices keep their options. `millpond_finalize` forgets what was set.
 *
 * A bad value in the environment makes the call that opens a device fail, with an error that names the variable.
 * Errors: INVALID_ARGUMENT for NULL in `options`, an ordinal below -1, and a malformed text: the message has the
 * column and the nearest right key or value, and nothing is set.
 */
C_Status millpond_set_default_options(const char *type_name,
                                      int32_t ordinal,
                                      const char *options);

/**
 * PyTorch runs on devices of the type `type_name` (NULL: of all types): those that are opened from now on also take
 * the options of PyTorch's environment variables, where MILLPOND_ALLOC_CONF is not set (docs/options.md). Without this
 * call those variables mean nothing to Millpond. `millpond_finalize` forgets it.
 *
 * A bad value in one of them makes the call that opens a device fail, with an error that names the variable.
 * Errors: INVALID_ARGUMENT for a name that is not UTF-8; NOT_PERMITTED in a forked child.
 */
C_Status millpond_set_pytorch_options(const char *type_name);

/**
 * Changes options of an open device from now on; `options` as in `millpond_set_default_options`. Live blocks
 * stay as they are. `backend`, `expandable_segments` and `peer_access` cannot be changed here: set them as defaults
 * before the device is first used.
 *
 * Errors: INVALID_ARGUMENT for NULL and for a malformed text, with the column and the nearest right key or value;
 * BUSY for an option that an open device cannot change; NOT_INITIALIZED. After an error nothing has changed.
 */
C_Status millpond_device_set_options(millpond_device *device,
                                     const char *options);

/**
 * The current value of the option `key`, written with its NUL into `out_text` of `capacity` bytes;
 * MILLPOND_OPTION_BYTES always suffice. `backend` and `expandable_segments` say what is in effect, whatever was asked
 * for.
 *
 * Errors: INVALID_ARGUMENT for NULL, for an unknown key, and if the value does not fit; NOT_INITIALIZED.
 */
C_Status millpond_device_get_option(const millpond_device *device,
                                    const char *key,
                                    char *out_text,
                                    size_t capacity);

/**
 * Where the value of the option `key` comes from, written with its NUL into `out_text` of `capacity` bytes
 * (MILLPOND_OPTION_BYTES always suffice): "built in"; the name of a variable of the environment; "program", for a call;
 * "device", if the device can do nothing else, whatever was asked for.
 *
 * Errors: as of `millpond_device_get_option`.
 */
C_Status millpond_device_get_option_source(const millpond_device *device,
                                           const char *key,
                                           char *out_text,
                                           size_t capacity);

/**
 * All options of the device as one text that `millpond_set_default_options` takes, written with its NUL into
 * `out_text` of `capacity` bytes; MILLPOND_OPTIONS_BYTES always suffice.
 *
 * Errors: INVALID_ARGUMENT for NULL and when the text does not fit; NOT_INITIALIZED.
 */
C_Status millpond_device_get_options(const millpond_device *device, char *out_text, size_t capacity);

/* ---- Pools: stream-ordered memory ---------------------------------------------------------------------- */

/**
 * A new pool of the device. `options` may be NULL: no limit, no name. The caller ends it with
 * `millpond_pool_destroy`.
 *
 * Errors: INVALID_ARGUMENT, also for flags that there are not; UNSUPPORTED for MILLPOND_POOL_CONTIGUOUS where the
 * driver's own pool keeps the memory (`backend:cudaMallocAsync`); NOT_INITIALIZED.
 */
MILLPOND_NODISCARD
C_Status millpond_pool_create(millpond_device *device,
                              const millpond_pool_options *options,
                              millpond_pool **out_pool);

/**
 * Ends a pool; its memory goes back to the device. NULL: no-op. Later uses of the handle get
 * INVALID_ARGUMENT.
 *
 * Errors: BUSY, and nothing is done, while blocks of it live; INVALID_ARGUMENT for the default pool and a
 * pool that was destroyed before; NOT_INITIALIZED.
 */
C_Status millpond_pool_destroy(millpond_pool *pool);

/**
 * Lets go of a pool that may still have live blocks: it takes no more requests (NOT_PERMITTED), and ends, with its
 * handle, when its last block is freed and the captures and scopes of it have ended. Until then the handle serves to
 * free the blocks, and all else. What is unused in it is there for other pools, as ever; the end itself comes when the
 * pool's device is next asked to release or destroy a pool or to empty its cache. NULL: no-op.
 *
 * Errors: INVALID_ARGUMENT for the default pool and a pool that has ended; NOT_INITIALIZED; DEVICE, and nothing is
 * done.
 */
C_Status millpond_pool_release(millpond_pool *pool);

/**
 * The device of the pool; borrowed.
 *
 * Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
 */
C_Status millpond_pool_get_device(const millpond_pool *pool, millpond_device **out_device);

/**
 * Allocates `size_bytes` in stream order: usable by work queued on `stream` from now on. Other streams may
 * use it after they waited for this one. Size 0: C_SUCCESS and NULL. The address is aligned to the
 * device's `min_chunk_bytes` (512 on the built-in devices). The caller gives it back with `millpond_pool_free` or
 * `millpond_free`.
 *
 * Errors: OUT_OF_MEMORY; UNKNOWN_STREAM; NOT_PERMITTED for a pool that sleeps or was released; INVALID_ARGUMENT;
 * NOT_INITIALIZED; DEVICE.
 */
MILLPOND_NODISCARD
C_Status millpond_pool_alloc(millpond_pool *pool,
                             size_t size_bytes,
                             C_Stream stream,
                             void **out_ptr);

/**
 * As `millpond_alloc`, from this pool: a block without a stream, usable at once by the host (if it can access the
 * device's memory) and by every stream. The caller gives it back with `millpond_free`, which waits for every stream
 * before it is used again, or with `millpond_pool_free`.
 *
 * Errors: OUT_OF_MEMORY; NOT_PERMITTED for a pool that sleeps or was released; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
 */
MILLPOND_NODISCARD
C_Status millpond_pool_alloc_unordered(millpond_pool *pool,
                                       size_t size_bytes,
                                       void **out_ptr);

/**
 * Frees a block in stream order: at once reusable by work queued later on `stream`. If that is not the
 * stream of the allocation, reuse waits for both. NULL: no-op. The block may be of any pool of the same
 * device.
 *
 * Errors: UNKNOWN_POINTER, also for a pointer inside a block; DOUBLE_FREE; UNKNOWN_STREAM;
 * INVALID_ARGUMENT; NOT_INITIALIZED; for a stream that is not the block's, NOT_PERMITTED and DEVICE as
 * `millpond_record_stream`; OUT_OF_MEMORY as `millpond_free`. After an error nothing was freed.
 */
C_Status millpond_pool_free(millpond_pool *pool, void *ptr, C_Stream stream);

/**
 * Memory of the pool that no block uses goes back to the device.
 *
 * Errors: BUSY while a stream is captured (on `cuda` perhaps NOT_PERMITTED); NOT_PERMITTED in a stream callback;
 * INVALID_ARGUMENT, NOT_INITIALIZED, DEVICE; OUT_OF_MEMORY: some is left that the library would have to cut, and it cannot
 * keep track of more blocks.
 */
C_Status millpond_pool_empty_cache(millpond_pool *pool);

/**
 * Gives memory of the pool that no block uses back to the device until at most `keep_bytes` of it stay reserved, or
 * none is left that could go: live blocks, what is free beside them in the same piece, and memory that a graph keeps,
 * stay. A piece is 2 MiB where the device maps, elsewhere what was taken from the device with one call, as also on `cuda`
 * what lies in a large handle and in a contiguous pool. As little goes as suffices; what goes last may leave less than
 * `keep_bytes`. (cuMemPoolTrimTo would keep that piece.) 0: as `millpond_pool_empty_cache`.
 * Waits for the device if the pool has more than that, and does nothing otherwise.
 *
 * Errors: BUSY while a stream is captured (on `cuda` perhaps NOT_PERMITTED); NOT_PERMITTED in a stream callback;
 * INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE, OUT_OF_MEMORY as `millpond_pool_empty_cache`: a part may have gone back.
 */
C_Status millpond_pool_trim_to(millpond_pool *pool,
                               uint64_t keep_bytes);

/**
 * From now on the pool never reserves more than `limit_bytes`; 0: no limit of its own. A limit below what
 * it has already ends no block: it only refuses more.
 *
 * Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
 */
C_Status millpond_pool_set_limit(millpond_pool *pool, uint64_t limit_bytes);

/**
 * The account of the pool. The caller sets `inout_stats->struct_size`; as much as fits is written.
 *
 * Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
 */
C_Status millpond_pool_get_stats(const millpond_pool *pool, millpond_stats *inout_stats);

/**
 * The peaks of the pool's account start again from the current values.
 *
 * Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
 */
C_Status millpond_pool_reset_peaks(millpond_pool *pool);

/* ---- Pools: zeroed blocks, many in one call ------------------------------------------------------------ */

/**
 * As `millpond_pool_alloc`, but the requested bytes are 0 for work queued on `stream` from now on: a fill is queued
 * there.
 *
 * Errors: those of `millpond_pool_alloc` and `millpond_memset_async`. After an error there is no block.
 */
MILLPOND_NODISCARD
C_Status millpond_pool_alloc_zeroed(millpond_pool *pool,
                                    size_t size_bytes,
                                    C_Stream stream,
                                    void **out_ptr);

/**
 * As `millpond_pool_alloc`, at an address that is a multiple of `alignment_bytes`: a power of two up to 2 MiB. Up to the
 * device's `min_chunk_bytes` it costs nothing. Above that the block is cut from memory in one piece (never shown
 * together from pieces, so it may find too little where an ordinary request would not), has multiples of 16 KiB (which
 * `millpond_get_block` tells as its size for up to 60 KiB), and takes a microsecond or more; what is skipped in front of
 * it stays free for others. It is freed as any other block.
 *
 * Errors: those of `millpond_pool_alloc`; INVALID_ARGUMENT for another alignment; UNSUPPORTED where the device, or its
 * plugin, gives memory at no such addresses. After an error there is no block.
 */
MILLPOND_NODISCARD
C_Status millpond_pool_alloc_aligned(millpond_pool *pool,
                                     size_t size_bytes,
                                     size_t alignment_bytes,
                                     C_Stream stream,
                                     void **out_ptr);

/**
 * The same without a stream, as `millpond_pool_alloc_unordered` gives blocks.
 *
 * Errors: those of `millpond_pool_alloc_aligned`.
 */
MILLPOND_NODISCARD
C_Status millpond_pool_alloc_unordered_aligned(millpond_pool *pool,
                                               size_t size_bytes,
                                               size_t alignment_bytes,
                                               void **out_ptr);

/**
 * Allocates `count` blocks of one pool and stream, all or none: `out_ptrs[i]` gets one of `sizes_bytes[i]` bytes, as
 * `millpond_pool_alloc` gives them; NULL for size 0. The blocks have nothing to do with each other: each may be freed
 * by itself, or many with `millpond_pool_free_batch`.
 *
 * Errors: those of `millpond_pool_alloc`, for the first request that fails; INVALID_ARGUMENT for an array that is NULL
 * while `count` is not 0. After an error there is no block, and `out_ptrs` is as before.
 */
MILLPOND_NODISCARD
C_Status millpond_pool_alloc_batch(millpond_pool *pool,
                                   const size_t *sizes_bytes,
                                   size_t count,
                                   C_Stream stream,
                                   void **out_ptrs);

/**
 * Frees the `count` blocks of `ptrs` in order, as `millpond_pool_free` does; a NULL among them is skipped. Stops at
 * the first that fails. `out_freed_count`, which may be NULL, gets how many of the array are done, also after an
 * error: then `ptrs[*out_freed_count]` is the one that failed, and those behind it are as before.
 *
 * Errors: those of `millpond_pool_free`; INVALID_ARGUMENT if `ptrs` is NULL while `count` is not 0.
 */
C_Status millpond_pool_free_batch(millpond_pool *pool,
                                  void *const *ptrs,
                                  size_t count,
                                  C_Stream stream,
                                  size_t *out_freed_count);

/* ---- Scopes: pools by thread --------------------------------------------------------------------------- */

/**
 * Serves the calling thread's requests to the default pool of `pool`'s device from `pool` from now on:
 * `millpond_alloc`,
 * `millpond_pool_alloc` on the default pool, and what is built on them. Requests that name another pool, other threads
 * and other devices are not affected, and blocks are freed as always. Scopes nest: the innermost of a device counts,
 * and one of the default pool itself ends the effect of outer ones. A scope that a thread leaves open ends with the
 * thread. While any thread has a scope open on a device, requests to its default pool take a few nanoseconds more.
 *
 * Errors: INVALID_ARGUMENT for a pool that does not exist; NOT_PERMITTED for one that was released; NOT_INITIALIZED.
 */
C_Status millpond_scope_begin(millpond_pool *pool);

/**
 * Ends the calling thread's innermost scope of the device, which must be one of `pool`. While any thread has a scope
 * open, `millpond_pool_destroy` of its pool returns BUSY.
 *
 * Errors: NOT_PERMITTED when this thread has no scope open on the device (perhaps another thread has), or
 * the innermost is one of another pool; INVALID_ARGUMENT; NOT_INITIALIZED. After an error no scope has ended.
 */
C_Status millpond_scope_end(millpond_pool *pool);

/* ---- Captures: memory of graphs ------------------------------------------------------------------------ */

/**
 * Work on `stream` is about to be recorded into a graph: from now on all requests of this stream are served from
 * `pool`, whatever pool of the device they name, and from whichever thread they come. Call it before the driver starts
 * to record. `pool` must not be the default pool; captures may share one, one after the other or at the same time.
 *
 * Until `millpond_capture_end` Millpond leaves the captured streams alone: it records no event on them and makes them
 * wait for nothing, their pool only grows, and a freed block that must wait for them waits until the capture has
 * ended. Other streams and threads continue, but while any stream of a device is captured, the device is not waited
 * for:
 * `millpond_device_empty_cache` and the like return BUSY. Free memory of the captured streams in other pools is not
 * used meanwhile. Where the device has no more, the pool takes free memory of other pools, of streams that have nothing
 * queued.
 *
 * Until the capture is released, its pool keeps all its memory at its addresses, including freed blocks, so that each
 * replay of the graph finds it there: no memory is given back, given to other pools or streams, or mapped elsewhere,
 * and
 * `millpond_pool_destroy` returns BUSY. A replay also uses the memory of blocks that were freed during the capture.
 * Other requests to the pool, and `millpond_pool_restore`, may make such memory a block's, so order them with the
 * replays, or use another pool. What is replayed on the captured stream is in order. A replay on another stream is not
 * known here: each captured stream must wait for it before it gets work on a block that was requested or restored after
 * the replay was queued.
 *
 * The caller must end the capture with `millpond_capture_release`.
 *
 * Errors: BUSY when the stream is captured already; UNKNOWN_STREAM; INVALID_ARGUMENT for the default pool, and
 * for the default stream (NULL), which cannot be captured; UNSUPPORTED if the device is not pooled, and for a
 * stream that differs on each thread; NOT_PERMITTED in a stream callback, and for a pool that sleeps or was released;
 * OUT_OF_MEMORY if the host has no memory to note it; NOT_INITIALIZED.
 */
MILLPOND_NODISCARD
C_Status millpond_capture_begin(millpond_pool *pool,
                                C_Stream stream,
                                millpond_capture **out_capture);

/**
 * Keeps all memory of the pool at its addresses, including freed blocks, as a capture does that has ended: no memory is
 * given back, given to other pools or streams, or mapped elsewhere, and `millpond_pool_destroy` returns BUSY. For a pool
 * that is somebody's own for a time. `millpond_capture_release` or `millpond_capture_release_async` ends it.
 *
 * Errors: INVALID_ARGUMENT for the default pool; NOT_PERMITTED for a pool that sleeps or was released; UNSUPPORTED if
 * the device is not pooled; NOT_INITIALIZED.
 */
MILLPOND_NODISCARD
C_Status millpond_capture_keep(millpond_pool *pool,
                               millpond_capture **out_capture);

/**
 * Work on `stream` is recorded into the same graph: call it before the stream joins the driver's capture.
 *
 * Errors: NOT_PERMITTED when the capture has ended; INVALID_ARGUMENT, also when it was released; otherwise those of
 * `millpond_capture_begin`.
 */
C_Status millpond_capture_add_stream(millpond_capture *capture,
                                     C_Stream stream);

/**
 * Makes the streams of the capture ordinary ones again. Call it when the driver has stopped recording, successfully or
 * not. The pool keeps its memory until `millpond_capture_release`.
 *
 * Errors: NOT_PERMITTED when it has ended already; INVALID_ARGUMENT, also when it was released;
 * NOT_INITIALIZED.
 */
C_Status millpond_capture_end(millpond_capture *capture);

/**
 * Releases a capture, once its graph is destroyed and the last replay queued, or if no graph was made: a capture that
 * has not ended is ended first (the driver must have stopped recording). When the last capture of a pool is released,
 * the pool's free memory goes back to the device, which is waited for. While another stream is captured, that memory
 * is instead set aside until everything queued now is done, and is ordinary free memory then. The handle is invalid
 * afterwards. NULL: no-op.
 *
 * Errors: INVALID_ARGUMENT, also when it was released before; NOT_INITIALIZED.
 */
C_Status millpond_capture_release(millpond_capture *capture);

/**
 * The same as `millpond_capture_release`, but waits for nothing, however long a replay still runs (a CUDA driver before
 * 12.5 is waited for: it cannot record all its streams in an event). When the last capture
 * of a pool is released, the pool's free memory is set aside until everything queued now is done. It is ordinary free
 * memory of the pool then, and goes back to the device with `millpond_device_empty_cache`, or when a request needs it.
 *
 * Errors: INVALID_ARGUMENT, also when it was released before; NOT_INITIALIZED.
 */
C_Status millpond_capture_release_async(millpond_capture *capture);

/* ---- Checkpoints: layouts of pools --------------------------------------------------------------------- */

/**
 * Records which blocks of the pool are live now, with their addresses, sizes and streams. This does not keep anything
 * from being freed or given back; a capture keeps a pool's memory. The caller ends it with
 * `millpond_checkpoint_destroy`.
 *
 * Errors: INVALID_ARGUMENT; UNSUPPORTED if the device is not pooled; NOT_INITIALIZED.
 */
MILLPOND_NODISCARD
C_Status millpond_pool_checkpoint(millpond_pool *pool,
                                  millpond_checkpoint **out_checkpoint);

/**
 * Makes exactly those blocks of `pool` live that were live at the checkpoint: at the same addresses, of the same sizes
 * and streams. Blocks that were allocated since are freed, and those that were freed since are live again, with what
 * their memory holds now; if a block was freed and another of the same size and stream was allocated at its address,
 * that one stays. `callback` (may be NULL) is called for each block that was freed or made live. Nothing is copied,
 * and the device is called only if a block that is freed was used by streams other than its own, which are waited for,
 * or if memory goes from one stream to another.
 * No other thread may use the pool meanwhile. A checkpoint may be restored any number of times.
 *
 * Work that is queued on a block's stream from now on may use the block, as after `millpond_pool_alloc`. Replays of a
 * graph on a stream other than the captured one are not known here: make the captured stream wait for them before.
 * Memory goes back to the streams that had it at the checkpoint, in granules of 2 MiB. A graph of another stream that
 * was captured since must not be replayed if a granule of its memory now has a block that is live again; none has if a
 * capture keeps the pool from its first checkpoint on.
 *
 * Errors: NOT_PERMITTED if it is impossible, because memory of it went back to the device or to another pool, which
 * does not happen while a capture keeps the pool; UNKNOWN_STREAM if one of its streams has ended; BUSY if one of its
 * streams is being captured, or another thread used the pool; OUT_OF_MEMORY; NOT_PERMITTED in a stream callback;
 * INVALID_ARGUMENT, also for a checkpoint of another pool; UNSUPPORTED; NOT_INITIALIZED; DEVICE. After an error
 * nothing has changed.
 */
C_Status millpond_pool_restore(millpond_pool *pool,
                               const millpond_checkpoint *checkpoint,
                               millpond_restore_callback callback,
                               void *user_data);

/**
 * Ends a checkpoint. NULL: no-op.
 *
 * Errors: INVALID_ARGUMENT, also when it was destroyed before; NOT_INITIALIZED.
 */
C_Status millpond_checkpoint_destroy(millpond_checkpoint *checkpoint);

/* ---- Sleep: pools without physical memory -------------------------------------------------------------- */

/**
 * Gives the physical memory of the pool back to the device until `millpond_pool_wake`. Its addresses stay, and so do
 * its blocks, which nobody may access meanwhile: copies and fills of them return NOT_PERMITTED, and so do requests to
 * the pool. Blocks may be freed. With `flags` 0 the contents of the memory are lost; with MILLPOND_SLEEP_KEEP they are
 * copied to host memory and back. Waits for the device.
 *
 * Errors: UNSUPPORTED if the device does not map; NOT_PERMITTED if the pool already sleeps, and in a stream callback;
 * BUSY while a stream of the device is captured; OUT_OF_MEMORY for host memory; INVALID_ARGUMENT; NOT_INITIALIZED;
 * DEVICE. After an error nothing has changed, except that if the device takes memory and does not give it back, a part
 * of the pool may sleep, as `sleeping_bytes` shows: wake it then.
 */
C_Status millpond_pool_sleep(millpond_pool *pool,
                             uint32_t flags);

/**
 * Brings the memory of a sleeping pool back, at the same addresses. If there is too little, idle memory of other pools
 * is given back for it: where a limit lacks some, no more than that, and none if it would not be enough; all where the
 * device itself refuses. And where the device is in a group, other programs are asked as for a request
 * (`millpond_device_join_group`).
 *
 * Errors: OUT_OF_MEMORY, and the pool sleeps on with what was kept; NOT_PERMITTED if it does not sleep, and in
 * a stream callback; BUSY while a stream of the device is captured; UNSUPPORTED; INVALID_ARGUMENT;
 * NOT_INITIALIZED; DEVICE. After an error nothing has changed.
 */
C_Status millpond_pool_wake(millpond_pool *pool);

/**
 * `millpond_pool_sleep` for all pools of the device that were created with this name, which serves as a tag: all of
 * them or none.
 *
 * Errors: INVALID_ARGUMENT, also if there is no such pool; otherwise those of `millpond_pool_sleep`.
 */
C_Status millpond_device_sleep(millpond_device *device,
                               const char *pool_name,
                               uint32_t flags);

/**
 * `millpond_pool_wake` for all sleeping pools of the device that were created with this name. If one cannot wake,
 * those that have woken before it stay awake, and the call may be repeated.
 *
 * Errors: INVALID_ARGUMENT also when there is no such pool; NOT_PERMITTED also when none of them sleeps; else
 * those of `millpond_pool_wake`.
 */
C_Status millpond_device_wake(millpond_device *device,
                              const char *pool_name);

/* ---- Memory without a pool in hand --------------------------------------------------------------------- */

/**
 * Allocates `size_bytes` from the device's default pool, usable at once by the host (if it can access the device's
 * memory) and by every stream. Size 0: C_SUCCESS and NULL. The address is aligned to the device's `min_chunk_bytes`
 * (512 on the built-in devices). The caller frees it with `millpond_free`.
 *
 * Errors: OUT_OF_MEMORY; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
 */
MILLPOND_NODISCARD
C_Status millpond_alloc(millpond_device *device,
                        size_t size_bytes,
                        void **out_ptr);

/**
 * Frees a block of any pool of any device. A block of `millpond_alloc` is reused once every stream has passed this
 * point; a block of `millpond_pool_alloc` is freed on its own stream. NULL: no-op.
 *
 * Devices of plugins may have address spaces of their own. If blocks of two devices start at `ptr`, nothing is freed:
 * `millpond_device_free` frees the one that is meant.
 *
 * Errors: UNKNOWN_POINTER, also for a pointer inside a block; DOUBLE_FREE; INVALID_ARGUMENT, with the names of the
 * devices, if several have a block there; OUT_OF_MEMORY if the block must wait for a stream and the host has no memory
 * to note that; NOT_INITIALIZED if no device is open. After an error nothing was freed.
 */
C_Status millpond_free(void *ptr);

/**
 * As `millpond_free`, for a block of this device: no other device is searched, and what is at this address on another
 * one is left alone.
 *
 * Errors: those of `millpond_free`, and UNKNOWN_POINTER for a block of another device. After an error nothing was
 * freed.
 */
C_Status millpond_device_free(millpond_device *device,
                              void *ptr);

/**
 * As `millpond_free`, but checks that `size_bytes` is the size of the request.
 *
 * Errors: WRONG_SIZE, and those of `millpond_free`. After an error nothing was freed.
 */
C_Status millpond_free_sized(void *ptr, size_t size_bytes);

/**
 * Makes the block that starts at `ptr` one of `new_size_bytes` where it is, larger or smaller, as if it had been asked
 * for with that: its contents stay, and copies and fills reach its new end. It succeeds
 *
 * - within `millpond_get_usable_size` (what the block is charged, without the padding of a plugin's device), always;
 * - beyond that for a block above 60 KiB, if the memory behind it is free and belongs to the block's pool and stream,
 *   as it often does behind the newest block. What is gained is the stream's as a new block is: other streams wait for
 *   it before they use it;
 * - downwards, always. What a block above 60 KiB has too much serves other requests of its stream, if no other stream
 *   uses the block (`millpond_record_stream`) and it has one.
 *
 * It does not grow while its stream is captured or a graph keeps its pool, if it was exported or scattered, if its stream
 * has ended, or with the option `max_split_size_mb`. A block that is a segment of its own, as large ones are on devices
 * that do not map, keeps its size: OUT_OF_MEMORY for any other charge, a smaller one included. The device is never called, and nothing is waited for. The
 * account and a history see a free and an allocation at the same address. No other thread may use the block meanwhile.
 *
 * Errors: OUT_OF_MEMORY if there is no room (no out-of-memory callback is called, and the failure is not counted);
 * UNKNOWN_POINTER, also for a pointer inside a block and for one that was freed; INVALID_ARGUMENT for 0 bytes, for NULL, and if
 * several devices have a block there; NOT_PERMITTED while the pool sleeps; NOT_INITIALIZED. After an error nothing has
 * changed.
 */
MILLPOND_NODISCARD
C_Status millpond_try_expand(void *ptr,
                             size_t new_size_bytes);

/**
 * How many bytes from `ptr` on, which starts a block, are there for the block: at least as many as were asked for. They are
 * the caller's for the asking, as `millpond_try_expand` to that many always succeeds. Until then copies and fills that run
 * past what was asked for are refused, since most of them are mistakes; what kernels write there harms nobody.
 *
 * Errors: UNKNOWN_POINTER, also for a pointer inside a block and for one that was freed; INVALID_ARGUMENT for NULL, and if
 * several devices have a block there; NOT_INITIALIZED if no device is open.
 */
C_Status millpond_get_usable_size(const void *ptr,
                                  size_t *out_size_bytes);

/**
 * Records that `stream` also uses the block that starts at `ptr`: after its free, its reuse waits for what is queued
 * there at the free. On `cuda` the stream may be one of another device that was created elsewhere. Without effect on a
 * block of `millpond_alloc`, which waits for all streams of its device anyway, unless the stream is another device's.
 * If several devices have a block there, that of the stream's device is meant.
 *
 * Errors: UNKNOWN_POINTER; UNKNOWN_STREAM; INVALID_ARGUMENT for NULL, and if the stream, too, may belong to several
 * devices; NOT_INITIALIZED; NOT_PERMITTED in a stream callback, for a stream that was created elsewhere and not used
 * before; DEVICE; OUT_OF_MEMORY if the host has no memory to note it. After an error nothing was recorded.
 */
C_Status millpond_record_stream(void *ptr,
                                C_Stream stream);

/**
 * Ends the use of the block that starts at `ptr` by work on `stream`: what is queued there *now* is the last. After
 * the free, its reuse waits for this point, and not for what is queued there at the free. It replaces an earlier
 * `millpond_record_stream` of that stream, which need not have been called. Work that uses the block and is queued
 * there later needs a new one. Costs nothing at the free if the stream has passed the point by then. Without effect on
 * a block of `stream` itself, and on one of `millpond_alloc`, which waits for all streams of its device. While
 * `stream` is captured, the use ends with the capture.
 *
 * Errors: UNKNOWN_POINTER; UNKNOWN_STREAM; INVALID_ARGUMENT for NULL; NOT_INITIALIZED; DEVICE; OUT_OF_MEMORY if the host
 * has no memory to note it. After an error the block waits for what it waited for before.
 */
C_Status millpond_record_end(void *ptr,
                             C_Stream stream);

/**
 * As `millpond_record_end`, but the use ended where `event` was recorded: on `stream` after the last use, or on
 * another stream that has waited for that. The event stays the caller's. It must stay as recorded until it has
 * completed, or the block no longer waits for it; `millpond_event_is_held` says so. An event that is recorded and
 * destroyed with functions of this library needs no care: until then `millpond_event_record` returns BUSY and
 * `millpond_event_destroy` is deferred, although the handle ends at once. An event that is recorded or destroyed with
 * the driver's own functions does need care.
 *
 * Errors: UNKNOWN_EVENT, and those of `millpond_record_end`.
 */
C_Status millpond_record_end_at(void *ptr,
                                C_Stream stream,
                                C_Event event);

/**
 * The live block that contains `ptr`, which may be anywhere inside it. The caller sets `inout_info->struct_size`; as
 * much as fits is written.
 *
 * Errors: UNKNOWN_POINTER; INVALID_ARGUMENT for NULL, and if several devices, with address spaces of their own, have a
 * block there; NOT_INITIALIZED if no device is open.
 */
C_Status millpond_get_block(const void *ptr,
                            millpond_block_info *inout_info);

/**
 * Allocates host memory that is fast to copy to and from this device: page-locked if the limit of the process allows,
 * near the device if that reports its NUMA node. Aligned to 64 bytes, above 32 KiB to a page (a plugin may align
 * less); at most an eighth of the request is wasted (and less than 64 bytes below 512). It comes from a cache and is
 * not cleared. Size 0: C_SUCCESS and NULL. The caller frees it with `millpond_host_free`.
 *
 * Errors: OUT_OF_MEMORY; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
 */
MILLPOND_NODISCARD
C_Status millpond_host_alloc(millpond_device *device,
                             size_t size_bytes,
                             void **out_ptr);

/**
 * Frees memory of `millpond_host_alloc` of the same device. Queued work may still use it: it is reused only when each
 * stream of a `millpond_copy_async` from or to it, and each stream given to `millpond_host_record_stream`, has passed
 * what was queued there at the free. Other work must be done, or recorded, before. Does not wait, unless the option
 * `pinned_max_cached_size_mb` makes it give memory back to the device, which may wait. NULL: no-op.
 *
 * Errors: UNKNOWN_POINTER, also for a pointer inside; DOUBLE_FREE; INVALID_ARGUMENT; NOT_INITIALIZED.
 */
C_Status millpond_host_free(millpond_device *device,
                            void *ptr);

/**
 * Records that work queued on `stream` of `device` uses the memory of `millpond_host_alloc` (of this or of another
 * device) that contains `ptr`, which may be anywhere inside: kernels, or copies that Millpond did not queue. After its
 * free, its reuse waits for what is queued there at the free.
 *
 * Errors: UNKNOWN_POINTER; UNKNOWN_STREAM; INVALID_ARGUMENT; NOT_INITIALIZED; NOT_PERMITTED and DEVICE as
 * `millpond_record_stream`.
 */
C_Status millpond_host_record_stream(millpond_device *device,
                                     const void *ptr,
                                     C_Stream stream);

/**
 * The account of the device's pinned host memory. The caller sets `inout_stats->struct_size`; as much as fits is
 * written.
 *
 * Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
 */
C_Status millpond_device_get_host_stats(const millpond_device *device,
                                        millpond_host_stats *inout_stats);

/**
 * Resets the peaks of that account to the current values.
 *
 * Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
 */
C_Status millpond_device_reset_host_peaks(millpond_device *device);

/**
 * Gives freed pinned host memory back to the device, after waiting for the work that still uses it. Blocks up to 32
 * KiB go back when all blocks that were taken together with them (at most 512 KiB) are free.
 *
 * Errors: INVALID_ARGUMENT, NOT_INITIALIZED, DEVICE; NOT_PERMITTED in a stream callback.
 */
C_Status millpond_device_empty_host_cache(millpond_device *device);

/**
 * Registers `size_bytes` of the caller's own host memory from `ptr` on: copies between it and this device are then as
 * fast as those of `millpond_host_alloc`, and really asynchronous, so it must stay as it is until a queued copy is
 * done. On `cuda` it is page-locked for all devices; on devices of the processor there is no need. The memory stays the caller's, who ends the registration
 * with `millpond_host_unregister` before the memory goes.
 *
 * Errors: UNSUPPORTED on devices of plugins, whose interface has no call for it; BUSY if a part of it is registered
 * already, or came from `millpond_host_alloc`; INVALID_ARGUMENT for NULL, 0 bytes, and on `cuda` for what is no memory
 * of the process; OUT_OF_RANGE; NOT_INITIALIZED; DEVICE. After an error nothing was registered.
 */
C_Status millpond_host_register(millpond_device *device,
                                void *ptr,
                                size_t size_bytes);

/**
 * Ends the registration that begins at `ptr`. Waits for the work queued on this device, which may still use the memory;
 * copies that other devices make of it must be done.
 * NULL: no-op. The end of the device ends all registrations.
 *
 * Errors: UNKNOWN_POINTER, also for a pointer inside; NOT_PERMITTED in a stream callback, and while a stream of this
 * device is captured, from `millpond_capture_begin` to `millpond_capture_end`; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
 * After an error the memory is still registered.
 */
C_Status millpond_host_unregister(millpond_device *device,
                                  void *ptr);

/**
 * Allocates memory that host and device access at the same address. Size 0: C_SUCCESS and NULL. The caller frees it
 * with `millpond_unified_free`.
 *
 * Errors: UNSUPPORTED where the device has none; OUT_OF_MEMORY; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
 */
MILLPOND_NODISCARD
C_Status millpond_unified_alloc(millpond_device *device,
                                size_t size_bytes,
                                void **out_ptr);

/**
 * Frees memory of `millpond_unified_alloc` of the same device at once: no queued work may still use it.
 * NULL: no-op.
 *
 * Errors: UNKNOWN_POINTER, also for a pointer inside; DOUBLE_FREE; NOT_PERMITTED in a stream callback, and the memory
 * stays; INVALID_ARGUMENT; NOT_INITIALIZED.
 */
C_Status millpond_unified_free(millpond_device *device,
                               void *ptr);

/**
 * Queues on `stream`, a stream of `device`, that the pages of `size_bytes` from `ptr` on go to `place`: the memory of
 * `device` (MILLPOND_PLACE_DEVICE) or the processor's (MILLPOND_PLACE_HOST). Work that is queued there after it finds
 * them, instead of fetching each page when it touches it. The range lies in one allocation of
 * `millpond_unified_alloc`, of this device or of another one of its type; whole pages move, where a page begins or ends
 * beside it, too. Returns at once. What has moved is still right everywhere, and moves again when others touch it. On the
 * device types `host` and `cpu` nothing has to move. Size 0: no-op.
 *
 * Errors: UNKNOWN_POINTER and OUT_OF_RANGE for other memory; UNKNOWN_STREAM; UNSUPPORTED for devices of plugins, and on
 * `cuda` where the device has no concurrent managed access; NOT_PERMITTED for a stream of `cuda` that is being captured, as
 * a graph has no prefetches; INVALID_ARGUMENT for another place; NOT_INITIALIZED; DEVICE.
 */
C_Status millpond_unified_prefetch(millpond_device *device,
                                   C_Stream stream,
                                   const void *ptr,
                                   size_t size_bytes,
                                   uint32_t place);

/**
 * Says how `size_bytes` of unified memory from `ptr` on will be used, with one of MILLPOND_ADVICE_*, of `place`: of
 * `device` (MILLPOND_PLACE_DEVICE) or the processor (MILLPOND_PLACE_HOST). It changes what is fast, never what is right,
 * and holds from now on, until it is undone or the memory is freed. Ranges as of `millpond_unified_prefetch`. On the
 * device types `host` and `cpu` it changes nothing. Size 0: no-op.
 *
 * Errors: INVALID_ARGUMENT for another advice or place; NOT_PERMITTED on `cuda` while a blocking stream is captured, as the
 * call counts as work on the default stream; else as `millpond_unified_prefetch`.
 */
C_Status millpond_unified_advise(millpond_device *device,
                                 const void *ptr,
                                 size_t size_bytes,
                                 uint32_t advice,
                                 uint32_t place);

/* ---- Seeing memory: every block ------------------------------------------------------------------------ */

/** Kind of a segment: memory taken from the device with one call, or the part of it that one stream has. */
#define MILLPOND_SEGMENT_KIND_WHOLE 1
/** Kind of a segment: granules of a device that maps, side by side, for blocks above 60 KiB. */
#define MILLPOND_SEGMENT_KIND_LARGE 2
/** Kind of a segment: the same, divided for smaller blocks. */
#define MILLPOND_SEGMENT_KIND_SMALL 3
/** Kind of a segment: a piece of a scattered block, at the addresses of the block. */
#define MILLPOND_SEGMENT_KIND_SCATTERED 4

/** One range of reserved memory, at the addresses at which it is used. */
typedef struct millpond_segment_record {
  /** sizeof(millpond_segment_record), or as much of it as was written. */
  size_t struct_size;
  /** First address. */
  void *ptr;
  /** Its length. */
  size_t size_bytes;
  /** Where the memory has been from the start: `ptr`, but for a piece of a scattered block. */
  void *home;
  /**
   * The stream that orders its reuse; NULL for the default stream, for all streams (`millpond_alloc`), and for one that
   * has ended.
   */
  C_Stream stream;
  /** The pool to which it belongs; borrowed. NULL for memory of a pool that has ended. */
  millpond_pool *pool;
  /** A MILLPOND_SEGMENT_KIND_* number. */
  uint32_t kind;
  /** 0. */
  uint32_t reserved;
} millpond_segment_record;

/**
 * Called for each segment of `millpond_device_walk_segments`, with the pointer given there, on the thread of that call,
 * with no lock held. The record lives for the call. Returns whether to continue. If it throws, the walk ends with
 * MILLPOND_E_SYSTEM.
 */
typedef bool (*millpond_segment_walk_callback)(void *user_data, const struct millpond_segment_record *record);

/**
 * Calls `callback` for each block of the device, or of one of its pools (`pool` not NULL), that is in one of `states`
 * (MILLPOND_BLOCK_* bits), sorted by address, until it returns false. All blocks are reported as of the same moment:
 * nobody can allocate or free on the device while they are collected, which takes some 25 ms for a million blocks
 * (docs/seeing.md); no device is called. `callback` runs after that, with no lock held, and may call Millpond; a block
 * may have been freed by then. MILLPOND_BLOCK_WAITING is as of the last check of what the block waits for; reading the
 * statistics checks.
 *
 * Errors: INVALID_ARGUMENT, also if `callback` is NULL or the pool is one of another device; SYSTEM if it threw, which
 * ends the walk; OUT_OF_MEMORY if the host has no memory for the list; NOT_INITIALIZED.
 */
C_Status millpond_device_walk_blocks(const millpond_device *device,
                                     const millpond_pool *pool,
                                     uint32_t states,
                                     millpond_walk_callback callback,
                                     void *user_data);

/**
 * Writes the same blocks to the array `records`: the first `capacity` of them, and to `out_count` how many there are
 * in all. `record_size` is sizeof(millpond_block_record). `records` may be NULL if `capacity` is 0.
 *
 * Errors: INVALID_ARGUMENT, also for a `record_size` that no version of this struct has; OUT_OF_MEMORY if the host has
 * no memory for the list; NOT_INITIALIZED. On an error nothing is written.
 */
C_Status millpond_device_list_blocks(const millpond_device *device,
                                     const millpond_pool *pool,
                                     uint32_t states,
                                     millpond_block_record *records,
                                     size_t record_size,
                                     size_t capacity,
                                     size_t *out_count);

/**
 * Calls `callback` for each range of reserved memory of the device, or of one of its pools (`pool` not NULL), sorted by
 * address, until it returns false: segments, or where the device maps granules that lie side by side, each of one stream
 * and one pool; and the pieces of scattered blocks, each at its place in the block, with the address where its memory has
 * been from the start. Memory is told once, where it is used. All of it is of one moment, and its sizes sum up to
 * `reserved_bytes` as that was then, but for what other threads were just moving. Costs what a snapshot costs
 * (docs/snapshots.md): nobody can allocate or free on the device while it is collected. `callback` runs after that, with
 * no lock held, and may call Millpond.
 *
 * Errors: INVALID_ARGUMENT, also if `callback` is NULL or the pool is one of another device; SYSTEM if it threw, which
 * ends the walk; OUT_OF_MEMORY if the host has no memory for the list; NOT_INITIALIZED.
 */
C_Status millpond_device_walk_segments(const millpond_device *device,
                                       const millpond_pool *pool,
                                       millpond_segment_walk_callback callback,
                                       void *user_data);

/**
 * Writes the same segments to the array `records`: the first `capacity` of them, and to `out_count` how many there are in
 * all. `record_size` is sizeof(millpond_segment_record). `records` may be NULL if `capacity` is 0.
 *
 * Errors: INVALID_ARGUMENT, also for a `record_size` that no version of this struct has; OUT_OF_MEMORY if the host has
 * no memory for the list; NOT_INITIALIZED. On an error nothing is written.
 */
C_Status millpond_device_list_segments(const millpond_device *device,
                                       const millpond_pool *pool,
                                       struct millpond_segment_record *records,
                                       size_t record_size,
                                       size_t capacity,
                                       size_t *out_count);

/* ---- Seeing memory: snapshots -------------------------------------------------------------------------- */

/**
 * Writes a snapshot of the device's memory to the file `path`, in one of the MILLPOND_SNAPSHOT_* formats: every block
 * of all pools (live, waiting and free) and the account (device, pools, pinned memory), all at the same moment, and
 * the options in force. docs/snapshots.md describes both formats. Nobody can allocate or free on the device while the
 * blocks are collected, which takes less than 100 ms for a million; after that the file is written in pieces, with no
 * lock held.
 *
 * The file is written in the same folder under a name that begins with ".millpond-", and renamed when it is complete;
 * an older file is replaced. After an error nothing is left of it, and an older file is unchanged. A path that is not
 * a regular file, such as a pipe, is written to directly; a pipe without a reader is an error, and so is one that takes
 * nothing for 5 s.
 *
 * Errors: INVALID_ARGUMENT; SYSTEM if the file cannot be written, with the reason; OUT_OF_MEMORY if the host has no
 * memory for the list of blocks; NOT_INITIALIZED; DEVICE.
 */
C_Status millpond_device_write_snapshot(const millpond_device *device,
                                        uint32_t format,
                                        const char *path);

/**
 * Passes the same snapshot to a function: `callback` gets the bytes in pieces of slightly more than 64 KiB (the last
 * one may be shorter), until it returns false.
 *
 * Errors: INVALID_ARGUMENT, also if `callback` is NULL; SYSTEM if it returned false or threw; OUT_OF_MEMORY if the
 * host has no memory for the list of blocks; NOT_INITIALIZED; DEVICE.
 */
C_Status millpond_device_send_snapshot(const millpond_device *device,
                                       uint32_t format,
                                       millpond_write_callback callback,
                                       void *user_data);

/* ---- Seeing memory: why there is none ------------------------------------------------------------------ */

/** Why a request failed: the library itself cannot keep track of more blocks, streams or segments. */
#define MILLPOND_OOM_BOOKKEEPING 1
/** The request alone is larger than the device. */
#define MILLPOND_OOM_LARGER_THAN_DEVICE 2
/** The request alone is above the limit of its pool. */
#define MILLPOND_OOM_ABOVE_POOL_LIMIT 3
/** The request alone is above the limit of the device. */
#define MILLPOND_OOM_ABOVE_DEVICE_LIMIT 4
/** The request would take the pool over its limit. */
#define MILLPOND_OOM_POOL_LIMIT 5
/** The request would take the device over its limit. */
#define MILLPOND_OOM_DEVICE_LIMIT 6
/** The missing memory was freed, but still waits: for streams, or because others use it. */
#define MILLPOND_OOM_WAITING 7
/** Enough is free, but not in one piece, or not where the request may take it. */
#define MILLPOND_OOM_FRAGMENTED 8
/** The device refused, although less has been taken from it than the limits allow. */
#define MILLPOND_OOM_DEVICE_REFUSED 9
/** Nearly all memory of the device is in use. */
#define MILLPOND_OOM_EXHAUSTED 10
/** Missing from a report: everything except the request itself. */
#define MILLPOND_OOM_MISSING_ALL 1
/** Missing: how much the device has free. It is not asked in a callback, or while a stream is captured. */
#define MILLPOND_OOM_MISSING_DEVICE_FREE 2
/** Incomplete: what some of the freed blocks wait for, since there are too many. */
#define MILLPOND_OOM_MISSING_WAITS 4
/** Incomplete: the largest free range, which has at least the size given. */
#define MILLPOND_OOM_MISSING_LARGEST 8
/** Incomplete: which streams hold many of the blocks, on a device that is not pooled. */
#define MILLPOND_OOM_MISSING_STREAMS 16
/** The device maps, so that free granules serve a request wherever they lie. */
#define MILLPOND_OOM_MAPS 1
/** The device could map, but the option `expandable_segments` is off. */
#define MILLPOND_OOM_COULD_MAP 2
/** The device's memory is pooled. */
#define MILLPOND_OOM_POOLED 4
/** The request's stream is captured: nothing that needs a wait was tried. */
#define MILLPOND_OOM_CAPTURED 8
/** The request had a stream. */
#define MILLPOND_OOM_HAS_STREAM 16
/** A history, a recording or a tool is told of the device's blocks. */
#define MILLPOND_OOM_WATCHED 32
/** The option `scatter` is off: blocks are not put together from granules that lie apart. */
#define MILLPOND_OOM_NO_SCATTER 64
/** The pool is contiguous: each of its blocks lies in one allocation of the device. */
#define MILLPOND_OOM_CONTIGUOUS 128
/** The device's memory could be pooled, but the option `backend` says otherwise. */
#define MILLPOND_OOM_COULD_POOL 256
/** What a freed block waits for: the work of one stream. */
#define MILLPOND_OOM_WAITS_FOR_STREAM 1
/** The work of all streams. */
#define MILLPOND_OOM_WAITS_FOR_ALL_STREAMS 2
/** A stream that has ended. */
#define MILLPOND_OOM_WAITS_FOR_ENDED 3
/** Users outside this process. */
#define MILLPOND_OOM_WAITS_FOR_OTHERS 4
/** Nothing any more, or it is not known yet. */
#define MILLPOND_OOM_WAITS_FOR_NOTHING 5
/** A step that was tried: idle memory of other streams of the pool. */
#define MILLPOND_OOM_STEP_POOL_IDLE 0
/** Giving unused memory back to the device (`garbage_collection_threshold`). */
#define MILLPOND_OOM_STEP_COLLECT 1
/** More memory from the device. */
#define MILLPOND_OOM_STEP_DEVICE 2
/** Freed blocks that were kept whole (`max_split_size_mb`). */
#define MILLPOND_OOM_STEP_WHOLE 3
/** Memory of busy streams of the pool. */
#define MILLPOND_OOM_STEP_POOL_BUSY 4
/** Idle memory of other pools. */
#define MILLPOND_OOM_STEP_OTHERS_IDLE 5
/** Freed blocks whose waits are over. */
#define MILLPOND_OOM_STEP_READY 6
/** Waiting for freed blocks. */
#define MILLPOND_OOM_STEP_WAITING 7
/** Memory of busy streams of other pools. */
#define MILLPOND_OOM_STEP_OTHERS_BUSY 8
/** Giving idle segments back to the device to get one that is large enough. */
#define MILLPOND_OOM_STEP_TRIM 9
/** The program's own callbacks. */
#define MILLPOND_OOM_STEP_CALLBACKS 10
/** The most pools, streams, tags and waits that a report lists of each. */
#define MILLPOND_OOM_TOP 8
/** The number of MILLPOND_OOM_STEP_* numbers. */
#define MILLPOND_OOM_STEPS 11
/** The size of a label in bytes, with its NUL; longer labels are cut. */
#define MILLPOND_OOM_LABEL 48
/** The size of the device's error message in bytes, with its NUL; longer ones are cut. */
#define MILLPOND_OOM_WORDS 192

/** A pool, a stream or a tag, and what it holds. */
typedef struct millpond_oom_holder {
  /** A label for people: "pool 'weights'", "stream 0x7f00", "tag 'kv_cache'". */
  char label[MILLPOND_OOM_LABEL];
  /** The pool, if the holder is one; borrowed. NULL if it has ended. */
  millpond_pool *pool;
  /** The stream, if the holder is one; NULL for the default stream, and for blocks without a stream. */
  C_Stream stream;
  /** Bytes in live blocks, after rounding. */
  uint64_t live_bytes;
  /** The number of live blocks. */
  uint64_t block_count;
  /** Bytes in freed blocks that still wait. */
  uint64_t waiting_bytes;
  /** Bytes that are reserved and in no block. */
  uint64_t free_bytes;
} millpond_oom_holder;

/** What freed blocks wait for. A block that waits for several things is counted for the first one only. */
typedef struct millpond_oom_wait {
  /** A MILLPOND_OOM_WAITS_FOR_* number. */
  uint32_t waits_for;
  /** The number of blocks. */
  uint32_t block_count;
  /** The stream, for MILLPOND_OOM_WAITS_FOR_STREAM. */
  C_Stream stream;
  /** Their bytes, after rounding. */
  uint64_t bytes;
} millpond_oom_wait;

/** The result of one step that was tried. */
typedef struct millpond_oom_tried {
  /** A MILLPOND_OOM_STEP_* number. */
  uint32_t step;
  /** How often it was tried. */
  uint32_t try_count;
  /** How often it freed or found memory. */
  uint32_t helped_count;
  /** 0. */
  uint32_t reserved;
  /**
   * Bytes that it brought; for callbacks, bytes that they freed. A step that gives memory back to the device brings
   * none by itself.
   */
  uint64_t bytes;
} millpond_oom_tried;

/**
 * Why a request found no memory. Everything except `device_free_bytes` belongs to one moment: `live_bytes`,
 * `waiting_bytes`, `free_here_bytes`, `free_other_streams_bytes`, `free_other_pools_bytes` and `moving_bytes` sum up
 * to `reserved_bytes`, which sleeping pools are not part of.
 */
typedef struct millpond_oom_report {
  /** sizeof(millpond_oom_report) */
  size_t struct_size;
  /** Why the request failed: a number from MILLPOND_OOM_BOOKKEEPING to MILLPOND_OOM_EXHAUSTED. */
  uint32_t reason;
  /** MILLPOND_OOM_MISSING_* bits: which parts are unknown or incomplete. */
  uint32_t missing;
  /** Bits from MILLPOND_OOM_MAPS to MILLPOND_OOM_COULD_POOL. */
  uint32_t flags;
  /** The number of streams that freed blocks wait for. */
  uint32_t waiting_stream_count;
  /** The device; borrowed. */
  millpond_device *device;
  /** The pool that should have served the request; borrowed. NULL if it has ended. */
  millpond_pool *pool;
  /** A label of the pool for people. */
  char pool_label[MILLPOND_OOM_LABEL];
  /** The stream of the request. */
  C_Stream stream;
  /** The size of the request. */
  uint64_t requested_bytes;
  /** The same after rounding. */
  uint64_t rounded_bytes;
  /** The limit of the pool; 0: none. */
  uint64_t pool_limit_bytes;
  /** The limit of the device; 0: none. */
  uint64_t device_limit_bytes;
  /** The most that is ever taken from the device. */
  uint64_t device_most_bytes;
  /** Reserved by the pool. */
  uint64_t pool_reserved_bytes;
  /** Reserved: taken from the device. */
  uint64_t reserved_bytes;
  /** In live blocks. */
  uint64_t live_bytes;
  /** In freed blocks that still wait. */
  uint64_t waiting_bytes;
  /** The part of `waiting_bytes` that users outside this process still use. */
  uint64_t exported_bytes;
  /** Reserved and in no block: for the request's own stream in its pool. */
  uint64_t free_here_bytes;
  /** Reserved and in no block: for other streams of the pool. */
  uint64_t free_other_streams_bytes;
  /** Reserved and in no block: in other pools. */
  uint64_t free_other_pools_bytes;
  /** In transit: in the hands of other threads at that moment. */
  uint64_t moving_bytes;
  /** The size of the sleeping pools; not part of `reserved_bytes`. */
  uint64_t sleeping_bytes;
  /** Not reserved, and within the limits of the device. */
  uint64_t unreserved_bytes;
  /** Free memory as the device reports it, which other users of the device share. */
  uint64_t device_free_bytes;
  /** The largest block that the request's own stream and pool could have given. */
  uint64_t largest_here_bytes;
  /** The largest block that any other stream or pool could have given. */
  uint64_t largest_elsewhere_bytes;
  /** The error of the last call that asked the device for memory; "" if there was none or it succeeded. */
  char device_said[MILLPOND_OOM_WORDS];
  /** The number of elements used in `pools`. */
  uint32_t pool_count;
  /** The number of elements used in `streams`. */
  uint32_t stream_count;
  /** The number of elements used in `tags`. */
  uint32_t tag_count;
  /** The number of elements used in `waits`. */
  uint32_t wait_count;
  /** The number of elements used in `tried`. */
  uint32_t tried_count;
  /** 0. */
  uint32_t reserved;
  /** The pools that hold the most, live and waiting, largest first. */
  struct millpond_oom_holder pools[MILLPOND_OOM_TOP];
  /** The streams that hold the most, likewise. */
  struct millpond_oom_holder streams[MILLPOND_OOM_TOP];
  /** The tags that hold the most, likewise. */
  struct millpond_oom_holder tags[MILLPOND_OOM_TOP];
  /** What freed blocks wait for, the most bytes first. */
  struct millpond_oom_wait waits[MILLPOND_OOM_TOP];
  /** The steps that were tried. */
  struct millpond_oom_tried tried[MILLPOND_OOM_STEPS];
  /**
   * Free in whole granules, wherever they lie: what a block could be put together from, as far as the request may
   * have it.
   */
  uint64_t whole_granule_bytes;
  /** Left to other users of the device (`headroom_mb`); part of `device_free_bytes`. */
  uint64_t headroom_bytes;
  /** The size from which freed blocks stay whole (`max_split_size_mb`); 0: none does. */
  uint64_t max_split_bytes;
} millpond_oom_report;

/**
 * Called when a request finds no memory, after everything else was tried, with the pointer given to
 * `millpond_device_add_oom_handler` and a report, which is valid during the call. Runs on the thread of the request
 * with no lock held, on several threads at once if several requests fail. Returns true if it freed something. It may
 * allocate and free through Millpond; requests that fail inside it call no handler. It should not throw:
 * that counts as false.
 */
typedef bool (*millpond_oom_handler)(void *user_data, const struct millpond_oom_report *report);

/**
 * Gets the report of the calling thread's last request that found no memory, if that was a request to this device: to
 * any pool, with or without a stream, and however long ago. Pinned and unified memory have no reports. The caller sets
 * `inout_report->struct_size`; as much as fits is written. The report is a copy, which nothing changes afterwards.
 *
 * Errors: INVALID_ARGUMENT, also if the thread has no such request; NOT_INITIALIZED.
 */
C_Status millpond_device_last_oom(const millpond_device *device,
                                  struct millpond_oom_report *inout_report);

/**
 * Gets the report of the calling thread's last error, whatever the device. C_ERROR if that error was not a request
 * that found no memory, or if an argument is wrong. Does not change the last error.
 */
C_Status millpond_last_oom(struct millpond_oom_report *inout_report);

/**
 * Writes the report as text for people: several lines of UTF-8, with advice at the end. `out_text` gets as much of it
 * as fits, always with a NUL, and `out_size` the size of the whole text in bytes with its NUL. `out_text` may be NULL
 * if `capacity` is 0, and `out_size` may be NULL. 4096 bytes are enough for nearly all reports.
 *
 * Errors: INVALID_ARGUMENT.
 */
C_Status millpond_oom_report_text(const struct millpond_oom_report *report,
                                  char *out_text,
                                  size_t capacity,
                                  size_t *out_size);

/**
 * `millpond_device_add_oom_callback` for a callback that gets the report: which pool found no memory, who holds how
 * much, and what was tried. Neither kind is called for a request that no callback can help: one that is larger than
 * the device, or than the limit of its pool. `millpond_device_remove_oom_callback` removes it.
 *
 * Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
 */
C_Status millpond_device_add_oom_handler(millpond_device *device,
                                         millpond_oom_handler handler,
                                         void *user_data,
                                         uint64_t *out_id);

/**
 * `millpond_device_add_oom_handler` for requests to one pool: those that it should have served, so not those that name it
 * and come from a captured stream, but those that name none in a scope of it. It is called in its turn among the handlers
 * and callbacks of the device, in the order of registration. It ends with the pool, when it may still be running on
 * another thread. `millpond_device_remove_oom_callback` of the pool's device removes it before that; later it waits for such a
 * thread, and returns INVALID_ARGUMENT.
 *
 * Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
 */
C_Status millpond_pool_add_oom_handler(millpond_pool *pool,
                                       millpond_oom_handler handler,
                                       void *user_data,
                                       uint64_t *out_id);

/* ---- Seeing memory: tags ------------------------------------------------------------------------------- */

/** The statistics of one tag on one device. */
typedef struct millpond_tag_stats {
  /** sizeof(millpond_tag_stats), or as much of it as was written. */
  size_t struct_size;
  /** Its name, which is never freed. */
  const char *name;
  /** Its number. */
  uint32_t tag;
  /** 0. */
  uint32_t reserved;
  /** Bytes in live blocks, as requested. */
  millpond_counter requested_bytes;
  /** Bytes in live blocks after rounding. */
  millpond_counter allocated_bytes;
  /** Live blocks. */
  millpond_counter blocks;
  /** Bytes in freed blocks that still wait, after rounding. */
  uint64_t waiting_bytes;
  /** Bytes after rounding of live blocks, and of freed ones that wait. */
  millpond_counter active_bytes;
  /** Live blocks, and freed ones that wait. */
  millpond_counter active_blocks;
  /** What of `allocated_bytes` is in the `small_pool` of `millpond_memory_stats`; the rest is in the `large_pool`. */
  millpond_counter small_allocated_bytes;
  /** What of `blocks` is. */
  millpond_counter small_blocks;
  /** Bytes in live blocks of pinned memory, as requested. */
  millpond_counter host_bytes;
  /** Live blocks of pinned memory. */
  millpond_counter host_blocks;
  /** Bytes in live unified memory, as requested. */
  millpond_counter unified_bytes;
  /** Live blocks of unified memory. */
  millpond_counter unified_blocks;
} millpond_tag_stats;

/**
 * Gives the tag `name` to all blocks that this thread allocates from now on, on any device and from any pool, until
 * `millpond_tag_pop`. Tags nest, and the innermost counts; tags still in force when a thread ends, end with it. A name
 * has 1 to 31 bytes of UTF-8, and keeps its number for the rest of the process. Pinned and unified memory gets it, too,
 * and is counted apart (`millpond_device_list_tags`).
 *
 * While any thread has a tag in force, allocations on all threads take a slower path; a program without tags pays
 * nothing.
 *
 * Errors: INVALID_ARGUMENT; SYSTEM for more than 65535 names; NOT_PERMITTED on a thread that is ending.
 */
C_Status millpond_tag_push(const char *name);

/**
 * Ends the calling thread's innermost tag; the one around it is in force again. Blocks keep their tags.
 *
 * Errors: NOT_PERMITTED if the thread has none.
 */
C_Status millpond_tag_pop(void);

/**
 * Gets the number of a tag, for `millpond_tag_push_number`: always the same for the same name, and never 0.
 *
 * Errors: INVALID_ARGUMENT; SYSTEM for more than 65535 names.
 */
C_Status millpond_tag_get_number(const char *name, uint32_t *out_tag);

/**
 * `millpond_tag_push` by number, which saves the lookup of the name.
 *
 * Errors: INVALID_ARGUMENT for a number that no tag has; NOT_PERMITTED on a thread that is ending.
 */
C_Status millpond_tag_push_number(uint32_t tag);

/** Returns the name of a tag; "" for 0, for a number that no tag has, and in a forked child. Never NULL, and never freed. */
const char *millpond_tag_get_name(uint32_t tag);

/**
 * Writes the statistics of each tag that was ever used on the device to the array `stats`, sorted by number: the first
 * `capacity` of them, and to `out_count` how many there are. `stats_size` is sizeof(millpond_tag_stats). `stats` may
 * be NULL if `capacity` is 0. Blocks without a tag make up the rest of the device's account.
 *
 * Errors: INVALID_ARGUMENT, also for a `stats_size` that no version of this struct has; NOT_INITIALIZED. On an error
 * nothing is written.
 */
C_Status millpond_device_list_tags(const millpond_device *device,
                                   struct millpond_tag_stats *stats,
                                   size_t stats_size,
                                   size_t capacity,
                                   size_t *out_count);

/* ---- Seeing memory: its history, and recordings -------------------------------------------------------- */

/**
 * From now on what happens to the device's memory, pinned memory included, is kept: the newest events, for
 * `millpond_device_history_read`, and all of them in a file where `options` names one. NULL as `options`: all zeros. What
 * an earlier history has kept is given up. Calls of other threads that are under way may be left out. What a history costs
 * is in docs/performance.md; with `frame_count` above 0 (64 at most) it costs more. The file is written by a thread that
 * is started for it, every 50 ms and at the end of the process. An older file is emptied. While something else writes it
 * (a history or a recording of any device, in any process), the history goes to a file with the device and the process
 * added to the name.
 *
 * Errors: BUSY while there is a history, or if that other file is being written, too; SYSTEM for a file that cannot be
 * written, or without a thread; OUT_OF_MEMORY for the events; INVALID_ARGUMENT; NOT_INITIALIZED.
 */
C_Status millpond_device_history_start(millpond_device *device,
                                       const millpond_history_options *options);

/**
 * Ends the history. Its file is whole then, and lacks `*out_dropped` events (may be NULL), as its writer could not keep
 * up. What was kept can be read until another one begins. Waits for the file, but gives it up when it has taken nothing
 * for 5 s (a pipe whose reader stands still), and after 60 s in any case: that is SYSTEM, and the message says how many
 * events it lacks. `millpond_finalize` waits for each file as long, and tells nobody.
 *
 * Errors: NOT_PERMITTED where there is none; SYSTEM where the file could not be written wholly, and the history has ended
 * all the same; INVALID_ARGUMENT; NOT_INITIALIZED.
 */
C_Status millpond_device_history_stop(millpond_device *device,
                                      uint64_t *out_dropped);

/**
 * Tells `callback` each event that the history has kept, the oldest first, until it returns false, and writes how many
 * it has not any more to `*out_dropped` (may be NULL). All of them up to one moment, while other threads go on. The
 * callback may call Millpond. Also after the end of the history.
 *
 * Errors: NOT_PERMITTED where there was none; INVALID_ARGUMENT, also for NULL as `callback`; SYSTEM if it threw, which
 * ends the reading; NOT_INITIALIZED.
 */
C_Status millpond_device_history_read(const millpond_device *device,
                                      millpond_history_callback callback,
                                      void *user_data,
                                      uint64_t *out_dropped);

/**
 * From now on `signal` begins a history of each open device that has none, with `options` (NULL: all zeros), and the next
 * one ends these, and no others; `%n` in the path is how many times it has begun some. 0 as `signal`: none does any more,
 * and the signal does what it does by itself; what one has begun goes on. There is one such signal in a process; another
 * call takes its place, and its signal ends what an earlier one has begun. What fails when the signal comes, such as a
 * file that cannot be written, is told to nobody. A thread that is started for it does the work, and the handler
 * interrupts no call of the system that can be restarted. A forked child's signal does nothing there.
 * Devices may be opened before or after this; it outlasts `millpond_finalize`. Thread-safe.
 *
 * Errors: BUSY where the program handles the signal itself; INVALID_ARGUMENT for a signal that cannot be handled, or says
 * that something has failed (SIGSEGV and the like); SYSTEM without a thread; NOT_PERMITTED in a forked child.
 */
C_Status millpond_history_on_signal(int signal,
                                    const millpond_history_options *options);

/**
 * A note in the history of each open device that has one, for the reader. The library keeps the first 65 536 different
 * texts as long as the process lives; later ones are noted without their text.
 *
 * Errors: INVALID_ARGUMENT for NULL, and for what is not UTF-8.
 */
C_Status millpond_history_annotate(const char *note);

/**
 * The clock that events of histories are stamped with, in ticks of no known length. Readings of one process can be
 * compared with each other and with `stamp` of `millpond_history_event`: the events of a call are those of its thread between a
 * reading before it and one after it. Before and after the library is used, too. A few nanoseconds. Thread-safe.
 */
uint64_t millpond_history_stamp(void);

/**
 * From now on what the program asks of the device's memory is written to `path`, as a trace that `millpond replay` and
 * `millpond bisect` take (traces/README.md); the blocks that live now come first. `%p` in the path is the number of
 * the process, `%d` the device. A program that is faster than the file waits for it, as a trace with holes is worth
 * nothing. The file is written every 50 ms, and at the end of the process. An older file, and one that is being written,
 * are as for `millpond_device_history_start`.
 *
 * Errors: BUSY while there is a recording, or as there; SYSTEM for a file that cannot be written, or without a thread;
 * INVALID_ARGUMENT; NOT_INITIALIZED.
 */
C_Status millpond_device_record_start(millpond_device *device,
                                      const char *path);

/**
 * Ends the recording; the file is whole then. It lacks `*out_dropped` events (may be NULL): 0, unless a request would have
 * had to wait for seconds. Waits for the file as `millpond_device_history_stop` does.
 *
 * Errors: NOT_PERMITTED where there is none; SYSTEM where the file could not be written wholly, and the recording has
 * ended all the same; INVALID_ARGUMENT; NOT_INITIALIZED.
 */
C_Status millpond_device_record_stop(millpond_device *device,
                                     uint64_t *out_dropped);

/* ---- Seeing memory: hooks ------------------------------------------------------------------------------ */

/** A block was allocated; the call that did it has not returned yet. */
#define MILLPOND_HOOK_ALLOC 1
/** A block is about to be freed: nobody else can have its memory yet. */
#define MILLPOND_HOOK_FREE 2
/** The free that was told of last for this block has failed: the block lives on. */
#define MILLPOND_HOOK_FREE_FAILED 3

/** What a hook is told. Valid during the call. */
typedef struct millpond_block_event {
  /** sizeof this struct in the library, which may be larger than the caller's. */
  size_t struct_size;
  /** One of MILLPOND_HOOK_ALLOC, _FREE and _FREE_FAILED. */
  uint32_t kind;
  /** 1 if the block has a stream, 0 if it has none. */
  uint32_t has_stream;
  /** Where the block starts. */
  void *ptr;
  /** Its size as requested. */
  size_t requested_bytes;
  /** Its size as charged to the pool. */
  size_t size_bytes;
  /** The stream of the block; NULL also for a block without one. */
  C_Stream stream;
  /** Its pool; NULL if that has ended meanwhile. */
  millpond_pool *pool;
  /** Its device. */
  millpond_device *device;
} millpond_block_event;

/**
 * Called with the pointer given to `millpond_device_add_hook` and the event, on the thread that allocates or frees, on
 * several at once. Millpond holds no lock. It may call everything that the caller of the allocation may call; what it
 * allocates and frees itself is not told to any hook. It should not throw: that is lost.
 */
typedef void (*millpond_hook)(void *user_data, const struct millpond_block_event *event);

/**
 * Called once with the pointer given to `millpond_device_add_hook`, when no call of the hook runs or will come any more,
 * on whichever thread is the last that had to do with it. Millpond holds no lock, so it may free blocks. It should not
 * throw: that is lost.
 */
typedef void (*millpond_hook_destroy)(void *user_data);

/**
 * Registers a hook: from now on `hook` is called for each block of the device, of any pool, that is allocated, and for
 * each that is freed, whoever does it: after the allocation and before its caller has the block; before the free, as
 * long as nobody else can have the memory. So for each address the two come in turn. `millpond_try_expand` is told as a
 * free and an allocation of the same address: a free before a block gets shorter, which may be told as failed; both when
 * it has grown, and neither if it could not. A restore is told likewise, but only when it is done: what it has freed,
 * another thread may have by then, and may be told of first. Calls that are under way when a hook comes or goes may go
 * untold, and so do blocks that end with their device. Pinned host memory has no hooks. Hooks are called in the order of
 * their registration.
 *
 * While a device has hooks, all its allocations and frees take the long way. A history
 * (`millpond_device_history_start`) sees the same for less, but is read later. The number in `out_id` is never 0. The
 * caller removes the hook with `millpond_device_remove_hook`; it ends with the device, but may still be running then on
 * another thread. `destroy` may be NULL; it tells when `user_data` is not used any more, after either end. If this call
 * fails, it is not called.
 *
 * Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
 */
C_Status millpond_device_add_hook(millpond_device *device,
                                  millpond_hook hook,
                                  void *user_data,
                                  millpond_hook_destroy destroy,
                                  uint64_t *out_id);

/**
 * Removes a hook. When this returns, no thread is in it, and `user_data` may be destroyed. It does not wait for other
 * threads where it is called from within a hook or an out-of-memory callback, nor in a stream callback, since a thread in
 * the hook may wait for that stream: there `destroy` tells when none is in it. Else hold no lock that the hook takes.
 *
 * Errors: INVALID_ARGUMENT if the number belongs to no hook, to a removed one, or to one of another device;
 * NOT_PERMITTED in a stream callback, and the hook stays, if it has no `destroy`; NOT_INITIALIZED.
 */
C_Status millpond_device_remove_hook(millpond_device *device,
                                     uint64_t id);

/* ---- Seeing memory: statistics in full ----------------------------------------------------------------- */

/** `millpond_device_write_stats`: one JSON object. */
#define MILLPOND_STATS_JSON 1
/** The same: the text format of Prometheus, 0.0.4. */
#define MILLPOND_STATS_PROMETHEUS 2
/** May be added to either: what each stream has, too, with the price of `millpond_device_list_stream_stats`. */
#define MILLPOND_STATS_STREAMS 256

/** One quantity over time. As long as what is accumulated was not reset, `allocated - freed` is `current`. */
typedef struct millpond_flow {
  /** Its value now. */
  uint64_t current;
  /** The highest value since the start or the last reset of the peaks. */
  uint64_t peak;
  /** All that was ever added, since the start or the last reset of what is accumulated. */
  uint64_t allocated;
  /** All that was ever taken away, since then. */
  uint64_t freed;
} millpond_flow;

/**
 * A quantity of all memory, and of each class of it. The classes are Millpond's: `small_pool` is what lies in chunks
 * (granules of 2 MiB for blocks of up to 60 KiB, on devices whose sizes allow them), `large_pool` the rest.
 */
typedef struct millpond_split {
  /** Of both. */
  struct millpond_flow all;
  /** Of blocks that lie in granules or segments themselves. */
  struct millpond_flow large_pool;
  /** Of blocks that lie in chunks. */
  struct millpond_flow small_pool;
} millpond_split;

/**
 * The statistics of a device or of one of its pools, by PyTorch's names; docs/seeing.md has a table. What the heaps
 * count (`allocation`, `active`, `allocated_bytes`, `active_bytes`, `requested_bytes`) is exact, its peaks too, and of one
 * moment; `all` is the sum of its classes. What says how free memory lies is read heap by heap, a little later.
 */
typedef struct millpond_memory_stats {
  /** sizeof(millpond_memory_stats) */
  size_t struct_size;
  /** Live blocks. */
  struct millpond_split allocation;
  /**
   * Pieces of memory held from the device: granules of 2 MiB where it maps; else segments, which are all of the
   * `large_pool`.
   */
  struct millpond_split segment;
  /** Blocks that are live, or freed and still wait for a stream. */
  struct millpond_split active;
  /**
   * Free pieces that cannot go back to the device, since they share a granule (where it maps) or a segment with what
   * is in use. Counted at each reading: `peak`, `allocated` and `freed` are what the readings have seen.
   */
  struct millpond_split inactive_split;
  /** Bytes in live blocks after rounding. */
  struct millpond_split allocated_bytes;
  /**
   * Bytes taken from the device. A granule that becomes a chunk, or stops being one, is freed of one class and
   * allocated of the other.
   */
  struct millpond_split reserved_bytes;
  /** `allocated_bytes`, and bytes that are freed and still wait for a stream. */
  struct millpond_split active_bytes;
  /** Bytes of the pieces of `inactive_split`, read as these are; of the `small_pool` with what rounding to units costs. */
  struct millpond_split inactive_split_bytes;
  /** Bytes of the blocks of `active` as they were asked for. */
  struct millpond_split requested_bytes;
  /** Live blocks of at least `max_split_size` bytes, which stay whole when they are freed. */
  struct millpond_flow oversize_allocations;
  /** Segments of at least `max_split_size` bytes; none where the device maps. */
  struct millpond_flow oversize_segments;
  /** Bytes of memory that sleeps: given back to the device until its pool wakes. */
  struct millpond_flow sleeping_bytes;
  /** How often the device or a limit refused memory, and it was sought elsewhere. */
  uint64_t num_alloc_retries;
  /** Requests that failed for lack of memory, a limit included. */
  uint64_t num_ooms;
  /**
   * How often the device was not asked for memory, since it had too little (`throw_on_cudamalloc_oom`); of the whole
   * device, as the next three.
   */
  uint64_t num_oom_rejections;
  /** Waits of the allocator for all streams of the device. */
  uint64_t num_sync_all_streams;
  /** Calls to the device that have brought memory, or shown it. */
  uint64_t num_device_alloc;
  /** Calls to the device that have given memory back, or hidden it. */
  uint64_t num_device_free;
  /** Blocks of at least so many bytes stay whole when they are freed; UINT64_MAX: none do. */
  uint64_t max_split_size;
  /** The limit of `reserved_bytes`; 0: none. */
  uint64_t limit_bytes;
  /** Bytes that are reserved and free for the next request of some size. */
  uint64_t free_bytes;
  /**
   * Those that could go back to the device: free granules, or segments of which nothing is in use. Of a pool: with its
   * own cache, so that a segment, or a large handle, of which several pools have free parts counts for none of them.
   * On segments, and while granules are tied in large handles, small blocks that are freed count as in use until a
   * search merges them: this and the next two are lower bounds there, `inactive_split` an upper one.
   */
  uint64_t releasable_bytes;
  /**
   * The largest request that can be served from what is reserved. Where the device maps, free granules are shown
   * side by side for it, wherever they are. What lies beside live blocks in a granule, or in a segment, serves
   * the stream that has them, so this and the next are what one stream could have, and others perhaps less.
   */
  uint64_t largest_cached_bytes;
  /**
   * The largest request that can be served with what the device says it has beside that, as far as the limits let it
   * be taken. Nothing is taken to find out, and others may be faster. Large handles move between pools as wholes, so
   * where a pool's own limit decides, somewhat more than this may be served.
   */
  uint64_t largest_free_bytes;
  /**
   * The part of `free_bytes` that no single request could have of what is reserved, in millionths: 0 where all of it could
   * be one block.
   */
  uint64_t fragmentation_ppm;
} millpond_memory_stats;

/** How long calls took, in microseconds. */
typedef struct millpond_times {
  /** All together. */
  uint64_t total;
  /** The longest. */
  uint64_t max;
  /** The shortest. */
  uint64_t min;
  /** How many there were. */
  uint64_t count;
  /** The mean. */
  uint64_t avg;
} millpond_times;

/** The statistics of a device's pinned host memory, by PyTorch's names, all of one moment. */
typedef struct millpond_host_memory_stats {
  /** sizeof(millpond_host_memory_stats) */
  size_t struct_size;
  /** Pieces of memory held from the device: blocks of their own, and slabs in which small blocks lie. */
  struct millpond_flow allocations;
  /** Bytes of these. */
  struct millpond_flow allocated_bytes;
  /** Blocks in use: live, or freed and still waiting for streams. */
  struct millpond_flow active_requests;
  /** Bytes of these after rounding. */
  struct millpond_flow active_bytes;
  /** Calls to the device for memory that gave some. */
  struct millpond_times host_alloc_time;
  /** Calls that gave memory back. */
  struct millpond_times host_free_time;
  /** How often the device gave memory. */
  uint64_t num_host_alloc;
  /** How often it got some back. */
  uint64_t num_host_free;
  /** Bytes that are freed and can be used again. */
  uint64_t cached_bytes;
  /** Bytes that are freed and still wait for a stream. */
  uint64_t pending_bytes;
} millpond_host_memory_stats;

/** What one stream has of a device's memory. */
typedef struct millpond_stream_stats {
  /** sizeof(millpond_stream_stats), or as much of it as was written. */
  size_t struct_size;
  /** The stream; NULL for the default stream, and where `has_stream` is 0. */
  C_Stream stream;
  /** 0: blocks that every stream may use, and what streams have left that have ended. */
  uint32_t has_stream;
  /** Live blocks. */
  uint64_t block_count;
  /** Their bytes as they were asked for. */
  uint64_t requested_bytes;
  /** Their bytes after rounding. */
  uint64_t allocated_bytes;
  /** Blocks that are freed and still wait. */
  uint64_t waiting_count;
  /** Their bytes. */
  uint64_t waiting_bytes;
  /** Free pieces that serve its requests first. */
  uint64_t free_count;
  /** Their bytes. */
  uint64_t free_bytes;
  /**
   * All blocks that were ever allocated from what it has: less `block_count` they are those that were freed. 0 without
   * pooling.
   */
  uint64_t total_count;
  /** Their bytes after rounding. */
  uint64_t total_bytes;
  /**
   * The maximum of `block_count` since the peaks were reset, or since the stream began to use the pool. It is exact in a
   * list of one pool; in a list of the device it is the sum over the pools that the stream uses, whose peaks need not
   * lie at the same time. With `has_stream` 0 it is a sum likewise. 0 without pooling.
   */
  uint64_t peak_count;
  /** The same of `requested_bytes`. */
  uint64_t peak_requested_bytes;
  /** The same of `allocated_bytes`. */
  uint64_t peak_allocated_bytes;
} millpond_stream_stats;

/**
 * The statistics of all pools of the device together. The caller sets `inout_stats->struct_size`; as much as fits is
 * written. The device is asked how much it has. Other threads' allocations go on, but for the moment in which the sums
 * are taken; requests that need new memory from the device or from other streams wait until it is read
 * (docs/seeing.md).
 *
 * Errors: INVALID_ARGUMENT, NOT_INITIALIZED; OUT_OF_MEMORY if the host has no memory for the lists.
 */
C_Status millpond_device_get_memory_stats(const millpond_device *device,
                                          struct millpond_memory_stats *inout_stats);

/**
 * The statistics of the pool, as `millpond_device_get_memory_stats`.
 *
 * Errors: INVALID_ARGUMENT, NOT_INITIALIZED; OUT_OF_MEMORY if the host has no memory for the lists.
 */
C_Status millpond_pool_get_memory_stats(const millpond_pool *pool, struct millpond_memory_stats *inout_stats);

/**
 * From now on `millpond_device_get_memory_stats` tells `allocated`, `freed` and the `num_` counters as if they began
 * now. Peaks stay (`millpond_device_reset_peaks`), and so do the pools' counters and the totals of `millpond_stats`.
 *
 * Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
 */
C_Status millpond_device_reset_accumulated(millpond_device *device);

/**
 * The same for `millpond_pool_get_memory_stats` of the pool.
 *
 * Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
 */
C_Status millpond_pool_reset_accumulated(millpond_pool *pool);

/**
 * A number of `stats` by its name, such as "allocated_bytes.all.peak" or "num_ooms": `torch.cuda.memory_stats()` has the
 * same names, and `millpond_memory_stats_name` lists them.
 *
 * Errors: INVALID_ARGUMENT, also for a name that there is not; OUT_OF_RANGE for one that lies beyond
 * `stats->struct_size`.
 */
C_Status millpond_memory_stats_find(const struct millpond_memory_stats *stats,
                                    const char *name,
                                    uint64_t *out_value);

/**
 * The names of all numbers of `millpond_memory_stats`, in the order in which they lie there; NULL past the last one,
 * and where the host has no memory to make the list, which is made once. Static: valid for ever.
 */
const char *millpond_memory_stats_name(size_t index);

/**
 * The statistics of the device's pinned host memory. The caller sets `inout_stats->struct_size`; as much as fits is
 * written.
 *
 * Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
 */
C_Status millpond_device_get_host_memory_stats(const millpond_device *device,
                                               struct millpond_host_memory_stats *inout_stats);

/**
 * From now on `millpond_device_get_host_memory_stats` tells `allocated`, `freed`, the times and the `num_` counters as if
 * they began now.
 *
 * Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
 */
C_Status millpond_device_reset_host_accumulated(millpond_device *device);

/**
 * A number of `stats` by its name, such as "active_bytes.peak", as `torch.cuda.host_memory_stats()` names them.
 *
 * Errors: as `millpond_memory_stats_find`.
 */
C_Status millpond_host_memory_stats_find(const struct millpond_host_memory_stats *stats,
                                         const char *name,
                                         uint64_t *out_value);

/**
 * The names of all numbers of `millpond_host_memory_stats`; NULL as for
 * `millpond_memory_stats_name`. Static.
 */
const char *millpond_host_memory_stats_name(size_t index);

/**
 * Writes what each stream has of the device, or of one of its pools (`pool` not NULL), into an array of the caller's, the
 * first `capacity` of them by stream, and their number, also of those that had no room, to `out_count`. What is live and
 * what waits is of one moment; how much is free is read before. `record_size` is sizeof(millpond_stream_stats).
 *
 * Errors: INVALID_ARGUMENT, also for a `record_size` that is no size of this struct and a pool of another device;
 * OUT_OF_MEMORY for the list; NOT_INITIALIZED. After an error nothing was written.
 */
C_Status millpond_device_list_stream_stats(const millpond_device *device,
                                           const millpond_pool *pool,
                                           struct millpond_stream_stats *records,
                                           size_t record_size,
                                           size_t capacity,
                                           size_t *out_count);

/**
 * Writes the statistics of the device, of each of its pools and tags and of its pinned memory, and how long its
 * calls took if they were timed, as text with its NUL, in a MILLPOND_STATS_* format, into `buffer`, and how many
 * bytes it needs, the NUL among them, to `out_needed`. Where these are more than `capacity`, nothing is written but
 * that number. `buffer` may be NULL where `capacity` is 0. The text may be longer at the next call.
 *
 * Errors: INVALID_ARGUMENT, also for another format; NOT_INITIALIZED.
 */
C_Status millpond_device_write_stats(const millpond_device *device,
                                     uint32_t format,
                                     char *buffer,
                                     size_t capacity,
                                     size_t *out_needed);

/**
 * The same for all devices that are open, in one text: as a page for Prometheus on which each family of samples has its
 * head once, as JSON an object with `version` and a list of `devices`, each as `millpond_device_write_stats` writes it. They
 * are read one after the other; a device that ends meanwhile is left out. No device is opened for it.
 *
 * Errors: INVALID_ARGUMENT, also for another format.
 */
C_Status millpond_write_stats(uint32_t format,
                              char *buffer,
                              size_t capacity,
                              size_t *out_needed);

/* ---- Seeing memory: how long calls take ---------------------------------------------------------------- */

/** Requests for memory of the device, whatever came of them, with all that they waited for. */
#define MILLPOND_LATENCY_ALLOC 1
/** Frees of it. */
#define MILLPOND_LATENCY_FREE 2
/** Calls to the device that take memory from it, or map some. */
#define MILLPOND_LATENCY_DEVICE_ALLOC 3
/** Calls to the device that give memory back, or unmap it. */
#define MILLPOND_LATENCY_DEVICE_FREE 4
/** Calls to the device that create, record or query events of Millpond's own, or let a stream wait for one. */
#define MILLPOND_LATENCY_DEVICE_EVENT 5
/** Waits of Millpond on the host: for an event, a stream, or the device. */
#define MILLPOND_LATENCY_EVENT_WAIT 6
/**
 * What one request or free has waited for Millpond's locks, and for what other threads do, all together; those that waited
 * for none are not counted.
 */
#define MILLPOND_LATENCY_LOCK_WAIT 7
/** The number of buckets of a histogram. */
#define MILLPOND_LATENCY_BUCKETS 160

/** How long calls of one kind took, in nanoseconds of the monotonic clock. */
typedef struct millpond_latency {
  /** sizeof(millpond_latency) */
  size_t struct_size;
  /** How many there were: the sum of all buckets. */
  uint64_t count;
  /** All together. */
  uint64_t total_ns;
  /** The shortest; 0 if there was none. */
  uint64_t min_ns;
  /** The longest. */
  uint64_t max_ns;
  /**
   * How many there were in each bucket. Buckets 0 to 3 are of 0, 1, 2 and 3 ns. From then on each power of two has four of
   * the same width: bucket i begins at (4 + i % 4) << (i / 4 - 1) ns and ends before the next one
   * (`millpond_latency_bucket_start`). The last one has everything from 32 minutes on.
   */
  uint64_t buckets[MILLPOND_LATENCY_BUCKETS];
} millpond_latency;

/**
 * How long the device's calls of one kind (a MILLPOND_LATENCY_* number) took while the option `latency_histograms` was
 * on: since it first was, or since `millpond_device_reset_latencies`. Nothing, if it never was. The caller sets
 * `inout_latency->struct_size`; as much as fits is written. Other threads go on: one call that ends meanwhile may be in
 * `count` and not yet in `total_ns`.
 *
 * Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
 */
C_Status millpond_device_get_latency(const millpond_device *device,
                                     uint32_t what,
                                     struct millpond_latency *inout_latency);

/**
 * All histograms of the device start again from nothing. What other threads add meanwhile may be lost.
 *
 * Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
 */
C_Status millpond_device_reset_latencies(millpond_device *device);

/**
 * A duration in nanoseconds that the part `part` (0 to 1; 0.99 is the 99th percentile) of these calls did not exceed: the
 * end of its bucket, so at most a quarter too long, and never above `max_ns`. 0 if there were no calls.
 *
 * Errors: INVALID_ARGUMENT, also for a `part` that is not from 0 to 1 and a struct that is not whole.
 */
C_Status millpond_latency_quantile(const struct millpond_latency *latency,
                                   double part,
                                   uint64_t *out_ns);

/** The shortest duration of a bucket in nanoseconds; UINT64_MAX past the last bucket. */
uint64_t millpond_latency_bucket_start(size_t index);

/**
 * What a MILLPOND_LATENCY_* number is called in JSON and for Prometheus, such as "device_alloc"; NULL for other numbers.
 * Static.
 */
const char *millpond_latency_name(uint32_t what);

/* ---- Sharing: other processes, other devices ----------------------------------------------------------- */

/**
 * Registers `callback`, which is called for each range of addresses of the device that gets memory
 * (MILLPOND_SEGMENT_ADDED) and for each that is about to lose it (MILLPOND_SEGMENT_REMOVED); before this returns, for
 * all ranges that have memory now. It is for libraries that register memory with a network or another device.
 *
 * Ranges never overlap; a block may span several adjacent ones. A removal reports one range that was added, or a part
 * of one. A removal that the device then refuses is followed by an addition of the same range. While a pool sleeps,
 * its ranges are removed. When the device ends, all ranges are removed, and then the callback is. The range of a block
 * is reported before the block is handed out.
 *
 * The calls for a device come one at a time, on whichever thread needs the change. One lock of Millpond is held,
 * which keeps them in order: other threads with a change to report wait for it, so requests that need memory from
 * the device may wait. The callback should not throw, must not wait for a thread that may be in Millpond, and must
 * not call Millpond, which returns NOT_PERMITTED (a request or a free that needs nothing but freed memory of the thread's own
 * stream may succeed all the same). Pinned, unified and imported memory is not reported.
 *
 * The number in `out_id` is never 0; the caller removes the callback with `millpond_device_remove_segment_callback`.
 *
 * Errors: UNSUPPORTED if the device is not pooled (the backends of the driver, see docs/options.md); INVALID_ARGUMENT;
 * NOT_INITIALIZED.
 */
C_Status millpond_device_add_segment_callback(millpond_device *device,
                                              millpond_segment_callback callback,
                                              void *user_data,
                                              uint64_t *out_id);

/**
 * Removes a segment callback, without calling it again. When this returns, no thread is in it, and `user_data` may be
 * destroyed. Hold no lock that the callback takes.
 *
 * Errors: INVALID_ARGUMENT if the number belongs to no callback or to a removed one; UNSUPPORTED if the device is not
 * pooled; NOT_PERMITTED in a segment callback; NOT_INITIALIZED.
 */
C_Status millpond_device_remove_segment_callback(millpond_device *device,
                                                 uint64_t id);

/**
 * How large the arrays for `millpond_export` of this block must be. The sizes stay the same while the block lives and
 * the option `export_handle` is not changed.
 *
 * Errors: as `millpond_export`.
 */
C_Status millpond_export_get_size(const void *ptr,
                                  size_t *out_info_bytes,
                                  size_t *out_fd_count);

/**
 * Exports the live block that starts at `ptr` for another process: `info_bytes` plain bytes, and `fd_count` file
 * descriptors, as many as `millpond_export_get_size` says. Send both, the descriptors in their order (SCM_RIGHTS, or
 * pidfd_getfd), and close them here; the receiver calls `millpond_import`. Every receiver can read and write the whole
 * granules (2 MiB) in which the block lies, on the host device all mapped memory of the device: share only with
 * processes that you trust.
 *
 * The block stays the caller's, and may be freed while others use it. Its memory is reused once every copy of the
 * first descriptor is closed: each importer holds one until it closes the import or ends, and so do the caller and any
 * child forked meanwhile, unless they close theirs. Nothing waits for that. Until then, sleep and restore that would
 * affect the block, and the end of its pool, return BUSY. Work that was queued on the block must be done before
 * another process reads it: streams and events do not reach across processes.
 *
 * With the option `export_handle:fabric` the bytes alone identify the memory, and the first descriptor is the only
 * one. The bytes may then go to other machines, which the descriptor cannot: for importers there, the caller must keep
 * it open, and live, until they have reported that they are done. Within a machine the descriptor need not be sent
 * either, on the same condition.
 *
 * Errors: UNKNOWN_POINTER, also inside a block; UNSUPPORTED, with the reason, if the device cannot share (device types
 * other than "host" and "cuda", memory that is not mapped on "host", the driver's pools), and if
 * `export_handle:fabric` is impossible; NOT_PERMITTED while the pool sleeps; INVALID_ARGUMENT, also for other sizes;
 * SYSTEM if the process may not have so many descriptors; NOT_INITIALIZED; DEVICE.
 */
MILLPOND_NODISCARD
C_Status millpond_export(const void *ptr,
                         void *out_info,
                         size_t info_bytes,
                         int *out_fds,
                         size_t fd_count);

/**
 * Exports `bytes` bytes at `ptr`, which lie in one live block, as a dma-buf for a driver of another device, such as a
 * network card's (`ibv_reg_dmabuf_mr`). `out_fd` is a new descriptor, which the caller closes; `out_offset` is where in it
 * the first byte is, since a dma-buf has whole pages of the host. The block must stay live until nobody uses the dma-buf
 * any more: unlike `millpond_export` this keeps nothing. Millpond moves no live block.
 *
 * Whether one dma-buf may have memory of several handles (granules of 2 MiB, large handles) depends on driver and
 * platform; each block of a contiguous pool (MILLPOND_POOL_CONTIGUOUS) lies in one.
 *
 * Errors: UNKNOWN_POINTER; UNSUPPORTED, with the reason, for device types other than "cuda", drivers before CUDA 11.7,
 * and devices without the attribute for it; INVALID_ARGUMENT, also if the bytes do not lie in the block, and where the driver
 * refuses the range; SYSTEM if the process may not have the descriptor; NOT_INITIALIZED; DEVICE.
 */
MILLPOND_NODISCARD
C_Status millpond_export_dmabuf(const void *ptr,
                                size_t bytes,
                                int *out_fd,
                                uint64_t *out_offset);

/**
 * Opens memory that another process has exported (or this one has, except segments of "cuda") for work on `device`, at
 * an address of its own: `info` and `fds` as `millpond_export` returned them. The device must be of the exporter's
 * type, on "cuda" the same card, whatever its ordinal is. Copies and fills accept the memory; `millpond_free` and
 * `millpond_get_block` do not. The descriptors stay the caller's, who may close them after this. The caller ends the
 * import with `millpond_import_close`; it also ends with the device, and with the process.
 *
 * What was exported with `export_handle:fabric` may be opened on any device that the memory's card reaches over the
 * fabric, on this machine or another, and also without descriptors (`fds` NULL, `fd_count` 0). Then nothing here keeps
 * the memory alive: the exporter must, until it learns that this import has ended.
 *
 * Errors: INVALID_ARGUMENT for bytes or descriptors that do not come from an export, for another card, and for a
 * fabric handle whose exporter has ended; UNSUPPORTED if the device cannot import; NOT_PERMITTED if this process lacks
 * the exporter's IMEX channel; OUT_OF_MEMORY; SYSTEM; NOT_INITIALIZED; DEVICE.
 */
MILLPOND_NODISCARD
C_Status millpond_import(millpond_device *device,
                         const void *info,
                         size_t info_bytes,
                         const int *fds,
                         size_t fd_count,
                         void **out_ptr);

/**
 * Ends an import, at the address that `millpond_import` returned; once for each import. Waits for the device, whose
 * work may still use the memory.
 *
 * Errors: UNKNOWN_POINTER; NOT_PERMITTED in a stream callback and while a stream of the device is captured;
 * NOT_INITIALIZED; DEVICE, and the import is as it was.
 */
C_Status millpond_import_close(void *ptr);

/**
 * How many freed blocks of the device other processes still use, and their bytes after rounding. Blocks that nobody
 * uses any more become reusable here; requests that find no memory check too. Waits for nothing.
 *
 * Errors: UNSUPPORTED if the device is not pooled; INVALID_ARGUMENT; NOT_INITIALIZED.
 */
C_Status millpond_device_poll_exports(millpond_device *device,
                                      size_t *out_blocks,
                                      uint64_t *out_bytes);

/**
 * Whether work on `peer` could access memory of `device` at its address.
 *
 * Errors: INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
 */
C_Status millpond_device_can_access_peer(const millpond_device *device,
                                         const millpond_device *peer,
                                         bool *out_can);

/**
 * Gives work on `peer` access to memory of `device` at its address from now on: to all pooled memory, including what
 * is taken later. This cannot be undone. Copies between devices do not need it. Open devices of one type do it by
 * themselves, both ways, unless an option of one of them says `peer_access:off`, the driver refuses it, or the memory is
 * in the driver's own pool. With this call a later refusal fails the request that needs it.
 * Does nothing if that has happened, if the devices share their memory anyway, as those of "host" do, and for a device
 * with itself.
 *
 * Errors: UNSUPPORTED if the hardware or the driver allows no access, and for devices of other types, which
 * `millpond_device_can_access_peer` reports beforehand; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE. After an error
 * nothing has changed.
 */
C_Status millpond_device_enable_peer_access(millpond_device *device,
                                            millpond_device *peer);

/* ---- Groups: programs that share a card ---------------------------------------------------------------- */

/** The size of a name in `millpond_group_member` in bytes, with its NUL; longer names are cut. */
#define MILLPOND_GROUP_NAME 40

/**
 * A member of a group: a device of one program. What it has is as it was when the member last looked, or a quarter of a
 * second before.
 */
typedef struct millpond_group_member {
  /** sizeof(millpond_group_member), or as much of it as was written. */
  size_t struct_size;
  /** Its number in the group, never 0, and never another one's as long as the file exists. */
  uint64_t member_id;
  /** The number of its process, as it sees it itself: in another container it may be another one's. */
  uint64_t process_id;
  /** Its name. */
  char name[MILLPOND_GROUP_NAME];
  /** Its own name of the device, such as "cuda:0". */
  char device[MILLPOND_GROUP_NAME];
  /** Which card that is: members with the same value share one. The device's UUID, where it has one. */
  uint8_t card[16];
  /** Taken from the card. */
  uint64_t reserved_bytes;
  /** Of these in no block: the most that it could give back. */
  uint64_t unused_bytes;
  /** The last budget that `millpond_group_set_budget` has given it and that it follows; 0: none. */
  uint64_t budget_bytes;
  /** What it has given back for others so far. */
  uint64_t given_bytes;
  /** What others have given back for it so far. */
  uint64_t received_bytes;
  /** How long ago it last looked for what others want, to a quarter of a second; UINT64_MAX: never. */
  uint64_t looked_ms;
} millpond_group_member;

/**
 * Joins the programs that share the device's card and have joined the same group: the file `path`, which is made where
 * there is none (for its owner only; make it beforehand, empty, for others to join). It lies on a file system of this
 * machine, best in /dev/shm or /run, and is never removed. A group may have devices of several cards; only those with
 * the same UUID have anything to do with each other.
 *
 * From now on a request for which the card has too little, after all else that Millpond can do itself and before
 * out-of-memory callbacks, asks the other members, one after the other, to give back what they do not use, the one with the
 * most first and no more than is missing. It waits for them up to `wait_ms`, at most an hour, and is tried again if one of
 * them gave something, or the card has enough by then; if somebody else has taken that, it asks again while there is time.
 * 0: it does not ask. Members are asked that have looked for wishes in the last ten seconds, by
 * `millpond_device_serve_group`; those that have not in the last one come last. A request that the pool's own limit or the
 * device's refuses asks nobody, nor does one while a stream of the device is captured.
 *
 * `name` is for people, and cut after 32 bytes; NULL: none. The membership ends with `millpond_device_leave_group`, with
 * the device, and with the process, however that ends. A child of fork is no member. `out_member_id` may be NULL.
 *
 * Errors: NOT_PERMITTED if the device is in a group already; INVALID_ARGUMENT, also for a file that is something else,
 * which is left as it is; UNSUPPORTED for the group of another version; BUSY if it has 64 members, or another program holds
 * the file's lock for seconds; SYSTEM; NOT_INITIALIZED.
 */
C_Status millpond_device_join_group(millpond_device *device,
                                    const char *path,
                                    const char *name,
                                    uint64_t wait_ms,
                                    uint64_t *out_member_id);

/**
 * Leaves the group. Threads in `millpond_device_serve_group` return, and requests that wait for others do so no longer. A
 * budget that was set through the group stays in force.
 *
 * Errors: NOT_PERMITTED if the device is in no group; INVALID_ARGUMENT; NOT_INITIALIZED.
 */
C_Status millpond_device_leave_group(millpond_device *device);

/**
 * Looks for what other members of the device's group want, and gives back so much of what no block uses, as
 * `millpond_device_trim_to` does; and follows a budget that `millpond_group_set_budget` has set, as
 * `millpond_device_set_budget` does. Returns after that, or after `timeout_ms`; 0: after one look, which costs some
 * microseconds. `out_given_bytes`, which may be NULL, gets what went back to the card.
 *
 * Millpond starts no thread for this. Call it from one of your own, in a loop, with a timeout; or with 0 where the program
 * comes by at least every few seconds. Several threads may call it at once. It holds no lock while it waits.
 *
 * While a stream is captured nothing can go back; the others are told so. A budget is in force even then, and unused
 * memory goes back to it when a budget is set again.
 *
 * Errors: NOT_PERMITTED if the device is in no group, also if it left while this waited, and in a stream callback;
 * NOT_INITIALIZED, also when the device ends meanwhile; SYSTEM if the file is damaged; OUT_OF_MEMORY if the host has none
 * for the call just now: call it again a moment later; INVALID_ARGUMENT.
 */
C_Status millpond_device_serve_group(millpond_device *device,
                                     uint64_t timeout_ms,
                                     uint64_t *out_given_bytes);

/**
 * Writes the members of the group whose file is `path` to the array `records`, sorted by number: the first `capacity` of
 * them, and to `out_count` how many there are. `record_size` is sizeof(millpond_group_member). `records` may be NULL if
 * `capacity` is 0. The file is only read, no device is opened, and the caller need not be a member.
 *
 * Errors: INVALID_ARGUMENT, also for a `record_size` that no version of this struct has, and for a file that is no
 * group's; UNSUPPORTED for the group of another version; SYSTEM if the file cannot be read. On an error nothing is written.
 */
C_Status millpond_group_list(const char *path,
                             struct millpond_group_member *records,
                             size_t record_size,
                             size_t capacity,
                             size_t *out_count);

/**
 * Tells a member of the group to take no more than `budget_bytes` from its card, which it follows when it next looks
 * (`millpond_device_serve_group`): the limit is set, and unused memory goes back. 0: no budget. The caller needs to be no
 * member, but may write the file. `budget_bytes` of `millpond_group_list` tells whether it has been followed.
 *
 * Errors: INVALID_ARGUMENT if the group has no such member, and for a file that is no group's; UNSUPPORTED for the group
 * of another version; SYSTEM; BUSY if another program holds the file's lock for seconds.
 */
C_Status millpond_group_set_budget(const char *path,
                                   uint64_t member_id,
                                   uint64_t budget_bytes);

/* ---- Copies and fills ---------------------------------------------------------------------------------- */

/**
 * Copies `size_bytes` and returns when they have arrived; waits for work queued on the device before (while a
 * stream is captured, only for what the default stream waits for). `kind`
 * is a MILLPOND_COPY_* constant. The ranges must not overlap. Size 0: no-op.
 *
 * Errors: UNKNOWN_POINTER and OUT_OF_RANGE for a device range that is not inside one live block or unified
 * memory; INVALID_ARGUMENT for NULL or another kind; NOT_PERMITTED in a stream callback; NOT_INITIALIZED; DEVICE. The
 * host range is not checked: the caller vouches for it.
 */
C_Status millpond_copy(millpond_device *device,
                       uint32_t kind,
                       void *dst,
                       const void *src,
                       size_t size_bytes);

/**
 * Queues a copy on `stream`. Device memory and memory of `millpond_host_alloc` must stay unchanged until the copy is
 * done, but the latter may be freed before. Other host memory that is the source has been read when this returns;
 * other host memory that is the destination may be written until the copy is done: on `cuda` the call waits for that,
 * and for what was queued on `stream` before, unless the stream is captured.
 *
 * Errors: as `millpond_copy`, and UNKNOWN_STREAM.
 */
C_Status millpond_copy_async(millpond_device *device,
                             C_Stream stream,
                             uint32_t kind,
                             void *dst,
                             const void *src,
                             size_t size_bytes);

/**
 * Copies between two devices of the same type and returns when the bytes have arrived. Size 0: no-op.
 *
 * Errors: as `millpond_copy`; INVALID_ARGUMENT when the types differ.
 */
C_Status millpond_copy_peer(millpond_device *dst_device,
                            void *dst,
                            millpond_device *src_device,
                            const void *src,
                            size_t size_bytes);

/**
 * Queues a copy between two devices of the same type on `stream`, a stream of the source or of the destination device;
 * NULL is the source's. If a plugin's devices cannot make such copies on the destination's streams, the call waits and
 * copies.
 *
 * Blocks without a stream may be freed as soon as this has returned, on both devices, and so may blocks of `stream`.
 * Any other block may be freed once its own stream has been made to wait for the copy.
 *
 * Errors: as `millpond_copy_peer`, and UNKNOWN_STREAM.
 */
C_Status millpond_copy_peer_async(millpond_device *dst_device,
                                  void *dst,
                                  millpond_device *src_device,
                                  C_Stream stream,
                                  const void *src,
                                  size_t size_bytes);

/**
 * Sets `size_bytes` of device memory to `value`, and returns when done; waits for work queued on the device
 * before. Size 0: no-op.
 *
 * Errors: as `millpond_copy`.
 */
C_Status millpond_memset(millpond_device *device, void *dst, uint8_t value, size_t size_bytes);

/**
 * Queues a fill of device memory on `stream`.
 *
 * Errors: as `millpond_copy`, and UNKNOWN_STREAM.
 */
C_Status millpond_memset_async(millpond_device *device,
                               C_Stream stream,
                               void *dst,
                               uint8_t value,
                               size_t size_bytes);

/* ---- Streams and events -------------------------------------------------------------------------------- */

/**
 * Creates a stream of the device. The caller ends it with `millpond_stream_destroy`. NULL, the default stream, always
 * exists.
 *
 * Errors: UNSUPPORTED if the device has only the default stream; SYSTEM; INVALID_ARGUMENT;
 * NOT_INITIALIZED; DEVICE.
 */
MILLPOND_NODISCARD
C_Status millpond_stream_create(millpond_device *device,
                                C_Stream *out_stream);

/**
 * The range of priorities for `millpond_stream_create_with_priority`. A lower number comes first: `*out_greatest` is the
 * least number. Both are 0 on a device without priorities. Either may be NULL.
 *
 * Errors: INVALID_ARGUMENT; NOT_PERMITTED in a stream callback; NOT_INITIALIZED; DEVICE.
 */
C_Status millpond_device_get_stream_priority_range(millpond_device *device,
                                                   int32_t *out_least,
                                                   int32_t *out_greatest);

/**
 * As `millpond_stream_create`, for a stream whose work comes before or after that of others. `priority`: 0 as usual, lower
 * numbers first; one that the device does not have becomes the nearest that it has. `flags`: 0, or
 * MILLPOND_STREAM_NON_BLOCKING, for a stream that is not ordered with the default stream: NULL does not wait for its
 * work, nor it for that of NULL. Blocking copies and fills wait for it all the same, unless a stream is captured. Use it
 * for work that must overlap with what libraries do on NULL. Memory is safe on either kind: it is reused in the order
 * of the streams that used it. A device without priorities, or without such streams, makes an ordinary stream, which
 * orders more and never less.
 *
 * Errors: INVALID_ARGUMENT, also for an unknown flag; otherwise those of `millpond_stream_create`.
 */
MILLPOND_NODISCARD
C_Status millpond_stream_create_with_priority(millpond_device *device,
                                              int32_t priority,
                                              uint32_t flags,
                                              C_Stream *out_stream);

/**
 * Ends a stream that `millpond_stream_create` made. Work queued on it still completes, and its live blocks stay valid.
 * Its work still counts for the memory that it may use, and in every wait for the device; if the device cannot record
 * an event for it, the call waits for the stream. NULL: no-op.
 *
 * Errors: UNKNOWN_STREAM; INVALID_ARGUMENT for a stream that was created elsewhere; BUSY while it is captured
 * (`millpond_capture_begin`); NOT_PERMITTED in a stream callback; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
 */
C_Status millpond_stream_destroy(millpond_device *device,
                                 C_Stream stream);

/**
 * Must be called before a stream that was created elsewhere (a `CUstream` of the framework) is destroyed by its
 * creator, if it was ever passed to Millpond. Afterwards Millpond does not query the device about that stream any
 * more, which is undefined for a destroyed one and can crash the process; with the option `streams_announced` the
 * program promises this call. Its live blocks stay valid. Work queued on it still runs; the
 * call waits for it if no event can be recorded on it. NULL and the per-thread default stream: no-op. `device` is the
 * stream's own; other devices whose memory it has used are informed.
 *
 * Errors: BUSY while the stream is captured; UNKNOWN_STREAM; NOT_PERMITTED in a stream callback;
 * INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
 */
C_Status millpond_stream_forget(millpond_device *device,
                                C_Stream stream);

/**
 * Whether everything queued on the stream is done. Does not wait.
 *
 * Errors: UNKNOWN_STREAM; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
 */
C_Status millpond_stream_query(millpond_device *device, C_Stream stream, bool *out_done);

/**
 * Waits for everything queued on the stream so far.
 *
 * Errors: UNKNOWN_STREAM; NOT_PERMITTED in a stream callback; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
 */
C_Status millpond_stream_synchronize(millpond_device *device, C_Stream stream);

/**
 * Makes work queued on `stream` from now on wait for what `event` has recorded so far. Does not wait on the host. The
 * event may belong to another device of the type, unless the devices are a plugin's.
 *
 * Errors: UNKNOWN_STREAM; UNKNOWN_EVENT; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
 */
C_Status millpond_stream_wait_event(millpond_device *device,
                                    C_Stream stream,
                                    C_Event event);

/**
 * Calls `callback` with `user_data` once, on a thread of the device, when the stream reaches it. Later work of the
 * stream waits until it returns.
 *
 * Errors: UNSUPPORTED if the device has no callbacks; UNKNOWN_STREAM; INVALID_ARGUMENT;
 * NOT_INITIALIZED; DEVICE. After an error the callback is never called.
 */
C_Status millpond_stream_add_callback(millpond_device *device,
                                      C_Stream stream,
                                      millpond_stream_callback callback,
                                      void *user_data);

/**
 * Creates an event, which counts as completed. The caller ends it with `millpond_event_destroy`. It belongs to the
 * device: calls that name another device do not know it (UNKNOWN_EVENT) and do not change it, except
 * `millpond_stream_wait_event`, which does know it.
 *
 * Errors: OUT_OF_MEMORY; SYSTEM; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
 */
MILLPOND_NODISCARD
C_Status millpond_event_create(millpond_device *device,
                               C_Event *out_event);

/**
 * As `millpond_event_create`, for an event that also notes when the work that it records is done, for
 * `millpond_event_get_elapsed`. It serves for everything else, too, but may cost the device more. On `host` and `cpu` a
 * record on the NULL stream waits for the streams before it, as work there does.
 *
 * Errors: UNSUPPORTED on devices of plugins, whose interface has no call for it; and those of `millpond_event_create`.
 */
MILLPOND_NODISCARD
C_Status millpond_event_create_timed(millpond_device *device,
                                     C_Event *out_event);

/**
 * The time in milliseconds from when the work that `start` recorded last was done to when that of `end` was; negative
 * if `end` came first. On `cuda` it is cuEventElapsedTime's, with half a microsecond of resolution; on `host` and `cpu`
 * the system's monotonic clock is read by the thread of the stream. Does not wait.
 *
 * Errors: BUSY while the work of one of them is not done; INVALID_ARGUMENT for an event that was not created by
 * `millpond_event_create_timed`, or was never recorded; UNKNOWN_EVENT; UNSUPPORTED; NOT_INITIALIZED; DEVICE, also for
 * an event that was recorded in a graph.
 */
C_Status millpond_event_get_elapsed(millpond_device *device,
                                    C_Event start,
                                    C_Event end,
                                    float *out_milliseconds);

/**
 * Ends an event. Waits for it that are already queued stay in force, and so does `millpond_record_end_at`. NULL:
 * no-op.
 *
 * Errors: UNKNOWN_EVENT; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
 */
C_Status millpond_event_destroy(millpond_device *device,
                                C_Event event);

/**
 * Makes the event stand for everything queued on `stream` so far.
 *
 * Errors: UNKNOWN_STREAM; UNKNOWN_EVENT; BUSY while `millpond_event_is_held`; INVALID_ARGUMENT; NOT_INITIALIZED;
 * DEVICE.
 */
C_Status millpond_event_record(millpond_device *device,
                               C_Stream stream,
                               C_Event event);

/**
 * Whether what the event recorded is done; true if it never recorded. Does not wait.
 *
 * Errors: UNKNOWN_EVENT; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
 */
C_Status millpond_event_query(millpond_device *device, C_Event event, bool *out_done);

/**
 * Whether a block still waits for what the event has recorded (see `millpond_record_end_at`); if so, it must neither
 * be recorded again nor destroyed with functions other than this library's. Does not wait. Any event can be asked for, also
 * one that the library does not know: for that no block waits.
 *
 * Errors: INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
 */
C_Status millpond_event_is_held(millpond_device *device,
                                C_Event event,
                                bool *out_held);

/**
 * Waits for what the event recorded.
 *
 * Errors: UNKNOWN_EVENT; NOT_PERMITTED in a stream callback; INVALID_ARGUMENT; NOT_INITIALIZED; DEVICE.
 */
C_Status millpond_event_synchronize(millpond_device *device, C_Event event);

/* ---- DLPack -------------------------------------------------------------------------------------------- */

/** A tensor of DLPack before 1.0 (dlpack.h has the members): `dl_tensor`, `manager_ctx`, `deleter`. */
typedef struct DLManagedTensor DLManagedTensor;

/** A tensor of DLPack 1 (dlpack.h has the members): `version`, `manager_ctx`, `deleter`, `flags`, `dl_tensor`. */
typedef struct DLManagedTensorVersioned DLManagedTensorVersioned;

/**
 * Exports the block that starts at `ptr` as a DLPack tensor. The tensor owns the block from now on: its deleter frees
 * it as `millpond_free` does, or calls the options' `release` instead. The caller gives the tensor to a consumer, or
 * ends it with `millpond_dlpack_destroy`. `options` may be NULL: all the block's bytes, in one dimension.
 *
 * The deleter may be called from any thread and at any time: after the device has ended, and after the shared object
 * with this library was closed (the first export keeps its code loaded). The memory itself ends with the device. If
 * the block cannot be freed there (in a segment callback, or while the device refuses), a later call on its device
 * frees it;
 * `release` is called everywhere except in a forked child.
 *
 * DLPack knows no streams. Before the consumer gets the tensor, its stream must wait for the work that writes the
 * block (`millpond_stream_wait_event`; for a consumer on the processor `millpond_stream_synchronize`). A consumer may
 * call the deleter while its own work is still queued: call `millpond_record_stream` for that stream first, and the
 * block is reused only after that work.
 *
 * The device is kDLCPU, 0 for the types "host" and "cpu", whose memory any code can access; kDLCUDA and the ordinal
 * for "cuda"; kDLExtDev and the ordinal for every other type, since only its own library knows what its addresses
 * mean, unless the options name another.
 *
 * Errors: UNKNOWN_POINTER, also for a pointer inside a block; OUT_OF_RANGE for a shape that exceeds the requested size
 * of the block; UNSUPPORTED for kDLCPU if the host cannot access the memory; INVALID_ARGUMENT; NOT_INITIALIZED. After
 * an error the block is still the caller's.
 */
MILLPOND_NODISCARD
C_Status millpond_dlpack_export(void *ptr,
                                const millpond_dlpack_options *options,
                                struct DLManagedTensorVersioned **out_tensor);

/**
 * As `millpond_dlpack_export`, in the layout of DLPack before 1.0, which has no flags.
 *
 * Errors: as `millpond_dlpack_export`; INVALID_ARGUMENT for flags.
 */
MILLPOND_NODISCARD
C_Status millpond_dlpack_export_legacy(void *ptr,
                                       const millpond_dlpack_options *options,
                                       struct DLManagedTensor **out_tensor);

/**
 * Checks a tensor that this or another library made, for work of `device` (NULL: of any), and says where its memory
 * is. The tensor stays the caller's, who ends it with `millpond_dlpack_destroy` when no work uses it any more. The
 * caller sets `inout_view->struct_size`; as much as fits is written; the shape and the strides in it are borrowed from
 * the tensor.
 *
 * If the memory is a block of this library, `inout_view->block` is not NULL: `millpond_record_stream` then makes its
 * reuse wait for a stream, and the tensor may be ended while work is queued there. Other memory may only be given back
 * when the work is done (`millpond_stream_synchronize`). If several devices have a block there, it is that of the
 * device that the tensor names, otherwise of `device`.
 *
 * Errors: UNSUPPORTED for another major version than 1 (ending such a tensor is safe, nothing else is);
 * INVALID_ARGUMENT for NULL, a negative or too large number of dimensions (more than 64), a missing shape, a
 * negative size, no bits or lanes, elements without memory, and memory that `device` cannot use: it takes
 * the device type and number that `millpond_dlpack_export` gives it, any block of its own, and memory that
 * the device's processor shares (a CPU device: kDLCUDAHost, kDLROCMHost, kDLCUDAManaged; "cuda":
 * kDLCUDAManaged); OUT_OF_RANGE for elements that no memory could hold, or outside their block;
 * NOT_INITIALIZED.
 */
C_Status millpond_dlpack_get_view(const millpond_device *device,
                                  const struct DLManagedTensorVersioned *tensor,
                                  millpond_dlpack_view *inout_view);

/**
 * As `millpond_dlpack_get_view`, for a tensor of DLPack before 1.0.
 *
 * Errors: as `millpond_dlpack_get_view`, except for the version, which this layout does not have.
 */
C_Status millpond_dlpack_get_view_legacy(const millpond_device *device,
                                         const struct DLManagedTensor *tensor,
                                         millpond_dlpack_view *inout_view);

/**
 * Gives a tensor back to its producer: calls its deleter, if it has one. Any version. NULL: no-op.
 *
 * Errors: INVALID_ARGUMENT for a pointer that is not aligned.
 */
C_Status millpond_dlpack_destroy(struct DLManagedTensorVersioned *tensor);

/**
 * As `millpond_dlpack_destroy`, for a tensor of DLPack before 1.0.
 *
 * Errors: INVALID_ARGUMENT for a pointer that is not aligned.
 */
C_Status millpond_dlpack_destroy_legacy(struct DLManagedTensor *tensor);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MILLPOND_MILLPOND_H */
