/* Warm pairs of one size on the host device, for counting instructions: pair <mapping 0|1> <bytes>
 * <pairs> [history | latency | unordered] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "millpond/millpond.h"

static void check(C_Status status) {
  if (status == C_SUCCESS) return;
  fprintf(stderr, "pair: %s\n", millpond_last_error_message());
  exit(1);
}

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) return 2;
  millpond_host_options options = {sizeof options, 1, (uint64_t)1 << 30, argv[1][0] == '0'};
  size_t bytes = strtoull(argv[2], NULL, 10);
  long pairs = strtol(argv[3], NULL, 10);
  millpond_device* device;
  millpond_pool* pool;
  C_Stream stream;
  check(millpond_host_configure(&options));
  check(millpond_device_get("host", 0, &device));
  check(millpond_device_get_default_pool(device, &pool));
  check(millpond_stream_create(device, &stream));
  if (argc == 5 && strcmp(argv[4], "history") == 0) {
    check(millpond_device_history_start(device, NULL));
  } else if (argc == 5 && strcmp(argv[4], "latency") == 0) {
    check(millpond_device_set_options(device, "latency_histograms:true"));
  }
  if (argc == 5 && strcmp(argv[4], "unordered") == 0) {
    for (long i = 0; i < pairs; ++i) {
      void* p;
      check(millpond_alloc(device, bytes, &p));
      check(millpond_free(p));
    }
    return 0;
  }
  for (long i = 0; i < pairs; ++i) {
    void* p;
    check(millpond_pool_alloc(pool, bytes, stream, &p));
    check(millpond_pool_free(pool, p, stream));
  }
  return 0;
}
