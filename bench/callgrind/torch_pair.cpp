// Warm pairs through the entry points that PyTorch calls, on the host device, for counting
// instructions: torch_pair <bytes> <pairs>. So many pairs warm it; then `counts_from_here` is
// called, and twice as many follow.
#include <cstdio>
#include <cstdlib>

#include "pluggable.hpp"

extern "C" __attribute__((noinline)) void counts_from_here() { asm volatile(""); }

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  setenv("MILLPOND_TORCH_DEVICE", "host", 1);
  setenv("MILLPOND_HOST_CAPACITY", "1073741824", 1);
  const auto bytes = static_cast<ssize_t>(std::strtoull(argv[1], nullptr, 10));
  const long pairs = std::strtol(argv[2], nullptr, 10);
  millpond_torch_init(1);
  for (long i = 0; i < 3 * pairs; ++i) {
    if (i == pairs) counts_from_here();
    void* ptr = millpond_torch_alloc(bytes, 0, nullptr);
    if (ptr == nullptr) return 1;
    millpond_torch_free(ptr, bytes, 0, nullptr);
  }
  return 0;
}
