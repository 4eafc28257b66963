// Blocks for other processes, for an allocator of C++ (python/millpond_torch/native.cpp).
#include <millpond/millpond.h>

#include "devices.hpp"
#include "pluggable.hpp"

using namespace millpond_torch;

int millpond_torch_export_size(const void* ptr, std::size_t* info_bytes, std::size_t* fd_count) {
  return guard(1,
               [&] { return failed(millpond_export_get_size(ptr, info_bytes, fd_count)) ? 1 : 0; });
}

int millpond_torch_export(const void* ptr, void* info, std::size_t info_bytes, int* fds,
                          std::size_t fd_count) {
  return guard(
      1, [&] { return failed(millpond_export(ptr, info, info_bytes, fds, fd_count)) ? 1 : 0; });
}

int millpond_torch_import(int device, const void* info, std::size_t info_bytes, const int* fds,
                          std::size_t fd_count, void** out) {
  return guard(1, [&] {
    Device* on = device_at(device);
    return on == nullptr || failed(millpond_import(on->get(), info, info_bytes, fds, fd_count, out))
               ? 1
               : 0;
  });
}

int millpond_torch_import_close(void* ptr) {
  return guard(1, [&] { return failed(millpond_import_close(ptr)) ? 1 : 0; });
}
