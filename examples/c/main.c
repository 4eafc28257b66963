/* Millpond from C: a device, a pool, a stream, memory in the stream's order, and the counters.
 * Runs on the embedded host device; another type's name as argument runs it there. */
#include <inttypes.h>
#include <millpond/millpond.h>
#include <stdio.h>
#include <stdlib.h>

/* Every fallible call returns a C_Status; the thread's last error says more. */
static void must(C_Status status, const char* what) {
  if (status == C_SUCCESS) return;
  fprintf(stderr, "%s: %s (%s)\n", what, millpond_last_error_message(),
          millpond_error_name(millpond_last_error_code()));
  exit(EXIT_FAILURE);
}

int main(int count, char** arguments) {
  const char* type = count > 1 ? arguments[1] : "host";
  enum { COUNT = 1 << 16 };
  const size_t bytes = COUNT * sizeof(float);

  millpond_device* device = NULL;
  must(millpond_device_get(type, 0, &device), "device");
  millpond_device_info info = {.struct_size = sizeof info};
  must(millpond_device_get_info(device, &info), "device info");
  printf("%s:%d, %" PRIu64 " MiB\n", info.type, (int)info.ordinal, info.total_bytes >> 20);

  millpond_pool* pool = NULL;
  millpond_pool_options options = {.struct_size = sizeof options, .limit_bytes = 64u << 20};
  must(millpond_pool_create(device, &options, &pool), "pool");
  C_Stream stream = NULL;
  must(millpond_stream_create(device, &stream), "stream");

  /* Pinned host memory copies without a detour, and really asynchronously. */
  void *host = NULL, *a = NULL, *b = NULL;
  must(millpond_host_alloc(device, bytes, &host), "pinned memory");
  float* numbers = host;
  for (int i = 0; i < COUNT; ++i) numbers[i] = (float)i;

  /* Both blocks are usable by what this stream runs from here on. Nothing waits. */
  must(millpond_pool_alloc(pool, bytes, stream, &a), "first block");
  must(millpond_copy_async(device, stream, MILLPOND_COPY_H2D, a, host, bytes), "to the device");
  must(millpond_pool_alloc(pool, bytes, stream, &b), "second block");
  must(millpond_copy_async(device, stream, MILLPOND_COPY_D2D, b, a, bytes), "within the device");
  must(millpond_pool_free(pool, a, stream), "free"); /* the copy may still be running */
  must(millpond_memset_async(device, stream, b, 0, bytes / 2), "fill");
  must(millpond_copy_async(device, stream, MILLPOND_COPY_D2H, host, b, bytes), "to the host");
  must(millpond_stream_synchronize(device, stream), "stream");

  for (int i = 0; i < COUNT; ++i) {
    if (numbers[i] != (i < COUNT / 2 ? 0.0f : (float)i)) {
      fprintf(stderr, "element %d is %g\n", i, (double)numbers[i]);
      return EXIT_FAILURE;
    }
  }

  millpond_stats stats = {.struct_size = sizeof stats};
  must(millpond_pool_get_stats(pool, &stats), "statistics");
  printf("live %" PRIu64 " blocks, %" PRIu64 " bytes (peak %" PRIu64 "), reserved %" PRIu64
         " bytes, %" PRIu64 " driver calls\n",
         stats.blocks.current, stats.allocated_bytes.current, stats.allocated_bytes.peak,
         stats.reserved_bytes.current, stats.driver_calls);

  must(millpond_pool_free(pool, b, stream), "free");
  must(millpond_host_free(device, host), "free");
  must(millpond_stream_destroy(device, stream), "stream");
  must(millpond_pool_destroy(pool), "pool");
  return EXIT_SUCCESS;
}
