/* A custom-runtime plugin in C, on ordinary memory: what a vendor writes to bring a device to a
 * framework. It needs one header and links nothing of Millpond.
 *
 *   cc -std=c11 -shared -fPIC -pthread -I<prefix>/include plugin.c streams.c \
 *     -o libexample_plugin.so
 *
 * Millpond loads it with millpond_device_type_load(), PaddlePaddle from CUSTOM_DEVICE_ROOT. It has
 * what a real plugin has: the current device is per thread, the capacity is counted, every argument
 * is checked, and streams run beside the caller (streams.c).
 *
 * Compiled with -DEXAMPLE_MINIMAL it offers only what Millpond requires. -DEXAMPLE_TYPE="name"
 * names the device type. The sizes are read from the environment once, in InitPlugin; all in bytes,
 * and what is not set is left null in the table:
 *
 *   EXAMPLE_PLUGIN_DEVICES      how many devices, 1 to 16 (default 2)
 *   EXAMPLE_PLUGIN_CAPACITY     of each device (default 1 GiB)
 *   EXAMPLE_PLUGIN_MIN_CHUNK    (default 256)
 *   EXAMPLE_PLUGIN_PADDING  EXAMPLE_PLUGIN_MAX_CHUNK  EXAMPLE_PLUGIN_MAX_ALLOC
 *   EXAMPLE_PLUGIN_INIT_ALLOC  EXAMPLE_PLUGIN_REALLOC
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "streams.h"

#ifndef EXAMPLE_TYPE
#define EXAMPLE_TYPE "example"
#endif

enum { MAX_DEVICES = 16, ALIGNMENT = 256 };

static size_t device_count = 2;
static size_t capacity = (size_t)1 << 30;
#ifndef EXAMPLE_MINIMAL
static size_t min_chunk = ALIGNMENT;
static size_t padding, max_chunk, max_alloc, init_alloc, realloc_size;
#endif

static _Atomic size_t used_bytes[MAX_DEVICES]; /* by device */

static int known(C_Device device) {
  return device != NULL && device->id >= 0 && (size_t)device->id < device_count;
}

/* ---- memory ---- */

/* Adds to what the device has in use, unless that passes its capacity. */
static int take(int id, size_t size_bytes) {
  size_t used = atomic_load(&used_bytes[id]);
  do {
    if (size_bytes > capacity - used) return 0;
  } while (!atomic_compare_exchange_weak(&used_bytes[id], &used, used + size_bytes));
  return 1;
}

static C_Status allocate(C_Device device, void** out_ptr, size_t size_bytes) {
  if (!known(device) || out_ptr == NULL || size_bytes == 0) return C_ERROR;
  if (size_bytes > capacity || !take(device->id, size_bytes)) return C_FAILED;
  /* aligned_alloc wants a multiple of the alignment; the capacity counts what was asked for. */
  void* ptr = aligned_alloc(ALIGNMENT, (size_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  if (ptr == NULL) {
    atomic_fetch_sub(&used_bytes[device->id], size_bytes);
    return C_FAILED;
  }
  *out_ptr = ptr;
  return C_SUCCESS;
}

/* No stream is named, so all work that is queued so far must be done first. */
static C_Status deallocate(C_Device device, void* ptr, size_t size_bytes) {
  if (!known(device)) return C_ERROR;
  if (ptr == NULL) return C_SUCCESS;
#ifndef EXAMPLE_MINIMAL
  streams_wait(device->id);
#endif
  atomic_fetch_sub(&used_bytes[device->id], size_bytes);
  free(ptr);
  return C_SUCCESS;
}

static C_Status copy(C_Device device, void* dst, const void* src, size_t size_bytes) {
  if (!known(device)) return C_ERROR;
  if (size_bytes == 0) return C_SUCCESS;
  if (dst == NULL || src == NULL) return C_ERROR;
#ifndef EXAMPLE_MINIMAL
  streams_wait(device->id);
#endif
  memmove(dst, src, size_bytes);
  return C_SUCCESS;
}

static C_Status get_count(size_t* out_count) {
  if (out_count == NULL) return C_ERROR;
  *out_count = device_count;
  return C_SUCCESS;
}

#ifndef EXAMPLE_MINIMAL

static C_Status set(C_Device device, void* ptr, unsigned char value, size_t size_bytes) {
  if (!known(device) || ptr == NULL) return C_ERROR;
  streams_wait(device->id);
  memset(ptr, value, size_bytes);
  return C_SUCCESS;
}

static C_Status copy_p2p(C_Device dst_device, C_Device src_device, void* dst, const void* src,
                         size_t size_bytes) {
  if (!known(src_device)) return C_ERROR;
  streams_wait(src_device->id);
  return copy(dst_device, dst, src, size_bytes);
}

static C_Status host_allocate(C_Device device, void** out_ptr, size_t size_bytes) {
  if (!known(device) || out_ptr == NULL || size_bytes == 0) return C_ERROR;
  void* ptr = malloc(size_bytes);
  if (ptr == NULL) return C_FAILED;
  *out_ptr = ptr;
  return C_SUCCESS;
}

static C_Status host_deallocate(C_Device device, void* ptr, size_t size_bytes) {
  (void)size_bytes;
  if (!known(device)) return C_ERROR;
  free(ptr);
  return C_SUCCESS;
}

/* ---- streams and events: null is the default stream, on which work is done at once ---- */

static C_Status create_stream(C_Device device, C_Stream* out_stream) {
  if (!known(device) || out_stream == NULL) return C_ERROR;
  struct stream* stream = stream_create(device->id);
  if (stream == NULL) return C_FAILED;
  *out_stream = (C_Stream)(void*)stream;
  return C_SUCCESS;
}

static struct stream* stream_of(C_Stream stream) { return (struct stream*)(void*)stream; }
static struct event* event_of(C_Event event) { return (struct event*)(void*)event; }

static C_Status destroy_stream(C_Device device, C_Stream stream) {
  if (!known(device)) return C_ERROR;
  if (stream != NULL) stream_destroy(stream_of(stream));
  return C_SUCCESS;
}

static C_Status query_stream(C_Device device, C_Stream stream) {
  if (!known(device)) return C_ERROR;
  return stream == NULL || stream_is_done(stream_of(stream)) ? C_SUCCESS : C_WARNING;
}

static C_Status synchronize_stream(C_Device device, C_Stream stream) {
  if (!known(device)) return C_ERROR;
  if (stream != NULL) stream_wait(stream_of(stream));
  return C_SUCCESS;
}

static C_Status synchronize_device(C_Device device) {
  if (!known(device)) return C_ERROR;
  streams_wait(device->id);
  return C_SUCCESS;
}

static C_Status add_callback(C_Device device, C_Stream stream, C_Callback callback,
                             void* user_data) {
  if (!known(device) || callback == NULL) return C_ERROR;
  if (stream != NULL) {
    return stream_callback(stream_of(stream), callback, user_data) ? C_SUCCESS : C_FAILED;
  }
  C_Status status = C_SUCCESS;
  callback(device, stream, user_data, &status);
  return C_SUCCESS;
}

static C_Status create_event(C_Device device, C_Event* out_event) {
  if (!known(device) || out_event == NULL) return C_ERROR;
  struct event* event = event_create();
  if (event == NULL) return C_FAILED;
  *out_event = (C_Event)(void*)event;
  return C_SUCCESS;
}

static C_Status destroy_event(C_Device device, C_Event event) {
  if (!known(device)) return C_ERROR;
  if (event != NULL) event_destroy(event_of(event));
  return C_SUCCESS;
}

static C_Status query_event(C_Device device, C_Event event) {
  if (!known(device) || event == NULL) return C_ERROR;
  return event_is_done(event_of(event)) ? C_SUCCESS : C_WARNING;
}

static C_Status synchronize_event(C_Device device, C_Event event) {
  if (!known(device) || event == NULL) return C_ERROR;
  event_wait(event_of(event));
  return C_SUCCESS;
}

static C_Status record_event(C_Device device, C_Stream stream, C_Event event) {
  if (!known(device) || event == NULL) return C_ERROR;
  struct stream* on = stream == NULL ? NULL : stream_of(stream);
  return event_record(event_of(event), on) ? C_SUCCESS : C_FAILED;
}

static C_Status stream_wait_event(C_Device device, C_Stream stream, C_Event event) {
  if (!known(device) || event == NULL) return C_ERROR;
  if (stream != NULL) {
    return stream_wait_for(stream_of(stream), event_of(event)) ? C_SUCCESS : C_FAILED;
  }
  event_wait(event_of(event));
  return C_SUCCESS;
}

static C_Status queue_copy(C_Device device, C_Stream stream, void* dst, const void* src,
                           size_t size_bytes, int src_is_host) {
  if (!known(device)) return C_ERROR;
  if (size_bytes == 0) return C_SUCCESS;
  if (dst == NULL || src == NULL) return C_ERROR;
  if (stream == NULL) return copy(device, dst, src, size_bytes);
  return stream_copy(stream_of(stream), dst, src, size_bytes, src_is_host) ? C_SUCCESS : C_FAILED;
}

static C_Status copy_h2d_on_stream(C_Device device, C_Stream stream, void* dst, const void* src,
                                   size_t size_bytes) {
  return queue_copy(device, stream, dst, src, size_bytes, 1);
}

static C_Status copy_on_stream(C_Device device, C_Stream stream, void* dst, const void* src,
                               size_t size_bytes) {
  return queue_copy(device, stream, dst, src, size_bytes, 0);
}

static C_Status copy_p2p_on_stream(C_Device dst_device, C_Device src_device, C_Stream stream,
                                   void* dst, const void* src, size_t size_bytes) {
  if (!known(dst_device)) return C_ERROR;
  return queue_copy(src_device, stream, dst, src, size_bytes, 0);
}

/* ---- devices and information ---- */

static _Thread_local int current_device;

static C_Status start(void) { return C_SUCCESS; }

/* The host may unload this object next: no thread of it may be left. */
static C_Status finish(void) {
  streams_end();
  return C_SUCCESS;
}

static C_Status on_device(C_Device device) { return known(device) ? C_SUCCESS : C_ERROR; }

static C_Status set_device(C_Device device) {
  if (!known(device)) return C_ERROR;
  current_device = device->id;
  return C_SUCCESS;
}

static C_Status get_device(C_Device out_device) {
  if (out_device == NULL) return C_ERROR;
  out_device->id = current_device;
  return C_SUCCESS;
}

static C_Status get_list(size_t* out_ids) {
  if (out_ids == NULL) return C_ERROR;
  for (size_t i = 0; i < device_count; ++i) out_ids[i] = i;
  return C_SUCCESS;
}

static C_Status stats(C_Device device, size_t* out_total_bytes, size_t* out_free_bytes) {
  if (!known(device) || out_total_bytes == NULL || out_free_bytes == NULL) return C_ERROR;
  *out_total_bytes = capacity;
  *out_free_bytes = capacity - atomic_load(&used_bytes[device->id]);
  return C_SUCCESS;
}

#define ANSWERS(name, value)                                 \
  static C_Status name(C_Device device, size_t* out_value) { \
    if (!known(device) || out_value == NULL) return C_ERROR; \
    *out_value = (value);                                    \
    return C_SUCCESS;                                        \
  }
ANSWERS(get_min_chunk, min_chunk)
ANSWERS(get_padding, padding)
ANSWERS(get_max_chunk, max_chunk)
ANSWERS(get_max_alloc, max_alloc)
ANSWERS(get_init_alloc, init_alloc)
ANSWERS(get_realloc_size, realloc_size)

#endif /* EXAMPLE_MINIMAL */

/* ---- the one exported symbol ---- */

/* Whether the variable held a number. */
static int read_size(const char* name, size_t* value) {
  const char* text = getenv(name);
  char* end = NULL;
  if (text == NULL || *text == '\0') return 0;
  unsigned long long number = strtoull(text, &end, 10);
  if (*end != '\0') return 0;
  *value = (size_t)number;
  return 1;
}

#ifdef __GNUC__
__attribute__((visibility("default")))
#endif
void InitPlugin(CustomRuntimeParams *params);

void InitPlugin(CustomRuntimeParams* params) {
  /* Only members that every release has are filled below, so older hosts are served too. */
  MILLPOND_CUSTOM_RUNTIME_CHECK_COMMON(params);
  params->device_type = (char*)EXAMPLE_TYPE;
  params->sub_device_type = (char*)"memory";

  if (read_size("EXAMPLE_PLUGIN_DEVICES", &device_count) &&
      (device_count == 0 || device_count > MAX_DEVICES)) {
    device_count = 2;
  }
  read_size("EXAMPLE_PLUGIN_CAPACITY", &capacity);

  C_DeviceInterface* table = params->interface;
  table->device_memory_allocate = allocate;
  table->device_memory_deallocate = deallocate;
  table->memory_copy_h2d = copy;
  table->memory_copy_d2h = copy;
  table->get_device_count = get_count;
#ifndef EXAMPLE_MINIMAL
  table->initialize = start;
  table->finalize = finish;
  table->init_device = on_device;
  table->deinit_device = on_device;
  table->set_device = set_device;
  table->get_device = get_device;
  table->synchronize_device = synchronize_device;
  table->create_stream = create_stream;
  table->destroy_stream = destroy_stream;
  table->query_stream = query_stream;
  table->synchronize_stream = synchronize_stream;
  table->stream_add_callback = add_callback;
  table->create_event = create_event;
  table->destroy_event = destroy_event;
  table->query_event = query_event;
  table->synchronize_event = synchronize_event;
  table->record_event = record_event;
  table->stream_wait_event = stream_wait_event;

  table->device_memory_set = set;
  table->host_memory_allocate = host_allocate;
  table->host_memory_deallocate = host_deallocate;
  table->unified_memory_allocate = host_allocate;
  table->unified_memory_deallocate = host_deallocate;
  table->memory_copy_d2d = copy;
  table->memory_copy_p2p = copy_p2p;
  table->async_memory_copy_h2d = copy_h2d_on_stream;
  table->async_memory_copy_d2h = copy_on_stream;
  table->async_memory_copy_d2d = copy_on_stream;
  table->async_memory_copy_p2p = copy_p2p_on_stream;

  table->get_device_list = get_list;
  table->device_memory_stats = stats;
  read_size("EXAMPLE_PLUGIN_MIN_CHUNK", &min_chunk);
  table->device_min_chunk_size = get_min_chunk;
  if (read_size("EXAMPLE_PLUGIN_PADDING", &padding)) table->device_extra_padding_size = get_padding;
  if (read_size("EXAMPLE_PLUGIN_MAX_CHUNK", &max_chunk))
    table->device_max_chunk_size = get_max_chunk;
  if (read_size("EXAMPLE_PLUGIN_MAX_ALLOC", &max_alloc))
    table->device_max_alloc_size = get_max_alloc;
  if (read_size("EXAMPLE_PLUGIN_INIT_ALLOC", &init_alloc)) {
    table->device_init_alloc_size = get_init_alloc;
  }
  if (read_size("EXAMPLE_PLUGIN_REALLOC", &realloc_size)) {
    table->device_realloc_size = get_realloc_size;
  }
#endif
}
