// A CUDA runtime without a GPU: libcudart.so.13, or .so.12 where the headers are CUDA 12's, as
// released PyTorch asks for it, on whatever libcuda.so.1 is loaded.
//
// Memory, streams, events, captures, graphs, devices and pointers go to the driver, which is a fake
// one here; so the runtime's users (PyTorch) and the driver's (an allocator) share contexts,
// streams and memory as on a real machine. Kernels compute nothing: a launch is checked (device,
// stream, capture) and succeeds. Written from NVIDIA's public documentation and compiled against
// its public headers for the prototypes.
//
// Here: devices, memory, copies, streams, events. graphs.cpp has the rest.
#include "cudart.hpp"

#include <cstdint>
#include <cstring>
#include <utility>

using namespace shim;

namespace {

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

}  // extern "C"
