// What tests/cuda/nvtx_tool.c takes for NVTX is NVTX: its declarations are those of the published
// headers, and a program that is written with these headers finds it. src/runtime/nvtx is
// tested against that tool.

#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtMem.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

extern "C" {
#include "../../tests/cuda/nvtx_tool.c"
}

#define SAME_TYPE(ours, theirs) \
  static_assert(sizeof(ours) == sizeof(theirs) && alignof(ours) == alignof(theirs), #ours)
#define SAME(ours, theirs, member)                                                      \
  static_assert(offsetof(ours, member) == offsetof(theirs, member), #ours "." #member); \
  static_assert(sizeof(static_cast<ours*>(nullptr)->member) ==                          \
                    sizeof(static_cast<theirs*>(nullptr)->member),                      \
                #member)
#define EQUAL(ours, theirs) \
  static_assert(static_cast<long>(ours) == static_cast<long>(theirs), #ours)

SAME_TYPE(tool_callbacks, NvtxExportTableCallbacks);
SAME(tool_callbacks, NvtxExportTableCallbacks, GetModuleFunctionTable);
SAME_TYPE(tool_version, NvtxExportTableVersionInfo);
SAME(tool_version, NvtxExportTableVersionInfo, version);
SAME(tool_version, NvtxExportTableVersionInfo, SetInjectionNvtxVersion);
SAME_TYPE(tool_event, nvtxEventAttributes_t);
SAME(tool_event, nvtxEventAttributes_t, size);
SAME(tool_event, nvtxEventAttributes_t, category);
SAME(tool_event, nvtxEventAttributes_t, colorType);
SAME(tool_event, nvtxEventAttributes_t, color);
SAME(tool_event, nvtxEventAttributes_t, payloadType);
SAME(tool_event, nvtxEventAttributes_t, reserved0);
SAME(tool_event, nvtxEventAttributes_t, payload);
SAME(tool_event, nvtxEventAttributes_t, messageType);
SAME(tool_event, nvtxEventAttributes_t, message);
SAME_TYPE(tool_segment, nvtxExtModuleSegment_t);
SAME(tool_segment, nvtxExtModuleSegment_t, slotCount);
SAME(tool_segment, nvtxExtModuleSegment_t, functionSlots);
SAME_TYPE(tool_module, nvtxExtModuleInfo_t);
SAME(tool_module, nvtxExtModuleInfo_t, structSize);
SAME(tool_module, nvtxExtModuleInfo_t, moduleId);
SAME(tool_module, nvtxExtModuleInfo_t, compatId);
SAME(tool_module, nvtxExtModuleInfo_t, segmentsCount);
SAME(tool_module, nvtxExtModuleInfo_t, segments);
SAME(tool_module, nvtxExtModuleInfo_t, getExportFunction);
SAME(tool_module, nvtxExtModuleInfo_t, extInfo);
SAME_TYPE(tool_range, nvtxMemVirtualRangeDesc_t);
SAME(tool_range, nvtxMemVirtualRangeDesc_t, ptr);
SAME_TYPE(tool_heap, nvtxMemHeapDesc_t);
SAME(tool_heap, nvtxMemHeapDesc_t, structSize);
SAME(tool_heap, nvtxMemHeapDesc_t, reserved0);
SAME(tool_heap, nvtxMemHeapDesc_t, usage);
SAME(tool_heap, nvtxMemHeapDesc_t, type);
SAME(tool_heap, nvtxMemHeapDesc_t, typeSpecificDescSize);
SAME(tool_heap, nvtxMemHeapDesc_t, typeSpecificDesc);
SAME(tool_heap, nvtxMemHeapDesc_t, category);
SAME(tool_heap, nvtxMemHeapDesc_t, messageType);
SAME(tool_heap, nvtxMemHeapDesc_t, message);
SAME_TYPE(tool_register, nvtxMemRegionsRegisterBatch_t);
SAME(tool_register, nvtxMemRegionsRegisterBatch_t, structSize);
SAME(tool_register, nvtxMemRegionsRegisterBatch_t, regionType);
SAME(tool_register, nvtxMemRegionsRegisterBatch_t, heap);
SAME(tool_register, nvtxMemRegionsRegisterBatch_t, regionCount);
SAME(tool_register, nvtxMemRegionsRegisterBatch_t, regionDescElementSize);
SAME(tool_register, nvtxMemRegionsRegisterBatch_t, regionDescElements);
SAME(tool_register, nvtxMemRegionsRegisterBatch_t, regionHandleElementsOut);
SAME_TYPE(tool_unregister, nvtxMemRegionsUnregisterBatch_t);
SAME(tool_unregister, nvtxMemRegionsUnregisterBatch_t, structSize);
SAME(tool_unregister, nvtxMemRegionsUnregisterBatch_t, refType);
SAME(tool_unregister, nvtxMemRegionsUnregisterBatch_t, refCount);
SAME(tool_unregister, nvtxMemRegionsUnregisterBatch_t, refElementSize);
SAME(tool_unregister, nvtxMemRegionsUnregisterBatch_t, refElements);

EQUAL(TOOL_ETID_CALLBACKS, NVTX_ETID_CALLBACKS);
EQUAL(TOOL_ETID_VERSIONINFO, NVTX_ETID_VERSIONINFO);
EQUAL(1, NVTX_CB_MODULE_CORE);
EQUAL(2, NVTX_CB_MODULE_CUDA);
EQUAL(3, NVTX_CB_MODULE_OPENCL);
EQUAL(4, NVTX_CB_MODULE_CUDART);
EQUAL(TOOL_MODULE_CORE2, NVTX_CB_MODULE_CORE2);
EQUAL(6, NVTX_CB_MODULE_SYNC);
EQUAL(TOOL_CORE2_SIZE, NVTX_CBID_CORE2_SIZE);
EQUAL(TOOL_MARK, NVTX_CBID_CORE2_DomainMarkEx);
EQUAL(TOOL_PUSH, NVTX_CBID_CORE2_DomainRangePushEx);
EQUAL(TOOL_POP, NVTX_CBID_CORE2_DomainRangePop);
EQUAL(TOOL_DOMAIN, NVTX_CBID_CORE2_DomainCreateA);
EQUAL(15, NVTX_CBID_CORE2_Initialize);
EQUAL(TOOL_MEM_MODULE, NVTX_EXT_MODULEID_MEM);
EQUAL(TOOL_MEM_COMPAT, NVTX_EXT_COMPATID_MEM);
EQUAL(TOOL_HEAP_REGISTER, NVTX3EXT_CBID_nvtxMemHeapRegister);
EQUAL(TOOL_HEAP_UNREGISTER, NVTX3EXT_CBID_nvtxMemHeapUnregister);
EQUAL(TOOL_REGIONS_REGISTER, NVTX3EXT_CBID_nvtxMemRegionsRegister);
EQUAL(TOOL_REGIONS_UNREGISTER, NVTX3EXT_CBID_nvtxMemRegionsUnregister);
EQUAL(TOOL_ASCII, NVTX_MESSAGE_TYPE_ASCII);
EQUAL(TOOL_UINT64, NVTX_PAYLOAD_TYPE_UNSIGNED_INT64);
EQUAL(TOOL_SUB_ALLOCATOR, NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR);
EQUAL(TOOL_VIRTUAL, NVTX_MEM_TYPE_VIRTUAL_ADDRESS);
EQUAL(TOOL_POINTER, NVTX_MEM_REGION_REF_TYPE_POINTER);
EQUAL(TOOL_VERSION, NVTX_VERSION);
EQUAL(63, NVTX_EXT_MEM_SLOT_COUNT);

int main(int, char** argv) {
  const std::string path = std::string(argv[0]) + ".log";
  std::remove(path.c_str());
  setenv("NVTX_TOOL_LOG", path.c_str(), 1);
  // The tool is linked here, so the headers need not load it.
  InitializeInjectionNvtx2_fnptr = InitializeInjectionNvtx2;
  InitializeInjectionNvtxExtension_fnptr =
      reinterpret_cast<NvtxExtInitializeInjectionFunc_t>(InitializeInjectionNvtxExtension);
  nvtxDomainHandle_t domain = nvtxDomainCreateA("real");
  nvtxEventAttributes_t event = {};
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  event.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
  event.payload.ullValue = 7;
  event.messageType = NVTX_MESSAGE_TYPE_ASCII;
  event.message.ascii = "a thing";
  nvtxDomainMarkEx(domain, &event);
  nvtxDomainRangePushEx(domain, &event);
  nvtxDomainRangePop(domain);

  nvtxMemVirtualRangeDesc_t range = {};
  range.size = 4096;
  range.ptr = reinterpret_cast<const void*>(65536);
  nvtxMemHeapDesc_t heap = {};
  heap.extCompatID = NVTX_EXT_COMPATID_MEM;
  heap.structSize = sizeof heap;
  heap.usage = NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR;
  heap.type = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
  heap.typeSpecificDescSize = sizeof range;
  heap.typeSpecificDesc = &range;
  heap.messageType = NVTX_MESSAGE_TYPE_ASCII;
  heap.message.ascii = "heap";
  nvtxMemHeapHandle_t handle = nvtxMemHeapRegister(domain, &heap);
  range.size = 100;
  nvtxMemRegionsRegisterBatch_t regions = {};
  regions.extCompatID = NVTX_EXT_COMPATID_MEM;
  regions.structSize = sizeof regions;
  regions.regionType = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
  regions.heap = handle;
  regions.regionCount = 1;
  regions.regionDescElementSize = sizeof range;
  regions.regionDescElements = &range;
  nvtxMemRegionsRegister(domain, &regions);
  nvtxMemRegionRef_t region = {};
  region.pointer = range.ptr;
  nvtxMemRegionsUnregisterBatch_t ended = {};
  ended.extCompatID = NVTX_EXT_COMPATID_MEM;
  ended.structSize = sizeof ended;
  ended.refType = NVTX_MEM_REGION_REF_TYPE_POINTER;
  ended.refCount = 1;
  ended.refElementSize = sizeof region;
  ended.refElements = &region;
  nvtxMemRegionsUnregister(domain, &ended);
  nvtxMemHeapUnregister(domain, handle);

  const char* want =
      "tool\ndomain real\nmark 7 a thing\npush 7 a thing\npop\nheap 0 65536 4096\nregion 0 65536 "
      "100\n"
      "end_region 65536\nend_heap 0\n";
  std::string said(1000, '\0');
  std::FILE* log = std::fopen(path.c_str(), "r");
  said.resize(log != nullptr ? std::fread(&said[0], 1, said.size(), log) : 0);
  if (said != want) {
    std::fprintf(stderr, "the tool was told:\n%s", said.c_str());
    return 1;
  }
  return 0;
}
