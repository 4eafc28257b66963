// Calls of the CUDA driver by name, as C finds them, for what asks the driver itself: a function
// that is not there is an answer, too.
#ifndef MILLPOND_GPU_RAW_HPP
#define MILLPOND_GPU_RAW_HPP

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "driver.hpp"

namespace gpu {

constexpr int kAbsent = -1;

inline void* symbol(const char* name) {
  static void* const library = [] {
    const char* named = std::getenv("MILLPOND_CUDA_LIBRARY");
    return dlopen(named != nullptr && *named != '\0' ? named : "libcuda.so.1", RTLD_NOW);
  }();
  return library == nullptr ? nullptr : dlsym(library, name);
}

/// The function's status, or `kAbsent`. The arguments have the types of NVIDIA's documentation.
template <class... Arguments>
int raw(const char* name, Arguments... arguments) {
  void* const found = symbol(name);
  if (found == nullptr) return kAbsent;
  return reinterpret_cast<int (*)(Arguments...)>(found)(arguments...);
}

/// A status in words: the driver's name of it, without what all have.
inline std::string said(int status) {
  if (status == 0) return "ok";
  if (status == kAbsent) return "absent";
  const std::string name = driver().name(status);
  if (name == "unknown error") return std::to_string(status);
  const std::string usual = "CUDA_ERROR_";
  return name.rfind(usual, 0) == 0 ? name.substr(usual.size()) : name;
}

/// CUmemAllocationProp and CUmemAccessDesc, as the documentation lays them out.
struct Kind {
  int type = 1;              // pinned
  int handle_types = 0;      // 1: file descriptors
  int location[2] = {1, 0};  // device 0
  void* windows = nullptr;
  unsigned char compression = 0;
  unsigned char rdma = 0;
  unsigned short usage = 0;
  unsigned char reserved[4] = {};
};
static_assert(sizeof(Kind) == 32, "the driver's layout");
struct Access {
  int location[2] = {1, 0};
  int flags = 3;  // read and write
};

}  // namespace gpu

#endif  // MILLPOND_GPU_RAW_HPP
