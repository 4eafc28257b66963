// Layouts of PyTorch's pools, for an allocator of C++ (python/millpond_torch/native.cpp).
#include <millpond/millpond.h>

#include "devices.hpp"
#include "pluggable.hpp"

using namespace millpond_torch;

namespace {

/// The pool, or NULL with the error kept.
std::shared_ptr<Pool> pool_of(int device, PoolId id) {
  Device* on = open_device(device);
  std::shared_ptr<Pool> pool = on != nullptr ? on->named(id) : nullptr;
  if (pool == nullptr) {
    last_error() = "there is no pool (" + std::to_string(id.first) + ", " +
                   std::to_string(id.second) + ") on GPU " + std::to_string(device);
  }
  return pool;
}

}  // namespace

int millpond_torch_checkpoint(int device, std::uint64_t first, std::uint64_t second, void** out) {
  return guard(1, [&] {
    const std::shared_ptr<Pool> pool = pool_of(device, {first, second});
    millpond_checkpoint* made = nullptr;
    if (pool == nullptr || failed(millpond_pool_checkpoint(pool->pool, &made))) return 1;
    *out = made;
    return 0;
  });
}

int millpond_torch_restore(int device, std::uint64_t first, std::uint64_t second,
                           const void* checkpoint) {
  return guard(1, [&] {
    const std::shared_ptr<Pool> pool = pool_of(device, {first, second});
    return pool == nullptr || failed(millpond_pool_restore(
                                  pool->pool, static_cast<const millpond_checkpoint*>(checkpoint),
                                  nullptr, nullptr))
               ? 1
               : 0;
  });
}

void millpond_torch_checkpoint_destroy(void* checkpoint) {
  guard(0, [&] {
    return failed(millpond_checkpoint_destroy(static_cast<millpond_checkpoint*>(checkpoint))) ? 1
                                                                                              : 0;
  });
}
