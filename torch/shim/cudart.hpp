// What both halves of the runtime share: the driver's functions, errors, and the current context.
#ifndef MILLPOND_TORCH_SHIM_CUDART_HPP
#define MILLPOND_TORCH_SHIM_CUDART_HPP

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace shim {

// ---- the driver ----

inline CUresult no_such_function() { return CUDA_ERROR_NOT_SUPPORTED; }

inline void* driver_symbol(const char* name) {
  static void* library = [] {
    void* found = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (found == nullptr) std::fprintf(stderr, "cudart shim: %s\n", dlerror());
    return found;
  }();
  void* symbol = library == nullptr ? nullptr : dlsym(library, name);
  if (symbol == nullptr && std::getenv("CUDART_SHIM_DEBUG") != nullptr)
    std::fprintf(stderr, "cudart shim: the driver has no %s\n", name);
  return symbol;
}

template <typename F>
F driver(const char* name) {
  void* symbol = driver_symbol(name);
  return reinterpret_cast<F>(symbol != nullptr ? symbol
                                               : reinterpret_cast<void*>(&no_such_function));
}

// cuda.h names the newest form of a function by a macro, so the text must be taken after expansion.
#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)
#define CU(name)                                               \
  ([]() -> decltype(&name) {                                   \
    static const auto f = driver<decltype(&name)>(TEXT(name)); \
    return f;                                                  \
  }())
#define CU_AS(name, ...)                                           \
  ([]() -> CUresult (*)(__VA_ARGS__) {                             \
    static const auto f = driver<CUresult (*)(__VA_ARGS__)>(name); \
    return f;                                                      \
  }())

// ---- state of a thread and of the process ----

inline thread_local int t_device = 0;  // used where no context is current
inline thread_local cudaError_t t_last = cudaSuccess;

constexpr int kDevices = 64;
inline std::mutex g_lock;
inline CUcontext g_primary[kDevices];

inline cudaError_t told(cudaError_t error) {
  if (error != cudaSuccess) {
    t_last = error;
    static const bool debug = std::getenv("CUDART_SHIM_DEBUG") != nullptr;
    if (debug && error != cudaErrorNotReady)
      std::fprintf(stderr, "cudart shim: error %d\n", static_cast<int>(error));
  }
  return error;
}
// The numbers of the two interfaces are the same since CUDA 10.1.
inline cudaError_t told(CUresult result) { return told(static_cast<cudaError_t>(result)); }

inline CUresult initialise() {
  static const CUresult result = CU(cuInit)(0);
  return result;
}

inline CUresult primary(int device, CUcontext* out) {
  if (CUresult bad = initialise()) return bad;
  if (device < 0 || device >= kDevices) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard<std::mutex> held(g_lock);
  if (g_primary[device] == nullptr) {
    CUdevice dev;
    if (CUresult bad = CU(cuDeviceGet)(&dev, device)) return bad;
    if (CUresult bad = CU(cuDevicePrimaryCtxRetain)(&g_primary[device], dev)) return bad;
  }
  *out = g_primary[device];
  return CUDA_SUCCESS;
}

/// The calling thread has a current context after this, as the runtime makes it on first use.
inline CUresult ready() {
  if (CUresult bad = initialise()) return bad;
  CUcontext current = nullptr;
  if (CUresult bad = CU(cuCtxGetCurrent)(&current)) return bad;
  if (current != nullptr) return CUDA_SUCCESS;
  if (CUresult bad = primary(t_device, &current)) return bad;
  return CU(cuCtxSetCurrent)(current);
}

#define READY()                                   \
  do {                                            \
    if (CUresult bad = ready()) return told(bad); \
  } while (0)

inline CUdeviceptr at(const void* p) { return reinterpret_cast<CUdeviceptr>(p); }

}  // namespace shim

#endif
