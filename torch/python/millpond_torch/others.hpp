// Pools whose memory is not Millpond's: torch.cuda.MemPool with an allocator of the program's (of
// NCCL, or to sleep), or with no_split. PyTorch's own caching allocator, which native.cpp takes the
// place of, is still there and serves them, from whole segments that the pool's allocator gives it.
//
// It hears of nothing else, and so must be told what it would have seen of the rest of the program:
// that a graph is captured, and, in releases that look for finished work only in ordinary requests,
// that it is time to look.
#ifndef MILLPOND_TORCH_OTHERS_HPP
#define MILLPOND_TORCH_OTHERS_HPP

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "compat.hpp"
#include "numbers.hpp"

namespace millpond_torch {

/// All functions may be called from any thread. No lock is held while a request, a filter or a
/// pool's allocator runs.
class Others {
 public:
  using CUDAAllocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;
  using DeviceIndex = c10::DeviceIndex;
  using DeviceStats = c10::CachingDeviceAllocator::DeviceStats;
  using Filter = std::function<bool(cudaStream_t)>;
  using MempoolId = c10::MempoolId_t;

  /// The allocator in whose place another one comes.
  void displaces(CUDAAllocator* allocator, int device_count) {
    std::lock_guard<std::mutex> held(lock_);
    if (allocator == nullptr || allocator->name() != "native") return;
    native_ = allocator;
    device_count_ = device_count;
  }
  /// PyTorch's own allocator, if any pool was ever taken; NULL otherwise.
  CUDAAllocator* native() const { return used_.load(std::memory_order_acquire); }
  /// PyTorch's own allocator, from now on in use. Throws where it was not in place before.
  CUDAAllocator* start() {
    std::lock_guard<std::mutex> held(lock_);
    TORCH_CHECK_NOT_IMPLEMENTED(
        native_ != nullptr,
        "only PyTorch's own allocator serves a MemPool of another allocator, "
        "and it was not in place before Millpond");
    if (used_.load(std::memory_order_relaxed) == nullptr) {
      if (!native_->initialized()) native_->init(device_count_);
      // First, as it may throw: then nothing was done that the next call would do twice.
      for (const auto& [device, peer] : peers_) native_->enablePeerAccess(device, peer);
      for (const auto& tracker : trackers_) native_->attachAllocatorTraceTracker(tracker);
      for (const DeviceIndex device : captured_) mark(*native_, device, true);
      for (Beside& begun : beside_) begun.stands_in = stand_in(begun.device);
      used_.store(native_, std::memory_order_release);
    }
    return native_;
  }

  /// What the program has set for PyTorch's own allocator, which Millpond follows.
  auto settings() {
    decltype(c10::cuda::CUDACachingAllocator::SnapshotInfo::config_metadata) none{};
    none.max_split_size = SIZE_MAX;
    CUDAAllocator* displaced = nullptr;
    {
      std::lock_guard<std::mutex> held(lock_);
      displaced = native_;
    }
    const MempoolId no_pool{~0ULL, ~0ULL};
    return displaced != nullptr ? snapshot_of(*displaced, no_pool).config_metadata : none;
  }

  // ---- the pools ----

  /// One use more of the pool, whose segments are the allocator's; NULL: PyTorch's own.
  template <typename Allocator>
  void take(DeviceIndex device, MempoolId pool, Allocator allocator) {
    start()->createOrIncrefPool(device, pool, std::move(allocator));
    std::lock_guard<std::mutex> held(lock_);
    if (Known* known = find(device, pool)) {
      ++known->uses;
    } else {
      pools_.push_back({device, pool});
    }
  }
  /// PyTorch's allocator, if the pool is one of these; NULL otherwise.
  CUDAAllocator* of(DeviceIndex device, MempoolId pool) {
    if (native() == nullptr) return nullptr;
    std::lock_guard<std::mutex> held(lock_);
    return find(device, pool) != nullptr ? native_ : nullptr;
  }
  /// One use more of the pool, which serves what the filter accepts. False: it is none of these.
  bool begin(DeviceIndex device, MempoolId pool, Filter filter) {
    if (of(device, pool) == nullptr) return false;
    look_for_finished_work(device);
    {
      std::unique_lock<std::mutex> held(lock_);
      // Another thread may have it for one request (`spare`).
      returned_.wait(held, [&] {
        const Known* known = find(device, pool);
        return known == nullptr || !known->lent;
      });
      Known* known = find(device, pool);
      if (known == nullptr) return false;
      // Before PyTorch's allocator says so, which has counted a use by then.
      TORCH_CHECK(!known->begun, "beginAllocateToPool: already recording to mempool_id");
      known->begun = true;
      ++known->uses;
    }
    try {
      native_->beginAllocateToPool(device, pool, std::move(filter));
    } catch (...) {
      std::lock_guard<std::mutex> held(lock_);
      if (Known* known = find(device, pool)) {
        known->begun = false;
        --known->uses;
      }
      throw;
    }
    return true;
  }
  void end(DeviceIndex device, MempoolId pool) {
    native_->endAllocateToPool(device, pool);
    {
      std::lock_guard<std::mutex> held(lock_);
      if (Known* known = find(device, pool)) known->begun = false;
    }
    empty_late();
  }
  /// One use less. A pool without uses is forgotten: PyTorch's allocator has what is left of it.
  void release(DeviceIndex device, MempoolId pool) {
    native_->releasePool(device, pool);
    std::lock_guard<std::mutex> held(lock_);
    Known* known = find(device, pool);
    if (known != nullptr && --known->uses <= 0) pools_.erase(pools_.begin() + (known - &pools_[0]));
  }
  /// The pool serves requests of others, too, where there is no memory (`use_on_oom`).
  void serve_others(DeviceIndex device, MempoolId pool, bool serves) {
    std::lock_guard<std::mutex> held(lock_);
    if (Known* known = find(device, pool)) known->serves_others = serves;
  }

  // ---- the rest of the program ----

  /// One of Millpond's pools has been begun, perhaps for a graph, and has ended. Releases that tell
  /// PyTorch's allocator of no capture itself (`capture`) take whatever is begun for one.
  void begun_beside(DeviceIndex device, MempoolId pool) {
    if constexpr (kTold<CUDAAllocator>) return;
    {
      std::lock_guard<std::mutex> held(lock_);
      if (native() == nullptr) return beside_.push_back({device, pool, {0, 0}});
    }
    const MempoolId stands_in = stand_in(device);
    std::lock_guard<std::mutex> held(lock_);
    beside_.push_back({device, pool, stands_in});
  }
  void ended_beside(DeviceIndex device, MempoolId pool) {
    MempoolId stands_in{0, 0};
    {
      std::lock_guard<std::mutex> held(lock_);
      const auto last = std::find_if(beside_.rbegin(), beside_.rend(), [&](const Beside& begun) {
        return begun.device == device && begun.pool == pool;
      });
      if (last == beside_.rend()) return;
      stands_in = last->stands_in;
      beside_.erase(std::next(last).base());
    }
    if (stands_in == MempoolId{0, 0}) return;
    native_->endAllocateToPool(device, stands_in);
    native_->releasePool(device, stands_in);
    empty_late();
  }
  /// A graph begins to be captured on the device, or ends.
  void capture(DeviceIndex device, bool begins) {
    CUDAAllocator* used = nullptr;
    {
      std::lock_guard<std::mutex> held(lock_);
      used = native();
      const auto known = std::find(captured_.begin(), captured_.end(), device);
      if (begins) {
        captured_.push_back(device);
      } else if (known != captured_.end()) {
        captured_.erase(known);
      }
    }
    if (used != nullptr) mark(*used, device, begins);
  }
  /// Work on `peer` may use memory of `device`.
  void admit(DeviceIndex device, DeviceIndex peer) {
    CUDAAllocator* used = nullptr;
    {
      std::lock_guard<std::mutex> held(lock_);
      used = native();
      if (used == nullptr) peers_.emplace_back(device, peer);
    }
    if (used != nullptr) used->enablePeerAccess(device, peer);
  }
  /// Hears of what PyTorch's allocator does for these pools, and of segments of theirs, as a
  /// library of communication must to register them.
  void track(const AllocatorTraceTracker& tracker) {
    CUDAAllocator* used = nullptr;
    {
      std::lock_guard<std::mutex> held(lock_);
      used = native();
      if (used == nullptr) trackers_.push_back(tracker);
    }
    if (used != nullptr) used->attachAllocatorTraceTracker(tracker);
  }

  // ---- blocks and numbers ----

  /// The block of such a pool is not used again before the stream is done with it.
  void record_stream(void* ptr, c10::Device device, c10::cuda::CUDAStream stream) {
    streams_.store(true, std::memory_order_relaxed);
    c10::DataPtr borrowed{ptr, ptr, native_->raw_deleter(), device};  // which it knows its own by
    try {
      native_->recordStream(borrowed, stream);
    } catch (...) {
      (void)borrowed.release_context();
      throw;
    }
    (void)borrowed.release_context();
  }

  /// A block of the free memory of such a pool; NULL: none has any.
  void* spare(std::size_t size, DeviceIndex device, cudaStream_t stream) {
    if (native() == nullptr) return nullptr;
    look_for_finished_work(device);
    std::vector<MempoolId> pools;
    {
      std::lock_guard<std::mutex> held(lock_);
      for (const Known& known : pools_) {
        if (known.device == device && known.serves_others) pools.push_back(known.pool);
      }
    }
    for (const MempoolId pool : pools) {
      if (!lend(device, pool)) continue;
      // Its allocator is not asked for more: that may be what the program has set a limit to.
      void* ptr = nullptr;
      try {
        if (has_free(device, pool, size, stream)) ptr = request(device, pool, size, stream);
      } catch (const std::exception&) {  // then this pool has nothing for it
      }
      {
        std::lock_guard<std::mutex> held(lock_);
        if (Known* known = find(device, pool)) known->lent = false;
      }
      returned_.notify_all();
      if (ptr != nullptr) return ptr;
    }
    return nullptr;
  }

  /// Memory that is free in such pools goes back to their allocators: that of ended ones, or if
  /// they have all ended that of this one.
  void empty_cache(MempoolId pool) {
    if (native() == nullptr) return;
    try {
      native_->emptyCache(pool);
    } catch (const c10::Error&) {
      // The end of a pool, which must not throw: beside the use of another one PyTorch's allocator
      // refuses up to 2.11. Its memory goes after that.
      if (pool == MempoolId{0, 0}) throw;
      std::lock_guard<std::mutex> held(lock_);
      late_.push_back(pool);
    }
  }
  /// Memory that ended pools have kept, since blocks of theirs still lived, goes back. False: there
  /// is none, or a graph may be captured, which must not see that.
  bool give_back(DeviceIndex device) {
    if (native() == nullptr || busy()) return false;
    const auto reserved = [&] { return total(native_->getDeviceStats(device).reserved_bytes); };
    const std::int64_t before = reserved();
    if (before == 0) return false;
    try {
      native_->emptyCache({0, 0});
    } catch (const c10::Error&) {
      return false;
    }
    return reserved() < before;
  }

  /// A request will be asked for again, and was not out of memory yet.
  void again(DeviceIndex device) {
    std::lock_guard<std::mutex> held(lock_);
    ++again_[device];
  }
  /// Adds the numbers of PyTorch's allocator.
  void add_to(DeviceStats& stats, DeviceIndex device) {
    if (native() == nullptr) return;
    DeviceStats theirs = native_->getDeviceStats(device);
    std::lock_guard<std::mutex> held(lock_);
    const auto counted = again_.find(device);
    if (counted != again_.end()) {
      theirs.num_ooms = std::max<std::int64_t>(0, theirs.num_ooms - counted->second);
    }
    add(stats, theirs);
  }
  void reset_accumulated(DeviceIndex device) {
    if (native() == nullptr) return;
    native_->resetAccumulatedStats(device);
    std::lock_guard<std::mutex> held(lock_);
    again_.erase(device);
  }

 private:
  struct Known {
    DeviceIndex device;
    MempoolId pool;
    int uses = 1;
    bool begun = false;
    bool lent = false;  // for one request
    bool serves_others = false;
  };
  /// A pool of Millpond's that is begun, and the one that PyTorch's allocator has in its stead.
  struct Beside {
    DeviceIndex device;
    MempoolId pool, stands_in;  // 0, 0: none, as it is not in use yet
  };

  /// Whether PyTorch's allocator is told of captures.
  template <typename Allocator>
  static constexpr bool kTold = requires(Allocator& allocator) {
    allocator.markCaptureBegin(0);
  };

  template <typename Allocator>
  static void mark(Allocator& allocator, DeviceIndex device, bool begins) {
    if constexpr (kTold<Allocator>) {
      begins ? allocator.markCaptureBegin(device) : allocator.markCaptureEnd(device);
    }
  }
  Known* find(DeviceIndex device, MempoolId pool) {
    const auto known = std::find_if(pools_.begin(), pools_.end(), [&](const Known& other) {
      return other.device == device && other.pool == pool;
    });
    return known != pools_.end() ? &*known : nullptr;
  }

  /// Begins a pool of PyTorch's allocator that accepts nothing and never has any memory. PyTorch's
  /// own ids have a 0.
  MempoolId stand_in(DeviceIndex device) {
    const MempoolId made{~0ULL, made_.fetch_add(1, std::memory_order_relaxed)};
    native_->beginAllocateToPool(device, made, [](cudaStream_t) { return false; });
    return made;
  }

  /// Whether a graph may be captured.
  bool busy() {
    std::lock_guard<std::mutex> held(lock_);
    if constexpr (kTold<CUDAAllocator>) return !captured_.empty();
    return !beside_.empty() || std::any_of(pools_.begin(), pools_.end(), [](const Known& known) {
      return known.begun || known.lent;
    });
  }

  /// What could not be given back beside the use of another pool.
  void empty_late() {
    std::vector<MempoolId> late;
    if (busy()) return;
    {
      std::lock_guard<std::mutex> held(lock_);
      late.swap(late_);
    }
    for (const MempoolId pool : late) empty_cache(pool);
  }

  /// Up to 2.11 PyTorch's allocator finds out that other streams are done with freed blocks in
  /// requests while nothing is begun, which it has none of here: every one is in a pool.
  void look_for_finished_work(DeviceIndex device) {
    if (kTold<CUDAAllocator> || !streams_.load(std::memory_order_relaxed) || busy()) return;
    try {
      const c10::cuda::CUDAGuard on(device);
      native_->raw_delete(native_->raw_alloc_with_stream(1, nullptr));
    } catch (const c10::OutOfMemoryError&) {
      again(device);  // it has looked all the same
    }
  }

  /// The bytes that PyTorch's allocator gives a request: the next of so many equal parts of the
  /// power of two below it, by an entry for each power from 1 MiB on.
  static std::size_t rounded(std::size_t size, const std::vector<std::size_t>& parts_from_mib) {
    constexpr std::size_t kUnit = 512;
    std::size_t below = kUnit, unit = kUnit, at = 0;
    while (below <= size / 2) below *= 2;
    for (std::size_t mib = size >> 21; mib != 0 && at + 1 < parts_from_mib.size(); mib >>= 1) ++at;
    const std::size_t parts = parts_from_mib.empty() ? 0 : parts_from_mib[at];
    if (parts > 1 && size > kUnit * parts) unit = below / parts;
    return (size + unit - 1) / unit * unit;
  }
  /// Whether a block in the pool is free for the request.
  bool has_free(DeviceIndex device, MempoolId pool, std::size_t size, cudaStream_t stream) {
    constexpr std::size_t kSmall = std::size_t{1} << 20;  // of PyTorch's allocator
    const auto there = snapshot_of(*native_, pool);
    size = rounded(size, there.config_metadata.roundup_power2_divisions);
    for (const auto& segment : there.segments) {
      if (segment.device != device || segment.stream != stream ||
          segment.is_large != (size > kSmall)) {
        continue;
      }
      for (const auto& block : segment.blocks) {
        if (!block.allocated && !block.active && block.size >= size) return true;
      }
    }
    return false;
  }
  /// Whether this thread may use the pool, which nobody does now.
  bool lend(DeviceIndex device, MempoolId pool) {
    std::lock_guard<std::mutex> held(lock_);
    Known* known = find(device, pool);
    if (known == nullptr || known->begun || known->lent || !known->serves_others) return false;
    return known->lent = true;
  }
  void* request(DeviceIndex device, MempoolId pool, std::size_t size, cudaStream_t stream) {
    const auto self = std::this_thread::get_id();
    void* ptr = nullptr;
    try {
      native_->beginAllocateToPool(
          device, pool, [self](cudaStream_t) { return std::this_thread::get_id() == self; });
    } catch (const c10::Error&) {
      return nullptr;  // it has ended meanwhile
    }
    try {
      const c10::cuda::CUDAGuard on(device);
      ptr = native_->raw_alloc_with_stream(size, stream);
    } catch (const c10::OutOfMemoryError&) {
      again(device);  // it does not take what is free
    } catch (const std::exception&) {
    }
    try {
      native_->endAllocateToPool(device, pool);
    } catch (const std::exception&) {  // its use ends all the same
    }
    try {
      native_->releasePool(device, pool);
    } catch (const std::exception&) {
    }
    return ptr;
  }

  static std::int64_t total(const c10::CachingAllocator::StatArray& numbers) {
    return numbers[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].current;
  }

  std::atomic<CUDAAllocator*> used_{nullptr};
  std::atomic<bool> streams_{false};    // another stream has used a block of these pools
  std::atomic<std::uint64_t> made_{0};  // stand-ins
  std::mutex lock_;                     // guards what follows
  std::condition_variable returned_;    // a pool that was lent
  CUDAAllocator* native_ = nullptr;
  int device_count_ = 0;
  std::vector<Known> pools_;
  std::vector<Beside> beside_;
  std::vector<MempoolId> late_;                // pools that have ended, and could not give back yet
  std::vector<DeviceIndex> captured_;          // the devices, once for each graph that is captured
  std::map<DeviceIndex, std::int64_t> again_;  // requests that were asked for again
  // For PyTorch's allocator, once it is used.
  std::vector<AllocatorTraceTracker> trackers_;
  std::vector<std::pair<DeviceIndex, DeviceIndex>> peers_;
};

}  // namespace millpond_torch

#endif
