// Which calls a stream capture forbids, and which end it, as this driver has it: each call beside a
// capture of each mode, by the thread that captures and by another, where the captured stream waits
// for the legacy one and where it does not.
#include <cstring>
#include <thread>

#include "beliefs.hpp"

namespace gpu {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGranule = 2 * kMiB;

/// What the calls work on, made anew for each of them while nothing is captured.
struct Things {
  Handle captured = nullptr, blocking = nullptr, other = nullptr, spare = nullptr, event = nullptr,
         recorded = nullptr, before = nullptr, made = nullptr;
  Ptr plain = 0, pooled = 0, managed = 0, reserved = 0, empty = 0, mapped = 0;
  std::uint64_t handle = 0, loose = 0;
  void *pinned = nullptr, *registered = nullptr, *pageable = nullptr, *pageable2 = nullptr;
  Handle pool = nullptr;

  explicit Things(unsigned kind) {
    MILLPOND_GPU(cuStreamCreate, &captured, kind);
    MILLPOND_GPU(cuStreamCreate, &blocking, 0u);
    MILLPOND_GPU(cuStreamCreate, &other, 1u);
    MILLPOND_GPU(cuStreamCreate, &spare, 1u);
    MILLPOND_GPU(cuEventCreate, &event, 2u);
    MILLPOND_GPU(cuEventCreate, &recorded, 0u);
    MILLPOND_GPU(cuEventCreate, &before, 0u);
    MILLPOND_GPU(cuEventRecord, before, other);
    MILLPOND_GPU(cuEventRecord, recorded, other);
    MILLPOND_GPU(cuMemAlloc_v2, &plain, kMiB);
    MILLPOND_GPU(cuMemAllocAsync, &pooled, kMiB, other);
    raw("cuMemAllocManaged", &managed, kMiB, 1u);
    MILLPOND_GPU(cuDeviceGetDefaultMemPool, &pool, 0);
    MILLPOND_GPU(cuMemAddressReserve, &reserved, 4 * kGranule, kGranule, Ptr{0}, 0ull);
    MILLPOND_GPU(cuMemAddressReserve, &empty, kGranule, kGranule, Ptr{0}, 0ull);
    const Kind kind_of;
    const Access access;
    MILLPOND_GPU(cuMemCreate, &handle, kGranule, &kind_of, 0ull);
    MILLPOND_GPU(cuMemCreate, &loose, kGranule, &kind_of, 0ull);
    MILLPOND_GPU(cuMemMap, reserved, kGranule, 0, handle, 0ull);
    MILLPOND_GPU(cuMemSetAccess, reserved, kGranule, &access, 1);
    mapped = reserved;
    MILLPOND_GPU(cuMemHostAlloc, &pinned, kMiB, 0u);
    registered = std::aligned_alloc(4096, kMiB);
    pageable = std::aligned_alloc(4096, kMiB);
    pageable2 = std::aligned_alloc(4096, kMiB);
    std::memset(registered, 1, kMiB);
    std::memset(pageable, 1, kMiB);
    std::memset(pageable2, 1, kMiB);
    raw("cuMemHostRegister_v2", registered, kMiB, 0u);
    MILLPOND_GPU(cuCtxSynchronize);
  }
  /// What a call of the table has given back already is refused here, and that is no matter.
  ~Things() {
    driver().cuCtxSynchronize();
    for (const std::size_t at : {0, 1, 2, 3})
      driver().cuMemUnmap(reserved + at * kGranule, kGranule);
    if (handle != 0) driver().cuMemRelease(handle);
    if (loose != 0) driver().cuMemRelease(loose);
    driver().cuMemAddressFree(reserved, 4 * kGranule);
    if (empty != 0) driver().cuMemAddressFree(empty, kGranule);
    if (plain != 0) driver().cuMemFree_v2(plain);
    if (pooled != 0) driver().cuMemFreeAsync(pooled, other);
    if (managed != 0) driver().cuMemFree_v2(managed);
    if (pinned != nullptr) driver().cuMemFreeHost(pinned);
    if (registered != nullptr) raw("cuMemHostUnregister", registered);
    raw("cuMemHostUnregister", pageable2);
    for (Handle e : {event, recorded, before}) {
      if (e != nullptr) raw("cuEventDestroy_v2", e);
    }
    if (made != nullptr) driver().cuStreamDestroy_v2(made);
    driver().cuCtxSynchronize();
    for (Handle s : {captured, blocking, other, spare}) {
      if (s != nullptr) driver().cuStreamDestroy_v2(s);
    }
    std::free(registered);
    std::free(pageable);
    std::free(pageable2);
  }
};

struct Call {
  const char* name;
  int (*call)(Things&);
};

template <class T>
T take(T& from) {
  T out = from;
  from = T{};
  return out;
}

/// The location of device 0, as cuMemPrefetchAsync_v2 takes it, by value.
struct Location {
  int type = 1;
  int id = 0;
};

void nothing(void*) {}

const Call kCalls[] = {
    {"cuMemAlloc",
     [](Things&) {
       Ptr at = 0;
       const int code = driver().cuMemAlloc_v2(&at, kMiB);
       return code;  // It stays: a capture may forbid giving it back.
     }},
    {"cuMemFree", [](Things& t) { return driver().cuMemFree_v2(take(t.plain)); }},
    {"cuMemAllocManaged",
     [](Things&) {
       Ptr at = 0;
       return raw("cuMemAllocManaged", &at, kMiB, 1u);
     }},
    {"cuMemAddressReserve",
     [](Things&) {
       Ptr at = 0;
       return driver().cuMemAddressReserve(&at, kGranule, kGranule, 0, 0);
     }},
    {"cuMemAddressFree",
     [](Things& t) { return driver().cuMemAddressFree(take(t.empty), kGranule); }},
    {"cuMemCreate",
     [](Things&) {
       const Kind kind;
       std::uint64_t handle = 0;
       const int code = driver().cuMemCreate(&handle, kGranule, &kind, 0);
       if (code == 0) driver().cuMemRelease(handle);
       return code;
     }},
    {"cuMemRelease", [](Things& t) { return driver().cuMemRelease(take(t.loose)); }},
    {"cuMemMap",
     [](Things& t) { return driver().cuMemMap(t.reserved + kGranule, kGranule, 0, t.loose, 0); }},
    {"cuMemSetAccess",
     [](Things& t) {
       const Access access;
       return driver().cuMemSetAccess(t.mapped, kGranule, &access, 1);
     }},
    {"cuMemUnmap", [](Things& t) { return driver().cuMemUnmap(t.mapped, kGranule); }},
    {"cuMemRetainAllocationHandle",
     [](Things& t) {
       std::uint64_t handle = 0;
       const int code =
           raw("cuMemRetainAllocationHandle", &handle, reinterpret_cast<void*>(t.mapped));
       if (code == 0) driver().cuMemRelease(handle);
       return code;
     }},
    {"cuMemGetAddressRange",
     [](Things& t) {
       Ptr base = 0;
       std::size_t size = 0;
       return driver().cuMemGetAddressRange_v2(&base, &size, t.mapped);
     }},
    {"cuPointerGetAttribute",
     [](Things& t) {
       unsigned value = 0;
       return driver().cuPointerGetAttribute(&value, 2, t.mapped);  // the type of memory
     }},
    {"cuMemGetInfo",
     [](Things&) {
       std::size_t free = 0, total = 0;
       return driver().cuMemGetInfo_v2(&free, &total);
     }},
    {"cuMemHostAlloc",
     [](Things&) {
       void* at = nullptr;
       return driver().cuMemHostAlloc(&at, kMiB, 0);
     }},
    {"cuMemFreeHost", [](Things& t) { return driver().cuMemFreeHost(take(t.pinned)); }},
    {"cuMemHostRegister",
     [](Things& t) { return raw("cuMemHostRegister_v2", t.pageable2, kMiB, 0u); }},
    {"cuMemHostUnregister", [](Things& t) { return raw("cuMemHostUnregister", t.registered); }},
    {"cuMemAllocAsync, another stream",
     [](Things& t) {
       Ptr at = 0;
       return driver().cuMemAllocAsync(&at, kMiB, t.other);
     }},
    {"cuMemFreeAsync, another stream",
     [](Things& t) { return driver().cuMemFreeAsync(take(t.pooled), t.other); }},
    {"cuMemPoolTrimTo", [](Things& t) { return raw("cuMemPoolTrimTo", t.pool, std::size_t{0}); }},
    {"cuStreamCreate", [](Things& t) { return driver().cuStreamCreate(&t.made, 1); }},
    {"cuStreamDestroy, another, idle",
     [](Things& t) { return driver().cuStreamDestroy_v2(take(t.spare)); }},
    {"cuStreamQuery, another", [](Things& t) { return raw("cuStreamQuery", t.other); }},
    {"cuStreamQuery, captured", [](Things& t) { return raw("cuStreamQuery", t.captured); }},
    {"cuStreamQuery, legacy", [](Things&) { return raw("cuStreamQuery", Handle{nullptr}); }},
    {"cuStreamSynchronize, another",
     [](Things& t) { return driver().cuStreamSynchronize(t.other); }},
    {"cuStreamSynchronize, captured",
     [](Things& t) { return driver().cuStreamSynchronize(t.captured); }},
    {"cuStreamSynchronize, legacy", [](Things&) { return driver().cuStreamSynchronize(nullptr); }},
    {"cuCtxSynchronize", [](Things&) { return driver().cuCtxSynchronize(); }},
    {"cuEventCreate",
     [](Things&) {
       Handle event = nullptr;
       return driver().cuEventCreate(&event, 2);
     }},
    {"cuEventDestroy", [](Things& t) { return raw("cuEventDestroy_v2", take(t.event)); }},
    {"cuEventRecord, another stream",
     [](Things& t) { return driver().cuEventRecord(t.event, t.other); }},
    {"cuEventRecord, a blocking stream",
     [](Things& t) { return driver().cuEventRecord(t.event, t.blocking); }},
    {"cuEventRecord, legacy stream",
     [](Things& t) { return driver().cuEventRecord(t.event, nullptr); }},
    {"cuEventQuery", [](Things& t) { return raw("cuEventQuery", t.recorded); }},
    {"cuEventQuery, never recorded", [](Things& t) { return raw("cuEventQuery", t.event); }},
    {"cuEventSynchronize", [](Things& t) { return driver().cuEventSynchronize(t.recorded); }},
    {"cuEventElapsedTime",
     [](Things& t) {
       float ms = 0;
       return driver().cuEventElapsedTime(&ms, t.before, t.recorded);
     }},
    {"cuStreamWaitEvent, another stream",
     [](Things& t) { return driver().cuStreamWaitEvent(t.other, t.recorded, 0); }},
    {"cuStreamWaitEvent, captured, of before",
     [](Things& t) { return driver().cuStreamWaitEvent(t.captured, t.recorded, 0); }},
    {"cuCtxRecordEvent",
     [](Things& t) {
       Handle context = nullptr;
       raw("cuCtxGetCurrent", &context);
       return raw("cuCtxRecordEvent", context, t.event);
     }},
    {"cuStreamGetId, another",
     [](Things& t) {
       unsigned long long id = 0;
       return raw("cuStreamGetId", t.other, &id);
     }},
    {"cuStreamIsCapturing, another",
     [](Things& t) {
       int status = 0;
       return raw("cuStreamIsCapturing", t.other, &status);
     }},
    {"cuStreamIsCapturing, legacy",
     [](Things&) {
       int status = 0;
       return raw("cuStreamIsCapturing", Handle{nullptr}, &status);
     }},
    {"cuMemsetD8Async, another stream",
     [](Things& t) { return driver().cuMemsetD8Async(t.plain, 1, 64, t.other); }},
    {"cuMemsetD8Async, a blocking stream",
     [](Things& t) { return driver().cuMemsetD8Async(t.plain, 1, 64, t.blocking); }},
    {"cuMemsetD8Async, legacy stream",
     [](Things& t) { return driver().cuMemsetD8Async(t.plain, 1, 64, nullptr); }},
    {"cuMemsetD8",
     [](Things& t) {
       return raw("cuMemsetD8_v2", t.plain, static_cast<unsigned char>(1), std::size_t{64});
     }},
    {"cuMemcpyHtoD",
     [](Things& t) { return raw("cuMemcpyHtoD_v2", t.plain, t.pageable, std::size_t{64}); }},
    {"cuMemcpyDtoD",
     [](Things& t) { return raw("cuMemcpyDtoD_v2", t.plain, t.mapped, std::size_t{64}); }},
    {"cuMemcpyHtoDAsync, pageable, another stream",
     [](Things& t) { return driver().cuMemcpyHtoDAsync_v2(t.plain, t.pageable, 64, t.other); }},
    {"cuMemcpyHtoDAsync, pageable, captured",
     [](Things& t) { return driver().cuMemcpyHtoDAsync_v2(t.plain, t.pageable, 64, t.captured); }},
    {"cuMemcpyDtoDAsync, captured",
     [](Things& t) { return driver().cuMemcpyDtoDAsync_v2(t.plain, t.mapped, 64, t.captured); }},
    {"cuLaunchHostFunc, another stream",
     [](Things& t) {
       return raw("cuLaunchHostFunc", t.other, &nothing, static_cast<void*>(nullptr));
     }},
    {"cuStreamAddCallback, another stream",
     [](Things& t) {
       return raw(
           "cuStreamAddCallback", t.other, +[](Handle, int, void*) {}, static_cast<void*>(nullptr),
           0u);
     }},
    {"cuMemAdvise", [](Things& t) { return raw("cuMemAdvise", t.managed, kMiB, 1, 0); }},
    {"cuMemPrefetchAsync, another stream",
     [](Things& t) { return raw("cuMemPrefetchAsync", t.managed, kMiB, 0, t.other); }},
    {"cuMemPrefetchAsync, legacy stream",
     [](Things& t) { return raw("cuMemPrefetchAsync", t.managed, kMiB, 0, Handle{nullptr}); }},
    {"cuIpcGetMemHandle",
     [](Things& t) {
       char handle[64];
       return raw("cuIpcGetMemHandle", static_cast<void*>(handle), t.plain);
     }},
};

struct Result {
  int status = 0;
  int capture = 0;  // of the captured stream afterwards: 0 none, 1 active, 2 broken
};

Result beside(const Call& call, int mode, bool elsewhere, unsigned kind) {
  Things things(kind);
  MILLPOND_GPU(cuStreamBeginCapture_v2, things.captured, static_cast<unsigned>(mode));
  Result out;
  if (elsewhere) {
    std::thread([&] {
      Handle context = nullptr;
      MILLPOND_GPU(cuDevicePrimaryCtxRetain, &context, 0);
      MILLPOND_GPU(cuCtxSetCurrent, context);
      out.status = call.call(things);
    }).join();
  } else {
    out.status = call.call(things);
  }
  raw("cuStreamIsCapturing", things.captured, &out.capture);
  Handle graph = nullptr;
  driver().cuStreamEndCapture(things.captured, &graph);
  if (graph != nullptr) driver().cuGraphDestroy(graph);
  return out;
}

}  // namespace

void capture_table(const Tell& tell) {
  const char* const modes[] = {"global", "thread-local", "relaxed"};
  for (const Call& call : kCalls) {
    for (const bool elsewhere : {false, true}) {
      std::string texts[2];
      for (const unsigned kind : {0u, 1u}) {
        std::string each[3];
        for (int mode = 0; mode < 3; ++mode) {
          const Result result = beside(call, mode, elsewhere, kind);
          each[mode] = said(result.status);
          if (result.capture != 1)
            each[mode] += result.capture == 2 ? " and broken" : " and no capture";
        }
        std::string& text = texts[kind];
        if (each[0] == each[1] && each[1] == each[2]) {
          text = each[0];
        } else {
          for (int mode = 0; mode < 3; ++mode)
            text += std::string(mode == 0 ? "" : ", ") + modes[mode] + " " + each[mode];
        }
      }
      tell(std::string("beside a capture of ") + (elsewhere ? "another thread: " : "its own: ") +
               call.name,
           texts[0] == texts[1] ? texts[0] : texts[0] + "; non-blocking: " + texts[1]);
    }
  }
}

}  // namespace gpu
