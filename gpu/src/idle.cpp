// A process that never uses CUDA. Built twice: with Millpond, where it looks at the device types
// and uses the host device, and without.
#ifdef MILLPOND_GPU_WITH
#include <cstddef>

#include "millpond/millpond.h"

int main() {
  std::size_t types = 0;
  millpond_device* device = nullptr;
  void* at = nullptr;
  const bool good = millpond_device_type_get_count(&types) == C_SUCCESS &&
                    millpond_device_get("cpu", 0, &device) == C_SUCCESS &&
                    millpond_alloc(device, 4096, &at) == C_SUCCESS &&
                    millpond_free(at) == C_SUCCESS;
  return good ? 0 : 1;
}
#else
int main() { return 0; }
#endif
