/* Built against the headers of an older release (tests/abi/<minor>/include), and run with today's
 * library: what the program knows works, and nothing is written past the structs that it has. */
#include <millpond/millpond.h>
#include <stdio.h>
#include <string.h>

#define CHECK(condition)                                             \
  do {                                                               \
    if (!(condition)) {                                              \
      fprintf(stderr, "%d: not so: %s (%s)\n", __LINE__, #condition, \
              millpond_last_error_message());                        \
      return 1;                                                      \
    }                                                                \
  } while (0)

/* A struct with what lies behind it in an older program. */
#define GUARDED(type)        \
  struct {                   \
    type value;              \
    unsigned char after[64]; \
  }
#define PREPARE(guarded)                                                                          \
  (memset(&(guarded), 0x5a, sizeof(guarded)), memset(&(guarded).value, 0, sizeof(guarded).value), \
   (guarded).value.struct_size = sizeof(guarded).value)
static int is_untouched(const unsigned char* after) {
  for (int i = 0; i < 64; ++i) {
    if (after[i] != 0x5a) return 0;
  }
  return 1;
}

static bool note(void* user_data, const millpond_history_event* event) {
  (void)event;
  ++*(int*)user_data;
  return true;
}
static void told(void* user_data, const millpond_block_event* event) {
  *(size_t*)user_data += event->requested_bytes;
}

int main(void) {
  millpond_device* device = NULL;
  millpond_pool* pool = NULL;
  C_Stream stream = NULL;
  C_Event event = NULL;
  void* block = NULL;
  bool done = false;
  int events = 0;
  size_t hooked = 0;
  uint64_t id = 0;
  GUARDED(millpond_device_info) info;
  GUARDED(millpond_stats) stats;
  GUARDED(millpond_memory_stats) memory;
  GUARDED(millpond_host_stats) host;
  GUARDED(millpond_block_info) found;
  GUARDED(millpond_oom_report) report;
  GUARDED(millpond_latency) latency;
  millpond_host_options options = {sizeof options, 1, (uint64_t)256 << 20, 0};
  millpond_pool_options own = {sizeof own, 64 << 20, "own", 0};

  printf("built against %d.%d, runs with %s\n", MILLPOND_VERSION_MAJOR, MILLPOND_VERSION_MINOR,
         millpond_version());
  CHECK(millpond_version_number() >= MILLPOND_VERSION_NUMBER);
  CHECK(millpond_host_configure(&options) == C_SUCCESS);
  CHECK(millpond_device_get("host", 0, &device) == C_SUCCESS);
  CHECK(millpond_pool_create(device, &own, &pool) == C_SUCCESS);
  CHECK(millpond_stream_create(device, &stream) == C_SUCCESS);
  CHECK(millpond_device_add_hook(device, told, &hooked, NULL, &id) == C_SUCCESS);
  CHECK(millpond_device_history_start(device, NULL) == C_SUCCESS);
  CHECK(millpond_pool_alloc(pool, 1000, stream, &block) == C_SUCCESS && block != NULL);
  CHECK(millpond_memset_async(device, stream, block, 7, 1000) == C_SUCCESS);
  CHECK(millpond_event_create(device, &event) == C_SUCCESS);
  CHECK(millpond_event_record(device, stream, event) == C_SUCCESS);
  CHECK(millpond_event_synchronize(device, event) == C_SUCCESS);
  CHECK(millpond_stream_query(device, stream, &done) == C_SUCCESS && done);

  PREPARE(info), PREPARE(stats), PREPARE(memory), PREPARE(host), PREPARE(found), PREPARE(report);
  PREPARE(latency);
  CHECK(millpond_device_get_info(device, &info.value) == C_SUCCESS && is_untouched(info.after));
  CHECK(strcmp(info.value.type, "host") == 0 && info.value.total_bytes == (uint64_t)256 << 20);
  CHECK(millpond_pool_get_stats(pool, &stats.value) == C_SUCCESS && is_untouched(stats.after));
  CHECK(stats.value.requested_bytes.current == 1000 && stats.value.limit_bytes == 64 << 20);
  CHECK(millpond_device_get_memory_stats(device, &memory.value) == C_SUCCESS);
  CHECK(is_untouched(memory.after));
  CHECK(millpond_memory_stats_find(&memory.value, "requested_bytes.all.current", &id) == C_SUCCESS);
  CHECK(id == 1000);
  CHECK(millpond_device_get_host_stats(device, &host.value) == C_SUCCESS);
  CHECK(is_untouched(host.after));
  CHECK(millpond_get_block(block, &found.value) == C_SUCCESS && is_untouched(found.after));
  CHECK(found.value.base == block && found.value.pool == pool && found.value.stream == stream);
  CHECK(millpond_device_get_latency(device, MILLPOND_LATENCY_ALLOC, &latency.value) == C_SUCCESS);
  CHECK(is_untouched(latency.after));

  CHECK(millpond_pool_alloc(pool, 128 << 20, stream, &block) == C_FAILED);
  CHECK(millpond_last_error_code() == MILLPOND_E_OUT_OF_MEMORY);
  CHECK(millpond_last_oom(&report.value) == C_SUCCESS && is_untouched(report.after));
  CHECK(report.value.reason == MILLPOND_OOM_ABOVE_POOL_LIMIT && report.value.pool == pool);
  CHECK(millpond_pool_free(pool, block, stream) == C_SUCCESS);
  CHECK(millpond_device_history_read(device, note, &events, NULL) == C_SUCCESS && events >= 3);
  CHECK(hooked == 2000); /* told of the allocation and of the free */
  CHECK(millpond_event_destroy(device, event) == C_SUCCESS);
  CHECK(millpond_stream_destroy(device, stream) == C_SUCCESS);
  CHECK(millpond_pool_destroy(pool) == C_SUCCESS);
  CHECK(millpond_finalize() == C_SUCCESS);
  return 0;
}
