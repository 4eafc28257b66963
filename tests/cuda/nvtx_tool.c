/* A tool as NVTX knows them: a shared library that a program loads by NVTX_INJECTION64_PATH. It
 * checks what it is told as strictly as it can, and writes it into the file NVTX_TOOL_LOG, a line
 * for each call. */

#include <stdio.h>
#include <stdlib.h>

#include "nvtx_abi.h"

static FILE* log_file;

#define SAY(...) (fprintf(log_file, __VA_ARGS__), fflush(log_file))
#define WANT(what) ((what) ? (void)0 : (void)SAY("wrong: %s\n", #what))

static int domain_place, heap_places[4096], heap_count;

static void* domain_create(const char* name) {
  SAY("domain %s\n", name);
  return &domain_place;
}

static void check_event(const void* domain, const tool_event* e) {
  WANT(domain == &domain_place);
  WANT(e->version == TOOL_VERSION && e->size == sizeof *e);
  WANT(e->payloadType == TOOL_UINT64 && e->messageType == TOOL_ASCII);
  WANT(e->category == 0 && e->colorType == 0 && e->reserved0 == 0);
}

static void mark(void* domain, const tool_event* e) {
  check_event(domain, e);
  SAY("mark %llu %s\n", (unsigned long long)e->payload.ullValue, e->message.ascii);
}

static int push(void* domain, const tool_event* e) {
  check_event(domain, e);
  SAY("push %llu %s\n", (unsigned long long)e->payload.ullValue, e->message.ascii);
  return 0;
}

static int pop(void* domain) {
  WANT(domain == &domain_place);
  SAY("pop\n");
  return 0;
}

static void* heap_register(void* domain, const tool_heap* h) {
  const tool_range* r = (const tool_range*)h->typeSpecificDesc;
  WANT(domain == &domain_place);
  WANT(h->extCompatID == TOOL_MEM_COMPAT && h->structSize == sizeof *h && h->reserved0 == 0);
  WANT(h->usage == TOOL_SUB_ALLOCATOR && h->type == TOOL_VIRTUAL);
  WANT(h->typeSpecificDescSize == sizeof *r && h->messageType == TOOL_ASCII);
  SAY("heap %d %llu %llu\n", heap_count, (unsigned long long)(uintptr_t)r->ptr,
      (unsigned long long)r->size);
  return &heap_places[heap_count++];
}

static int heap_number(const void* heap) { return (int)((const int*)heap - heap_places); }

static void heap_unregister(void* domain, void* heap) {
  WANT(domain == &domain_place);
  SAY("end_heap %d\n", heap_number(heap));
}

static void regions_register(void* domain, const tool_register* b) {
  WANT(domain == &domain_place);
  WANT(b->extCompatID == TOOL_MEM_COMPAT && b->structSize == sizeof *b &&
       b->regionType == TOOL_VIRTUAL);
  WANT(b->regionDescElementSize == sizeof(tool_range) && b->regionHandleElementsOut == NULL);
  for (size_t i = 0; i < b->regionCount; ++i) {
    const tool_range* r = (const tool_range*)b->regionDescElements + i;
    SAY("region %d %llu %llu\n", heap_number(b->heap), (unsigned long long)(uintptr_t)r->ptr,
        (unsigned long long)r->size);
  }
}

static void regions_unregister(void* domain, const tool_unregister* b) {
  WANT(domain == &domain_place);
  WANT(b->extCompatID == TOOL_MEM_COMPAT && b->structSize == sizeof *b &&
       b->refType == TOOL_POINTER);
  WANT(b->refElementSize == sizeof *b->refElements);
  for (size_t i = 0; i < b->refCount; ++i) {
    SAY("end_region %llu\n", (unsigned long long)(uintptr_t)b->refElements[i].pointer);
  }
}

#define EXPORTED __attribute__((visibility("default")))
typedef void (*function)(void);
typedef const void* (*get_table)(uint32_t id);

EXPORTED int InitializeInjectionNvtx2(get_table get);
EXPORTED int InitializeInjectionNvtxExtension(tool_module* module);

int InitializeInjectionNvtx2(get_table get) {
  const char* path = getenv("NVTX_TOOL_LOG");
  log_file = path ? fopen(path, "a") : NULL;
  if (log_file == NULL) return 0;
  const tool_version* version = (const tool_version*)get(TOOL_ETID_VERSIONINFO);
  const tool_callbacks* callbacks = (const tool_callbacks*)get(TOOL_ETID_CALLBACKS);
  WANT(get(77) == NULL);
  WANT(version->struct_size == sizeof *version && version->version == TOOL_VERSION);
  WANT(callbacks->struct_size == sizeof *callbacks);
  version->SetInjectionNvtxVersion(TOOL_VERSION);
  function** table = NULL;
  unsigned size = 0;
  WANT(callbacks->GetModuleFunctionTable(0, &table, &size) == 0);
  /* CORE, CUDA, OPENCL, CUDART, CORE2, SYNC: each slot is there, and the first is none. */
  static const unsigned sizes[] = {0, 16, 9, 15, 7, TOOL_CORE2_SIZE, 7};
  for (int module = 1; module < 7; ++module) {
    WANT(callbacks->GetModuleFunctionTable(module, &table, &size) == 1 && size == sizes[module]);
    for (unsigned i = 1; i < size; ++i) WANT(table[i] != NULL);
    WANT(table[0] == NULL && table[size] == NULL);
  }
  if (callbacks->GetModuleFunctionTable(TOOL_MODULE_CORE2, &table, &size) == 0) return 0;
  *table[TOOL_MARK] = (function)mark;
  *table[TOOL_PUSH] = (function)push;
  *table[TOOL_POP] = (function)pop;
  *table[TOOL_DOMAIN] = (function)domain_create;
  SAY("tool\n");
  return getenv("NVTX_TOOL_REFUSES") == NULL;
}

int InitializeInjectionNvtxExtension(tool_module* module) {
  WANT(module->nvtxVer == TOOL_VERSION && module->structSize == sizeof *module);
  WANT(module->moduleId == TOOL_MEM_MODULE && module->compatId == TOOL_MEM_COMPAT);
  WANT(module->segmentsCount == 1 && module->segments[0].slotCount > TOOL_REGIONS_UNREGISTER);
  if (getenv("NVTX_TOOL_HAS_NO_MEMORY") != NULL) return 0;
  intptr_t* slots = module->segments[0].functionSlots;
  slots[TOOL_HEAP_REGISTER] = (intptr_t)heap_register;
  slots[TOOL_HEAP_UNREGISTER] = (intptr_t)heap_unregister;
  slots[TOOL_REGIONS_REGISTER] = (intptr_t)regions_register;
  slots[TOOL_REGIONS_UNREGISTER] = (intptr_t)regions_unregister;
  return 1;
}
