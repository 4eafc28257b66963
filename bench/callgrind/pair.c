/* Warm pairs of one size on the host device, for counting instructions: pair <mapping 0|1> <bytes>
 * <pairs> [history | frames | file | over | latency | unordered | turns | far | far-turns |
 * far-history]. So many pairs warm it; then `counts_from_here` is called, and twice as many follow.
 * `frames`: a history with 16 callers of each event; `file`: one that goes to a file, too; `over`:
 * one that has ended; `unordered`: without a stream; `turns`: a block of 512 bytes in turn with one
 * of that size; `far`: beside 300 blocks of 1 MiB, so that without mapping they lie in another
 * segment than the first; `far-turns` and `far-history`: the same there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "millpond/millpond.h"

static void check(C_Status status) {
  if (status == C_SUCCESS) return;
  fprintf(stderr, "pair: %s\n", millpond_last_error_message());
  exit(1);
}

/* Where counting begins; callgrind knows the name. */
void counts_from_here(void);
__attribute__((noinline)) void counts_from_here(void) { __asm__ volatile(""); }

static void some_pairs(millpond_pool* pool, size_t bytes, C_Stream stream, long pairs) {
  for (long i = 0; i < pairs; ++i) {
    void* p;
    check(millpond_pool_alloc(pool, bytes, stream, &p));
    check(millpond_pool_free(pool, p, stream));
  }
}

/* Small and large blocks in turn, beside 63 of each that stay: what one class of memory gives back,
 * the other takes. */
static void some_turns(millpond_pool* pool, size_t bytes, C_Stream stream, long turns) {
  void* stays;
  for (int i = 0; i < 126; ++i) {
    check(millpond_pool_alloc(pool, i % 2 == 0 ? 512 : bytes, stream, &stays));
  }
  for (long i = 0; i < 3 * turns; ++i) {
    if (i == turns) counts_from_here();
    some_pairs(pool, i % 2 == 0 ? 512 : bytes, stream, 1);
  }
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
  const char* how = argc == 5 ? argv[4] : "";
  int is_far = strncmp(how, "far", 3) == 0;
  int takes_turns = strstr(how, "turns") != NULL;
  millpond_history_options history = {sizeof history, 0, 0, NULL};
  if (strcmp(how, "frames") == 0) history.frame_count = 16;
  if (strcmp(how, "file") == 0) history.path = "pair.history";
  if (strcmp(how, "latency") == 0) {
    check(millpond_device_set_options(device, "latency_histograms:true"));
  } else if (how[0] != '\0' && strcmp(how, "unordered") != 0 && !takes_turns &&
             strcmp(how, "far") != 0) {
    check(millpond_device_history_start(device, &history));
  }
  if (strcmp(how, "unordered") == 0) {
    for (long i = 0; i < 3 * pairs; ++i) {
      if (i == pairs) counts_from_here();
      void* p;
      check(millpond_alloc(device, bytes, &p));
      check(millpond_free(p));
    }
    return 0;
  }
  if (strcmp(how, "over") == 0) {
    some_pairs(pool, bytes, stream, 100);
    check(millpond_device_history_stop(device, NULL));
  }
  if (is_far) {
    void* stays;
    for (int i = 0; i < 300; ++i) check(millpond_pool_alloc(pool, 1 << 20, stream, &stays));
  }
  if (takes_turns) {
    some_turns(pool, bytes, stream, pairs);
    return 0;
  }
  for (long i = 0; i < 3 * pairs; ++i) {
    if (i == pairs) counts_from_here();
    some_pairs(pool, bytes, stream, 1);
  }
  return 0;
}
