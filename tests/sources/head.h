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
