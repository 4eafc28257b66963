// Mapped memory: what a call may span, what is refused, what an address answers, and where two
// addresses of one handle meet.
#include <cstring>
#include <vector>

#include "beliefs.hpp"

namespace gpu {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGranule = 2 * kMiB;

std::string yes(bool is) { return is ? "yes" : "no"; }

/// A reservation with handles mapped side by side.
struct Range {
  Ptr at = 0;
  std::size_t size;
  std::vector<std::uint64_t> handles;
  explicit Range(std::size_t granules, std::size_t shown, bool open = true)
      : size(granules * kGranule) {
    MILLPOND_GPU(cuMemAddressReserve, &at, size, kGranule, Ptr{0}, 0ull);
    const Kind kind;
    for (std::size_t i = 0; i < shown; ++i) {
      handles.push_back(0);
      MILLPOND_GPU(cuMemCreate, &handles.back(), kGranule, &kind, 0ull);
      MILLPOND_GPU(cuMemMap, at + i * kGranule, kGranule, 0, handles.back(), 0ull);
    }
    const Access access;
    if (open && shown > 0) MILLPOND_GPU(cuMemSetAccess, at, shown * kGranule, &access, 1);
  }
  ~Range() {
    driver().cuCtxSynchronize();
    for (std::size_t i = 0; i < size; i += kGranule) driver().cuMemUnmap(at + i, kGranule);
    for (const auto handle : handles) driver().cuMemRelease(handle);
    driver().cuMemAddressFree(at, size);
  }
};

std::uint64_t free_now() {
  std::size_t free = 0, total = 0;
  MILLPOND_GPU(cuMemGetInfo_v2, &free, &total);
  return free;
}

void ranges(const Tell& tell) {
  const Access access;
  {
    Range r(4, 2, false);
    tell("cuMemSetAccess over two mappings",
         said(driver().cuMemSetAccess(r.at, 2 * kGranule, &access, 1)));
    tell("cuMemSetAccess over a mapping and a hole",
         said(driver().cuMemSetAccess(r.at + kGranule, 2 * kGranule, &access, 1)));
    tell("cuMemSetAccess where nothing is mapped",
         said(driver().cuMemSetAccess(r.at + 2 * kGranule, kGranule, &access, 1)));
    tell("cuMemMap where something is mapped",
         said(driver().cuMemMap(r.at, kGranule, 0, r.handles[1], 0)));
    tell("cuMemMap beside a mapping of the same handle",
         said(driver().cuMemMap(r.at + 2 * kGranule, kGranule, 0, r.handles[1], 0)));
    tell("cuMemUnmap of a mapping and a hole",
         said(driver().cuMemUnmap(r.at + 2 * kGranule, 2 * kGranule)));
    tell("cuMemUnmap where nothing is mapped",
         said(driver().cuMemUnmap(r.at + 3 * kGranule, kGranule)));
    tell("cuMemUnmap over several mappings", said(driver().cuMemUnmap(r.at, 2 * kGranule)));
  }
  {
    Range r(8, 0);
    const Kind kind;
    std::uint64_t large = 0;
    MILLPOND_GPU(cuMemCreate, &large, 2 * kGranule, &kind, 0ull);
    tell("cuMemMap of a part of a handle, from its start",
         said(driver().cuMemMap(r.at, kGranule, 0, large, 0)));
    driver().cuMemUnmap(r.at, kGranule);
    tell("cuMemMap of a part of a handle, by an offset",
         said(driver().cuMemMap(r.at, kGranule, kGranule, large, 0)));
    driver().cuMemUnmap(r.at, kGranule);
    MILLPOND_GPU(cuMemMap, r.at, 2 * kGranule, 0, large, 0ull);
    tell("cuMemSetAccess of a part of a mapping",
         said(driver().cuMemSetAccess(r.at, kGranule, &access, 1)));
    tell("cuMemUnmap of a part of a mapping", said(driver().cuMemUnmap(r.at, kGranule)));
    driver().cuMemUnmap(r.at, 2 * kGranule);
    driver().cuMemRelease(large);
  }
  {
    Range r(2, 1);
    tell("cuMemAddressFree of a range with a mapping",
         said(driver().cuMemAddressFree(r.at, r.size)));
  }
  {
    Ptr at = 0;
    MILLPOND_GPU(cuMemAddressReserve, &at, 4 * kGranule, kGranule, Ptr{0}, 0ull);
    tell("cuMemAddressFree of a part of a range", said(driver().cuMemAddressFree(at, kGranule)));
    driver().cuMemAddressFree(at, 4 * kGranule);
  }
  for (const std::size_t tib : {1, 4, 16, 64}) {
    Ptr at = 0;
    const int code = driver().cuMemAddressReserve(&at, tib << 40, kGranule, 0, 0);
    tell("cuMemAddressReserve of " + std::to_string(tib) + " TiB", said(code));
    if (code == 0) driver().cuMemAddressFree(at, tib << 40);
  }
  {
    Ptr at = 0;
    tell("cuMemAddressReserve of a size that is no multiple of the granule",
         said(driver().cuMemAddressReserve(&at, kGranule / 2, 0, 0, 0)));
    if (at != 0) driver().cuMemAddressFree(at, kGranule / 2);
    std::uint64_t handle = 0;
    const Kind kind;
    tell("cuMemCreate of a size that is no multiple of the granule",
         said(driver().cuMemCreate(&handle, kGranule / 2, &kind, 0)));
    if (handle != 0) driver().cuMemRelease(handle);
  }
}

void handles(const Tell& tell) {
  Range r(2, 1);
  const std::uint64_t before = free_now();
  MILLPOND_GPU(cuMemRelease, r.handles[0]);
  tell("cuMemRelease of a mapped handle gives memory back", yes(free_now() > before));
  std::uint64_t again = 0;
  tell("cuMemRetainAllocationHandle after the release",
       said(raw("cuMemRetainAllocationHandle", &again, reinterpret_cast<void*>(r.at))));
  if (again != 0) driver().cuMemRelease(again);
  MILLPOND_GPU(cuMemUnmap, r.at, kGranule);
  tell("and cuMemUnmap then does", yes(free_now() > before));
  r.handles.clear();
  // What memory a handle of 2 MiB takes.
  const std::uint64_t start = free_now();
  Range many(64, 64);
  tell("64 handles of 2 MiB, mapped, take exactly their size",
       yes(start - free_now() == 64 * kGranule));
}

void attributes(const Tell& tell) {
  Range r(2, 1);
  Ptr plain = 0;
  MILLPOND_GPU(cuMemAlloc_v2, &plain, kMiB);
  const struct {
    const char* name;
    int which;
  } all[] = {{"CONTEXT is known", 1},
             {"MEMORY_TYPE", 2},
             {"IS_MANAGED", 8},
             {"DEVICE_ORDINAL", 9},
             {"IS_LEGACY_CUDA_IPC_CAPABLE", 10},
             {"MAPPED", 13},
             {"ALLOWED_HANDLE_TYPES", 14},
             {"IS_GPU_DIRECT_RDMA_CAPABLE", 15},
             {"MEMPOOL_HANDLE is known", 17}};
  for (const auto& a : all) {
    const auto ask = [&](Ptr where) {
      unsigned long long value = 0;
      const int code = driver().cuPointerGetAttribute(&value, a.which, where);
      if (code != 0) return said(code);
      return std::strstr(a.name, "known") != nullptr ? yes(value != 0) : std::to_string(value);
    };
    tell(std::string("the attribute ") + a.name + ", mapped and cuMemAlloc",
         ask(r.at) + ", " + ask(plain));
  }
  char ipc[64];
  tell("cuIpcGetMemHandle of mapped memory",
       said(raw("cuIpcGetMemHandle", static_cast<void*>(ipc), r.at)));
  tell("an address within cuMemAlloc's memory, aligned to 512", yes(plain % 512 == 0));
  Ptr other = 0;
  MILLPOND_GPU(cuMemAlloc_v2, &other, 1);
  tell("cuMemAlloc of 1 byte, aligned to 512", yes(other % 512 == 0));
  driver().cuMemFree_v2(other);
  driver().cuMemFree_v2(plain);
  void* memory = std::aligned_alloc(4096, 4 * kMiB);
  std::memset(memory, 1, 4 * kMiB);
  tell("cuMemHostRegister", said(raw("cuMemHostRegister_v2", memory, 2 * kMiB, 0u)));
  tell("cuMemHostRegister of the same again",
       said(raw("cuMemHostRegister_v2", memory, 2 * kMiB, 0u)));
  tell("cuMemHostRegister of a range that overlaps",
       said(raw("cuMemHostRegister_v2", static_cast<void*>(static_cast<char*>(memory) + kMiB),
                2 * kMiB, 0u)));
  raw("cuMemHostUnregister", memory);
  tell("cuMemHostUnregister again", said(raw("cuMemHostUnregister", memory)));
  std::free(memory);
  tell("cuMemFree of an address within a block", said([] {
         Ptr at = 0;
         MILLPOND_GPU(cuMemAlloc_v2, &at, kMiB);
         const int code = driver().cuMemFree_v2(at + 512);
         driver().cuMemFree_v2(at);
         return code;
       }()));
}

void sharing(const Tell& tell) {
  Ptr at = 0;
  MILLPOND_GPU(cuMemAddressReserve, &at, 4 * kGranule, kGranule, Ptr{0}, 0ull);
  Kind kind;
  kind.handle_types = 1;
  std::uint64_t handles[2] = {};
  for (int i = 0; i < 2; ++i) {
    const int code = driver().cuMemCreate(&handles[i], kGranule, &kind, 0);
    if (i == 0) tell("cuMemCreate for descriptors", said(code));
    if (code != 0) return;
    MILLPOND_GPU(cuMemMap, at + i * kGranule, kGranule, 0, handles[i], 0ull);
  }
  const Access access;
  MILLPOND_GPU(cuMemSetAccess, at, 2 * kGranule, &access, 1);
  int fd = -1;
  tell("cuMemExportToShareableHandle",
       said(raw("cuMemExportToShareableHandle", &fd, handles[0], 1, 0ull)));
  std::uint64_t imported = 0;
  tell("cuMemImportFromShareableHandle in the same process",
       said(raw("cuMemImportFromShareableHandle", &imported,
                reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), 1)));
  if (imported != 0) {
    MILLPOND_GPU(cuMemMap, at + 2 * kGranule, kGranule, 0, imported, 0ull);
    MILLPOND_GPU(cuMemSetAccess, at + 2 * kGranule, kGranule, &access, 1);
    MILLPOND_GPU(cuMemsetD8Async, at, 7, 64, nullptr);
    MILLPOND_GPU(cuCtxSynchronize);
    unsigned char seen = 0;
    MILLPOND_GPU(cuMemcpyDtoHAsync_v2, &seen, at + 2 * kGranule, 1, nullptr);
    MILLPOND_GPU(cuCtxSynchronize);
    tell("the import shows the same memory", yes(seen == 7));
    tell("the imported handle is the same number", yes(imported == handles[0]));
  }
  int dmabuf = -1;
  tell("a dma-buf of one handle", said(raw("cuMemGetHandleForAddressRange",
                                           static_cast<void*>(&dmabuf), at, kGranule, 1, 0ull)));
  tell("a dma-buf of two handles",
       said(raw("cuMemGetHandleForAddressRange", static_cast<void*>(&dmabuf), at, 2 * kGranule, 1,
                0ull)));
  Kind plain;
  std::uint64_t other = 0;
  MILLPOND_GPU(cuMemCreate, &other, kGranule, &plain, 0ull);
  tell("cuMemExportToShareableHandle of a handle without descriptors",
       said(raw("cuMemExportToShareableHandle", &fd, other, 1, 0ull)));
  driver().cuMemRelease(other);
  Kind fabric;
  fabric.handle_types = 8;
  other = 0;
  tell("cuMemCreate for fabric handles", said(driver().cuMemCreate(&other, kGranule, &fabric, 0)));
  if (other != 0) driver().cuMemRelease(other);
  Kind rdma;
  rdma.rdma = 1;
  other = 0;
  tell("cuMemCreate for GPUDirect RDMA", said(driver().cuMemCreate(&other, kGranule, &rdma, 0)));
  if (other != 0) driver().cuMemRelease(other);
  for (int i = 0; i < 3; ++i) driver().cuMemUnmap(at + i * kGranule, kGranule);
  if (imported != 0) driver().cuMemRelease(imported);
  for (auto handle : handles) driver().cuMemRelease(handle);
  driver().cuMemAddressFree(at, 4 * kGranule);
}

}  // namespace

void mapped(const Tell& tell) {
  ranges(tell);
  handles(tell);
  attributes(tell);
  sharing(tell);
  // Copies over the border of two handles, and into one memory by two addresses.
  Range r(4, 2);
  Ptr plain = 0;
  MILLPOND_GPU(cuMemAlloc_v2, &plain, 2 * kGranule);
  tell("a copy over two handles",
       said(driver().cuMemcpyDtoDAsync_v2(plain, r.at, 2 * kGranule, nullptr)));
  tell("a memset over two handles",
       said(driver().cuMemsetD8Async(r.at + kMiB, 3, kGranule, nullptr)));
  tell("a synchronous copy over two handles to the host", said([&] {
         std::vector<char> host(2 * kGranule);
         return raw("cuMemcpyDtoH_v2", static_cast<void*>(host.data()), r.at, 2 * kGranule);
       }()));
  tell("a copy that ends beyond what is mapped",
       said(driver().cuMemcpyDtoDAsync_v2(plain, r.at + kGranule, kGranule + 512, nullptr)));
  tell("a copy that ends beyond cuMemAlloc's memory",
       said(driver().cuMemcpyDtoDAsync_v2(r.at, plain + kGranule, kGranule + 2 * kMiB + 512,
                                          nullptr)));
  driver().cuCtxSynchronize();
  driver().cuMemFree_v2(plain);
  const int left = driver().cuCtxSynchronize();
  tell("the context after these", said(left));
}

}  // namespace gpu
