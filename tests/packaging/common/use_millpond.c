#include "use_millpond.h"

#include <millpond/millpond.h>
#include <stdio.h>
#include <string.h>

/* MILLPOND_EXPECTED_VERSION comes from the test: header, library and package must agree on it. */
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define HEADER_VERSION \
  TEXT(MILLPOND_VERSION_MAJOR) "." TEXT(MILLPOND_VERSION_MINOR) "." TEXT(MILLPOND_VERSION_PATCH)

#define CHECK(condition)                                                                        \
  do {                                                                                          \
    if (!(condition)) {                                                                         \
      fprintf(stderr, "%s:%d: not true: %s (last error: %s)\n", __FILE__, __LINE__, #condition, \
              millpond_last_error_message());                                                   \
      return 1;                                                                                 \
    }                                                                                           \
  } while (0)

int use_millpond(void) {
  millpond_device* device = NULL;
  void* memory = NULL;
  char in[4096], out[4096];
  C_Stream stream = NULL;
  millpond_stats stats;

  CHECK(strcmp(millpond_version(), MILLPOND_EXPECTED_VERSION) == 0);
  CHECK(strcmp(HEADER_VERSION, MILLPOND_EXPECTED_VERSION) == 0);
  CHECK(millpond_version_number() == MILLPOND_VERSION_NUMBER);
#if MILLPOND_VERSION_NUMBER < 1000
#error "the version number is not one that the preprocessor can compare"
#endif

  CHECK(millpond_device_get("host", 1, &device) == C_SUCCESS);
  CHECK(millpond_alloc(device, sizeof in, &memory) == C_SUCCESS);
  memset(in, 42, sizeof in);
  memset(out, 0, sizeof out);

  /* A stream has a thread of its own, so this also needs the thread library. */
  CHECK(millpond_stream_create(device, &stream) == C_SUCCESS);
  CHECK(millpond_copy_async(device, stream, MILLPOND_COPY_H2D, memory, in, sizeof in) == C_SUCCESS);
  CHECK(millpond_stream_synchronize(device, stream) == C_SUCCESS);
  CHECK(millpond_stream_destroy(device, stream) == C_SUCCESS);
  CHECK(millpond_copy(device, MILLPOND_COPY_D2H, out, memory, sizeof out) == C_SUCCESS);
  CHECK(memcmp(in, out, sizeof in) == 0);

  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  CHECK(millpond_device_get_stats(device, &stats) == C_SUCCESS);
  CHECK(stats.requested_bytes.current == sizeof in);
  CHECK(millpond_free(memory) == C_SUCCESS);

  /* A refused call: its message is made on the other side of the language border. */
  CHECK(millpond_device_get("no such type", 0, &device) != C_SUCCESS);
  CHECK(millpond_last_error_code() == MILLPOND_E_UNKNOWN_DEVICE);
  printf("Millpond %s works\n", millpond_version());
  return 0;
}
