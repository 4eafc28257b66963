// The other half of the runtime: capture and graphs, sharing between processes, kernels (which
// compute nothing) and the driver's functions by name.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "cudart.hpp"

using namespace shim;

namespace {

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
