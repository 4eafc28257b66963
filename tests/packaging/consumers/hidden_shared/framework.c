#include <millpond/millpond.h>

/* How many host devices the framework's own copy of Millpond has. */
__attribute__((visibility("default"))) size_t framework_devices(void) {
  size_t count = 0;
  millpond_device_get_count("host", &count);
  return count;
}
