// The part of the CUDA driver API that the checks use, loaded when the program starts: no CUDA
// header or library is needed to build them. The signatures are those of NVIDIA's documentation.
//
// The same library is loaded as Millpond loads: MILLPOND_CUDA_LIBRARY, else the system's.
#ifndef MILLPOND_GPU_DRIVER_HPP
#define MILLPOND_GPU_DRIVER_HPP

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace gpu {

using Ptr = unsigned long long;  // CUdeviceptr
using Handle = void*;            // CUcontext, CUstream, CUevent, CUmodule, CUfunction

/// Ends the program with a row that says why.
[[noreturn]] inline void fail(const std::string& what) {
  std::printf("row\t%s\t\t\tfail\n", what.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

struct Driver {
  int (*cuInit)(unsigned);
  int (*cuDriverGetVersion)(int*);
  int (*cuDeviceGet)(int*, int);
  int (*cuDeviceGetCount)(int*);
  int (*cuDeviceGetAttribute)(int*, int, int);
  int (*cuDeviceGetName)(char*, int, int);
  int (*cuDeviceTotalMem_v2)(std::size_t*, int);
  int (*cuDevicePrimaryCtxRetain)(Handle*, int);
  int (*cuCtxSetCurrent)(Handle);
  int (*cuCtxSynchronize)();
  int (*cuGetErrorName)(int, const char**);
  int (*cuMemAlloc_v2)(Ptr*, std::size_t);
  int (*cuMemFree_v2)(Ptr);
  int (*cuMemAllocAsync)(Ptr*, std::size_t, Handle);
  int (*cuMemFreeAsync)(Ptr, Handle);
  int (*cuDeviceGetDefaultMemPool)(Handle*, int);
  int (*cuMemPoolSetAttribute)(Handle, int, void*);
  int (*cuMemGetInfo_v2)(std::size_t*, std::size_t*);
  int (*cuMemGetAddressRange_v2)(Ptr*, std::size_t*, Ptr);
  int (*cuPointerGetAttribute)(void*, int, Ptr);
  int (*cuMemAddressReserve)(Ptr*, std::size_t, std::size_t, Ptr, unsigned long long);
  int (*cuMemAddressFree)(Ptr, std::size_t);
  int (*cuMemCreate)(std::uint64_t*, std::size_t, const void*, unsigned long long);
  int (*cuMemRelease)(std::uint64_t);
  int (*cuMemMap)(Ptr, std::size_t, std::size_t, std::uint64_t, unsigned long long);
  int (*cuMemUnmap)(Ptr, std::size_t);
  int (*cuMemSetAccess)(Ptr, std::size_t, const void*, std::size_t);
  int (*cuMemHostAlloc)(void**, std::size_t, unsigned);
  int (*cuMemFreeHost)(void*);
  int (*cuMemcpyHtoDAsync_v2)(Ptr, const void*, std::size_t, Handle);
  int (*cuMemcpyDtoHAsync_v2)(void*, Ptr, std::size_t, Handle);
  int (*cuMemcpyDtoDAsync_v2)(Ptr, Ptr, std::size_t, Handle);
  int (*cuMemsetD8Async)(Ptr, unsigned char, std::size_t, Handle);
  int (*cuStreamCreate)(Handle*, unsigned);
  int (*cuStreamDestroy_v2)(Handle);
  int (*cuStreamSynchronize)(Handle);
  int (*cuStreamWaitEvent)(Handle, Handle, unsigned);
  int (*cuStreamBeginCapture_v2)(Handle, unsigned);
  int (*cuStreamEndCapture)(Handle, Handle*);
  int (*cuGraphInstantiateWithFlags)(Handle*, Handle, unsigned long long);
  int (*cuGraphLaunch)(Handle, Handle);
  int (*cuGraphDestroy)(Handle);
  int (*cuGraphExecDestroy)(Handle);
  int (*cuEventCreate)(Handle*, unsigned);
  int (*cuEventRecord)(Handle, Handle);
  int (*cuEventElapsedTime)(float*, Handle, Handle);
  int (*cuEventSynchronize)(Handle);
  // Not in the fake driver, which runs no kernels.
  int (*cuModuleLoadData)(Handle*, const void*);
  int (*cuModuleGetFunction)(Handle*, Handle, const char*);
  int (*cuLaunchKernel)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, Handle, void**, void**);
  // Where the driver has them.
  int (*cuLaunchKernelEx)(const void*, Handle, void**, void**);
  int (*cuStreamGetId)(Handle, unsigned long long*);
  bool fake;  // the library is the fake driver
  std::uint64_t (*fake_calls)(const char*);
  std::uint64_t (*fake_aliases)();
  int (*fake_kernel)(std::uint64_t, const std::uint64_t (*)[2], std::size_t,
                     const std::uint64_t (*)[2], std::size_t, unsigned, void (*)(void*), void*,
                     std::uint64_t*);

  const char* name(int code) const {
    const char* text = nullptr;
    return cuGetErrorName(code, &text) == 0 && text != nullptr ? text : "unknown error";
  }

  /// All calls of the fake driver so far.
  std::uint64_t calls() const { return fake ? fake_calls(nullptr) : 0; }
};

inline const Driver& driver() {
  static const Driver loaded = [] {
    const char* named = std::getenv("MILLPOND_CUDA_LIBRARY");
    const bool is_named = named != nullptr && *named != '\0';
    void* library = dlopen(is_named ? named : "libcuda.so.1", RTLD_NOW);
    if (library == nullptr) fail(std::string("no CUDA driver: ") + dlerror());
    Driver out{};
    out.fake = dlsym(library, "fakecuda_version") != nullptr;
    const auto find = [&](auto& to, const char* symbol, bool needed) {
      void* found = dlsym(library, symbol);
      if (found == nullptr && needed) fail(std::string("the driver lacks ") + symbol);
      to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(found);
    };
#define MILLPOND_GPU_FIND(symbol) find(out.symbol, #symbol, true)
    MILLPOND_GPU_FIND(cuInit);
    MILLPOND_GPU_FIND(cuDriverGetVersion);
    MILLPOND_GPU_FIND(cuDeviceGet);
    MILLPOND_GPU_FIND(cuDeviceGetCount);
    MILLPOND_GPU_FIND(cuDeviceGetAttribute);
    MILLPOND_GPU_FIND(cuDeviceGetName);
    MILLPOND_GPU_FIND(cuDeviceTotalMem_v2);
    MILLPOND_GPU_FIND(cuDevicePrimaryCtxRetain);
    MILLPOND_GPU_FIND(cuCtxSetCurrent);
    MILLPOND_GPU_FIND(cuCtxSynchronize);
    MILLPOND_GPU_FIND(cuGetErrorName);
    MILLPOND_GPU_FIND(cuMemAlloc_v2);
    MILLPOND_GPU_FIND(cuMemFree_v2);
    MILLPOND_GPU_FIND(cuMemAllocAsync);
    MILLPOND_GPU_FIND(cuMemFreeAsync);
    MILLPOND_GPU_FIND(cuDeviceGetDefaultMemPool);
    MILLPOND_GPU_FIND(cuMemPoolSetAttribute);
    MILLPOND_GPU_FIND(cuMemGetInfo_v2);
    MILLPOND_GPU_FIND(cuMemGetAddressRange_v2);
    MILLPOND_GPU_FIND(cuPointerGetAttribute);
    MILLPOND_GPU_FIND(cuMemAddressReserve);
    MILLPOND_GPU_FIND(cuMemAddressFree);
    MILLPOND_GPU_FIND(cuMemCreate);
    MILLPOND_GPU_FIND(cuMemRelease);
    MILLPOND_GPU_FIND(cuMemMap);
    MILLPOND_GPU_FIND(cuMemUnmap);
    MILLPOND_GPU_FIND(cuMemSetAccess);
    MILLPOND_GPU_FIND(cuMemHostAlloc);
    MILLPOND_GPU_FIND(cuMemFreeHost);
    MILLPOND_GPU_FIND(cuMemcpyHtoDAsync_v2);
    MILLPOND_GPU_FIND(cuMemcpyDtoHAsync_v2);
    MILLPOND_GPU_FIND(cuMemcpyDtoDAsync_v2);
    MILLPOND_GPU_FIND(cuMemsetD8Async);
    MILLPOND_GPU_FIND(cuStreamCreate);
    MILLPOND_GPU_FIND(cuStreamDestroy_v2);
    MILLPOND_GPU_FIND(cuStreamSynchronize);
    MILLPOND_GPU_FIND(cuStreamWaitEvent);
    MILLPOND_GPU_FIND(cuStreamBeginCapture_v2);
    MILLPOND_GPU_FIND(cuStreamEndCapture);
    MILLPOND_GPU_FIND(cuGraphInstantiateWithFlags);
    MILLPOND_GPU_FIND(cuGraphLaunch);
    MILLPOND_GPU_FIND(cuGraphDestroy);
    MILLPOND_GPU_FIND(cuGraphExecDestroy);
    MILLPOND_GPU_FIND(cuEventCreate);
    MILLPOND_GPU_FIND(cuEventRecord);
    MILLPOND_GPU_FIND(cuEventElapsedTime);
    MILLPOND_GPU_FIND(cuEventSynchronize);
#undef MILLPOND_GPU_FIND
    find(out.cuModuleLoadData, "cuModuleLoadData", !out.fake);
    find(out.cuModuleGetFunction, "cuModuleGetFunction", !out.fake);
    find(out.cuLaunchKernel, "cuLaunchKernel", !out.fake);
    find(out.cuLaunchKernelEx, "cuLaunchKernelEx", false);
    find(out.cuStreamGetId, "cuStreamGetId", out.fake);
    find(out.fake_calls, "fakecuda_calls", out.fake);
    find(out.fake_aliases, "fakecuda_aliases", out.fake);
    find(out.fake_kernel, "fakecuda_kernel", out.fake);
    return out;
  }();
  return loaded;
}

/// Ends the program if a driver call failed.
inline void need(int code, const char* call) {
  if (code != 0) fail(std::string(call) + ": " + driver().name(code));
}
#define MILLPOND_GPU(call, ...) ::gpu::need(::gpu::driver().call(__VA_ARGS__), #call)

/// Starts the driver, with the primary context of the first device current in this thread.
inline void start() {
  MILLPOND_GPU(cuInit, 0);
  Handle context = nullptr;
  MILLPOND_GPU(cuDevicePrimaryCtxRetain, &context, 0);
  MILLPOND_GPU(cuCtxSetCurrent, context);
}

}  // namespace gpu

#endif  // MILLPOND_GPU_DRIVER_HPP
