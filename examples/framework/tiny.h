/* The framework's own C interface: what its shared library exports, and all that it exports.
 *
 * Millpond is linked into that library and cannot be seen from outside: another library in the same
 * process may have a copy of its own, of another version even, and the two are strangers.
 *
 * Every call may come from any thread; one session at one thread at a time. A call that fails gives
 * -1 or NULL, and tiny_last_error() of the same thread tells why.
 */
#ifndef EXAMPLE_FRAMEWORK_TINY_H
#define EXAMPLE_FRAMEWORK_TINY_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define TINY_API __attribute__((visibility("default")))
#else
#define TINY_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** A device, a network on it, and the memory of both. */
typedef struct tiny_session tiny_session;

/** The account of a device, in bytes where not said otherwise. */
typedef struct tiny_stats {
  uint64_t allocated_bytes;
  uint64_t reserved_bytes;
  uint64_t blocks; /* a number */
} tiny_stats;

/** Why the last call of this thread failed; "" when none has. Borrowed until the next failure. */
TINY_API const char* tiny_last_error(void);
/** How many host devices there are (0: default), and bytes of each (0: default). First of all. */
TINY_API int tiny_configure_host(uint32_t devices, uint64_t capacity_bytes);
/** Loads a custom-runtime plugin and writes the name of its device type. */
TINY_API int tiny_load_plugin(const char* path, char* out_type, size_t capacity);
/** How many devices the type has; -1 when there is no such type. */
TINY_API int tiny_device_count(const char* type);
/** The account of a device. */
TINY_API int tiny_device_stats(const char* type, int ordinal, tiny_stats* out);
/** Memory of a device, outside of any session; given back with tiny_free(). */
TINY_API void* tiny_alloc(const char* type, int ordinal, size_t size_bytes);
/** Gives memory of tiny_alloc() back. NULL does nothing. */
TINY_API int tiny_free(void* memory);

/** A session on device `ordinal` of `type`. The caller ends it with tiny_session_destroy(). */
TINY_API tiny_session* tiny_session_create(const char* type, int ordinal);
/** Trains for some steps and writes each loss; `out_losses` may be NULL. */
TINY_API int tiny_session_train(tiny_session* session, int steps, float* out_losses);
/**
 * The weights of the first layer as a DLPack tensor, without a copy, once all steps are done: later
 * steps change them. `legacy` 0: a DLManagedTensorVersioned; else a DLManagedTensor. The caller's
 * consumer calls its deleter; the memory stays until then, also when the session is destroyed
 * before.
 */
TINY_API void* tiny_session_weights(tiny_session* session, int legacy);
/** Ends the session. NULL does nothing. */
TINY_API void tiny_session_destroy(tiny_session* session);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* EXAMPLE_FRAMEWORK_TINY_H */
