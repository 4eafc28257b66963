// Millpond as PyTorch's own kind of allocator: a c10::cuda::CUDACachingAllocator::CUDAAllocator, so
// that torch.cuda.memory_stats(), memory_summary(), memory_snapshot(), MemPool and OutOfMemoryError
// work as they do with PyTorch's. Built on the user's machine against the PyTorch that is there
// (millpond_torch.build_native), since PyTorch's classes differ between releases.
//
// It calls libmillpond-torch.so, which has all state; this file only translates. holdings.hpp has
// what Millpond holds, trace.hpp what PyTorch knows of what happened, oom.hpp who hears of a lack
// of memory, sharing.hpp what goes to other processes, others.hpp which pools are not Millpond's.
#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <iterator>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "compat.hpp"
#include "holdings.hpp"
#include "library.hpp"
#include "numbers.hpp"
#include "oom.hpp"
#include "others.hpp"
#include "pluggable.hpp"
#include "sharing.hpp"
#include "trace.hpp"

namespace {

using namespace c10::cuda::CUDACachingAllocator;
using c10::DataPtr;
using c10::DeviceIndex;
using c10::MempoolId_t;
using c10::CachingDeviceAllocator::DeviceStats;
using millpond_torch::Block;
using millpond_torch::current_device;
using millpond_torch::device_of;
using millpond_torch::Library;
using millpond_torch::note;
using millpond_torch::RejectionObserver;
using millpond_torch::Serving;

Library millpond;
auto* const trace =
    new millpond_torch::Trace(millpond);  // never destroyed: tensors end with the process
const millpond_torch::Holdings holdings(millpond, *trace);
auto* const oom = new millpond_torch::OutOfMemory(millpond, holdings, *trace);
auto* const others = new millpond_torch::Others;
auto* const sharing = new millpond_torch::Sharing<Library>(millpond);
/// A history that PyTorch sets no bound to; 64 bytes each, of which memory has what was written.
constexpr std::size_t kMostEvents = std::size_t{1} << 22;
/// How a handle for other processes begins that PyTorch's own allocator has made.
constexpr char kOfOthers[] = "MPOTHER1";

void release(void* ptr);

/// The bytes of the block that begins there.
std::size_t size_of(void* ptr) {
  std::size_t size = 0;
  (void)millpond.base_alloc_(ptr, &size);
  return size;
}

/// Tells PyTorch's profiler of a block that has come, or gone (a negative size).
void report(void* ptr, std::int64_t size, DeviceIndex device) {
  millpond_torch::Stats s{};
  s.struct_size = sizeof s;
  (void)millpond.stats_(device, &s);
  c10::reportMemoryUsageToProfiler(ptr, size, s.allocated_bytes.current, s.reserved_bytes.current,
                                   c10::Device(c10::DeviceType::CUDA, device));
}

/// PyTorch's allocator, where the memory is of a pool of its own; NULL otherwise.
CUDAAllocator* other_of(void* ptr) {
  CUDAAllocator* const other = others->native();
  return other != nullptr && ptr != nullptr && millpond.requested_(ptr) == 0 ? other : nullptr;
}

class Allocator final : public CUDAAllocator {
 public:
  // ---- memory ----

  DataPtr allocate(std::size_t size) override {
    const DeviceIndex device = current_device();
    if (!caches_) {
      void* plain = size != 0 ? take_plain(size) : nullptr;
      return {plain, plain, &release_plain, c10::Device(c10::DeviceType::CUDA, device)};
    }
    return take(size, device, c10::cuda::getCurrentCUDAStream(device));
  }
  c10::DeleterFnPtr raw_deleter() const override { return caches_ ? &release : &release_plain; }
  void* raw_alloc(std::size_t size) override {
    const DeviceIndex device = current_device();
    if (!caches_) return size != 0 ? take_plain(size) : nullptr;
    return take(size, device, c10::cuda::getCurrentCUDAStream(device)).release_context();
  }
  void* raw_alloc_with_stream(std::size_t size, cudaStream_t stream) override {
    if (!caches_) return size != 0 ? take_plain(size) : nullptr;
    return take(size, current_device(), stream).release_context();
  }
  void raw_delete(void* ptr) override {
    if (!caches_) return release_plain(ptr);
    if (CUDAAllocator* other = other_of(ptr)) return other->raw_delete(ptr);
    release(ptr);
  }
  void copy_data(void* to, const void* from, std::size_t size) const override {
    C10_CUDA_CHECK(cudaMemcpy(to, from, size, cudaMemcpyDeviceToDevice));
  }
  void* getBaseAllocation(void* ptr, std::size_t* size) override {
    if (CUDAAllocator* other = other_of(ptr)) return other->getBaseAllocation(ptr, size);
    return millpond.base_alloc_(ptr, size);
  }
  void recordStream(const DataPtr& ptr, c10::cuda::CUDAStream stream) override {
    if (ptr.get() == nullptr || ptr.get_deleter() != &release) return;
    if (other_of(ptr.get()) != nullptr) {
      return others->record_stream(ptr.get(), ptr.device(), stream);
    }
    millpond.record_stream_(ptr.get(), stream.stream());
  }
  using CUDAAllocator::recordStream;

  // ---- the whole ----

  void init(int device_count) override {
    millpond.init_(device_count);
    initialized_ = true;
  }
  bool initialized() override { return initialized_; }
  /// Without the cache, for programs that look for their own mistakes: memory straight from CUDA.
  void enable(bool cache) override { caches_ = cache; }
  bool isEnabled() const override { return caches_; }
  std::string name() override { return "millpond"; }
  /// Of a pool: where it has ended, as MemPool asks when it goes. What a living one has is its own.
  void emptyCache(MempoolId_t pool) override {
    sharing->close_late();
    const bool noted = trace->enabled();
    millpond_torch::Trace::Call call{};
    if (noted) note([&] { call = trace->begin(true); });
    if (pool == MempoolId_t{0, 0}) {
      millpond.reset_();
    } else {
      millpond.sweep_();
    }
    others->empty_cache(pool);
    if (noted) note([&] { trace->called(std::move(call)); });
  }
  double getMemoryFraction(DeviceIndex device) override {
    const auto numbers = holdings.numbers(device);
    const std::uint64_t limit = numbers.at("limit_bytes");
    std::uint64_t total = 0, free = 0;
    check(millpond.memory_(device, &total, &free));
    return limit == 0 ? 1.0 : static_cast<double>(limit) / static_cast<double>(total);
  }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    millpond.memory_fraction_(fraction, device);
  }
#if MILLPOND_TORCH_FROM(2, 11)
  std::vector<StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex) override { return {}; }
#endif
  void cacheInfo(DeviceIndex device, std::size_t* largest) override {
    *largest = holdings.numbers(device).at("largest_cached_bytes");
  }

  // ---- numbers ----

  DeviceStats getDeviceStats(DeviceIndex device) override {
    DeviceStats stats = millpond_torch::device_stats(holdings.numbers(device));
    others->add_to(stats, device);
    return stats;
  }
  void resetAccumulatedStats(DeviceIndex device) override {
    check(millpond.reset_accumulated_(device));
    oom->reset(device);
    others->reset_accumulated(device);
  }
  void resetPeakStats(DeviceIndex device) override {
    check(millpond.reset_peaks_(device));
    if (CUDAAllocator* other = others->native()) other->resetPeakStats(device);
  }

  SnapshotInfo snapshot(MempoolId_t pool) { return snapshot(pool, true); }  // in 2.9
  SnapshotInfo snapshot(MempoolId_t pool, bool traces) MILLPOND_TORCH_MIDDLE {
    SnapshotInfo out{};
    out.config_metadata = others->settings();
    const DeviceIndex count = c10::cuda::device_count();
    out.device_traces.resize(static_cast<std::size_t>(count));
    for (DeviceIndex device = 0; device < count; ++device) {
      holdings.add_segments(out, device, pool);
    }
    if (CUDAAllocator* other = others->native()) {
      SnapshotInfo theirs = millpond_torch::snapshot_of(*other, pool);
      std::move(theirs.segments.begin(), theirs.segments.end(), std::back_inserter(out.segments));
    }
    if (!traces || !trace->enabled()) return out;
    for (DeviceIndex device = 0; device < count; ++device) {
      out.device_traces[static_cast<std::size_t>(device)] =
          trace->entries(device, [](DeviceIndex of, auto each, void* user_data) {
            check(millpond.history_read_(of, each, user_data));
          });
      // For the next one to tell, as PyTorch does it.
      std::size_t active = 0;
      for (const auto& segment : out.segments) {
        if (segment.device == device) active += segment.active_size;
      }
      trace->mark(TraceEntry::SNAPSHOT, device, 0, active, "");
    }
    out.external_annotations = trace->annotations();
    return out;
  }

  // ---- pools and graphs ----

  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override {
    const auto accepts = [filter](void* stream) {
      return filter(static_cast<cudaStream_t>(stream));
    };
    if (!others->begin(device, pool, filter)) {
      others->begun_beside(device, pool);
      try {
        return millpond.begin_allocate_to_pool_(device, pool, accepts);
      } catch (...) {
        others->ended_beside(device, pool);
        throw;
      }
    }
    try {
      millpond.begin_elsewhere_(device, pool, accepts);
    } catch (...) {
      others->end(device, pool);
      others->release(device, pool);
      throw;
    }
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
    // Millpond first: it sends requests there.
    millpond.end_allocate_to_pool_(device, pool);
    if (others->of(device, pool) != nullptr) return others->end(device, pool);
    others->ended_beside(device, pool);
  }
  void markCaptureBegin(DeviceIndex device) MILLPOND_TORCH_LATE { others->capture(device, true); }
  void markCaptureEnd(DeviceIndex device) MILLPOND_TORCH_LATE { others->capture(device, false); }
  void releasePool(DeviceIndex device, MempoolId_t pool) override {
    const bool elsewhere = others->of(device, pool) != nullptr;
    if (elsewhere) others->release(device, pool);
    millpond.release_pool_(device, pool);
    // Of a capture that broke PyTorch does not tell the end up to 2.11.
    if (!elsewhere && millpond.pool_uses_(device, pool.first, pool.second) == 0) {
      others->ended_beside(device, pool);
    }
  }
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override {
    if (CUDAAllocator* other = others->of(device, pool)) {
      return other->getPoolUseCount(device, pool);
    }
    return millpond.pool_uses_(device, pool.first, pool.second);
  }
#if MILLPOND_TORCH_FROM(2, 11)
  using Other = std::shared_ptr<CUDAAllocator>;
#else
  using Other = CUDAAllocator*;
#endif
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, Other allocator) override {
    if (allocator != nullptr || others->of(device, pool) != nullptr) {
      return others->take(device, pool, std::move(allocator));
    }
    check(millpond.pool_hold_(device, pool.first, pool.second));
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool) {
    setUseOnOOM(device, pool, true);
  }  // in 2.9
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use) MILLPOND_TORCH_MIDDLE {
    if (others->of(device, pool) != nullptr) return others->serve_others(device, pool, use);
    check(millpond.pool_serves_others_(device, pool.first, pool.second, use));
  }
#if MILLPOND_TORCH_FROM(2, 11)
  /// Millpond has no segments to keep whole: such a pool is PyTorch's from its beginning on.
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override {
    if (others->of(device, pool) == nullptr) {
      TORCH_CHECK(getPoolUseCount(device, pool) == 1, "no_split is set before a pool is used");
      others->take(device, pool, Other{});
      others->serve_others(device, pool, millpond.pool_is_spare_(device, pool.first, pool.second));
      millpond.release_pool_(device, pool);
    }
    others->native()->setNoSplit(device, pool);
  }
#endif

  /// A layout of a pool's blocks, as torch.compile's trees of graphs take them.
  struct Checkpoint final : AllocatorState {
    explicit Checkpoint(MempoolId_t of) : pool(of) {}
    Checkpoint(const Checkpoint&) = delete;
    Checkpoint& operator=(const Checkpoint&) = delete;
    ~Checkpoint() override { millpond.checkpoint_destroy_(handle); }
    MempoolId_t pool;
    void* handle = nullptr;
  };
  std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex device,
                                                     MempoolId_t pool) override {
    if (CUDAAllocator* other = others->of(device, pool)) {
      return other->getCheckpointState(device, pool);
    }
    auto state = std::make_shared<Checkpoint>(pool);
    check(millpond.checkpoint_(device, pool.first, pool.second, &state->handle));
    return state;
  }
  /// PyTorch counts every block that lived before as freed, and every one that lives afterwards as
  /// allocated; those that stay are both.
  CheckpointDelta setCheckpointPoolState(DeviceIndex device,
                                         std::shared_ptr<AllocatorState> state) override {
    const auto* checkpoint = dynamic_cast<const Checkpoint*>(state.get());
    if (checkpoint == nullptr && others->native() != nullptr) {
      auto delta = others->native()->setCheckpointPoolState(device, std::move(state));
      for (DataPtr& made : delta.dataptrs_allocd) made = block(made.release_context(), device);
      return delta;
    }
    TORCH_CHECK(checkpoint != nullptr, "the checkpoint is not one of Millpond");
    const MempoolId_t pool = checkpoint->pool;
    CheckpointDelta delta;
    std::unordered_set<void*> gone;
    for (const Block& b : holdings.live(device)) {
      if (MempoolId_t{b.pool_first, b.pool_second} != pool) continue;
      delta.ptrs_freed.push_back(reinterpret_cast<void*>(b.address));
      gone.insert(delta.ptrs_freed.back());
    }
    check(millpond.restore_(device, pool.first, pool.second, checkpoint->handle));
    for (const Block& b : holdings.live(device)) {
      if (MempoolId_t{b.pool_first, b.pool_second} != pool) continue;
      auto* ptr = reinterpret_cast<void*>(b.address);
      gone.erase(ptr);
      delta.dataptrs_allocd.emplace_back(ptr, ptr, &release,
                                         c10::Device(c10::DeviceType::CUDA, device));
    }
    trace->forget({gone.begin(), gone.end()});
    return delta;
  }
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    if (CUDAAllocator* other = others->of(device, pool)) {
      return other->checkPoolLiveAllocations(device, pool, expected);
    }
    TORCH_CHECK(millpond.pool_uses_(device, pool.first, pool.second) != 0,
                "there is no such pool on GPU ", static_cast<int>(device));
    std::size_t found = 0;
    for (const Block& b : holdings.live(device)) {
      if (MempoolId_t{b.pool_first, b.pool_second} != pool) continue;
      if (expected.count(reinterpret_cast<void*>(b.address)) == 0) return false;
      ++found;
    }
    return found == expected.size();
  }

  // ---- several devices ----

  void enablePeerAccess(DeviceIndex device, DeviceIndex peer) override {
    c10::cuda::CUDAGuard guard(device);
    const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
    } else {
      C10_CUDA_CHECK(error);
    }
    others->admit(device, peer);
  }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device,
                          std::size_t size, cudaStream_t stream, bool reaches) override {
    return reaches || to_device == from_device
               ? cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, stream)
               : cudaMemcpyPeerAsync(to, to_device, from, from_device, size, stream);
  }

  // ---- who wants to be told ----

  void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override {
    oom->attach(std::move(observer));
  }
  void attachOomRejectionObserver(RejectionObserver observer) MILLPOND_TORCH_LATE {
    oom->attach_rejection(std::move(observer));
  }
  /// Hears of requests, frees and segments, from the thread that does it.
  void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override {
    others->track(tracker);
    trace->track(std::move(tracker));
    check(millpond.on_segments_([](int device, bool added, void* ptr, std::size_t size, bool maps) {
      note([&] {  // Millpond calls this
        trace->tell(added  ? (maps ? TraceEntry::SEGMENT_MAP : TraceEntry::SEGMENT_ALLOC)
                    : maps ? TraceEntry::SEGMENT_UNMAP
                           : TraceEntry::SEGMENT_FREE,
                    static_cast<DeviceIndex>(device), reinterpret_cast<std::size_t>(ptr), size,
                    nullptr);
      });
    }));
  }
  bool isHistoryEnabled() override { return trace->enabled(); }
  void recordHistory(bool enabled, CreateContextFn recorder, std::size_t most, RecordContext when,
                     bool clear) {
    recordHistory(enabled, recorder, most, when, clear, {});  // in 2.9
  }
  void recordHistory(bool enabled, CreateContextFn recorder, std::size_t most, RecordContext when,
                     bool clear, const std::vector<std::string>& skipped) MILLPOND_TORCH_MIDDLE {
    TORCH_CHECK(!enabled || when == RecordContext::NEVER || recorder != nullptr,
                "there is nobody to record the frames");
    most = std::min(most, kMostEvents);
    const bool before = trace->enabled();
    try {
      // PyTorch's entries are up to two of an event.
      if (enabled) check(millpond.history_start_(std::max<std::size_t>(most, 2)));
      trace->record(enabled, recorder, most, when, clear, skipped);
    } catch (...) {
      if (enabled && !before) millpond.history_stop_();
      throw;
    }
    if (!enabled) millpond.history_stop_();
  }
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* ptr) MILLPOND_TORCH_LATE {
    return trace->context_of(ptr);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& all) override {
    if (trace->enabled()) trace->annotate(current_device(), all);
  }
  void pushCompileContext(std::string& text) override {
    millpond_torch::words().compiling.push_back(text);
  }
  void popCompileContext() override {
    auto& all = millpond_torch::words().compiling;
    if (!all.empty()) all.pop_back();
  }
  bool supportsUserMetadata() MILLPOND_TORCH_LATE { return true; }
  void setUserMetadata(const std::string& text) MILLPOND_TORCH_MIDDLE {
    millpond_torch::words().metadata = text;
  }
  std::string getUserMetadata() MILLPOND_TORCH_MIDDLE { return millpond_torch::words().metadata; }
  void annotateMemory(const void* ptr, const std::string& text) MILLPOND_TORCH_LATE {
    const DeviceIndex device = device_of(ptr);
    millpond_torch::with_annotate<TraceEntry>([&](auto action) {
      trace->mark(action, device >= 0 ? device : current_device(),
                  reinterpret_cast<std::size_t>(ptr), 0, text);
    });
  }

  // ---- other processes ----

  ShareableHandle shareIpcHandle(void* ptr) override {
    if (CUDAAllocator* other = other_of(ptr)) {
      ShareableHandle theirs = other->shareIpcHandle(ptr);
      theirs.handle.insert(0, kOfOthers);
      return theirs;
    }
    std::size_t size = 0;
    void* base = millpond.base_alloc_(ptr, &size);
    return {static_cast<char*>(ptr) - static_cast<char*>(base), sharing->share(base)};
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    if (handle.rfind(kOfOthers, 0) == 0) {
      return others->start()->getIpcDevPtr(handle.substr(sizeof kOfOthers - 1));
    }
    return sharing->open(current_device(), handle);
  }

 private:
  static void check(int status) { TORCH_CHECK(status == 0, millpond.last_error_()); }

  static DataPtr block(void* ptr, DeviceIndex device) {
    return {ptr, ptr, &release, c10::Device(c10::DeviceType::CUDA, device)};
  }

  DataPtr take(std::size_t size, DeviceIndex device, cudaStream_t stream) {
    if (size == 0) return block(nullptr, device);
    TORCH_CHECK_WITH(OutOfMemoryError, size < (std::size_t{1} << 60),
                     "CUDA out of memory. Tried to allocate more than 1EB memory.");
    if (CUDAAllocator* other = others->native()) {
      if (millpond.serving_(device, stream) == Serving::kElsewhere) {
        return take_of(*other, size, device, stream);
      }
    }
    const bool profiled = c10::memoryProfilingEnabled();
    if (!trace->watches() && !profiled) return find(size, device, stream);
    auto call = trace->begin(false);
    DataPtr found = find(size, device, stream, call.context);
    void* const ptr = found.get();  // given back if what follows throws
    if (other_of(ptr) != nullptr) return found;
    if (trace->watches()) trace->allocated(std::move(call), device, ptr, size, stream);
    if (profiled) report(ptr, static_cast<std::int64_t>(size_of(ptr)), device);
    return found;
  }

  /// From the pool of PyTorch's allocator that is begun. It gives back what it caches itself before
  /// it fails, but not what Millpond caches.
  static DataPtr take_of(CUDAAllocator& other, std::size_t size, DeviceIndex device,
                         cudaStream_t stream) {
    try {
      return block(other.raw_alloc_with_stream(size, stream), device);
    } catch (const c10::OutOfMemoryError&) {
      others->again(device);
    }
    millpond.reset_();
    try {
      return block(other.raw_alloc_with_stream(size, stream), device);
    } catch (const c10::OutOfMemoryError&) {
      oom->tell(size, device);
      throw;
    }
  }

  static void* take_plain(std::size_t size) {
    void* ptr = nullptr;
    C10_CUDA_CHECK(cudaMalloc(&ptr, size));
    return ptr;
  }
  static void release_plain(void* ptr) {
    if (ptr != nullptr) C10_CUDA_CHECK_WARN(cudaFree(ptr));
  }

  DataPtr find(std::size_t size, DeviceIndex device, cudaStream_t stream,
               const millpond_torch::Context& context = nullptr) {
    bool lacking = false;
    void* ptr = request(size, device, stream, lacking);
    if (ptr != nullptr) return block(ptr, device);
    std::string why = millpond.last_error_();
    if (lacking) {
      // What this process holds of others, and PyTorch's own way to find more: what it holds for
      // other processes, and what its allocator caches.
      bool freed = sharing->close_late();
      for (const auto& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
        freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
      }
      freed |= others->give_back(device);
      if (freed) {
        millpond.avert_oom_(device);
        ptr = request(size, device, stream, lacking);
        if (ptr != nullptr) return block(ptr, device);
        why = millpond.last_error_();
      }
    }
    // A request of a pool's own, which may be of a graph, has no use for memory of another one.
    if (lacking && others->native() != nullptr &&
        millpond.serving_(device, stream) == Serving::kDefault) {
      ptr = others->spare(size, device, stream);
      if (ptr != nullptr) {
        millpond.avert_oom_(device);
        return block(ptr, device);
      }
    }
    TORCH_CHECK(lacking, "Millpond cannot allocate ", size, " bytes: ", why);
    oom->fail(size, device, stream, context, why);
  }

  static void* request(std::size_t size, DeviceIndex device, cudaStream_t stream, bool& lacking) {
    return millpond.request_(static_cast<ssize_t>(size), device, stream, &lacking);
  }

  std::atomic<bool> initialized_{false};
  std::atomic<bool> caches_{true};
};

void release(void* ptr) {
  if (ptr == nullptr) return;
  if (CUDAAllocator* other = other_of(ptr)) return note([&] { other->raw_delete(ptr); });
  sharing->freeing(ptr);
  const bool profiled = c10::memoryProfilingEnabled();
  if (!trace->watches() && !profiled) return millpond.delete_(ptr);
  const bool wanted = profiled || trace->tracks();
  const DeviceIndex device = wanted ? device_of(ptr) : DeviceIndex{-1};
  const std::size_t size = wanted ? size_of(ptr) : 0;
  const std::size_t requested = wanted ? millpond.requested_(ptr) : 0;
  millpond_torch::Trace::Call call{};
  note([&] {
    call = trace->begin(true);
    trace->tell(TraceEntry::FREE_REQUESTED, device, reinterpret_cast<std::size_t>(ptr), requested,
                nullptr, call.context);
  });
  trace->forget(ptr);
  millpond.delete_(ptr);
  note([&] { trace->freed(std::move(call), ptr); });
  if (profiled) note([&] { report(ptr, -static_cast<std::int64_t>(size), device); });
}

}  // namespace

/// Makes PyTorch's allocator this one, for good. The one in place must have no memory. 0: the
/// library at `path` lacks functions.
extern "C" __attribute__((visibility("default"))) int millpond_native_install(const char* path,
                                                                              int device_count) {
  if (!millpond.load(path)) return 0;
  static auto* const ours = new Allocator;  // never destroyed: tensors end with the process
  millpond.copies_by_peer_();
  others->displaces(c10::cuda::CUDACachingAllocator::allocator.load(), device_count);
  ours->init(device_count);
  c10::SetAllocator(c10::DeviceType::CUDA, ours, 255);  // whatever priority has the one in place
  c10::cuda::CUDACachingAllocator::allocator.store(ours);
  return 1;
}
