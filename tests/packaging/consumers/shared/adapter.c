/* An adapter as a framework has them: it allocates through the library that it is linked to, and
 * tells what that knows. Built twice, with the name in ADAPTER. */
#include <millpond/millpond.h>

#define JOINED(a, b) a##b
#define NAME(a, b) JOINED(a, b)

void* NAME(ADAPTER, _alloc)(size_t size_bytes);
uint64_t NAME(ADAPTER, _live_bytes)(void);

static millpond_device* device(void) {
  millpond_device* found = NULL;
  return millpond_device_get("host", 0, &found) == C_SUCCESS ? found : NULL;
}

void* NAME(ADAPTER, _alloc)(size_t size_bytes) {
  void* block = NULL;
  return millpond_alloc(device(), size_bytes, &block) == C_SUCCESS ? block : NULL;
}

uint64_t NAME(ADAPTER, _live_bytes)(void) {
  millpond_stats stats = {0};
  stats.struct_size = sizeof stats;
  return millpond_device_get_stats(device(), &stats) == C_SUCCESS ? stats.requested_bytes.current
                                                                  : 0;
}
