// A CUDA runtime without a GPU: libcudart.so.13, or .so.12 where the headers are CUDA 12's, as
// released PyTorch asks for it, on whatever libcuda.so.1 is loaded.
//
// Memory, streams, events, captures, graphs, devices and pointers go to the driver, which is a fake
// one here; so the runtime's users (PyTorch) and the driver's (an allocator) share contexts,
// streams and memory as on a real machine. Kernels compute nothing: a launch is checked (device,
// stream, capture) and succeeds. Written from NVIDIA's public documentation and compiled against
// its public headers for the prototypes.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

// ---- the driver ----

CUresult no_such_function() { return CUDA_ERROR_NOT_SUPPORTED; }

void* driver_symbol(const char* name) {
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

thread_local int t_device = 0;  // used where no context is current
thread_local cudaError_t t_last = cudaSuccess;

constexpr int kDevices = 64;
std::mutex g_lock;
CUcontext g_primary[kDevices];

cudaError_t told(cudaError_t error) {
  if (error != cudaSuccess) {
    t_last = error;
    static const bool debug = std::getenv("CUDART_SHIM_DEBUG") != nullptr;
    if (debug && error != cudaErrorNotReady)
      std::fprintf(stderr, "cudart shim: error %d\n", static_cast<int>(error));
  }
  return error;
}
// The numbers of the two interfaces are the same since CUDA 10.1.
cudaError_t told(CUresult result) { return told(static_cast<cudaError_t>(result)); }

CUresult initialise() {
  static const CUresult result = CU(cuInit)(0);
  return result;
}

CUresult primary(int device, CUcontext* out) {
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
CUresult ready() {
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

CUdeviceptr at(const void* p) { return reinterpret_cast<CUdeviceptr>(p); }

int attribute(CUdevice_attribute which, int device) {
  int value = 0;
  (void)CU(cuDeviceGetAttribute)(&value, which, device);
  return value;
}

/// What a GPU of the driver's compute capability has, where the fake driver says 0.
int plausible(int which, int value) {
  if (value != 0) return value;
  switch (which) {
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return 48 << 10;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return 163 << 10;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return 164 << 10;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      return 1024;
    case cudaDevAttrTotalConstantMemory:
      return 64 << 10;
    case cudaDevAttrMaxRegistersPerBlock:
      return 65536;
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      return 65536;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      return 32;
    case cudaDevAttrClockRate:
      return 1410000;
    case cudaDevAttrMemoryClockRate:
      return 1512000;
    case cudaDevAttrGlobalMemoryBusWidth:
      return 5120;
    case cudaDevAttrL2CacheSize:
      return 40 << 20;
    case cudaDevAttrCooperativeLaunch:
      return 1;
    case cudaDevAttrIpcEventSupport:
      return 1;
    case cudaDevAttrMaxPitch:
      return 0x7fffffff;
    case cudaDevAttrComputePreemptionSupported:
      return 1;
    default:
      return 0;
  }
}

cudaError_t launch(cudaStream_t stream) {
  READY();
  // A launch on a stream that does not exist, or into a capture that is broken, fails as it would
  // on a GPU.
  CUstreamCaptureStatus status;
  return told(CU(cuStreamIsCapturing)(stream, &status));
}

[[maybe_unused]] cudaError_t capture_info(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                          unsigned long long* id, cudaGraph_t* graph,
                                          const cudaGraphNode_t** nodes,
                                          const CUgraphEdgeData** edges, size_t* count) {
  READY();
  using Function = CUresult (*)(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*,
                                const CUgraphNode**, const CUgraphEdgeData**, size_t*);
  static const auto get = driver<Function>("cuStreamGetCaptureInfo_v3");
  cuuint64_t number = 0;
  size_t other_count = 0;
  const CUgraphNode* other_nodes = nullptr;
  const CUgraphEdgeData* other_edges = nullptr;
  const CUresult result =
      get(stream, reinterpret_cast<CUstreamCaptureStatus*>(status), &number, graph,
          nodes != nullptr ? nodes : &other_nodes, edges != nullptr ? edges : &other_edges,
          count != nullptr ? count : &other_count);
  if (id != nullptr) *id = number;
  return told(result);
}
[[maybe_unused]] cudaError_t update_dependencies(cudaStream_t stream, cudaGraphNode_t* nodes,
                                                 size_t count, unsigned flags) {
  READY();
  return told(CU_AS("cuStreamUpdateCaptureDependencies", CUstream, CUgraphNode*, size_t, unsigned)(
      stream, nodes, count, flags));
}

struct Call {
  dim3 grid, block;
  size_t shared;
  void* stream;
};
thread_local std::vector<Call> t_calls;

}  // namespace

extern "C" {

// ---- devices, errors, versions ----

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (CUresult bad = initialise()) return told(bad);
  return told(CU(cuDeviceGetCount)(count));
}
cudaError_t cudaGetDevice(int* device) {
  if (CUresult bad = initialise()) return told(bad);
  CUcontext current = nullptr;
  if (CU(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current != nullptr)
    return told(CU(cuCtxGetDevice)(device));
  *device = t_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  CUcontext context = nullptr;
  if (CUresult bad = primary(device, &context)) return told(bad);
  t_device = device;
  return told(CU(cuCtxSetCurrent)(context));
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  if (CUresult bad = initialise()) return told(bad);
  const CUresult result =
      CU(cuDeviceGetAttribute)(value, static_cast<CUdevice_attribute>(which), device);
  if (result == CUDA_SUCCESS) *value = plausible(which, *value);
  return told(result);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (CUresult bad = initialise()) return told(bad);
  std::memset(p, 0, sizeof *p);
  if (CUresult bad = CU(cuDeviceGetName)(p->name, sizeof p->name, device)) return told(bad);
  (void)CU(cuDeviceTotalMem)(&p->totalGlobalMem, device);
  (void)CU(cuDeviceGetUuid)(reinterpret_cast<CUuuid*>(&p->uuid), device);
  const auto get = [&](cudaDeviceAttr which) {
    return plausible(which, attribute(static_cast<CUdevice_attribute>(which), device));
  };
  p->sharedMemPerBlock = static_cast<size_t>(get(cudaDevAttrMaxSharedMemoryPerBlock));
  p->regsPerBlock = get(cudaDevAttrMaxRegistersPerBlock);
  p->warpSize = get(cudaDevAttrWarpSize);
  p->memPitch = static_cast<size_t>(get(cudaDevAttrMaxPitch));
  p->maxThreadsPerBlock = get(cudaDevAttrMaxThreadsPerBlock);
  p->maxThreadsDim[0] = get(cudaDevAttrMaxBlockDimX);
  p->maxThreadsDim[1] = get(cudaDevAttrMaxBlockDimY);
  p->maxThreadsDim[2] = get(cudaDevAttrMaxBlockDimZ);
  p->maxGridSize[0] = get(cudaDevAttrMaxGridDimX);
  p->maxGridSize[1] = get(cudaDevAttrMaxGridDimY);
  p->maxGridSize[2] = get(cudaDevAttrMaxGridDimZ);
  p->totalConstMem = static_cast<size_t>(get(cudaDevAttrTotalConstantMemory));
  p->major = get(cudaDevAttrComputeCapabilityMajor);
  p->minor = get(cudaDevAttrComputeCapabilityMinor);
  p->textureAlignment = static_cast<size_t>(get(cudaDevAttrTextureAlignment));
  p->multiProcessorCount = get(cudaDevAttrMultiProcessorCount);
  p->canMapHostMemory = get(cudaDevAttrCanMapHostMemory);
  p->concurrentKernels = get(cudaDevAttrConcurrentKernels);
  p->pciBusID = get(cudaDevAttrPciBusId);
  p->asyncEngineCount = get(cudaDevAttrAsyncEngineCount);
  p->unifiedAddressing = get(cudaDevAttrUnifiedAddressing);
  p->memoryBusWidth = get(cudaDevAttrGlobalMemoryBusWidth);
  p->l2CacheSize = get(cudaDevAttrL2CacheSize);
  p->maxThreadsPerMultiProcessor = get(cudaDevAttrMaxThreadsPerMultiProcessor);
  p->streamPrioritiesSupported = get(cudaDevAttrStreamPrioritiesSupported);
  p->sharedMemPerMultiprocessor =
      static_cast<size_t>(get(cudaDevAttrMaxSharedMemoryPerMultiprocessor));
  p->regsPerMultiprocessor = get(cudaDevAttrMaxRegistersPerMultiprocessor);
  p->managedMemory = get(cudaDevAttrManagedMemory);
  p->concurrentManagedAccess = get(cudaDevAttrConcurrentManagedAccess);
  p->canUseHostPointerForRegisteredMem = get(cudaDevAttrCanUseHostPointerForRegisteredMem);
  p->cooperativeLaunch = get(cudaDevAttrCooperativeLaunch);
  p->sharedMemPerBlockOptin = static_cast<size_t>(get(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  p->maxBlocksPerMultiProcessor = get(cudaDevAttrMaxBlocksPerMultiprocessor);
  p->reservedSharedMemPerBlock = static_cast<size_t>(get(cudaDevAttrReservedSharedMemoryPerBlock));
  p->hostRegisterSupported = get(cudaDevAttrHostRegisterSupported);
  p->memoryPoolsSupported = get(cudaDevAttrMemoryPoolsSupported);
  p->ipcEventSupported = get(cudaDevAttrIpcEventSupport);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (CUresult bad = initialise()) return told(bad);
  return told(CU(cuDeviceGetPCIBusId)(text, length, device));
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (CUresult bad = initialise()) return told(bad);
  return told(CU(cuDeviceCanAccessPeer)(can, device, peer));
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  READY();
  CUcontext context = nullptr;
  if (CUresult bad = primary(peer, &context)) return told(bad);
  return told(CU(cuCtxEnablePeerAccess)(context, flags));
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  READY();
  return told(CU(cuCtxGetStreamPriorityRange)(least, greatest));
}
cudaError_t cudaDeviceSynchronize() {
  READY();
  return told(CU_AS("cuCtxSynchronize", void)());
}
cudaError_t cudaDeviceGetGraphMemAttribute(int, cudaGraphMemAttributeType, void* value) {
  *static_cast<std::uint64_t*>(value) = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceSetGraphMemAttribute(int, cudaGraphMemAttributeType, void*) {
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return told(CU(cuDriverGetVersion)(version)); }
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t error) {
  const char* text = nullptr;
  (void)CU(cuGetErrorName)(static_cast<CUresult>(error), &text);
  return text != nullptr ? text : "cudaErrorUnknown";
}
const char* cudaGetErrorString(cudaError_t error) {
  const char* text = nullptr;
  (void)CU(cuGetErrorString)(static_cast<CUresult>(error), &text);
  return text != nullptr ? text : "unknown error";
}
cudaError_t cudaGetLastError() { return std::exchange(t_last, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return t_last; }
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

// ---- memory ----

cudaError_t cudaMalloc(void** out, size_t size) {
  READY();
  if (size == 0) {
    *out = nullptr;
    return cudaSuccess;
  }
  return told(CU(cuMemAlloc)(reinterpret_cast<CUdeviceptr*>(out), size));
}
cudaError_t cudaFree(void* ptr) {
  READY();
  return ptr == nullptr ? cudaSuccess : told(CU(cuMemFree)(at(ptr)));
}
cudaError_t cudaMallocAsync(void** out, size_t size, cudaStream_t stream) {
  READY();
  return told(CU(cuMemAllocAsync)(reinterpret_cast<CUdeviceptr*>(out), size, stream));
}
cudaError_t cudaFreeAsync(void* ptr, cudaStream_t stream) {
  READY();
  return told(CU(cuMemFreeAsync)(at(ptr), stream));
}
cudaError_t cudaMallocManaged(void** out, size_t size, unsigned flags) {
  READY();
  return told(CU(cuMemAllocManaged)(reinterpret_cast<CUdeviceptr*>(out), size, flags));
}
cudaError_t cudaMallocHost(void** out, size_t size) {
  READY();
  return told(CU(cuMemAllocHost)(out, size));
}
cudaError_t cudaHostAlloc(void** out, size_t size, unsigned flags) {
  READY();
  return told(CU(cuMemHostAlloc)(out, size, flags));
}
cudaError_t cudaFreeHost(void* ptr) {
  READY();
  return ptr == nullptr ? cudaSuccess : told(CU(cuMemFreeHost)(ptr));
}
cudaError_t cudaHostRegister(void* ptr, size_t size, unsigned flags) {
  READY();
  return told(CU(cuMemHostRegister)(ptr, size, flags));
}
cudaError_t cudaHostUnregister(void* ptr) {
  READY();
  return told(CU(cuMemHostUnregister)(ptr));
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  READY();
  return told(CU(cuMemGetInfo)(free, total));
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* ptr) {
  READY();
  std::memset(out, 0, sizeof *out);
  out->device = -2;
  out->type = cudaMemoryTypeUnregistered;
  unsigned type = 0, managed = 0;
  if (CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at(ptr)) != CUDA_SUCCESS) {
    out->hostPointer = const_cast<void*>(ptr);
    return cudaSuccess;
  }
  (void)CU(cuPointerGetAttribute)(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, at(ptr));
  (void)CU(cuPointerGetAttribute)(&out->device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at(ptr));
  (void)CU(cuPointerGetAttribute)(&out->devicePointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                  at(ptr));
  (void)CU(cuPointerGetAttribute)(&out->hostPointer, CU_POINTER_ATTRIBUTE_HOST_POINTER, at(ptr));
  out->type = managed != 0 ? cudaMemoryTypeManaged
              : type == 1  ? cudaMemoryTypeHost
                           : cudaMemoryTypeDevice;
  return cudaSuccess;
}

// ---- stream-ordered pools ----

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* out, int device) {
  READY();
  return told(CU(cuDeviceGetDefaultMemPool)(out, device));
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr which, void* value) {
  return told(CU(cuMemPoolGetAttribute)(pool, static_cast<CUmemPool_attribute>(which), value));
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr which, void* value) {
  return told(CU(cuMemPoolSetAttribute)(pool, static_cast<CUmemPool_attribute>(which), value));
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* list, size_t count) {
  return told(CU(cuMemPoolSetAccess)(pool, reinterpret_cast<const CUmemAccessDesc*>(list), count));
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) {
  return told(CU(cuMemPoolTrimTo)(pool, keep));
}

// ---- copies, memset ----

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  READY();
  if (size == 0) return cudaSuccess;
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return told(CU(cuMemcpyHtoDAsync)(at(to), from, size, stream));
    case cudaMemcpyDeviceToHost:
      return told(CU(cuMemcpyDtoHAsync)(to, at(from), size, stream));
    default:
      return told(CU(cuMemcpyAsync)(at(to), at(from), size, stream));
  }
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  READY();
  if (size == 0) return cudaSuccess;
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return told(CU(cuMemcpyHtoD)(at(to), from, size));
    case cudaMemcpyDeviceToHost:
      return told(CU(cuMemcpyDtoH)(to, at(from), size));
    default:
      return told(CU(cuMemcpy)(at(to), at(from), size));
  }
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  for (size_t row = 0; row < height; ++row) {
    const cudaError_t bad =
        cudaMemcpyAsync(static_cast<char*>(to) + row * to_pitch,
                        static_cast<const char*>(from) + row * from_pitch, width, kind, stream);
    if (bad != cudaSuccess) return bad;
  }
  return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                size_t size, cudaStream_t stream) {
  READY();
  CUcontext to_context = nullptr, from_context = nullptr;
  if (CUresult bad = primary(to_device, &to_context)) return told(bad);
  if (CUresult bad = primary(from_device, &from_context)) return told(bad);
  return told(CU(cuMemcpyPeerAsync)(at(to), to_context, at(from), from_context, size, stream));
}
cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) {
  return cudaSuccess;
}
cudaError_t cudaGetSymbolAddress(void** out, const void*) {
  *out = nullptr;
  return told(cudaErrorInvalidSymbol);
}
cudaError_t cudaMemset(void* to, int value, size_t size) {
  READY();
  return size == 0 ? cudaSuccess
                   : told(CU(cuMemsetD8)(at(to), static_cast<unsigned char>(value), size));
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) {
  READY();
  return size == 0
             ? cudaSuccess
             : told(CU(cuMemsetD8Async)(at(to), static_cast<unsigned char>(value), size, stream));
}

// ---- streams, events ----

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned flags, int priority) {
  READY();
  return told(CU(cuStreamCreateWithPriority)(out, flags, priority));
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned flags) {
  return cudaStreamCreateWithPriority(out, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* out) { return cudaStreamCreateWithPriority(out, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  READY();
  return told(CU(cuStreamDestroy)(stream));
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  READY();
  return told(CU(cuStreamQuery)(stream));
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  READY();
  return told(CU(cuStreamSynchronize)(stream));
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  READY();
  return told(CU(cuStreamWaitEvent)(stream, event, flags));
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  READY();
  return told(CU(cuStreamGetPriority)(stream, priority));
}
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  READY();
  return told(CU(cuStreamGetFlags)(stream, flags));
}
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  READY();
  return told(CU(cuStreamGetId)(stream, id));
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t call, void* data,
                                  unsigned flags) {
  READY();
  return told(
      CU(cuStreamAddCallback)(stream, reinterpret_cast<CUstreamCallback>(call), data, flags));
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t call, void* data) {
  READY();
  return told(CU(cuLaunchHostFunc)(stream, call, data));
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags) {
  READY();
  return told(CU(cuEventCreate)(out, flags));
}
cudaError_t cudaEventCreate(cudaEvent_t* out) { return cudaEventCreateWithFlags(out, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  READY();
  return told(CU(cuEventDestroy)(event));
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  READY();
  return told(CU(cuEventRecord)(event, stream));
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  READY();
  return told(CU(cuEventRecordWithFlags)(event, stream, flags));
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  READY();
  return told(CU(cuEventQuery)(event));
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  READY();
  return told(CU(cuEventSynchronize)(event));
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  READY();
  return told(CU_AS("cuEventElapsedTime", float*, CUevent, CUevent)(ms, start, end));
}

// ---- capture, graphs ----

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  READY();
  return told(CU(cuStreamBeginCapture)(stream, static_cast<CUstreamCaptureMode>(mode)));
}
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t, cudaGraph_t, const cudaGraphNode_t*,
                                          const cudaGraphEdgeData*, size_t, cudaStreamCaptureMode) {
  return told(cudaErrorNotSupported);
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* out) {
  READY();
  return told(CU(cuStreamEndCapture)(stream, out));
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* out) {
  READY();
  return told(CU(cuStreamIsCapturing)(stream, reinterpret_cast<CUstreamCaptureStatus*>(out)));
}
#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges,
                                     size_t* count) {
  return capture_info(stream, status, id, graph, nodes,
                      reinterpret_cast<const CUgraphEdgeData**>(edges), count);
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t* nodes,
                                                const cudaGraphEdgeData*, size_t count,
                                                unsigned flags) {
  return update_dependencies(stream, nodes, count, flags);
}
#else
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** nodes, size_t* count) {
  return capture_info(stream, status, id, graph, nodes, nullptr, count);
}
cudaError_t cudaStreamGetCaptureInfo_v3(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                        unsigned long long* id, cudaGraph_t* graph,
                                        const cudaGraphNode_t** nodes,
                                        const cudaGraphEdgeData** edges, size_t* count) {
  return capture_info(stream, status, id, graph, nodes,
                      reinterpret_cast<const CUgraphEdgeData**>(edges), count);
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t* nodes,
                                                size_t count, unsigned flags) {
  return update_dependencies(stream, nodes, count, flags);
}
#endif
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  READY();
  return told(CU(cuThreadExchangeStreamCaptureMode)(reinterpret_cast<CUstreamCaptureMode*>(mode)));
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* out, cudaGraph_t graph,
                                          unsigned long long flags) {
  READY();
  return told(CU_AS("cuGraphInstantiateWithFlags", CUgraphExec*, CUgraph, unsigned long long)(
      out, graph, flags));
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph,
                                 unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(out, graph, flags);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  READY();
  return told(CU(cuGraphLaunch)(graph, stream));
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  READY();
  return told(CU(cuGraphDestroy)(graph));
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  READY();
  return told(CU(cuGraphExecDestroy)(graph));
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  READY();
  return told(CU(cuGraphGetNodes)(graph, nodes, count));
}
#if CUDART_VERSION >= 13000
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*,
                                         size_t*) {
  return told(cudaErrorNotSupported);
}
#else
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, size_t*) {
  return told(cudaErrorNotSupported);
}
#endif
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char* path, unsigned) {
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) return told(cudaErrorOperatingSystem);
  std::fputs("digraph {}\n", file);
  std::fclose(file);
  return cudaSuccess;
}
#if CUDART_VERSION >= 13000
cudaError_t cudaGraphAddNode(cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t*,
                             const cudaGraphEdgeData*, size_t, cudaGraphNodeParams*) {
  return told(cudaErrorNotSupported);
}
#else
cudaError_t cudaGraphAddNode(cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t*, size_t,
                             cudaGraphNodeParams*) {
  return told(cudaErrorNotSupported);
}
#endif
cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle*, cudaGraph_t, unsigned,
                                             unsigned) {
  return told(cudaErrorNotSupported);
}
cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned count,
                                      unsigned flags) {
  READY();
  return told(CU(cuGraphRetainUserObject)(graph, object, count, flags));
}
cudaError_t cudaUserObjectCreate(cudaUserObject_t* out, void* ptr, cudaHostFn_t destroy,
                                 unsigned references, unsigned flags) {
  READY();
  return told(CU(cuUserObjectCreate)(out, ptr, destroy, references, flags));
}
cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count) {
  READY();
  return told(CU(cuUserObjectRelease)(object, count));
}

// ---- sharing between processes ----

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* out, void* ptr) {
  READY();
  return told(CU(cuIpcGetMemHandle)(reinterpret_cast<CUipcMemHandle*>(out), at(ptr)));
}
cudaError_t cudaIpcOpenMemHandle(void** out, cudaIpcMemHandle_t handle, unsigned flags) {
  READY();
  CUipcMemHandle same;
  std::memcpy(&same, &handle, sizeof same);
  return told(CU(cuIpcOpenMemHandle)(reinterpret_cast<CUdeviceptr*>(out), same, flags));
}
cudaError_t cudaIpcCloseMemHandle(void* ptr) {
  READY();
  return told(CU(cuIpcCloseMemHandle)(at(ptr)));
}
// The fake driver shares no events: what was recorded is waited for, and the other side gets an
// event that is over.
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* out, cudaEvent_t event) {
  std::memset(out, 0, sizeof *out);
  return cudaEventSynchronize(event);
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* out, cudaIpcEventHandle_t) {
  return cudaEventCreateWithFlags(out, cudaEventDisableTiming);
}

// ---- kernels: none ----

void** __cudaRegisterFatBinary(void* binary) {
  static std::atomic<std::uintptr_t> count{0};
  (void)binary;
  return reinterpret_cast<void**>(0x1000 + 16 * count.fetch_add(1));
}
void __cudaRegisterFatBinaryEnd(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
cudaError_t __cudaGetKernel(cudaKernel_t* out, const void* function) {
  *out = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  t_calls.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  if (t_calls.empty()) return told(cudaErrorMissingConfiguration);
  const Call call = t_calls.back();
  t_calls.pop_back();
  *grid = call.grid;
  *block = call.block;
  *shared = call.shared;
  *static_cast<void**>(stream) = call.stream;
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t stream) {
  return launch(stream);
}
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t stream) {
  return launch(stream);
}
cudaError_t cudaLaunchCooperativeKernel(const void*, dim3, dim3, void**, size_t,
                                        cudaStream_t stream) {
  return launch(stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void*, void**) {
  return launch(config->stream);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, const void*) {
  std::memset(out, 0, sizeof *out);
  out->maxThreadsPerBlock = 1024;
  out->numRegs = 32;
  out->ptxVersion = out->binaryVersion = 80;
  out->maxDynamicSharedSizeBytes = 48 << 10;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int) {
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*,
                                                                   int size, size_t, unsigned) {
  *blocks = size > 0 && size <= 1024 ? 2048 / size : 0;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* f, int size,
                                                          size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, f, size, shared, 0);
}
cudaError_t cudaLibraryLoadData(cudaLibrary_t*, const void*, cudaJitOption*, void**, unsigned,
                                cudaLibraryOption*, void**, unsigned) {
  return told(cudaErrorNotSupported);
}
cudaError_t cudaLibraryLoadFromFile(cudaLibrary_t*, const char*, cudaJitOption*, void**, unsigned,
                                    cudaLibraryOption*, void**, unsigned) {
  return told(cudaErrorNotSupported);
}
cudaError_t cudaLibraryUnload(cudaLibrary_t) { return told(cudaErrorNotSupported); }
cudaError_t cudaLibraryGetKernel(cudaKernel_t*, cudaLibrary_t, const char*) {
  return told(cudaErrorNotSupported);
}
cudaError_t cudaLibraryGetKernelCount(unsigned*, cudaLibrary_t) {
  return told(cudaErrorNotSupported);
}
cudaError_t cudaLibraryGetGlobal(void**, size_t*, cudaLibrary_t, const char*) {
  return told(cudaErrorNotSupported);
}
cudaError_t cudaLibraryGetManaged(void**, size_t*, cudaLibrary_t, const char*) {
  return told(cudaErrorNotSupported);
}
cudaError_t cudaLibraryGetUnifiedFunction(void**, cudaLibrary_t, const char*) {
  return told(cudaErrorNotSupported);
}

// ---- driver functions by name ----

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** out, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* status) {
  CUdriverProcAddressQueryResult result = CU_GET_PROC_ADDRESS_SUCCESS;
  void* found = nullptr;
  (void)CU_AS("cuGetProcAddress_v2", const char*, void**, int, cuuint64_t,
              CUdriverProcAddressQueryResult*)(symbol, &found, static_cast<int>(version), flags,
                                               &result);
  // PyTorch looks functions up that it does not call here, and stops where one is missing.
  static const char* const needed[] = {"cuStreamWriteValue32", "cuMulticastAddDevice",
                                       "cuMulticastBindMem",   "cuMulticastCreate",
                                       "cuMulticastUnbind",    "cuMulticastGetGranularity"};
  if (found == nullptr) {
    for (const char* name : needed) {
      if (std::strcmp(name, symbol) == 0) {
        found = reinterpret_cast<void*>(&no_such_function);
        result = CU_GET_PROC_ADDRESS_SUCCESS;
      }
    }
  }
  if (found == nullptr && std::getenv("CUDART_SHIM_DEBUG") != nullptr)
    std::fprintf(stderr, "cudart shim: no entry point %s (%u)\n", symbol, version);
  *out = found;
  if (status != nullptr) *status = static_cast<cudaDriverEntryPointQueryResult>(result);
  return cudaSuccess;
}

#if CUDART_VERSION < 13000
cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** out, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion(symbol, out, CUDART_VERSION, flags, status);
}
#endif

}  // extern "C"
