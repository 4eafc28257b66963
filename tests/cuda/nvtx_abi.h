/* What an NVTX tool needs to know of NVTX 3 and of its memory extension, with the names of members
 * as the published headers have them; or, with NVTX_REAL, those headers themselves.
 * cpp_tests/real_headers/nvtx.cpp compares the two. */
#ifndef MILLPOND_TESTS_NVTX_ABI_H
#define MILLPOND_TESTS_NVTX_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef NVTX_REAL

#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtMem.h>
#define TOOL_ETID_CALLBACKS NVTX_ETID_CALLBACKS
#define TOOL_ETID_VERSIONINFO NVTX_ETID_VERSIONINFO
#define TOOL_MODULE_CORE2 NVTX_CB_MODULE_CORE2
#define TOOL_CORE2_SIZE NVTX_CBID_CORE2_SIZE
#define TOOL_MARK NVTX_CBID_CORE2_DomainMarkEx
#define TOOL_PUSH NVTX_CBID_CORE2_DomainRangePushEx
#define TOOL_POP NVTX_CBID_CORE2_DomainRangePop
#define TOOL_DOMAIN NVTX_CBID_CORE2_DomainCreateA
#define TOOL_MEM_MODULE NVTX_EXT_MODULEID_MEM
#define TOOL_MEM_COMPAT NVTX_EXT_COMPATID_MEM
#define TOOL_HEAP_REGISTER NVTX3EXT_CBID_nvtxMemHeapRegister
#define TOOL_HEAP_UNREGISTER NVTX3EXT_CBID_nvtxMemHeapUnregister
#define TOOL_REGIONS_REGISTER NVTX3EXT_CBID_nvtxMemRegionsRegister
#define TOOL_REGIONS_UNREGISTER NVTX3EXT_CBID_nvtxMemRegionsUnregister
#define TOOL_ASCII NVTX_MESSAGE_TYPE_ASCII
#define TOOL_UINT64 NVTX_PAYLOAD_TYPE_UNSIGNED_INT64
#define TOOL_SUB_ALLOCATOR NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR
#define TOOL_VIRTUAL NVTX_MEM_TYPE_VIRTUAL_ADDRESS
#define TOOL_POINTER NVTX_MEM_REGION_REF_TYPE_POINTER
#define TOOL_VERSION NVTX_VERSION
typedef NvtxExportTableCallbacks tool_callbacks;
typedef NvtxExportTableVersionInfo tool_version;
typedef nvtxEventAttributes_t tool_event;
typedef nvtxExtModuleInfo_t tool_module;
typedef nvtxMemVirtualRangeDesc_t tool_range;
typedef nvtxMemHeapDesc_t tool_heap;
typedef nvtxMemRegionsRegisterBatch_t tool_register;
typedef nvtxMemRegionsUnregisterBatch_t tool_unregister;

#else

enum {
  TOOL_ETID_CALLBACKS = 1,
  TOOL_ETID_VERSIONINFO = 3,
  TOOL_MODULE_CORE2 = 5,
  TOOL_CORE2_SIZE = 16,
  TOOL_MARK = 1,
  TOOL_PUSH = 4,
  TOOL_POP = 5,
  TOOL_DOMAIN = 12,
  TOOL_MEM_MODULE = 1,
  TOOL_MEM_COMPAT = 0x0102,
  TOOL_HEAP_REGISTER = 0,
  TOOL_HEAP_UNREGISTER = 1,
  TOOL_REGIONS_REGISTER = 3,
  TOOL_REGIONS_UNREGISTER = 5,
  TOOL_ASCII = 1,
  TOOL_UINT64 = 1,
  TOOL_SUB_ALLOCATOR = 1,
  TOOL_VIRTUAL = 1,
  TOOL_POINTER = 1,
  TOOL_VERSION = 3
};

typedef struct {
  size_t struct_size;
  int (*GetModuleFunctionTable)(int module, void (****out_table)(void), unsigned* out_size);
} tool_callbacks;

typedef struct {
  size_t struct_size;
  uint32_t version;
  uint32_t reserved0;
  void (*SetInjectionNvtxVersion)(uint32_t version);
} tool_version;

typedef struct {
  uint16_t version;
  uint16_t size;
  uint32_t category;
  int32_t colorType;
  uint32_t color;
  int32_t payloadType;
  int32_t reserved0;
  union {
    uint64_t ullValue;
    double dValue;
  } payload;
  int32_t messageType;
  union {
    const char* ascii;
    void* registered;
  } message;
} tool_event;

typedef struct {
  size_t segmentId;
  size_t slotCount;
  intptr_t* functionSlots;
} tool_segment;

typedef struct {
  uint16_t nvtxVer;
  uint16_t structSize;
  uint16_t moduleId;
  uint16_t compatId;
  size_t segmentsCount;
  tool_segment* segments;
  intptr_t (*getExportFunction)(uint32_t);
  const void* extInfo;
} tool_module;

typedef struct {
  size_t size;
  const void* ptr;
} tool_range;

typedef struct {
  uint16_t extCompatID;
  uint16_t structSize;
  uint32_t reserved0;
  uint32_t usage;
  uint32_t type;
  size_t typeSpecificDescSize;
  const void* typeSpecificDesc;
  uint32_t category;
  uint32_t messageType;
  union {
    const char* ascii;
    void* registered;
  } message;
} tool_heap;

typedef struct {
  uint16_t extCompatID;
  uint16_t structSize;
  uint32_t regionType;
  void* heap;
  size_t regionCount;
  size_t regionDescElementSize;
  const void* regionDescElements;
  void** regionHandleElementsOut;
} tool_register;

typedef struct {
  uint16_t extCompatID;
  uint16_t structSize;
  uint32_t refType;
  size_t refCount;
  size_t refElementSize;
  const union tool_reference {
    const void* pointer;
    void* handle;
  } * refElements;
} tool_unregister;

#endif
#endif
