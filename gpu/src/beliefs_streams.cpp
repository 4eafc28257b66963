// Streams and events, and which calls wait for work that is queued.
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "beliefs.hpp"

namespace gpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGranule = 2 * kMiB;
constexpr auto kBusy = std::chrono::milliseconds(30);

std::string yes(bool is) { return is ? "yes" : "no"; }

void sleeping(void*) { std::this_thread::sleep_for(kBusy); }

const char kSpin[] = R"(
.version 7.0
.target sm_70
.address_size 64

.visible .entry spin(.param .u64 p_ns)
{
  .reg .pred %done;
  .reg .u64 %ns, %begin, %now;
  ld.param.u64 %ns, [p_ns];
  mov.u64 %begin, %globaltimer;
again:
  mov.u64 %now, %globaltimer;
  sub.u64 %now, %now, %begin;
  setp.lt.u64 %done, %now, %ns;
  @%done bra again;
  ret;
}
)";

Handle spin() {
  static const Handle found = [] {
    Handle module = nullptr, out = nullptr;
    MILLPOND_GPU(cuModuleLoadData, &module, kSpin);
    MILLPOND_GPU(cuModuleGetFunction, &out, module, "spin");
    return out;
  }();
  return found;
}

/// Makes the stream busy for `kBusy`, by a kernel or by a callback.
void busy(Handle stream, bool kernel) {
  if (!kernel) {
    raw("cuLaunchHostFunc", stream, &sleeping, static_cast<void*>(nullptr));
    return;
  }
  unsigned long long ns = std::chrono::duration_cast<std::chrono::nanoseconds>(kBusy).count();
  void* arguments[] = {&ns};
  MILLPOND_GPU(cuLaunchKernel, spin(), 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr);
}

struct Waiting {
  Handle stream = nullptr, other = nullptr, event = nullptr;
  Ptr plain = 0, pooled = 0, at = 0;
  std::uint64_t handle = 0;
  void *pinned = nullptr, *pageable = nullptr;
  Handle pool = nullptr;
};

struct Step {
  const char* name;
  void (*call)(Waiting&);
};

const Step kSteps[] = {
    {"cuMemAlloc",
     [](Waiting&) {
       Ptr at = 0;
       driver().cuMemAlloc_v2(&at, 4 * kMiB);
     }},
    {"cuMemFree of memory that nothing uses",
     [](Waiting& w) {
       driver().cuMemFree_v2(w.plain);
       w.plain = 0;
     }},
    {"cuMemAllocAsync in another stream",
     [](Waiting& w) {
       Ptr at = 0;
       driver().cuMemAllocAsync(&at, kMiB, w.other);
     }},
    {"cuMemFreeAsync in another stream",
     [](Waiting& w) {
       driver().cuMemFreeAsync(w.pooled, w.other);
       w.pooled = 0;
     }},
    {"cuMemPoolTrimTo", [](Waiting& w) { raw("cuMemPoolTrimTo", w.pool, std::size_t{0}); }},
    {"cuMemCreate and cuMemRelease",
     [](Waiting&) {
       const Kind kind;
       std::uint64_t handle = 0;
       driver().cuMemCreate(&handle, kGranule, &kind, 0);
       driver().cuMemRelease(handle);
     }},
    {"cuMemMap", [](Waiting& w) { driver().cuMemMap(w.at + kGranule, kGranule, 0, w.handle, 0); }},
    {"cuMemSetAccess",
     [](Waiting& w) {
       const Access access;
       driver().cuMemSetAccess(w.at, kGranule, &access, 1);
     }},
    {"cuMemUnmap of memory that nothing uses",
     [](Waiting& w) { driver().cuMemUnmap(w.at, kGranule); }},
    {"cuMemHostAlloc",
     [](Waiting&) {
       void* at = nullptr;
       driver().cuMemHostAlloc(&at, kMiB, 0);
     }},
    {"cuMemFreeHost of memory that nothing uses",
     [](Waiting& w) {
       driver().cuMemFreeHost(w.pinned);
       w.pinned = nullptr;
     }},
    {"cuMemHostRegister", [](Waiting& w) { raw("cuMemHostRegister_v2", w.pageable, kMiB, 0u); }},
    {"cuMemHostUnregister",
     [](Waiting& w) {
       raw("cuMemHostRegister_v2", w.pageable, kMiB, 0u);
       raw("cuMemHostUnregister", w.pageable);
     }},
    {"cuMemGetInfo",
     [](Waiting&) {
       std::size_t a = 0, b = 0;
       driver().cuMemGetInfo_v2(&a, &b);
     }},
    {"cuStreamCreate",
     [](Waiting&) {
       Handle s = nullptr;
       driver().cuStreamCreate(&s, 1);
     }},
    {"cuStreamDestroy of the busy stream",
     [](Waiting& w) {
       driver().cuStreamDestroy_v2(w.stream);
       w.stream = nullptr;
     }},
    {"cuStreamDestroy of an idle stream",
     [](Waiting& w) {
       driver().cuStreamDestroy_v2(w.other);
       w.other = nullptr;
     }},
    {"cuEventDestroy of a pending event",
     [](Waiting& w) {
       raw("cuEventDestroy_v2", w.event);
       w.event = nullptr;
     }},
    {"cuEventRecord again of a pending event",
     [](Waiting& w) { driver().cuEventRecord(w.event, w.other); }},
    {"cuEventRecord in the legacy stream",
     [](Waiting& w) { driver().cuEventRecord(w.event, nullptr); }},
    {"cuMemcpyHtoDAsync of pageable memory in another stream",
     [](Waiting& w) { driver().cuMemcpyHtoDAsync_v2(w.at, w.pageable, 64, w.other); }},
    {"cuMemcpyDtoHAsync to pageable memory in another stream",
     [](Waiting& w) { driver().cuMemcpyDtoHAsync_v2(w.pageable, w.at, 64, w.other); }},
    {"cuMemcpyDtoH", [](Waiting& w) { raw("cuMemcpyDtoH_v2", w.pageable, w.at, std::size_t{64}); }},
    {"cuMemcpyDtoD",
     [](Waiting& w) { raw("cuMemcpyDtoD_v2", w.at, w.at + kMiB, std::size_t{64}); }},
    {"cuMemsetD8",
     [](Waiting& w) {
       raw("cuMemsetD8_v2", w.at, static_cast<unsigned char>(1), std::size_t{64});
     }},
};

/// Whether the call lasts as long as the work does.
bool lasts(const Step& step, bool kernel, unsigned flags) {
  Waiting w;
  MILLPOND_GPU(cuStreamCreate, &w.stream, flags);
  MILLPOND_GPU(cuStreamCreate, &w.other, 1u);
  MILLPOND_GPU(cuEventCreate, &w.event, 2u);
  MILLPOND_GPU(cuMemAlloc_v2, &w.plain, kMiB);
  MILLPOND_GPU(cuMemAllocAsync, &w.pooled, kMiB, w.other);
  MILLPOND_GPU(cuMemHostAlloc, &w.pinned, kMiB, 0u);
  MILLPOND_GPU(cuDeviceGetDefaultMemPool, &w.pool, 0);
  MILLPOND_GPU(cuMemAddressReserve, &w.at, 2 * kGranule, kGranule, Ptr{0}, 0ull);
  const Kind kind;
  const Access access;
  MILLPOND_GPU(cuMemCreate, &w.handle, kGranule, &kind, 0ull);
  MILLPOND_GPU(cuMemMap, w.at, kGranule, 0, w.handle, 0ull);
  MILLPOND_GPU(cuMemSetAccess, w.at, kGranule, &access, 1);
  w.pageable = std::aligned_alloc(4096, kMiB);
  std::memset(w.pageable, 1, kMiB);
  if (kernel) spin();
  MILLPOND_GPU(cuCtxSynchronize);
  busy(w.stream, kernel);
  MILLPOND_GPU(cuEventRecord, w.event, w.stream);
  const auto begin = Clock::now();
  step.call(w);
  const bool out = Clock::now() - begin > kBusy / 2;
  driver().cuCtxSynchronize();
  driver().cuMemUnmap(w.at, kGranule);
  driver().cuMemUnmap(w.at + kGranule, kGranule);
  driver().cuMemRelease(w.handle);
  driver().cuMemAddressFree(w.at, 2 * kGranule);
  if (w.plain != 0) driver().cuMemFree_v2(w.plain);
  if (w.pooled != 0) driver().cuMemFreeAsync(w.pooled, w.other);
  if (w.pinned != nullptr) driver().cuMemFreeHost(w.pinned);
  raw("cuMemHostUnregister", w.pageable);
  if (w.event != nullptr) raw("cuEventDestroy_v2", w.event);
  driver().cuCtxSynchronize();
  if (w.stream != nullptr) driver().cuStreamDestroy_v2(w.stream);
  if (w.other != nullptr) driver().cuStreamDestroy_v2(w.other);
  std::free(w.pageable);
  return out;
}

}  // namespace

void waits(const Tell& tell) {
  for (const Step& step : kSteps) {
    std::string text = lasts(step, false, 1) ? "waits" : "does not wait";
    if (lasts(step, false, 0) != (text == "waits")) text += ", but for a blocking stream";
    tell(std::string("beside a callback: ") + step.name, text);
    if (driver().fake) continue;
    text = lasts(step, true, 1) ? "waits" : "does not wait";
    if (lasts(step, true, 0) != (text == "waits")) text += ", but for a blocking stream";
    tell(std::string("beside a kernel: ") + step.name, text);
  }
}

void streams(const Tell& tell) {
  Handle event = nullptr, timed = nullptr, stream = nullptr, other = nullptr;
  MILLPOND_GPU(cuEventCreate, &event, 2u);
  MILLPOND_GPU(cuEventCreate, &timed, 0u);
  MILLPOND_GPU(cuStreamCreate, &stream, 1u);
  MILLPOND_GPU(cuStreamCreate, &other, 0u);
  tell("cuEventQuery of an event that was never recorded", said(raw("cuEventQuery", event)));
  tell("cuEventSynchronize of an event that was never recorded",
       said(driver().cuEventSynchronize(event)));
  tell("cuStreamWaitEvent of an event that was never recorded",
       said(driver().cuStreamWaitEvent(stream, event, 0)));
  float ms = 0;
  tell("cuEventElapsedTime of events that were never recorded",
       said(driver().cuEventElapsedTime(&ms, timed, timed)));
  MILLPOND_GPU(cuEventRecord, event, stream);
  MILLPOND_GPU(cuEventRecord, timed, stream);
  MILLPOND_GPU(cuCtxSynchronize);
  tell("cuEventElapsedTime with an event without times",
       said(driver().cuEventElapsedTime(&ms, event, timed)));
  // Captured events and the stream of the capture.
  MILLPOND_GPU(cuStreamBeginCapture_v2, stream, 2u);
  MILLPOND_GPU(cuEventRecord, event, stream);
  tell("cuEventQuery of a captured event", said(raw("cuEventQuery", event)));
  tell("cuEventSynchronize of a captured event", said(driver().cuEventSynchronize(event)));
  int capture = 0;
  raw("cuStreamIsCapturing", stream, &capture);
  tell("the capture after that", std::to_string(capture));
  Handle graph = nullptr;
  driver().cuStreamEndCapture(stream, &graph);
  if (graph != nullptr) driver().cuGraphDestroy(graph);
  MILLPOND_GPU(cuStreamBeginCapture_v2, stream, 2u);
  MILLPOND_GPU(cuEventRecord, event, stream);
  graph = nullptr;
  MILLPOND_GPU(cuStreamEndCapture, stream, &graph);
  tell("cuEventQuery of a captured event after the capture", said(raw("cuEventQuery", event)));
  tell("cuStreamWaitEvent of it in another stream",
       said(driver().cuStreamWaitEvent(other, event, 0)));
  driver().cuGraphDestroy(graph);
  tell("cuEventQuery of it after its graph", said(raw("cuEventQuery", event)));
  tell("cuStreamBeginCapture of the legacy stream",
       said(driver().cuStreamBeginCapture_v2(nullptr, 2)));
  MILLPOND_GPU(cuStreamBeginCapture_v2, stream, 2u);
  tell("cuStreamDestroy of a stream that is captured", said(driver().cuStreamDestroy_v2(stream)));
  tell("the context after that", said(driver().cuCtxSynchronize()));
  // Names: whether a handle or a number comes again.
  std::vector<Handle> handles;
  std::vector<unsigned long long> ids;
  for (int i = 0; i < 50; ++i) {
    Handle s = nullptr;
    unsigned long long id = 0;
    MILLPOND_GPU(cuStreamCreate, &s, 1u);
    raw("cuStreamGetId", s, &id);
    handles.push_back(s);
    ids.push_back(id);
    MILLPOND_GPU(cuStreamDestroy_v2, s);
  }
  bool handle_again = false, id_again = false, grows = true;
  for (std::size_t i = 1; i < ids.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      handle_again = handle_again || handles[i] == handles[j];
      id_again = id_again || ids[i] == ids[j];
    }
    grows = grows && ids[i] > ids[i - 1];
  }
  tell("the handle of an ended stream comes again", yes(handle_again));
  tell("the id of an ended stream comes again", yes(id_again));
  tell("ids of streams grow", yes(grows));
  unsigned long long legacy = 0, second = 0;
  raw("cuStreamGetId", Handle{nullptr}, &legacy);
  raw("cuStreamGetId", reinterpret_cast<Handle>(std::intptr_t{1}), &second);
  tell("the ids of the legacy stream by 0 and by 1 are equal", yes(legacy == second));
  // The work of a stream that ends is done all the same, and an event of it says when.
  Handle brief = nullptr;
  MILLPOND_GPU(cuStreamCreate, &brief, 1u);
  busy(brief, false);
  MILLPOND_GPU(cuEventRecord, event, brief);
  MILLPOND_GPU(cuStreamDestroy_v2, brief);
  tell("cuEventQuery of an event in a stream that ended with work",
       said(raw("cuEventQuery", event)));
  MILLPOND_GPU(cuEventSynchronize, event);
  tell("and after cuEventSynchronize", said(raw("cuEventQuery", event)));
  // cuCtxRecordEvent: whether it sees work of all streams, and of one that has ended.
  Handle context = nullptr;
  raw("cuCtxGetCurrent", &context);
  busy(other, false);
  const int all = raw("cuCtxRecordEvent", context, event);
  tell("cuCtxRecordEvent", said(all));
  if (all == 0) tell("its event while a stream is busy", said(raw("cuEventQuery", event)));
  MILLPOND_GPU(cuCtxSynchronize);
  MILLPOND_GPU(cuStreamCreate, &brief, 1u);
  busy(brief, false);
  MILLPOND_GPU(cuStreamDestroy_v2, brief);
  if (raw("cuCtxRecordEvent", context, event) == 0) {
    tell("its event while only an ended stream is busy", said(raw("cuEventQuery", event)));
  }
  MILLPOND_GPU(cuStreamCreate, &brief, 1u);
  busy(brief, false);
  MILLPOND_GPU(cuStreamDestroy_v2, brief);
  const auto begin = Clock::now();
  MILLPOND_GPU(cuCtxSynchronize);
  tell("cuCtxSynchronize waits for a stream that ended with work",
       yes(Clock::now() - begin > kBusy / 2));
  // The legacy stream and the others.
  busy(other, false);
  tell("cuStreamQuery of the legacy stream while a blocking stream is busy",
       said(raw("cuStreamQuery", Handle{nullptr})));
  MILLPOND_GPU(cuEventRecord, event, Handle{nullptr});
  tell("an event in the legacy stream then", said(raw("cuEventQuery", event)));
  MILLPOND_GPU(cuCtxSynchronize);
  MILLPOND_GPU(cuStreamCreate, &brief, 1u);
  busy(brief, false);
  MILLPOND_GPU(cuEventRecord, event, Handle{nullptr});
  tell("an event in the legacy stream while a non-blocking stream is busy",
       said(raw("cuEventQuery", event)));
  MILLPOND_GPU(cuCtxSynchronize);
  MILLPOND_GPU(cuStreamCreate, &stream, 0u);
  busy(stream, false);
  MILLPOND_GPU(cuStreamDestroy_v2, stream);
  MILLPOND_GPU(cuEventRecord, event, Handle{nullptr});
  tell("an event in the legacy stream while an ended blocking stream is busy",
       said(raw("cuEventQuery", event)));
  MILLPOND_GPU(cuCtxSynchronize);
  for (Handle s : {other, brief}) driver().cuStreamDestroy_v2(s);
  for (Handle e : {event, timed}) raw("cuEventDestroy_v2", e);
}

}  // namespace gpu
