#include <millpond/millpond.h>
#include <stdio.h>

size_t framework_devices(void);

int main(void) {
  millpond_host_options options = {0};
  size_t count = 0;
  options.struct_size = sizeof options;
  options.device_count = 5;
  if (millpond_host_configure(&options) != C_SUCCESS ||
      millpond_device_get_count("host", &count) != C_SUCCESS) {
    fprintf(stderr, "%s\n", millpond_last_error_message());
    return 1;
  }
  /* 2 is the default: the framework's copy must not have seen our configuration. */
  printf("program: %zu devices, framework: %zu devices\n", count, framework_devices());
  return count == 5 && framework_devices() == 2 ? 0 : 1;
}
